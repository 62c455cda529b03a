# SPDX-License-Identifier: Apache-2.0
"""One container's life on machines that can do less, or that are mounted in another way."""

from __future__ import annotations

from tests.support.containers import READ_GROUPS, Lab
from tests.support.hook import Hook


def test_a_container(hook: Hook, lab: Lab) -> None:
    container = lab.runc("c1", first=READ_GROUPS)
    assert container.line.endswith(" mon:oci-c1 ")
    assert [
        counter
        for counter in hook.resctrl_root.glob("mon_groups/oci-c1/mon_data/*/*")
        if counter.read_text()
    ]
    container.end()
    hook.assert_clean()
