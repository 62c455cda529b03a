# SPDX-License-Identifier: Apache-2.0
"""Whether a container's directories are still the node's, by both tables of mounts."""

from __future__ import annotations

from pathlib import Path

import mounts

RUN = "/run/resctrl-mon-hook"
ROOT = "1 0 8:1 / / rw - ext4 /dev/sda rw"
SYSTEMDS = "2 1 0:30 / /run rw - tmpfs tmpfs rw"


def test_a_path_leads_to_the_directory_that_the_kernel_finds() -> None:
    for lines, expected in (
        ([ROOT], ("8:1", RUN)),
        ([ROOT, SYSTEMDS], ("0:30", "/resctrl-mon-hook")),
        # The root file system is often younger than what the initramfs mounted below it.
        ([SYSTEMDS, ROOT], ("0:30", "/resctrl-mon-hook")),
        ([ROOT, SYSTEMDS, f"3 2 0:31 / {RUN} rw - tmpfs tmpfs rw"], ("0:31", "/")),
        ([ROOT, SYSTEMDS, "3 2 0:31 / /run rw - tmpfs tmpfs rw"], ("0:31", "/resctrl-mon-hook")),
        # A mount that another one of a directory above it has covered.
        ([ROOT, f"3 1 0:31 / {RUN} rw - tmpfs tmpfs rw", SYSTEMDS], ("0:30", "/resctrl-mon-hook")),
        (
            [ROOT, f"3 1 0:30 /resctrl-mon-hook {RUN} rw - tmpfs tmpfs rw"],
            ("0:30", "/resctrl-mon-hook"),
        ),
        (
            [ROOT, f"3 1 0:30 /resctrl-mon-hook//deleted {RUN} rw - x x rw"],
            ("0:30", "/resctrl-mon-hook//deleted"),
        ),
        (
            [ROOT, "3 1 0:31 / /run/resctrl rw - x x rw", "4 1 0:32 / /runs rw - x x rw"],
            ("8:1", RUN),
        ),
        (list[str](), None),
    ):
        assert mounts.locate("\n".join(lines), RUN) == expected


def test_this_process_and_its_parent_have_the_same_directory(tmp_path: Path) -> None:
    assert mounts.find_problem(str(tmp_path)) is None
