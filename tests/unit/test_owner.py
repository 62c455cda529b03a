# SPDX-License-Identifier: Apache-2.0
"""Whose a file is, in the words of dpkg-query."""

from __future__ import annotations

import pytest

from hook.install import owner as origin


@pytest.mark.parametrize(
    ("lines", "owner"),
    [
        ([], None),
        (["hook: /usr/bin/x"], "hook"),
        (["hook:amd64: /usr/bin/x"], "hook"),
        (["hook, other: /usr/bin/x"], "hook"),
        (["local diversion from: /usr/bin/x", "local diversion to: /usr/bin/x.distrib", "hook: /usr/bin/x"], None),
        (["diversion by other from: /x", "diversion by other to: /x.hook", "hook: /x"], None),
        (["diversion by other from: /x", "diversion by other to: /x.hook", "hook, other: /x"], "other"),
        (["local diversion from: /y", "local diversion to: /y.distrib", "hook: /y", "hook: /x"], "hook"),
    ],
)
def test_the_owner_is_the_package_of_the_existing_file(lines: list[str], owner: str | None) -> None:
    assert origin._parse_dpkg_output(lines) == owner


@pytest.mark.parametrize(
    ("path", "alias"),
    [
        ("/usr/lib/systemd/system/x.timer", "/lib/systemd/system/x.timer"),
        ("/usr/bin/x", "/bin/x"),
        ("/usr/share/x", "/usr/share/x"),
        ("/usr/libexec/x", "/usr/libexec/x"),
        ("/opt/usr/bin/x", "/opt/usr/bin/x"),
    ],
)
def test_paths_of_a_merged_usr_have_aliases(path: str, alias: str) -> None:
    assert origin._ALIASES.sub("", path) == alias
