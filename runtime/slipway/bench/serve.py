"""`slipway bench serve`: a load on a running server, and what it answered."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from slipway.args import ArgumentError
from slipway.bench import datasets, measure, report, tokenizers
from slipway.bench.arrivals import arrivals
from slipway.bench.ask import Asker
from slipway.bench.datasets import TOKENS, Alphabet, Count, Sample
from slipway.bench.forms import FORMS, Form
from slipway.bench.http import Address, Client, merged
from slipway.bench.load import Load, until_interrupted
from slipway.bench.progress import Bar
from slipway.bench.server import Server, ServerError
from slipway.bench.words import WORDS

Arguments = Mapping[str, Any]

FIXED_LENGTHS = ("random", "prefix-repetition")
OF_OUTPUT = ("total_output_tokens", "output_throughput", "max_output_tokens_per_s")
"""Figures that only tokens have; else they are null."""
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty"),
)


def run(arguments: Arguments, key_for: Callable[[Address], str | None]) -> int:
    """The exit status: 1 where nothing was measured, 130 after Ctrl-C. Raises ArgumentError."""
    form = FORMS[arguments["backend"]]
    arguments = {**arguments, "percentile_metrics": _metrics(arguments, form)}
    _check_draws(arguments, form)
    address, path = _target(arguments)
    headers = _headers(arguments, key_for(address))
    server = Server(address, headers)
    try:
        model = _model(arguments, server)
        measured, unmeasured = _samples(arguments, server, model)
    except ServerError as error:
        print(f"slipway bench serve: error: {error}", file=sys.stderr)
        return 1
    finally:
        server.close()
    client = Client(address, headers)
    asker = Asker(client, path, form, _fields(arguments, model, form), arguments["save_detailed"])
    _allow_connections()
    load, whole = asyncio.run(_measured(arguments, asker, measured, unmeasured))
    return _told(arguments, model, load, whole)


def _metrics(arguments: Arguments, form: Form) -> list[str]:
    """The latencies to report. Raises ArgumentError for one that is asked for and that no answer has."""
    usual = ["ttft", "tpot", "itl"] if form.draws else list(form.metrics)
    asked = arguments["percentile_metrics"] or usual
    for flag, metrics in (
        ("--percentile-metrics", asked),
        ("--goodput", measure.goals(arguments["goodput"])),
    ):
        if unknown := [metric for metric in metrics if metric not in form.metrics]:
            raise ArgumentError(
                f"{flag} {unknown[0]}: an answer of --backend {arguments['backend']} comes as a whole and "
                f"has no tokens. Ask for {', '.join(form.metrics)}."
            )
    return list(asked)


def _check_draws(arguments: Arguments, form: Form) -> None:
    """Raises ArgumentError for parameters of sampling where no token is drawn."""
    given = [name for name in (*SAMPLING, "ignore_eos") if arguments[name] is not None]
    if given and not form.draws:
        raise ArgumentError(
            f"--{given[0].replace('_', '-')} is about tokens that are drawn, and --backend "
            f"{arguments['backend']} draws none. Leave it out."
        )


def _target(arguments: Arguments) -> tuple[Address, str]:
    """Where the server is, and the path of the endpoint below that."""
    host = arguments["host"]
    url = arguments["base_url"] or f"http://{f'[{host}]' if ':' in host else host}:{arguments['port']}"
    try:
        # The endpoint brings the /v1 that a base URL of OpenAI's clients ends in.
        address = Address.of(url.rstrip("/").removesuffix("/v1"))
    except ValueError as error:
        raise ArgumentError(f"--base-url {error}", "base_url") from None
    return address, arguments["endpoint"] or FORMS[arguments["backend"]].path


def _headers(arguments: Arguments, key: str | None) -> dict[str, str]:
    own = {"Authorization": f"Bearer {key}"} if key else {}
    return merged(own, *(dict([header.split("=", 1)]) for header in arguments["header"]))


def _model(arguments: Arguments, server: Server) -> str:
    """Also where it is given: a server that cannot be reached is told of before anything is measured."""
    listed = server.models(arguments["ready_check_timeout_sec"])
    if arguments["model"]:
        return str(arguments["model"])
    if not listed:
        raise ServerError("The server lists no model. Name it with --model.")
    return listed[0]


def _samples(arguments: Arguments, server: Server, model: str) -> tuple[list[Sample], list[Sample]]:
    """The measured ones and those of the warm-up."""
    alphabet = Alphabet(WORDS) if FORMS[arguments["backend"]].takes_words else TOKENS
    count = _counter(arguments, server, model)
    measured = datasets.samples(arguments, random.Random(arguments["seed"]), alphabet, count)
    return measured, datasets.warm_ups(arguments, measured, alphabet, count)


def _counter(arguments: Arguments, server: Server, model: str) -> Count:
    """By the tokenizer that was named, else by the server's own."""
    name = arguments["tokenizer"]
    if name is None:
        return lambda text: server.count(text, model)
    encode = tokenizers.named(name)
    return lambda text: len(encode(text))


