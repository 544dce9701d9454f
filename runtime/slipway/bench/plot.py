"""A plot as one SVG file that needs nothing else: how each latency is distributed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from slipway.bench.report import TITLES

PANEL_WIDTH, PANEL_HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 20, 44, 48
"""Of a panel's area, round its axes."""
POINTS = 400
"""Most of a curve: a million gaps draw no finer one."""
SHARES = (0, 25, 50, 75, 100)


def plot(title: str, seconds: Mapping[str, Sequence[float]]) -> str:
    """A panel for each metric that has values, with their cumulative distribution; values are in order."""
    panels = [(metric, values) for metric, values in seconds.items() if values]
    columns = min(2, max(1, len(panels)))
    width, height = columns * PANEL_WIDTH, 40 + math.ceil(len(panels) / columns) * PANEL_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{width / 2:g}" y="26" text-anchor="middle" font-size="15">{escape(title)}</text>',
    ]
    for number, (metric, values) in enumerate(panels):
        x, y = number % columns * PANEL_WIDTH, 40 + number // columns * PANEL_HEIGHT
        parts.append(f'<g transform="translate({x} {y})">')
        parts += _panel(TITLES[metric], [1000 * value for value in values])
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(title: str, values: Sequence[float]) -> Iterator[str]:
    """`values` in milliseconds; upwards the share of them that is at most so large, from 0 on."""
    ticks = list(_ticks(values[-1]))
    across, down = PANEL_WIDTH - LEFT - RIGHT, PANEL_HEIGHT - TOP - BOTTOM

    def x(value: float) -> float:
        return LEFT + across * value / ticks[-1]

    def y(share: float) -> float:
        return TOP + down * (1 - share / 100)

    yield f'<text x="{LEFT + across / 2:g}" y="{TOP - 16}" text-anchor="middle" font-size="13">{title}</text>'
    for share in SHARES:
        yield _line(x(0), y(share), x(ticks[-1]), y(share))
        yield f'<text x="{LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{share} %</text>'
    for tick in ticks:
        yield _line(x(tick), y(0), x(tick), y(100))
        yield f'<text x="{x(tick):.1f}" y="{y(0) + 18:.1f}" text-anchor="middle">{tick:g}</text>'
    yield f'<text x="{LEFT + across / 2:g}" y="{PANEL_HEIGHT - 10}" text-anchor="middle">milliseconds</text>'
    points = " ".join(f"{x(value):.1f},{y(share):.1f}" for value, share in _curve(values))
    yield f'<polyline points="{points}" fill="none" stroke="#1668b8" stroke-width="2"/>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="#ddd" fill="none"/>'


def _ticks(most: float) -> Iterator[float]:
    """Round numbers from 0 to the first that is at least `most`, at most five steps."""
    rough = max(most, 1e-3) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    for number in range(math.ceil(max(most, 1e-3) / step) + 1):
        yield number * step


def _curve(values: Sequence[float]) -> Iterator[tuple[float, float]]:
    """A step up at each value: (value, share of values up to it in percent)."""
    count = len(values)
    shown = sorted({round(index * (count - 1) / (POINTS - 1)) for index in range(POINTS)})
    before = 0.0
    for index in shown:
        share = 100 * (index + 1) / count
        yield values[index], before
        yield values[index], share
        before = share
