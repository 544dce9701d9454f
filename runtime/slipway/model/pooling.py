"""What a model is asked for: tokens, or vectors and scores that are made of its final rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slipway.load.config import Config, flag, integer, integers, table, text, texts, wrong
from slipway.load.errors import LoadError
from slipway.load.sentence_transformers import score_activation, sentences
from slipway.model.encoder_registry import encoders
from slipway.model.encoder_spec import EncoderSpec
from slipway.model.spec import DecoderSpec, Score

TYPES = ("LAST", "MEAN", "CLS", "ALL", "STEP")
"""One vector for a prompt: its last row, the mean of all, its first. Several: all rows, those of a token."""

_TASKS = {"embedding": "embed", "score": "classify"}
"""Names of one task."""
_SUPPORTED = {
    "ForCausalLM": ("generate", "embed", "classify", "reward"),
    "ForSequenceClassification": ("classify",),
    "ForRewardModel": ("reward",),
    "ForProcessRewardModel": ("reward",),
    "LMHeadModel": ("generate",),
    "Model": ("embed", "reward"),  # last: others end so, too
}
"""By the ending of an architecture's name, what such a model can do; the first is what it does unasked."""
_CROSS_ENCODER = ("identity", "sigmoid", "softmax", "tanh")
"""What sentence-transformers may put a pair's score through, by the names of torch.nn."""

TokenIds = Callable[[Sequence[str]], Sequence[int]]
"""The ids of tokens. Raises LoadError where one is none."""


def no_tokenizer(names: Sequence[str]) -> Sequence[int]:
    raise LoadError("UnsupportedModel", f"No tokenizer tells the ids of {', '.join(names)}.")


_GUESS_HIDDEN = (
    "ForMaskedLM",
    "ForMultipleChoice",
    "ForPreTraining",
    "ForQuestionAnswering",
    "ForTokenClassification",
)
"""Endings of classes whose rows see those behind them, as training by hidden tokens wants it."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """How final rows become an answer."""

    task: str
    """embed, classify or reward"""
    type: str
    """One of TYPES."""
    activation: str = "identity"
    """What vectors go through in the end: normalize, softmax, sigmoid or identity."""
    step_tag_id: int | None = None
    """STEP: the token whose rows are wanted; None: all."""
    columns: tuple[int, ...] = ()
    """Scores that are wanted of all that there are, where not all are."""
    tokens: tuple[int, ...] = ()
    """Tokens whose logits are the scores; empty: the model has layers for them, or none."""
    difference: bool = False
    """The score is the second token's logit less the first one's."""
    labels: tuple[str, ...] = ()
    scores: tuple[Score, ...] = ()
    """The model's own layers for scores."""
    dense: tuple[Path, ...] = ()
    """Folders of layers behind the pooling."""
    max_length: int | None = None
    """Tokens of a prompt, where a file beside the model says so."""
    cuts: tuple[int, ...] | None = None
    """Dimensions that may be asked for; empty: any number. None: the model was not trained for fewer."""
    warning: str = ""
    """What of the files is left to clients, in a sentence."""

    @property
    def by_token(self) -> bool:
        return self.type in ("ALL", "STEP")

    @property
    def reads_every_row(self) -> bool:
        """No row may be missing because the prefix cache has its keys and values."""
        return self.type != "LAST"

    def of(self, spec: DecoderSpec) -> DecoderSpec:
        """The decoder without the parts that only tokens need, with those that scores do."""
        if self.tokens:
            return spec
        return replace(spec, tied_embedding=True, head_bias=False, scores=self.scores)


