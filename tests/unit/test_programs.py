# SPDX-License-Identifier: Apache-2.0
"""Programs that are run to their end, those that fail, hang or print without end; and which are believed the host's."""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook import system
from hook.node import files, programs
from hook.node.files import Tree
from hook.node.programs import Exit, Found, Interpreter
from tests.unit.nodes import add_process

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


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("echo first >&2; echo last >&2; exit 3", "exit status 3: last"),
        ("printf 'la\\tst\\n\\n' >&2; exit 3", "exit status 3: la?st"),
        ("exit 3", "exit status 3: no error message"),
        ("kill -9 $$", "exit status -9: no error message"),
        ("head -c 3000000 /dev/zero >&2; exit 1", "exit status 1: " + 200 * "?"),
        ("head -c 3000000 /dev/zero >&2", None),
        ("exec yes", "printed more than 1 MiB"),
    ],
)
def test_a_program_that_fails_has_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str | None
) -> None:
    monkeypatch.setattr(programs, "_LONGEST_OUTPUT", 1 << 20)
    before = os.listdir("/proc/self/fd")
    assert programs.run_program([program(tmp_path / "x", text)], stdin="not read").problem == problem
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize(("text", "problem"), [("#!/nowhere\n", "ENOENT"), ("", "ENOEXEC"), (None, "ENOENT")])
def test_a_program_that_cannot_start_has_a_problem(tmp_path: Path, text: str | None, problem: str) -> None:
    if text is not None:
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
    began, seconds, pid = time.monotonic(), 0.5, tmp_path / "pid"
    command = [program(tmp_path / "x", f"echo $$ >{pid}.new\nmv {pid}.new {pid}\n{text}")]
    while not pid.exists():  # on a busy machine a shell takes longer to start than it has
        seconds *= 2
        assert programs.run_program(command, seconds=seconds) == Exit(None, "", f"timed out after {seconds:.2g} s")
        assert time.monotonic() - began < DEADLINE
    group = int(pid.read_text())
    while members_of(group):  # what is killed takes its time to go
        assert time.monotonic() - began < DEADLINE, members_of(group)


def members_of(group: int) -> list[str]:
    """The processes of a process group that are not dead."""
    fields = {path.parent.name: stat_of(path) for path in Path("/proc").glob("[0-9]*/stat")}
    return [pid for pid, it in fields.items() if len(it) > 2 and it[2] == str(group) and it[0] not in "ZX"]


