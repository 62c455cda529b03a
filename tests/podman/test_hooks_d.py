# SPDX-License-Identifier: Apache-2.0
"""Podman itself as a reader of hooks.d: the shipped files, and build steps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hook.node import engines, hooksd
from tests.podman.conftest import PodmanNode
from tests.support.containers import ALWAYS, REPOSITORY

SHIPPED = sorted((REPOSITORY / "oci-hooks").glob("*.json"))


def install_shipped(node: PodmanNode) -> None:
    """Put the shipped files in place of the lab's own, pointed at this node.

    They do not write to this machine's history. The groups' names tell which of them fired.
    """
    for path in node.lab.hooks_dir.glob("10-*"):
        path.unlink()
    for path in SHIPPED:
        content = json.loads(path.read_text())
        content["hook"]["path"] = str(node.lab.hook)
        places = [*node.directories, f"--history={node.lab.base}/history.jsonl"]
        content["hook"]["args"] += [*places, f"--group-prefix={path.stem.rpartition('-')[2]}-"]
        (node.lab.hooks_dir / path.name).write_text(json.dumps(content))


def test_podman_files_hook_fires_for_podmans_containers_and_the_other_does_not(
    node: PodmanNode,
) -> None:
    install_shipped(node)
    gate = node.lab.run("web")
    container = node.lab.container_id("web")
    init = node.lab.init("web")
    node.assert_placed_before_exec(init, f"podman-{container}", gate.command)
    assert node.groups() == {f"podman-{container}": [init.pid]}
    gate.open()
    node.lab.watch.wait("poststop", container)
    node.assert_clean()
    (line,) = (node.lab.base / "history.jsonl").read_text().splitlines()
    assert json.loads(line)["key"] == container


def test_shipped_files_leave_build_steps_alone(node: PodmanNode) -> None:
    """`podman build` reads hooks.d from its own option only."""
    install_shipped(node)
    context = node.lab.base / "context"
    context.mkdir()
    shutil.copy(node.lab.rootfs / "bin" / "busybox", context)
    (context / "Containerfile").write_text(
        'FROM scratch\nCOPY busybox /bin/busybox\nRUN ["/bin/busybox", "sh", "-c", "echo the step '
        'has run"]\n'
    )
    hooks = f"--hooks-dir={node.lab.hooks_dir}"
    done = node.lab.podman("build", "--isolation=oci", "--network=none", hooks, str(context))
    assert "the step has run\n" in done.stdout
    assert node.resctrl.events() == []


RESTARTS = "--annotation=io.kubernetes.container.restartCount"
VICTIM = "00000000-0000-4000-8000-000000000001"
FORGED = {
    "io.container.manager": "cri-o",
    "io.kubernetes.pod.uid": VICTIM,
    "io.kubernetes.cri.sandbox-uid": VICTIM,
    "io.kubernetes.container.restartCount": "0",
}


@pytest.mark.parametrize("value", ["3", "no", ""])
def test_kubernetes_file_fires_for_what_kubelet_annotates_whatever_the_value(
    node: PodmanNode, value: str
) -> None:
    """The same file, read by the same matcher: it would have fired if it had been meant."""
    install_shipped(node)
    (node.lab.hooks_dir / "10-resctrl-mon-hook-podman.json").unlink()
    node.lab.run("other", f"{RESTARTS}={value}")
    assert node.groups() == {}, "its call minds no container of Podman's"
    kubernetes = node.lab.hooks_dir / "10-resctrl-mon-hook-kubernetes.json"
    kubernetes.write_text(
        kubernetes.read_text().replace("--containers=kubernetes", "--containers=all")
    )
    node.lab.run("web", f"{RESTARTS}={value}")
    container = node.lab.container_id("web")
    assert set(node.groups()) == {f"kubernetes-{container}"}
    node.lab.podman("rm", "-f", "-t", "0", "web")
    # --linger=600: the group outlives its last member, on record, and no task is in it
    assert node.groups() == {f"kubernetes-{container}": []}
    assert node.left()["groups"] == [f"{container}.json"]


def test_annotations_of_an_image_neither_hide_a_container_nor_put_it_elsewhere(
    node: PodmanNode,
) -> None:
    """Podman takes them for the container's, io.container.manager included."""
    install_shipped(node)
    node.lab.import_image("localhost/plain")
    (node.lab.base / "Containerfile").write_text("FROM localhost/plain\n")
    annotations = [f"--annotation={key}={value}" for key, value in FORGED.items()]
    file = f"--file={node.lab.base}/Containerfile"
    node.lab.podman("build", *annotations, file, "--tag=localhost/forged", str(node.lab.gates))
    node.lab.podman("run", "-d", *node.lab.options("web"), "localhost/forged")
    container = node.lab.container_id("web")
    assert node.groups() == {f"podman-{container}": [node.lab.init("web").pid]}
    assert "cri-o" in node.lab.inspect("web", "{{.Config.Annotations}}"), "or it is about nothing"


