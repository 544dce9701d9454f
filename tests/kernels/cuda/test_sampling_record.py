"""What a request asks for, as the words of its slot's record."""

from __future__ import annotations

import numpy as np
import pytest

from slipway.engine.params import SamplingParams
from slipway_kernels.sampling import Features, RecordLayout
from slipway_kernels.sampling.bench import Asked
from slipway_kernels.sampling.record import Word, bitmask, inverse_of

LAYOUT = RecordLayout(100, max_bias=4, max_stop=3, max_bad_words=2, max_bad_tokens=5)


def written(asked: Asked) -> np.ndarray:
    record = np.zeros(LAYOUT.words, np.int32)
    for offset, words in LAYOUT.encode(asked):
        assert words.dtype == np.int32
        assert offset + len(words) <= LAYOUT.words
        record[offset : offset + len(words)] = words
    return record


def listed(record: np.ndarray, at: Word, count: int) -> list[int]:
    return record[record[at] :][:count].tolist()


def test_a_plain_request_is_its_header() -> None:
    assert [offset for offset, _ in LAYOUT.encode(Asked())] == [0]


def test_the_engines_parameters_make_a_record() -> None:
    params = SamplingParams(10, temperature=0.5, top_k=9, seed=2**64 - 2, num_logprobs=3)
    header = LAYOUT.encode(params)[0][1]
    assert header.view(np.float32)[Word.INVERSE_TEMPERATURE] == 2.0
    assert header[Word.TOP_K] == 9
    assert header[[Word.SEED_LOW, Word.SEED_HIGH]].tolist() == [-2, -1]
    assert header[Word.NUM_LOGPROBS] == 3
    assert (header[Word.FILTERED], header[Word.PENALIZED]) == (1, 0)


def test_lists_stand_where_the_header_says() -> None:
    asked = Asked(
        logit_bias=((7, 1.5), (8, -2.0)),
        stop_token_ids=(4, 5),
        min_tokens=1,
        bad_words=((1, 2, 3), (9,)),
        allowed_token_ids=(0, 33, 99),
    )
    record = written(asked)
    assert listed(record, Word.BIAS_IDS_AT, record[Word.NUM_BIAS]) == [7, 8]
    assert record[record[Word.BIAS_VALUES_AT] :][:2].view(np.float32).tolist() == [1.5, -2.0]
    assert listed(record, Word.STOP_AT, record[Word.NUM_STOP]) == [4, 5]
    assert listed(record, Word.BAD_OFFSETS_AT, 3) == [0, 3, 4]
    assert listed(record, Word.BAD_IDS_AT, 4) == [1, 2, 3, 9]
    assert record[Word.LONGEST_BAD] == 3
    assert listed(record, Word.ALLOWED_AT, 4) == [1, 2, 0, 8]


def test_tokens_that_the_vocabulary_does_not_have_are_left_out() -> None:
    asked = Asked(
        logit_bias=((100, 1.0),), stop_token_ids=(100, 3), min_tokens=1, bad_words=((1, 100), (100, 1))
    )
    record = written(asked)
    assert (record[Word.NUM_BIAS], record[Word.NUM_STOP], record[Word.NUM_BAD]) == (0, 1, 1)
    assert listed(record, Word.BAD_IDS_AT, 2) == [100, 1]


def test_a_token_biased_twice_gets_the_sum() -> None:
    record = written(Asked(logit_bias=((7, 1.5), (7, 2.0))))
    assert record[Word.NUM_BIAS] == 1
    assert record[record[Word.BIAS_VALUES_AT] :][:1].view(np.float32) == [3.5]


def test_stop_tokens_are_written_only_for_a_minimum_length() -> None:
    assert written(Asked(stop_token_ids=(4,)))[Word.NUM_STOP] == 0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Asked(logit_bias=tuple((token, 1.0) for token in range(5))), "logit_bias has 5 entries"),
        (Asked(stop_token_ids=(1, 2, 3, 4), min_tokens=1), "stop_token_ids has 4 entries"),
        (Asked(bad_words=((1,), (2,), (3,))), "bad_words has 3 entries"),
        (Asked(bad_words=((1, 2, 3), (4, 5, 6))), "tokens of bad_words has 6 entries"),
    ],
)
def test_a_list_too_long_for_the_record_is_refused(asked: Asked, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LAYOUT.encode(asked)


def test_the_inverse_of_a_temperature_stays_finite() -> None:
    assert inverse_of(0.0) == 0
    assert inverse_of(1e-39) == np.finfo(np.float32).max
    assert inverse_of(0.8) == np.float32(1) / np.float32(0.8)


@pytest.mark.parametrize(
    ("asked", "features"),
    [
        (Asked(temperature=0.0, top_k=5), Features()),
        (Asked(), Features(random=True)),
        (Asked(top_k=100), Features(random=True)),
        (Asked(top_k=99), Features(random=True, filters=True)),
        (Asked(typical_p=0.5), Features(random=True, filters=True)),
        (Asked(temperature=0.0, repetition_penalty=1.1), Features(edits=True, penalties=True)),
        (Asked(temperature=0.0, bad_words=((1,),)), Features(edits=True)),
        (Asked(temperature=0.0, stop_token_ids=(1,)), Features()),
        (Asked(temperature=0.0, stop_token_ids=(1,), min_tokens=2), Features(edits=True)),
        (Asked(temperature=0.0, num_logprobs=0), Features(max_top=0)),
    ],
)
def test_features_are_what_a_request_asks_for(asked: Asked, features: Features) -> None:
    assert Features.of(asked, 100) == features


def test_features_of_a_batch_are_all_of_its_requests() -> None:
    both = Features(edits=True, max_top=2) | Features(random=True, max_top=0)
    assert both == Features(edits=True, random=True, max_top=2)


def test_a_bitmask_has_a_bit_for_each_token() -> None:
    mask = bitmask((0, 31, 32), 70)
    assert mask.tolist() == [1 - 2**31, 1, 0]
