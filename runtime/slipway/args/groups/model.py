"""Arguments that say which model is served and how it is read."""

from __future__ import annotations

from slipway.args.declare import (
    LARGEST_INT64,
    Disposition,
    FilePath,
    HumanInt,
    Json,
    Key,
    Unbuilt,
    arg,
    group,
)
from slipway.args.groups.features import MULTIMODAL

QUANTIZATIONS = (
    "aqlm",
    "auto-round",
    "awq",
    "awq_marlin",
    "bitblas",
    "bitsandbytes",
    "compressed-tensors",
    "deepspeedfp",
    "experts_int8",
    "fbgemm_fp8",
    "fp8",
    "gguf",
    "gptq",
    "gptq_bitblas",
    "gptq_marlin",
    "gptq_marlin_24",
    "gptqmodel",
    "hqq",
    "int4",
    "int8",
    "ipex",
    "marlin",
    "modelopt",
    "moe_wna16",
    "neuron_quant",
    "nvfp4",
    "ptpc_fp8",
    "qqq",
    "quark",
    "squeezellm",
    "torchao",
    "tpu_int8",
)

DRAFTS_FOR_ANOTHER = (
    "a model that drafts answers nobody: it guesses for another one. Serve that one, and name this as model "
    "in its --speculative-config. To serve it alone, leave --task out."
)
WORKING_TASKS = ("auto", "classify", "embed", "embedding", "generate", "pooling", "reward", "score")
WORKING_QUANTIZATIONS = (
    "awq",
    "awq_marlin",
    "compressed-tensors",
    "experts_int8",
    "fbgemm_fp8",
    "fp8",
    "gguf",
    "gptq",
    "gptq_bitblas",
    "gptq_marlin",
    "gptqmodel",
    "int4",
    "int8",
    "ipex",
    "moe_wna16",
    "ptpc_fp8",
)