def pooling_of(
    config: Config, folder: Path | None, task: str, overrides: Mapping[str, object], token_ids: TokenIds
) -> Pooling | None:
    """How a model is pooled; None where it generates.

    folder     with the files of sentence-transformers, where it has them
    task       `--task`
    overrides  `--override-pooler-config`
    Raises LoadError where the model cannot do what it is asked for.
    """
    architecture = next(iter(texts(config, "architectures")), "")
    family = encoders().get(architecture)
    encoder = None if family is None else family.spec(config)
    ending = next((ending for ending in _SUPPORTED if architecture.endswith(ending)), "")
    if encoder is not None and encoder.classifier is None:  # with a head that guesses hidden tokens, or none
        ending = "Model"
    if encoder is None and architecture.endswith(_GUESS_HIDDEN):
        raise _unknown_encoder(architecture)
    supported = _SUPPORTED.get(ending, ("generate",))
    may_embed = "embed" in supported and task in ("auto", "embed", "embedding", "pooling")
    beside = sentences(folder) if may_embed else None
    in_file = text(config, "gguf_pooling_type", "")
    preferred = "embed" if may_embed and (beside or in_file) else supported[0]
    if task == "pooling" and preferred == "generate":
        preferred = next((other for other in supported if other != "generate"), task)
    chosen = preferred if task in ("auto", "pooling") else _TASKS.get(task, task)
    if chosen not in supported:
        why = " It is an encoder: its rows see those behind them and draw no next token." if encoder else ""
        raise LoadError(
            "UnsupportedModel",
            f"--task {task} is nothing that {architecture} can do.{why}",
            hint=f"It can {', '.join(supported)}.",
            argument="task",
        )
    if chosen == "generate":
        return None
    made = _usual(chosen, ending, config) if encoder is None else _of_encoder(chosen, encoder, config)
    if len(made.labels) == 1:
        made = replace(made, activation=_of_cross_encoder(config, folder) or made.activation)
    if chosen == "embed" and in_file:
        made = replace(made, type=in_file)
    if chosen == "embed" and beside is not None:
        made = replace(
            made,
            type=beside.pooling,
            activation="normalize" if beside.normalize else "identity",
            dense=beside.dense,
            max_length=beside.max_length,
            warning=beside.warning,
        )
    cuts = integers(config, "matryoshka_dimensions")
    if chosen == "embed" and (cuts or flag(config, "is_matryoshka")):
        made = replace(made, cuts=cuts or ())
    if chosen == "classify" and (names := texts(config, "classifier_from_token")):
        made = _of_tokens(config, made, tuple(token_ids(names)), names)
    elif chosen == "classify" and not made.scores and encoder is None:
        raise LoadError(
            "UnsupportedModel",
            f"{architecture} has no layer that scores.",
            hint="Name the tokens whose logits are the scores, such as by --hf-overrides "
            '\'{"classifier_from_token": ["no", "yes"], "method": "from_2_way_softmax"}\'.',
            argument="task",
        )
    return _overridden(made, overrides)


def _unknown_encoder(architecture: str) -> LoadError:
    known = sorted(name.removesuffix("Model") for name in encoders() if name.endswith("Model"))
    return LoadError(
        "UnsupportedModel",
        f"{architecture} is an encoder of a kind that is not supported: it draws no next token, and "
        "nothing here makes vectors of its rows.",
        hint=f"Encoders that run are of the kinds {', '.join(known)}.",
    )


def _usual(task: str, ending: str, config: Config) -> Pooling:
    """By what the class has behind its decoder."""
    hidden = integer(config, "hidden_size")
    match ending, task:
        case "ForSequenceClassification", _:
            made = _classifier(config)
            return replace(made, scores=(Score(len(made.labels), hidden),))
        case "ForRewardModel", _:
            return Pooling("reward", "ALL", scores=(Score(hidden, hidden, True), Score(1, hidden, True)))
        case "ForProcessRewardModel", _:
            scores = Score(hidden, hidden, True), Score(2, hidden, True)
            return Pooling("reward", "STEP", "softmax", scores=scores)
        case _, "embed":
            return Pooling("embed", "LAST", "normalize")
        case _, "classify":
            return Pooling("classify", "LAST")
    return Pooling("reward", "ALL")


def _of_encoder(task: str, spec: EncoderSpec, config: Config) -> Pooling:
    """The layers that score are beside the program, as `EncoderSpec.classifier` says."""
    if spec.classifier is not None:
        return replace(_classifier(config), type=spec.classifier.pooling.upper())
    return Pooling("embed", "CLS", "normalize") if task == "embed" else Pooling("reward", "ALL")


