# SPDX-License-Identifier: Apache-2.0
"""RMIDs: who has one, who is in limbo, who is next (fs/resctrl/monitor.c: alloc_rmid, free_rmid, the limbo worker)."""

from __future__ import annotations

import errno
import time
from collections import deque
from typing import Callable

MS = 1_000_000


class Rmids:
    """RMIDs 1 to `limit` - 1 (0 is the root group's), given out first in, first out.

    A freed one is in limbo: `decay_ms` until its cache lines have gone, seen by a look every `tick_ms` that begins with
    the first RMID in limbo. decay_ms 0: no limbo at all (a machine without occupancy monitoring).
    """

    def __init__(self, limit: int, decay_ms: int, tick_ms: int) -> None:
        self.free: deque[int] = deque(range(1, limit))
        self.limbo: dict[int, int] = {}
        self.decay_ms = decay_ms
        self.tick_ms = tick_ms
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
        now = time.monotonic_ns()
        if not self.limbo:
            self._next_look = now + self.tick_ms * MS
        self.limbo[rmid] = now

    def look(self) -> None:
        """Do the looks that were due until now; the last one decides, for time does not make a clean RMID dirty."""
        now = time.monotonic_ns()
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
