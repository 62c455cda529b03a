# SPDX-License-Identifier: Apache-2.0
"""Every state that a real runtime was seen to send, byte for byte but for the pid."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fetch import interpreters
from tests.support.cgroups import place_in_pod
from tests.support.hook import NATIVE, STATES, Hook, shipped, stopped, task

pytestmark = pytest.mark.both_forms

CREATED_KEYS = {
    "containerd-2.1.9-runc-1.3.6": "a80c6f3b-f012-4f57-8aa3-bc38fc664bf1",
    "containerd-2.1.9-runc-1.3.6-nri-hook-injector": "80463642-527c-43e5-a507-39386877c3eb",
    "crio-1.36.3-crun-1.28": "87a3fb58-4084-4186-9c0e-93cf8c32e2ce",
    "crio-1.36.3-runc-1.1.5": "ef732f41-e0ad-4d7a-922f-de11166355a2",
    "crio-1.36.3-runc-1.3.6": "bf958484-44fc-4541-a84d-501ebfa127ed",
    "podman-4.3.1-build": "buildah-buildah170977137",
    "podman-4.3.1-crun-1.8.1-container": (
        "3d34248e2cf6e6bff3520bffee05bb3df4139b220c1f45b7111a9d59da809137"
    ),
    "podman-4.3.1-runc-1.1.5-container": (
        "a3e4097c86f37cc60c44e616c4bba3abac89834b04b4ba360e1ea32c26b4a6b2"
    ),
    "podman-5.8.6-runc-1.3.6-container": (
        "09a3d02b3a8397ee93f0830bae6e0b9dc78aeda0a508c9a32df929ba7d1d27d9"
    ),
    "podman-5.8.6-runc-1.3.6-pod": (
        "b721cf36163cde8b4e2c34e0b577eff550eec02eaf034e26ea0c5031b4ff5a27"
    ),
}
CREATED = sorted(STATES.glob("*-createRuntime.json"))
STOPPED = sorted(STATES.glob("*-poststop.json"))


PYTHONS = [(str(python.path), "-I", "-S") for python in interpreters.oldest_and_newest()]


@pytest.fixture(
    params=[()] if shipped() == NATIVE else PYTHONS, ids=lambda python: "".join(python[:1])
)
def any_hook(request: pytest.FixtureRequest, hook: Hook) -> Hook:
    """The ELF file; or the .pyz under one Python without site-packages,
    so that only the standard library is found.
    """
    return Hook(hook.resctrl_root, hook.run_dir, python=request.param)


def stage_of(path: Path) -> str:
    return path.stem.rpartition("-")[0]


def with_pid(text: str, pid: int) -> bytes:
    """The state with another pid, and not another byte changed."""
    changed, times = re.subn(r'("pid": ?)\d+', rf"\g<1>{pid}", text)
    assert times == 1
    return changed.encode()


def test_every_state_is_covered() -> None:
    assert {stage_of(path) for path in CREATED} == set(CREATED_KEYS)


def test_states_at_createruntime(any_hook: Hook) -> None:
    for path in CREATED:
        text, key = path.read_text(), CREATED_KEYS[stage_of(path)]
        container = json.loads(text)["id"]
        with task() as init:
            # A pod's UID: its runtime makes the container's cgroup.
            if "-" in key and not key.startswith("buildah"):
                place_in_pod(init.pid, key, container)
            outcome = any_hook(with_pid(text, init.pid))
            assert (outcome.status, outcome.stdout, outcome.stderr) == (0, "", ""), path.name
            assert any_hook.groups() == {f"oci-{key}"}, path.name
            assert any_hook.tasks(f"oci-{key}") == {init.pid}, path.name
            assert set(any_hook.key(key)["members"]) == {container}, path.name
        any_hook(stopped(container))
        assert any_hook.groups() == set(), path.name
        assert any_hook.leftovers() == set(), path.name


def test_states_at_poststop(hook: Hook) -> None:
    for path in STOPPED:
        text = path.read_text()
        state = json.loads(text)
        with task() as init:
            hook({**state, "status": "creating", "pid": init.pid})
            assert len(hook.groups()) == 1, path.name
        outcome = hook(text.encode())
        assert (outcome.status, outcome.stdout, outcome.stderr) == (0, "", ""), path.name
        assert hook.groups() == set(), path.name
        assert hook.leftovers() == set(), path.name