def runs(node: PodmanNode) -> bool:
    """Whether Podman starts a container."""
    options = [*node.lab.options("web"), "--rm", "--rootfs", str(node.lab.rootfs), "/bin/true"]
    return node.lab.podman("run", *options, check=False).returncode == 0


THEIRS = (
    '{"version": "1.0.0", "hook": {"path": "/bin/true", "args": ["x"]}, '
    '"when": {"always": true}, "stages": ["poststop"]}'
)
WHEN = '"always": true'


def test_doctor_judges_a_file_as_podman_does(node: PodmanNode) -> None:
    for path in node.lab.hooks_dir.iterdir():
        path.unlink()
    path = node.lab.hooks_dir / "50-x.json"
    texts = [
        THEIRS,
        THEIRS.replace('"when": {"always": true}, ', ""),
        THEIRS.replace('{"always": true}', "null"),
        THEIRS.replace("version", "Version").replace("path", "PATH"),
        THEIRS.replace('"version"', '"version": "7", "Version"'),
        THEIRS.replace('"version": "1.0.0"', '"Version": "1.0.0", "version": "7"'),
        THEIRS.replace('"x"', '"\udcff"'),
        THEIRS + "\udcff",
        THEIRS.replace('"x"', '"\t"'),
        THEIRS.replace(WHEN, '"commands": ["("]'),
        THEIRS.replace(WHEN, '"commands": ["*"]'),
        THEIRS.replace(WHEN, '"commands": ["^*", "[\\\\d-z]"]'),
        THEIRS.replace(WHEN, '"commands": ["("]').replace("/bin/true", "/nowhere"),
        THEIRS.replace("poststop", "postStop").replace("/bin/true", "/nowhere"),
        THEIRS.replace("poststop", "postStop"),
        THEIRS.replace('"path"', '"timeout": 60.0, "path"'),
        '{"hook": "/bin/true", "stages": ["prestart"], "cmds": [".*"]}',
        "null",
        "",
    ]
    judged = []
    for text in texts:
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        judged.append((text, runs(node), hooksd.read_entry(str(path)).problem is None))
    path.unlink()
    path.symlink_to("/nowhere")
    judged.append(("a link to nothing", runs(node), hooksd.read_entry(str(path)).problem is None))
    assert [case for case in judged if case[1] is not case[2]] == []
    assert {case[1] for case in judged} == {True, False}


def test_doctor_finds_hooks_dir_where_podman_does(
    node: PodmanNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory has an invalid file, so Podman starts no container
    if it reads the directory.
    """
    for path in node.lab.hooks_dir.iterdir():
        path.unlink()
    (node.lab.hooks_dir / "50-x.json").write_text("{")
    usual = node.lab.containers_conf.read_text()
    (line,) = [setting for setting in usual.splitlines() if setting.startswith("hooks_dir")]
    escapes = "".join(f"\\u{ord(letter):04x}" for letter in str(node.lab.hooks_dir))
    texts = [
        usual,
        usual.replace(line, ""),
        line + "\n" + usual.replace(line, ""),
        usual.replace(line, "").replace("[engine]", f"{line}\n[engine]"),
        usual.replace(line, f'hooks_dir = ["{escapes}"]'),
        usual.replace(line, f'hooks_dir = ["""\n{node.lab.hooks_dir}"""]'),
        usual.replace(line, f'Hooks_Dir = ["{node.lab.hooks_dir}"]'),
        usual.partition("[engine]")[0] + f"[other]\nx = 1\n[engine.other]\n{line}",
        f'engine = {{ {line}, events_logger = "file", lock_type = "file" }}\n'
        + usual.partition("[engine]")[0],
    ]
    conf = tmp_path / "containers.conf"
    monkeypatch.setattr(engines, "_PODMANS", ("/nowhere", str(tmp_path), "/nowhere"))
    judged = []
    for text in texts:
        node.lab.containers_conf.write_text(text)
        conf.write_text(text)
        reads = str(node.lab.hooks_dir) in engines.PODMAN.read_hooks_dirs()
        judged.append((text, not runs(node), reads))
    assert [case for case in judged if case[1] is not case[2]] == []
    assert {case[1] for case in judged} == {True, False}


def test_missing_hook_is_skipped_and_stops_no_container(node: PodmanNode) -> None:
    """Why the binary is installed first and the JSON last:
    in between nothing is monitored, and nothing fails.
    """
    node.lab.add_hook("10-resctrl-mon-hook.json", ALWAYS, path=node.lab.base / "nosuch.pyz")
    node.lab.podman("run", *node.lab.options("web"), "--rootfs", str(node.lab.rootfs), "/bin/true")
    assert node.resctrl.events() == []
