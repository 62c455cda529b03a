# SPDX-License-Identifier: Apache-2.0
"""Which processes are believed to be the host's."""

from __future__ import annotations

import os

import pytest

from hook.base import container_tasks
from hook.base.container_tasks import Process
from hook.node import door, host_processes

ID = "5f" * 32
UID = "87a3fb58-52c9-4f45-9a4b-0c07f4a1b2c3"
HOST = (":/system.slice/containerd.service",)


class HostProcesses:
    """Processes by pid: each with its cgroups, its words and those of its namespaces that are not the host's."""

    def __init__(self) -> None:
        self.processes: dict[int, Process] = {}
        self.words: dict[int, bytes] = {}
        self.own: dict[int, tuple[str, ...]] = {}
        self.unreadable: set[int] = set()
        self.read: list[int] = []

    def run(
        self, pid: int, words: str, *own: str, places: tuple[str, ...] = HOST, is_readable: bool = True, comm: str = ""
    ) -> None:
        self.processes[pid] = Process(pid, 1, 1, places, 1, comm or words.partition(" ")[0])
        self.words[pid] = b"".join(word.encode() + b"\0" for word in words.split())
        self.own[pid] = own
        if not is_readable:
            self.unreadable.add(pid)

    def read_head(self, path: str, size: int) -> bytes:
        pid = int(path.split("/")[2])
        self.read.append(pid)
        return self.words[pid][:size]

    def samefile(self, path: str, of_host: str) -> bool:
        _, _, pid, _, name = path.split("/")
        assert of_host == f"/proc/1/ns/{name}"
        if int(pid) in self.unreadable:
            raise PermissionError(13, "Permission denied")
        return name not in self.own[int(pid)]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> HostProcesses:
    node = HostProcesses()
    monkeypatch.setattr(container_tasks, "table", lambda: node.processes)
    monkeypatch.setattr(container_tasks, "look_at", node.processes.get)
    monkeypatch.setattr(door, "read_head", node.read_head)
    monkeypatch.setattr(os.path, "samefile", node.samefile)
    return node


def is_containerd(words: list[str]) -> bool:
    return os.path.basename(words[0]) == "containerd"


def test_a_process_of_the_host_is_found_with_its_words(node: HostProcesses) -> None:
    node.run(7, "/usr/bin/containerd -c /etc/x")
    node.run(8, "/usr/bin/dockerd")
    assert host_processes.find(is_containerd).words == {7: ["/usr/bin/containerd", "-c", "/etc/x"]}


@pytest.mark.parametrize("namespace", ["pid", "mnt", "user"])
def test_a_process_with_a_namespace_of_its_own_is_not_the_hosts(node: HostProcesses, namespace: str) -> None:
    node.run(7, "containerd", namespace)
    assert host_processes.find(is_containerd) == host_processes.Found()


@pytest.mark.parametrize(
    "place",
    [
        f":/machine.slice/libpod-{ID}.scope",
        f":/kubepods/besteffort/pod{UID}/crio-{ID}",
        f"memory:/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice",
        f":/machine.slice/libpod-{ID}.scope/init.scope",
    ],
)
def test_a_process_in_a_containers_cgroup_is_not_the_hosts_and_not_read(node: HostProcesses, place: str) -> None:
    node.run(7, "containerd", places=(":/", place))
    assert host_processes.find(is_containerd) == host_processes.Found()
    assert node.read == [], "the page of its words may never come"


def test_without_the_right_to_look_a_process_is_unclear_and_not_believed(node: HostProcesses) -> None:
    node.run(7, "containerd", is_readable=False)
    node.run(8, "containerd", places=(f":/libpod-{ID}.scope",), is_readable=False)
    found = host_processes.find(is_containerd)
    assert found.words == {}
    (line,) = found.unclear
    assert line.startswith("process 7 calls itself containerd, and its namespaces cannot be compared")


@pytest.mark.parametrize("starttime", [None, 2])
def test_a_process_that_ends_meanwhile_is_not_the_hosts(
    node: HostProcesses, monkeypatch: pytest.MonkeyPatch, starttime: int | None
) -> None:
    """The kernel says EACCES of its namespaces as well. `starttime`: of a process that was given its pid."""
    node.run(7, "containerd", is_readable=False)
    now = None if starttime is None else Process(7, 1, starttime, HOST)
    monkeypatch.setattr(container_tasks, "look_at", lambda _pid: now)
    assert host_processes.find(is_containerd) == host_processes.Found()


def test_a_long_command_line_is_read_in_part(node: HostProcesses) -> None:
    node.run(7, "containerd " + "x" * 1_000_000)
    (words,) = host_processes.find(is_containerd).words.values()
    assert words == ["containerd"]


def test_a_process_without_words_is_none_of_interest(node: HostProcesses) -> None:
    node.run(2, "")
    assert host_processes.find(is_containerd) == host_processes.Found()


def test_an_injector_in_a_pod_is_a_claim(node: HostProcesses) -> None:
    in_pod = (f":/kubepods/pod{UID}/cri-containerd-{ID}",)
    node.run(7, "/bin/plugin", places=in_pod, comm="plugin")
    node.run(8, "/bin/hook-injector", places=in_pod, comm="hook-injector")
    node.run(9, "/usr/bin/10-hook-injector", comm="10-hook-injecto")
    assert host_processes.find_injectors() == [9]
    assert host_processes.find_injector_claims() == [7, 8]
