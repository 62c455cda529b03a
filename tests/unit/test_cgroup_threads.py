# SPDX-License-Identifier: Apache-2.0
"""The threads in a container's cgroups, by the lists of the cgroup file system, which are plain files here."""

from __future__ import annotations

from pathlib import Path

import pytest

from hook.base import cgroups, container_tasks, system
from hook.base.container_tasks import Reading, read_threads

OWN = "/pods/crio-a.scope"


def none_is(_cgroup: str) -> bool:
    """No cgroup below is another container's."""
    return False


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroups, "_MOUNT", str(tmp_path))
    return tmp_path


def add(directory: Path, *tids: int, file: str = "cgroup.threads") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / file).write_text("".join(f"{tid}\n" for tid in tids))
    (directory / "cgroup.procs").write_text("1\n")
    return directory


@pytest.mark.parametrize("place", ["", "unified"], ids=["cgroup v2", "beside v1"])
def test_threads_of_a_cgroup_and_of_those_below_it_are_read(mount: Path, place: str) -> None:
    top = mount / place / OWN[1:]
    add(top, 7, 70)
    add(top / "init.scope", 8)
    add(top / "system.slice" / "x.service", 9)
    add(top / "system.slice")
    assert read_threads(":" + OWN, none_is) == Reading({7, 70, 8, 9}, 0)


def test_in_cgroup_v1_tasks_are_read(mount: Path) -> None:
    add(mount / "cpu" / OWN[1:], 7, 70, file="tasks")
    assert read_threads("cpu,cpuacct:" + OWN, none_is) == Reading({7, 70}, 0)


def test_cgroup_that_is_not_there_is_none(mount: Path) -> None:
    assert read_threads(":" + OWN, none_is) is None
    add(mount / "pods")
    assert read_threads(":/pods/../pods", none_is) is None


def test_another_containers_cgroup_below_is_not_read(mount: Path) -> None:
    top = add(mount / OWN[1:], 7)
    add(top / "libpod-b", 8)
    add(top / "libpod-b" / "below", 9)
    assert read_threads(":" + OWN, lambda it: it == f":{OWN}/libpod-b") == Reading({7}, 0)


def test_more_cgroups_than_are_read_are_counted(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_tasks, "_MOST_CGROUPS", 5)
    monkeypatch.setattr(system, "count_links", lambda path: 2 + len(below(Path(path))))
    top = add(mount / OWN[1:], 7)
    for number in range(4):
        add(top / f"a{number}", 10 + number)
    assert read_threads(":" + OWN, none_is) == Reading({7, 10, 11, 12, 13}, 0)
    add(top / "a0" / "b", 20)
    assert read_threads(":" + OWN, none_is) == Reading({7, 10, 11, 12, 13}, 1)
    add(top / "a4", 14)
    assert read_threads(":" + OWN, none_is) == Reading({7}, 5)


def test_more_cgroups_than_are_read_are_not_even_listed(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []
    monkeypatch.setattr(system, "count_links", lambda _path: 100_002)
    monkeypatch.setattr(system, "list_directory", listed.append)
    add(mount / OWN[1:], 7)
    assert read_threads(":" + OWN, none_is) == Reading({7}, 100_000)
    assert listed == []


def below(path: Path) -> list[Path]:
    return [it for it in path.iterdir() if it.is_dir()]


def test_cgroup_that_vanishes_meanwhile_is_none_of_it(mount: Path) -> None:
    top = add(mount / OWN[1:], 7)
    (top / "gone").mkdir()  # its files went first
    assert read_threads(":" + OWN, none_is) == Reading({7}, 0)


def test_list_that_is_too_long_or_unreadable_is_counted(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_tasks, "_MOST_BYTES", 10)
    top = add(mount / OWN[1:], 7)
    add(top / "long", *range(10))
    (top / "refused" / "cgroup.threads").mkdir(parents=True)
    assert read_threads(":" + OWN, none_is) == Reading({7}, 2)
