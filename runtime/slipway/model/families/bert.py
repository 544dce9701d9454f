"""BERT (Devlin et al. 2019), and RoBERTa and XLM-RoBERTa, which differ in positions and the classifier."""

from __future__ import annotations

from dataclasses import replace

from slipway.load.config import Config, integer, positive
from slipway.model.encoder_registry import register_encoder
from slipway.model.encoder_spec import ClassifierSpec, EncoderMlp, EncoderSpec
from slipway.model.families.encoder_parts import (
    BASE_SIZES,
    BERT_NAMES,
    OLD_NORMS,
    activation,
    attention,
    classifies,
    encoder,
    labels,
    refuse,
)


@register_encoder(
    *("BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification"),
    names=BERT_NAMES,
    prefixes=("bert.",),
    aliases=OLD_NORMS,
    defaults=BASE_SIZES
    | {
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
    },
)
def bert(config: Config) -> EncoderSpec:
    return _absolute(config, 0)


@register_encoder(
    *("RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification"),
    *("XLMRobertaModel", "XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification"),
    names=BERT_NAMES | {"head_dense": "classifier.dense", "classifier": "classifier.out_proj"},
    prefixes=("roberta.",),
    aliases=OLD_NORMS,
    defaults=BASE_SIZES
    | {
        "vocab_size": 50265,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "pad_token_id": 1,
    },
)
def roberta(config: Config) -> EncoderSpec:
    """The padding's row of the table of positions, and those before it, are no token's."""
    return _absolute(config, integer(config, "pad_token_id") + 1)


def _absolute(config: Config, first_position: int) -> EncoderSpec:
    """A table of positions, of which a request's first token has the row `first_position`."""
    refuse(config, position_embedding_type="absolute")
    head = ClassifierSpec(labels(config), "tanh") if classifies(config) else None
    mlp = EncoderMlp(positive(config, "intermediate_size"), activation(config))
    spec = encoder(config, attention(config, bias=True, rotates=False), mlp, head)
    return replace(
        spec,
        positions=spec.max_position,
        first_position=first_position,
        max_position=spec.max_position - first_position,
        types=positive(config, "type_vocab_size"),
    )
