# SPDX-License-Identifier: Apache-2.0
"""The model of resctrl as a server: what is left of one that was killed, one beside another,
what is removed under it.

Whether it behaves as the kernel does is in tests/kernel/test_model_is_kernel.py.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.resctrlfs import REPOSITORY, Mounted, mounted
from tests.resctrlfs.places import is_mounted
from tests.support.hook import DEADLINE


@pytest.fixture
def resctrl(tmp_path: Path, models: object) -> Iterator[Mounted]:
    """A server of its own."""
    assert models, "where there is one, there can be another one"
    with mounted(tmp_path) as resctrl:
        yield resctrl


REMOVE = [
    *("unshare", "--mount", "--propagation=private", "sh", "-ec"),
    'umount "$0"; echo unmounted there; read line; rm -r "$1"',
]


def start(command: list[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=REPOSITORY, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def expect_refusal(command: list[str]) -> str:
    """What a server that cannot start says."""
    with start(command) as process:
        output, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, output) == (2, "")
    return errors


def command_of(resctrl: Mounted) -> list[str]:
    assert isinstance(resctrl.process.args, list)
    return [str(word) for word in resctrl.process.args]


@contextmanager
def started_again(resctrl: Mounted) -> Iterator[subprocess.Popen[str]]:
    with start(command_of(resctrl)) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()


def assert_works(resctrl: Mounted, name: str) -> None:
    (resctrl.root / "mon_groups" / name).mkdir()
    assert resctrl.mon_groups() == {name: []}
    assert resctrl.events()[-1].path == f"/mon_groups/{name}"


def test_a_start_takes_the_place_of_a_server_that_was_killed(resctrl: Mounted) -> None:
    """Its mount and its socket are left, and behind neither is anything that answers."""
    resctrl.process.kill()
    resctrl.process.wait()
    with pytest.raises(OSError, match="not connected"):
        resctrl.root.stat()
    with started_again(resctrl):
        assert_works(resctrl, "x")


def test_a_start_takes_the_place_of_a_server_that_has_ended(resctrl: Mounted) -> None:
    resctrl.close()
    with started_again(resctrl):
        assert_works(resctrl, "x")


def test_a_second_server_on_the_same_socket_is_refused(resctrl: Mounted, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    command = [
        str(tmp_path / "other") if word == str(resctrl.root) else word
        for word in command_of(resctrl)
    ]
    assert "resctrl.sock: another server listens there" in expect_refusal(command)
    assert_works(resctrl, "x")


def test_a_second_server_on_the_same_mount_point_is_refused(
    resctrl: Mounted, tmp_path: Path
) -> None:
    command = [*command_of(resctrl), f"--control={tmp_path}/other.sock"]
    assert f"{resctrl.root}: another server has mounted the model there" in expect_refusal(command)
    assert_works(resctrl, "x")


def test_places_that_cannot_be_used_are_named_and_left(resctrl: Mounted, tmp_path: Path) -> None:
    program = command_of(resctrl)[:3]
    (tmp_path / "file").write_text("mine")
    mountpoint = tmp_path / "other"
    places = [f"--log={tmp_path}/log", f"--control={tmp_path}/other.sock"]
    assert f"No such file or directory: '{mountpoint}'" in expect_refusal(
        [*program, str(mountpoint), *places]
    )
    mountpoint.mkdir()
    command = [*program, str(mountpoint), *places]
    assert "Address already in use" in expect_refusal([*command, f"--control={tmp_path}/file"])
    assert f"'{tmp_path}/none/log'" in expect_refusal([*command, f"--log={tmp_path}/none/log"])
    assert f"'{tmp_path}/none'" in expect_refusal([*command, f"--control={tmp_path}/none/sock"])
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("what", ["mount point", "all"])
def test_it_goes_on_when_its_directories_are_removed(
    resctrl: Mounted, tmp_path: Path, what: str
) -> None:
    """In this mount namespace a mount point cannot be removed, in another one it can."""
    resctrl.close()
    removed = {"mount point": resctrl.root, "all": tmp_path}[what]
    with (
        started_again(resctrl) as process,
        start([*REMOVE, str(resctrl.root), str(removed)]) as remover,
    ):
        assert process.stdout is not None
        assert remover.stdout is not None
        assert remover.stdout.readline() == "unmounted there\n"
        (resctrl.root / "mon_groups" / "kept").mkdir()
        # So that all of it is gone before it makes the first again.
        process.send_signal(signal.SIGSTOP)
        assert remover.communicate("\n", DEADLINE) == ("", "")
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "ready\n"
        assert resctrl.mon_groups() == {"kept": []}
        (resctrl.root / "mon_groups" / "kept").rmdir()
        assert_works(resctrl, "x")
        process.terminate()
        assert process.wait(DEADLINE) == 0
        assert process.stderr is not None
        assert (
            process.stderr.read()
            == f"resctrlfs: {resctrl.root} was removed: it is made and mounted again\n"
        )
    assert not is_mounted(resctrl.root)


def test_it_goes_on_when_its_socket_and_its_log_are_removed(resctrl: Mounted) -> None:
    for path in (resctrl.log, resctrl.log.with_name("resctrl.sock")):
        path.unlink()
    group = resctrl.root / "mon_groups" / "x"
    group.mkdir()
    assert (group / "tasks").read_text() == ""
    resctrl.close()
    assert resctrl.process.returncode == 0
    assert not is_mounted(resctrl.root)
