# SPDX-License-Identifier: Apache-2.0
"""What Podman's containers leave in the history: a line for each run, by its name, whichever way it ends.

Of keys with several containers: tests/unit/test_ending.py.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.podman.conftest import StartNode
from tests.support.waiting import wait


def test_each_run_is_a_line_with_its_own_use_however_it_ends(start_node: StartNode, tmp_path: Path) -> None:
    """Of a job that ends, of one that crashes, and of a container that is restarted and then killed."""
    file = tmp_path / "history.jsonl"
    node = start_node(f"--history={file}")
    lab = node.lab

    def use(joules: str) -> None:
        where = {"group": f"/mon_groups/oci-{container}", "domain": "mon_PERF_PKG_00", "event": "core_energy"}
        node.resctrl.control(do="add", amount=joules, **where)

    for command in (["/bin/sleep", "0.5"], ["/bin/sh", "-c", "kill -SEGV $$"]):
        # Its status may be that it was removed before Podman asked
        lab.podman("run", *lab.options("job-17"), "--rm", "--rootfs", str(lab.rootfs), *command, check=False)
    gate = lab.run("job-17")
    container = lab.container_id("job-17")
    use("2.5")
    lab.podman("restart", "--time=0", "job-17")
    lab.watch.wait("poststop", container)
    gate.wait_up()
    use("0.5")
    lab.podman("kill", "job-17")
    wait(lambda: file.exists() and file.read_text().count("\n") >= 4)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len({line["id"] for line in lines}) == len(lines) == 4
    assert [[container["name"] for container in line["containers"]] for line in lines] == [["job-17"]] * 4
    assert {(line["kind"], line["runs"], tuple(line["unknown"])) for line in lines} == {("container", 1, ())}
    assert [line["use"]["core_energy"] for line in lines[2:]] == [2.5, 0.5]
    assert lines[0]["seconds"] >= 0.5
    wait(lambda: node.groups() == {})
