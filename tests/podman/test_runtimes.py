# SPDX-License-Identifier: Apache-2.0
"""Containers that no hook ever saw, found by what the real runc and crun tell of them."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hook.models import State
from hook.node import runtimes
from hook.node.runtimes import Runtimes
from tests.resctrlfs.events import look
from tests.support.cgroups import path_of
from tests.support.containers import CRUN, Lab, bundle_config, missing
from tests.support.waiting import wait

COMMAND = ["/bin/sleep", "100000"]
ANNOTATIONS = {"io.kubernetes.pod.uid": "0f9c3a52-6a0e-4a9f-9d43-5f5c1d3c7b11"}
RUNC = "runc"
needs_crun = pytest.mark.skipif(
    shutil.which("crun", path="/usr/bin:/bin") is None, reason="no crun"
)
each_runtime = pytest.mark.parametrize("name", [RUNC, pytest.param("crun", marks=needs_crun)])


def write_script(path: Path, command: Sequence[str]) -> None:
    """A program that is this command with further words."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)


class Unhooked:
    """Containers that runtimes run by themselves, without hooks,
    in one root directory that they share.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.root = lab.base / "shared"
        self.root.mkdir()
        # As in the lab: crun finds cgroups v2 alone
        crun = lab.base / "crun-on-v2"
        write_script(crun, CRUN)
        runc = shutil.which(RUNC)
        assert runc is not None
        self.programs = {RUNC: runc, "crun": str(crun)}

    def create(
        self,
        container: str,
        name: str = RUNC,
        annotations: dict[str, str] | None = None,
        user: int = 0,
    ) -> None:
        bundle = self._lab.base / f"bundle-{container}"
        bundle.mkdir()
        annotations = ANNOTATIONS if annotations is None else annotations
        config = bundle_config(
            self._lab.rootfs, COMMAND, path_of(self._lab.cgroups.path, container, annotations)
        )
        config["process"]["user"] = {"uid": user, "gid": user}
        config["annotations"] = annotations
        config["linux"]["resources"] = {"devices": [{"allow": True, "access": "rwm"}]}
        (bundle / "config.json").write_text(json.dumps(config))
        self.do(name, "create", f"--bundle={bundle}", container)

    def start(self, container: str, name: str = RUNC, **more: Any) -> None:  # noqa: ANN401  create's
        self.create(container, name, **more)
        self.do(name, "start", container)

    def do(self, name: str, *words: str) -> None:
        """Have it done by a runtime.

        What it prints goes to a file: a container that is created keeps that open.
        """
        log = self._lab.base / "log"
        with log.open("wb") as file:
            done = subprocess.run(
                [self.programs[name], f"--root={self.root}", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                check=False,
                timeout=300,
            )
        assert done.returncode == 0, f"{name} {' '.join(words)}: {log.read_text()}"

    def states(self, *names: str) -> tuple[dict[str, State], list[str]]:
        asked = Runtimes([str(self.root)], [self.programs[name] for name in names])
        states, complaints = asked.list_states()
        return {state.id: state for state in runtimes.list_adoptable(states)}, [
            *complaints.values()
        ]


@pytest.fixture
def lab() -> Iterator[Lab]:
    if reason := missing(model=False):
        pytest.skip(reason)
    with closing(Lab()) as lab:
        (lab.hooks_dir / "10-resctrl-mon-hook.json").unlink()
        yield lab


@pytest.fixture
def unhooked(lab: Lab) -> Unhooked:
    return Unhooked(lab)


@each_runtime
def test_every_status(unhooked: Unhooked, name: str) -> None:
    (unhooked.root / "leftover").mkdir()
    assert unhooked.states(name) == ({}, [])
    unhooked.create("created", name)
    unhooked.start("running", name, user=1000)
    unhooked.start("paused", name, annotations={})
    unhooked.do(name, "pause", "paused")
    unhooked.start("stopped", name)
    unhooked.do(name, "kill", "stopped", "KILL")
    unhooked.start(
        "pause", name, annotations={**ANNOTATIONS, "io.kubernetes.cri-o.ContainerType": "sandbox"}
    )
    try:
        states, complaints = unhooked.states(name)
    finally:
        unhooked.do(name, "resume", "paused")  # so that the lab can end it
    assert complaints == []
    assert {container: state.status for container, state in states.items()} == {
        status: status for status in ("created", "running", "paused")
    }
    state = states["running"]
    assert (state.annotations, Path(state.bundle).name) == (ANNOTATIONS, "bundle-running")
    wait(lambda: look(state.pid or 0).cmdline == COMMAND)  # `runc start` does not wait for the exec


@needs_crun
def test_a_root_that_both_share(unhooked: Unhooked) -> None:
    """As containerd's shim has it for its runtime handlers."""
    unhooked.start("by-runc", RUNC)
    unhooked.start("by-crun", "crun")
    for asked, complaint in {
        (RUNC, "crun"): "",
        ("crun", RUNC): "",
        (RUNC,): " state by-crun: exit status 1: ",
        ("crun",): " state by-runc: exit status 1: ",
    }.items():
        states, complaints = unhooked.states(*asked)
        assert set(states) == {f"by-{name}" for name in asked}
        assert [complaint in line for line in complaints] == ([True] if complaint else [])


def test_a_container_of_podman_is_found_where_podman_has_it(lab: Lab) -> None:
    """By default, and beside whatever else runs on this machine."""
    lab.run("web", "--annotation=a=b")
    container = lab.container_id("web")
    states, _ = runtimes.find_runtimes().list_states()
    state = states[container]
    assert state.pid == lab.init("web").pid
    assert state.annotations == {**(state.annotations or {}), "a": "b"}
    lab.podman("rm", "-f", "-t", "0", "web")
    assert container not in runtimes.find_runtimes().list_states()[0]


@needs_crun
@pytest.mark.parametrize(("capabilities", "answers"), [("-all", False), ("-all,+kill", True)])
def test_what_crun_needs_of_its_caller(
    unhooked: Unhooked, tmp_path: Path, capabilities: str, answers: bool
) -> None:
    """packaging/systemd leaves it CAP_KILL: crun looks by kill(pid,
    0) whether a container of another user lives.
    """
    unhooked.start("web", "crun", user=1000)
    program = tmp_path / "crun"
    drop = [
        "setpriv",
        "--no-new-privs",
        f"--inh-caps={capabilities}",
        f"--bounding-set={capabilities}",
    ]
    write_script(program, [*CRUN[:-1], *drop, "crun"])
    states, complaints = Runtimes([str(unhooked.root)], [str(program)]).list_states()
    assert [*states] == ["web"] * answers
    assert bool(complaints) is not answers
