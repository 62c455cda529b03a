# SPDX-License-Identifier: Apache-2.0
"""Containers that no hook ever saw, found by what the real runc and crun tell of them."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hook.models import State
from hook.node import runtimes
from hook.node.runtimes import Runtimes
from tests.podman.node import PodmanNode
from tests.support.cgroups import path_of
from tests.support.containers import CRUN, Lab, bundle_config, missing, task
from tests.support.waiting import wait

COMMAND = ["/bin/sleep", "100000"]
ANNOTATIONS = {"io.kubernetes.pod.uid": "0f9c3a52-6a0e-4a9f-9d43-5f5c1d3c7b11"}
RUNC = "runc"
needs_crun = pytest.mark.skipif(shutil.which("crun", path="/usr/bin:/bin") is None, reason="no crun")
each_runtime = pytest.mark.parametrize("name", [RUNC, pytest.param("crun", marks=needs_crun)])


def write_script(path: Path, command: Sequence[str]) -> None:
    """A program that is this command with further words."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)


class Unhooked:
    """Containers that runtimes run by themselves, without hooks, in one root directory that they share."""

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
        self, container: str, name: str = RUNC, annotations: dict[str, str] | None = None, user: int = 0
    ) -> None:
        bundle = self._lab.base / f"bundle-{container}"
        bundle.mkdir()
        annotations = ANNOTATIONS if annotations is None else annotations
        config = bundle_config(self._lab.rootfs, COMMAND, path_of(self._lab.cgroups.path, container, annotations))
        config["process"]["user"] = {"uid": user, "gid": user}
        config["annotations"] = annotations
        config["linux"]["resources"] = {"devices": [{"allow": True, "access": "rwm"}]}
        (bundle / "config.json").write_text(json.dumps(config))
        self.do(name, "create", f"--bundle={bundle}", container)

    def start(self, container: str, name: str = RUNC, **more: Any) -> None:  # noqa: ANN401  create's
        self.create(container, name, **more)
        self.do(name, "start", container)

    def do(self, name: str, *words: str) -> None:
        """Have it done by a runtime. What it prints goes to a file: a container that is created keeps that open."""
        log = self._lab.base / f"log-{threading.get_ident()}"
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
        found, complaints = asked.list_states()
        assert len({it.id for it in found}) == len(found)
        return {it.id: it for it in found}, complaints


@pytest.fixture
def lab() -> Iterator[Lab]:
    reason = missing(model=False)
    if reason:
        pytest.skip(reason)
    with closing(Lab()) as lab:
        (lab.hooks_dir / "10-resctrl-mon-hook.json").unlink()
        yield lab


@pytest.fixture
def unhooked(lab: Lab) -> Unhooked:
    return Unhooked(lab)


@each_runtime
def test_a_container_that_runs(unhooked: Unhooked, name: str) -> None:
    unhooked.start("web", name, user=1000)
    found, complaints = unhooked.states(name)
    assert complaints == []
    state = found["web"]
    assert state.status == "running"
    assert state.annotations == ANNOTATIONS
    assert state.bundle.endswith("/bundle-web")
    wait(lambda: task(state.pid or 0).cmdline == COMMAND)  # `runc start` does not wait for the exec


@each_runtime
def test_every_status(unhooked: Unhooked, name: str) -> None:
    unhooked.create("created", name)
    unhooked.start("running", name, annotations={})
    unhooked.start("paused", name)
    unhooked.do(name, "pause", "paused")
    unhooked.start("stopped", name)
    unhooked.do(name, "kill", "stopped", "KILL")
    unhooked.start("pause", name, annotations={**ANNOTATIONS, "io.kubernetes.cri-o.ContainerType": "sandbox"})
    unhooked.start("gone", name)
    unhooked.do(name, "delete", "--force", "gone")
    try:
        found, complaints = unhooked.states(name)
    finally:
        unhooked.do(name, "resume", "paused")  # so that the lab can end it
    assert complaints == []
    assert {container: state.status for container, state in found.items()} == {
        status: status for status in ("created", "running", "paused")
    }


@each_runtime
def test_no_container_at_all(unhooked: Unhooked, name: str) -> None:
    assert unhooked.states(name) == ({}, [])
    (unhooked.root / "leftover").mkdir()
    assert unhooked.states(name) == ({}, [])


