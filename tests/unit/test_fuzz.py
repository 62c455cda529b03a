# SPDX-License-Identifier: Apache-2.0
"""Hostile input to whole hooks: some of what tests/faults/fuzz.py tries, and what was found once."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given

from tests.faults import hostile
from tests.faults.hostile import BEGUN, CREATED, GROUP, PROCESS, RECORD, STOPPED, Difference, HostileInput, Program
from tests.simulator.kernel import COUNTERS
from tests.simulator.machine import RUN
from tests.support.hook import UID
from tests.unit.files import examples

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, Program]:
    return hostile.both_forms(tmp_path_factory.mktemp("forms"))


def test_hostile_input(forms: tuple[Program, Program]) -> None:
    @examples(500, *HealthCheck)
    @given(hostile.inputs())
    def run(what: HostileInput) -> None:
        hostile.check(forms, what)

    run()


# --- Whether what is wrong would be seen


def whole(stdin: object, files: dict[str, object] | None = None, *words: str, **process: bytes) -> HostileInput:
    texts = {path: it if isinstance(it, bytes) else json.dumps(it).encode() for path, it in (files or {}).items()}
    return HostileInput(json.dumps(stdin).encode(), [*words], {**PROCESS, **process}, texts)


def patched(patch: pytest.MonkeyPatch, forms: tuple[Program, ...], place: str, function: object) -> None:
    """Give these forms another function in the place of `module.function` or `module.Class.function`."""
    module, *path, name = place.split(".")
    for form in forms:
        owner = getattr(form, module)
        for part in path:
            owner = getattr(owner, part)
        patch.setattr(owner, name, function)


def test_a_difference_is_seen(forms: tuple[Program, Program], monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, forms[1:], "retry.can_help", lambda *_: False)
    patched(monkeypatch, forms[1:], "procfs.cgroups", lambda _pid: [])
    with pytest.raises((Difference, AssertionError)):
        hostile.check(forms, whole({**CREATED, "annotations": {}}))


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


def test_what_was_found_once(forms: tuple[Program, Program]) -> None:
    for data in FOUND.values():
        hostile.check(forms, data)
