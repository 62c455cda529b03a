# SPDX-License-Identifier: Apache-2.0
"""Every metric that there is: those of a snapshot in which nothing is missing."""

from __future__ import annotations

from hook.models import Failure, KeyState, MonGroup
from hook.node.models import ReconcileRecord, Unhooked, WatchRecord
from hook.node.sums import RUNS
from hook.show.bill import Bill
from hook.show.prometheus import PREFIX, count_dropped, make_families
from hook.show.snapshot import EVENTS, Group, Inventory, Rmids, SeenKey

_COUNTERS = dict.fromkeys((f"mon_L3_00/{event}" for event in EVENTS), "1")
_GROUP = MonGroup(
    path="/r/mon_groups/x", ctrl_group="/", begin={**_COUNTERS, "mon_PERF_PKG_00/core_energy": "9"}
)


def make_key(state: KeyState) -> SeenKey:
    """A key with a group that has every counter. Another tool has a container of c2."""
    group = Group(_GROUP, exists=True, now=_COUNTERS)
    return SeenKey(state, [group], {}, {"c9": "/r/mon_groups/theirs"} if state.key == "c2" else {})


def make_inventory(**parts: object) -> Inventory:
    """A snapshot with these attributes, which no run directory is read for."""
    inventory = object.__new__(Inventory)
    vars(inventory).update(parts)
    return inventory


EVERYTHING = make_inventory(
    at=0.0,
    keys=[
        make_key(KeyState(key="c1", kind="pod", pod_namespace="n", pod_name="p")),
        make_key(
            KeyState(
                key="c2", kind="container", pod_name="p", metric_labels={"pod": "0d174e60a699"}
            )
        ),
    ],
    unreadable=[],
    failures=[Failure(container="c4", stage="createRuntime", reason="io", problem="no", time="")],
    rmids=Rmids(limit=8, ours=1, others=1),
    orphans=[],
    runs={("poststop", "ok"): 1},
    unhooked=Unhooked(since="", containers={}, unchecked=0, rules="", others=[]),
    reconciled=ReconcileRecord(started_at=1.0, ended_at=2.0, elsewhere={"/r/gold": 1}),
    watched=WatchRecord(),
    host_pids=True,
    is_supported=True,
    is_full=False,
    ended_unmonitored={},
    unrecorded=0,
    dropped_lines=0,
    dropped_snapshots=0,
    uncharged={"/": _COUNTERS},
)
_SAMPLES = {RUNS: 1.0, **dict.fromkeys(EVENTS, 1.0)}
BILL = Bill({"n": _SAMPLES, "": _SAMPLES}, {("user", "ann"): _SAMPLES})
FAMILIES = {
    family.name: family
    for family in [*make_families(EVERYTHING, None, BILL), count_dropped({"too_many": 1})]
}
OF_EVENTS = {
    PREFIX + part + event.metric
    for event in EVENTS.values()
    for part in ("", "node_", *(() if event.gauge else ("namespace_", "label_")))
}
