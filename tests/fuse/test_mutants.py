# SPDX-License-Identifier: Apache-2.0
"""That the campaign sees what a hook runs as a process, and tells a change that matters from one that does not."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import provision
from tests.faults.mutation import judge_mutants
from tests.faults.mutation.hook_coverage import Measured
from tests.faults.mutation.judge_mutants import Known, MutantWorker
from tests.faults.mutation.mutant import Mutant

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = "stages/context"
UNIT = "tests/unit/test_names.py::test_a_directory_loses_the_slashes_at_its_end"
FUSE = "tests/fuse/test_lifecycle.py::test_a_container_is_in_its_group_and_leaves_nothing_behind"
LINES = {"base/names": {"1": [UNIT]}, "stages/create": {"1": [FUSE]}, "stages/create_retry": {"1": [FUSE]}}
KNOWN = Known("these", {UNIT: 0.1, FUSE: 0.5}, LINES)
pytestmark = pytest.mark.usefixtures("resctrl")  # or they are skipped where it cannot be had


@pytest.fixture
def short_path() -> Iterator[Path]:
    """The first line of the measured .pyz names it, and has 255 bytes at the most."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def test_what_a_hook_runs_as_a_process_is_seen(short_path: Path) -> None:
    measured = Measured(short_path / "copy")
    measured.run(FUSE)
    assert (measured.passed, measured.failed) == (1, 0)
    assert list(measured.seconds()) == [FUSE]
    lines = measured.lines()
    for module in ("stages/create", "stages/loader", "base/models_compiled", "base/validation", "base/system"):
        assert any(FUSE in tests for tests in lines[module].values()), module
    create = next(it for it in measured.missing() if it.module == "stages/create")
    assert 0 < create.missed < create.all
    assert any("never run: retire.give_up(node, former, container)" in line for line in create.told)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MutantWorker]:
    place = tmp_path_factory.mktemp("mutants")
    with closing(MutantWorker(KNOWN, place / "copy")) as worker:
        yield worker
    shutil.rmtree(place)


@pytest.mark.parametrize(
    ("module", "text", "other", "outcome", "by"),
    [
        ("base/names", 'path = text.rstrip("/")', "path = text", "killed", UNIT),
        ("base/names", 'path = text.rstrip("/")', 'path = text.rstrip("//")', "survived", ""),
        ("base/names", 'path = text.rstrip("/")', "path = text.rstrip(", "killed", "tests/unit/test_names.py"),
        ("base/names", 'path = text.rstrip("/")', "while True: pass", "late", ""),
        ("stages/create", "node.resctrl.put(group.path, container.pid)", "pass", "killed", FUSE),
        ("stages/create_retry", "return self._moves == 1", "return False", "survived", ""),
    ],
    ids=["unit", "equivalent", "no Python", "endless", "process", "not run"],
)
def test_a_mutant_is_judged(
    worker: MutantWorker, monkeypatch: pytest.MonkeyPatch, module: str, text: str, other: str, outcome: str, by: str
) -> None:
    if outcome == "late":
        monkeypatch.setattr(judge_mutants, "PATIENCE", 1.0)
    source = (provision.ROOT / f"hook/{module}.py").read_text(encoding="utf-8")
    assert text in source
    changed = source.replace(text, other)
    digest = hashlib.sha256(changed.encode()).hexdigest()
    verdict = worker.judge(Mutant(f"{module}: {text}", digest, module, [1], [1], changed))
    assert (verdict.outcome, verdict.by, verdict.tests) == (outcome, by, 1)


def test_unit_tests_of_the_module_come_first_and_the_quickest_ahead() -> None:
    quick, slow = "tests/unit/test_context.py::a", "tests/unit/test_context.py::b"
    other, process = "tests/unit/test_procfs.py::a", "tests/fuse/test_process.py::a"
    seconds = {quick: 1.0, slow: 2.0, other: 0.5, process: 0.1}
    known = Known("these", seconds, {MODULE: {"7": [process, other, slow, quick]}})
    mutant = Mutant(f"{MODULE}: ...", "id", MODULE, [7, 8], [1, 9], "")
    assert list(known.steps(mutant)) == [[quick, slow], [other], [process]]


def test_cases_of_its_own_module_do_not_lose_their_place_to_slow_tests_of_others() -> None:
    own = [f"tests/unit/test_context.py::a[{number}]" for number in range(judge_mutants.FEW + 1)]
    slow = "tests/unit/test_procfs.py::a"
    seconds = {**dict.fromkeys(own, 0.1), slow: judge_mutants.BUDGET["unit"]}
    known = Known("these", seconds, {MODULE: {"7": [slow, *own]}})
    assert list(known.steps(Mutant(f"{MODULE}: ...", "id", MODULE, [7], [7], ""))) == [own, [slow]]


def test_what_runs_at_import_is_left_to_the_tests_of_what_is_beside_it() -> None:
    unit, process = "tests/unit/test_context.py::a", "tests/fuse/x.py::a"
    known = Known("these", {unit: 1, process: 1}, {MODULE: {"1": [process], "3": [unit]}})
    mutant = Mutant(f"{MODULE}:f: ...", "id", MODULE, [1], [1, 2, 3], "")
    assert list(known.steps(mutant)) == [[unit], [process]]


def test_module_level_mutants_get_all_tests_of_the_module() -> None:
    first, unit, constant = "tests/unit/test_x.py::a", "tests/unit/test_context.py::a", "tests/unit/test_context.py::b"
    known = Known("these", {first: 1, unit: 1, constant: 2}, {MODULE: {"1": [first], "3": [unit]}})
    outside, inside = (Mutant(f"{MODULE}:{name}: ...", "id", MODULE, [1], [1, 2, 3], "") for name in ("", "f"))
    assert list(known.steps(outside)) == [[unit, constant], [first]]
    assert list(known.steps(inside)) == [[first]]


def test_what_is_changed_in_equivalent_mutants_is_in_their_modules() -> None:
    """So that code which moves takes its mutants along."""
    for name in judge_mutants.find_equivalent():
        module, place, change = name.split(":", 2)
        source = (provision.ROOT / f"hook/{module}.py").read_text(encoding="utf-8")
        assert f"{change.partition(' => ')[0].strip()}\n" in source, name
        assert not place or re.search(rf"\b(def|class) {place.rpartition('.')[2]}\b", source), name


def test_share_of_a_sample_has_a_confidence_interval() -> None:
    dead, low, high = judge_mutants.share(360, 400)
    assert (dead, round(low, 3), round(high, 3)) == (0.9, 0.867, 0.926)
