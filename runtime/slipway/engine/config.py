"""What the engine process is told at its start: the resolved arguments that concern it."""

from __future__ import annotations

import msgspec


class DraftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A model that guesses what another will say."""

    method: str
    """draft_model: a model of its own, or what its config.json says it is; eagle, eagle3: layers over the
    target's hidden states; mtp: such layers out of the checkpoint of a whole model; medusa, mlp_speculator:
    heads on its last ones."""
    model: str | None
    """Null: the target's own checkpoint has what guesses."""
    revision: str | None = None
    code_revision: str | None = None
    quantization: str | None = None
    """How its plain weights are quantized while they load."""
    max_model_len: int | None = None
    """Tokens of a request up to which it guesses; null: as many as it was made for."""
    tensor_parallel_size: int | None = None
    """Of a draft model, the ranks that share it: those of the target (null), or 1, and each has all of it."""


class TypicalAcceptance(msgspec.Struct, frozen=True, kw_only=True):
    """The rule by which a draft stands for what would be drawn, and so changes tokens."""

    threshold: float
    alpha: float


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """JSON on an inherited descriptor. Null means: the engine decides, as the argument's help says."""

    # model and weights
    model: str
    revision: str | None = None
    code_revision: str | None = None
    hf_config_path: str | None = None
    hf_overrides: dict[str, object] = {}
    hf_token: str | bool | None = None
    config_format: str = "auto"
    load_format: str = "auto"
    download_dir: str | None = None
    ignore_patterns: list[str] | None = None
    pt_load_map_location: object = "cpu"
    use_tqdm_on_load: bool = True
    model_impl: str = "auto"
    trust_remote_code: bool = False
    dtype: str = "auto"
    task: str = "auto"
    override_pooler_config: dict[str, object] = {}
    quantization: str | None = None
    max_model_len: int | None = None
    rope_scaling: dict[str, object] = {}
    rope_theta: float | None = None
    disable_sliding_window: bool = False
    seed: int = 0
    max_logprobs: int = 20
    enable_prompt_embeds: bool = False
    # text, which the engine reads for grammars alone
    tokenizer: str | None = None
    tokenizer_mode: str = "auto"
    tokenizer_revision: str | None = None
    grammar_cache_bytes: int = 512 << 20
    """Memory for compiled grammars."""
    # cache
    block_size: int = 16
    kv_cache_dtype: str = "auto"
    calculate_kv_scales: bool = False
    quantization_param_path: str | None = None
    num_blocks: int | None = None
    kv_cache_bytes: int | None = None
    disable_hybrid_kv_cache_manager: bool = False
    """Layers with a window keep all tokens; they see no more of them."""
    swap_bytes: int = 0
    """Host memory that keeps preempted requests, on CUDA; those that do not fit are computed again."""
    enable_prefix_caching: bool = True
    prefix_hash: str = "builtin"
    prefix_hash_secret: str = ""
    """Keys the builtin hash; drawn where it is empty."""
    # scheduler
    max_num_seqs: int = 1024
    max_num_batched_tokens: int | None = None
    enable_chunked_prefill: bool = True
    scheduling_policy: str = "fcfs"
    max_num_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
    long_prefill_token_threshold: int = 0
    scheduler_delay_factor: float = 0.0
    overlap: bool | None = None
    """Plan and post-process while the worker computes. Unset: on CUDA; not on CPU, which needs every core."""
    num_drafts: int = 0
    """Most tokens that a step verifies for a request beside its next one; 0: none are guessed, or as many as
    `draft` has heads."""
    draft: DraftConfig | None = None
    """What guesses; null: lookup in the request's own tokens, by the two settings below."""
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 5
    """Tokens at a request's end that must have stood in it before, for what followed to be guessed again."""
    max_guessing: int | None = None
    """Running requests from which on none is granted drafts."""
    acceptance: TypicalAcceptance | None = None
    """Null: a draft is accepted where it is what would be drawn."""
    # processors of logits
    processors: bool = False
    """Requests may bring them."""
    processor_threads: int | None = None
    # adapters
    max_loras: int = 0
    """Different adapters in one step; 0: none are served."""
    max_cpu_loras: int | None = None
    """Held in memory, from which the least recently used go first; None: `max_loras`."""
    max_lora_rank: int = 16
    lora_dtype: str = "auto"
    enable_lora_bias: bool = False
    fully_sharded_loras: bool = False
    lora_extra_vocab_size: int = 0
    """Most tokens that an adapter may add."""
    long_lora_scaling_factors: list[float] = []
    """By which adapters may stretch the context."""
    max_prompt_adapters: int = 0
    """Held in memory; 0: none are served."""
    max_prompt_adapter_token: int = 0
    """Most virtual tokens of each."""
    # ranks
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    layer_partition: list[int] = []
    """Layers of each stage; empty: as even as can be."""
    enable_expert_parallel: bool = False
    rank: int = 0
    """Of this process, as `dist.mesh` counts those of one engine."""
    machine_parts: int = 1
    """In how many equal parts engines and ranks share the processors and the memory of this machine."""
    nnodes: int = 1
    node_rank: int = 0
    first_device: int = 0
    """Of the devices that this node sees, that of its first rank."""
    master_addr: str = "127.0.0.1"
    master_port: int = 29501
    host_ip: str | None = None
    """Of this node, for ranks of others; null: the address by which it reaches node 0."""
    rank_port: int | None = None
    """First port for what ranks open beside `master_port`; null: the one behind that."""
    cluster_key_file: str | None = None
    """Of the secret by which ranks on several hosts know each other."""
    ranks_on_nodes: list[int] = []
    """How many each node has, from the first rank on; empty: each as many as the others."""
    distributed_executor_backend: str | None = None
    """As the argument says; null is auto."""
    ray_workers_use_nsight: bool = False
    max_parallel_loading_workers: int | None = None
    """Ranks of a host that read weights at the same time; null: all."""
    disable_custom_all_reduce: bool = False
    rank_folder: str = ""
    """Where the ranks of this host find each other, on devices: a folder that their user alone may enter."""
    # engines of their own beside it
    name: str = "the engine"
    """What it is called where it is one of several."""
    engines_on_host: int = 1
    """That have weights and devices of their own, itself among them."""
    place_on_host: int = 0
    """Among these."""
    frontends: int = 1
    """Processes that answer HTTP beside them: these take memory of the host, too."""
    # device
    device: str = "cpu"
    """cpu, cuda, or auto, which takes CUDA where there is one."""
    gpu_memory_utilization: float = 0.9
    offload_bytes: int = 0
    """Host memory for weights of layers that come to the device in each step, on CUDA."""
    graph_sizes: list[int] = []
    """Batches that run as CUDA graphs; empty: none."""
    graph_max_length: int = 8192
    """Longest context that graphs cover."""
    attention_backend: str = "auto"
    skip_warmup: bool = False
    """Serve before what makes the first requests as fast as later ones."""
    worker_cls: str = "auto"
    """By its import path; auto: the device's own."""
    worker_extension_cls: str | None = None
    """What workers have beside, by its import path."""
    # process
    timed: bool = False
    """Each Delta tells how long the steps took that its request was part of."""
    threads: int | None = None
    """That compute, on CPU; null: as many as this part of the machine has cores."""
    bound_cpus: list[list[int]] = []
    """Of each engine or rank of this machine, the processors of its threads."""
    pin_threads: bool = True
    """Where nothing is bound: a core for each thread, where these are as many as the cores."""
    log_config_file: str | None = None
    profile_folder: str | None = None
    """Where traces of steps are written, which calls start and stop."""
    record: str | None = None
    """File to which messages and plans are written (`SLIPWAY_RECORD`)."""

    @property
    def is_one_of_several(self) -> bool:
        """Its server has others."""
        return self.name != "the engine"
