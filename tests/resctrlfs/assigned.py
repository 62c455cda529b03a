# SPDX-License-Identifier: Apache-2.0
"""Hardware counters that the kernel assigns to groups, where RMIDs have none of their own: AMD's ABMC, MPAM's monitors.

No machine of tests/kernel has them. This is what Documentation/filesystems/resctrl.rst says of `mbm_event` mode, and
what fs/resctrl/monitor.c of Linux 7.2 does (rdtgroup_assign_cntrs, mbm_L3_assignments_write), but for its messages and
refusals; nothing was measured.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import suppress

MBM_EVENTS = ("mbm_total_bytes", "mbm_local_bytes")
UNASSIGNED = "Unassigned"
INFO = ("available_mbm_cntrs", "mbm_assign_on_mkdir", "num_mbm_cntrs")
"""Their files in info/L3_MON, besides mbm_assign_mode, which is there without them as well."""
GROUP_FILE = "mbm_L3_assignments"


class Assigned:
    """`limit` counters in each L3 domain. Each is assigned to a pair of RMID and event, or free.

    `enabled`: the mode is mbm_event, not default.
    """

    def __init__(self, limit: int, domains: Sequence[str], events: Sequence[str]) -> None:
        self.limit = limit
        self.domains = domains
        self.events = events
        self.enabled = True
        self.on_mkdir = True
        self._pairs: dict[str, set[tuple[int, str]]] = {domain: set() for domain in domains}

    def has(self, rmid: int, domain: str, event: str) -> bool:
        """Whether a pair is counted; in default mode all are."""
        return not self.enabled or (rmid, event) in self._pairs[domain]

    def assign_new(self, rmid: int) -> Iterator[tuple[str, str]]:
        """A group was made: yields each event and domain that got a counter, as long as there are any."""
        for event in self.events if self.enabled and self.on_mkdir else ():
            with suppress(OSError):
                yield from self.assign(rmid, event, self.domains)

    def assign(self, rmid: int, event: str, domains: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yields each event and domain that got a counter. ENOSPC: there is none left."""
        for domain in domains:
            if (rmid, event) in self._pairs[domain]:
                continue
            if self.count_free(domain) == 0:
                raise OSError(errno.ENOSPC, "no counter")
            self._pairs[domain].add((rmid, event))
            yield event, domain

    def unassign(self, rmid: int, event: str, domains: Sequence[str]) -> None:
        for domain in domains:
            self._pairs[domain].discard((rmid, event))

    def release(self, rmid: int) -> None:
        """The group has gone."""
        for event in self.events:
            self.unassign(rmid, event, self.domains)

    def switch(self, *, enabled: bool) -> None:
        """Another mode: all counters are free, and groups that are made from now on get some."""
        self.enabled, self.on_mkdir = enabled, True
        for pairs in self._pairs.values():
            pairs.clear()

    def count_free(self, domain: str) -> int:
        return self.limit - len(self._pairs[domain])

    def group_text(self, rmid: int) -> str:
        """mbm_L3_assignments."""
        return "".join(
            f"{event}:"
            + ";".join(f"{int(it[-2:])}={'e' if self.has(rmid, it, event) else '_'}" for it in self.domains)
            + "\n"
            for event in self.events
        )

    def mode_text(self) -> str:
        """mbm_assign_mode."""
        names = ("mbm_event", "default") if self.enabled else ("default", "mbm_event")
        return f"[{names[0]}]\n{names[1]}\n"

    def per_domain(self, numbers: Sequence[int]) -> str:
        """num_mbm_cntrs and its like: `0=32;1=32`."""
        return ";".join(f"{int(it[-2:])}={number}" for it, number in zip(self.domains, numbers)) + "\n"
