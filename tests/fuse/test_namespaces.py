# SPDX-License-Identifier: Apache-2.0
"""In a pid namespace of its own, processes outside look dead and their groups empty.

No command may act on that.

Nor in a time namespace, in which each process seems to have started at another time,
and so looks like another one.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.inside import REAL_ROOT
from tests.resctrlfs import Mounted
from tests.support import machine
from tests.support.hook import DEADLINE, UID, Hook, Task, created, stopped, task
from tests.support.machine import PROGRAM, ScratchMachine

ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
FIRST = (*ALONE, "sh", "-c", '"$@"; exit $?', "sh")
"""The shell is pid 1 of the namespace, and lives as long as the command."""
IN_TIME = ("unshare", "--time", "--boottime=1000000", "--fork", "--kill-child")
UNKNOWN = "this is not the host's pid and time namespace"


@pytest.fixture
def alive(hook: Hook, init: Task) -> Iterator[str]:
    """The group of a live container of the host's, which has to survive the test."""
    assert hook(created("c1", init.pid, pod_uid=UID)).stderr == ""
    before = hook.key(UID)
    yield f"oci-{UID}"
    assert hook.tasks(f"oci-{UID}") == {init.pid}
    assert hook.key(UID) == before


# --- What judges is refused


OTHER_PROC = {
    "the host's": (*ALONE[:-1], "--mount"),
    "its own": ALONE,
    "of another time": IN_TIME,
    "none": ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"),
}


@pytest.mark.parametrize("words", [[], ["--dry-run"], ["--adopt"], ["--live=-"], ["--linger=0"]])
@pytest.mark.parametrize("proc", OTHER_PROC)
def test_reconcile_is_refused_with_any_proc(
    hook: Hook, alive: str, words: list[str], proc: str
) -> None:
    (hook.resctrl_root / "mon_groups/oci-lost").mkdir()
    ended = replace(hook, wrapper=OTHER_PROC[proc]).ask("reconcile", *words)
    assert (ended.status, ended.stdout) == (2, "")
    problem, hint = (
        ("/proc is not mounted", "mount -t proc") if proc == "none" else (UNKNOWN, "hostPID")
    )
    assert problem in ended.stderr
    assert hint in ended.stderr
    assert hook.groups() == {alive, "oci-lost"}


@pytest.mark.knobs(rmids=3)
def test_a_hook_reclaims_nothing_and_reports_it(hook: Hook, alive: str, resctrl: Mounted) -> None:  # noqa: ARG001
    with task() as other:
        assert hook(created("c2", other.pid)).stderr == ""
        ended = replace(hook, wrapper=FIRST)(created("late", 1))
        assert hook.groups() == {alive, "oci-c2"}
        assert hook.tasks("oci-c2") == {other.pid}
    assert ended.status == 0
    assert "no_rmids" in ended.stderr
    assert f"no RMID is reclaimed: {UNKNOWN}" in ended.stderr
    assert hook.reasons() == {"late": "no_rmids"}


def test_uninstall_is_refused_and_takes_nothing_away(
    hook: Hook, alive: str, tmp_path: Path
) -> None:
    if REAL_ROOT is not None or machine.missing():
        pytest.skip("needs a machine to install on")
    node = ScratchMachine(tmp_path / "machine")
    places = [f"--resctrl-root={hook.resctrl_root}", f"--run-dir={hook.run_dir}"]
    assert node.run("install", "--for=both", *places).returncode == 0
    written = node.written()
    for force in ([], ["--force"]):
        ended = node.run("uninstall", *places, *force, before=ALONE)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert UNKNOWN in ended.stderr
    assert node.written() == written
    assert PROGRAM in written
    assert hook.groups() == {alive}


def test_a_job_in_a_time_namespace_runs_unmonitored_and_says_why(hook: Hook, alive: str) -> None:
    """Its start time on record would be none of the host's:
    the host's reconcile would take it for dead.
    """
    ended = replace(hook, wrapper=IN_TIME).ask(
        "run", "--key=a", "--", "sh", "-c", "echo ran; exit 7"
    )
    assert (ended.status, ended.stdout, UNKNOWN in ended.stderr) == (7, "ran\n", True)
    assert hook.groups() == {alive}
    assert hook.ask("reconcile").stdout == ""


# --- A node within a node: its hooks know their own containers


def test_a_container_of_the_namespace_comes_and_goes(hook: Hook, alive: str) -> None:
    """Its group does not linger: nothing there would ever end it."""
    inside = replace(hook, wrapper=("sh", "-ec", COME_AND_GO, "sh")).with_options("--linger=60")
    ended = subprocess.run(
        [*ALONE, *inside.command("hook")],
        input="".join(json.dumps(state) + "\n" for state in (created("n1", 1), stopped("n1"))),
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE,
    )
    groups, *rest = ended.stdout.splitlines()
    assert (ended.returncode, ended.stderr, rest) == (0, "", [])
    assert set(groups.split()) == {alive, "oci-n1"}
    assert hook.groups() == {alive}


COME_AND_GO = """\
read -r created; read -r stopped
sleep infinity & init=$!
echo "$created" | sed "s/\\"pid\\": 1,/\\"pid\\": $init,/" | "$@"
for option; do case $option in --resctrl-root=*) root=${option#*=};; esac; done
echo $(ls $root/mon_groups)
{ kill $init; wait $init || true; } 2>/dev/null
echo "$stopped" | "$@"
"""


def test_poststop_of_no_member_keeps_a_group_that_looks_empty(hook: Hook, alive: str) -> None:
    """A poststop that comes twice finds the index of a key without members."""
    with task() as other:
        assert hook(created("c2", other.pid)).stderr == ""
        record = hook.run_dir / "groups/c2.json"
        record.write_text(json.dumps({**json.loads(record.read_text()), "members": {}}))
        assert replace(hook, wrapper=ALONE)(stopped("c2")).stderr == ""
        assert hook.groups() == {alive, "oci-c2"}
        assert hook.tasks("oci-c2") == {other.pid}


# --- What only looks says that it cannot tell


@pytest.mark.usefixtures("alive")
def test_list_warns_that_it_cannot_know_the_dead(hook: Hook) -> None:
    alone = replace(hook, wrapper=ALONE)
    lines = alone.ask("list").stdout.splitlines()
    assert any(line.startswith(UNKNOWN) for line in lines)
    row = next(line for line in lines if UID in line).split()
    assert (row[2], row[4]) == ("live", "?")
    assert "orphans" not in lines[0]
    (key,) = alone.answer("list")["keys"]
    assert (key["state"], key["members_alive"], key["members_dead"]) == ("live", None, None)
    assert alone.answer("show", UID)["members"]["c1"]["alive"] is None


def test_metrics_have_no_count_of_the_dead(hook: Hook, alive: str) -> None:  # noqa: ARG001
    def names(wrapper: tuple[str, ...]) -> set[str]:
        answer: Any = replace(hook, wrapper=wrapper).answer("metrics")
        return {metric["name"] for metric in answer["metrics"]}

    assert names(()) - names(ALONE) == {"resctrl_mon_members", "resctrl_mon_orphan_groups"}
