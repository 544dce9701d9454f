"""What arguments of ranks, nodes and copies must be to each other: each rule broken and kept."""

from __future__ import annotations

import pytest

from slipway.args import ArgumentError, resolve

TWO = ["-n", "2", "-tp", "2"]
HEAD = ["--master-addr", "10.0.0.1"]
COPIES = ["-dp", "4"]
OTHER = ["--headless", "-dpa", "10.0.0.1"]

REFUSED = {
    "a node beyond the last": (
        [*TWO, *HEAD, "--node-rank", "2"],
        [*TWO, *HEAD, "--node-rank", "1"],
        "--node-rank 2 is no node of --nnodes 2: they count from 0 to 1.",
    ),
    "a node of no number": (
        ["--node-rank", "1", *HEAD],
        [*TWO, "--node-rank", "0"],
        "--node-rank 1 is no node of --nnodes 1: say how many there are with --nnodes.",
    ),
    "a node that looks on itself": (
        [*TWO, "--node-rank", "1"],
        [*TWO, "--node-rank", "1", "--master-addr", "127.0.0.1"],
        "--node-rank 1 needs --master-addr, an address of node 0: without it this node would look for its "
        "ranks on itself, at 127.0.0.1.",
    ),
    "copies in the process of the API": (
        [*COPIES, "--disable-frontend-multiprocessing"],
        [*COPIES, "-dpn", "1", "--disable-frontend-multiprocessing"],
        "--data-parallel-size 4 needs engines in processes of their own, and "
        "--disable-frontend-multiprocessing puts one into the API's. Drop one of them.",
    ),
    "nodes of unequal shares": (
        ["-n", "3", "-tp", "2", "-pp", "2"],
        ["-n", "3", "-tp", "2", "-pp", "3"],
        "--tensor-parallel-size 2 × --pipeline-parallel-size 2 = 4 ranks do not spread evenly over --nnodes "
        "3. Make their product a multiple of the number of nodes.",
    ),
    "copies on nodes of unequal shares": (
        ["-n", "4", "-tp", "2", "-dp", "3"],
        ["-n", "4", "-tp", "2", "-dp", "4"],
        "--data-parallel-size 3 does not spread evenly over --nnodes 4: a node has whole copies. Make the "
        "first a multiple of the second.",
    ),
    "several copies of a server that has one": (
        [*COPIES, "-n", "2", "--data-parallel-external-lb"],
        [*COPIES, "-n", "2", "--data-parallel-hybrid-lb"],
        "--data-parallel-external-lb has one copy in a server, and of --data-parallel-size 4 each of "
        "--nnodes 2 has 2. Use --data-parallel-hybrid-lb, or as many nodes as copies.",
    ),
    "a node that begins with another's copy": (
        [*COPIES, "-n", "2", *HEAD, "-r", "1", "-dpr", "1"],
        [*COPIES, "-n", "2", *HEAD, "-r", "1", "-dpr", "2"],
        "--data-parallel-start-rank 1 contradicts --nnodes 2, by which it is 2 on --node-rank 1 with "
        "--master-addr 10.0.0.1. Drop it.",
    ),
    "copies without API on node 0": (
        [*COPIES, "-n", "2", "--headless"],
        [*COPIES, "-n", "2", *HEAD, "--headless", "-r", "1"],
        "--headless starts no API server, and that of these nodes is on --node-rank 0, which this is. Drop "
        "the first, or correct the second.",
    ),
    "nodes of Ray's": (
        [*TWO, "--distributed-executor-backend", "ray"],
        [*TWO, "--distributed-executor-backend", "mp"],
        "--nnodes 2 says that you start a command on each node, and --distributed-executor-backend ray that "
        "Ray starts the ranks. Drop one of them.",
    ),
    "nodes of Ray's old switch": (
        [*TWO, "--worker-use-ray"],
        ["-tp", "2", "--worker-use-ray"],
        "--nnodes 2 says that you start a command on each node, and --distributed-executor-backend ray that "
        "Ray starts the ranks. Drop one of them.",
    ),
    "nodes with copies of Ray's": (
        [*TWO, "--data-parallel-backend", "ray"],
        [*TWO, "--data-parallel-backend", "mp"],
        "--nnodes 2 says that you start a command on each node, and --data-parallel-backend ray that Ray "
        "starts the copies. Drop one of them.",
    ),
    "ranks in one process": (
        ["--distributed-executor-backend", "uni", "-tp", "2", "-pp", "2"],
        ["--distributed-executor-backend", "uni", "-dp", "2"],
        "--distributed-executor-backend uni computes in the engine's own process, which is one rank, and "
        "--tensor-parallel-size 2 × --pipeline-parallel-size 2 asks for 4. Use mp, or leave it out.",
    ),
    "more local copies": (
        ["-dpl", "2"],
        ["-dpl", "2", "-dp", "2"],
        "--data-parallel-size-local 2 is larger than --data-parallel-size 1: the local copies are part of "
        "all. Lower the first or raise the second.",
    ),
    "a copy beyond the last": (
        [*COPIES, "--data-parallel-rank", "4"],
        [*COPIES, "--data-parallel-rank", "3"],
        "--data-parallel-rank 4 is none of --data-parallel-size 4: they count from 0 to 3. Lower the first "
        "or raise the second.",
    ),
    "one copy that is two": (
        [*COPIES, "--data-parallel-rank", "1", "-dpl", "2"],
        [*COPIES, "--data-parallel-rank", "1", "-dpl", "1"],
        "--data-parallel-rank 1 is one copy, and --data-parallel-size-local 2 asks for 2 on this node. Drop "
        "the second, or name the first of them with --data-parallel-start-rank.",
    ),
    "one copy that begins elsewhere": (
        [*COPIES, "--data-parallel-rank", "1", "--data-parallel-start-rank", "2"],
        [*COPIES, "--data-parallel-rank", "1", "--data-parallel-start-rank", "1"],
        "--data-parallel-rank 1 contradicts --data-parallel-start-rank 2: both say which copy this server "
        "begins with. Drop the second.",
    ),
    "two balancers": (
        [*COPIES, "-dpl", "2", "--data-parallel-external-lb", "--data-parallel-hybrid-lb"],
        [*COPIES, "-dpl", "2", "--data-parallel-hybrid-lb"],
        "--data-parallel-external-lb and --data-parallel-hybrid-lb exclude each other: with the first each "
        "server has one copy, with the second a node's copies. Drop one of them.",
    ),
    "a balancer that a rank implies": (
        [*COPIES, "--data-parallel-rank", "1", "--data-parallel-hybrid-lb"],
        [*COPIES, "--data-parallel-rank", "1"],
        "--data-parallel-external-lb (which --data-parallel-rank implies) and --data-parallel-hybrid-lb "
        "exclude each other: with the first each server has one copy, with the second a node's copies. Drop "
        "one of them.",
    ),
    "an outside balancer of a copy without number": (
        [*COPIES, "--data-parallel-external-lb"],
        [*COPIES, "-n", "4", "--data-parallel-external-lb"],
        "--data-parallel-external-lb needs --data-parallel-rank: it says which of the 4 copies this server "
        "is.",
    ),
    "a start beyond the last copy": (
        [*COPIES, *OTHER, "-dpr", "4", "-dpl", "1"],
        [*COPIES, *OTHER, "-dpr", "3", "-dpl", "1"],
        "--data-parallel-start-rank 4 is none of --data-parallel-size 4: they count from 0 to 3. Lower the "
        "first or raise the second.",
    ),
    "copies beyond the last": (
        [*COPIES, *OTHER, "-dpr", "3", "-dpl", "2"],
        [*COPIES, *OTHER, "-dpr", "2", "-dpl", "2"],
        "--data-parallel-start-rank 3 and --data-parallel-size-local 2 reach to copy 4, and the last of "
        "--data-parallel-size 4 is 3. Lower one of the first two.",
    ),
    "a start without a number": (
        [*COPIES, *OTHER, "-dpr", "2"],
        [*COPIES, *OTHER, "-dpr", "2", "-dpl", "1"],
        "--data-parallel-start-rank 2 needs --data-parallel-size-local, how many of the 4 copies this node "
        "has: 2 are left from 2 on.",
    ),
    "a node's balancer without a number": (
        [*COPIES, "--data-parallel-hybrid-lb"],
        [*COPIES, "--data-parallel-hybrid-lb", "-dpl", "2"],
        "--data-parallel-hybrid-lb needs --data-parallel-size-local: how many of the 4 copies this node has.",
    ),
    "a node's balancer of nothing": (
        [*COPIES, "--data-parallel-hybrid-lb", "-dpl", "0"],
        [*COPIES, "-dpl", "0"],
        "--data-parallel-hybrid-lb shares requests among this node's copies, and --data-parallel-size-local "
        "0 leaves it none. Raise the second or drop the first.",
    ),
    "two that place": (
        [*COPIES, "-dpb", "ray", "-dpl", "2"],
        [*COPIES, "-dpb", "ray"],
        "--data-parallel-backend ray has Ray say where each copy is, and --data-parallel-size-local says it, "
        "too. Drop one of them.",
    ),
    "an engine that nobody reaches": (
        ["--headless"],
        [*COPIES, *OTHER],
        "--headless starts no API server, so that nobody could reach the engine: it is for further nodes of "
        "--data-parallel-size or --nnodes. Give one of these, or drop it.",
    ),
    "no API server on node 0": (
        [*TWO, "--headless"],
        [*TWO, *HEAD, "--headless", "--node-rank", "1"],
        "--headless starts no API server, and that of these nodes is on --node-rank 0, which this is. Drop "
        "the first, or correct the second.",
    ),
    "an API server that is none": (
        [*COPIES, "--headless", "--data-parallel-rank", "1"],
        [*COPIES, "--data-parallel-rank", "1"],
        "--headless starts no API server, and --data-parallel-external-lb wants one on every node. Drop one "
        "of them.",
    ),
    "API servers that are none": (
        [*COPIES, *OTHER, "--api-server-count", "2"],
        [*TWO, *HEAD, "--node-rank", "1", "--api-server-count", "2"],
        "--headless starts no API server, and --api-server-count asks for 2. Drop one of them.",
    ),
    "a node of nothing": (
        [*COPIES, *OTHER, "-dpl", "0"],
        [*COPIES, *OTHER, "-dpl", "1"],
        "--headless starts engines only, and --data-parallel-size-local 0 leaves this node none. Raise the "
        "second.",
    ),
    "a node that knows no other": (
        [*COPIES, "--headless"],
        [*COPIES, *OTHER],
        "--headless needs --data-parallel-address, an address of the node whose API server these engines "
        "belong to.",
    ),
    "an unknown key of the balance": (
        ["--eplb-config", '{"window": 5}'],
        ["--eplb-config", '{"window_size": 5}'],
        "--eplb-config has no key 'window'. Did you mean window_size? It has window_size, step_interval, "
        "num_redundant_experts, log_balancedness, log_balancedness_interval, use_async, policy, "
        "communicator.",
    ),
}

