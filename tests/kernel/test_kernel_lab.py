# SPDX-License-Identifier: Apache-2.0
"""How the kernel is chosen and what is said when it cannot be built, and that nothing is left of a guest."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel import kernel
from tests.kernel.kernel import CannotBuild, Package
from tests.kernel.vm import ROOT, GuestTimeout, Vm, run_in_guest

DEBIAN = [
    Package("bookworm-backports", "linux-source-6.12", "6.12.9-1"),
    Package("trixie-backports", "linux-source-7.3", "7.3.1-1"),
    Package("testing", "linux-source-7.10", "7.10.1-1"),
]


@pytest.fixture
def booted() -> None:
    """For what boots a guest of its own."""
    try:
        kernel.ready()
    except CannotBuild as error:
        pytest.skip(str(error))


def test_the_version_of_the_patch_is_preferred_and_looked_for_no_further() -> None:
    fitting = Package("testing", f"linux-source-{kernel.MADE_FOR}", "1")
    rest = iter([*DEBIAN, fitting, Package("sid", "linux-source-9.0", "1")])
    assert kernel.choose(rest) == fitting
    assert next(rest).suite == "sid"


def test_else_the_newest_of_the_same_series() -> None:
    assert kernel.choose(iter([*DEBIAN, Package("sid", "linux-source-8.0", "1")])).name == "linux-source-7.10"
    with pytest.raises(CannotBuild, match=r"no linux-source-7\.x in .*sid"):
        kernel.choose(iter(DEBIAN[:1]))


def test_a_patch_that_does_not_apply_names_the_file(tmp_path: Path) -> None:
    """From what patch itself says."""
    if not shutil.which("patch"):
        pytest.skip("no patch")
    moved = [line[len("--- a/") :] for line in kernel.PATCH.read_text().splitlines() if line.startswith("--- a/")]
    for name in moved[1:]:  # the first is missing, the others have nothing that the patch knows
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("moved\n" * 50)
    done = subprocess.run(
        ["patch", "--batch", "--forward", "-p1", "-d", tmp_path, "-i", kernel.PATCH],
        capture_output=True,
        text=True,
        check=False,
    )
    assert sorted(kernel.refusals(done.stdout)) == sorted(moved)


def test_what_is_built_depends_on_what_goes_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = kernel.inputs()
    changed = tmp_path / "patch"
    changed.write_bytes(kernel.PATCH.read_bytes() + b"\n")
    monkeypatch.setattr(kernel, "PATCH", changed)
    assert kernel.inputs() != before
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kernel.cache() == tmp_path / "resctrl-mon-hook" / "kernel"
    assert kernel.find() is None


@pytest.mark.usefixtures("booted")
def test_a_guest_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(GuestTimeout, match="after 3 s"):
        run_in_guest("sleep 1000", Vm(timeout=3))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("booted")
def test_nothing_is_left_when_the_caller_is_killed(tmp_path: Path) -> None:
    """The command says a word, which its caller passes on; then the caller is killed, and we wait for the silence."""
    command = [sys.executable, "-m", "tests.kernel.lab", "run", "--", "echo ready; sleep 1000"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"ready\n"
        assert list(tmp_path.iterdir()) != []
        caller.send_signal(signal.SIGKILL)
        assert caller.stdout.read() == b"", "the guard had it open until now"
    assert list(tmp_path.iterdir()) == []
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in read(path)]


@pytest.mark.usefixtures("booted")
def test_status_output_and_knobs(capfd: pytest.CaptureFixture[str]) -> None:
    text = "cat /sys/fs/resctrl/info/L3_MON/num_rmids; cat /sys/fs/resctrl/mon_groups/x/mon_hw_id; pwd >&2; exit 124"
    assert run_in_guest(f"mkdir /sys/fs/resctrl/mon_groups/x; {text}", Vm(rmids=6, mount_options="debug")) == 124
    assert capfd.readouterr() == ("7\n1\n", f"{Path.cwd()}\n")


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
