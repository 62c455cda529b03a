# SPDX-License-Identifier: Apache-2.0
"""What install puts in place, as Podman uses it, and what uninstall leaves to the containers that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from hook.node.paths import STUB
from tests.podman.node import PodmanNode
from tests.support import machine
from tests.support.machine import ScratchMachine

# The roots of other runtimes hold what others of this machine run.
ALONE = "[ ! -d /run/crun ] || mount -t tmpfs none /run/crun"


class Installation:
    """Below a prefix of its own, with the lab's hooks.d."""

    def __init__(self, node: PodmanNode, directory: Path) -> None:
        for path in node.lab.hooks_dir.glob("10-*"):
            path.unlink()
        self._machine = ScratchMachine(directory, ALONE, has_run=False)
        self._places = [f"--prefix={node.lab.base}/prefix", f"--hooks-dir={node.lab.hooks_dir}", *node.directories]
        self.program = node.lab.base / "prefix/libexec/oci/hooks.d/resctrl-mon-hook.pyz"

    def __call__(self, verb: str, *words: str) -> str:
        done = self._machine.run(verb, *self._places, *words)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout


@pytest.fixture
def installation(node: PodmanNode, tmp_path: Path) -> Installation:
    if reason := machine.missing():
        pytest.skip(reason)
    return Installation(node, tmp_path / "machine")


def test_containers_live_and_end_across_an_uninstallation_and_another_install(
    node: PodmanNode, installation: Installation
) -> None:
    installation("install", "--for=podman", "--group-prefix=installed-")
    gates = {name: node.lab.run(name) for name in ("web", "old")}
    containers = {name: node.lab.container_id(name) for name in gates}
    init = node.lab.init("web")
    node.assert_placed_before_exec(init, f"installed-{containers['web']}", gates["web"].command)
    assert set(node.groups()) == {f"installed-{container}" for container in containers.values()}

    assert "end all keys" in installation("uninstall")
    assert [path.name for path in node.lab.hooks_dir.iterdir()] == ["99-watch.json"]
    assert installation.program.read_bytes() == STUB
    assert node.groups() == {}
    unhooked = node.lab.run("unhooked")
    assert node.groups() == {}
    gates["web"].open()
    node.lab.watch.wait("poststop", containers["web"])
    assert node.lab.podman("wait", "web").stdout == "0\n"
    node.lab.podman("rm", "web")

    installation("install", "--for=podman", "--group-prefix=installed-")  # while `old` calls it
    node.lab.run("new").open()
    node.lab.watch.wait("poststop", node.lab.container_id("new"))
    gates["old"].open()
    node.lab.watch.wait("poststop", containers["old"])
    node.lab.podman("rm", "old", "new")
    unhooked.open()
    node.lab.watch.wait("poststop", node.lab.container_id("unhooked"))
    assert node.groups() == {}
    installation("uninstall")
    assert installation.program.read_bytes() == STUB
