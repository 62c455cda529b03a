# SPDX-License-Identifier: Apache-2.0
"""Names that a record lost come back from the kubelet, and are looked for only then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook import life_turns, system
from hook.context import read_container
from hook.create import create_runtime
from hook.models import KeyState, Member
from hook.node import files, naming
from hook.reconcile import act as acting
from hook.reconcile.diagnose import Action
from hook.reconcile.move import Mover
from hook.reconcile.survey import Survey
from hook.store import RunDir
from tests.simulator.machine import RUN, SimulatedMachine
from tests.unit.simulated import ID, UID, Node

IDS = ["5f3c" * 16, "a" * 64]
ANNOTATIONS = {"io.container.manager": "cri-o", "io.kubernetes.pod.uid": UID}
NAMES = {"io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.name": "web"}


@pytest.fixture
def node(fs: FakeFilesystem) -> Iterator[Node]:
    """With the kubelet's logs of the tests' pod."""
    with SimulatedMachine(fs).installed(system) as machine:
        RunDir(RUN)
        fs.create_dir(f"/var/log/pods/shop_web_{UID}")
        for name, container in zip(("app", "side-car"), IDS):
            fs.create_file(f"/var/log/containers/web_shop_{name}-{container}.log")
        yield Node(machine)


def start(node: Node, *containers: str, annotations: dict[str, str] | None = None) -> None:
    for pid, container in enumerate(containers, 7):
        if pid not in node.kernel.tasks:
            node.spawn(pid, f"/kubepods/pod{UID}/crio-{container}")
        said = ANNOTATIONS if annotations is None else annotations
        create_runtime(node.context(), read_container(container, pid, "/nowhere", said))


def read_names(node: Node) -> tuple[str | None, str | None, dict[str, str | None]]:
    state = node.state()
    return (
        state.pod_namespace,
        state.pod_name,
        {container: member.name for container, member in state.members.items()},
    )


WHOLE = ("shop", "web", dict(zip(IDS, ("app", "side-car"))))


def test_names_come_back_in_the_run_that_rebuilds_a_record(node: Node) -> None:
    start(node, *IDS)
    for part in ("groups", "members"):
        node.remove(part)
    actions = node.verbs()
    assert (actions[0], actions.count("name")) == ("rebuild", 0), (
        "at once: its metrics have the labels of before"
    )
    assert read_names(node) == WHOLE
    assert node.state().metric_labels == {}
    assert node.verbs() == []


def test_labels_of_a_key_that_was_exported_without_names_stay_empty(node: Node) -> None:
    start(node, IDS[0])
    assert node.verbs() == ["name"]
    assert read_names(node)[:2] == ("shop", "web")
    assert node.state().metric_labels == {"namespace": "", "pod": "", "container": ""}


def test_names_on_record_stay(node: Node) -> None:
    annotations = {
        "io.kubernetes.pod.name": "another",
        "io.kubernetes.pod.namespace": "ns",
        "io.kubernetes.container.name": "x",
    }
    start(node, IDS[0], annotations={**ANNOTATIONS, **annotations})
    assert node.verbs() == []
    start(
        node, *IDS, annotations={**ANNOTATIONS, **annotations, "io.kubernetes.container.name": ""}
    )
    assert node.verbs() == ["name"]
    assert read_names(node) == ("ns", "another", {IDS[0]: "x", IDS[1]: "side-car"})


def test_each_name_is_taken_as_far_as_it_is_known(node: Node) -> None:
    node.machine.fs.remove_object(f"/var/log/containers/web_shop_side-car-{IDS[1]}.log")
    start(node, *IDS)
    assert node.verbs() == ["name"]
    assert read_names(node) == ("shop", "web", {IDS[0]: "app", IDS[1]: None})
    assert node.verbs() == []


def note_listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is listed of the kubelet's from now on."""
    lines: list[str] = []
    real = files.list_names

    def note(directory: str, *most: int) -> list[str]:
        lines.append(directory)
        return real(directory, *most)

    monkeypatch.setattr(files, "list_names", note)
    return lines


