# SPDX-License-Identifier: Apache-2.0
"""build.py as a command, the linters, and what it installs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import build
from fetch import provision
from native import cpython, native
from pyz import BuildError, archive
from tests.unit.files import ROOT, start


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return start([sys.executable, ROOT / "build.py", *arguments])


def test_help_names_every_verb() -> None:
    done = command("--help")
    assert done.returncode == 0
    assert all(verb in done.stdout for verb in build.VERBS)
    assert all(len(line) <= 120 for line in done.stdout.splitlines())


def test_a_verb_that_is_asked_for_help_prints_it_and_does_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert build.main(["-h"]) == 0
    text = capsys.readouterr().out
    for verb in build.VERBS.keys() - build.OWN_HELP:
        for words in ([verb, "--help"], [verb, "-h"], [verb, "--release", "--help"]):
            assert (build.main(words), *capsys.readouterr()) == (0, text, ""), words


def test_a_wrong_command_line_is_one_line_and_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        ("no-such-verb", "unknown verb no-such-verb"),
        ("--no-such-option", "unknown option --no-such-option"),
        ("--python", "--python takes a value"),
        ("--python=python3 --bytecode=none", "absolute path"),
        ("compile more", "one argument too many: more"),
        ("release more", "one argument too many: more"),
        ("bench no-such-bench", "unknown benchmark no-such-bench"),
    ):
        status, (out, error) = build.main(arguments.split()), capsys.readouterr()
        assert (status, out) == (2, "")
        (line,) = error.splitlines()
        assert said in line


def test_a_build_prints_hash_and_size(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = archive.build(root=source, output=tmp_path / "x.pyz")
    line, bytecode = capsys.readouterr().out.splitlines()
    assert bytecode == "bytecode: none"
    done = start(["sha256sum", target])
    assert line.split() == [*done.stdout.split(), str(target.stat().st_size), "bytes"]


# --- The forms that are tested


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What pytest would be run with, one run a line."""
    commands: list[str] = []

    def run_lane(lane: list[list[str]], aloud: bool) -> list[tuple[int, list[str]]]:
        assert aloud in {True, False}
        commands.extend(" ".join(words) for words in lane)
        return [(0, [])]

    monkeypatch.setattr(build, "_run_lane", run_lane)
    monkeypatch.setattr(build, "_say_what_is_built_first", lambda: None)
    monkeypatch.delenv("CI", raising=False)
    return commands


def test_without_an_elf_file_all_runs_on_the_pyz_and_says_so_but_fails_in_ci(
    runs: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise BuildError("no gcc")

    monkeypatch.setattr(native, "build", fail)
    assert build._run_tests(["--all"]) == 0
    assert capsys.readouterr().err == "build.py: no test of the ELF file: no gcc\n"
    others = "--ignore=tests/unit --ignore=tests/fuse --ignore=tests/packages --form=pyz"
    assert sorted(runs) == [
        others,
        "tests/fuse --form=pyz",
        "tests/packages --form=pyz",
        " ".join(build.ALL_UNIT),
    ]
    monkeypatch.setenv("CI", "true")
    with pytest.raises(BuildError, match="no ELF file: no gcc"):
        build._run_tests(["--all"])


def test_quick_run_has_tests_of_the_elf_file_if_its_python_is_cached(
    runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "build", lambda: None)
    files = "tests/fuse/test_native.py tests/fuse/test_both_forms.py"
    for path, form in ((True, "native"), (None, "pyz")):
        monkeypatch.setattr(cpython, "find", lambda path=path: path)
        assert build._run_tests([]) == 0
        assert f"-m not slow tests/podman/test_life.py {files} --form={form}" in runs


def test_root_runs_the_unit_tests_of_all_as_an_ordinary_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users: list[list[str]] = []  # of each run: what is before its Python

    def run(command: list[str], aloud: bool) -> tuple[int, list[str]]:
        assert not aloud
        users.append(command[: command.index(sys.executable)])
        return 0, []

    monkeypatch.setattr(build, "_run_and_read", run)
    monkeypatch.setattr(build, "_become_ordinary", lambda: ["as", "nobody"])
    build._run_lane(
        [[*build.ALL_UNIT], ["tests/packages"], ["tests/unit", "--hypothesis-profile=dev"]],
        aloud=False,
    )
    assert users == [["as", "nobody"], [], []]


# --- The linters: what they report is never just advice

LINTERS = {
    "ruff check": ["ruff", "check", "--quiet", "--output-format=concise"],
    "ruff format": ["ruff", "format", "--check", "--quiet", "--diff"],
    "mypy": ["mypy", "--strict", "--no-error-summary"],
}


@pytest.mark.parametrize("linter", LINTERS)
def test_linter_is_content(linter: str) -> None:
    command = [sys.executable, "-m", *LINTERS[linter]]
    # mypy's cache lies outside the checkout: a clean checkout would begin with none.
    environment = {"MYPY_CACHE_DIR": str(provision.cache("mypy")), **os.environ}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{linter}:\n{done.stdout}{done.stderr}"


def test_each_source_names_its_licence() -> None:
    sources = [
        path for top in (".ci", "hook", "packaging", "tests") for path in (ROOT / top).rglob("*")
    ]
    without = []
    for path in (
        ROOT / "build.py",
        *(path for path in sources if path.suffix in (".c", ".go", ".py", ".sh")),
    ):
        first, second, *_ = [*path.read_text(encoding="utf-8").splitlines(), "", ""]
        if not (second if first.startswith("#!") else first).endswith(
            " SPDX-License-Identifier: Apache-2.0"
        ):
            without.append(str(path))
    assert without == []


def test_requirements_are_the_dependency_group() -> None:
    tomllib = pytest.importorskip("tomllib", reason="came with Python 3.11")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    groups = tomllib.loads(text)["dependency-groups"]
    assert {group: provision.requirements(text, group) for group in groups} == groups
    assert all("==" in pin for pins in groups.values() for pin in pins)
