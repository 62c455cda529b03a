# SPDX-License-Identifier: Apache-2.0
"""What a state, or a config.json, tells of a container to those who match hooks.d against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hook.host import hooksd, runtime_config, would_inject
from hook.host.hooksd import Subject
from hook.host.would_inject import Container

STATE = {"ociVersion": "1.0", "id": "web", "status": "created", "pid": 1, "bundle": "/nowhere"}
KEY = "io.kubernetes.pod.uid"
UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"
DASHED = UID.replace("-", "_")


@pytest.fixture(autouse=True)
def nobody_has_configured_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_config, "read_crio_hooks_dirs", lambda: ["/crio"])
    monkeypatch.setattr(runtime_config, "read_podman_hooks_dirs", lambda: ["/podman"])


def told(directory: Path, content: object, *directories: str) -> Container:
    path = directory / "given.json"
    path.write_text(json.dumps(content))
    return would_inject.read_container(str(path), directories)


@pytest.mark.parametrize(
    ("annotations", "reader", "directories"),
    [
        ({"io.container.manager": "libpod"}, "Podman", ["/podman"]),
        ({"io.container.manager": "cri-o"}, "CRI-O", ["/crio"]),
        ({"io.kubernetes.cri.sandbox-id": "x"}, "the NRI hook-injector", list(hooksd.READERS)),
        ({}, "the NRI hook-injector", list(hooksd.READERS)),
    ],
)
def test_the_reader_is_found_by_the_cgroup(
    tmp_path: Path, annotations: dict[str, str], reader: str, directories: list[str]
) -> None:
    container = told(tmp_path, {**STATE, "annotations": annotations})
    assert (container.reader, container.directories, container.container) == (reader, directories, "web")
    assert told(tmp_path, {**STATE, "annotations": annotations}, "/mine").directories == ["/mine"]


def test_crio_matches_the_kubelets_annotations(tmp_path: Path) -> None:
    """And by none of its own keys."""
    sent = json.dumps({"app": "shop"})
    annotations = {"io.container.manager": "cri-o", KEY: "x", "io.kubernetes.cri-o.Annotations": sent}
    container = told(tmp_path, {**STATE, "annotations": annotations})
    assert container.subject.annotations == {"app": "shop"}
    assert "cannot read the bundle of the pod's sandbox" in container.remark
    del annotations["io.kubernetes.cri-o.Annotations"]
    assert "the file lacks the kubelet's annotations" in told(tmp_path, {**STATE, "annotations": annotations}).remark


RESTARTS = "io.kubernetes.container.restartCount"
SANDBOX = "5" * 64
ID = "7" * 64


@pytest.fixture
def of_crio(tmp_path: Path) -> Path:
    """The config.json of a container under CRI-O, whose pod has a value of its own for what the kubelet sends."""
    sent = {
        ID: {RESTARTS: "0", "kubelet.example/a": "container"},
        SANDBOX: {RESTARTS: "no", "kubelet.example/a": "pod", "io.container.manager": "libpod"},
    }
    for name, said in sent.items():
        own = {"io.container.manager": "cri-o", "io.kubernetes.cri-o.SandboxID": SANDBOX, KEY: UID}
        own |= {"kubelet.example/a": "container", "io.kubernetes.cri-o.Annotations": json.dumps(said)}
        config = {
            "process": {},
            "annotations": own,
            "linux": {"cgroupsPath": f"kubepods-pod{DASHED}.slice:crio:{name}"},
        }
        (tmp_path / name / "userdata").mkdir(parents=True)
        (tmp_path / name / "userdata" / "config.json").write_text(json.dumps(config))
    return tmp_path / ID / "userdata" / "config.json"


def test_under_crio_the_pods_annotations_win(of_crio: Path) -> None:
    container = would_inject.read_container(str(of_crio))
    expected = {RESTARTS: "no", "kubelet.example/a": "pod", "io.container.manager": "libpod"}
    assert (container.container, container.reader, container.subject.annotations) == (ID, "CRI-O", expected)
    assert (container.remark, container.is_whole) == ("", True)


def test_under_crio_missing_annotations_of_the_pod_are_a_remark(of_crio: Path) -> None:
    (of_crio.parents[2] / SANDBOX / "userdata" / "config.json").unlink()
    container = would_inject.read_container(str(of_crio))
    assert container.subject.annotations == {RESTARTS: "0", "kubelet.example/a": "container"}
    assert "cannot read the bundle of the pod's sandbox" in container.remark
    assert not container.is_whole


def hooks_file(directory: Path, name: str, when: dict[str, str], *words: str) -> None:
    directory.mkdir(exist_ok=True)
    hook = {"path": "/bin/true", "args": ["resctrl-mon-hook", "hook", *words]}
    content = {"version": "1.0.0", "hook": hook, "when": {"annotations": when}, "stages": ["createRuntime", "poststop"]}
    (directory / name).write_text(json.dumps(content))


def verdicts(container: Container) -> list[tuple[str | None, str]]:
    return [(it.why_not, it.unless) for it in would_inject.match_files(container)]


def test_a_value_overridden_by_the_pod_does_not_match(of_crio: Path, tmp_path: Path) -> None:
    hooks_file(tmp_path / "d", "a.json", {f"^{RESTARTS}$": "^[0-9]+$"})
    hooks_file(tmp_path / "d", "b.json", {f"^{RESTARTS}$": ".*"})
    (spoilt, _), right = verdicts(would_inject.read_container(str(of_crio), [str(tmp_path / "d")]))
    assert spoilt is not None
    assert "'no'" in spoilt
    assert right == (None, "")


def test_a_value_that_the_pod_may_override_unseen_is_conditional(tmp_path: Path) -> None:
    hooks_file(tmp_path / "d", "a.json", {f"^{RESTARTS}$": "^[0-9]+$"})
    hooks_file(tmp_path / "d", "b.json", {f"^{RESTARTS}$": ".*"})
    state = {**STATE, "annotations": {"io.kubernetes.cri.sandbox-id": "x"}}
    (why_not, unless), right = verdicts(told(tmp_path, state, str(tmp_path / "d")))
    assert why_not is None
    assert RESTARTS in unless.replace("\\", "")
    assert right == (None, "")


def test_podman_is_found_by_the_cgroup_despite_other_annotations(tmp_path: Path) -> None:
    path = f"machine.slice:libpod:{ID}"
    config = {"process": {}, "annotations": {"io.container.manager": "cri-o"}, "linux": {"cgroupsPath": path}}
    container = told(tmp_path, config)
    assert (container.reader, container.container) == ("Podman", ID)


def test_a_container_of_crictl_gets_its_own_remedy(tmp_path: Path) -> None:
    annotations = {"io.container.manager": "cri-o", "io.kubernetes.cri-o.Annotations": "{}"}
    assert RESTARTS in told(tmp_path, {**STATE, "annotations": annotations}).remedy
    assert "install" in told(tmp_path, {**STATE, "annotations": {"io.container.manager": "libpod"}}).remedy


def test_under_containerd_the_restart_count_is_assumed(tmp_path: Path) -> None:
    container = told(tmp_path, {**STATE, "annotations": {"io.kubernetes.cri.sandbox-id": "x"}})
    assert "io.kubernetes.container.restartCount" in container.subject.annotations
    assert "assuming" in container.remark


CONFIG: dict[str, Any] = {
    "ociVersion": "1.0",
    "process": {"args": ["/bin/sh", "-c", "true"]},
    "annotations": {"io.container.manager": "libpod"},
    "mounts": [{"destination": "/proc", "type": "proc"}, {"destination": "/etc/hosts", "options": ["bind"]}],
}


def test_the_command_is_read_from_the_config(tmp_path: Path) -> None:
    subject = told(tmp_path, CONFIG).subject
    assert subject == Subject(CONFIG["annotations"], "/bin/sh", has_bind_mounts=False)


@pytest.mark.parametrize("mount", [{"type": "bind"}, {"options": ["ro", "rbind"]}])
def test_a_bind_mount_of_the_container_counts(tmp_path: Path, mount: dict[str, object]) -> None:
    config = {**CONFIG, "mounts": [*CONFIG["mounts"], {"destination": "/data", **mount}]}
    assert told(tmp_path, config).subject.has_bind_mounts


def test_the_config_of_a_state_is_read_from_its_bundle(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    container = told(tmp_path, {**STATE, "bundle": str(tmp_path)})
    assert (container.reader, container.subject.command) == ("Podman", "/bin/sh")


@pytest.mark.parametrize("text", ["{", "[]", None])
def test_an_unreadable_bundle_is_ignored(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert told(tmp_path, {**STATE, "bundle": str(tmp_path)}).subject == Subject()


@pytest.mark.parametrize("content", [[], 7, "text", None])
def test_a_file_that_is_neither_state_nor_config_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(ValueError, match="neither an OCI state nor a config"):
        told(tmp_path, content)


# --- What the hook makes of it


@pytest.mark.parametrize(
    ("annotations", "words", "becomes"),
    [
        ({}, [], "monitored as container web"),
        ({KEY: UID}, [], f"monitored as pod {UID}"),
        ({KEY: UID}, ["--key=container"], "monitored as container web"),
        ({KEY: "x"}, [], "not monitored: the annotations hold an invalid pod UID: 'x'"),
        ({KEY: UID}, ["--namespace=shop"], "not monitored: excluded by --namespace, --annotation or --monitor"),
        ({}, ["--monitor=opt-in"], "not monitored: excluded by --namespace, --annotation or --monitor"),
        ({"monitor.resctrl-mon.io": "true"}, ["--monitor=opt-in"], "monitored as container web"),
        ({}, ["--lingr=5"], "monitored as container web; ignored: unknown option '--lingr'"),
    ],
)
def test_the_effect_of_the_hook_is_described(
    tmp_path: Path, annotations: dict[str, str], words: list[str], becomes: str
) -> None:
    container = told(tmp_path, {**STATE, "annotations": annotations})
    assert would_inject.describe_effect(container, ["resctrl-mon-hook", "hook", *words]).startswith(becomes)


@pytest.mark.parametrize(
    ("words", "becomes"),
    [
        (["--key=sandbox"], f"monitored as pod {UID}; the annotations name another pod"),
        (["--containers=kubernetes"], f"monitored as pod {UID}; the annotations name another pod"),
        (["--containers=podman"], "ignored, because of --containers=podman"),
    ],
)
def test_the_effect_on_a_container_that_names_another_pod_is_described(
    of_crio: Path, words: list[str], becomes: str
) -> None:
    config = json.loads(of_crio.read_text())
    config["annotations"]["io.kubernetes.cri.sandbox-uid"] = "00000000-0000-4000-8000-000000000001"
    of_crio.write_text(json.dumps(config))
    container = would_inject.read_container(str(of_crio))
    assert would_inject.describe_effect(container, ["resctrl-mon-hook", "hook", *words]).startswith(becomes)
