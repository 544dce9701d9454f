"""Arguments of tokenizer pool, loading and decoding."""

from __future__ import annotations

from slipway.args.declare import Disposition, FilePath, Json, Key, Unbuilt, arg, group

NO_POOL = "long texts are tokenized in threads, without a pool"


@group("TokenizerPoolConfig")
class TokenizerPool:
    """The pool of tokenizers of older servers. Tokenization runs off the event loop without one."""

    tokenizer_pool_extra_config: Json | None = arg(disposition=Disposition.WARN, reason=NO_POOL)
    """Old settings of the tokenizer pool."""

    tokenizer_pool_size: int = arg(
        0,
        minimum=0,
        disposition=Disposition.WARN,
        reason=NO_POOL,
    )
    """Old number of tokenizers in the pool."""

    tokenizer_pool_type: str = arg("ray", disposition=Disposition.WARN, reason=NO_POOL)
    """Old kind of tokenizer pool."""


@group("LoadConfig")
class Load:
    """How weights are found and read."""

    download_dir: FilePath | None = arg()
    """Folder for downloaded weights. Unset takes the Hugging Face cache."""

    ignore_patterns: list[str] | None = arg()
    """File patterns that are not read. Unset skips original/**/*, the first Llama format."""

    load_format: str = arg(
        "auto",
        choices=(
            "auto",
            "safetensors",
            "pt",
            "gguf",
            "dummy",
            "npcache",
            "mistral",
            "bitsandbytes",
            "sharded_state",
            "tensorizer",
            "fastsafetensors",
            "runai_streamer",
            "runai_streamer_sharded",
        ),
        open_choices=True,
        unbuilt=Unbuilt(
            "loaders other than safetensors, pt, mistral, gguf and dummy",
            works=("auto", "safetensors", "fastsafetensors", "pt", "mistral", "gguf", "dummy"),
        ),
    )
    """How the weights are stored. auto takes safetensors, then PyTorch files, then mistral; a path that ends
    in .gguf selects gguf.

    mistral reads consolidated*.safetensors as Mistral publishes them. fastsafetensors reads safetensors
    ahead, while the weights before are packed. dummy makes random weights.
    """

    model_loader_extra_config: Json = arg({}, unbuilt=Unbuilt("loaders with settings of their own"))
    """Settings for the loader that --load-format chose."""

    pt_load_map_location: Json | str = arg(
        "cpu", unbuilt=Unbuilt("loading to another device than cpu", works=("cpu", {"": "cpu"}))
    )
    """Device onto which PyTorch files are read: its name, or a JSON object from device to device."""

    qlora_adapter_name_or_path: str | None = arg(
        disposition=Disposition.WARN, reason="adapters are named by --lora-modules"
    )
    """Old name of a QLoRA adapter."""

    use_tqdm_on_load: bool = arg(True, negatable=True)
    """Show progress while weights are read."""


NO_FALLBACK = {"no-fallback": "guided_decoding_disable_fallback"}
NO_WHITESPACE = {"disable-any-whitespace": "guided_decoding_disable_any_whitespace"}


@group("DecodingConfig")
class Decoding:
    """Structured output and reasoning."""

    enable_reasoning: bool = arg(
        False,
        negatable=True,
        requires=("reasoning_parser",),
        replacement="reasoning_parser",
    )
    """Old switch for reasoning output: naming a --reasoning-parser is enough."""

    structured_outputs_config: Json = arg(
        {},
        in_spec=False,
        open_keys=False,
        keys={
            "backend": Key("str"),
            "disable_additional_properties": Key("bool"),
            "disable_any_whitespace": Key("bool"),
            "disable_fallback": Key("bool"),
            "reasoning_parser": Key("str", nullable=True),
        },
        parts={
            "backend": "guided_decoding_backend",
            "disable_additional_properties": "guided_decoding_disable_additional_properties",
            "disable_any_whitespace": "guided_decoding_disable_any_whitespace",
            "disable_fallback": "guided_decoding_disable_fallback",
            "reasoning_parser": "reasoning_parser",
        },
    )
    """The arguments --guided-decoding-… and --reasoning-parser as one object, as vLLM has them now."""

    guided_decoding_backend: str = arg(
        "auto",
        choices=("auto", "guidance", "lm-format-enforcer", "outlines", "xgrammar"),
        options={
            "lm-format-enforcer": NO_FALLBACK,
            "outlines": NO_FALLBACK,
            "xgrammar": NO_FALLBACK | NO_WHITESPACE,
        },
    )
    """What holds output to a grammar: llguidance, whose other name is guidance, under every name.

    Options may follow a colon, as in xgrammar:no-fallback,disable-any-whitespace.
    """

    guided_decoding_disable_additional_properties: bool = arg(False, negatable=True)
    """Let JSON objects have only the properties that their schema lists, as with every other backend. For
    guidance."""

    guided_decoding_disable_any_whitespace: bool = arg(False, negatable=True)
    """Allow no free whitespace in JSON. For xgrammar and guidance."""

    guided_decoding_disable_fallback: bool = arg(False, negatable=True)
    """Refuse what the chosen backend would not follow by itself: grammars and structural tags, with
    lm-format-enforcer and outlines."""

    reasoning_effort: str = arg("medium", choices=("low", "medium", "high"))
    """Effort of reasoning models where the request does not say; the chat template gets it."""

    reasoning_parser: str | None = arg(
        choices=(
            "deepseek_r1",
            "deepseek_v3",
            "ernie45",
            "glm45",
            "granite",
            "holo2",
            "hunyuan_a13b",
            "kimi_k2",
            "minimax_m2",
            "minimax_m2_append_think",
            "mistral",
            "olmo3",
            "openai_gptoss",
            "qwen3",
            "seed_oss",
            "step3",
            "step3p5",
        ),
        open_choices=True,
        extended_by="reasoning_parser_plugin",
    )
    """How reasoning is told from the answer; it must fit the model family. Turns reasoning output on.

    Without it the parser is chosen by the chat template and the architecture where they leave no doubt. An
    empty name chooses none. Another name is accepted where --reasoning-parser-plugin may define it.
    """

    reasoning_parser_plugin: FilePath | None = arg(security_sensitive=True)
    """Python file with more reasoning parsers, in FORMATS by name. It runs arbitrary code in the server."""
