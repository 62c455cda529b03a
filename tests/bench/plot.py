# SPDX-License-Identifier: Apache-2.0
"""Draws the plots of docs/performance.md from the figures that benchmarks have saved.

    python3 build.py bench plot

It reads docs/figures.json, and writes SVG files beside it. The colors fit a light and a dark page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

DOCS = Path(__file__).resolve().parents[2] / "docs"
FIGURES = DOCS / "figures.json"
WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 760, 170, 60, 70, 14, 14
STYLE = """\
text { font: 13px sans-serif; fill: #24292f } .title { font-weight: bold }
.value { font-size: 11px }
.card { fill: #ffffff; stroke: #d0d7de } .line { stroke: #8c959f }
.mark { stroke: #cf222e; stroke-dasharray: 4 }
.s0 { fill: #0969da } .s1 { fill: #bf8700 } .s2 { fill: #6e7781 } .range { stroke: #24292f }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 }
.card { fill: #0d1117; stroke: #30363d }
.s0 { fill: #388bfd } .s1 { fill: #d29922 } .range { stroke: #e6edf3 } }"""

Numbers = tuple[float, float, float]
"""A figure, and the least and the most beside it."""
Figures = Mapping[tuple[str, str, str], Numbers]
"""By table, row and column."""


class Plot(NamedTuple):
    """Bars from left to right: a group for each row of a table, a bar for each of its columns."""

    title: str
    about: str
    table: str
    rows: Mapping[str, str]  # the label of each row of the table
    columns: Mapping[str, str]  # the text for each column
    axis: str
    ticks: tuple[float, ...]
    mark: float  # where the dashed line is
    value: str  # how a figure is written


PLOTS = {
    "accuracy.svg": Plot(
        title="Who charges a container from its first instruction",
        about=(
            "Share of a container's CPU time that its group is charged: by this hook, and by "
            "daemons that poll."
        ),
        table="share of the CPU time",
        rows={
            f"{name}, runc": name for name in ("busy loop", "forking shell", "16 threads", "daemon")
        },
        columns={
            "this hook": "this hook",
            "poller, every 1 s": "poller, every 1 s",
            "poller, every 3 s": "poller, every 3 s (mean, least to most)",
        },
        axis="share of the container's CPU time, in %",
        ticks=(0, 20, 40, 60, 80, 100),
        mark=100,
        value="{:.0f} %",
    ),
    "cost.svg": Plot(
        title="What a hook costs beside Python's own start and exit",
        about=(
            "Wall time of the ELF file and of the .pyz, divided by the time that Python takes to "
            "start and exit."
        ),
        table="hook / exit floor",
        rows={
            "createRuntime, first of a key: wall time": "first container",
            "createRuntime, a further one: wall time": "a further one",
            "poststop, not the last: wall time": "end, not the last",
            "poststop, last of a key: wall time": "end of the last one",
        },
        columns={"ELF": "ELF file", "3.11": ".pyz on Python 3.11"},
        axis="wall time / time in which Python 3.11 alone starts and exits",
        ticks=(0, 0.5, 1, 1.5, 2),
        mark=1,
        value="{:.2f}",
    ),
}


def draw(plot: Plot, figures: Figures) -> str:
    """Return the plot as SVG. Raises KeyError if a figure is missing."""
    bottom = TOP + len(plot.rows) * (len(plot.columns) * BAR + GAP)
    parts = [*_draw_legend(plot), *_draw_axis(plot, bottom)]
    y = TOP + GAP // 2
    for row, label in plot.rows.items():
        middle = y + len(plot.columns) * BAR / 2 + 4
        parts.append(
            f'<text x="{LEFT - 10}" y="{middle:g}" text-anchor="end">{escape(label)}</text>'
        )
        for index, column in enumerate(plot.columns):
            parts += _draw_bar(plot, figures[plot.table, row, column], index, y)
            y += BAR
        y += GAP
    size = f'width="{WIDTH}" height="{bottom + 50}" viewBox="0 0 {WIDTH} {bottom + 50}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">'
    )
    about = (
        f'<title id="title">{escape(plot.title)}</title>\n<desc '
        f'id="desc">{escape(plot.about)}</desc>'
    )
    card = f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{bottom + 49}" rx="6"/>'
    return "\n".join([head, about, f"<style>{STYLE}</style>", card, *parts, "</svg>\n"])


def _place(plot: Plot, value: float) -> str:
    """Return where on the axis a value is."""
    return f"{LEFT + (WIDTH - LEFT - RIGHT) * value / plot.ticks[-1]:.1f}"


def _draw_legend(plot: Plot) -> Iterator[str]:
    yield f'<text class="title" x="{LEFT}" y="26">{escape(plot.title)}</text>'
    x = LEFT
    for index, text in enumerate(plot.columns.values()):
        yield f'<rect class="s{index}" x="{x}" y="42" width="12" height="12"/>'
        yield f'<text x="{x + 18}" y="53">{escape(text)}</text>'
        x += 50 + 7 * len(text)


def _draw_axis(plot: Plot, bottom: int) -> Iterator[str]:
    yield f'<line class="line" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>'
    for tick in plot.ticks:
        yield (
            f'<text x="{_place(plot, tick)}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) // 2
    yield f'<text x="{middle}" y="{bottom + 38}" text-anchor="middle">{escape(plot.axis)}</text>'
    mark = _place(plot, plot.mark)
    yield f'<line class="mark" x1="{mark}" x2="{mark}" y1="{TOP}" y2="{bottom}"/>'


def _draw_bar(plot: Plot, numbers: Numbers, index: int, y: int) -> Iterator[str]:
    value, low, high = (_place(plot, number) for number in numbers)
    yield (
        f'<rect class="s{index}" x="{LEFT}" y="{y + 1}" width="{float(value) - LEFT:.1f}" '
        f'height="{BAR - 2}"/>'
    )
    if low != high:
        yield (
            f'<line class="range" x1="{low}" x2="{high}" y1="{y + BAR // 2}" y2="{y + BAR // 2}"/>'
        )
    text = plot.value.format(numbers[0])
    yield f'<text class="value" x="{float(high) + 5:.1f}" y="{y + BAR - 3}">{text}</text>'


def draw_all() -> dict[str, str]:
    """Return the text of each plot, by the name of its file."""
    saved = json.loads(FIGURES.read_bytes())
    figures: Figures = {
        (table, row, column): tuple(numbers) for table, row, column, *numbers in saved
    }
    return {name: draw(plot, figures) for name, plot in PLOTS.items()}


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(f"one argument too many: {sys.argv[1]}")
    for file, image in draw_all().items():
        (DOCS / file).write_text(image, encoding="utf-8")
        print(f"docs/{file}: drawn")
