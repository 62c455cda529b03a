# SPDX-License-Identifier: Apache-2.0
"""What install puts in place, as Podman uses it, and what uninstall leaves to the containers that are there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hook.base.explain import short_id
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


def test_the_life_of_a_container_and_of_an_installation(node: PodmanNode, installation: Installation) -> None:
    installation("install", "--for=podman", "--group-prefix=installed-")
    gate = node.lab.run("web")
    container = node.lab.container_id("web")
    init = node.lab.init("web")
    node.assert_placed_before_exec(init, f"installed-{container}", gate.command)
    assert node.groups() == {f"installed-{container}": [init.pid]}

    # The JSON goes at once, so that the next one is not hooked; the program stays, since this one calls it.
    assert f"kept: container {container} calls the program when it ends" in installation("uninstall")
    assert [path.name for path in node.lab.hooks_dir.iterdir()] == ["99-watch.json"]
    unhooked = node.lab.run("unhooked")
    assert set(node.groups()) == {f"installed-{container}"}
    gate.open()
    node.lab.watch.wait("poststop", container)
    node.assert_clean()

    # The other one runs, but does not call it.
    installation("uninstall")
    assert not installation.program.exists()
    unhooked.open()
    node.lab.watch.wait("poststop", node.lab.container_id("unhooked"))


def test_without_the_program_podman_goes_on_and_its_container_ends(
    node: PodmanNode, installation: Installation
) -> None:
    """What --force costs: the group is left behind, which `end` would have removed if nobody had been in it."""
    installation("install", "--for=podman")
    gate = node.lab.run("web")
    container = node.lab.container_id("web")
    installation("uninstall", "--force")
    assert not installation.program.exists()
    gate.open()
    assert node.lab.podman("wait", "web").stdout == "0\n"
    assert set(node.groups()) == {f"oci-{container}"}


def test_a_container_whose_failure_is_on_record_is_no_container_on_no_record(
    node: PodmanNode, installation: Installation
) -> None:
    """To doctor: the timer tries it again, which takes no --adopt."""
    installation("install", "--for=podman")
    node.resctrl.control(do="inject", op="mkdir", error="ENOSPC", times=-1)
    node.lab.run("web")
    command = [str(installation.program), "doctor", f"--hooks-dir={node.lab.hooks_dir}", *node.directories]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300).stdout
    assert f"1 container: no_rmids: web ({short_id(node.lab.container_id('web'))})" in said
    assert "no record in the run directory" not in said
    node.lab.podman("rm", "-f", "-t", "0", "web")
