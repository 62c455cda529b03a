# SPDX-License-Identifier: Apache-2.0
"""Which processes are believed to be the host's."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook.node import door, programs
from hook.node.door import Tree
from tests.unit.nodes import add_process

ID = "5f" * 32
UID = "87a3fb58-52c9-4f45-9a4b-0c07f4a1b2c3"
NONE = programs.Found({}, [])


class HostProcesses:
    """Processes in /proc of a pyfakefs file system, which all have the namespaces of pid 1."""

    def __init__(self, fs: FakeFilesystem) -> None:
        self._fs = fs
        self.run(1, "/sbin/init")

    def run(self, pid: int, words: str, cgroup: str = "/system.slice/x.service", comm: str = "app") -> None:
        add_process(pid, cgroup=cgroup, parent=0)
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

    def hide(self, pid: int) -> None:
        """Let the kernel refuse a look at its namespaces, as it does without CAP_SYS_PTRACE."""
        self._fs.remove(f"/proc/{pid}/ns/pid")

    def find(self) -> programs.Found:
        return programs.find_processes(lambda words: os.path.basename(words[0]) == "containerd")


@pytest.fixture
def processes(fs: FakeFilesystem) -> HostProcesses:
    return HostProcesses(fs)


def test_a_process_of_the_host_is_found_with_its_words(processes: HostProcesses) -> None:
    processes.run(7, "/usr/bin/containerd -c /etc/x")
    processes.run(8, "/usr/bin/dockerd")
    processes.run(9, "")
    processes.run(10, "containerd " + "x" * 1_000_000)  # of which the beginning is read
    assert processes.find() == programs.Found({7: ["/usr/bin/containerd", "-c", "/etc/x"], 10: ["containerd"]}, [])


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
    real = door.read_head

    def note(path: str, size: int) -> bytes:
        read.append(path)
        return real(path, size)

    monkeypatch.setattr(door, "read_head", note)
    processes.run(7, "containerd", cgroup)
    assert processes.find() == NONE
    assert read == ["/proc/1/cmdline"], "the page of its words may never come"


def test_without_the_right_to_look_a_process_is_unclear_and_not_believed(processes: HostProcesses) -> None:
    processes.run(7, "containerd")
    processes.run(8, "containerd", f"/libpod-{ID}.scope")
    for pid in (7, 8):
        processes.hide(pid)
    found = processes.find()
    assert found.words == {}
    (line,) = found.unclear
    assert line.startswith("process 7 calls itself containerd, and its namespaces cannot be compared")


@pytest.mark.parametrize("is_reused", [False, True])
def test_a_process_that_ends_meanwhile_is_not_the_hosts(
    processes: HostProcesses, fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch, is_reused: bool
) -> None:
    """The kernel says EACCES of its namespaces as well."""

    def end(*_paths: str) -> bool:
        fs.remove_object("/proc/7")
        if is_reused:
            add_process(7, starttime=101)
        raise PermissionError

    processes.run(7, "containerd")
    monkeypatch.setattr(os.path, "samefile", end)
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
