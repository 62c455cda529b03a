# SPDX-License-Identifier: Apache-2.0
"""The names that Podman gives: known from the start,
and known still when Podman has forgotten them.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.podman.conftest import PodmanNode, list_actions
from tests.support import machine
from tests.support.containers import CRUN, DEADLINE
from tests.support.machine import ScratchMachine

IMAGE = "localhost/wait"
UNIT = Path(__file__).resolve().parents[2] / "packaging/systemd/resctrl-mon-hook-reconcile.service"


def ask(node: PodmanNode, *words: str) -> str:
    """What a command prints."""
    command = [str(node.lab.hook), words[0], *node.directories, *words[1:]]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=DEADLINE
    ).stdout


def names(node: PodmanNode) -> list[tuple[str, str | None, str | None]]:
    """State, pod and name of each key."""
    keys = json.loads(ask(node, "list", "--json"))["keys"]
    return sorted((key["state"], key["pod"], key["name"]) for key in keys)


def record(node: PodmanNode, key: str) -> Any:  # noqa: ANN401  JSON
    return json.loads((node.run_dir / "groups" / f"{key}.json").read_text())


def test_a_name_is_known_from_the_start_and_outlives_the_container(node: PodmanNode) -> None:
    """Where it is shown: tests/unit/test_screens.py."""
    gate = node.lab.run("job-17", "--rm")
    container = node.lab.container_id("job-17")
    assert record(node, container)["members"][container]["name"] == "job-17"
    assert names(node) == [("live", None, "job-17")]
    labels = f'namespace="",pod="",container="job-17",key="{container}"'
    assert f"resctrl_mon_core_energy_joules_total{{{labels}" in ask(node, "metrics")
    gate.open()
    node.lab.watch.wait("poststop", container)
    assert names(node) == [("completed", None, "job-17")]
    assert f"resctrl_mon_core_energy_joules_total{{{labels}" in ask(node, "metrics"), (
        "the same series"
    )


@pytest.mark.skipif(shutil.which("crun", path="/usr/bin:/bin") is None, reason="no crun")
def test_a_name_is_known_under_crun(node: PodmanNode, tmp_path: Path) -> None:
    """By conmon as Podman starts it: what Podman's own containers ask of crun takes
    rights that a small VM lacks.
    """
    lab, conmon = (
        node.lab,
        shutil.which("conmon", path="/usr/bin:/usr/libexec/podman:/usr/lib/podman"),
    )
    config = lab.runc_config("job", ["/bin/true"], {"io.container.manager": "libpod"})
    config["linux"]["cgroupsPath"] = f"{lab.cgroups.path}/libpod-job"
    (tmp_path / "config.json").write_text(json.dumps(config))
    crun, root = shutil.which("crun", path="/usr/bin:/bin"), f"--root={tmp_path}/crun"
    words = [
        "--api-version=1",
        "-c",
        "job",
        "-u",
        "job",
        "-r",
        crun,
        "-b",
        str(tmp_path),
        "-p",
        f"{tmp_path}/pidfile",
    ]
    words += [
        "-n",
        "job-17",
        "--exit-dir",
        str(tmp_path),
        "--full-attach",
        "-l",
        f"k8s-file:{tmp_path}/log",
    ]
    for command, stage in (
        ([conmon, *words, "--runtime-arg", root], "createRuntime"),
        ([crun, root, "delete", "--force", "job"], "poststop"),
    ):
        subprocess.run(
            [*CRUN[:-1], *map(str, command)], check=True, capture_output=True, timeout=DEADLINE
        )
        lab.watch.wait(stage, "job")
    assert names(node) == [("completed", None, "job-17")]


# --- Pods


def create_pod(node: PodmanNode, *options: str) -> str:
    """The ID of a pod."""
    node.lab.import_image(IMAGE)
    words = [
        f"--cgroup-parent={node.lab.cgroups.path}",
        "--name=stack",
        "--network=none",
        f"--infra-image={IMAGE}",
    ]
    return node.lab.podman("pod", "create", *words, *options).stdout.strip()


def with_storage(node: PodmanNode, directory: Path) -> ScratchMachine:
    """A machine whose Podman is the lab's."""
    if reason := machine.missing():
        pytest.skip(reason)
    scratch = ScratchMachine(directory / "scratch", has_run=False)
    path = scratch.path("/etc/containers/storage.conf")
    path.parent.mkdir(parents=True)
    places = "".join(
        f'{name} = "{node.lab.base}/{part}"\n'
        for name, part in (("graphroot", "root"), ("runroot", "run"))
    )
    path.write_text(f'[storage]\ndriver = "vfs"\n{places}')
    _, *options = node.lab.podman_command()
    environment = shlex.join(f"{name}={value}" for name, value in node.lab.environment.items())
    podman = shutil.which("podman") or ""
    scratch.put_program(
        "/usr/local/sbin/podman", f'exec env {environment} {podman} {shlex.join(options)} "$@"'
    )
    return scratch


