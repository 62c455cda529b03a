# SPDX-License-Identifier: Apache-2.0
"""The tiers of tests/conftest.py, tried on a small project."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import build
from tests.support.hook import NATIVE

ROOT = Path(__file__).resolve().parents[2]

PASSES = "def test_it() -> None:\n    pass\n"
SKIPS = "import pytest\n\ndef test_it() -> None:\n    pytest.skip('no such device')\n"
SKIPS_AS_A_WHOLE = "import pytest\n\npytest.skip('not here', allow_module_level=True)\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\ntestpaths = tests\naddopts = --strict-markers --import-mode=importlib\nmarkers "
        "= slow\n"
    )
    for tier, text in {"unit": PASSES, "fuse": SKIPS, "podman": PASSES}.items():
        (tmp_path / "tests" / tier).mkdir(parents=True)
        (tmp_path / "tests" / tier / f"test_{tier}.py").write_text(text)
    for name in ("__init__.py", "conftest.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    for name in ("packaging/fetch", "tests/support"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


ALONE = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
"""Without the plugins of other tests, whose imports take longer than these."""


def run(project: Path, *arguments: str, **env: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command,
        cwd=project,
        env={"PATH": "/usr/bin:/bin", ALONE: "1", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_a_skip_in_a_required_tier_is_a_failure(project: Path) -> None:
    (project / "tests/podman/test_podman.py").write_text(SKIPS_AS_A_WHOLE)
    status, lines = run(project, "--ignore=tests/unit", "--require=unit,fuse,podman,kernel")
    assert status == 1
    assert {"unit: nothing ran", "fuse: 1 skipped", "    skipped 1: no such device"} <= set(lines)
    assert [line for line in lines if "REQUIRED" in line] == [
        "REQUIRED: fuse: 1 skipped, and --require allows no skip there",
        "REQUIRED: podman: 1 skipped, and --require allows no skip there",
    ]


def test_ci_requires_every_tier_but_cluster_and_of_a_selection_of_tests(project: Path) -> None:
    assert run(project, CI="true")[0] == 1
    assert run(project, "tests/unit", CI="true")[0] == 0
    (project / "tests/cluster").mkdir()
    (project / "tests/cluster/test_cluster.py").write_text(SKIPS)
    status, lines = run(project, "tests/unit", "tests/cluster", CI="true")
    assert (status, "cluster: 1 skipped" in lines) == (0, True)
    status, lines = run(project, "-m", 'tier(name="podman")', CI="true")
    assert (status, "1 passed, 3 deselected" in lines[-1]) == (0, True)


STARTS = {
    "-m hook list": True,
    "-m hook list --run-dir=/proc/x": True,
    "-m hook list --run-dir=/proc/x --resctrl-root /proc/x": False,
    "/x/resctrl-mon-hook.pyz hook": True,
    "/x/resctrl-mon-hook.pyz --help": False,
    f"/x/{NATIVE.name} history --run-dir=/proc/x --resctrl-root=/proc/x": True,
    "build.py --output /x/resctrl-mon-hook.pyz --bytecode none": False,
}


@pytest.mark.parametrize("words", STARTS)
def test_a_test_that_starts_the_program_in_the_nodes_own_directories_fails(
    touches: list[str], words: str
) -> None:
    with pytest.raises(FileNotFoundError):
        subprocess.Popen(["/proc/nowhere", *words.split()])
    assert bool(touches) == STARTS[words]
    touches.clear()


def test_a_test_that_reads_or_writes_the_nodes_own_directories_fails(touches: list[str]) -> None:
    for touch, path in (open, "/run/resctrl-mon-hook/view"), (os.listdir, b"/sys/fs/resctrl"):
        with suppress(OSError):
            touch(path)
    assert touches == ["open /run/resctrl-mon-hook/view", "os.listdir /sys/fs/resctrl"]
    touches.clear()


def test_what_failed_is_named_last(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of runs beside each other, of which one is killed, and of one run."""
    tests = project / "tests"
    profile = "from hypothesis import settings\n\nsettings.register_profile('dev')\n"
    (tests / "unit/conftest.py").write_text(profile)
    (tests / "unit/test_unit.py").write_text("def test_it() -> None:\n    assert not 'so'\n")
    for path in build.OF_THE_ELF_FILE:
        (project / path).write_text(PASSES)
    (tests / "fuse/test_fuse.py").write_text(
        "import os\n\ndef test_it() -> None:\n    os.kill(os.getpid(), 9)\n"
    )
    (tests / "podman/test_life.py").write_text(SKIPS)
    monkeypatch.setattr(build, "ROOT", project)
    monkeypatch.setattr(build, "_build_forms", lambda **_: ["pyz"])
    monkeypatch.setenv("CI", "true")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert build._run_tests([]) == 1
    failed, killed, required = capfd.readouterr().out.splitlines()[-3:]
    assert failed == "FAILED tests/unit/test_unit.py::test_it - AssertionError: assert not 'so'"
    assert killed.startswith("FAILED pytest -m not slow tests/fuse: ended by SIGKILL: ")
    assert required == (
        promise := "REQUIRED: podman: 1 skipped, and --require allows no skip there"
    )
    assert build._run_tests(["tests/fuse"]) == 1
    assert capfd.readouterr().out.splitlines()[-1] == "FAILED pytest tests/fuse: ended by SIGKILL"
    assert build._run_tests(["tests/unit", "tests/podman/test_life.py"]) == 1
    assert capfd.readouterr().out.splitlines()[-3:-1] == [failed, promise]