@needs_crun
@pytest.mark.parametrize("order", [(RUNC, "crun"), ("crun", RUNC)], ids=" then ".join)
def test_a_root_that_both_share(unhooked: Unhooked, order: tuple[str, str]) -> None:
    """As containerd's shim has it for its runtime handlers."""
    unhooked.start("by-runc", RUNC)
    unhooked.start("by-crun", "crun")
    found, complaints = unhooked.states(*order)
    assert set(found) == {"by-runc", "by-crun"}
    assert complaints == []


@needs_crun
def test_containers_of_a_runtime_that_is_not_asked_are_complained_of(unhooked: Unhooked) -> None:
    unhooked.start("by-runc", RUNC)
    unhooked.start("by-crun", "crun")
    found, (line,) = unhooked.states(RUNC)
    assert set(found) == {"by-runc"}
    assert " state by-crun: exit status 1: " in line
    found, (line,) = unhooked.states("crun")
    assert set(found) == {"by-crun"}
    assert " state by-runc: exit status 1: " in line


def test_a_container_of_podman_is_found_where_podman_has_it(lab: Lab) -> None:
    """By default, and beside whatever else runs on this machine."""
    lab.run("web", "--annotation=a=b")
    container = lab.container_id("web")
    found, _ = runtimes.find_runtimes().list_states()
    (state,) = [it for it in found if it.id == container]
    assert state.pid == lab.init("web").pid
    assert state.annotations == {**(state.annotations or {}), "a": "b"}
    lab.podman("rm", "-f", "-t", "0", "web")
    assert container not in [it.id for it in runtimes.find_runtimes().list_states()[0]]


@needs_crun
@pytest.mark.parametrize(("capabilities", "told"), [("-all", False), ("-all,+kill", True)])
def test_what_crun_needs_of_its_caller(unhooked: Unhooked, tmp_path: Path, capabilities: str, told: bool) -> None:
    """packaging/systemd leaves it CAP_KILL: crun looks by kill(pid, 0) whether a container of another user lives."""
    unhooked.start("web", "crun", user=1000)
    program = tmp_path / "crun"
    drop = ["setpriv", "--no-new-privs", f"--inh-caps={capabilities}", f"--bounding-set={capabilities}"]
    write_script(program, [*CRUN[:-1], *drop, "crun"])
    found, complaints = Runtimes([str(unhooked.root)], [str(program)]).list_states()
    assert [it.id for it in found] == (["web"] if told else [])
    assert bool(complaints) is not told


def test_a_live_node_with_50_containers_is_brought_in_by_one_command(unhooked: Unhooked, node: PodmanNode) -> None:
    """Ten of them have a pod of their own, forty share one; each has a process that exec brought in, too."""
    shared = "11111111-6a0e-4a9f-9d43-5f5c1d3c7b11"

    def start(number: int) -> None:
        uid = f"{number:08d}-6a0e-4a9f-9d43-5f5c1d3c7b11" if number < 10 else shared
        unhooked.start(f"c{number}", annotations={"io.kubernetes.pod.uid": uid})
        unhooked.do(RUNC, "exec", "--detach", f"c{number}", *COMMAND)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(start, range(50)))
    command = [str(node.lab.hook), "reconcile", *node.directories, "--adopt", f"--runtime-root={unhooked.root}"]
    started = {f"c{number}" for number in range(50)}
    # For each task that it moves the model looks at each of the machine's: with 10,000 of them, for a minute in all
    ended = "at first"
    while ended:  # by its limit of 45 s, which a slow machine may take more than once
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, timeout=1200)
        said = json.loads(done.stdout)
        assert [it for it in said["actions"] if it["problem"] and it["container"] in started] == []
        ended = said["ended"]
    ours = {f"oci-{uid}" for uid in (shared, *(f"{number:08d}-6a0e-4a9f-9d43-5f5c1d3c7b11" for number in range(10)))}
    groups = node.groups()
    assert ours <= set(groups)
    assert {name: len(groups[name]) for name in ours} == {name: 80 if shared in name else 2 for name in ours}
    again = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=1200)
    assert [it for it in json.loads(again.stdout)["actions"] if f"oci-{it['key']}" in ours] == []
    with ThreadPoolExecutor(8) as pool:  # the lab ends one after another
        list(pool.map(lambda number: unhooked.do(RUNC, "delete", "--force", f"c{number}"), range(50)))
