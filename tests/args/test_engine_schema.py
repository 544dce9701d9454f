"""`spec.engine` of the CRD."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from jsonschema import Draft4Validator

from slipway.args.openapi import engine_schema
from slipway.args.schema import ARGUMENTS, CAMEL

SCHEMA = engine_schema()
NOT_IN_SPEC = {
    "model_tag",
    "model",
    "host",
    "port",
    "uds",
    "api_key",
    "hf_token",
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "config",
    "headless",
    "runner",
    "convert",
    "shutdown_timeout",
    "spec_method",
    "spec_model",
    "spec_tokens",
    "structured_outputs_config",
    "cluster_key_file",
    "data_parallel_address",
    "data_parallel_external_lb",
    "data_parallel_hybrid_lb",
    "data_parallel_rank",
    "data_parallel_rpc_port",
    "data_parallel_start_rank",
    "master_addr",
    "master_port",
    "nnodes",
    "node_rank",
    "help",
    "dry_run",
}


def nodes(schema: dict[str, Any]) -> list[dict[str, Any]]:
    inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    return [schema, *(node for child in inner for node in nodes(child))]


def accepts(engine: dict[str, Any]) -> bool:
    """Draft 4 writes exclusive bounds as the API server does."""
    return bool(Draft4Validator(SCHEMA).is_valid(engine))


def test_everything_is_in_the_spec_that_has_no_place_of_its_own():
    assert {argument.name for argument in CAMEL.values()} == set(ARGUMENTS) - NOT_IN_SPEC
    assert set(SCHEMA["properties"]) == set(CAMEL)


def test_the_schema_is_structural():
    for node in nodes(SCHEMA):
        assert "default" not in node
        assert "additionalProperties" not in node
        assert "type" in node or any(key.startswith("x-kubernetes-") for key in node)
        if node.get("type") == "array":
            assert node["maxItems"] <= 256
        if node.get("type") == "string":
            assert "maxLength" in node or "enum" in node


def test_every_field_is_described():
    assert all(node["description"] for node in SCHEMA["properties"].values())


def test_rules_read_fields_that_exist():
    for rule in SCHEMA["x-kubernetes-validations"]:
        fields = re.findall(r"self\.([A-Za-z]+)(?:\.([a-z_]+))?", rule["rule"])
        assert fields
        for field, key in fields:
            assert field in SCHEMA["properties"]
            assert not key or key in SCHEMA["properties"][field]["properties"]


def test_every_rule_that_can_be_said_in_cel_is_there():
    rules = {rule["rule"] for rule in SCHEMA["x-kubernetes-validations"]}
    assert (
        "!(has(self.enableAutoToolChoice) && self.enableAutoToolChoice) || has(self.toolCallParser)" in rules
    )
    assert "!has(self.maxCpuLoras) || (has(self.maxLoras) ? self.maxLoras : 1) <= self.maxCpuLoras" in rules
    assert "!has(self.overrideNeuronConfig)" in rules
    assert len(rules) >= 9


def test_the_document_is_small():
    assert len(json.dumps(SCHEMA)) < 100_000


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"maxModelLen": 4096, "maxNumBatchedTokens": "25.6k"},
        {"maxModelLen": "auto"},
        {"maxModelLen": -1},
        {"maxModelLen": "16K"},
        {"gpuMemoryUtilization": 1},
        {"quantization": "a_new_one", "loadFormat": "new", "toolCallParser": "mine", "reasoningParser": "x"},
        {"servedModelName": ["a", "b"], "blockSize": 32},
        {"loraModules": [{"name": "a", "path": "/b"}]},
        {"speculativeConfig": {"method": "mtp", "num_speculative_tokens": 1}},
        {"hfOverrides": {"any": {"thing": [1]}}},
        {"ptLoadMapLocation": "cpu"},
        {"device": "cpu", "workerCls": "auto", "schedulerCls": "vllm.core.scheduler.Scheduler"},
        {"seed": -(2**63)},
        {"workerCls": "my.Worker", "workerExtensionCls": "my.own.Mixin"},
        {"eplbConfig": {"window_size": 500, "communicator": "nixl"}},
    ],
)
def test_what_the_command_line_takes_is_accepted(engine):
    assert accepts(engine)


@pytest.mark.parametrize(
    "engine",
    [
        {"maxModelLen": "25.6K"},
        {"maxModelLen": 0},
        {"maxModelLen": "many"},
        {"kvCacheMemoryBytes": 0},
        {"gpuMemoryUtilization": 0},
        {"gpuMemoryUtilization": 1.1},
        {"blockSize": 17},
        {"dtype": "double"},
        {"device": "tpu"},
        {"attentionBackend": "XFORMER"},
        {"maxLoraRank": 0},
        {"workerCls": "Worker"},
        {"workerExtensionCls": "my mixin.A"},
        {"eplbConfig": {"window_size": 0}},
        {"maxNumSeqs": 0},
        {"maxNumSeqs": "8"},
        {"enforceEager": "true"},
        {"quantization": "no spaces"},
        {"loraModules": [{"name": "a"}]},
        {"speculativeConfig": {"num_speculative_tokens": 0}},
        {"compilationConfig": {"level": 4}},
        {"allowedOrigins": "*"},
    ],
)
def test_what_the_command_line_refuses_is_refused_at_admission(engine):
    assert not accepts(engine)
