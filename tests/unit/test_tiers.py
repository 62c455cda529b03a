# SPDX-License-Identifier: Apache-2.0
"""The tiers of tests/conftest.py, tried on a small project of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PASSES = "def test_it() -> None:\n    pass\n"
SKIPS = "import pytest\n\ndef test_it() -> None:\n    pytest.skip('no such device')\n"
SKIPS_AS_A_WHOLE = "import pytest\n\npytest.skip('not here', allow_module_level=True)\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\naddopts = --strict-markers\n")
    for tier, text in {"unit": PASSES, "fuse": SKIPS, "podman": PASSES}.items():
        (tmp_path / "tests" / tier).mkdir(parents=True)
        (tmp_path / "tests" / tier / f"test_{tier}.py").write_text(text)
    for name in ("conftest.py", "provision.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    return tmp_path


def run(project: Path, *arguments: str, **env: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=project, env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.splitlines()


def test_each_tier_has_its_line_and_pytest_the_last(project: Path) -> None:
    status, lines = run(project)
    assert status == 0
    assert {"unit: 1 passed", "fuse: 1 skipped", "podman: 1 passed", "kernel: nothing ran"} <= set(lines)
    assert "    skipped 1: no such device" in lines
    assert "2 passed, 1 skipped" in lines[-1]


@pytest.mark.parametrize("how", ["--require", "CI"])
def test_a_skip_in_a_required_tier_is_a_failure(project: Path, how: str) -> None:
    status, lines = run(project, CI="true") if how == "CI" else run(project, "--require=fuse,podman")
    assert status == 1
    assert "REQUIRED: fuse: 1 skipped, and --require allows no skip there" in lines
    assert "2 passed, 1 skipped" in lines[-1]


def test_a_module_that_skips_as_a_whole_counts_and_one_without_tests_is_missed(project: Path) -> None:
    (project / "tests/fuse/test_fuse.py").write_text(SKIPS_AS_A_WHOLE)
    (project / "tests/podman/test_podman.py").unlink()
    status, lines = run(project, "--require=fuse,podman")
    assert status == 1
    assert {
        "    skipped 1: not here",
        "REQUIRED: fuse: 1 skipped, and --require allows no skip there",
        "REQUIRED: podman: nothing ran, and --require wants it to",
    } <= set(lines)


def test_a_selection_of_tests_needs_no_other_tier(project: Path) -> None:
    assert run(project, "tests/unit", CI="true")[0] == 0
    status, lines = run(project, "-m", 'tier(name="podman")', CI="true")
    assert (status, "1 passed, 2 deselected" in lines[-1]) == (0, True)


def test_a_tier_that_runs_elsewhere_is_not_missed_and_the_others_are(project: Path) -> None:
    """build.py has a pytest of its own run some tiers, next to the one that runs all others."""
    status, lines = run(project, "--ignore=tests/fuse", "--require=fuse,podman,kernel")
    assert status == 1
    assert [line for line in lines if "REQUIRED" in line] == [
        "REQUIRED: kernel: nothing ran, and --require wants it to"
    ]


def test_an_unknown_tier_is_an_error(project: Path) -> None:
    assert run(project, "--require=nonsense")[0] == 4