def _classifier(config: Config) -> Pooling:
    labels = _labels(config)
    own = {"regression": "identity", "multi_label_classification": "sigmoid"}
    usual = "softmax" if len(labels) > 1 else "sigmoid"
    activation = own.get(text(config, "problem_type", ""), usual)
    return Pooling("classify", "LAST", activation, labels=labels)


def _of_cross_encoder(config: Config, folder: Path | None) -> str:
    """What sentence-transformers' CrossEncoder puts a score through, where it says so; else empty.

    Its releases say so in places of their own; config.json, which users may override, goes first.
    """
    own = text(table(config, "sentence_transformers"), "activation_fn", "")
    own = own or text(config, "sbert_ce_default_activation_function", "") or score_activation(folder)
    name = own.rpartition(".")[2].lower()
    if own and (not own.startswith("torch.nn.") or name not in _CROSS_ENCODER):
        raise LoadError(
            "UnsupportedModel",
            f"The model's files put scores through {own}, which is not supported.",
            hint=f"Supported of torch.nn are {', '.join(_CROSS_ENCODER)}: name one by "
            '--hf-overrides \'{"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}}\'.',
            argument="hf_overrides",
        )
    return name


def _labels(config: Config) -> tuple[str, ...]:
    """transformers writes id2label where it is not two labels without a name."""
    names = table(config, "id2label")
    if not all(key.isdecimal() for key in names):
        raise wrong("id2label", names, "an object of labels by number")
    if names:
        return tuple(str(names[key]) for key in sorted(names, key=int))
    return tuple(f"LABEL_{number}" for number in range(integer(config, "num_labels", 2)))


def _of_tokens(config: Config, made: Pooling, ids: tuple[int, ...], names: Sequence[str]) -> Pooling:
    """Scores are logits of tokens; of two, the difference where the model is a reranker of that kind."""
    method = text(config, "method", "")
    difference = method == "from_2_way_softmax" or flag(config, "is_original_qwen3_reranker")
    if difference and len(ids) != 2:
        raise LoadError(
            "UnsupportedModel",
            f"classifier_from_token has {len(ids)} tokens, and a softmax between two needs two.",
            hint="Name the token that says no and the one that says yes.",
            argument="hf_overrides",
        )
    labels = (names[1],) if difference else tuple(names)
    activation = "sigmoid" if len(labels) == 1 else "softmax"
    return replace(made, activation=activation, scores=(), tokens=ids, difference=difference, labels=labels)


def _overridden(made: Pooling, overrides: Mapping[str, object]) -> Pooling:
    """With `--override-pooler-config` laid over it. Raises LoadError for a value of another kind."""
    type = text(overrides, "pooling_type", made.type).upper()
    if type not in TYPES:
        raise _unfit(f"pooling_type {type} is none of {', '.join(TYPES)}.")
    own, other = ("normalize", "softmax") if made.task == "embed" else ("softmax", "normalize")
    if overrides.get(other) is not None:
        raise _unfit(f"{other} has no meaning for --task {made.task}, of which {own} has.")
    activation = made.activation
    if overrides.get(own) is not None:
        activation = own if flag(overrides, own) else "identity"
    tag, returned = made.step_tag_id, integers(overrides, "returned_token_ids")
    if overrides.get("step_tag_id") is not None:
        tag = integer(overrides, "step_tag_id")
    if tag is not None and type != "STEP":
        raise _unfit(f"step_tag_id has a meaning only for pooling_type STEP, not {type}.")
    made = replace(made, type=type, activation=activation, step_tag_id=tag)
    if returned and made.task == "reward" and not made.scores:  # a language model's own logits
        return replace(made, tokens=returned, labels=tuple(map(str, returned)))
    return replace(made, columns=returned)


def _unfit(message: str) -> LoadError:
    return LoadError(
        "UnsupportedModel",
        f"--override-pooler-config: {message}",
        hint="Correct it or leave it out.",
        argument="override_pooler_config",
    )
