# SPDX-License-Identifier: Apache-2.0
"""Steps: each leaves the whole of what it is about, or what was there before."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from hook.install import file_steps
from hook.install.file_steps import Link, Outcome, Refused, Remove, RemoveDirectory, Run, Step, Try, Write


def take(*which: Step) -> list[Outcome]:
    return file_steps.take_steps(which, dry_run=False)


def test_a_file_is_written_with_its_directories(tmp_path: Path) -> None:
    path = tmp_path / "a/b/c"
    step = Write(str(path), b"text", 0o755)
    assert take(step) == [Outcome(step)]
    assert path.read_bytes() == b"text"
    assert path.stat().st_mode & 0o7777 == 0o755
    assert take(step) == []


@pytest.mark.parametrize("change", ["content", "mode", "link", "nothing"])
def test_a_file_that_differs_is_replaced(tmp_path: Path, change: str) -> None:
    path, other = tmp_path / "x", tmp_path / "other"
    step = Write(str(path), b"text")
    take(step)
    if change == "content":
        path.write_text("txet")
    elif change == "mode":
        path.chmod(0o600)
    elif change == "link":
        path.rename(other)
        path.symlink_to(other)
    assert take(step) == ([] if change == "nothing" else [Outcome(step)])
    assert (path.read_bytes(), path.is_symlink()) == (b"text", False)
    assert step.is_done()


def test_a_temporary_file_of_a_killed_step_is_removed(tmp_path: Path) -> None:
    """It may be a link, which somebody put there."""
    victim = tmp_path / "victim"
    victim.write_text("theirs")
    for name in ("file", "link"):
        (tmp_path / f".{name}.new").symlink_to(victim)
    take(Write(str(tmp_path / "file"), b"ours"), Link(str(tmp_path / "link"), "file"))
    assert sorted(os.listdir(tmp_path)) == ["file", "link", "victim"]
    assert victim.read_text() == "theirs"


@pytest.mark.parametrize("step", [Write("x", b"ours"), Link("x", "ours"), Remove("x")], ids=lambda step: step.verb)
def test_a_temporary_file_is_removed_even_if_the_step_is_done(tmp_path: Path, step: Step) -> None:
    """An upgrade was killed, and what was there before it is installed again."""
    step = dataclasses.replace(step, path=str(tmp_path / "x"))  # type: ignore[type-var]
    take(step)
    there = os.listdir(tmp_path)
    (tmp_path / ".x.new").write_text("of another version")
    assert take(step)
    assert os.listdir(tmp_path) == there


def test_a_file_that_fails_its_check_replaces_nothing(tmp_path: Path) -> None:
    def refuse(path: str) -> None:
        assert path != str(tmp_path / "x")
        assert Path(path).read_bytes() == b"new"
        raise Refused("no")

    take(Write(str(tmp_path / "x"), b"old", check=refuse))  # nobody calls it yet
    with pytest.raises(Refused, match="no"):
        take(Write(str(tmp_path / "x"), b"new", check=refuse))
    assert (tmp_path / "x").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_a_link_is_made_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "bin/x"
    step = Link(str(path), "../y")
    take(step)
    assert os.readlink(path) == "../y"
    assert take(step) == []
    assert take(Link(str(path), "../z"))
    assert os.readlink(path) == "../z"


def test_remove_steps_remove_files_links_and_directories(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "directory").mkdir()
    which = [
        Remove(str(tmp_path / "file")),
        Remove(str(tmp_path / "link")),
        RemoveDirectory(str(tmp_path / "directory")),
    ]
    assert take(*which) == [Outcome(step) for step in which]
    assert os.listdir(tmp_path) == []
    assert take(*which) == []


def test_a_program_that_fails_does_not_stop_later_steps(tmp_path: Path) -> None:
    step = Run(("sh", "-c", "echo no luck >&2; exit 1"))
    last = Write(str(tmp_path / "x"), b"")
    assert take(step, last) == [Outcome(step, "exit status 1: no luck"), Outcome(last)]
    assert (
        file_steps.format_outcomes([Outcome(step, "exit status 1: no luck")])[1] == "  failed: exit status 1: no luck"
    )


def test_a_step_that_fails_stops_later_steps(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    never = tmp_path / "never"
    with pytest.raises(Refused, match=r"^cannot write .*/file/x: .*; the steps after it were not taken"):
        take(Write(str(tmp_path / "file/x"), b""), Write(str(never), b""))
    assert not never.exists()


def test_a_dry_run_takes_no_step(tmp_path: Path) -> None:
    step = Write(str(tmp_path / "x"), b"")
    assert file_steps.take_steps([step, Try("/x", lambda _path: pytest.fail("it was tried"))], dry_run=True)[
        0
    ] == Outcome(step)
    assert os.listdir(tmp_path) == []


def test_a_second_lock_on_a_directory_is_refused(tmp_path: Path) -> None:
    with (
        file_steps.lock_directory(str(tmp_path)),
        pytest.raises(Refused, match="another"),
        file_steps.lock_directory(str(tmp_path)),
    ):
        pass
    with file_steps.lock_directory(str(tmp_path)), file_steps.lock_directory(str(tmp_path / "nothing")):
        pass
