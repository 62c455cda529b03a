# SPDX-License-Identifier: Apache-2.0
"""Hostile input to whole hooks: some of what tests/faults/fuzz.py tries, and what was found once."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from hook import procfs
from tests.faults import fuzz
from tests.faults.campaign import Campaign
from tests.faults.fuzz import BEGUN, CREATED, GROUP, PROCESS, RECORD, STOPPED, HostileInput
from tests.simulator.kernel import COUNTERS
from tests.simulator.machine import RUN
from tests.support.hook import UID

pytestmark = pytest.mark.slow


def test_hostile_input(tmp_path: Path) -> None:
    with closing(Campaign(tmp_path, most=100)) as campaign:
        fuzz.run(campaign)
    assert not campaign.failures, campaign.failures


def whole(stdin: object, files: dict[str, object] | None = None, *words: str, **process: bytes) -> HostileInput:
    texts = {path: it if isinstance(it, bytes) else json.dumps(it).encode() for path, it in (files or {}).items()}
    return HostileInput(json.dumps(stdin).encode(), [*words], {**PROCESS, **process}, texts)


def test_unforeseen_failure_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "cgroups", lambda _pid: 1 / 0)
    with pytest.raises(AssertionError, match="unforeseen"):
        fuzz.check(whole(CREATED))


# --- What the fuzzers found once


def with_class(name: str) -> HostileInput:
    """The first container of a pod, whose bundle asks for this ctrl_group, of which the kernel says nothing."""
    config = {"linux": {"intelRdt": {"closID": name}}}
    return whole(CREATED, {"/bundle/config.json": config}, cpu_resctrl_groups=b"")


def with_record(*words: str, **fields: object) -> HostileInput:
    """The poststop of the last container of a pod, of which this is recorded besides."""
    files = {f"{RUN}/members/c1.json": {"key": UID}, f"{RUN}/groups/{UID}.json": {**RECORD, **fields}}
    return whole({**STOPPED, "annotations": {}}, {**files, f"{GROUP}/tasks": b"\n"}, *words)


def with_counter(name: str) -> HostileInput:
    return with_record(groups=[{**BEGUN, "begin": {name: "1"}}])


def with_completed(**fields: object) -> HostileInput:
    """The first container of a pod whose key is complete."""
    at = {"completed_at": "2026-01-02T03:04:05Z", "completed_boottime": 1.0}
    record = {**RECORD, "groups": [{**BEGUN, "end": COUNTERS}], "members": {}, **at, **fields}
    return whole(CREATED, {f"{RUN}/groups/{UID}.json": record})


FOUND = {
    "a ctrl_group that has no UTF-8": with_class("\ud800"),
    "a cgroup on record with a NUL": with_record("--linger=60", cgroup=":/a\0b"),
    "a cgroup on record that has no UTF-8": with_record("--linger=60", cgroup=":/a\ud800b"),
    "a counter on record that leads elsewhere": with_counter("a/../../../../../../sys/x"),
    "a counter on record with a NUL": with_counter("a/b\0"),
    "a counter on record that has no UTF-8": with_counter("a/\ud800"),
    "a time on record that has no UTF-8": with_record(groups=[BEGUN], created_at="\ud800"),
    "a time on record that has no UTF-8, and the key goes on": with_completed(created_at="\ud800"),
    "a value on record that has no UTF-8": with_record(groups=[{**BEGUN, "begin": dict.fromkeys(COUNTERS, "\ud800")}]),
    "the highest generation, and the key ends": with_record(groups=[BEGUN], generation=2**63 - 1),
    "the highest generation, and the key goes on": with_completed(generation=2**63 - 1),
    "no state, and a run directory that is not there": whole({}, {}, "--run-dir=/no/such/place"),
    "no state, and a run directory that cannot be": whole({}, {}, f"--run-dir=/{'x' * 300}/y"),
}


def test_what_was_found_once() -> None:
    for name, data in FOUND.items():
        try:
            fuzz.check(data)
        except AssertionError as error:
            raise AssertionError(name) from error
