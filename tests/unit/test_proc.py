# SPDX-License-Identifier: Apache-2.0
"""What /proc says, in every form that it has; nothing is taken for dead that might live."""

from __future__ import annotations

import errno
import os

import pytest

from hook import host, identity, names, system
from tests.simulator.machine import SimulatedMachine
from tests.unit.simulated import fails
from tests.unit.stops import machine as proc

__all__ = ["proc"]  # fixtures

PID = 4711
BORN = 987654


def stat(name: str = "sleep", state: str = "S", threads: int = 1, born: int = BORN) -> str:
    """A line of /proc/PID/stat as proc_pid_stat(5) has it;
    the other fields hold their own number.
    """
    fields = [str(PID), f"({name})", state, *map(str, range(4, 53))]
    fields[20 - 1], fields[22 - 1] = str(threads), str(born)
    return " ".join(fields) + "\n"


def says(proc: SimulatedMachine, file: str, text: str) -> None:
    place = f"/proc/{'self' if file == 'uid_map' else PID}/{file}"
    proc.kernel.files[place] = text.encode("utf-8", "surrogateescape")


NAMES = [
    "sleep",
    "a b",
    "a) S 1 2",
    "((",
    "))",
    ") Z 1",
    "",
    "a\nb",
    "\n) Z",
    "runc:[2:INIT]",
    "\udcff",
]


@pytest.mark.parametrize("name", NAMES)
def test_whatever_the_process_is_called(proc: SimulatedMachine, name: str) -> None:
    """Of two processes that were given the pid, the other one is dead."""
    for state, dead in (("S", False), ("Z", True)):
        says(proc, "stat", stat(name, state))
        assert system.starttime(PID) == BORN
        assert system.is_dead(PID, BORN) is system.is_dead(PID) is dead
        assert system.is_dead(PID, BORN - 1) is True


@pytest.mark.parametrize(
    ("state", "threads", "dead"),
    [
        *((state, 1, False) for state in "RSDTtIPW"),
        ("Z", 0, True),
        ("Z", 1, True),
        ("Z", 2, False),
        ("Z", 100, False),
        ("X", 0, True),
        ("X", 1, True),
        ("X", 2, False),
    ],
)
def test_a_zombie_is_dead_unless_it_left_threads_running(
    proc: SimulatedMachine, state: str, threads: int, dead: bool
) -> None:
    says(proc, "stat", stat(state=state, threads=threads))
    assert system.is_dead(PID, BORN) is dead
    assert system.is_dead(PID) is dead


@pytest.mark.parametrize("is_hidden", [False, True])
@pytest.mark.parametrize(
    "number", [errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM, errno.EMFILE, errno.EFBIG]
)
def test_only_an_absence_where_proc_shows_processes_is_taken_for_dead(
    proc: SimulatedMachine, monkeypatch: pytest.MonkeyPatch, number: int, is_hidden: bool
) -> None:
    """A process may go while it is read; where /proc is hidden or not mounted all are absent."""
    if is_hidden:
        proc.kernel.files["/proc/1"] = None
    else:
        proc.kernel.files["/proc/1"] = ["stat"]
        assert (system.starttime(PID), system.is_dead(PID, BORN)) == (None, True), "no such process"
    monkeypatch.setattr(system, "read_file", fails(number))
    if number in (errno.ENOENT, errno.ESRCH) and not is_hidden:
        assert (system.starttime(PID), system.is_dead(PID, BORN)) == (None, True)
    else:
        assert system.is_dead(PID, BORN) is None
        with pytest.raises(OSError, match=os.strerror(number)):
            system.starttime(PID)


