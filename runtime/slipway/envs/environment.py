"""The variables that this version reads, typed, and the warnings about all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path

from slipway.envs.debugging import BUILDING, DEBUGGING
from slipway.envs.distributed import DISTRIBUTED
from slipway.envs.hardware import HARDWARE
from slipway.envs.kernels import KERNELS
from slipway.envs.own import CREDENTIALS, OWN
from slipway.envs.runtime import RUNTIME
from slipway.envs.variable import InvalidEnvironment, Value, Variable, service_link

VARIABLES: tuple[Variable, ...] = (
    *RUNTIME,
    *KERNELS,
    *DISTRIBUTED,
    *HARDWARE,
    *CREDENTIALS,
    *DEBUGGING,
    *BUILDING,
    *OWN,
)
BY_NAME: Mapping[str, Variable] = {variable.name: variable for variable in VARIABLES}
PREFIXES = ("VLLM_", "SLIPWAY_")
UNBOUND = ("nobind", "all")
"""Values of VLLM_CPU_OMP_THREADS_BIND that leave threads to the system."""
MAX_CORE = 4095
"""Highest core number taken from a list: above any machine, and small enough to expand."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Values of the variables that have an effect, and of some that are not built yet, for the part that will
    read them; each attribute is a variable's name in lower case without `VLLM_`. None where unset and
    without a default. What an argument says too is the argument's to tell."""

    configure_logging: bool
    logging_config_path: str | None
    logging_level: str
    logging_prefix: str | None
    no_deprecation_warning: bool
    do_not_track: bool
    no_usage_stats: bool
    cuda_home: str | None
    hf_hub_offline: bool
    ld_library_path: str | None
    s3_endpoint_url: str | None
    s3_access_key_id: str | None
    s3_secret_access_key: str | None
    config_root: str
    cudart_so_path: str | None
    nccl_so_path: str | None
    plugins: tuple[str, ...] | None
    use_modelscope: bool
    cuda_visible_devices: tuple[str, ...] | None
    cache_root: str | None
    omp_num_threads: int | None
    allow_long_max_model_len: bool
    allow_runtime_lora_updating: bool
    attention_backend: str
    disabled_kernels: tuple[str, ...] | None
    fused_moe_chunk_size: int
    """Tokens."""
    k_scale_constant: int
    v_scale_constant: int
    enable_v1_multiprocessing: bool
    engine_iteration_timeout_s: int
    enable_responses_api_store: bool
    keep_alive_on_engine_death: bool
    rpc_base_path: str | None
    rpc_timeout: int
    """Milliseconds."""
    host_ip: str
    port: int | None
    instance_id: str | None
    dp_rank: int
    dp_size: int
    dp_master_ip: str
    dp_master_port: int | None
    pp_layer_partition: tuple[int, ...] | None
    ray_bundle_indices: tuple[int, ...] | None
    ray_per_worker_gpus: float
    disable_custom_all_reduce: bool
    skip_p2p_check: bool
    logits_processor_threads: int | None
    xgrammar_cache_mb: int
    cpu_kvcache_space: float | None
    """GiB."""
    cpu_omp_threads_bind: str
    hf_token: str | None
    hugging_face_hub_token: str | None
    api_key: str | None
    server_dev_mode: bool
    torch_profiler_dir: str | None
    trace_function: bool
    log_batchsize_interval: float
    """Seconds; nothing is logged where it is not above 0."""
    skip_warmup: bool
    max_jobs: int | None
    slipway_cache: str | None
    slipway_command: str
    slipway_cpu_isa: str | None
    slipway_kernels: str | None
    slipway_prefix_hash_secret: str | None
    slipway_record: str | None
    slipway_termination_log: str | None

    def __getitem__(self, name: str) -> Value:
        """By the variable's full name. KeyError where it does not exist or has no effect."""
        variable = BY_NAME[name]
        if variable.status != "implemented" or variable.of_launcher:
            raise KeyError(name)
        value: Value = getattr(self, variable.field)
        return value

    @property
    def hub_token(self) -> str | None:
        return self.hf_token or self.hugging_face_hub_token

    @property
    def cache_folder(self) -> Path:
        """Where Slipway keeps what it downloads for itself; it may not exist yet."""
        return Path(self.slipway_cache or self.cache_root or "~/.cache/slipway").expanduser()


def bound_cpus(text: str) -> list[list[int]]:
    """Processors of each engine or rank in lists such as `0-3,8|4-7`, each in its order; none for `auto`,
    `nobind` and `all`.

    Raises InvalidEnvironment.
    """
    return [] if text in ("", "auto", *UNBOUND) else [_cpus(text, one) for one in text.split("|")]


