# SPDX-License-Identifier: Apache-2.0
"""Bad input: a clear reason, and not a file outside of the run directory and the group's own name."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.inside import REAL_ROOT, few
from tests.support.hook import PYZ, UID, Hook, Task, created, end, snapshot, stopped

# All of them end before resctrl is looked at: one is enough where that is real, and the machine emulated and slow.
VERBS = ["hook", "createRuntime", "poststop"] if REAL_ROOT is None else ["createRuntime"]


def bad_name(text: bytes) -> str:
    return "bad-" + hashlib.sha256(text).hexdigest()[:16]


UNREADABLE = {
    "empty": b"",
    "no JSON": b"Segmentation fault",
    "a NUL": b"\0",
    "nested deeply": b"[" * 200_000,
    "no fields": b"{}",
    "10 MB": b'{"ociVersion": "1.0", "x": "' + b"x" * 10_000_000 + b'"}',
    "an absurd number": b'{"pid": ' + b"9" * 5000 + b"}",
}
"""What no container can be told from."""

BAD_FIELDS = {
    "id a number": {"id": 7},
    "pid zero": {"pid": 0},
    "pid beyond pid_t": {"pid": 2**31},
    "bundle with a NUL": {"bundle": "/a\0b"},
    "bundle endless": {"bundle": "/" + "b" * 5000},
    "annotation null": {"annotations": {"a": None}},
}

BAD_IDS = ["..", "../../etc/cron.d/x", "a\0b", "a" * 300, "", "%s%n", "\ud800"]

BAD_UIDS = ["no-uid", "../" + UID, UID + "\n", "a" * 1_000_000]


@pytest.mark.parametrize("text", few(UNREADABLE.values()), ids=few(UNREADABLE))
@pytest.mark.parametrize("verb", VERBS)
def test_a_state_that_cannot_be_read(hook: Hook, verb: str, text: bytes) -> None:
    outcome = hook(text, verb)
    assert outcome.status == 0
    assert "bad_state" in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    known = text[: 4 << 20] if len(text) <= 4 << 20 else None
    expected = {bad_name(known): "bad_state"} if known is not None else dict.fromkeys(hook.reasons(), "bad_state")
    assert hook.reasons() == ({} if verb == "poststop" else expected)
    assert hook.groups() == set()
    strict = hook.with_options("--strict")(text, verb)
    assert strict.status == (1 if verb == "createRuntime" else 0)


@pytest.mark.parametrize("change", few(BAD_FIELDS.values()), ids=few(BAD_FIELDS))
def test_a_field_that_is_wrong_is_named(hook: Hook, init: Task, change: dict[str, object]) -> None:
    state = {**created("c1", init.pid), **change}
    outcome = hook(state)
    assert outcome.status == 0
    assert "bad_state" in outcome.stderr
    assert next(iter(change)) in outcome.stderr
    assert set(hook.reasons().values()) == {"bad_state"}
    assert hook.groups() == set()


def files_of_failure(reason: str, container: str) -> set[str]:
    """What a failure leaves in the run directory: its record, a run, and a byte in the count of the log."""
    return {f"unmonitored/{container}.json", "runs/createRuntime-failed", f"logged-{reason}"}


def made(hook: Hook, directory: Path, before: set[str]) -> set[str]:
    """What is new in a directory, without the minute of a count; all of it is in the run directory."""
    paths = [os.path.relpath(path, hook.run_dir) for path in snapshot(directory) - before]
    return {re.sub(r"^(logged-.*)-\d+$", r"\1", path) for path in paths}


@pytest.mark.parametrize("container", few(BAD_IDS))
def test_an_id_that_is_none(hook: Hook, init: Task, tmp_path: Path, container: str) -> None:
    hook(created("warm-up", init.pid))
    before = snapshot(tmp_path)
    state = json.dumps(created(container, init.pid, pod_uid=UID)).encode()
    outcome = hook(state)
    assert outcome.status == 0
    assert outcome.stderr.count("\n") == 1
    name = bad_name(container.encode("utf-8", "surrogatepass"))
    assert hook.reasons() == {name: "bad_state"}
    assert made(hook, tmp_path, before) == files_of_failure("bad_state", name)
    assert hook.with_options("--strict")(state, "createRuntime").status == 1
    hook(stopped(container))
    assert hook.reasons() == {}, "the record goes when the container goes"


@pytest.mark.parametrize("uid", few(BAD_UIDS))
def test_a_pod_uid_that_is_none_is_not_a_container(hook: Hook, init: Task, tmp_path: Path, uid: str) -> None:
    hook(created("warm-up", init.pid))
    before = snapshot(tmp_path)
    outcome = hook(created("c1", init.pid, pod_uid=uid))
    assert outcome.status == 0
    assert outcome.stderr.count("\n") == 1
    assert len(outcome.stderr) < 1000
    assert hook.reasons() == {"c1": "bad_key"}
    assert made(hook, tmp_path, before) == files_of_failure("bad_key", "c1")
    assert hook.with_options("--strict")(created("c1", init.pid, pod_uid=uid)).status == 1


OPTIONS = {"not a number": ["--linger=soon"], "no value": ["--monitor"], "Python's own": ["-c", "import os"]}
"""Some: unit/test_entry.py has all."""


@pytest.mark.parametrize("words", few(OPTIONS.values()), ids=few(OPTIONS))
def test_a_bad_option_is_reported_and_ignored(hook: Hook, init: Task, words: list[str]) -> None:
    outcome = hook.with_options(*words)(created("c1", init.pid), verb="createRuntime")
    assert outcome.status == 0
    assert "usage" in outcome.stderr
    record = hook.failures()["c1"]
    assert (record["reason"], record["monitored"]) == ("usage", True)
    assert hook.tasks("oci-c1") == {init.pid}
    end(init)
    outcome = hook.with_options(*words)(stopped("c1"), verb="poststop")
    assert outcome.status == 0
    assert "poststop c1: usage: " in outcome.stderr
    assert hook.leftovers() == set()


@pytest.mark.parametrize("text", [b"", b"\n", b"[]", b"{}", None], ids=repr)
def test_an_unknown_verb_with_no_state_on_stdin_exits_with_2(text: bytes | None) -> None:
    """Any pipe for stdin was taken for a runtime's, as in a script or a cron job. None: a terminal, without waiting."""
    terminal, stdin = os.openpty()
    source: dict[str, Any] = {"stdin": stdin} if text is None else {"input": text}
    result = subprocess.run([PYZ, "lst"], **source, capture_output=True, check=False, timeout=300)
    os.close(terminal)
    os.close(stdin)
    assert result.returncode == 2
    assert b"unknown command 'lst'" in result.stderr
