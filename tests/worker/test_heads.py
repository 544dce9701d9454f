from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoder_models import EncoderRun, make_encoder, text
from slipway.load.arrays import FP32
from slipway.load.errors import LoadError
from slipway.model.encoder_registry import encoders
from slipway.model.encoder_spec import EncoderSpec
from slipway.model.encoder_weights import EncoderWeights, load_encoder
from slipway.schemes.choice import Schemes
from slipway.worker.encoder import Encoder
from slipway.worker.heads import ACTIVATIONS, Classifier
from slipway_kernels.activation.reference import activate
from slipway_kernels.cpu import Threads

CLASSIFIERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "roberta": ("roberta", {}),
    "xlm_roberta": ("xlm_roberta", {}),
    "modernbert": ("modernbert", {}),
    "modernbert_mean": (
        "modernbert",
        {"classifier_pooling": "mean", "classifier_bias": True, "norm_bias": True},
    ),
    "gte": ("gte", {}),
    "nomic_bert": ("nomic_bert", {}),
}


def loaded(folder: Path) -> tuple[EncoderRun, EncoderSpec, EncoderWeights]:
    run = EncoderRun(folder)
    route = run.plan.route
    assert isinstance(route, Encoder)
    spec = route.encoder
    return run, spec, load_encoder(spec, encoders()[spec.architecture], run.plan.checkpoint, Schemes(FP32))


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("variant", CLASSIFIERS)
@torch.inference_mode()
def test_scores_are_those_of_transformers(tmp_path: Path, variant: str, labels: int) -> None:
    from transformers import AutoModelForSequenceClassification

    family, overrides = CLASSIFIERS[variant]
    folder = make_encoder(family, tmp_path, "SequenceClassification", num_labels=labels, **overrides)
    run, spec, weights = loaded(folder)
    assert spec.classifier
    score = Classifier(spec, weights.arrays, Threads(1))
    prompts = {slot: text(length, slot) for slot, length in enumerate((30, 4, 91))}
    rows = run.step(prompts)
    pooled = np.stack(
        [(one[0] if spec.classifier.pooling == "cls" else one.mean(0)).numpy() for one in rows.values()]
    )
    found = score(pooled)
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    for slot, tokens in prompts.items():
        expected = model(torch.tensor([tokens])).logits[0]
        torch.testing.assert_close(torch.from_numpy(found[slot]), expected, atol=1e-4, rtol=1e-4)
        assert np.array_equal(score(pooled[slot : slot + 1])[0], found[slot])


def test_an_encoder_without_a_classifier_has_no_scores(tmp_path: Path) -> None:
    _, spec, weights = loaded(make_encoder("bert", tmp_path))
    with pytest.raises(ValueError, match="BertModel has no classifier"):
        Classifier(spec, weights.arrays, Threads(1))


def test_a_classifier_that_the_checkpoint_lacks_is_named(tmp_path: Path) -> None:
    folder = make_encoder("bert", tmp_path)
    config = folder / "config.json"
    config.write_text(config.read_text().replace("BertModel", "BertForSequenceClassification"))
    with pytest.raises(LoadError, match=r"missing: classifier\.bias, classifier\.weight"):
        EncoderRun(folder)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_the_references(name: str) -> None:
    x = torch.linspace(-6, 6, 97)
    torch.testing.assert_close(torch.from_numpy(ACTIVATIONS[name](x.numpy())), activate(x, name))
