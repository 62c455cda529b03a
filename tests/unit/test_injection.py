"""What a state, or a config.json, tells of a container to those who match hooks.d against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hook import configured, hooksd, injection
from hook.hooksd import Subject
from hook.injection import Told

STATE = {"ociVersion": "1.0", "id": "web", "status": "created", "pid": 1, "bundle": "/nowhere"}
KEY = "io.kubernetes.pod.uid"


@pytest.fixture(autouse=True)
def nobody_has_configured_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configured, "of_crio", lambda: ["/crio"])
    monkeypatch.setattr(configured, "of_podman", lambda: ["/podman"])


def told(directory: Path, content: object, *directories: str) -> Told:
    path = directory / "given.json"
    path.write_text(json.dumps(content))
    return injection.told(str(path), directories)


@pytest.mark.parametrize(
    ("annotations", "reader", "directories"),
    [
        ({"io.container.manager": "libpod"}, "Podman", ["/podman"]),
        ({"io.container.manager": "cri-o"}, "CRI-O", ["/crio"]),
        ({"io.kubernetes.cri.sandbox-id": "x"}, "the NRI hook-injector", list(hooksd.READERS)),
        ({}, "the NRI hook-injector", list(hooksd.READERS)),
    ],
)
def test_who_reads_hooks_d_for_it(
    tmp_path: Path, annotations: dict[str, str], reader: str, directories: list[str]
) -> None:
    container = told(tmp_path, {**STATE, "annotations": annotations})
    assert (container.reader, container.directories, container.container) == (reader, directories, "web")
    assert told(tmp_path, {**STATE, "annotations": annotations}, "/mine").directories == ["/mine"]


def test_crio_goes_by_what_kubelet_sent(tmp_path: Path) -> None:
    """And by none of its own keys."""
    sent = json.dumps({"app": "shop"})
    annotations = {"io.container.manager": "cri-o", KEY: "x", "io.kubernetes.cri-o.Annotations": sent}
    container = told(tmp_path, {**STATE, "annotations": annotations})
    assert (container.subject.annotations, container.remark) == ({"app": "shop"}, "")
    del annotations["io.kubernetes.cri-o.Annotations"]
    assert "what kubelet sent is not in it" in told(tmp_path, {**STATE, "annotations": annotations}).remark


def test_of_containerds_one_is_assumed(tmp_path: Path) -> None:
    container = told(tmp_path, {**STATE, "annotations": {"io.kubernetes.cri.sandbox-id": "x"}})
    assert "io.kubernetes.container.restartCount" in container.subject.annotations
    assert "assumed" in container.remark


CONFIG: dict[str, Any] = {
    "ociVersion": "1.0",
    "process": {"args": ["/bin/sh", "-c", "true"]},
    "annotations": {"io.container.manager": "libpod"},
    "mounts": [{"destination": "/proc", "type": "proc"}, {"destination": "/etc/hosts", "options": ["bind"]}],
}


def test_a_config_tells_what_runs(tmp_path: Path) -> None:
    subject = told(tmp_path, CONFIG).subject
    assert subject == Subject(CONFIG["annotations"], "/bin/sh", has_bind_mounts=False)


@pytest.mark.parametrize("mount", [{"type": "bind"}, {"options": ["ro", "rbind"]}])
def test_mounts_of_its_own(tmp_path: Path, mount: dict[str, object]) -> None:
    config = {**CONFIG, "mounts": [*CONFIG["mounts"], {"destination": "/data", **mount}]}
    assert told(tmp_path, config).subject.has_bind_mounts


def test_a_state_leads_to_its_bundle(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    container = told(tmp_path, {**STATE, "bundle": str(tmp_path)})
    assert (container.reader, container.subject.command) == ("Podman", "/bin/sh")


@pytest.mark.parametrize("text", ["{", "[]", None])
def test_a_bundle_that_does_not_tell_is_done_without(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert told(tmp_path, {**STATE, "bundle": str(tmp_path)}).subject == Subject()


@pytest.mark.parametrize("content", [[], 7, "text", None])
def test_what_is_neither(tmp_path: Path, content: object) -> None:
    with pytest.raises(ValueError, match="neither a state nor a config"):
        told(tmp_path, content)


# --- What the hook makes of it

UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"


@pytest.mark.parametrize(
    ("annotations", "words", "becomes"),
    [
        ({}, [], "monitored as container web"),
        ({KEY: UID}, [], f"monitored as pod {UID}"),
        ({KEY: UID}, ["--key=container"], "monitored as container web"),
        ({KEY: "x"}, [], "not monitored: the pod UID in the annotations is none: 'x'"),
        ({KEY: UID}, ["--namespace=shop"], "not monitored: --namespace, --annotation or --monitor leave it out"),
        ({}, ["--monitor=opt-in"], "not monitored: --namespace, --annotation or --monitor leave it out"),
        ({"monitor.resctrl-mon.io": "true"}, ["--monitor=opt-in"], "monitored as container web"),
        ({}, ["--lingr=5"], "monitored as container web; ignored: unknown option '--lingr'"),
    ],
)
def test_what_becomes_of_it(tmp_path: Path, annotations: dict[str, str], words: list[str], becomes: str) -> None:
    container = told(tmp_path, {**STATE, "annotations": annotations})
    assert injection.becomes(container, ["resctrl-mon-hook", "hook", *words]).startswith(becomes)
