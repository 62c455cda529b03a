# SPDX-License-Identifier: Apache-2.0
"""What Podman's containers leave in the history: a line for each run, by its name, whichever way it ends."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.hook import DEADLINE, PYZ
from tests.support.waiting import wait

if TYPE_CHECKING:
    from pathlib import Path

    from tests.podman.conftest import StartNode
    from tests.podman.node import PodmanNode


class Recorded:
    """A node whose hook has --history."""

    def __init__(self, start_node: StartNode, directory: Path, *options: str) -> None:
        directory.mkdir()
        self.file = directory / "history.jsonl"
        self.node: PodmanNode = start_node(f"--history={self.file}", *options)
        self.lab = self.node.lab

    def wait_for_lines(self, number: int) -> list[dict[str, Any]]:
        """The lines, once there are so many."""
        wait(lambda: self.file.exists() and self.file.read_text().count("\n") >= number)
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        assert len({line["id"] for line in lines}) == len(lines) == number
        return lines

    def run(self, *command: str) -> None:
        """`podman run --rm --name job-17`, to its end. Its status may be that it was removed before Podman asked."""
        place = [*self.lab.options("job-17"), "--rm"]
        self.lab.podman("run", *place, "--rootfs", str(self.lab.rootfs), *command, check=False)

    def use(self, container: str, joules: str) -> None:
        where = {"group": f"/mon_groups/oci-{container}", "domain": "mon_PERF_PKG_00", "event": "core_energy"}
        self.node.resctrl.control(do="add", amount=joules, **where)

    def live_twice(self) -> str:
        """Run job-17, restart it, and kill it: 2.5 J in its first life, 0.5 J in its second. Returns its ID."""
        gate = self.lab.run("job-17")
        container = self.lab.container_id("job-17")
        self.use(container, "2.5")
        self.lab.podman("restart", "--time=0", "job-17")
        self.lab.watch.wait("poststop", container)
        gate.wait_up()
        self.use(container, "0.5")
        self.lab.podman("kill", "job-17")
        return container


@pytest.fixture
def recorded(start_node: StartNode, tmp_path: Path) -> Recorded:
    return Recorded(start_node, tmp_path / "log")


def names(lines: list[dict[str, Any]]) -> list[list[str]]:
    return [[it["name"] for it in line["containers"]] for line in lines]


def test_each_run_of_a_short_job_is_a_line_also_of_one_that_fails(recorded: Recorded) -> None:
    recorded.run("/bin/sleep", "0.5")
    recorded.run("/bin/sh", "-c", "exit 3")
    recorded.run("/bin/sh", "-c", "kill -SEGV $$")
    lines = recorded.wait_for_lines(3)
    assert names(lines) == [["job-17"]] * 3
    assert {(line["kind"], line["lives"], tuple(line["unknown"])) for line in lines} == {("container", 1, ())}
    assert lines[0]["seconds"] >= 0.5
    wait(lambda: recorded.node.groups() == {})


def test_each_life_of_a_container_that_is_restarted_has_its_own_use(recorded: Recorded) -> None:
    recorded.live_twice()
    lines = recorded.wait_for_lines(2)
    assert [line["use"]["core_energy"] for line in lines] == [2.5, 0.5]
    assert names(lines) == [["job-17"]] * 2


def test_lives_that_linger_joins_are_one_line(start_node: StartNode, tmp_path: Path) -> None:
    recorded = Recorded(start_node, tmp_path / "log", "--linger=3600")
    container = recorded.live_twice()
    recorded.lab.watch.wait("poststop", container)
    assert not recorded.file.exists()
    words = [str(PYZ), "reconcile", *recorded.node.directories, "--linger=0", f"--history={recorded.file}"]
    subprocess.run(words, check=True, capture_output=True, timeout=DEADLINE)
    (line,) = recorded.wait_for_lines(1)
    assert (line["lives"], line["use"]["core_energy"], names([line])) == (2, 3.0, [["job-17"]])


def test_a_pod_of_podmans_is_one_line_with_all_its_containers(start_node: StartNode, tmp_path: Path) -> None:
    recorded = Recorded(start_node, tmp_path / "log", "--key=sandbox")
    lab = recorded.lab
    sandbox = lab.podman("pod", "create", f"--cgroup-parent={lab.cgroups.path}", "--name=pod", "--infra=false")
    gates = [lab.run(name, *lab.place, pod="pod") for name in ("first", "second")]
    recorded.use(sandbox.stdout.strip(), "1.5")
    gates[0].open()
    lab.watch.wait("poststop", lab.container_id("first"))
    gates[1].open()
    (line,) = recorded.wait_for_lines(1)
    assert (line["kind"], line["key"]) == ("sandbox", sandbox.stdout.strip())
    assert (names([line]), line["use"]["core_energy"]) == ([["first", "second"]], 1.5)
