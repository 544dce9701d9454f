from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from encoder_models import ENCODERS, EncoderRun, make_encoder, reference_rows, text

PAIRS = ["bert", "nomic_bert", "xlm_roberta"]
"""With two types of tokens."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("encoders")

    def folder(variant: str) -> Path:
        place = root / variant
        return place if place.exists() else make_encoder(variant, place)

    return folder


@pytest.mark.parametrize("variant", ENCODERS)
def test_final_rows_are_those_of_transformers(folders: Any, variant: str) -> None:
    run = EncoderRun(folders(variant))
    for length in (1, 2, 17, 65, 256):
        rows, expected = run.step({0: text(length)})[0], reference_rows(folders(variant), text(length))
        assert (rows - expected).abs().max() < 1e-4, length


@pytest.mark.parametrize("window", [20, 1100])
def test_long_texts_are_seen_whole_in_any_company(tmp_path: Path, window: int) -> None:
    """Softmaxes over 512 positions each are merged, and a window may reach past one."""
    folder = make_encoder("modernbert", tmp_path, max_position_embeddings=1100, local_attention=window)
    run, alone = EncoderRun(folder, max_len=1100), EncoderRun(folder, max_len=1100, threads=1)
    prompts = {0: text(513), 1: text(1100, 1), 2: text(600, 2)}
    rows = run.step(prompts)
    for slot, tokens in prompts.items():
        assert (rows[slot] - reference_rows(folder, tokens)).abs().max() < 1e-4
        assert torch.equal(alone.step({0: tokens})[0], rows[slot])


@pytest.mark.parametrize("variant", PAIRS)
def test_the_second_text_of_a_pair_has_its_own_type(folders: Any, variant: str) -> None:
    run, tokens = EncoderRun(folders(variant)), text(40)
    rows = run.step({0: tokens}, type_from=15)[0]
    assert (rows - reference_rows(folders(variant), tokens, 15)).abs().max() < 1e-4
    assert not torch.equal(rows, run.step({0: tokens})[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", ENCODERS)
def test_final_rows_do_not_depend_on_company_or_threads(folders: Any, variant: str, dtype: str) -> None:
    prompts = {slot: text(length, slot) for slot, length in enumerate((45, 3, 256, 1))}
    together = EncoderRun(folders(variant), dtype=dtype).step(prompts)
    alone = EncoderRun(folders(variant), dtype=dtype, threads=1)
    for slot, tokens in prompts.items():
        assert torch.equal(alone.step({0: tokens})[0], together[slot])


@pytest.mark.parametrize(("settings", "bound"), [({}, 0.9995), ({"quantization": "int8"}, 0.998)])
@pytest.mark.parametrize("variant", ENCODERS)
def test_narrower_types_point_where_float32_does(
    folders: Any, variant: str, settings: dict[str, str], bound: float
) -> None:
    tokens = text(60)
    exact = EncoderRun(folders(variant)).step({0: tokens})[0]
    narrow = EncoderRun(folders(variant), dtype="bfloat16", **settings).step({0: tokens})[0]
    assert not torch.equal(narrow, exact)
    assert torch.cosine_similarity(narrow.mean(0), exact.mean(0), dim=0) > bound


@pytest.mark.parametrize("variant", ["bert", "roberta", "modernbert", "nomic_bert", "gte"])
def test_an_encoder_with_the_head_of_another_task_gives_the_same_rows(tmp_path: Path, variant: str) -> None:
    folder = make_encoder(variant, tmp_path, "MaskedLM")
    rows = EncoderRun(folder).step({0: text(30)})[0]
    assert (rows - reference_rows(folder, text(30))).abs().max() < 1e-4


def test_random_weights_make_an_encoder_that_runs(folders: Any) -> None:
    for variant in ("modernbert", "gte"):
        first, second = (EncoderRun(folders(variant), load_format="dummy").step({0: text(9)}) for _ in "ab")
        assert torch.equal(first[0], second[0])
        assert first[0].std() > 0.1
