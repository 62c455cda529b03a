# SPDX-License-Identifier: Apache-2.0
"""The shipped hooks.d files against the rules of their readers,
and against states of real runtimes.

A malformed file keeps Podman and CRI-O from starting any container at all,
so each rule is a test here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hook.node.paths import HISTORY

ROOT = Path(__file__).resolve().parents[2]
STATES = ROOT / "tests" / "states"
HOOK_FILES = sorted((ROOT / "oci-hooks").glob("*"))
KUBERNETES = ROOT / "oci-hooks" / "10-resctrl-mon-hook-kubernetes.json"
PODMAN = ROOT / "oci-hooks" / "10-resctrl-mon-hook-podman.json"

# oci-hooks(5), version 1.0.0; `commands` and `hasBindMounts` are left out:
# they cannot tell whose container it is
ALLOWED = {
    "": {"version", "hook", "when", "stages"},
    "hook": {"path", "args", "env", "timeout"},
    "when": {"annotations"},
}
# What Go's regexp and Python's re read alike: anchors, letters, digits, an escaped dot
COMMON_REGEX = re.compile(r"\^(?:[A-Za-z0-9-]|\\\.)+\$")
# kubelet gives up on a container's creation after 2 minutes (runtimeRequestTimeout);
# the runtime should be first
KUBELET_TIMEOUT = 120
# The waits that the hook itself allows for: --lock-timeout plus --rmid-wait, with their defaults
HOOK_WAITS = 2.5

each_file = pytest.mark.parametrize("path", HOOK_FILES, ids=lambda path: path.name)


def load(path: Path) -> dict[str, Any]:
    """The file's object; a key that is there twice would hide a mistake, so it is one."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(pairs) == len(dict(pairs)), (
            f"{path.name}: a key twice in {[key for key, _ in pairs]}"
        )
        return dict(pairs)

    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique)
    return loaded


def matches(path: Path, annotations: dict[str, str]) -> bool:
    """What a hooks.d reader decides: every pattern pair meets an annotation,
    both searched unanchored.
    """
    wanted = load(path)["when"]["annotations"]
    return all(
        any(re.search(key, k) and re.search(value, v) for k, v in annotations.items())
        for key, value in wanted.items()
    )


def seen_by_reader(state: dict[str, Any]) -> dict[str, str]:
    """The annotations that the reader of hooks.d has before it,
    which need not be those in the state.

    CRI-O looks at what kubelet sent, none of the keys that it adds itself;
    Podman at the container's own spec.
    """
    annotations: dict[str, str] = state.get("annotations", {})
    if annotations.get("io.container.manager") != "cri-o":
        return annotations
    sent: dict[str, str] = json.loads(annotations["io.kubernetes.cri-o.Annotations"])
    return sent


def match_states(path: Path) -> set[str]:
    """Return the states that a file matches, at createRuntime only:
    the list of hooks is made at a creation.
    """
    states = {
        file.name: json.loads(file.read_text()) for file in STATES.glob("*-createRuntime.json")
    }
    return {name for name, state in states.items() if matches(path, seen_by_reader(state))}


def test_there_is_one_file_for_each_way_in() -> None:
    """Each one's call minds its own containers, and keeps the history of them.

    Kubernetes lingers for longer than CrashLoopBackOff waits (300 s).
    """
    history = f"--history={HISTORY}"
    assert {path: load(path)["hook"]["args"] for path in HOOK_FILES} == {
        KUBERNETES: [
            "resctrl-mon-hook",
            "hook",
            "--containers=kubernetes",
            "--linger=600",
            history,
        ],
        PODMAN: ["resctrl-mon-hook", "hook", "--containers=podman", history],
    }


@each_file
def test_keys_are_those_of_the_schema_and_their_values_spare_the_runtime(path: Path) -> None:
    # Readers take *.json only, in the order of the lower-cased names. A digit in front: on runc
    # another product's failing poststop that sorts before ours would keep ours from running.
    assert re.fullmatch(r"[0-9]{2}-[a-z-]+\.json", path.name)
    content = load(path)
    hook = content["hook"]
    assert {"": set(content), "hook": set(hook), "when": set(content["when"])} == ALLOWED
    assert content["version"] == "1.0.0"
    assert content["stages"] == ["createRuntime", "poststop"]
    assert hook["path"] == "/usr/libexec/oci/hooks.d/resctrl-mon-hook.pyz"
    # Without `env` createRuntime would inherit conmon's environment, and poststop get none.
    (only,) = hook["env"]
    name, _, value = only.partition("=")
    assert name == "PATH"
    assert all(directory.startswith("/") for directory in value.split(":"))
    # It spares a starved hook, and ends before the kubelet's own.
    assert type(hook["timeout"]) is int
    assert 10 * HOOK_WAITS < hook["timeout"] < KUBELET_TIMEOUT


@each_file
def test_the_pattern_is_anchored_and_its_value_none_that_an_author_could_spoil(path: Path) -> None:
    """Readers match a map in which the pod's annotations win;
    under Podman the annotations of the caller win.
    """
    ((pattern, value),) = load(path)["when"]["annotations"].items()
    assert COMMON_REGEX.fullmatch(pattern), pattern
    assert value == ".*"
    for spoilt in ("", "no", "x\ny", "\u00e4", "0"):
        assert matches(path, {pattern.strip("^$").replace("\\.", "."): spoilt})


def test_each_file_matches_the_containers_of_its_own_runtimes_and_no_near_misses() -> None:
    podmans = {
        state.name
        for state in STATES.glob("podman-*-createRuntime.json")
        if "-build-" not in state.name
    }
    assert podmans
    assert match_states(PODMAN) == podmans, "and no steps of a build"
    assert (
        match_states(KUBERNETES)
        == {state.name for state in STATES.glob("crio-*-createRuntime.json")}
        != set()
    )
    for path, names in (
        (KUBERNETES, ("io.kubernetes.container.hash", "io-kubernetes-container-restartCount")),
        (
            KUBERNETES,
            ("xio.kubernetes.container.restartCount", "io.kubernetes.container.restartCounter"),
        ),
        (PODMAN, ("xio.container.manager", "io.container.managers")),
    ):
        assert not [name for name in names if matches(path, {name: "libpod"})]
        assert not matches(path, {})
