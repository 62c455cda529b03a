# SPDX-License-Identifier: Apache-2.0
"""The parts of the speed benchmark that measure nothing: what it reads, counts and prints."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import plain_node, speed
from tests.bench.common import CannotMeasure, NotReady
from tests.bench.figures import Figure, Table, ratios
from tests.bench.launcher import Launcher, Step, collected, taken
from tests.bench.rounds import Bench, mixed
from tests.support.hook import UID
from tests.support.tables import as_markdown, as_text

CALLGRIND = "==12== Callgrind\n==12== \n==12== Events    : Ir\n==12== Collected : 14853039\n==12== \n"


def test_a_figure_is_the_median_and_half_of_what_the_middle_half_lies_within() -> None:
    figure = Figure("row", "column", [1.0, 1.1, 1.2, 1.3, 9.0], target=1.25)
    assert figure.median == 1.2
    assert figure.spread == pytest.approx(0.1)
    assert not figure.is_missed
    assert str(figure) == "1.20 ±0.10"


def test_a_missed_target_is_marked() -> None:
    assert str(Figure("row", "column", [1.3], target=1.25)) == "1.30 ±0.00 (!)"
    assert str(Figure("row", "column", [1.25], target=1.25)) == "1.25 ±0.00"
    assert str(Figure("lost", "column", [3], target=0, digits=0)) == "3 (!)"


def test_ratios_are_of_the_same_round() -> None:
    assert ratios([2, 9], [1, 3]) == [2, 3]


def test_a_table_has_rows_and_columns_as_they_come() -> None:
    figures = [
        Figure("b", "3.9", [1.0], 1.5),
        Figure("b", "3.10", [2.0], 1.5),
        Figure("a", "3.10", [0.5], digits=3),
    ]
    table = Table("title", figures)
    assert table.lines() == [
        ["title", "target", "3.9", "3.10"],
        ["b", "≤ 1.50", "1.00 ±0.00", "2.00 ±0.00 (!)"],
        ["a", "-", "-", "0.500 ±0.000"],
    ]
    assert table.missed() == ["title: b, 3.10: 2.000, target 1.5"]


def test_a_table_as_text_and_as_markdown() -> None:
    lines = [["what", "x"], ["a long name", "1"]]
    assert as_text(lines) == "what         x\na long name  1"
    assert as_markdown(lines) == "| what | x |\n|---|---:|\n| a long name | 1 |"


def test_callgrinds_count() -> None:
    assert collected(CALLGRIND) == 14853039


@pytest.mark.parametrize("stderr", ["", "==12== Events : Ir\n", "resctrl-mon-hook: io\n" + CALLGRIND])
def test_what_is_no_count(stderr: str) -> None:
    with pytest.raises(CannotMeasure):
        collected(stderr)


def test_what_a_step_took_is_what_the_last_and_the_biggest_took() -> None:
    step = Step("3.11", "start", ["true"], ["", ""])
    assert taken(step, 0, "2000000000 1024 0\n1000000000 2048 0\n", "") == (2.0, 2.0, "")


@pytest.mark.parametrize(
    ("returncode", "report"),
    [(0, "1 1 0\n"), (0, "1 1 0\n1 1 256\n"), (0, "1 1 0\n1 1 9\n"), (2, ""), (-9, "1 1 0\n1 1 0\n")],
    ids=["one is missing", "one failed", "one was killed", "it failed", "it was killed"],
)
def test_what_did_not_run_well_took_nothing(returncode: int, report: str) -> None:
    with pytest.raises(CannotMeasure, match=r"start, 3\.11: .*why"):
        taken(Step("3.11", "start", ["true"], ["", ""]), returncode, report, "why\n")


def test_mixed_keeps_the_order_of_each_and_is_a_matter_of_the_seed() -> None:
    letters, digits = "abcdefgh", "12345678"
    one, same, other = (list(mixed([letters, digits], random.Random(seed))) for seed in (1, 1, 2))
    assert one == same != other
    assert [it for it in one if it in letters] == list(letters)
    assert [it for it in one if it in digits] == list(digits)


def test_each_step_is_taken_once_a_round() -> None:
    class NoLauncher(Launcher):
        def __init__(self) -> None:
            pass

    taken_steps: list[str] = []

    def sequences() -> Iterator[list[Step]]:
        return ([Step(subject, name, []) for name in ("first", "last")] for subject in ("x", "y"))

    def take(step: Step) -> int:
        taken_steps.append(f"{step.subject} {step.name}")
        return len(taken_steps) // 5

    bench = Bench(NoLauncher(), random.Random(1), rounds=2, counts_instructions=False)
    found = bench.measure(bench.rounds, sequences, take)
    assert found == {(subject, name): [0, 1] for subject in ("x", "y") for name in ("first", "last")}
    assert bench.fewer(30) == 1
    assert bench.instructions(sequences) == {}


def test_states_are_those_of_one_container_all_through() -> None:
    first = json.loads(plain_node.created("c1", 12, UID))
    assert (first["id"], first["pid"], first["status"]) == ("c1", 12, "creating")
    assert first["annotations"]["io.kubernetes.pod.uid"] == UID
    last = json.loads(plain_node.stopped("c1", UID))
    assert (last["id"], last["status"]) == ("c1", "stopped")
    assert "pid" not in last
    assert last["annotations"] == first["annotations"]


def test_what_is_no_python_cannot_be_measured() -> None:
    with pytest.raises(NotReady, match="--python"):
        speed.commands([Path("/bin/true")])


@pytest.mark.parametrize(("value", "status"), [(1.5, 0), (1.6, 1)])
def test_exit_status_is_1_if_a_target_is_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: float, status: int
) -> None:
    monkeypatch.setattr(speed, "measure", lambda _plan: iter([Table("t", [Figure("r", "c", [value], 1.5)])]))
    assert speed.main([]) == status
    out, err = capsys.readouterr()
    assert ("(!)" in out) == bool(status)
    assert err == ("speed: t: r, c: 1.600, target 1.5\n" if status else "")
    assert speed.main(["--json"]) == status
    ((figure,),) = [table["figures"] for table in json.loads(capsys.readouterr().out)]
    assert figure["values"] == [value]


def test_what_cannot_be_measured_is_one_line_and_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_plan: speed.Plan) -> Iterator[Table]:
        raise NotReady("not root")

    monkeypatch.setattr(speed, "measure", refuse)
    assert speed.main([]) == 1
    assert capsys.readouterr() == ("", "speed: not root\n")
