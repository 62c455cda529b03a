# SPDX-License-Identifier: Apache-2.0
"""Steps: each leaves the whole of what it is about, or what was there before."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hook.install import steps
from hook.install.steps import (
    Refused,
    Step,
    lock_directories,
    make_link,
    remove_directory,
    remove_file,
    run_command,
    write_file,
)

FILE, LINK, DIRECTORY = Path("/usr/libexec/oci/x"), Path("/usr/bin/x"), Path("/usr/libexec/oci")
FILES = pytest.mark.usefixtures("fs")


def take(*which: Step) -> list[str]:
    return steps.format_steps(steps.take_steps(which, dry_run=False))


@FILES
@pytest.mark.parametrize(
    ("step", "line", "is_made"),
    [
        (write_file(str(FILE), b"new", 0o755), f"write {FILE}", lambda: FILE.read_bytes() == b"new"),
        (make_link(str(LINK), "../new"), f"link {LINK} -> ../new", lambda: os.readlink(LINK) == "../new"),
        (remove_file(str(FILE)), f"remove {FILE}", lambda: not FILE.exists()),
        (remove_file(str(LINK)), f"remove {LINK}", lambda: not LINK.is_symlink()),
    ],
    ids=["write", "link", "remove a file", "remove a link"],
)
@pytest.mark.parametrize("before", ["nothing", "other content", "other mode", "link"])
def test_a_step_is_taken_once_whatever_was_there(
    step: Step, line: str, is_made: Callable[[], bool], before: str
) -> None:
    victim = Path("/victim")
    victim.write_bytes(b"new")
    if before != "nothing":
        take(write_file(str(FILE), b"old" if "content" in before else b"new", 0o600 if "mode" in before else 0o755))
        take(make_link(str(LINK), "../old"))
    if before == "link":
        FILE.unlink()
        FILE.symlink_to(victim)
    assert take(step) == ([] if before == "nothing" and step.verb == "remove" else [line])
    assert is_made()
    assert not FILE.is_symlink() or step.what != str(FILE)
    assert step.verb != "write" or FILE.stat().st_mode & 0o7777 == 0o755
    assert take(step) == []
    assert victim.read_bytes() == b"new"


@FILES
def test_a_temporary_file_of_a_killed_step_is_removed() -> None:
    """Also if the step itself is done: an upgrade was killed, and the former version is installed again."""
    DIRECTORY.mkdir(parents=True)
    victim = Path("/victim")
    victim.write_text("theirs")
    for step in write_file(str(FILE), b"ours"), make_link(str(FILE), "ours"), remove_file(str(FILE)):
        for _ in range(2):  # before and after the step is done
            (DIRECTORY / ".x.new").symlink_to(victim)  # others may have put a link there
            assert take(step)
            assert os.listdir(DIRECTORY) == ([] if step.verb == "remove" else ["x"])
            assert victim.read_text() == "theirs"


@FILES
def test_a_directory_is_removed_if_it_is_empty() -> None:
    DIRECTORY.mkdir(parents=True)
    FILE.touch()
    step = remove_directory(str(DIRECTORY))
    take(step)
    assert FILE.exists()
    FILE.unlink()
    assert take(step) == [f"remove {DIRECTORY}"]
    assert take(step) == []


@FILES
def test_a_file_that_fails_its_check_replaces_nothing() -> None:
    def refuse(path: str) -> None:
        assert path != str(FILE)
        assert Path(path).read_bytes() == b"new"
        raise Refused("no")

    take(write_file(str(FILE), b"old", check=refuse))  # no hooks.d file calls it yet
    with pytest.raises(Refused, match="no"):
        take(write_file(str(FILE), b"new", check=refuse))
    assert FILE.read_bytes() == b"old"
    assert os.listdir(DIRECTORY) == ["x"]


def test_a_program_that_fails_does_not_stop_later_steps(tmp_path: Path) -> None:
    last = write_file(str(tmp_path / "x"), b"")
    assert take(run_command("sh", "-c", "echo no luck >&2; exit 1"), last) == [
        "run sh -c 'echo no luck >&2; exit 1'",
        "  failed: exit status 1: no luck",
        f"write {tmp_path}/x",
    ]


@FILES
def test_a_step_that_fails_stops_later_steps() -> None:
    Path("/file").touch()
    with pytest.raises(
        Refused, match=r"^cannot write /file/x: .*; the steps after it were not taken; remedy: run as root"
    ):
        take(write_file("/file/x", b""), write_file(str(FILE), b""))
    assert not FILE.exists()


@FILES
def test_a_dry_run_takes_no_step() -> None:
    which = [write_file(str(FILE), b""), Step("try", "/x", lambda: pytest.fail("it was tried"))]
    assert [str(step) for step, _ in steps.take_steps(which, dry_run=True)] == [f"write {FILE}", "try /x"]
    assert not FILE.exists()


def test_a_second_lock_on_a_directory_is_refused(tmp_path: Path) -> None:
    with lock_directories(str(tmp_path)), pytest.raises(Refused, match="another"), lock_directories(str(tmp_path)):
        pass
    with lock_directories(str(tmp_path), f"{tmp_path}/."), lock_directories(str(tmp_path / "nothing")):
        pass