@pytest.mark.parametrize(
    "text", ["", "\n", "4711", "4711 (x", "4711 (x)", "4711 (x) S", stat().replace(" 1 ", " x ")]
)
def test_a_stat_that_is_none_is_not_taken_for_dead(proc: SimulatedMachine, text: str) -> None:
    says(proc, "stat", text.replace(str(BORN), "born"))
    assert system.is_dead(PID, BORN) is None
    with pytest.raises((ValueError, IndexError)):
        system.starttime(PID)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("res:/\nmon:\n", ("/", "")),
        ("res:/\nmon:X\n", ("/", "X")),
        ("res:gold\nmon:\n", ("gold", "")),
        ("res:gold\nmon:X\n", ("gold", "X")),
        ("res:gold class\nmon:a mon:b\n", ("gold class", "a mon:b")),
        ("res:res:\nmon:res:/\n", ("res:", "res:/")),
        ("res:\nmon:\n", None),
        ("res:\nmon:X\n", None),
        ("res:/\n", ("/", "")),
        ("mon:X\nres:gold\n", ("gold", "X")),
        ("", None),
        ("something else\n", None),
        ("res:\udcff\nmon:\xfc\n", ("\udcff", "\xfc")),
    ],
)
def test_the_groups_of_a_task(
    proc: SimulatedMachine, text: str, expected: tuple[str, str] | None
) -> None:
    says(proc, "cpu_resctrl_groups", text)
    assert system.resctrl_groups(PID) == expected


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESRCH, errno.EACCES])
def test_a_kernel_that_does_not_tell_of_groups(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(system, "read_file", fails(number))
    if number == errno.EACCES:  # which is no kernel that does not tell
        with pytest.raises(PermissionError):
            system.resctrl_groups(PID)
    else:
        assert system.resctrl_groups(PID) is None
    assert system.cgroups(PID) == []
    assert system.in_user_namespace() is False, "where that cannot be read it is the host"


V2 = "0::/kubepods.slice/crio-1.scope\n"
V1 = """12:cpu,cpuacct:/kubepods/pod1/c1
3:memory:/kubepods/pod1/c1
1:name=systemd:/kubepods/pod1/c1
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (V2, ":/kubepods.slice/crio-1.scope"),
        (V1, "cpu,cpuacct:/kubepods/pod1/c1"),
        (V1 + V2, ":/kubepods.slice/crio-1.scope"),
        (V1 + "0::/\n", "cpu,cpuacct:/kubepods/pod1/c1"),
        ("4:pids:/\n3:memory:/a\n2:cpu:/b\n0::/\n", "memory:/a"),
        ("1:name=systemd:/a:b\n0::/\n", "name=systemd:/a:b"),
        ("0::/a:b/c:\n", ":/a:b/c:"),
        ("0::/gone (deleted)\n", ":/gone (deleted)"),
        ("0::/../sibling\n", ":/../sibling"),
        ("0::/\n", ":/"),
        ("2:cpu:/\n1:memory:/\n0::/\n", "cpu:/"),
        ("", None),
        ("\n", None),
    ],
)
def test_the_cgroup_of_a_process(proc: SimulatedMachine, text: str, expected: str | None) -> None:
    says(proc, "cgroup", text)
    assert identity.choose_cgroup(system.cgroups(PID), "another") == expected


@pytest.mark.parametrize("below", ["", "/init.scope", "/libpod-c1.scope", "/x/c1"])
@pytest.mark.parametrize(
    "cgroup",
    [
        ":/machine.slice/libpod-c1.scope",
        "cpu,cpuacct:/kubepods/pod1/c1",
        ":/kubepods/pod1/crio-c1",
        ":/kubepods-pod1.slice:cri-containerd:c1",
        ":/c1",
    ],
)
def test_what_is_below_a_containers_own_cgroup_is_not_recorded(cgroup: str, below: str) -> None:
    """systemd in a container moves its init to init.scope:
    the rest of the container is not within that.
    """
    assert identity.choose_cgroup([cgroup + below], "c1") == cgroup
    assert identity.choose_cgroup([cgroup + below], "c1@7-100") == cgroup
    assert names.find_own(cgroup + below, "c2") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("         0          0 4294967295\n", False),
        ("0 0 4294967295", False),
        ("         0       1000          1\n", True),
        ("         0       1000          1\n         1     100000      65536\n", True),
        ("         0          0          1\n", True),
        ("         0          0 4294967294\n", True),
        ("         0          0 4294967295\n 1 2 3\n", True),
        ("", True),
    ],
)
def test_user_namespaces(proc: SimulatedMachine, text: str, expected: bool) -> None:
    says(proc, "uid_map", text)
    assert system.in_user_namespace() is expected


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [
        ("pid:[4026531836]", True),
        ("pid:[4026532201]", False),
        ("mnt:[4026531836]", False),
        ("", False),
        (None, False),
    ],
)
def test_the_hosts_pid_namespace_is_known_by_its_number(
    proc: SimulatedMachine, namespace: str | None, expected: bool
) -> None:
    """Where /proc cannot tell it is not the host's."""
    proc.kernel.files["/proc/self/ns/pid"] = namespace
    assert host.in_host_namespaces() is expected


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [("time:[4026531834]", True), ("time:[4026532201]", False), (None, True)],
)
def test_the_hosts_time_namespace_is_known_by_its_number_and_the_only_one_of_an_older_kernel(
    proc: SimulatedMachine, namespace: str | None, expected: bool
) -> None:
    """In another one all start times are shifted: members would look dead."""
    proc.kernel.time_namespace = namespace
    assert host.in_host_namespaces() is expected


def test_a_time_namespace_that_cannot_be_read_is_not_the_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(path: str) -> str:
        if path.endswith("/time"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return "pid:[4026531836]"

    monkeypatch.setattr(host, "link_target", read)
    assert host.in_host_namespaces() is False