OF_A_FORM = """\
import os, pathlib, pytest

def note(name: str) -> None:
    here = pathlib.Path(__file__).parent
    with here.with_name(f"{here.name}-ran").open("a") as file:
        print(name, os.environ["RESCTRL_MON_HOOK_FORM"], file=file)

def test_it() -> None:
    note("unmarked")

@pytest.mark.both_forms
def test_both() -> None:
    note("both")

@pytest.mark.form("pyz")
def test_pyz() -> None:
    note("of the .pyz")

@pytest.mark.form("native")
def test_native() -> None:
    note("of the ELF file")
"""


def test_all_runs_on_both_forms_what_is_marked_so_and_all_else_once(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyz = ["both pyz", "of the .pyz pyz"]
    expected = {"fuse": pyz, "podman": pyz, "containerd": pyz, "packages": [], "kernel": []}
    for tier in expected:
        (project / "tests" / tier).mkdir(exist_ok=True)
        (project / "tests" / tier / f"test_{tier}.py").write_text(OF_A_FORM)
    (project / "dist").mkdir()
    (project / "dist" / NATIVE.name).touch()
    monkeypatch.setattr(build, "ROOT", project)
    monkeypatch.setattr(build, "_build_forms", lambda **_: ["pyz", "native"])
    monkeypatch.setattr(build, "_say_what_is_built_first", lambda: None)
    monkeypatch.setattr(build, "_become_ordinary", list)
    monkeypatch.setenv(ALONE, "1")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert build._run_tests(["--all"]) == 0
    for tier, on_the_pyz in expected.items():
        ran = sorted((project / f"tests/{tier}-ran").read_text().splitlines())
        assert ran == sorted(
            ["unmarked native", "both native", "of the ELF file native", *on_the_pyz]
        ), tier


OF_FORMS = """\
import subprocess, sys

import pytest

SHOW = "from tests.support.hook import shipped; print(shipped().name)"

@pytest.mark.parametrize("name", ["pyz", pytest.param("native", marks=pytest.mark.form("native"))])
def test_form(name: str) -> None:
    command = [sys.executable, "-c", SHOW]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    assert shown.endswith("pyz") == (name == "pyz")
"""


def test_form_is_that_of_the_option_in_processes_too_and_what_is_of_the_other_is_left_out(
    project: Path,
) -> None:
    (project / "tests/podman/test_podman.py").write_text(OF_FORMS)
    status, lines = run(project, "tests/podman")
    assert (status, "1 passed, 1 deselected" in lines[-1]) == (0, True)
    status, lines = run(project, "tests/podman", "--form=native")
    assert status == 4
    assert not any("passed" in line for line in lines)
    (project / "dist").mkdir()
    (project / "dist" / NATIVE.name).touch()
    status, lines = run(project, "tests/podman", "--form=native")
    assert (status, "1 failed, 1 passed" in lines[-1]) == (1, True)
    assert run(project, "tests/podman", RESCTRL_MON_HOOK_FORM="native")[0] == 1
