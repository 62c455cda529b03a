# SPDX-License-Identifier: Apache-2.0
"""Containers that run and were never hooked: the JSON is in place,
and no runtime had the hook called.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.resctrlfs import Mounted
from tests.support import machine
from tests.support.cgroups import cgroup
from tests.support.hook import UID, Hook, created, task
from tests.support.machine import HOOKS_DIR, ScratchMachine

# Answers `--root ROOT state ID`, and notes who was asked about
RUNC = """\
[ "$3" = state ] || exit 1
echo "$4" >>/run/asked
exec cat "$2/$4/answer"
"""
KUBELET = {
    "io.kubernetes.cri.sandbox-uid": UID,
    "io.kubernetes.cri.sandbox-namespace": "shop",
    "io.kubernetes.cri.sandbox-name": "web-0",
    "io.kubernetes.cri.container-name": "app",
    "io.kubernetes.cri.container-type": "container",
}
SANDBOX = {**KUBELET, "io.kubernetes.cri.container-type": "sandbox"}
LIBPOD = {"io.container.manager": "libpod"}


class NodeWithRunc:
    """A machine with an installation for both targets and resctrl.

    Its containers are sleeping processes.
    """

    def __init__(self, directory: Path, resctrl: Mounted, stack: ExitStack) -> None:
        self._stack = stack
        self.machine = ScratchMachine(directory / "machine")
        self.options = [f"--resctrl-root={resctrl.root}", f"--run-dir={directory / 'records'}"]
        self.hook = Hook(resctrl.root, directory / "records")
        self.machine.put_program("/usr/local/sbin/runc", RUNC)
        self.install()
        self.number = 0

    def install(self, *options: str) -> None:
        done = self.machine.run("install", "--for=both", *self.options, *options)
        assert (done.returncode, done.stderr) == (0, "")

    def runs(
        self,
        annotations: dict[str, str],
        status: str = "running",
        parent: str = "",
        **state: object,
    ) -> str:
        """A container that runs, without having been hooked; returns its ID."""
        self.number += 1
        # Of this node alone: the processes of other tests are seen as well
        container = (
            f"{self.number:04x}{hashlib.sha256(bytes(self.machine.directory)).hexdigest()[:60]}"
        )
        process = self._stack.enter_context(task())
        mark = (
            "libpod-"
            if annotations is LIBPOD
            else "cri-containerd-"
            if KUBELET.keys() <= annotations.keys()
            else ""
        )
        its_cgroup = self._stack.enter_context(
            cgroup(f"/{self.machine.directory.parent.name}{parent}/{mark}{container}")
        )
        its_cgroup.add(process.pid)
        place = self.machine.path(f"/run/runc/{container}")
        place.mkdir(parents=True)
        (place / "state.json").touch()
        config = {
            "annotations": annotations,
            "process": {"args": ["x"]},
            "linux": {"cgroupsPath": its_cgroup.path},
        }
        (place / "config.json").write_text(json.dumps(config))
        whole = {
            "ociVersion": "1.0.2",
            "id": container,
            "pid": process.pid,
            "status": status,
            "bundle": f"/run/runc/{container}",
            "annotations": annotations,
            **state,
        }
        (place / "answer").write_text(json.dumps(whole))
        self.pid, self.cgroup = process.pid, its_cgroup
        return container

    def ask(self, *words: str) -> Any:  # noqa: ANN401  JSON
        done = self.machine.run(*words, "--json", *self.options)
        assert done.stderr == ""
        return json.loads(done.stdout)

    def reconcile(self) -> list[str]:
        """Let it look; returns what it left."""
        return list(self.ask("reconcile")["left"])

    def unhooked(self) -> Any:  # noqa: ANN401  JSON
        return self.ask("list")["unhooked"]

    def ids(self) -> list[str]:
        return [container["container"] for container in self.unhooked()["containers"]]

    def findings(self) -> list[dict[str, str]]:
        return [
            finding
            for finding in self.ask("doctor")["findings"]
            if finding["subject"] == "unhooked"
        ]

    def asked(self) -> list[str]:
        """About whom the runtime was asked since the last time."""
        path = self.machine.path("/run/asked")
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return sorted(lines)


@pytest.fixture
def node(tmp_path: Path, resctrl: Mounted) -> Iterator[NodeWithRunc]:
    if reason := machine.missing_with_model():
        pytest.skip(reason)
    with ExitStack() as stack:
        yield NodeWithRunc(tmp_path, resctrl, stack)


def test_a_container_whose_state_has_its_head_too_late_is_found_and_adopted(
    node: NodeWithRunc,
) -> None:
    """Its record names neither it nor its process, so it cannot be tried again."""
    container = node.runs(KUBELET, parent=f"/pod{UID}")
    state = {
        "ociVersion": "1.0",
        "id": container,
        "status": "creating",
        "pid": node.pid,
        "bundle": "/",
    }
    node.hook(json.dumps({"annotations": {"x": "y" * (5 << 20)}, **state}).encode())
    assert [name[:4] for name in node.hook.reasons()] == ["bad-"]
    assert len(node.reconcile()) == 1
    assert node.ids() == [container]
    answer = node.ask("reconcile", "--adopt")
    (action,) = [done for done in answer["actions"] if done["container"] == container]
    assert (action["action"], action["problem"]) == ("adopt", None)
    assert not [line for line in answer["left"] if "never got the hook" in line], (
        "it has a record by now"
    )
    assert json.loads((node.hook.run_dir / "unhooked.json").read_text())["containers"] == {}
    assert node.hook.tasks(f"oci-{UID}") == {node.pid}
    assert node.reconcile() == []
    assert node.ids() == []


@pytest.mark.parametrize("mark", ["", "crio-"])
def test_a_container_does_not_hide_in_a_cgroup_called_like_another_one(
    node: NodeWithRunc, mark: str
) -> None:
    """It has a writable cgroup, and its process has gone to one below,
    which has the ID of a hooked container.
    """
    container, its_cgroup = node.runs(KUBELET), node.cgroup
    with task() as init, cgroup(f"{its_cgroup.path}/{mark}{'a' * 64}") as below:
        node.hook(created("a" * 64, init.pid))
        below.add(node.pid)
        node.reconcile()
        assert node.ids() == [container]
        its_cgroup.add(node.pid)


def test_a_container_below_the_cgroup_of_a_hooked_one_was_never_hooked_and_is_adopted_as_itself(
    node: NodeWithRunc,
) -> None:
    """It was moved into the group of the hooked one."""
    outer, init = node.runs(LIBPOD), node.pid
    node.hook(created(outer, init))
    inner = node.runs(LIBPOD, parent=f"/libpod-{outer}")
    said = node.reconcile()
    assert (node.ids(), node.hook.tasks(f"oci-{outer}")) == ([inner], {init})
    assert [f"{node.cgroup.path}" in said[0], "never got the hook" in said[1], len(said)] == [
        True,
        True,
        2,
    ]
    node.ask("reconcile", "--adopt")
    assert node.reconcile() == []
    assert (node.hook.tasks(f"oci-{outer}"), node.hook.tasks(f"oci-{inner}")) == (
        {init},
        {node.pid},
    )


def test_a_container_that_was_never_hooked_is_counted_named_and_a_failure_of_doctor(
    node: NodeWithRunc,
) -> None:
    """The hook was never called: metrics showed 0 unmonitored, `list` was empty,
    and `doctor` exited with 0.
    """
    container = node.runs(KUBELET)
    node.hook.run_dir.mkdir(exist_ok=True)
    assert (node.unhooked(), node.findings()) == (None, []), (
        "before reconcile has looked nothing is claimed"
    )
    assert "unhooked_containers" not in node.machine.run("metrics", *node.options).stdout
    name = f"shop/web-0 app ({container[:12]})"
    assert node.reconcile() == [f"1 running container never got the hook: {name}"]
    unhooked = node.unhooked()
    names = {"namespace": "shop", "pod": "web-0", "name": "app", "uid": None}
    assert unhooked["containers"] == [{"container": container, **names}]
    assert unhooked["unchecked"] == 0
    (finding,) = node.findings()
    assert finding["level"] == "fail"
    assert name in finding["found"]
    assert unhooked["since"] in finding["found"]
    assert "--adopt" in finding["remedy"]
    lines = node.machine.run("list", *node.options).stdout.splitlines()
    head = f"never hooked, as of {unhooked['since']} (see list unmonitored)"
    assert lines[-1] == f"{head}: 1 container: {name}"
    metrics = node.machine.run("metrics", *node.options).stdout.splitlines()
    assert "resctrl_mon_unhooked_containers 1" in metrics
    assert "resctrl_mon_unchecked_containers 0" in metrics
    assert (node.hook.run_dir / "unhooked.json").stat().st_mode & 0o777 == 0o600


def test_sandboxes_filtered_containers_and_those_of_other_tools_do_not_count(
    node: NodeWithRunc,
) -> None:
    node.install("--namespace=shop", "--monitor=opt-out")
    wanted = node.runs(KUBELET)
    node.runs(SANDBOX)
    node.runs({**KUBELET, "io.kubernetes.cri.sandbox-namespace": "kitchen"})
    node.runs({**KUBELET, "monitor.resctrl-mon.io": "false"})
    node.runs({"com.docker": "x"})
    unknown = node.runs(KUBELET)
    # Of a tool whose root directory is elsewhere.
    (node.machine.path(f"/run/runc/{unknown}/state.json")).unlink()
    node.reconcile()
    assert node.ids() == [wanted]
    assert node.unhooked()["unchecked"] == 0
    assert unknown not in node.asked()


def test_a_hooked_container_and_one_on_record_as_unmonitored_are_not_asked_about(
    node: NodeWithRunc,
) -> None:
    hooked = node.runs(KUBELET)
    node.hook(created(hooked, node.pid, pod_uid=UID))
    failed = node.runs(KUBELET)
    node.hook(created(failed, node.pid, pod_uid="no-uid"))
    assert node.hook.reasons() == {failed: "bad_key"}
    node.reconcile()
    assert node.ids() == []
    assert node.asked() == []


def test_each_container_is_asked_about_once_in_its_life(node: NodeWithRunc) -> None:
    """Only what a runtime has not answered yet costs another question."""
    mine = [node.runs(KUBELET), node.runs(SANDBOX)]
    node.reconcile()
    assert node.asked() == mine
    node.reconcile()
    assert node.asked() == []
    node.ask("reconcile", "--adopt")
    assert node.asked() == mine[:1], "a sandbox stays one"
    new = node.runs(KUBELET)
    node.reconcile()
    assert node.asked() == [new]
    assert node.ids() == [new]


def test_a_run_that_adopts_asks_about_each_container_once(node: NodeWithRunc) -> None:
    """It asked again about what it had not brought in, for the report."""
    node.install("--namespace=shop")
    kitchen = {**KUBELET, "io.kubernetes.cri.sandbox-namespace": "kitchen"}
    mine = [node.runs(KUBELET), node.runs(SANDBOX), node.runs(kitchen)]
    node.ask("reconcile", "--adopt", "--namespace=shop")
    assert node.asked() == mine
    node.reconcile()
    assert (node.ids(), node.asked()) == ([], [])


def test_what_adopt_learnt_in_a_further_root_directory_is_not_unknown(node: NodeWithRunc) -> None:
    """There is no other root directory, and adopt leaves it out."""
    container = node.runs(KUBELET)
    answer = node.machine.path(f"/run/runc/{container}/answer")
    answer.write_text(answer.read_text().replace("/run/runc/", "/run/further/"))
    node.machine.path("/run/runc").rename(node.machine.path("/run/further"))
    node.ask("reconcile", "--adopt", "--runtime-root=/run/further", "--namespace=kitchen")
    assert (node.ids(), node.unhooked()["unchecked"]) == ([container], 0)


def test_a_change_of_the_filters_has_all_asked_about_again(node: NodeWithRunc) -> None:
    container = node.runs(KUBELET)
    node.install("--namespace=kitchen")
    node.reconcile()
    assert node.ids() == []
    node.install()
    node.reconcile()
    assert node.ids() == [container]


def test_a_container_that_is_adopted_or_gone_does_not_count_any_more(node: NodeWithRunc) -> None:
    adopted, gone = node.runs(KUBELET), node.runs(LIBPOD)
    pid = node.pid
    node.reconcile()
    assert node.ids() == [adopted, gone]
    node.hook(created(adopted, pid, pod_uid=UID))
    assert node.ids() == [gone]
    node._stack.close()
    node.reconcile()
    assert node.ids() == []
    assert [finding["level"] for finding in node.findings()] == []


def test_a_runtime_that_does_not_answer_leaves_containers_unchecked_until_it_does(
    node: NodeWithRunc,
) -> None:
    """A container that is only created does not count: its createRuntime hooks may be at work."""
    container = node.runs(KUBELET)
    answer = node.machine.path(f"/run/runc/{container}/answer")
    text = answer.read_text()
    answer.write_text("")
    node.reconcile()
    assert node.unhooked() | {"since": ""} == {"since": "", "unchecked": 1, "containers": []}
    assert [finding["level"] for finding in node.findings()] == ["warning"]
    for status, expected in (("created", []), ("running", [container])):
        answer.write_text(text.replace('"running"', f'"{status}"'))
        node.reconcile()
        assert node.ids() == expected


def test_where_no_hooks_d_file_of_ours_can_be_seen_nothing_is_claimed(node: NodeWithRunc) -> None:
    """Not even 0: reconcile may run in a container where hooks.d is not mounted,
    or the hook is uninstalled.
    """
    node.runs(KUBELET)
    node.reconcile()
    for path in node.machine.path(HOOKS_DIR).iterdir():
        path.unlink()
    assert node.reconcile() == []
    assert node.unhooked() is None
    assert node.findings() == []