def _cpus(text: str, one: str) -> list[int]:
    cpus: list[int] = []
    for part in one.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(end.isdecimal() and int(end) <= MAX_CORE for end in ends) or int(ends[0]) > int(ends[1]):
            raise _bad_cores(text, part)
        cpus += range(int(ends[0]), int(ends[1]) + 1)
    if len(set(cpus)) < len(cpus):
        raise _bad_cores(text, one)
    return cpus


def _bad_cores(text: str, part: str) -> InvalidEnvironment:
    return InvalidEnvironment(
        "VLLM_CPU_OMP_THREADS_BIND",
        f"VLLM_CPU_OMP_THREADS_BIND={text} has {part.strip()!r} where a core or a range of cores "
        "belongs. Write it like 0-3,8 or 0-3|4-7, or use auto or nobind.",
    )


def read(environ: Mapping[str, str]) -> Environment:
    """The typed values. Raises InvalidEnvironment for a malformed value of a variable that has an
    effect, and for a refused variable that asks for something."""
    for variable in VARIABLES:
        text = environ.get(variable.name)
        if variable.status == "refused" and text and not variable.asks_for_nothing(text):
            sentence = f"{variable.shown(text)} is refused: {variable.reason}."
            raise InvalidEnvironment(variable.name, sentence)
    of_field = {variable.field: variable for variable in VARIABLES}
    values: dict[str, Value] = {
        field.name: of_field[field.name].parse(environ.get(of_field[field.name].name))
        for field in fields(Environment)
    }
    environment = Environment(**values)  # type: ignore[arg-type]  # a test compares the two
    bound_cpus(environment.cpu_omp_threads_bind)
    return environment


def check(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that is set and has no effect, and for each unknown name that
    looks like ours. A value that asks for nothing is no cause to warn."""
    links = _service_links(environ)
    warnings = [
        f"{len(names)} variables come from a Kubernetes Service called {service} "
        f"({', '.join(sorted(names)[:2])}, …) and are ignored. "
        "Set enableServiceLinks: false on the pod."
        for service, names in links.items()
    ]
    injected = {name for names in links.values() for name in names}
    for name in sorted(environ):
        text = environ[name]
        if variable := BY_NAME.get(name):
            warnings += _about(variable, text)
        elif name.startswith(PREFIXES) and name not in injected:
            warnings.append(unknown(name))
    return warnings


def unknown(name: str) -> str:
    """The sentence for a name that carries our prefix and does not exist."""
    near = near_names(name)
    advice = f"Did you mean {' or '.join(near)}?" if near else "`slipway args` lists all."
    return f"{name} is not a variable that Slipway knows: it is ignored. {advice}"


def near_names(name: str) -> list[str]:
    """At most three known names that resemble this one, the nearest first."""
    return get_close_matches(name.upper(), list(BY_NAME), n=3, cutoff=0.8)


def _about(variable: Variable, text: str) -> list[str]:
    if variable.is_link(text):
        return [service_link(variable, text)]
    if variable.status == "refused" or variable.asks_for_nothing(text):
        return []
    if variable.status == "implemented":
        caveats = [f"{variable.shown(text)}: {variable.caveat}."] if variable.caveat else []
        return [*caveats, *_unknown_items(variable, text)]
    lead = "is not built yet" if variable.status == "not built yet" else "has no effect"
    return [f"{variable.shown(text)} {lead}: {variable.reason}."]


def _unknown_items(variable: Variable, text: str) -> list[str]:
    """A list may name what another server has."""
    if variable.type != "list[str]" or not variable.options:
        return []
    unknown = [item for item in (part.strip() for part in text.split(",")) if item not in variable.options]
    known = ", ".join(variable.options)
    return [f"{variable.name}: {item} has no effect, it is none of {known}." for item in unknown if item]


def _service_links(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Names that the kubelet injected for Services whose own name begins like our variables."""
    links: dict[str, list[str]] = {}
    for name in environ:
        prefix = name.removesuffix("_SERVICE_HOST")
        if prefix == name or not (prefix + "_").startswith(PREFIXES):
            continue
        starts = (f"{prefix}_SERVICE_", f"{prefix}_PORT_")
        names = [other for other in environ if other.startswith(starts)]
        if (port := f"{prefix}_PORT") in environ and port not in BY_NAME:
            names.append(port)
        links[prefix.lower().replace("_", "-")] = names
    return links
