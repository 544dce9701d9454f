"""What is read of a model before its engine is ready: tokenizer, template and sampling defaults."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from slipway.api.configure import Settings
from slipway.api.errors import from_validation
from slipway.api.formats import Formats, formats
from slipway.api.protocol.common import Generation
from slipway.exits import BAD_ARGUMENTS, BAD_TOKENIZER, BY_REASON, Exit
from slipway.load import hub
from slipway.load.errors import LoadError, no_model
from slipway.load.folder import parsed
from slipway.load.gguf import header
from slipway.load.gguf.config import generation_config
from slipway.text.open import gguf_in, load_for
from slipway.text.template import ChatTemplate, ChatWriter, load_chat_template
from slipway.text.tokenizer import Tokenizer

logger = logging.getLogger("slipway.api")

_OWN_CHATS = "is not used: the model's tokenizer is of mistral_common, which writes chats itself"


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling of a request that says nothing, as `generation_config.json` names it."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None
    """A cap for all requests, not a default."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Texts:
    """What is read before the engine is ready."""

    tokenizer: Tokenizer | None
    """None with --skip-tokenizer-init."""
    template: ChatWriter | None
    defaults: GenerationDefaults
    eos_token_ids: tuple[int, ...]
    formats: Formats
    """How its outputs are read."""
    made: Callable[[str], ChatWriter] | None = None
    """Compiles the template that a request brings; None where requests may bring none."""
    model_type: str | None = None
    """The model's architecture, as its configuration or its GGUF file names it."""


def read_texts(settings: Settings) -> Texts:
    """Read tokenizer, template and defaults; takes seconds where they must be downloaded.

    Raises Exit where there is no such model, it has no tokenizer or a file is malformed.
    """
    try:
        path = _located(settings)
        if path.is_file() and path.suffix != ".gguf":
            raise no_model(path)
        metadata = _gguf_metadata(path)
    except LoadError as error:
        raise Exit(BY_REASON[error.code], error.message, error.hint, error.argument) from None
    folder = path if path.is_dir() else path.parent
    defaults, eos = _generation_config(settings, folder, _sampling(metadata))
    if settings.skip_tokenizer_init:
        return Texts(None, None, defaults, eos, Formats())
    model_type = _read_json(folder, "config.json").get("model_type") or metadata.get("general.architecture")
    return texts_of(settings, _tokenizer(settings), defaults, eos, model_type=model_type)


def texts_of(
    settings: Settings,
    tokenizer: Tokenizer,
    defaults: GenerationDefaults,
    eos: tuple[int, ...],
    *,
    model_type: str | None = None,
    template: ChatWriter | None = None,
) -> Texts:
    """With that tokenizer, and that template where it has none.

    Raises Exit where its chats cannot be written, or outputs not be read.
    """
    eos = tuple(dict.fromkeys((*eos, *tokenizer.eos_token_ids)))
    made = partial(_made, settings, tokenizer)
    template = _template(settings, tokenizer) or template
    _check_defaults(settings, template)
    return Texts(
        tokenizer,
        template,
        defaults,
        eos,
        formats(settings, tokenizer, None if template is None else template.source, model_type),
        made if settings.trust_request_chat_template else None,
        model_type,
    )


def _tokenizer(settings: Settings) -> Tokenizer:
    try:
        return load_for(settings)
    except (ValueError, LoadError) as error:
        raise Exit(BAD_TOKENIZER, str(error), argument="tokenizer") from None


def _template(settings: Settings, tokenizer: Tokenizer) -> ChatWriter | None:
    """The operator's template, else the model's own; None where there is neither.

    A tokenizer that writes chats itself goes before both: they are texts, which it would not read as it does.
    """
    if tokenizer.chat is not None:
        if settings.chat_template:
            hint = "Leave --chat-template out, or choose another --tokenizer-mode."
            raise Exit(BAD_ARGUMENTS, f"--chat-template {_OWN_CHATS}.", hint, "chat_template")
        return tokenizer.chat
    own = tokenizer.chat_templates.get("default")
    try:
        source = load_chat_template(settings.chat_template) if settings.chat_template else own
        if source is None:
            return None
        return _made(settings, tokenizer, source)
    except ValueError as error:
        if settings.chat_template:
            raise Exit(BAD_ARGUMENTS, str(error), argument="chat_template") from None
        logger.warning("The model's own chat template is left out: %s", error)
        return None


