# SPDX-License-Identifier: Apache-2.0
"""That the campaign sees what a hook runs as a process, and tells a change that matters from one that does not."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import provision
from tests.faults.mutation import hook_coverage, judge
from tests.faults.mutation.hook_coverage import Measured
from tests.faults.mutation.judge import Mutant

STARTED = "tests/fuse/test_lifecycle.py::test_a_container_is_in_its_group_and_leaves_nothing_behind"
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("resctrl")]  # or they are skipped where it cannot be had


@pytest.fixture
def short_path() -> Iterator[Path]:
    """The first line of the measured .pyz names it, and has 255 bytes at the most."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory) / "copy"


def test_what_a_hook_runs_as_a_process_is_seen(short_path: Path) -> None:
    measured = Measured(short_path)
    measured.run(STARTED)
    assert (measured.passed, measured.failed) == (1, 0)
    told = measured.report()
    shares = dict(re.findall(r"^(hook/\S+) .* ([0-9.]+)%", told, re.MULTILINE))
    assert 0 < float(shares["hook/create.py"]) < 100
    assert float(shares["hook/models_compiled.py"]) > 0, "what the build puts in place of models"
    assert "hook/retry.py: never imported" in told


def test_a_mutant_is_killed_by_a_unit_test_or_a_process_and_an_equivalent_one_is_not(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "unit_tests", lambda _module: ["tests/unit/test_names.py"])
    monkeypatch.setattr(judge, "STARTED", (STARTED,))
    shutil.copytree(provision.ROOT, short_path, ignore=hook_coverage.IGNORED)
    killed = {
        other: judge.is_killed(short_path, Mutant(module, "", changed(module, text, other)))
        for module, text, other in (
            ("names", 'path = text.rstrip("/")', "path = text"),
            ("names", 'path = text.rstrip("/")', 'path = text.rstrip("//")'),
            ("entry", "from __future__", "raise SystemExit\nfrom __future__"),
        )
    }
    assert [*killed.values()] == [True, False, True]


def changed(module: str, text: str, other: str) -> str:
    sources = (provision.ROOT / f"hook/{module}.py").read_text(encoding="utf-8")
    assert text in sources
    return sources.replace(text, other)