WARNED = {
    "a cluster for one rank": (
        ["--distributed-executor-backend", "ray"],
        ["--distributed-executor-backend", "ray", "-tp", "2"],
        "--distributed-executor-backend ray has no effect with one rank: the engine's process has it.",
    ),
    "a meeting place of one node": (
        ["--master-port", "5000", "--master-addr", "10.0.0.1"],
        [*TWO, "--master-port", "5000", "--master-addr", "10.0.0.1"],
        "--master-addr and --master-port have no effect with --nnodes 1.",
    ),
    "nodes of a launcher": (
        ["--distributed-executor-backend", "external_launcher", *TWO],
        TWO,
        "--nnodes 2 has no effect with --distributed-executor-backend external_launcher: the launcher's "
        "variables RANK and WORLD_SIZE say which rank this is of how many.",
    ),
    "a key for nobody": (
        ["--cluster-key-file", "/key", "-tp", "2"],
        ["--cluster-key-file", "/key", *TWO],
        "--cluster-key-file has no effect: everything runs on this host, where nothing listens for others.",
    ),
    "experts of one device": (
        ["--enable-expert-parallel"],
        ["--enable-expert-parallel", "-tp", "2"],
        "--enable-expert-parallel has no effect with --tensor-parallel-size 1: one device holds every expert "
        "whole.",
    ),
    "balance without experts": (
        ["--enable-eplb"],
        ["--enable-eplb", "--enable-expert-parallel", "-tp", "2"],
        "--enable-eplb has no effect without --enable-expert-parallel.",
    ),
    "settings of a balance that nothing keeps": (
        ["--eplb-config.use-async", "true"],
        [],
        "--eplb-config has no effect without --enable-eplb.",
    ),
    "turns of one rank": (
        ["--max-parallel-loading-workers", "1"],
        ["--max-parallel-loading-workers", "1", "-pp", "2"],
        "--max-parallel-loading-workers has no effect: one rank reads all weights.",
    ),
    "profiles of workers that Ray does not start": (
        ["--ray-workers-use-nsight"],
        ["--ray-workers-use-nsight", "--distributed-executor-backend", "ray"],
        "--ray-workers-use-nsight has no effect without --distributed-executor-backend ray.",
    ),
    "a meeting of one copy": (
        ["-dpa", "10.0.0.1", "--data-parallel-rank", "0"],
        ["-dpa", "10.0.0.1", "--data-parallel-rank", "0", "-dp", "2"],
        "--data-parallel-address and --data-parallel-rank have no effect with --data-parallel-size 1.",
    ),
    "a node's balancer of all copies": (
        ["-dp", "2", "-dpl", "2", "--data-parallel-hybrid-lb"],
        ["-dp", "4", "-dpl", "2", "--data-parallel-hybrid-lb"],
        "--data-parallel-hybrid-lb has no effect: all 2 copies are on this node.",
    ),
}
LAUNCHED = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5"}


