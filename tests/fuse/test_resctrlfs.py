# SPDX-License-Identifier: Apache-2.0
"""The model through a real mount: what the kernel's VFS and FUSE make of it, and that nothing is left behind."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Callable

import pytest

from tests.resctrlfs import Mounted, mounted

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no /dev/fuse"),
]

CLONE_NEWPID = 0x20000000
SLEEPER = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def resctrl(tmp_path: Path) -> Iterator[Mounted]:
    with mounted(tmp_path) as handle:
        yield handle


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE) as process:
        yield process


def outcome(action: Callable[[], object]) -> str:
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def put(group: Path, data: str) -> int:
    """One write(2), as the hook does it."""
    fd = os.open(group / "tasks", os.O_WRONLY)
    try:
        return os.write(fd, data.encode())
    finally:
        os.close(fd)


def mounts() -> str:
    return Path("/proc/self/mounts").read_text()


def test_the_tree(resctrl: Mounted) -> None:
    root = resctrl.root
    (root / "mon_groups" / "x").mkdir()
    names = ["cpus", "cpus_list", "info", "mode", "mon_data", "mon_groups", "schemata", "size", "tasks"]
    assert sorted(os.listdir(root)) == names
    counters = [name for _, _, files in os.walk(root / "mon_groups" / "x" / "mon_data") for name in files]
    assert len(counters) == 24
    assert stat.S_IMODE(root.stat().st_mode) == 0o555
    assert stat.S_IMODE((root / "mon_groups" / "x" / "tasks").stat().st_mode) == 0o644
    assert (root / "mon_groups" / "x").stat().st_uid == 0
    assert (root / "info" / "last_cmd_status").read_text() == "ok\n"
    assert os.statvfs(root).f_blocks == 0


def test_umask_applies(resctrl: Mounted) -> None:
    before = os.umask(0o027)
    try:
        (resctrl.root / "mon_groups" / "x").mkdir()
    finally:
        os.umask(before)
    assert stat.S_IMODE((resctrl.root / "mon_groups" / "x").stat().st_mode) == 0o750


def test_errnos_arrive(tmp_path: Path) -> None:
    with mounted(tmp_path, rmids=3) as resctrl:
        groups = resctrl.root / "mon_groups"
        (groups / "x").mkdir()
        assert outcome((groups / "x").mkdir) == "EEXIST"
        assert outcome((groups / "a\nb").mkdir) == "EINVAL"
        assert outcome((groups / "x" / "y").mkdir) == "EPERM"
        assert outcome((groups / "x" / "mon_groups" / "y").mkdir) == "ENOENT"
        assert outcome((groups / "x" / "tasks").unlink) == "EPERM"
        assert outcome(lambda: os.open(groups / "x" / "new", os.O_WRONLY | os.O_CREAT)) == "EACCES"
        assert outcome(lambda: os.open(resctrl.root / "info" / "last_cmd_status", os.O_WRONLY)) == "EACCES"
        (groups / "y").mkdir()
        assert outcome((groups / "z").mkdir) == "ENOSPC"
        assert (resctrl.root / "info" / "last_cmd_status").read_text() == "Out of RMIDs\n"
        (groups / "y").rmdir()
        assert outcome((groups / "z").mkdir) == "EBUSY"
        resctrl.control(do="advance", ms=2000)
        assert outcome((groups / "z").mkdir) == "ok"
        assert outcome((groups / "y").rmdir) == "ENOENT"


def test_one_write_is_one_write(resctrl: Mounted) -> None:
    group = resctrl.root / "mon_groups" / "x"
    group.mkdir()
    me = str(os.getpid())
    assert put(group, me) == len(me)
    assert group.joinpath("tasks").read_text().split() == [me]
    assert outcome(lambda: put(group, "1" * 4097)) == "E2BIG"
    assert outcome(lambda: put(group, "1" * 300_000)) == "E2BIG"
    assert outcome(lambda: put(group, "4194304")) == "ESRCH"
    assert outcome(lambda: put(group, "-1")) == "EINVAL"
    assert put(group, "\n") == 1
    # Truncating is what "w" does, and the kernel lets it pass.
    group.joinpath("tasks").write_text(me)


def test_zero_is_the_writing_thread(resctrl: Mounted) -> None:
    group = resctrl.root / "mon_groups" / "x"
    group.mkdir()
    written, done = threading.Event(), threading.Event()
    tids: list[int] = []

    def work() -> None:
        tids.append(threading.get_native_id())
        put(group, "0")
        written.set()
        done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert written.wait(300)
        assert resctrl.groups()["/mon_groups/x"]["tasks"] == tids
    finally:
        done.set()
        thread.join()


def test_a_removed_groups_descriptors_say_enodev(resctrl: Mounted) -> None:
    group = resctrl.root / "mon_groups" / "x"
    group.mkdir()
    fd = os.open(group / "tasks", os.O_RDWR)
    try:
        group.rmdir()
        assert outcome(lambda: os.read(fd, 100)) == "ENODEV"
        group.mkdir()
        assert outcome(lambda: os.write(fd, b"1")) == "ENODEV"
        assert outcome(lambda: os.pread(fd, 100, 0)) == "ENODEV"
    finally:
        os.close(fd)
    assert group.joinpath("tasks").read_text() == ""


def test_a_removed_ctrl_group_takes_open_files_along(resctrl: Mounted) -> None:
    gold = resctrl.root / "gold"
    gold.mkdir()
    inner = gold / "mon_groups" / "x"
    inner.mkdir()
    fd = os.open(inner / "tasks", os.O_RDONLY)
    try:
        gold.rmdir()
        assert outcome(lambda: os.read(fd, 100)) == "ENODEV"
        gold.mkdir()
        assert os.listdir(gold / "mon_groups") == []
        assert outcome(inner.rmdir) == "ENOENT"
    finally:
        os.close(fd)


def test_an_open_file_follows_a_rename(resctrl: Mounted) -> None:
    groups = resctrl.root / "mon_groups"
    (groups / "x").mkdir()
    (resctrl.root / "gold").mkdir()
    put(groups / "x", str(os.getpid()))
    fd = os.open(groups / "x" / "tasks", os.O_RDONLY)
    try:
        (groups / "x").rename(resctrl.root / "gold" / "mon_groups" / "y")
        assert os.read(fd, 100).decode() == f"{os.getpid()}\n"
    finally:
        os.close(fd)
    (groups / "x").mkdir()
    (groups / "z").mkdir()
    assert outcome(lambda: (groups / "x").rename(groups / "z")) == "EEXIST"
    assert outcome(lambda: (groups / "x").rename(resctrl.root / "x")) == "EPERM"
    put(resctrl.root, str(os.getpid()))


def test_a_long_list_is_read_whole_and_in_pieces(tmp_path: Path) -> None:
    with mounted(tmp_path) as resctrl:
        whole = (resctrl.root / "tasks").read_text()
        assert f"\n{os.getpid()}\n" in whole
        fd = os.open(resctrl.root / "tasks", os.O_RDONLY)
        try:
            pieces = list(iter(lambda: os.read(fd, 7), b""))
        finally:
            os.close(fd)
        assert all(len(piece) == 7 for piece in pieces[:-1])
        assert str(os.getpid()) in b"".join(pieces).decode().split()


def test_children_and_the_dead(resctrl: Mounted, sleeper: subprocess.Popen[bytes]) -> None:
    group = resctrl.root / "mon_groups" / "x"
    group.mkdir()
    shell = subprocess.Popen(
        ["/bin/sh", "-c", "read go; sleep 1000 & echo $!; read end; kill $!; wait $!; echo done; read end"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert shell.stdin is not None
    assert shell.stdout is not None
    with shell:
        put(group, str(shell.pid))
        shell.stdin.write("go\n")
        child = int(shell.stdout.readline())
        assert group.joinpath("tasks").read_text().split() == [str(shell.pid), str(child)]
        assert resctrl.control(do="cpu_resctrl_groups", tid=child) == "res:/\nmon:x\n"
        assert resctrl.control(do="cpu_resctrl_groups", tid=sleeper.pid) == "res:/\nmon:\n"
        shell.stdin.write("end\n")
        assert shell.stdout.readline() == "done\n"
        assert group.joinpath("tasks").read_text().split() == [str(shell.pid)]
        shell.kill()
        os.waitid(os.P_PID, shell.pid, os.WEXITED | os.WNOWAIT)
        assert group.joinpath("tasks").read_text().split() == [str(shell.pid)], "a zombie stays listed"
    assert group.joinpath("tasks").read_text() == ""


def test_a_pid_namespace_has_its_own_numbers(resctrl: Mounted) -> None:
    group = resctrl.root / "mon_groups" / "x"
    group.mkdir()
    code = (
        "import ctypes, os, sys\n"
        f"assert ctypes.CDLL(None).unshare({CLONE_NEWPID}) == 0\n"
        "pid = os.fork()\n"
        "if pid: os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        f"fd = os.open({str(group / 'tasks')!r}, os.O_RDWR)\n"
        "os.write(fd, b'1')\n"
        "assert os.pread(fd, 100, 0) == b'1\\n', os.pread(fd, 100, 0)\n"
        f"try: os.write(fd, b'{os.getpid()}')\n"
        "except ProcessLookupError: os._exit(42)\n"
        "os._exit(1)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 42


def test_events_tell_what_a_pid_was(resctrl: Mounted, sleeper: subprocess.Popen[bytes]) -> None:
    group = resctrl.root / "mon_groups" / "x"
    group.mkdir()
    put(group, f"{sleeper.pid}")
    assert outcome(lambda: put(group, "4194304")) == "ESRCH"
    group.rename(group.with_name("y"))
    group.with_name("y").rmdir()
    events = resctrl.events()
    assert [(event.op, event.path, event.result) for event in events] == [
        ("mkdir", "/mon_groups/x", "ok"),
        ("tasks", "/mon_groups/x/tasks", "ok"),
        ("tasks", "/mon_groups/x/tasks", "ESRCH"),
        ("rename", "/mon_groups/x", "ok"),
        ("rmdir", "/mon_groups/y", "ok"),
    ]
    assert events[3].to == "/mon_groups/y"
    assert {event.writer_pid for event in events} == {threading.get_native_id()}
    assert {event.writer_comm for event in events} == {Path("/proc/self/comm").read_text().strip()}
    assert [event.ns for event in events] == sorted(event.ns for event in events)
    (seen,) = events[1].pids
    assert (seen.pid, seen.cmdline) == (sleeper.pid, SLEEPER)
    assert seen.exe == os.path.realpath(sys.executable)
    assert seen.state in tuple("RSD")
    assert seen.starttime == int(Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()[19])
    assert events[2].pids[0].state is None


def test_injections(resctrl: Mounted) -> None:
    groups = resctrl.root / "mon_groups"
    resctrl.control(do="inject", op="mkdir", path="/x", error="EIO", times=2)
    assert [outcome((groups / name).mkdir) for name in ("y", "x", "x", "x")] == ["ok", "EIO", "EIO", "ok"]
    resctrl.control(do="inject", op="write", path="/x/tasks", error="ENODEV", times=-1)
    assert [outcome(lambda: put(groups / "x", "0")) for _ in range(3)] == ["ENODEV"] * 3
    resctrl.control(do="clear")
    assert outcome(lambda: put(groups / "x", "0")) == "ok"
    with pytest.raises(RuntimeError, match="ENOSUCH"):
        resctrl.control(do="inject", op="mkdir", error="ENOSUCH")
    with pytest.raises(RuntimeError, match="do_nonsense"):
        resctrl.control(do="nonsense")


def test_counters_by_control(resctrl: Mounted) -> None:
    group = resctrl.root / "mon_groups" / "x"
    group.mkdir()
    energy = group / "mon_data" / "mon_PERF_PKG_01" / "core_energy"
    assert energy.read_text() == "Unavailable\n"
    resctrl.control(
        do="set_counter", group="/mon_groups/x", domain=energy.parent.name, event=energy.name, value=21.801758
    )
    assert energy.read_text() == "21.801758\n"
    resctrl.control(do="add", group="/mon_groups/x", domain=energy.parent.name, event=energy.name, amount="0.5")
    assert energy.read_text() == "22.301758\n"
    resctrl.control(do="set", counters="Unavailable")
    assert energy.read_text() == "Unavailable\n"


def test_state_and_umount(resctrl: Mounted) -> None:
    group = resctrl.root / "mon_groups" / "x"
    group.mkdir()
    put(group, str(os.getpid()))
    state = resctrl.groups()["/mon_groups/x"]
    assert (state["rmid"], state["closid"], state["mode"]) == (1, 0, 0o755)
    assert os.getpid() in state["tasks"]
    fd = os.open(group / "tasks", os.O_RDONLY)
    try:
        resctrl.control(do="unmount")
        assert os.listdir(resctrl.root) == []
        assert outcome((resctrl.root / "mon_groups" / "y").mkdir) == "ENOENT"
        resctrl.control(do="mount")
        assert os.listdir(resctrl.root / "mon_groups") == []
        assert outcome(lambda: os.read(fd, 100)) == "ENODEV"
    finally:
        os.close(fd)
    assert resctrl.control(do="state")["limbo"] == [1]
    resctrl.control(do="settle")
    assert resctrl.control(do="state")["limbo"] == []


def test_others_may_read_and_no_more(resctrl: Mounted, tmp_path: Path) -> None:
    group = resctrl.root / "mon_groups" / "x"
    group.mkdir()
    code = (
        "import os, sys\n"
        "group = os.open(sys.argv[1], os.O_PATH)\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "os.open('mon_data/mon_L3_00/llc_occupancy', os.O_RDONLY, dir_fd=group)\n"
        "try: os.open('tasks', os.O_WRONLY, dir_fd=group)\n"
        "except PermissionError: sys.exit(42)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(group)], check=False, cwd=tmp_path).returncode == 42


def test_knobs_arrive(tmp_path: Path) -> None:
    with mounted(tmp_path, rmids=9, closids=0, debug=True, packages=0, perf=False, counters="Error") as resctrl:
        knobs = resctrl.control(do="state")["knobs"]
        assert (knobs["rmids"], knobs["closids"], knobs["debug"], knobs["perf"]) == (9, 0, True, False)
        (resctrl.root / "mon_groups" / "x").mkdir()
        assert (resctrl.root / "mon_groups" / "x" / "mon_hw_id").read_text() == "1\n"
        assert (resctrl.root / "mon_data" / "mon_L3_01" / "llc_occupancy").read_text() == "Error\n"
        assert sorted(os.listdir(resctrl.root / "mon_data")) == ["mon_L3_00", "mon_L3_01"]
        assert outcome((resctrl.root / "gold").mkdir) == "EPERM"


def test_nothing_is_left_when_a_test_fails(tmp_path: Path) -> None:
    kept: list[tuple[Mounted, int]] = []

    def fails() -> None:
        with mounted(tmp_path) as resctrl:
            kept.append((resctrl, os.open(resctrl.root / "mon_data", os.O_RDONLY)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    ((resctrl, fd),) = kept
    os.close(fd)
    assert str(tmp_path) not in mounts()
    assert resctrl.process.returncode == 0


def test_nothing_is_left_when_the_server_is_killed(tmp_path: Path) -> None:
    with mounted(tmp_path) as resctrl:
        os.kill(resctrl.process.pid, signal.SIGKILL)
        resctrl.process.wait()
        assert str(tmp_path) in mounts()
    assert str(tmp_path) not in mounts()


def test_nothing_is_left_when_the_test_process_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tests.resctrlfs import Mounted\n"
        "print(Mounted(Path(sys.argv[1])).process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # Its orphan comes to us, so that we can wait for its end.
    libc = ctypes.CDLL(None)
    set_child_subreaper = 36
    assert libc.prctl(set_child_subreaper, 1, 0, 0, 0) == 0
    try:
        root = Path(__file__).parents[2]
        result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, cwd=root, capture_output=True)
        assert result.returncode == -signal.SIGKILL, result.stderr
        assert os.waitpid(int(result.stdout), 0)[1] == 0
    finally:
        assert libc.prctl(set_child_subreaper, 0, 0, 0, 0) == 0
    assert str(tmp_path) not in mounts()


def test_a_mount_that_cannot_be_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="did not mount"):
        Mounted(tmp_path, counters="absent")
    assert "counters must be one of" in capfd.readouterr().err
