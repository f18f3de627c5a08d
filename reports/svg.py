"""Line charts as SVG text: a few panels over one time axis, bands behind them, the same bytes on every host."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax import saxutils

from protocols.plain_text import one_line

WIDTH: Final = 960
LEFT: Final = 78
RIGHT: Final = 16
PANEL: Final = 150
GAP: Final = 26
HEAD: Final = 44
FOOT: Final = 40
_TICKS: Final = 5
_FONT: Final = "font-family='sans-serif' font-size='11' fill='#333'"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line: points (x, y) in the units of its panel. A None breaks it: what was not measured is not drawn."""

    title: str
    colour: str
    points: Sequence[tuple[float, float] | None]


@dataclass(frozen=True, kw_only=True)
class Band:
    """A shaded stretch of the x axis. ``label`` stands above the panels, once for each stretch that has one."""

    start: float
    end: float
    colour: str
    opacity: float
    label: str = ""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Lines with one y axis, which begins at zero unless the values lie far from it."""

    title: str
    lines: Sequence[Line]


def chart(title: str, x_title: str, panels: Sequence[Panel], bands: Sequence[Band] = ()) -> str:
    """Return the whole picture; a panel without any point says that nothing was measured."""
    xs = [point[0] for panel in panels for line in panel.lines for point in line.points if point is not None]
    xs += [edge for band in bands for edge in (band.start, band.end)]
    low, high = (min(xs), max(xs)) if xs else (0.0, 1.0)
    scale = _Scale(low, high if high > low else low + 1.0)
    height = HEAD + len(panels) * (PANEL + GAP) + FOOT
    size = f"viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}'"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img' aria-label='{_attribute(title)}'>",
        f"<rect width='{WIDTH}' height='{height}' fill='white'/>",
        f"<text x='{LEFT}' y='18' {_FONT} font-weight='bold'>{_text(title)}</text>",
    ]
    bottom = HEAD + len(panels) * (PANEL + GAP) - GAP
    parts += _bands(bands, scale, bottom)
    for number, panel in enumerate(panels):
        parts += _panel(panel, scale, HEAD + number * (PANEL + GAP))
    for value in _nice(scale.low, scale.high):
        parts.append(
            f"<text x='{scale.place(value):.1f}' y='{bottom + 16}' text-anchor='middle' {_FONT}>{_number(value)}</text>"
        )
    parts.append(f"<text x='{WIDTH / 2:.0f}' y='{bottom + 34}' text-anchor='middle' {_FONT}>{_text(x_title)}</text>")
    return "\n".join([*parts, "</svg>"]) + "\n"


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float

    def place(self, value: float) -> float:
        return LEFT + (value - self.low) / (self.high - self.low) * (WIDTH - LEFT - RIGHT)


def _bands(bands: Sequence[Band], scale: _Scale, bottom: int) -> Iterator[str]:
    for band in bands:
        left, right = scale.place(band.start), scale.place(band.end)
        yield (
            f"<rect x='{left:.1f}' y='{HEAD}' width='{max(right - left, 0.5):.1f}' height='{bottom - HEAD}' "
            f"fill='{band.colour}' fill-opacity='{band.opacity:g}'/>"
        )
        if band.label:
            middle = (left + right) / 2
            yield f"<text x='{middle:.1f}' y='{HEAD - 6}' text-anchor='middle' {_FONT}>{_text(band.label)}</text>"


def _panel(panel: Panel, scale: _Scale, top: int) -> Iterator[str]:
    yield f"<rect x='{LEFT}' y='{top}' width='{WIDTH - LEFT - RIGHT}' height='{PANEL}' fill='none' stroke='#999'/>"
    yield f"<text x='{LEFT + 6}' y='{top + 14}' {_FONT}>{_text(panel.title)}</text>"
    ys = [point[1] for line in panel.lines for point in line.points if point is not None]
    if not ys:
        yield f"<text x='{LEFT + 6}' y='{top + PANEL / 2:.0f}' {_FONT}>nothing was measured</text>"
        return
    low, high = min(ys), max(ys)
    if 0 <= low < high * 0.7 or high == low:
        low = min(0.0, low)
    spread = (high - low) or 1.0
    high += 0.08 * spread

    def height(value: float) -> float:
        return top + PANEL - (value - low) / (high - low) * PANEL

    for value in _nice(low, high):
        y = height(value)
        yield f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='#ddd'/>"
        yield f"<text x='{LEFT - 6}' y='{y + 4:.1f}' text-anchor='end' {_FONT}>{_number(value)}</text>"
    legend = LEFT + 8 + 7 * len(panel.title)
    for line in panel.lines:
        yield f"<path d='{_path(line, scale, height)}' fill='none' stroke='{line.colour}' stroke-width='1.3'/>"
        if line.title:
            legend += 14
            font = _FONT.replace("#333", line.colour)
            yield f"<text x='{legend}' y='{top + 14}' {font}>{_text(line.title)}</text>"
            legend += 7 * len(line.title)


def _path(line: Line, scale: _Scale, height: Callable[[float], float]) -> str:
    """Return the drawing commands of a line."""
    words: list[str] = []
    is_new = True
    for point in line.points:
        if point is None:
            is_new = True
            continue
        words.append(f"{'M' if is_new else 'L'}{scale.place(point[0]):.1f} {height(point[1]):.1f}")
        is_new = False
    return " ".join(words)


def _nice(low: float, high: float) -> list[float]:
    """Return round numbers between two values, about five of them."""
    rough = (high - low) / _TICKS
    magnitude = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    step = next((factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= rough), rough or 1.0)
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.3g}"


def _text(text: str) -> str:
    return saxutils.escape(one_line(text))


def _attribute(text: str) -> str:
    return saxutils.escape(one_line(text), {"'": "&apos;", '"': "&quot;"})