def _check_defaults(settings: Settings, template: ChatWriter | None) -> None:
    try:
        if isinstance(template, ChatTemplate):
            template.check_variables(settings.template_defaults)
    except ValueError as error:
        message = f"--default-{error}".replace("_", "-", 2)
        raise Exit(BAD_ARGUMENTS, message, argument="default_chat_template_kwargs") from None


def _made(settings: Settings, tokenizer: Tokenizer, source: str) -> ChatTemplate:
    if tokenizer.chat is not None:
        raise ValueError(f"chat_template {_OWN_CHATS}. Leave it out.")
    special: dict[str, Any] = dict(tokenizer.special_tokens)
    return ChatTemplate(source, content_format=settings.chat_template_content_format, **special)


def _generation_config(
    settings: Settings, folder: Path, sampling: Mapping[str, Any]
) -> tuple[GenerationDefaults, tuple[int, ...]]:
    """The defaults, and the model's own EOS ids, which count whatever --generation-config says.

    sampling  what the weights' own file says of it
    """
    of_model = {**sampling, **_read_json(folder, "generation_config.json")}
    match settings.generation_config:
        case "auto":
            named = of_model
        case "vllm":
            named = {}
        case other:
            named = _read_json(Path(other).expanduser(), "generation_config.json")
            if not named:
                message = f"--generation-config {other} has no generation_config.json."
                raise Exit(BAD_ARGUMENTS, message, argument="generation_config")
    merged = {**named, **settings.override_generation_config}
    for config in (merged, of_model, _read_json(folder, "config.json")):
        if (eos := config.get("eos_token_id")) is not None:
            return _defaults(merged), (eos,) if isinstance(eos, int) else tuple(eos)
    return _defaults(merged), ()


def _defaults(config: Mapping[str, Any]) -> GenerationDefaults:
    """The settings among `config` that we know, within the bounds of a request's own."""
    names = [field.name for field in fields(GenerationDefaults) if field.name != "max_new_tokens"]
    given = {name: config[name] for name in names if name in config}
    try:
        checked = Generation.model_validate({**given, "max_tokens": config.get("max_new_tokens")})
    except ValidationError as error:
        message = f"The generation configuration is unfit: {from_validation(error).detail}"
        hint = "Set another value with --override-generation-config, or use --generation-config vllm."
        raise Exit(BAD_ARGUMENTS, message, hint, "generation_config") from None
    values = {name: getattr(checked, name) for name in given}
    return GenerationDefaults(**values, max_new_tokens=checked.max_tokens or None)


def _gguf_metadata(path: Path) -> Mapping[str, Any]:
    """Of the model's GGUF file; empty for other models."""
    file = gguf_in(path) if path.is_dir() else path
    return header.read(file).metadata if file is not None and file.suffix == ".gguf" else {}


def _sampling(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a GGUF file says of sampling."""
    found, unused = generation_config(metadata)
    if unused:
        logger.warning("The file's %s have no counterpart here and are not used.", ", ".join(unused))
    return found


def _located(settings: Settings) -> Path:
    return hub.locate(
        settings.model,
        revision=settings.revision,
        token=settings.hf_token,
        download_dir=settings.download_dir,
        weights=False,
    )


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object of a model's folder; empty where there is none. Raises Exit for a damaged one."""
    try:
        value = parsed((folder / name).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise Exit(BAD_ARGUMENTS, f"{folder / name} cannot be read: {error}.") from None
    return value if isinstance(value, dict) else {}
