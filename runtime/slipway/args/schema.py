"""All arguments, by group and by name, of the commands whose arguments are declared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from slipway.args.declare import Argument, Group, declared_by
from slipway.args.errors import ArgumentError
from slipway.args.groups import bench
from slipway.args.groups.adapters import LoRA, PromptAdapter
from slipway.args.groups.batch import Batch
from slipway.args.groups.cache import Cache
from slipway.args.groups.engine import Observability, Platform, Slipway
from slipway.args.groups.frontend import AsyncEngine, Engine, Frontend
from slipway.args.groups.load import Decoding, Load, TokenizerPool
from slipway.args.groups.model import Model
from slipway.args.groups.multimodal import MultiModal
from slipway.args.groups.parallel import Device, Parallel
from slipway.args.groups.scheduler import Scheduler
from slipway.args.groups.speculative import Speculative
from slipway.args.values import near


@dataclass(frozen=True)
class Schema:
    """The arguments of one command."""

    command: str
    groups: tuple[Group, ...]
    operands: str = ""
    """What the usage line names before the arguments."""
    of_engine: bool = True
    """Takes the engine's arguments, so that what holds among them holds here."""

    @cached_property
    def arguments(self) -> dict[str, Argument]:
        """Name with underscores → declaration, in the order of the groups."""
        return {argument.name: argument for group in self.groups for argument in group.arguments}

    @cached_property
    def short(self) -> dict[str, Argument]:
        """`-tp` → declaration."""
        return {alias: argument for argument in self.arguments.values() for alias in argument.aliases}

    @cached_property
    def synonyms(self) -> dict[str, Argument]:
        """Other long name with underscores → declaration."""
        return {other: argument for argument in self.arguments.values() for other in argument.synonyms}

    def find(self, name: str) -> Argument | None:
        """The argument of this long name; dashes and underscores are the same."""
        name = name.replace("-", "_")
        return self.arguments.get(name) or self.synonyms.get(name)

    def long_names(self) -> list[str]:
        """Every long flag without its dashes, `no-` forms included."""
        flags = [argument for argument in self.arguments.values() if not argument.positional]
        return [
            *(argument.flag[2:] for argument in flags),
            *("no-" + argument.flag[2:] for argument in flags if argument.negatable),
        ]

    def unknown(self, name: str, place: str) -> ArgumentError:
        """The error for a name that is none of these. `place` is how it was written."""
        return ArgumentError(
            f"{place} is not an argument.{near(name.replace('_', '-'), self.long_names())} "
            f"`slipway {self.command} --help` lists all of them."
        )


SERVE = Schema(
    "serve",
    tuple(
        map(
            declared_by,
            (
                Frontend,
                AsyncEngine,
                Engine,
                Model,
                TokenizerPool,
                Load,
                Decoding,
                Parallel,
                Cache,
                MultiModal,
                LoRA,
                PromptAdapter,
                Device,
                Speculative,
                Observability,
                Scheduler,
                Platform,
                Slipway,
            ),
        )
    ),
    operands="[MODEL] ",
)

ARGUMENTS = SERVE.arguments

CAMEL: dict[str, Argument] = {argument.camel: argument for argument in ARGUMENTS.values() if argument.in_spec}
"""Field of `spec.engine` → declaration."""

SHARED_WITH_BATCH = (
    "help",
    "config",
    "response_role",
    "max_log_len",
    "enable_prompt_tokens_details",
    "chat_template",
    "chat_template_content_format",
    "trust_request_chat_template",
    "enable_auto_tool_choice",
    "tool_call_parser",
    "tool_parser_plugin",
    "return_tokens_as_token_ids",
    "lora_modules",
    "prompt_adapters",
    "disable_frontend_multiprocessing",
    "log_config_file",
)

BATCH = declared_by(Batch)

RUN_BATCH = Schema(
    "run-batch",
    (
        replace(
            BATCH,
            arguments=(
                *BATCH.arguments,
                replace(ARGUMENTS["port"], no_effect_without=("enable_metrics",)),
                *(ARGUMENTS[name] for name in SHARED_WITH_BATCH),
            ),
        ),
        *SERVE.groups[1:],
    ),
    operands="-i INPUT_FILE -o OUTPUT_FILE ",
)

LATENCY, THROUGHPUT, DATASET = map(declared_by, (bench.Latency, bench.Throughput, bench.Dataset))
OF_A_CLIENT = tuple(map(declared_by, (bench.Server, bench.Dataset, bench.Load, bench.Sampling, bench.Report)))
OF_AN_ENGINE = tuple(
    replace(group, arguments=tuple(a for a in group.arguments if a.name != "model"))
    for group in SERVE.groups
    if group.name not in ("Frontend", "AsyncEngine", "Slipway")
)
"""Without what only a server has; the model is one of the measurement's own arguments."""

OF_ANSWERS = (
    "disable_log_stats",
    "enable_sleep_mode",
    "generation_config",
    "override_generation_config",
    "served_model_name",
    "skip_tokenizer_init",
    "guided_decoding_backend",
    "guided_decoding_disable_additional_properties",
    "guided_decoding_disable_any_whitespace",
    "guided_decoding_disable_fallback",
    "reasoning_effort",
    "reasoning_parser",
    "reasoning_parser_plugin",
    "collect_detailed_traces",
    "otlp_traces_endpoint",
    "show_hidden_metrics_for_version",
    "data_parallel_address",
    "data_parallel_backend",
    "data_parallel_external_lb",
    "data_parallel_hybrid_lb",
    "data_parallel_rank",
    "data_parallel_rpc_port",
    "data_parallel_size_local",
)
"""The engine's arguments, as vLLM groups them, that act where a server answers and not in the engine."""


def _measurement(kind: str, own: tuple[Group, ...], *, of_engine: bool) -> Schema:
    about = ("help", "config", "dry_run") if of_engine else ("help", "dry_run")
    first = replace(own[0], arguments=(*own[0].arguments, *(ARGUMENTS[name] for name in about)))
    engine = OF_AN_ENGINE if of_engine else ()
    return Schema(f"bench {kind}", (first, *own[1:], *engine), of_engine=of_engine)


BENCH = {
    "latency": _measurement("latency", (LATENCY,), of_engine=True),
    "serve": _measurement("serve", OF_A_CLIENT, of_engine=False),
    "throughput": _measurement("throughput", (THROUGHPUT, DATASET), of_engine=True),
}
"""Subcommand of `slipway bench` → its arguments."""


def help_text(argument: Argument) -> str:
    """The text that stands after the declaration."""
    groups = {group.name: group for group in (*SERVE.groups, BATCH, LATENCY, THROUGHPUT, *OF_A_CLIENT)}
    return groups[argument.group].help_texts()[argument.name]
