# SPDX-License-Identifier: Apache-2.0
"""The model of resctrl as a server: what is left of one that was killed, and one beside another.

Whether it behaves as the kernel does is in tests/kernel/test_model_is_kernel.py.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.resctrlfs import REPOSITORY, Mounted
from tests.support.hook import DEADLINE


def start(command: list[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=REPOSITORY, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def refused(command: list[str]) -> str:
    """What a server that cannot start says."""
    with start(command) as process:
        output, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, output) == (2, "")
    return errors


def command_of(resctrl: Mounted) -> list[str]:
    assert isinstance(resctrl.process.args, list)
    return [str(word) for word in resctrl.process.args]


def assert_works(resctrl: Mounted) -> None:
    (resctrl.root / "mon_groups/x").mkdir()
    assert resctrl.mon_groups() == {"x": []}
    assert resctrl.events()[-1].path == "/mon_groups/x"


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_start_takes_the_place_of_a_server_that_is_gone(resctrl: Mounted, is_killed: bool) -> None:
    """The mount and the socket of one that was killed are left, and behind neither is anything that answers."""
    if is_killed:
        resctrl.process.kill()
        resctrl.process.wait()
        with pytest.raises(OSError, match="not connected"):
            resctrl.root.stat()
    else:
        resctrl.close()
    with start(command_of(resctrl)) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert_works(resctrl)
        finally:
            process.terminate()


def test_places_that_cannot_be_used_are_named_and_left(resctrl: Mounted, tmp_path: Path) -> None:
    program = command_of(resctrl)[:3]
    (tmp_path / "file").write_text("mine")
    mountpoint = tmp_path / "other"
    places = [f"--log={tmp_path}/log", f"--control={tmp_path}/other.sock"]
    assert f"No such file or directory: '{mountpoint}'" in refused([*program, str(mountpoint), *places])
    mountpoint.mkdir()
    command = [*program, str(mountpoint), *places]
    same_socket = [str(mountpoint) if word == str(resctrl.root) else word for word in command_of(resctrl)]
    assert "resctrl.sock: another server listens there" in refused(same_socket)
    same_place = [*command_of(resctrl), f"--control={tmp_path}/other.sock"]
    assert f"{resctrl.root}: another server has mounted the model there" in refused(same_place)
    assert "Address already in use" in refused([*command, f"--control={tmp_path}/file"])
    assert f"'{tmp_path}/none/log'" in refused([*command, f"--log={tmp_path}/none/log"])
    assert f"'{tmp_path}/none'" in refused([*command, f"--control={tmp_path}/none/sock"])
    assert (tmp_path / "file").read_text() == "mine"
    assert_works(resctrl)
