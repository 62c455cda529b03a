# SPDX-License-Identifier: Apache-2.0
"""How metrics and their series are named in Prometheus' text format."""

from __future__ import annotations

import re

from hook.base.counters import EVENTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    Labels = tuple[tuple[str, str], ...]

PREFIX = "resctrl_mon_"
NODE = PREFIX + "node_"
"""Of what is charged to no pod."""
SERIES = {
    "core_energy": "core_energy_joules_total",
    "activity": "activity_farads_total",
    "mbm_total_bytes": "memory_bytes_total",
    "mbm_local_bytes": "memory_local_bytes_total",
    "llc_occupancy": "llc_occupancy_bytes",
    "stalls_llc_hit": "stalls_llc_hit_cycles_total",
    "stalls_llc_miss": "stalls_llc_miss_cycles_total",
    "c1_res": "c1_residency_cycles_total",
    "c6_res": "c6_residency_cycles_total",
    "unhalted_core_cycles": "unhalted_core_cycles_total",
    "unhalted_ref_cycles": "unhalted_ref_cycles_total",
    "uops_retired": "uops_retired_total",
}


def is_gauge(event: str) -> bool:
    """Whether a value means something by itself. An unknown event is taken for a counter, as most are."""
    return event in EVENTS and EVENTS[event].gauge


def name_event(event: str, prefix: str = PREFIX) -> str:
    """The metric of an event; an unknown one has the kernel's own name."""
    return prefix + (SERIES.get(event) or f"{re.sub('[^A-Za-z0-9_]', '_', event)}_total")


def describe_event(event: str) -> str:
    """What the metric of an event is, with its unit."""
    if event not in EVENTS:
        return f"Event {re.sub('[^A-Za-z0-9_]', '_', event)} of the kernel, in its own unit"
    meaning = EVENTS[event].meaning
    return f"{meaning[0].upper()}{meaning[1:]}, in {EVENTS[event].unit}"


def format_series(name: str, labels: Labels) -> str:
    """A series as the text format has it. The values of labels are printable."""
    inside = ",".join(f'{label}="{_escape(text)}"' for label, text in labels)
    return f"{name}{{{inside}}}" if inside else name


def _escape(text: str) -> str:
    """Escape a printable label value for quotes."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