def stat_of(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def test_an_interpreter_prints_its_version_and_tag() -> None:
    tag = sys.implementation.cache_tag
    expected = Interpreter(sys.executable, sys.version_info[:2], tag, importlib.util.MAGIC_NUMBER)
    assert programs.ask_interpreter(sys.executable) == expected
    assert programs.ask_interpreter("/bin/true") == "cannot run /bin/true as Python: it does not print its version"


# --- Processes of the host itself


ID = "5f" * 32
UID = "87a3fb58-52c9-4f45-9a4b-0c07f4a1b2c3"
NONE = Found({}, [])
ROOT = "0\t0\t0\t0"


class HostProcesses:
    """Processes in /proc of a pyfakefs file system, which all have the namespaces of pid 1."""

    def __init__(self, fs: FakeFilesystem) -> None:
        self._fs = fs
        self.run(1, "/sbin/init")

    def run(
        self, pid: int, words: str, cgroup: str = "/system.slice/x.service", comm: str = "app", uids: str = ROOT
    ) -> None:
        add_process(pid, cgroup=cgroup, parent=0, uids=uids)
        stat = Path(f"/proc/{pid}/stat")
        stat.write_text(stat.read_text().replace("(app)", f"({comm})"))
        self._fs.create_file(f"/proc/{pid}/cmdline", contents="".join(f"{word}\0" for word in words.split()))
        for name in ("pid", "mnt", "user"):
            self._fs.create_symlink(f"/proc/{pid}/ns/{name}", f"/.namespaces/{name}")
            if pid == 1:
                self._fs.create_file(f"/.namespaces/{name}")

    def give_own(self, pid: int, namespace: str) -> None:
        """Take a process out of the host's namespace."""
        self._fs.remove(f"/proc/{pid}/ns/{namespace}")
        self._fs.create_file(f"/proc/{pid}/ns/{namespace}")

    def find(self) -> Found:
        return programs.find_processes(lambda words: os.path.basename(words[0]) == "containerd")


@pytest.fixture
def processes(fs: FakeFilesystem) -> HostProcesses:
    return HostProcesses(fs)


def test_a_process_of_the_host_is_found_with_its_words(processes: HostProcesses) -> None:
    processes.run(7, "/usr/bin/containerd -c /etc/x")
    processes.run(8, "/usr/bin/dockerd")
    processes.run(9, "")
    processes.run(10, "containerd " + "x" * 1_000_000)  # of which the beginning is read
    assert processes.find() == Found({7: ["/usr/bin/containerd", "-c", "/etc/x"], 10: ["containerd"]}, [])


@pytest.mark.parametrize("uids", ["1000\t1000\t1000\t1000", "1000\t0\t0\t0", "0\t1000\t0\t0"])
def test_a_process_of_another_user_than_root_is_not_believed(processes: HostProcesses, uids: str) -> None:
    """Any user can run `containerd -c his.toml`, also by a program that has root's rights."""
    processes.run(7, "containerd -c /home/eve/his.toml", "/user.slice", uids=uids)
    assert processes.find() == NONE
    Path("/proc/7/status").unlink()
    assert processes.find() == NONE


@pytest.mark.parametrize("namespace", ["pid", "mnt", "user"])
def test_a_process_with_a_namespace_of_its_own_is_not_the_hosts(processes: HostProcesses, namespace: str) -> None:
    processes.run(7, "containerd")
    processes.give_own(7, namespace)
    assert processes.find() == NONE


@pytest.mark.parametrize(
    "cgroup",
    [
        f"/machine.slice/libpod-{ID}.scope",
        f"/kubepods/besteffort/pod{UID}/crio-{ID}",
        f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice",
        f"/machine.slice/libpod-{ID}.scope/init.scope",
    ],
)
def test_a_process_in_a_containers_cgroup_is_not_the_hosts_and_not_read(
    processes: HostProcesses, monkeypatch: pytest.MonkeyPatch, cgroup: str
) -> None:
    read: list[str] = []
    real = files.read_head

    def note(path: str, size: int) -> bytes:
        read.append(path)
        return real(path, size)

    monkeypatch.setattr(files, "read_head", note)
    processes.run(7, "containerd", cgroup)
    assert processes.find() == NONE
    assert read == ["/proc/1/status", "/proc/1/cmdline"], "the page of its words may never come"


def test_a_process_whose_cgroups_cannot_be_read_is_not_the_hosts_and_not_read(
    processes: HostProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant makes its cgroup's path longer than PATH_MAX, which some kernels refuse to show."""
    processes.run(7, "containerd")
    processes.run(8, "containerd")
    refuse_to_read(monkeypatch, {"/proc/7/cgroup": errno.ENAMETOOLONG, "/proc/8/stat": errno.EIO})
    shown = {"/proc/1/status": b"Name:\tinit\nUid:\t0\t0\t0\t0\n", "/proc/1/cmdline": b""}  # of others nothing is read
    monkeypatch.setattr(files, "read_head", lambda path, _size: shown[path])
    assert processes.find() == Found({}, ["cannot read 1 of the processes in /proc: EIO"])


def refuse_to_read(monkeypatch: pytest.MonkeyPatch, denied: dict[str, int]) -> None:
    """Let these files of the kernel's be unreadable."""
    for name in ("read_file", "read_counter"):
        real = getattr(system, name)

        def read(path: str, *arguments: object, real: Any = real) -> str:  # noqa: ANN401
            if path in denied:
                raise OSError(denied[path], os.strerror(denied[path]), path)
            return str(real(path, *arguments))

        monkeypatch.setattr(system, name, read)


def refuse(*_paths: str) -> bool:
    """What the kernel says of namespaces without CAP_SYS_PTRACE."""
    raise PermissionError(errno.EACCES, "Permission denied")


def test_without_the_right_to_look_a_process_is_unclear_and_not_believed(
    processes: HostProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes.run(7, "containerd")
    processes.run(8, "containerd", f"/libpod-{ID}.scope")
    monkeypatch.setattr(os.path, "samefile", refuse)
    found = processes.find()
    assert found.words == {}
    (line,) = found.unclear
    assert line.startswith("process 7 calls itself containerd, and its namespaces cannot be compared")


@pytest.mark.parametrize(("starttime", "flags"), [(None, 0), (101, 0x400100), (100, 0x40010C)])
def test_a_process_that_ends_meanwhile_is_not_the_hosts(
    processes: HostProcesses, fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch, starttime: int | None, flags: int
) -> None:
    """It is gone, or its pid is another's, or it has given back all that could be compared."""

    def end(*_paths: str) -> bool:
        fs.remove_object("/proc/7")
        if starttime is not None:
            add_process(7, starttime, flags=flags)
        return refuse()

    processes.run(7, "containerd")
    monkeypatch.setattr(os.path, "samefile", end)
    assert processes.find() == NONE


def test_a_process_that_enters_a_container_meanwhile_is_not_the_hosts(
    processes: HostProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enter(*_paths: str) -> bool:
        Path("/proc/7/cgroup").write_text(f"0::/libpod-{ID}.scope\n")
        return refuse()

    processes.run(7, "containerd")
    monkeypatch.setattr(os.path, "samefile", enter)
    assert processes.find() == NONE


def test_an_injector_in_a_pod_is_a_claim(processes: HostProcesses) -> None:
    in_pod = f"/kubepods/pod{UID}/cri-containerd-{ID}"
    processes.run(7, "/bin/plugin", in_pod, comm="plugin")
    processes.run(8, "/bin/hook-injector", in_pod, comm="hook-injector")
    processes.run(9, "/usr/bin/10-hook-injector", comm="10-hook-injecto")
    assert programs.find_injectors() == [9]
    assert programs.find_injector_claims() == [7, 8]


def test_the_files_of_this_process_are_ours() -> None:
    assert programs.see_files(os.getpid()) == Tree("", os.getcwd())
    assert 0 < programs.read_start_time(os.getpid()) <= time.time() + 1
