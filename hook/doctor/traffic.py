# SPDX-License-Identifier: Apache-2.0
"""Checks whether memory traffic is counted: not every CPU does, and some have fewer counters than groups."""

from __future__ import annotations

from hook.base.resctrl import Resctrl
from hook.doctor.finding import OK, WARNING, Finding
from hook.observe import hardware, snapshot, uncounted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hook.doctor.site import Site

_SUBJECT = "memory traffic"
_NEEDS_MBM = "needs a CPU with MBM; look for rdt= and clearcpuid= on the kernel command line"
_NEEDS_MBWU = (
    "needs MPAM bandwidth monitors (MBWU) on or behind the L3 cache, and a kernel that uses them: "
    "Documentation/arch/arm64/mpam.rst"
)


def check_traffic(site: Site) -> Iterator[Finding]:
    root = site.options.resctrl_root
    events = hardware.read_events(root) if Resctrl(root).is_mounted() else set()
    if not events:
        return
    if not events & set(hardware.TRAFFIC):
        found = f"not counted: the kernel offers {', '.join(sorted(events))}"
        yield Finding(WARNING, _SUBJECT, found, _NEEDS_MBWU if hardware.is_arm64() else _NEEDS_MBM)
    elif (counters := hardware.read_assignable(root)) is not None:
        seen = snapshot.take_snapshot(site.options)
        problems = [uncounted.explain_unassigned(seen), uncounted.explain_shortage(counters)]
        found_any = [it for it in problems if it is not None]
        for found, remedy in found_any:
            yield Finding(WARNING, _SUBJECT, found, remedy)
        if not found_any:
            yield Finding(OK, _SUBJECT, uncounted.format_free(counters))
