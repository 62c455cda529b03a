# SPDX-License-Identifier: Apache-2.0
"""createRuntime and poststop of real processes, and what is left where the kernel says no.

In every order, with every state of records and each errno at each call: tests.simulator.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernel.inside import REAL_ROOT, fill
from tests.support.hook import UID, Hook, Task, created, end, finish, stopped, task

pytestmark = pytest.mark.both_forms

# Where resctrl is real the machine is emulated, and slow
CROWD = 32 if REAL_ROOT is None else 6


def test_a_container_is_in_its_group_and_leaves_nothing_behind(hook: Hook, init: Task) -> None:
    outcome = hook(created("c1", init.pid))
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, "", "")
    assert hook.groups() == {"oci-c1"}
    assert hook.tasks("oci-c1") == {init.pid}
    end(init)
    assert hook(stopped("c1")).status == 0
    hook.assert_clean()
    runs = {path.name: path.stat().st_size for path in (hook.run_dir / "runs").iterdir()}
    assert runs == {"createRuntime-monitored": 1, "poststop-done": 1}


def all_at_once(started: list[subprocess.Popen[bytes]]) -> None:
    outcomes = [finish(process) for process in started]
    assert {(outcome.status, outcome.stderr) for outcome in outcomes} == {(0, "")}


def test_all_containers_of_one_pod_come_and_go_at_once(hook: Hook) -> None:
    names = [f"c{number}" for number in range(CROWD)]
    with ExitStack() as stack:
        pids = {name: stack.enter_context(task()).pid for name in names}
        all_at_once([hook.start(created(name, pids[name], pod_uid=UID)) for name in names])
        assert hook.groups() == {f"oci-{UID}"}
        assert set(hook.key(UID)["members"]) == set(names)
        assert hook.tasks(f"oci-{UID}") == set(pids.values())
    all_at_once([hook.start(stopped(name, pod_uid=UID)) for name in names])
    hook.assert_clean()


@pytest.mark.knobs(rmids=200)
def test_containers_that_end_at_once_have_a_line_each_while_the_history_is_rotated(
    hook: Hook, tmp_path: Path
) -> None:
    """What is in a line, and files that cannot be written: unit/test_ending.py."""
    file = tmp_path / "log/history.jsonl"
    file.parent.mkdir()
    recording = hook.with_options(f"--history={file}")
    names = [f"c{number}" for number in range(CROWD)]
    with ExitStack() as stack:
        for name in names:
            recording(created(name, stack.enter_context(task()).pid))
    started = [recording.start(stopped(name)) for name in names]
    files: list[Path] = []
    while any(process.poll() is None for process in started):
        if file.exists():
            files.append(file.rename(file.with_suffix(f".{len(files)}")))
    all_at_once(started)
    files += [file] if file.exists() else []
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert sorted(line["key"] for line in lines) == sorted(names)
    assert len({line["id"] for line in lines}) == CROWD
    assert {path.stat().st_mode & 0o7777 for path in files} == {0o600}


def test_exhaustion_quotes_the_kernel(hook: Hook, init: Task) -> None:
    fill(hook.resctrl_root / "mon_groups")
    hook(created("c1", init.pid))
    assert {
        name: (failure["reason"], failure["kernel"]) for name, failure in hook.failures().items()
    } == {"c1": ("no_rmids", "Out of RMIDs")}