@pytest.mark.parametrize(("broken", "kept", "sentence"), REFUSED.values(), ids=REFUSED)
def test_ranks_and_copies_that_contradict_each_other_are_refused_even_in_a_dry_run(broken, kept, sentence):
    for dry in ([], ["--dry-run"]):
        with pytest.raises(ArgumentError) as caught:
            resolve(["m", *broken, *dry], {})
        assert caught.value.message == sentence
        assert caught.value.argument
        resolve(["m", *kept, *dry], {})


@pytest.mark.parametrize(("idle", "kept", "sentence"), WARNED.values(), ids=WARNED)
def test_what_has_no_effect_among_so_many_ranks_warns(idle, kept, sentence):
    assert sentence in resolve(["m", *idle], LAUNCHED).warnings
    assert sentence not in resolve(["m", *kept], LAUNCHED).warnings


def test_experts_that_are_not_moved_are_served_and_said_to_stay():
    resolved = resolve(["m", "-tp", "2", "--enable-expert-parallel", "--enable-eplb"], {})
    resolved.refuse_unbuilt()
    assert resolved.warnings == (
        "--enable-eplb has no effect: every expert stays where it was put, and moving experts between "
        "devices is not built yet.",
    )


def test_a_later_node_has_no_api_server_unless_it_is_balanced_from_outside():
    first, second = ["m", *TWO, *HEAD], ["m", *TWO, *HEAD, "--node-rank", "1"]
    assert not resolve(first, {})["headless"]
    assert resolve(second, {})["headless"]
    assert not resolve([*second, "-dp", "2", "--data-parallel-external-lb"], {})["headless"]


def test_a_copy_that_is_named_is_balanced_from_outside():
    assert resolve(["m", *COPIES, "--data-parallel-rank", "0"], {})["data_parallel_external_lb"]
    assert not resolve(["m", *COPIES], {})["data_parallel_external_lb"]
    assert not resolve(["m", "--data-parallel-rank", "0"], {})["data_parallel_external_lb"]


def test_nodes_say_which_copies_they_have_and_where_they_meet():
    second = resolve(["m", *COPIES, "-n", "2", *HEAD, "--master-port", "5000", "-r", "1"], {})
    names = ("size_local", "start_rank", "address", "rpc_port")
    assert [second[f"data_parallel_{name}"] for name in names] == [2, 2, "10.0.0.1", 5000]
    alone = resolve(["m", *COPIES, "-n", "4", *HEAD, "-r", "3", "--data-parallel-external-lb"], {})
    assert (alone["data_parallel_rank"], alone["headless"]) == (3, False)
