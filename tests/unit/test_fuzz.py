# SPDX-License-Identifier: Apache-2.0
"""What the fuzzing of tests/faults does with a million inputs and a fuzzer, with a few and without one."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from tests.faults.fuzzing import inputs, targets
from tests.faults.fuzzing.targets import FILES, SEPARATOR, SHARES, UID, Difference, Program, Share
from tests.simulator.kernel import COUNTERS, RESCTRL
from tests.simulator.machine import RUN, EndlessCalls
from tests.support.hook import created, stopped

INPUTS = 20_000  # of all targets together


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, Program]:
    return targets.both_forms(tmp_path_factory.mktemp("forms"))


@pytest.mark.parametrize("share", SHARES, ids=lambda share: share.target)
def test_hostile_input(forms: tuple[Program, Program], share: Share) -> None:
    dice = Random(share.target)
    target, seeds = targets.TARGETS[share.target], inputs.seeds(share.target, forms[0])
    for data in [*seeds, *inputs.stream(seeds, dice, round(INPUTS * share.part))]:
        try:
            targets.check(target, forms, data)
        except BaseException as error:
            raise AssertionError(f"{share.target} of {data!r}") from error


# --- Whether what is wrong would be seen


def whole(stdin: dict[str, object], files: dict[str, object] | None = None, words: str = "") -> bytes:
    """An input of the target `whole`; `files`: what lies in some of FILES."""
    texts = {
        name: text if isinstance(text, bytes) else json.dumps(text).encode() for name, text in (files or {}).items()
    }
    known = {**dict.fromkeys(FILES, b""), **inputs.PROCESS}
    assert known.keys() >= texts.keys()
    return SEPARATOR.join([*{**known, **texts}.values(), json.dumps(stdin).encode(), words.encode()])


def of_pod(state: dict[str, object]) -> dict[str, object]:
    return {**state, "bundle": "/bundle", "annotations": {"io.kubernetes.pod.uid": UID}}


USUAL = whole(of_pod(created("c1", 7)))


def patched(patch: pytest.MonkeyPatch, forms: tuple[Program, Program], place: str, function: object) -> None:
    """Give both forms another function in the place of `module.function` or `module.Class.function`."""
    module, *path, name = place.split(".")
    for form in forms:
        owner = getattr(form, module)
        for part in path:
            owner = getattr(owner, part)
        patch.setattr(owner, name, function)


def test_a_difference_is_seen(forms: tuple[Program, Program], monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, forms[1:], "names.container_id", lambda text: text)  # type: ignore[arg-type]
    with pytest.raises((Difference, AssertionError)):
        targets.check(targets.names, forms, b"a/b")


def test_a_defect_is_seen(forms: tuple[Program, Program], monkeypatch: pytest.MonkeyPatch) -> None:
    def cgroups(_pid: int) -> list[str]:
        raise KeyError("cgroup")

    patched(monkeypatch, forms, "procfs.cgroups", cgroups)
    with pytest.raises(AssertionError, match="unforeseen KeyError"):
        targets.check(targets.whole, forms, USUAL)


def test_a_hang_is_seen(forms: tuple[Program, Program], monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, forms, "retry.can_help", lambda *_: True)
    for form in forms:
        monkeypatch.setattr(form.resctrl.Resctrl, "make", no_room_of(form))
    with pytest.raises(EndlessCalls):
        targets.check(targets.whole, forms, USUAL)


def no_room_of(form: Program) -> Any:  # noqa: ANN401
    def make(_self: object, _path: str) -> bool:
        raise form.errors.HookError("no_rmids", "none is left")

    return make


# --- What the fuzzers have found, and whoever wrote them

RECORD: dict[str, Any] = {
    "key": UID,
    "kind": "pod",
    "groups": [{"path": f"{RESCTRL}/mon_groups/oci-c1", "ctrl_group": "/"}],
    "members": {"c1": {"pid": 4711, "starttime": 99, "group": f"{RESCTRL}/mon_groups/oci-c1"}},
}
BEGUN = {**RECORD["groups"][0], "begin": COUNTERS}


def with_class(name: str) -> bytes:
    """The first container of a pod, whose bundle asks for this ctrl_group, of which the kernel says nothing."""
    config = {"linux": {"intelRdt": {"closID": name}}}
    return whole(of_pod(created("c1", 7)), {"/bundle/config.json": config, "cpu_resctrl_groups": b""})


def with_record(words: str = "", **fields: object) -> bytes:
    """The poststop of the last container of a pod, of which this is recorded besides."""
    files = {f"{RUN}/members/c1.json": {"key": UID}, f"{RUN}/groups/{UID}.json": {**RECORD, **fields}}
    return whole(stopped("c1"), {**files, f"{RESCTRL}/mon_groups/oci-c1/tasks": b"\n"}, words)


def with_counter(name: str) -> bytes:
    return with_record(groups=[{**BEGUN, "begin": {name: "1"}}])


def with_completed(**fields: object) -> bytes:
    """The first container of a pod whose key is complete."""
    at = {"completed_at": "2026-01-02T03:04:05Z", "completed_boottime": 1.0}
    record = {**RECORD, "groups": [{**BEGUN, "end": COUNTERS}], "members": {}, **at, **fields}
    return whole(of_pod(created("c1", 7)), {f"{RUN}/groups/{UID}.json": record})


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


@pytest.mark.parametrize("data", FOUND.values(), ids=FOUND)
def test_what_was_found_once(forms: tuple[Program, Program], data: bytes) -> None:
    targets.check(targets.whole, forms, data)
