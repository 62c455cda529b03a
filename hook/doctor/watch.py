# SPDX-License-Identifier: Apache-2.0
"""Checks whether `watch` runs where it should, and whether it can."""

from __future__ import annotations

import os

from hook.base import system
from hook.doctor.finding import OK, WARNING, Finding
from hook.host import machine, programs
from hook.state.records import Records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hook.doctor.site import Site

_SILENCE = 180.0  # seconds: watch renews its record every minute
_OFF = "off: what exec brings into containers is charged from the next reconcile on"


def check_watch(site: Site) -> Iterator[Finding]:
    unit = os.path.basename(site.places.watch)
    is_running = _is_running(site)
    is_wanted = machine.has_systemd() and programs.run(["systemctl", "is-enabled", "--quiet", unit]).status == 0
    if is_running:
        yield Finding(OK, "watch", "running")
    elif not is_wanted:
        yield Finding(OK, "watch", _OFF)
    elif not machine.has_process_connector():
        found = f"{unit} is enabled, but this kernel has no process connector, or this is not the host's network"
        remedy = f"use a kernel with CONFIG_PROC_EVENTS, or systemctl disable --now {unit}"
        yield Finding(WARNING, "watch", found, remedy)
    else:
        yield Finding(WARNING, "watch", f"{unit} is enabled but does not run", f"journalctl -u {unit}")


def _is_running(site: Site) -> bool:
    """Whether a watch has renewed its record lately, on the host or in the chart's pod. SIGTERM removes the record."""
    with Records(site.options.run_dir) as records:
        seen = records.watched()
    return seen is not None and system.unix_time() - seen.alive_at < _SILENCE
