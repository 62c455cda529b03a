# SPDX-License-Identifier: Apache-2.0
"""Programs that are run to their end, and those that fail, hang or print without end."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook.node import programs
from hook.node.programs import Exit

HANGS = 3600
"""Seconds for which a program hangs here."""
DEADLINE = 300.0
"""Seconds: a machine may be busy."""


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_program_that_succeeds_has_no_problem(tmp_path: Path) -> None:
    script = "cat; echo $PWD $HOME $PATH; printf '\\377x\\n' >&2"
    ended = programs.run_program([program(tmp_path / "x", script)], stdin="hello\n")
    assert ended == Exit(0, f"hello\n/ {programs.PATH}\n", "\ufffdx\n")
    assert ended.problem is None


def test_a_program_that_fails_has_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_LONGEST_OUTPUT", 1 << 20)
    before = os.listdir("/proc/self/fd")
    for text, problem in (
        ("echo first >&2; echo last >&2; exit 3", "exit status 3: last"),
        ("printf 'la\\tst\\n\\n' >&2; exit 3", "exit status 3: la?st"),
        ("exit 3", "exit status 3: no error message"),
        ("kill -9 $$", "exit status -9: no error message"),
        ("head -c 3000000 /dev/zero >&2; exit 1", "exit status 1: " + 200 * "?"),
        ("head -c 3000000 /dev/zero >&2", None),
        ("exec yes", "printed more than 1 MiB"),
    ):
        assert (
            programs.run_program([program(tmp_path / "x", text)], stdin="not read").problem
            == problem
        )
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_program_that_cannot_start_has_a_problem(tmp_path: Path) -> None:
    assert programs.run_program([str(tmp_path / "x")]).problem == "cannot start: ENOENT"
    for text, problem in (("#!/nowhere x\n", "ENOENT (#!/nowhere x)"), ("", "ENOEXEC")):
        (tmp_path / "x").write_text(text)
        (tmp_path / "x").chmod(0o755)
        assert programs.run_program([str(tmp_path / "x")]).problem == f"cannot start: {problem}"


@pytest.mark.parametrize(
    "text",
    [
        f"exec sleep {HANGS}",
        f"sleep {HANGS}",  # its child holds the pipe
        f"exec sleep {HANGS} >&- 2>&-",
        "trap '' TERM HUP INT; echo '['; while :; do sleep 1; done",
        f"sleep {HANGS} & echo '[]'",  # the answer is there, but who knows whether it is all
        "while :; do echo >&2; done",
    ],
)
def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path, text: str) -> None:
    began, seconds, pid = time.monotonic(), 0.1, tmp_path / "pid"
    command = [program(tmp_path / "x", f"echo $$ >{pid}.new\nmv {pid}.new {pid}\n{text}")]
    while not pid.exists():  # on a busy machine a shell takes longer to start than it has
        seconds *= 2
        assert programs.run_program(command, seconds=seconds) == Exit(
            None, "", f"timed out after {seconds:.2g} s"
        )
        assert time.monotonic() - began < DEADLINE
    group = int(pid.read_text())
    while members_of(group):  # what is killed takes its time to go
        assert time.monotonic() - began < DEADLINE, members_of(group)


def members_of(group: int) -> list[str]:
    """The processes of a process group that are not dead."""
    fields = {path.parent.name: stat_of(path) for path in Path("/proc").glob("[0-9]*/stat")}
    return [
        pid
        for pid, stat in fields.items()
        if len(stat) > 2 and stat[2] == str(group) and stat[0] not in "ZX"
    ]


def stat_of(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def test_a_program_is_found_in_the_directories_of_the_system_alone(fs: FakeFilesystem) -> None:
    fs.create_file("/top/usr/bin/runc", st_mode=0o100755)
    fs.create_file("/top/bin/crun", st_mode=0o100644)  # is no program
    fs.create_file("/home/eve/runc", st_mode=0o100755)
    assert [programs.find_program(name, "/top") for name in ("runc", "crun")] == [
        "/usr/bin/runc",
        None,
    ]
    assert programs.find_program("runc") is None
