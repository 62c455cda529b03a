# SPDX-License-Identifier: Apache-2.0
"""build.py as a command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import build
from pyz import archive
from tests.unit.files import ROOT, start


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return start([sys.executable, ROOT / "build.py", *arguments])


def test_help_names_every_verb() -> None:
    done = command("--help")
    assert done.returncode == 0
    assert all(verb in done.stdout for verb in build.VERBS if verb != "-h")
    assert all(len(line) <= 120 for line in done.stdout.splitlines())


def test_a_wrong_command_line_is_one_line_and_2() -> None:
    for arguments, said in (
        ("no-such-verb", "unknown verb no-such-verb"),
        ("--no-such-option", "unknown option --no-such-option"),
        ("--python", "--python takes a value"),
        ("--python=python3", "absolute path"),
        ("compile more", "one argument too many: more"),
        ("bench no-such-bench", "unknown benchmark no-such-bench"),
    ):
        done = command(*arguments.split())
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert said in line


def test_a_build_prints_hash_and_size(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = archive.build(root=source, output=tmp_path / "x.pyz")
    line, bytecode = capsys.readouterr().out.splitlines()
    assert bytecode == "bytecode: none"
    done = start(["sha256sum", target])
    assert line.split() == [*done.stdout.split(), str(target.stat().st_size), "bytes"]