@pytest.mark.parametrize(
    ("kind", "container", "names"),
    [
        ("pod", IDS[1], ("shop", "web", "side-car")),
        ("pod", "c" * 64, ("shop", "web", None)),  # it has ended
        ("pod", "", ("shop", "web", None)),
        ("container", "", ("shop", "web", "app")),
        ("job", "", ("shop", "web", None)),
    ],
)
def test_only_a_key_that_is_one_container_has_a_containers_name(
    kind: Any,  # noqa: ANN401  a literal
    container: str,
    names: tuple[str | None, ...],
) -> None:
    members = {
        key: Member(pid=7, starttime=1, group="/g/mon_groups/x", name=name)
        for key, name in WHOLE[2].items()
    }
    state = KeyState(key="k", kind=kind, pod_namespace="shop", pod_name="web", members=members)
    assert life_turns.name_key(state, container) == names


def test_logs_are_listed_only_for_a_live_pod_without_names(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = note_listings(monkeypatch)
    node.start("alone", 20, uid=None)
    start(node, IDS[0], annotations={**ANNOTATIONS, **NAMES, "io.kubernetes.container.name": "app"})
    assert (node.verbs(), lines) == ([], [])
    start(node, *IDS, annotations={**ANNOTATIONS, **NAMES})
    assert node.verbs() == ["name"]
    assert lines == ["/var/log/containers"]


def test_naming_looks_at_the_record_again_under_the_lock(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook named the pod, and brought another container, since the survey."""
    start(node, IDS[0])
    real = acting.carry_out

    def carry_out(survey: Survey, action: Action) -> bool | Mover:
        monkeypatch.setattr("hook.reconcile.run.carry_out", real)
        annotations = {"io.kubernetes.pod.name": "hooked", "io.kubernetes.pod.namespace": "ns"}
        start(
            node,
            *IDS,
            annotations={**ANNOTATIONS, **annotations, "io.kubernetes.container.name": "new"},
        )
        return real(survey, action)

    monkeypatch.setattr("hook.reconcile.run.carry_out", carry_out)
    assert node.verbs() == []
    assert read_names(node) == ("ns", "hooked", {IDS[0]: "new", IDS[1]: "new"})


def test_reconcile_marks_that_podman_is_to_be_asked_and_its_dry_run_does_not(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = f"{RUN}/{naming.PODMAN_MARK}"
    assert node.verbs() == []
    assert not node.machine.fs.exists(mark)
    monkeypatch.setattr(naming.PodmanNames, "wants_pods", True)
    node.assert_settled()  # a dry run
    assert not node.machine.fs.exists(mark)
    assert node.verbs() == []
    assert node.machine.fs.exists(mark)


# --- What the kubelet's files say


def test_pods_are_named_by_the_kubelets_directories(fs: FakeFilesystem) -> None:
    assert naming.KubeletNames().pods == {}
    bare = UID.replace("-", "")
    known = (f"shop_web-0_{UID}", f"kube-system_etcd-node.example.com_{bare}")
    for entry, expected in zip(
        known, (("shop", "web-0"), ("kube-system", "etcd-node.example.com"))
    ):
        fs.create_dir(f"/var/log/pods/{entry}")
        assert naming.KubeletNames().pods == {UID: expected}
        fs.rmdir(f"/var/log/pods/{entry}")
    for entry in (
        f"shop_{UID}",
        f"_web_{UID}",
        f"shop__{UID}",
        f"shop_web_x_{UID}",
        "shop_web_0",
        f"{UID}.log",
    ):
        fs.create_dir(f"/var/log/pods/{entry}")
    assert naming.KubeletNames().pods == {}


def test_containers_are_named_by_the_kubelets_links(fs: FakeFilesystem) -> None:
    for entry, expected in (
        (f"web-0_shop_app-{ID}.log", {ID: "app"}),
        (f"web-0_shop_side-car-{ID}.log", {ID: "side-car"}),
        (f"web-0_shop_app-{ID}", {}),
        (f"web-0_shop_{ID}.log", {}),
        # The kubelet cuts names after 251 characters
        (f"{'p' * 200}_shop_app-{ID}"[:251] + ".log", {ID[:41]: "app"}),
    ):
        fs.create_symlink(f"/var/log/containers/{entry}", "nowhere")
        assert naming.KubeletNames().containers == expected, entry
        fs.remove(f"/var/log/containers/{entry}")


def test_a_directory_with_more_entries_than_a_node_has_pods_names_nothing(
    fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.create_file(f"/var/log/containers/web_shop_app-{ID}.log")
    monkeypatch.setattr(files, "NAMES", 0)
    assert naming.KubeletNames().containers == {}
