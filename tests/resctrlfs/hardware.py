# SPDX-License-Identifier: Apache-2.0
"""The RMIDs, and the counters behind mon_data: deterministic, set and moved by the test alone.

RMIDs are given out as in fs/resctrl/monitor.c (alloc_rmid, free_rmid, the limbo worker). Counters
belong to the RMID. When it gets a new owner its L3 counters begin at 0, for the kernel subtracts
what was there; telemetry counters (PERF_PKG) show the former owner's last value. They read
Unavailable until a task has run with the RMID on that package
(arch/x86/kernel/cpu/resctrl/intel_aet.c, intel_aet_read_event(), in Linux 7.2).
"""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation
from typing import Union

MS = 1_000_000
L3_EVENTS = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")
ENERGY_EVENTS = ("core_energy", "activity")
PERF_EVENTS = (
    "stalls_llc_hit",
    "c1_res",
    "unhalted_core_cycles",
    "stalls_llc_miss",
    "c6_res",
    "unhalted_ref_cycles",
    "uops_retired",
)
UNAVAILABLE = "Unavailable"
UNTRACKED = "untracked"


Value = Union[Decimal, str]
"""A number (bytes, joules, farads, events), or what the kernel says instead of one."""


def as_value(given: object) -> Value:
    try:
        return Decimal(str(given))
    except InvalidOperation:
        return str(given)


class Counters:
    """mode: normal; Unavailable: all but occupancy say so (no data yet); Error:
    the L3 counters say so.

    untracked: memory traffic of an RMID says Unavailable until a test counts some, as on AMD.
    """

    def __init__(
        self, l3_domains: int, packages: int, perf: bool, l3_events: tuple[str, ...] = L3_EVENTS
    ) -> None:
        self.package_events = ENERGY_EVENTS + (PERF_EVENTS if perf else ())
        self.l3_events = l3_events
        self.domains: dict[str, tuple[str, ...]] = {
            f"mon_L3_{n:02}": self.l3_events for n in range(l3_domains)
        }
        self.domains.update({f"mon_PERF_PKG_{n:02}": self.package_events for n in range(packages)})
        self.mode = "normal"
        self._values: dict[tuple[int, str, str], Value] = {}
        self._growth: dict[tuple[int, str, str], tuple[Decimal, float]] = {}
        """What grows by itself: by how much a second, and since when (Unix time)."""
        self._has_data: set[tuple[int, str]] = set()
        """RMIDs with the packages that have DATA_VALID of them."""
        self._offline: dict[str, tuple[str, ...]] = {}

    def offline(self, domain: str) -> None:
        self._offline[domain] = self.domains.pop(domain)

    def online(self, domain: str) -> None:
        self.domains[domain] = self._offline.pop(domain)

    def adopt(self, rmid: int) -> None:
        """The RMID has a new owner."""
        for key in [key for key in self._values if key[0] == rmid and is_l3(key[1])]:
            del self._values[key]

    def ran(self, rmid: int, package: int) -> None:
        """A task ran with it on a package, whose telemetry has data of it from now on."""
        self._has_data.add((rmid, f"mon_PERF_PKG_{package:02}"))

    def set(self, rmid: int, domain: str, event: str, value: Value) -> None:
        self._check(domain, event)
        self._values[rmid, domain, event] = value

    def add(self, rmid: int, domain: str, event: str, amount: Decimal) -> None:
        """Counting is also what makes a counter's data available."""
        self._check(domain, event)
        old = self._values.get((rmid, domain, event))
        self._values[rmid, domain, event] = (
            old if isinstance(old, Decimal) else Decimal(0)
        ) + amount

    def let_grow(
        self, rmid: int, domain: str, event: str, rate: Decimal, since: float | None
    ) -> Decimal:
        """Have it grow by so much a second, `since` a Unix time or now.

        Returns by how much it has grown at the rate before.
        """
        key = (rmid, domain, event)
        grown = self._grown(key)
        self.add(*key, grown)
        self._growth[key] = (rate, time.time() if since is None else since)
        return grown

    def _grown(self, key: tuple[int, str, str]) -> Decimal:
        rate, since = self._growth.get(key, (Decimal(0), 0.0))
        return (rate * Decimal(time.time() - since)).quantize(Decimal("0.000001"))

    def text(self, rmids: Iterable[int], domain: str, event: str) -> str:
        """The file's text; for a ctrl_group the sum over its own RMID and its
        mon_groups' that have a number.
        """
        values = [self._value(rmid, domain, event) for rmid in rmids]
        numbers = [value for value in values if isinstance(value, Decimal)]
        if not numbers:
            return f"{values[-1]}\n"
        total = sum(numbers, Decimal(0))
        return f"{total:.6f}\n" if event in ENERGY_EVENTS else f"{int(total)}\n"

    def _value(self, rmid: int, domain: str, event: str) -> Value:
        if self.mode == "Error" and is_l3(domain):
            return "Error"
        if self.mode == UNAVAILABLE and event != "llc_occupancy":
            return UNAVAILABLE
        is_tracked = self.mode != UNTRACKED or rmid == 0 or not event.startswith("mbm_")
        has_data = (is_l3(domain) and is_tracked) or rmid == 0 or (rmid, domain) in self._has_data
        fresh: Value = Decimal(0) if has_data else UNAVAILABLE
        value = self._values.get((rmid, domain, event), fresh)
        return value + self._grown((rmid, domain, event)) if isinstance(value, Decimal) else value

    def _check(self, domain: str, event: str) -> None:
        if event not in self.domains.get(domain, ()):
            raise ValueError(f"no counter {domain}/{event}")


def is_l3(domain: str) -> bool:
    return domain.startswith("mon_L3_")


class Rmids:
    """RMIDs 1 to `limit` - 1 (0 is the root group's), given out first in, first out.

    A freed one is in limbo: `decay_ms` until its cache lines have gone, seen by a look every
    `tick_ms` that begins with the first RMID in limbo. decay_ms 0: no limbo at all (a machine
    without occupancy monitoring).
    """

    def __init__(
        self, limit: int, decay_ms: int, tick_ms: int, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.free: deque[int] = deque(range(1, limit))
        self.limbo: dict[int, int] = {}
        self.decay_ms = decay_ms
        self.tick_ms = tick_ms
        self._clock = clock
        self._next_look = 0

    def take(self) -> int:
        """Errors: EBUSY none is free, but some are in limbo; ENOSPC none is free."""
        self.look()
        if not self.free:
            raise OSError(errno.EBUSY if self.limbo else errno.ENOSPC, "Out of RMIDs")
        return self.free.popleft()

    def release(self, rmid: int) -> None:
        if self.decay_ms == 0:
            self.free.append(rmid)
            return
        self.look()
        now = self._clock()
        if not self.limbo:
            self._next_look = now + self.tick_ms * MS
        self.limbo[rmid] = now

    def look(self) -> None:
        """Do the looks that were due until now; the last one decides,
        for time does not make a clean RMID dirty.
        """
        now = self._clock()
        if not self.limbo or now < self._next_look:
            return
        period = max(self.tick_ms * MS, 1)
        looked = now - (now - self._next_look) % period
        self._next_look = looked + period
        self._free_if(lambda freed: looked - freed >= self.decay_ms * MS)

    def settle(self) -> None:
        """End the limbo of all, now: for tests that do not want to wait."""
        self._free_if(lambda _: True)

    def _free_if(self, clean: Callable[[int], bool]) -> None:
        for rmid in sorted(rmid for rmid, freed in self.limbo.items() if clean(freed)):
            del self.limbo[rmid]
            self.free.append(rmid)
