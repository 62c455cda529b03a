# SPDX-License-Identifier: Apache-2.0
"""The specification that containerd begins with: our hook is in it, once, and nothing else of it has changed."""

from __future__ import annotations

import pytest

from hook.install.install import add_hook

OURS = {"path": "/usr/libexec/oci/hooks.d/resctrl-mon-hook.pyz", "args": ["resctrl-mon-hook", "hook", "--linger=60"]}
OLDER = {"path": "/opt/resctrl-mon-hook.pyz", "args": ["resctrl-mon-hook", "hook"]}
OTHER = {"path": "/usr/bin/other"}
BOTH = {"createRuntime": [OURS], "poststop": [OURS]}


@pytest.mark.parametrize("hooks", [{}, {"hooks": None}, {"hooks": {}}, {"hooks": {"poststop": None}}])
def test_the_hook_is_added_at_both_stages(hooks: dict[str, object]) -> None:
    spec = {"ociVersion": "1.0.2", "process": {"cwd": "/"}, **hooks}
    assert add_hook(spec, OURS) == {"ociVersion": "1.0.2", "process": {"cwd": "/"}, "hooks": BOTH}


def test_other_hooks_stay_after_ours() -> None:
    spec = {"ociVersion": "1.0.2", "hooks": {"createRuntime": [OTHER, OLDER], "prestart": [OTHER]}}
    assert add_hook(spec, OURS)["hooks"] == {
        **BOTH,
        "createRuntime": [OURS, OTHER],
        "prestart": [OTHER],
    }


def test_adding_the_hook_twice_is_the_same_as_once() -> None:
    once = add_hook({"ociVersion": "1.0.2"}, OURS)
    assert add_hook(once, OURS) == once


BY_DEFAULT = {"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}


def test_the_file_limit_of_ctr_is_dropped() -> None:
    """containerd takes them out of its own specification, and would leave them in ours."""
    spec = {"ociVersion": "1.0.2", "process": {"cwd": "/", "rlimits": [BY_DEFAULT]}}
    assert add_hook(spec, OURS)["process"] == {"cwd": "/"}


@pytest.mark.parametrize(
    "process",
    [
        {"rlimits": [{**BY_DEFAULT, "hard": 4096}]},
        {"rlimits": [BY_DEFAULT, {**BY_DEFAULT, "type": "RLIMIT_NPROC"}]},
        {"rlimits": []},
        {},
        None,
        7,
    ],
)
def test_other_limits_stay(process: object) -> None:
    assert add_hook({"ociVersion": "1.0.2", "process": process}, OURS)["process"] == process


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ([], "not an OCI runtime specification"),
        ({}, "ociVersion: missing"),
        ({"ociVersion": 1}, "ociVersion: missing"),
        ({"ociVersion": "1", "hooks": ["x"]}, "hooks: not an object"),
        ({"ociVersion": "1", "hooks": {"poststop": {"path": "x"}}}, "hooks.poststop: not a list"),
        ({"ociVersion": "1", "hooks": {"createRuntime": [{"path": 1}]}}, "hooks.createRuntime: not a list"),
    ],
)
def test_an_invalid_specification_is_refused(spec: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        add_hook(spec, OURS)