def _fields(arguments: Arguments, model: str, form: Form) -> dict[str, Any]:
    """Of every request's body; what is unset is left to the server, but for the temperature."""
    if not form.draws:
        return {"model": model, **arguments["extra_body"]}
    fields: dict[str, Any] = {"model": model, "temperature": 0.0}
    fields |= {name: arguments[name] for name in SAMPLING if arguments[name] is not None}
    ignores = arguments["ignore_eos"]
    if ignores or (ignores is None and arguments["dataset_name"] in FIXED_LENGTHS):
        fields["ignore_eos"] = True
    return {**fields, **arguments["extra_body"]}


def _allow_connections() -> None:
    """As many as the system lets this process have: the usual limit is below --num-prompts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _measured(
    arguments: Arguments, asker: Asker, measured: list[Sample], unmeasured: list[Sample]
) -> tuple[Load, bool]:
    """The load and whether it came to its end."""
    rng = random.Random(f"arrivals {arguments['seed']}")  # other arrivals leave the prompts as they are
    times = arrivals(float(arguments["request_rate"]), arguments["burstiness"], rng)
    with Bar(len(measured), "requests", shown=not arguments["disable_tqdm"]) as bar:
        load = Load(asker.ask, max_concurrency=arguments["max_concurrency"], on_end=bar.step)

        async def work() -> None:
            for sample in unmeasured:
                await asker.ask(sample)
            await load.run(measured, times)

        try:
            return load, await until_interrupted(work())
        finally:
            asker.client.close()


def _told(arguments: Arguments, model: str, load: Load, whole: bool) -> int:
    """Print and keep what was measured; the exit status."""
    outcomes, asked = load.outcomes, arguments["num_prompts"]
    if not whole:
        print(f"Interrupted: {len(outcomes)} of {asked} requests had ended.", file=sys.stderr)
    if outcomes:
        metrics, shares = arguments["percentile_metrics"], arguments["metric_percentiles"]
        result = _result(arguments, model, load)
        print(report.table(result, metrics, shares))
        for sentence in report.remarks(outcomes):
            print(sentence, file=sys.stderr)
        _keep(arguments, load, result)
    if not whole:
        return 130
    return 0 if any(one.succeeded for one in outcomes) else 1


def _result(arguments: Arguments, model: str, load: Load) -> dict[str, Any]:
    """Under the keys of vLLM's result files."""
    goals = measure.goals(arguments["goodput"])
    seconds = measure.seconds_of(load.outcomes)
    result: dict[str, Any] = {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "backend": arguments["backend"],
        "label": arguments["label"] or arguments["backend"],
        "model_id": model,
        "tokenizer_id": arguments["tokenizer"] or model,
        "num_prompts": arguments["num_prompts"],
        **dict(pair.split("=", 1) for pair in arguments["metadata"]),
        "request_rate": arguments["request_rate"],
        "burstiness": arguments["burstiness"],
        "max_concurrency": arguments["max_concurrency"],
        **measure.totals(load.outcomes, load.duration, goals),
    }
    for metric in arguments["percentile_metrics"]:
        result |= measure.distribution(seconds[metric], metric, arguments["metric_percentiles"])
    if not FORMS[arguments["backend"]].draws:
        result |= dict.fromkeys(OF_OUTPUT)
    return result


def _keep(arguments: Arguments, load: Load, result: Mapping[str, Any]) -> None:
    """Write the files that were asked for. Raises ArgumentError where one cannot be."""
    if arguments["save_result"] or arguments["save_detailed"]:
        path = Path(arguments["result_dir"] or ".") / (
            arguments["result_filename"] or report.file_name(result)
        )
        kept = {**result, **(report.detailed(load.outcomes) if arguments["save_detailed"] else {})}
        _write("result", path, json.dumps(kept, ensure_ascii=False, allow_nan=False) + "\n")
    if arguments["plot"]:
        from slipway.bench.plot import plot

        seconds = measure.seconds_of(load.outcomes)
        shown = {metric: seconds[metric] for metric in arguments["percentile_metrics"]}
        title = f"{result['model_id']}: {result['completed']} requests"
        _write("plot", Path(arguments["plot"]), plot(title, shown))


def _write(what: str, path: Path, text: str) -> None:
    path = path.expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8", "backslashreplace")  # a half of a character, as JSON writes it
    except OSError as error:
        raise ArgumentError(f"The {what} cannot be written to {path}: {error.strerror}.") from None
    print(f"The {what} is in {path}.", file=sys.stderr)
