# SPDX-License-Identifier: Apache-2.0
"""Bad input: a clear reason, and not a file outside of the run directory
and the group's own name.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hook import formats
from hook.errors import UNNAMED
from tests.support.hook import Hook, Task, created, end, shipped, snapshot, stopped
from tests.unit.test_entry import BAD_NAMES

pytestmark = pytest.mark.both_forms

VERBS = ["hook", "createRuntime", "poststop"]


def bad_name(text: bytes) -> str:
    return UNNAMED + formats.hash_of(text)


UNREADABLE = {
    "no JSON": b"Segmentation fault",
    "10 MB": b'{"ociVersion": "1.0", "x": "' + b"x" * 10_000_000 + b'"}',
}
"""States that name no container. More of them, and fields that are wrong: unit/test_entry.py."""


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("verb", VERBS)
def test_a_state_that_cannot_be_read(hook: Hook, verb: str, text: bytes) -> None:
    outcome = hook(text, verb)
    assert outcome.status == 0
    assert "bad_state" in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    expected = (
        {bad_name(text): "bad_state"}
        if len(text) <= 4 << 20
        else dict.fromkeys(hook.reasons(), "bad_state")
    )
    assert hook.reasons() == ({} if verb == "poststop" else expected)
    assert hook.groups() == set()
    strict = hook.with_options("--strict")(text, verb)
    assert strict.status == (1 if verb == "createRuntime" else 0)


def made(hook: Hook, directory: Path, before: set[str]) -> set[str]:
    """What is new in a directory, without the minute of a count;
    all of it is in the run directory.
    """
    paths = [os.path.relpath(path, hook.run_dir) for path in snapshot(directory) - before]
    return {re.sub(r"^(logged(-.*)?)-\d+$", r"\1", path) for path in paths}


@pytest.mark.parametrize(("container", "uid", "reason"), BAD_NAMES)
def test_a_name_that_is_none_reaches_no_path(
    hook: Hook, init: Task, tmp_path: Path, container: str, uid: str, reason: str
) -> None:
    """A failure leaves its record, a run, and a byte in the count of the log."""
    hook(created("warm-up", init.pid))
    before = snapshot(tmp_path)
    outcome = hook(json.dumps(created(container, init.pid, pod_uid=uid)).encode())
    assert outcome.status == 0
    assert outcome.stderr.count("\n") == 1
    assert len(outcome.stderr) < 1000
    name = "c1" if reason == "bad_key" else bad_name(container.encode("utf-8", "surrogatepass"))
    assert hook.reasons() == {name: reason}
    counted = {f"logged-{reason}.{name if reason == 'bad_key' else 'bad-'}", "logged"}
    expected = {f"unmonitored/{name}.json", "runs/createRuntime-failed", *counted}
    assert made(hook, tmp_path, before) == expected
    end(init)
    hook(json.dumps(stopped(container)).encode())
    assert hook.reasons() == {}, "the record goes when the container goes"


@pytest.mark.parametrize("words", [["--linger=soon"], ["-c", "import os"]], ids=" ".join)
def test_a_bad_option_is_reported_and_ignored(hook: Hook, init: Task, words: list[str]) -> None:
    """All of them: unit/test_entry.py."""
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
    """Any pipe for stdin was taken for a runtime's, as in a script or a cron job.

    None: a terminal, without waiting.
    """
    terminal, stdin = os.openpty()
    source: dict[str, Any] = {"stdin": stdin} if text is None else {"input": text}
    result = subprocess.run(
        [shipped(), "lst"], **source, capture_output=True, check=False, timeout=300
    )
    os.close(terminal)
    os.close(stdin)
    assert result.returncode == 2
    assert b"unknown command 'lst'" in result.stderr
