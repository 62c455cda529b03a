# SPDX-License-Identifier: Apache-2.0
"""One container's life on machines that can do less, or that are mounted in another way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.hook import Hook

if TYPE_CHECKING:
    from tests.kernel.guest.oci import Runtimes


def test_a_container(hook: Hook, runtimes: Runtimes) -> None:
    container = runtimes.start("runc", "c1")
    assert container.seen().endswith("\nmon:oci-c1\n")
    group = hook.resctrl_root / "mon_groups" / "oci-c1"
    assert [path for path in group.glob("mon_data/*/*") if path.read_text()]
    container.finish()
    hook.assert_clean()
