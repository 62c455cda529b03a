# SPDX-License-Identifier: Apache-2.0
"""run, assign and release, by the shipped file, with real processes. In every order: tests.simulator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.cgroups import container_cgroup
from tests.support.hook import UID, Hook, Outcome, Task, created, finish, task

ID = "5f3c" * 16
WELL = Outcome(0, "", "")
FAMILY = """\
import os, sys, threading
if os.fork():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("ready", flush=True)
sys.stdin.read()
"""
"""A process with a child and a second thread; both end with its stdin."""


@contextmanager
def running(hook: Hook, *words: str) -> Iterator[Task]:
    """A job that lives until the end of its stdin: a shell, which says that it is there."""
    shell = ["sh", "-c", "echo ready; read line"]
    with hook.open("run", *words, "--", *shell, stdin=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@contextmanager
def family() -> Iterator[Task]:
    with subprocess.Popen([sys.executable, "-ISc", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def members(hook: Hook, key: str) -> set[int]:
    state = hook.key(key)
    return {it["pid"] for it in state["members"].values()} if state is not None else set()


def test_command_takes_the_place_of_run_with_its_pid_and_is_in_a_group_of_its_own(hook: Hook) -> None:
    with running(hook, "--key=nightly") as process:
        assert Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"sh\0-c\0")
        assert members(hook, "nightly") == {process.pid}
        assert process.pid in hook.tasks("oci-nightly")
        (listed,) = hook.answer("list")["keys"]
        assert (listed["kind"], listed["key"], listed["name"], listed["state"]) == ("job", "nightly", "nightly", "live")
        assert hook.answer("show", "nightly")["members_alive"] == 1
        assert 'key="nightly"' in hook.ask("metrics").stdout
    outcome = hook.ask("reconcile", "--json")
    assert [it["action"] for it in json.loads(outcome.stdout)["actions"]] == ["drop"]
    hook.assert_clean()


def test_job_without_a_name_is_named_by_pid_and_start_time(hook: Hook) -> None:
    with running(hook) as process:
        (key,) = [path.stem for path in (hook.run_dir / "groups").iterdir()]
        born = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        assert key == f"job-{process.pid}-{born}"


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", -signal.SIGTERM)])
def test_exit_status_and_signals_are_the_commands_own(hook: Hook, script: str, status: int) -> None:
    assert hook.ask("run", "--", "sh", "-c", script).status == status


def test_command_has_the_environment_of_run(hook: Hook) -> None:
    """The umask, ignored signals, open files and the directory are those that run was started with."""
    script = "umask; grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status; ls /proc/self/fd | wc -l; pwd; env | sort"
    shell = ["sh", "-c", script]
    setting = ["sh", "-c", 'umask 027; trap "" USR1; cd /usr; exec "$@"', "sh"]
    wanted = subprocess.run([*setting, *shell], env={"PLACE": "x"}, capture_output=True, text=True, check=True)
    outcome = finish(replace(hook, wrapper=setting).open("run", "--", *shell, env={"PLACE": "x"}))
    assert (outcome.status, outcome.stderr) == (0, "")
    assert outcome.stdout == wanted.stdout


@pytest.mark.parametrize(("command", "status"), [("no-such-command", 127), ("/tmp", 126), ("/etc/passwd", 126)])
def test_command_that_cannot_be_started_leaves_nothing(hook: Hook, command: str, status: int) -> None:
    outcome = hook.ask("run", "--key=a", "--", command)
    assert (outcome.status, outcome.stdout, outcome.stderr.count("\n")) == (status, "", 1)
    assert command in outcome.stderr
    hook.assert_clean()


def test_command_that_the_kernel_refuses_after_all_leaves_nothing(hook: Hook, tmp_path: Path) -> None:
    for text, status in (("no shebang", 126), ("#!/nowhere\n", 127)):
        script = tmp_path / "script"
        script.write_text(text)
        script.chmod(0o755)
        outcome = hook.ask("run", "--key=a", "--", str(script))
        assert (outcome.status, outcome.stderr.count("\n")) == (status, 1)
        hook.assert_clean()


def test_run_without_a_command_is_a_wrong_command_line(hook: Hook) -> None:
    for words in ([], ["--"], ["--key=a"], ["true"]):
        outcome = hook.ask("run", *words)
        assert (outcome.status, outcome.stderr.count("\n")) == (2, 1)
    hook.assert_clean()


def test_assigned_processes_are_in_the_group_with_threads_and_children_until_release(hook: Hook) -> None:
    with family() as first, task() as second:
        assert hook.ask("assign", "--key=batch", str(first.pid), str(second.pid)) == WELL
        child = int(Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text())
        threads = {int(it) for it in os.listdir(f"/proc/{first.pid}/task")}
        assert hook.tasks("oci-batch") == threads | {child, second.pid}
        assert hook.ask("reconcile", "--dry-run").stdout == "nothing to do\n"
        assert hook.ask("assign", "--key=batch", str(second.pid)) == WELL  # once more
        assert members(hook, "batch") == {first.pid, second.pid}
        assert hook.ask("release", "--key=batch") == WELL
        hook.assert_clean()
        again = hook.ask("release", "--key=batch")
        assert (again.status, again.stderr.count("\n")) == (0, 1)


def test_what_a_job_used_is_in_the_history(hook: Hook, tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    assert hook.ask("run", "--key=nightly", f"--history={file}", "--", "true").status == 0
    hook.ask("reconcile")
    (line,) = map(json.loads, file.read_text().splitlines())
    assert (line["kind"], line["key"], len(line["containers"])) == ("job", "nightly", 1)
    assert hook.ask("history", "nightly", f"--history={file}").stdout.count("nightly") == 1


# --- Bad input


@pytest.mark.parametrize("key", ["../x", "/etc", "--force", "", UID, UID.replace("-", ""), ID, "x" * 65, "a b", "-x"])
def test_key_that_is_none_is_refused(hook: Hook, init: Task, key: str) -> None:
    for words in (["assign", f"--key={key}", str(init.pid)], ["run", f"--key={key}", "--", "true"]):
        outcome = hook.ask(*words)
        assert (outcome.status, outcome.stderr.count("\n")) == (65, 1)
        assert repr(key[:80]) in outcome.stderr
    hook.assert_clean()


def test_key_and_id_of_a_container_are_refused_and_its_process_too(hook: Hook) -> None:
    with task() as init, task() as other, container_cgroup(UID, ID) as own:
        own.add(init.pid)
        assert hook(created("web", other.pid)).status == 0
        assert hook(created(ID, init.pid, pod_uid=UID)).status == 0
        before = hook.key("web"), hook.groups()
        with task() as mine:
            assert hook.ask("assign", "--key=web", str(mine.pid)).status == 65
            assert hook.ask("release", "--key=web").status == 65
        outcome = hook.ask("assign", "--key=a", str(init.pid))
        assert (outcome.status, str(init.pid) in outcome.stderr, ID in outcome.stderr) == (2, True, True)
        assert (hook.key("web"), hook.groups()) == before


def test_processes_that_cannot_join_are_named_and_nothing_is_half_done(hook: Hook, init: Task) -> None:
    with subprocess.Popen(["true"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        pids = {zombie.pid: "zombie", 2**22 + 1: "no process", 1: "process 1"}
        with family() as other:
            thread = next(int(it) for it in os.listdir(f"/proc/{other.pid}/task") if int(it) != other.pid)
            for pid, word in {**pids, thread: "thread"}.items():
                outcome = hook.ask("assign", "--key=a", str(init.pid), str(pid))
                assert (outcome.status, outcome.stderr.count("\n")) == (2, 1)
                assert str(pid) in outcome.stderr
                assert word in outcome.stderr
    for word in ("x", "-1", "1.5", "9" * 30):
        outcome = hook.ask("assign", "--key=a", str(init.pid), word)
        assert (outcome.status, outcome.stderr.count("\n")) == (2, 1)
    for words in (["assign", "--key=a"], ["assign", str(init.pid)], ["release"]):
        assert hook.ask(*words).status == 2
    hook.assert_clean()


def test_process_in_another_class_or_in_another_tools_group_is_refused(hook: Hook, init: Task) -> None:
    gold, theirs = hook.resctrl_root / "gold", hook.resctrl_root / "mon_groups" / "theirs"
    gold.mkdir()
    theirs.mkdir()
    with task() as other, task() as third:
        (gold / "tasks").write_text(str(other.pid))
        (theirs / "tasks").write_text(str(third.pid))
        for pid, word in ((other.pid, "gold"), (third.pid, "theirs")):
            outcome = hook.ask("assign", "--key=a", str(init.pid), str(pid))
            assert (outcome.status, outcome.stderr.count("\n")) == (78, 1)
            assert str(pid) in outcome.stderr
            assert word in outcome.stderr
        assert hook.groups() == {"theirs"}
        assert hook.ask("assign", "--key=golden", str(other.pid)) == WELL  # a job of its own class
        assert hook.groups() == {"theirs", "gold/oci-golden"}
        assert hook.ask("assign", "--key=golden", str(init.pid)).status == 78


@pytest.mark.knobs(rmids=2)
def test_without_rmids_nothing_is_started(hook: Hook, init: Task) -> None:
    assert hook.ask("assign", "--key=a", str(init.pid)) == WELL
    with task() as other:
        outcome = hook.ask("assign", "--key=b", str(other.pid))
        assert (outcome.status, outcome.stderr.count("\n")) == (75, 1)
    outcome = hook.ask("run", "--", "echo", "started")
    assert (outcome.status, outcome.stdout) == (75, "")
    assert hook.groups() == {"oci-a"}
    assert hook.key("b") is None


def test_job_in_a_job_is_refused(hook: Hook) -> None:
    with running(hook, "--key=outer") as outer:
        outcome = hook.ask("assign", "--key=inner", str(outer.pid))
        assert (outcome.status, "outer" in outcome.stderr) == (2, True)
