# SPDX-License-Identifier: Apache-2.0
"""What the path of a cgroup tells, by the names that runtimes give."""

from __future__ import annotations

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook import host, system
from hook.models import Config, Member
from hook.node import processes

UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"
ID = "0123456789abcdef" * 4
SLICE = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    ("cgroup", "is_own"),
    [
        (":/machine.slice/libpod-c1.scope/container", True),
        (":/system.slice:cri-containerd:c1", True),
        (":/c1/a:b", True),
        (":/kubepods/c1", True),
        (":/kubepods/xc1", False),
        (":/kubepods/c1x.scope", False),
        ("c1:/kubepods/a", False),
        (None, False),
    ],
)
def test_whether_a_cgroup_is_a_containers_own(cgroup: str | None, is_own: bool) -> None:
    member = Member(pid=7, starttime=1, group="/sys/fs/resctrl/mon_groups/oci-c1", cgroup=cgroup)
    assert processes.find_own_cgroup("c1", member) == (cgroup if is_own else None)


@pytest.mark.parametrize(
    ("cgroup", "container"),
    [
        (f":{SLICE}/cri-containerd-{ID}.scope", ID),
        (f":{SLICE}/{ID}/a:b", ID),
        (f":/{ID}/{'0' * 64}", ID),
        (f":/machine.slice/libpod-{ID}.scope/libpod-{'0' * 64}.scope", ID),
        (f":/libpod_parent/{'0' * 64}/libpod-{ID}", ID),
        (f":/libpod_parent/{'0' * 64}", None),
        (f":/its/parent/{'0' * 64}/libpod-{ID}", ID),
        (f":/its/parent/{'0' * 64}/libpod-{ID}/libpod-{'1' * 64}", ID),
        (f":/kubepods/burstable/pod{UID}/{ID}/libpod-{'0' * 64}", ID),
        (f":/kubepods/burstable/pod{UID}/{ID}/{'0' * 64}/libpod-{'1' * 64}", ID),
        (f":/libpod_parent/libpod-{ID}/libpod_parent/{'0' * 64}", ID),
        (f":/{ID[1:]}", None),
        (f":/{ID[1:]}g", None),
        (":/", None),
    ],
)
def test_the_container_that_a_cgroup_is_named_by(cgroup: str, container: str | None) -> None:
    assert processes.find_container(cgroup) == container


@pytest.mark.parametrize(
    ("cgroup", "container"),
    [
        (":/c1/c2", "c1"),
        (":/a/libpod-c2.scope/c1", "c2"),
        (":/unknown/c2", "c2"),
        (f":/{ID}/c1", ID),
        (f":/c1/{ID}", "c1"),
        (":/system.slice/ssh.service", None),
    ],
)
def test_only_the_outermost_container_that_a_path_names_is_believed(
    cgroup: str, container: str | None
) -> None:
    """A tenant with a writable cgroup makes one below his own,
    by the name of another container's.
    """
    assert processes.find_container(cgroup, {"c1", "c2"}) == container


@pytest.mark.parametrize(
    ("path", "cgroup"),
    [
        (f"/kubepods/pod{UID}/{ID}", f":/kubepods/pod{UID}/{ID}"),
        ("kubepods-pod1.slice:cri-containerd:c1", ":/kubepods-pod1.slice/cri-containerd-c1.scope"),
        (f"machine.slice:libpod:{ID}", f":/machine.slice/libpod-{ID}.scope"),
        ("/a:b:c", ":/a:b:c"),
        ("/", ":/"),
        ("a/b", None),
        ("a:b", None),
        ("", None),
        (None, None),
    ],
)
def test_the_cgroup_that_a_bundle_asks_for(path: str | None, cgroup: str | None) -> None:
    config = Config.model_validate({"linux": {"cgroupsPath": path}})
    assert processes.list_requested(config) == [*filter(None, [cgroup])]


@pytest.mark.parametrize(
    ("cgroup", "within"), [(":/a", True), (":/a/b", True), (":/ab", False), (":/", False)]
)
def test_whether_a_cgroup_is_within_another(cgroup: str, within: bool) -> None:
    assert processes.is_within(cgroup, ":/a") is within


@pytest.mark.parametrize(
    ("mounted", "cgroup", "there"),
    [
        ("/sys/fs/cgroup/a", ":/a", True),
        ("/sys/fs/cgroup/unified/a", ":/a", True),
        ("/sys/fs/cgroup/cpu/a", "cpu,cpuacct:/a", True),
        ("/sys/fs/cgroup/cpu,cpuacct/a", "cpu,cpuacct:/a", True),
        ("/sys/fs/cgroup/cpuacct/a", "cpu,cpuacct:/a", False),
        ("/sys/fs/cgroup/systemd/a", "name=systemd:/a", True),
        ("/sys/fs/cgroup/cpu/a", ":/a", False),
        ("/sys/fs/cgroup/a", ":/b/../a", False),
        ("/sys/fs/cgroup/a", ":a", False),
    ],
)
def test_a_cgroup_is_looked_for_where_it_may_be_mounted(
    fs: FakeFilesystem, mounted: str, cgroup: str, there: bool
) -> None:
    fs.create_dir(mounted)
    assert (host.cgroup_directory(cgroup) is not None) is there


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        (f":/machine.slice/libpod-{ID}.scope/a/b/c", f":/machine.slice/libpod-{ID}.scope"),
        (
            f":/machine.slice/libpod-{ID}.scope/libpod-{'0' * 64}.scope",
            f":/machine.slice/libpod-{ID}.scope",
        ),
        (
            f"cpu:/libpod_parent/{'0' * 64}/libpod-{ID}/x",
            f"cpu:/libpod_parent/{'0' * 64}/libpod-{ID}",
        ),
        (f":/kubepods/pod1/{ID}", f":/kubepods/pod1/{ID}"),
        (":/user.slice/a/b", ":/user.slice/a/b"),
        (":/", ":/"),
    ],
)
def test_what_a_container_makes_below_its_own_cgroup_is_cut(cgroup: str, expected: str) -> None:
    assert processes.cut_below_container(cgroup) == expected


def test_a_look_at_processes_keeps_one_cgroup_of_a_container_however_many_it_makes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each prefix of each path was kept: a thousand of a thousand names took gigabytes."""
    cgroup = f":/machine.slice/libpod-{ID}.scope"
    texts = {pid: f"0:{cgroup}/{pid}" + "/x" * 1000 + "\n" for pid in range(1, 1001)}
    monkeypatch.setattr(system, "list_directory", lambda _path: list(map(str, texts)))
    monkeypatch.setattr(
        system, "read_counter", lambda path: f"{path.split('/')[2]} (x) S 1" + " 1" * 40
    )
    monkeypatch.setattr(system, "read_file", lambda path: texts[int(path.split("/")[2])])
    answer = processes.look()
    assert len(answer.by_pid) == 1000
    assert set(answer.cgroups) == {cgroup}
