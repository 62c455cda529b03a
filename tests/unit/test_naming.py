# SPDX-License-Identifier: Apache-2.0
"""Names that a record lost come back from the kubelet, and are looked for only then."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path
from typing import Any

import pytest

from hook.base.models import Options
from hook.node import config, runtimes
from hook.reconcile import act as acting
from hook.reconcile import run as reconcile
from hook.stages.create import create_runtime
from hook.stages.identity import Container
from tests.unit.test_create import UID, MachineOnDisk, machine
from tests.unit.test_rundir import clock, directories

__all__ = ["clock", "directories", "machine"]  # fixtures

IDS = ["5f3c" * 16, "a" * 64]
SAID = {"io.container.manager": "cri-o", "io.kubernetes.pod.uid": UID}
NAMES = {"io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.name": "web"}


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is read instead of /var/log: the logs of the tests' pod."""
    real = config._list_if_there
    monkeypatch.setattr(config, "_list_if_there", lambda path: real(path.replace("/var/log", str(tmp_path / "log"), 1)))
    monkeypatch.setattr(runtimes, "_ROOTS", ())
    (tmp_path / "log/pods" / f"shop_web_{UID}").mkdir(parents=True)
    (tmp_path / "log/containers").mkdir()
    for name, container in zip(("app", "side-car"), IDS):
        (tmp_path / "log/containers" / f"web_shop_{name}-{container}.log").touch()
    return tmp_path / "log"


def start(machine: MachineOnDisk, *containers: str, said: dict[str, str] | None = None) -> None:
    for pid, container in enumerate(containers, 7):
        if not (machine.proc / str(pid)).exists():
            machine.spawn(pid)
        (machine.proc / str(pid) / "cgroup").write_text(f"0::/kubepods/pod{UID}/crio-{container}\n")
        create_runtime(machine.node(), Container(container, pid, "/nowhere", SAID if said is None else said))


def verbs(machine: MachineOnDisk) -> list[str]:
    done = reconcile.repair(Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run)))
    assert not [it for it in done.outcomes if it.problem is not None]
    return [it.action.verb for it in done.outcomes]


def named(machine: MachineOnDisk) -> tuple[str | None, str | None, dict[str, str | None]]:
    state = machine.node().run.read_key(UID)
    assert state is not None
    return state.pod_namespace, state.pod_name, {it: member.name for it, member in state.members.items()}


WHOLE = ("shop", "web", dict(zip(IDS, ("app", "side-car"))))


@pytest.mark.usefixtures("logs")
def test_names_come_back_in_the_run_that_rebuilds_a_record(machine: MachineOnDisk) -> None:
    start(machine, *IDS)
    for part in ("groups", "members"):
        shutil.rmtree(machine.run / part)
    found = verbs(machine)
    assert (found[0], found.count("name")) == ("rebuild", 1)
    assert named(machine) == WHOLE
    assert verbs(machine) == []


@pytest.mark.usefixtures("logs")
def test_plan_of_naming_says_the_names(machine: MachineOnDisk) -> None:
    start(machine, IDS[0])
    (planned,) = reconcile.plan_repairs(Options(resctrl_root=str(machine.resctrl), run_dir=str(machine.run))).outcomes
    assert str(planned.action) == f"name shop/web ({UID}): the kubelet's logs name it"
    assert (planned.action.namespace, planned.action.pod) == ("shop", "web")
    assert named(machine) == (None, None, {IDS[0]: None})


@pytest.mark.usefixtures("logs")
def test_names_on_record_stay(machine: MachineOnDisk) -> None:
    said = {
        "io.kubernetes.pod.name": "another",
        "io.kubernetes.pod.namespace": "ns",
        "io.kubernetes.container.name": "x",
    }
    start(machine, IDS[0], said={**SAID, **said})
    assert verbs(machine) == []
    start(machine, *IDS, said={**SAID, **said, "io.kubernetes.container.name": ""})
    assert verbs(machine) == ["name"]
    assert named(machine) == ("ns", "another", {IDS[0]: "x", IDS[1]: "side-car"})


def test_what_the_kubelet_does_not_know_is_no_action(machine: MachineOnDisk, logs: Path) -> None:
    shutil.rmtree(logs)
    start(machine, *IDS)
    assert verbs(machine) == []


def test_each_name_is_taken_as_far_as_it_is_known(machine: MachineOnDisk, logs: Path) -> None:
    (logs / "containers" / f"web_shop_side-car-{IDS[1]}.log").unlink()
    start(machine, *IDS)
    assert verbs(machine) == ["name"]
    assert named(machine) == ("shop", "web", {IDS[0]: "app", IDS[1]: None})
    assert verbs(machine) == []


def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is listed of the kubelet's from now on."""
    found: list[str] = []
    real = config._list_if_there

    def note(directory: str) -> list[str]:
        found.append(directory)
        return real(directory)

    monkeypatch.setattr(config, "_list_if_there", note)
    return found


@pytest.mark.usefixtures("logs")
def test_logs_are_listed_only_for_a_live_pod_without_names(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = listed(monkeypatch)
    machine.spawn(20, uid=None)
    create_runtime(machine.node(), Container("alone", 20, "/nowhere", {"io.container.manager": "libpod"}))
    start(machine, IDS[0], said={**SAID, **NAMES, "io.kubernetes.container.name": "app"})
    assert (verbs(machine), found) == ([], [])
    start(machine, *IDS, said={**SAID, **NAMES})
    assert verbs(machine) == ["name"]
    assert found == ["/var/log/containers"]


@pytest.mark.usefixtures("logs")
def test_a_key_that_a_hook_has_locked_is_named_by_the_next_run(machine: MachineOnDisk) -> None:
    start(machine, *IDS)
    with (machine.run / "locks" / UID).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert verbs(machine) == []
    assert verbs(machine) == ["name"]


@pytest.mark.usefixtures("logs")
def test_naming_looks_at_the_record_again_under_the_lock(
    machine: MachineOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook named the pod, and brought another container, since the survey."""
    start(machine, IDS[0])
    real = acting.act

    def apply(*given: Any) -> object:  # noqa: ANN401
        monkeypatch.setattr("hook.reconcile.run.act", real)
        said = {"io.kubernetes.pod.name": "hooked", "io.kubernetes.pod.namespace": "ns"}
        start(machine, *IDS, said={**SAID, **said, "io.kubernetes.container.name": "new"})
        return real(*given)

    monkeypatch.setattr("hook.reconcile.run.act", apply)
    assert verbs(machine) == []
    assert named(machine) == ("ns", "hooked", {IDS[0]: "new", IDS[1]: "new"})
