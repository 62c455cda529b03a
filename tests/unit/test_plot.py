# SPDX-License-Identifier: Apache-2.0
"""The plots of the documents come from figures that the benchmarks have saved."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.bench import plot
from tests.bench.common import Figure, Table, limits, save


def test_each_plot_of_the_documents_is_what_the_saved_figures_give() -> None:
    drawn = plot.draw_all()
    assert drawn == {path.name: path.read_text("utf-8") for path in plot.DOCS.glob("*.svg")}
    for text in drawn.values():
        root = ET.fromstring(text)  # noqa: S314  it is the project's
        assert [child.tag.rpartition("}")[2] for child in root][:2] == ["title", "desc"]


def test_saved_figures_replace_their_former_numbers_only(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    save(file, [Table("speed", [Figure("a", "x", [1.0, 2.0, 3.0]), Figure("b", "x", [5.0])])])
    save(file, [Table("speed", [Figure("a", "x", [10.0, 20.0, 60.0], digits=0, beside=limits)])])
    assert json.loads(file.read_bytes()) == [
        ["speed", "a", "x", 20, 10, 60],
        ["speed", "b", "x", 5, 5, 5],
    ]
