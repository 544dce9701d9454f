"""Sixty texts that try a tokenizer, the same on every machine and Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

T = TypeVar("T")
COUNT = 60

_SENTENCE = (
    "the of and to in model token stream isn't they'll I'd we've CAN'T naïve café Straße Ωmega "
    "request page block don't it's O'Brien x1 v2.0 utf8 HTTP/2 e-mail co-operate rock'n'roll"
)
_WORDS = _SENTENCE.split()
_LETTERS = {
    "cjk": "的一是不了人我在有他这为之大来以个中上们日本語漢字仮名",
    "kana": "あいうえおかきくけこサシスセソタチツテトー、。「」",
    "hangul": "가나다라마바사아자차카타파하한국어모델",
    "cyrillic": "абвгдежзийклмнопрстуфхцчшщъыьэюяЁЖ ",
    "greek": "αβγδεζηθικλμνξοπρστυφχψωΆΈΉ ",
    "arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهوي،؟ ",
    "hebrew": "אבגדהוזחטיכלמנסעפצקרשת ",
    "devanagari": "अआइईउऊएऐओऔकखगघचछजझटठडढणतथदधनपफबभमयरलवशषसहािीुूेैोौ् ",
    "thai": "กขคงจฉชซญดตถทธนบปผฝพฟภมยรลวศษสหอฮะาิีึืุูเแโใไ่้ ",
    "digits": "0123456789٠١٢٣٤٥٦٧٨٩०१२३²³¼½Ⅷ٪,. ",
    "emoji": "😀😂🥲👍🏽👩‍👩‍👧‍👦🇫🇷🇯🇵❤️🔥✨🏳️‍🌈1️⃣☃",
    "combining": "e\u0301a\u0308o\u0302n\u0303\u200d\u200c\ufeffz\u0335q\u0323 ",
    "spaces": " \t\n\r\u00a0\u2003\u3000\u2028\u0085\u200b",
    "control": "\x00\x01\x07\x08\x0b\x0c\x1b\x1f\x7fab ",
    "symbols": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~€£¥§¶±×÷→∞≠∑√•…—“”‘’«»",
    "rare": "𝔘𝔫𝔦𝔠𝔬𝔡𝔢𓀀𓂀𐍈🜁ﬁﬂ№™①㎏",
}
_CODE = (
    "def {a}(self, {b}: int = {n}) -> None:",
    "    return {a}[{n}:{m}] if {b} != {n}.{m}e-{n} else None",
    "for (int {b} = 0; {b} < {n}; ++{b}) {{ {a}->{b} += 0x{n:x}; }}",
    "\t{a}.{b}('{n}', \"{m}\")  # {a} isn't {b}",
    "#include <{a}/{b}.h>",
    "SELECT {a}, COUNT(*) FROM {b} WHERE id >= {n} -- '{m}'",
    '<{a} class="{b}-{n}">&nbsp;{m}</{a}>',
    "",
    "        ",
    '{{"{a}": [{n}, {m}, null, true], "{b}": "\\u00e9\\n"}}',
)
_PROSE = (
    "Permission is granted, free of charge, to any person who obtains a copy of this work, "
    "subject to {n} conditions:",
    "({n}) The notice above shall be kept in all copies;   and",
    'THE WORK IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND -- see §{n}.{m}.',
    "Copyright (c) 19{n:02d}-20{m:02d}, the authors <nobody@example.org>.",
    "You mustn't misrepresent it; they've said: 'don't'.",
)


class Draws:
    """A small linear congruential generator: its numbers are part of the vectors."""

    def __init__(self, seed: int) -> None:
        self.state = seed * 2862933555777941757 + 3037000493

    def below(self, limit: int) -> int:
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self.state >> 33) % limit

    def of(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]


def _characters(draws: Draws, kind: str) -> str:
    letters = _LETTERS[kind]
    return "".join(letters[draws.below(len(letters))] for _ in range(400))


def _lines(draws: Draws, patterns: tuple[str, ...]) -> str:
    return "\n".join(
        draws.of(patterns).format(
            a=draws.of(_WORDS), b=draws.of(_WORDS), n=draws.below(100), m=draws.below(100)
        )
        for _ in range(40)
    )


def _words(draws: Draws) -> str:
    gaps = (" ", " ", " ", "  ", "\n", "\n\n", "\t", ", ", ". ", " - ", "...", "   \n  ")
    return "".join(draws.of(_WORDS) + draws.of(gaps) for _ in range(200))


def _numbers(draws: Draws) -> str:
    return " ".join(str(draws.below(10 ** (1 + draws.below(12)))) for _ in range(120))


def _mixture(draws: Draws) -> str:
    kinds = list(_LETTERS)
    return "".join(
        _characters(draws, draws.of(kinds))[: 1 + draws.below(12)] + draws.of(("", " ", "\n"))
        for _ in range(80)
    )


def _runs(draws: Draws) -> str:
    marks = (" ", "\n", "\t", "\r\n", "-", "=", "!", ".", "a", "7", "é", "语")
    return "".join(draws.of(marks) * (1 + draws.below(20)) for _ in range(60))


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """(name, text), COUNT of them."""
    makers: list[tuple[str, Callable[[Draws], str]]] = [
        *((kind, lambda draws, kind=kind: _characters(draws, kind)) for kind in _LETTERS),
        *((f"code {i}", lambda draws: _lines(draws, _CODE)) for i in range(10)),
        *((f"prose {i}", lambda draws: _lines(draws, _PROSE)) for i in range(6)),
        *((f"words {i}", _words) for i in range(8)),
        *((f"numbers {i}", _numbers) for i in range(4)),
        *((f"mixture {i}", _mixture) for i in range(10)),
        *((f"runs {i}", _runs) for i in range(6)),
    ]
    assert len(makers) == COUNT
    return tuple((name, make(Draws(index + 1))) for index, (name, make) in enumerate(makers))