def start_unit(scratch: ScratchMachine, node: PodmanNode) -> None:
    """Run the commands of the timer's unit, with the capabilities that it has."""
    (before,) = re.findall(
        r"^ExecStartPre=-\+(.*?[^\\])$", UNIT.read_text(), re.DOTALL | re.MULTILINE
    )
    scratch.run(*shlex.split(before.replace("/run/resctrl-mon-hook", str(node.run_dir))))
    (bounds,) = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.MULTILINE)
    kept = ",".join(name.replace("CAP_", "+").lower() for name in bounds.split())
    done = scratch.run(
        "reconcile", *node.directories, before=("setpriv", f"--bounding-set=-all,{kept}")
    )
    assert done.returncode == 0, done.stderr


def test_a_pod_has_podmans_name_and_its_infra_container_takes_no_rmid(
    node: PodmanNode, tmp_path: Path
) -> None:
    scratch = with_storage(node, tmp_path)
    pod = create_pod(node)
    gate = node.lab.run("web", pod="stack")
    container, infra = node.lab.container_id("web"), node.lab.container_id(f"{pod[:12]}-infra")
    assert node.groups() == {f"oci-{container}": [node.lab.init("web").pid]}
    assert names(node) == [("live", pod[:12], "web")], "the hook knows its digits"
    labels = f'namespace="",pod="{pod[:12]}",container="web",key="{container}"'
    assert f"resctrl_mon_core_energy_joules_total{{{labels}," in ask(node, "metrics")
    # The timer's reconcile may not run Podman: the unit does, before the next one.
    # The name outlives the pod.
    start_unit(scratch, node)
    assert record(node, container)["pod_name"] == pod[:12]
    start_unit(scratch, node)
    assert record(node, container)["pod_name"] == "stack"
    # Reconcile with all rights asks for itself; it adopts no infra container.
    path = node.run_dir / "groups" / f"{container}.json"
    path.write_text(path.read_text().replace('"stack"', f'"{pod[:12]}"'))
    adopted = scratch.run("reconcile", *node.directories, "--json", "--adopt")
    actions = list_actions(adopted, {container, infra})
    of_pod = [
        action for action in actions if action["key"] == container or action["container"] == infra
    ]
    assert [(action["action"], action["problem"]) for action in of_pod] == [("name", None)]
    assert record(node, container)["pod_name"] == "stack"
    assert f"resctrl_mon_core_energy_joules_total{{{labels}," in ask(node, "metrics"), (
        "the same series"
    )
    assert f'resctrl_mon_key_info{{{labels},name="stack/web"}} 1' in ask(node, "metrics")
    assert infra not in json.dumps(node.left())
    findings = json.loads(scratch.run("doctor", *node.directories, "--json").stdout)["findings"]
    assert [finding for finding in findings if infra in finding["found"]] == [], (
        "nor does doctor miss it"
    )
    gate.open()
    node.lab.watch.wait("poststop", container)
    node.lab.remove_pod("stack")
    assert ("completed", "stack", "web") in names(node), (
        "beside containers of others, which --adopt has taken in"
    )
    assert json.loads(ask(node, "show", "--json", "stack/web"))["name"] == "web"


def test_names_come_back_after_the_loss_of_all_records(node: PodmanNode, tmp_path: Path) -> None:
    scratch = with_storage(node, tmp_path)
    create_pod(node)
    gates = [node.lab.run("web", pod="stack"), node.lab.run("lone")]
    containers = {
        node.lab.container_id(name): ("stack" if name == "web" else None, name)
        for name in ("web", "lone")
    }
    for loses_groups in (False, True):
        shutil.rmtree(node.run_dir)
        if loses_groups:
            for group in node.groups():
                (node.resctrl.root / "mon_groups" / group).rmdir()
        for _ in range(2):
            list_actions(
                scratch.run("reconcile", *node.directories, "--json", "--adopt"), containers
            )
        records = {name: record(node, name) for name in containers}
        assert {
            name: (one["pod_name"], one["members"][name]["name"]) for name, one in records.items()
        } == containers
    for gate, container in zip(gates, containers):
        gate.open()
        node.lab.watch.wait("poststop", container)
