"""Where the tokens of a prompt begin in its text."""

from __future__ import annotations

from collections.abc import Sequence

from slipway.text.tokenizer import Tokenizer

_NEAR = 8
"""Characters by which the text may be ahead where a tokenizer has changed it."""


def prompt_offsets(tokenizer: Tokenizer, token_ids: Sequence[int], text: str) -> list[int]:
    """The character of `text` where each token begins, as `Detokenizer.offset` has it.

    Special tokens that the tokenizer has added take no characters. Near a place where it has changed the text
    (another form of Unicode, lower case), offsets are the nearest that can be found.
    """
    stream = tokenizer.stream(skip_special_tokens=False)
    offsets, said = [], ""
    for token_id in token_ids:
        offset = stream.offset(token_id)
        offsets.append(offset)
        if token_id not in tokenizer.special_ids or text.startswith(tokenizer.token_text(token_id), offset):
            said += stream.push((token_id,))
    said += stream.finish()
    if said == text:
        return offsets
    places = _places(said, text)
    return [places[min(offset, len(said))] for offset in offsets]


def _places(said: str, text: str) -> list[int]:
    """For each character of `said`, and for its end, where the same is in `text`."""
    places = []
    place, sure = 0, 0  # `sure` is behind the last character that both have
    for index, char in enumerate(said):
        if not text.startswith(char, place):
            begin, alike = max(sure, place - _NEAR), said[index : index + 3]
            place = found if (found := text.find(alike, begin, place + _NEAR)) >= 0 else place
        if text.startswith(char, place):
            sure = place + 1
        places.append(place)
        place += 1
    least = len(text)
    for index in reversed(range(len(places))):
        places[index] = least = min(least, places[index])
    return [*places, len(text)]
