# SPDX-License-Identifier: Apache-2.0
"""The specification that containerd begins with: our hook is in it, once, and nothing else of it has changed."""

from __future__ import annotations

import pytest

from hook.install.install import add_hook

OURS = {"path": "/usr/libexec/oci/hooks.d/resctrl-mon-hook.pyz", "args": ["resctrl-mon-hook", "hook", "--linger=60"]}
OLDER = {"path": "/opt/resctrl-mon-hook.pyz", "args": ["resctrl-mon-hook", "hook"]}
OTHER = {"path": "/usr/bin/other"}
BOTH = {"createRuntime": [OURS], "poststop": [OURS]}


BY_DEFAULT = {"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}
PROCESSES: list[object] = [
    {"rlimits": [{**BY_DEFAULT, "hard": 4096}]},
    {"rlimits": [BY_DEFAULT, {**BY_DEFAULT, "type": "RLIMIT_NPROC"}]},
    *({"rlimits": []}, {"cwd": "/"}, {}, None, 7),
]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"hooks": BOTH}),
        *(({"hooks": it}, {"hooks": BOTH}) for it in (None, {}, {"poststop": None})),
        (
            {"hooks": {"createRuntime": [OTHER, OLDER], "prestart": [OTHER]}},
            {"hooks": {**BOTH, "createRuntime": [OURS, OTHER], "prestart": [OTHER]}},
        ),
        # containerd takes this limit out of its own specification, and would leave it in ours
        ({"process": {"cwd": "/", "rlimits": [BY_DEFAULT]}}, {"process": {"cwd": "/"}, "hooks": BOTH}),
        *(({"process": it}, {"process": it, "hooks": BOTH}) for it in PROCESSES),
    ],
)
def test_the_hook_is_added_once_and_all_but_the_file_limit_of_ctr_stays(
    given: dict[str, object], expected: dict[str, object]
) -> None:
    once = add_hook({"ociVersion": "1.0.2", **given}, OURS)
    assert once == {"ociVersion": "1.0.2", **expected}
    assert add_hook(once, OURS) == once


def test_an_invalid_specification_is_refused() -> None:
    version = {"ociVersion": "1"}
    for spec, problem in (
        ([], "not an OCI runtime specification"),
        ({}, "ociVersion: missing"),
        ({"ociVersion": 1}, "ociVersion: missing"),
        ({**version, "hooks": ["x"]}, "invalid hooks"),
        ({**version, "hooks": {"poststop": {"path": "x"}}}, "invalid hooks"),
        ({**version, "hooks": {"createRuntime": [{"path": 1}]}}, "invalid hooks"),
    ):
        with pytest.raises((ValueError, OSError), match=problem):
            add_hook(spec, OURS)
