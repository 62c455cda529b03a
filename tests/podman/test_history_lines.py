# SPDX-License-Identifier: Apache-2.0
"""What Podman's containers leave in the history: a line for each run, by its name, whichever way it ends.

Of keys with several containers: tests/unit/test_ending.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.podman.conftest import StartNode
from tests.podman.node import PodmanNode
from tests.support.waiting import wait


class Recorded:
    """A node whose hook has --history."""

    def __init__(self, start_node: StartNode, directory: Path) -> None:
        directory.mkdir()
        self.file = directory / "history.jsonl"
        self.node: PodmanNode = start_node(f"--history={self.file}")
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


def test_each_run_is_a_line_with_its_own_use_however_it_ends(start_node: StartNode, tmp_path: Path) -> None:
    """Of a job that ends, of one that crashes, and of a container that is restarted and then killed."""
    recorded = Recorded(start_node, tmp_path / "log")
    recorded.run("/bin/sleep", "0.5")
    recorded.run("/bin/sh", "-c", "kill -SEGV $$")
    gate = recorded.lab.run("job-17")
    container = recorded.lab.container_id("job-17")
    recorded.use(container, "2.5")
    recorded.lab.podman("restart", "--time=0", "job-17")
    recorded.lab.watch.wait("poststop", container)
    gate.wait_up()
    recorded.use(container, "0.5")
    recorded.lab.podman("kill", "job-17")
    lines = recorded.wait_for_lines(4)
    assert [[it["name"] for it in line["containers"]] for line in lines] == [["job-17"]] * 4
    assert {(line["kind"], line["runs"], tuple(line["unknown"])) for line in lines} == {("container", 1, ())}
    assert [line["use"]["core_energy"] for line in lines[2:]] == [2.5, 0.5]
    assert lines[0]["seconds"] >= 0.5
    wait(lambda: recorded.node.groups() == {})