@group("ModelConfig")
class Model:
    """The model: where it comes from, how its numbers are held, what it may do."""

    allowed_local_media_path: FilePath | None = arg(security_sensitive=True, unbuilt=MULTIMODAL)
    """Folder from which requests may read images and videos by file URL. Unset allows none.

    Every caller of the API can read what lies in it: for trusted settings only.
    """

    attention_backend: str = arg(
        "auto",
        choices=("auto", "CPU", "TRITON", "TORCH_SDPA", "FLASH_ATTN", "FLASHINFER", "XFORMERS"),
        hollow={"XFORMERS": "Slipway has no xFormers kernels, and takes its own as with auto"},
        twins=("VLLM_ATTENTION_BACKEND",),
        words={
            "cpu_attn": "CPU",
            "flash_attn_vllm_v1": "FLASH_ATTN",
            "flashinfer_vllm_v1": "FLASHINFER",
            "triton_attn": "TRITON",
            "triton_attn_vllm_v1": "TRITON",
        },
    )
    """Attention kernels. auto takes TRITON on CUDA and CPU without it.

    TORCH_SDPA is slow and easy to trust. FLASH_ATTN and FLASHINFER call those packages where they are
    installed, else our own kernels compute, as with TRITON, and the log says so. With the packages and with
    TORCH_SDPA nothing runs as a CUDA graph. XFORMERS means auto; vLLM's other names, such as TRITON_ATTN, are
    taken.
    """

    code_revision: str | None = arg()
    """Branch, tag or commit of the repository's own Python code."""

    config_format: str = arg("auto", choices=("auto", "hf", "mistral"))
    """Format of the model's configuration: config.json (hf) or params.json (mistral). auto takes the first
    that is there."""

    disable_async_output_proc: bool = arg(False)
    """Finish the output of a step before the next one starts. On CPU this is the order anyway."""

    disable_cascade_attn: bool = arg(False, negatable=True, unbuilt=Unbuilt("cascade attention", tunes=True))
    """Never use cascade attention, whose sums differ a little from the plain ones."""

    disable_sliding_window: bool = arg(False, negatable=True)
    """Use no sliding window, and cap the context at its size. Other models are not affected."""

    dtype: str = arg("auto", choices=("auto", "half", "float16", "bfloat16", "float", "float32"))
    """Type of weights and activations.

    auto keeps bfloat16 and takes float16 for the rest; on CPU it takes bfloat16 instead of float16, and
    float32 dequantizes weights that else stay packed. half is float16 and float is float32.
    """

    enable_prompt_embeds: bool = arg(False, negatable=True)
    """Take embeddings in place of a prompt, in prompt_embeds of /v1/completions. For native models."""

    enable_sleep_mode: bool = arg(False, negatable=True)
    """Let the engine be put to sleep, which gives the memory of the KV cache back, and of the weights.

    By /sleep and /wake_up, which answer in development mode (VLLM_SERVER_DEV_MODE). Level 1 keeps the
    weights, of a device in host memory; level 2 drops them, and waking reads them again.
    """

    enforce_eager: bool = arg(False, negatable=True, cuda_only=True)
    """Use no CUDA graphs. Much slower; for debugging."""

    generation_config: str = arg("auto")
    """Where default sampling settings come from: auto the model's repository, vllm nowhere, else a folder.

    A max_new_tokens found there limits the output of every request.
    """

    hf_config_path: str | None = arg()
    """Repository id or path of the configuration, where it is not the model's."""

    hf_overrides: Json = arg({})
    """Settings laid over the model's configuration."""

    hf_token: str | None = arg(
        secret=True,
        ascii_only=True,
        optional_value=True,
        words={"true": True},
        twins=("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        in_spec=False,
    )
    """Token for the Hugging Face hub. Without a value: the one that its command line login stored.

    The command line of a process is visible to others on the machine: prefer HF_TOKEN.
    """

    logits_processor_pattern: str | None = arg(security_sensitive=True)
    """Regular expression of the logits processors that requests may name. Unset allows none.

    It must match the whole qualified name of a function, or of what makes one. Whatever it lets through is
    imported and called in the engine: anyone who may send requests may run it.
    """

    max_context_len_to_capture: int | None = arg(
        minimum=1, unit="tokens", replacement="max_seq_len_to_capture", cuda_only=True
    )
    """Old name of --max-seq-len-to-capture."""

    max_logprobs: int = arg(20, minimum=0)
    """Most log probabilities that a request may ask for with each token."""

    max_model_len: HumanInt | None = arg(minimum=1, unit="tokens", words={"auto": -1, "-1": -1, "none": None})
    """Most tokens of a request, prompt and output together.

    Unset, auto or -1: the model's own length, reduced with a warning where the memory cannot hold
    it. A longer one than the model was trained for needs --rope-scaling.
    """

    max_seq_len_to_capture: int = arg(8192, minimum=1, unit="tokens", cuda_only=True)
    """Longest sequence that the first CUDA graphs cover; longer ones have graphs of their own."""

    model: str | None = arg(in_spec=False)
    """Model to serve: a Hugging Face repository id or a local path. Required in one of its places: there is
    no default model."""

    model_impl: str = arg("auto", choices=("auto", "vllm", "transformers"))
    """Code that runs the model: vllm is the native one, transformers the fallback for any other model."""

    override_generation_config: Json = arg({})
    """Sampling settings laid over those of --generation-config."""

    override_neuron_config: Json = arg(
        {}, disposition=Disposition.REFUSE, reason="Neuron devices are not supported"
    )
    """Settings of Neuron devices."""

    override_pooler_config: Json | None = arg(
        synonyms=("pooler_config",),
        keys={
            "pooling_type": Key("str"),
            "normalize": Key("bool"),
            "softmax": Key("bool"),
            "step_tag_id": Key("int"),
            "returned_token_ids": Key("list[int]"),
        },
        open_keys=False,
    )
    """How a model that pools makes an answer of a prompt's rows, where not as its files say.

    pooling_type is LAST, MEAN, CLS, ALL or STEP; normalize acts on embeddings, softmax on scores; STEP takes
    the rows of the token step_tag_id, or all; of the scores those of returned_token_ids are kept.
    """

    quantization: str | None = arg(
        aliases=("-q",),
        choices=QUANTIZATIONS,
        open_choices=True,
        words={"none": None},
        unbuilt=Unbuilt("other ways to quantize weights", works=WORKING_QUANTIZATIONS),
    )
    """How the weights are quantized. Unset reads it from the model's configuration.

    A checkpoint that is quantized has one right name, or none. Plain weights can be made fp8 (also
    ptpc_fp8), int8, int4 or, of experts alone, experts_int8 as they are read, by rounding.
    """

    quantization_param_path: FilePath | None = arg()
    """JSON file with the scales of an fp8 KV cache, in place of the checkpoint's.

    Its kv_cache.scaling_factor holds, for each tensor-parallel rank, a factor for each layer.
    """

    revision: str | None = arg()
    """Branch, tag or commit of the model. Unset takes the repository's default."""

    rope_scaling: Json = arg(
        {},
        keys={
            "rope_type": Key(
                "str",
                choices=("linear", "dynamic", "yarn", "longrope", "llama3", "default"),
                aliases=("type",),
            ),
            "factor": Key("float", minimum=1),
            "original_max_position_embeddings": Key("int", minimum=1),
            "attention_factor": Key("float"),
            "beta_fast": Key("float"),
            "beta_slow": Key("float"),
            "short_factor": Key("list[float]"),
            "long_factor": Key("list[float]"),
            "low_freq_factor": Key("float"),
            "high_freq_factor": Key("float"),
        },
    )
    """Stretches the context beyond what the model was trained for; a factor above 4 costs quality."""

    rope_theta: float | None = arg(above=0)
    """Base of the rotary embedding."""

    seed: int = arg(0, minimum=-LARGEST_INT64 - 1, maximum=LARGEST_INT64)
    """Seed of what is random in the server.

    Where it is given, requests without a seed draw theirs from it and from the order in which they come:
    after each start the same requests in the same order get the same answers, whichever of several API
    processes they meet. Else each is drawn at random.
    """

    served_model_name: list[str] | None = arg()
    """Names that requests may use. Answers and metrics carry the first. Unset: --model as given."""

    skip_tokenizer_init: bool = arg(False, negatable=True)
    """Load no tokenizer: prompts and answers are token ids."""

    runner: str = arg("auto", choices=("auto", "draft", "generate", "pooling"), in_spec=False)
    """What the model does here, as vLLM says it now: generate, or pooling. Both are a --task."""

    convert: str = arg("auto", choices=("auto", "none", "embed", "classify"), in_spec=False)
    """What a model that generates is made into: embed and classify are the --task of that name."""

    task: str = arg(
        "auto",
        choices=(
            "auto",
            "classify",
            "draft",
            "embed",
            "embedding",
            "generate",
            "pooling",
            "reward",
            "score",
            "transcription",
        ),
        refused={"draft": DRAFTS_FOR_ANOTHER},
        unbuilt=Unbuilt("transcription", works=WORKING_TASKS),
    )
    """What the model does here: generate, embed, classify or reward. embedding is embed, score is classify.

    auto takes what the model's class and its files are for, and pooling the same of what is no text. draft is
    refused: what drafts is named in the --speculative-config of the model that it drafts for.
    """

    tokenizer: str | None = arg()
    """Repository id or path of the tokenizer, where it is not the model's."""

    tokenizer_mode: str = arg("auto", choices=("auto", "slow", "mistral", "custom"))
    """Kind of tokenizer: auto takes the fast one, slow the SentencePiece model where there is one.

    mistral reads tekken.json or tokenizer.model.v* by the package mistral-common, which also writes chats;
    auto does where there is nothing else. custom takes the one that a plugin of VLLM_PLUGINS has registered
    under the name that --tokenizer gives.
    """

    tokenizer_revision: str | None = arg()
    """Branch, tag or commit of the tokenizer."""

    trust_remote_code: bool = arg(False, negatable=True, security_sensitive=True)
    """Run Python code that comes with the model or its tokenizer."""
