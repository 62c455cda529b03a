# SPDX-License-Identifier: Apache-2.0
"""What the chart's image answers in the place of a runtime,
by the files that runc and crun keep.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Callable

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook.context import read_config
from hook.models import State
from hook.node import processes, runtimes
from tests.unit.nodes import NodeFiles, add_process

import node as image
import runtime

Keep = Callable[[Path, "dict[str, str]"], None]
ID, UID = "a1" * 32, "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"
NAMES = {"io.kubernetes.cri.container-type": "container", "note": "a=b"}
SLICE = f"kubepods-pod{UID.replace('-', '_')}.slice"
PID, STARTTIME = 77, 4711
SYSTEMD = {"path": "", "parent": SLICE, "scope_prefix": "cri-containerd", "name": ID}
CGROUPFS = {"path": f"/kubepods/pod{UID}/{ID}"}


def as_runc(directory: Path, cgroup: dict[str, str]) -> None:
    labels = ["bundle=/run/containerd/x", *(f"{name}={value}" for name, value in NAMES.items())]
    config = {"labels": labels, "cgroups": cgroup}
    state = {"id": ID, "init_process_pid": PID, "init_process_start": STARTTIME, "config": config}
    (directory / "state.json").write_text(json.dumps(state))


def as_crun(directory: Path, cgroup: dict[str, str]) -> None:
    path = cgroup["path"] or ":".join(cgroup[name] for name in ("parent", "scope_prefix", "name"))
    secret = {"process": {"env": ["PASSWORD=x"]}}
    (directory / "config.json").write_text(
        json.dumps({**secret, "annotations": NAMES, "linux": {"cgroupsPath": path}})
    )
    (directory / "status").write_text(
        json.dumps({"pid": PID, "process-start-time": STARTTIME, "bundle": "/x"})
    )


@pytest.fixture
def directory(node: NodeFiles) -> Path:
    """A container's directory of state. Its process runs."""
    del node
    add_process(PID, starttime=STARTTIME)
    for path in (runtime.BUNDLES, f"{runtime.ROOTS[0]}/{ID}"):
        Path(path).mkdir(parents=True)
    return Path(runtime.ROOTS[0], ID)


@pytest.fixture(autouse=True)
def _script(fs: FakeFilesystem) -> None:
    """The script is there, as in the image."""
    fs.add_real_file(runtime.__file__)


def ask(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert runtime.main(["--root", runtime.ROOTS[0], "state", ID]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.parametrize("keep", [as_runc, as_crun])
@pytest.mark.parametrize(
    ("cgroup", "place"),
    [(SYSTEMD, f":/{SLICE}/cri-containerd-{ID}.scope"), (CGROUPFS, f":/kubepods/pod{UID}/{ID}")],
)
def test_the_answer_and_its_bundle_have_what_reconcile_reads(
    directory: Path,
    capsys: pytest.CaptureFixture[str],
    keep: Keep,
    cgroup: dict[str, str],
    place: str,
) -> None:
    keep(directory, cgroup)
    state = State.model_validate(ask(capsys))
    assert (state.id, state.status, state.pid, state.annotations) == (ID, "running", PID, NAMES)
    config = read_config(state.bundle)
    assert config is not None
    assert processes.list_requested(config) == [place]
    assert config.annotations == NAMES
    assert "PASSWORD" not in Path(state.bundle, "config.json").read_text()


def test_a_container_that_has_not_started_or_has_ended_is_not_running(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_runc(directory, SYSTEMD)
    (directory / "exec.fifo").touch()
    assert ask(capsys)["status"] == "created"
    (directory / "exec.fifo").unlink()
    Path(f"/proc/{PID}/stat").write_text(
        Path(f"/proc/{PID}/stat").read_text().replace(str(STARTTIME), "1")
    )
    assert {name: ask(capsys)[name] for name in ("status", "pid")} == {
        "status": "stopped",
        "pid": 0,
    }


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"config": {"labels": null, "cgroups": null}}'])
def test_a_state_that_cannot_be_read_is_an_error_in_a_line(
    directory: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (directory / "state.json").write_text(text)
    assert runtime.main(["--root", runtime.ROOTS[0], "state", ID]) == 1
    assert capsys.readouterr().err.startswith(f"{directory}: ")


def test_reconcile_adopts_only_with_its_directory_and_forgets_bundles_of_the_ended(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_runc(directory, SYSTEMD)
    bundle = Path(ask(capsys)["bundle"])
    assert image._adopt() == ["--adopt", *(f"--runtime-root={root}" for root in runtime.ROOTS)]
    assert bundle.is_dir()
    assert Path(runtime.PROGRAM).read_text().startswith(f"#!{sys.executable}\n# SPDX")
    assert runtimes.find_runtimes().programs == [runtime.PROGRAM]
    (directory / "state.json").unlink()
    directory.rmdir()
    image._adopt()
    assert not bundle.exists()
    os.remove(runtime.PROGRAM)
    Path(runtime.BUNDLES).rmdir()
    assert image._adopt() == []
