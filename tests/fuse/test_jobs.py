# SPDX-License-Identifier: Apache-2.0
"""run, assign and release, by the shipped file, with real processes. In every order: tests.simulator."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from tests.support.cgroups import container_cgroup
from tests.support.containers import REPOSITORY
from tests.support.hook import UID, Hook, Outcome, Task, created, end, finish, task
from tests.support.waiting import wait

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


def test_command_that_cannot_be_started_leaves_nothing(hook: Hook, tmp_path: Path) -> None:
    """Also one that the kernel refuses after all."""
    commands = {"no-such-command": 127, "/tmp": 126, "/etc/passwd": 126}
    for name, text, status in (("text", "no shebang", 126), ("script", "#!/nowhere\n", 127)):
        script = tmp_path / name
        script.write_text(text)
        script.chmod(0o755)
        commands[str(script)] = status
    for command, status in commands.items():
        outcome = hook.ask("run", "--key=a", "--", command)
        assert (outcome.status, outcome.stdout, outcome.stderr.count("\n")) == (status, "", 1)
        assert command in outcome.stderr
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


def test_labels_of_a_job_are_on_the_screens_in_its_metrics_and_in_its_line(hook: Hook, tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    labels = {"user": "alice", "project": 'J\u00f6rg "x"'}
    words = [f"--label={name}={text}" for name, text in labels.items()]
    with running(hook, "--key=nightly", f"--history={file}", *words) as process:
        assert hook.answer("list")["keys"][0]["labels"] == hook.answer("show", "nightly")["labels"] == labels
        assert r'user=alice,project=J\xf6rg\x20"x"' in hook.ask("list").stdout
        assert r'label_user="alice",label_project="J\\xf6rg \"x\""' in hook.ask("metrics").stdout
        refused(hook, 65, "user=alice", "assign", "--key=nightly", "--label=user=bob", str(process.pid))
    hook.ask("reconcile")
    (line,) = map(json.loads, file.read_text().splitlines())
    jsonschema.validate(line, json.loads((REPOSITORY / "docs/history.schema.json").read_text()))
    assert line["labels"] == labels
    assert "alice  " in hook.ask("history", "--by=user", f"--history={file}").stdout


# --- Whose a process is

ADOPTING = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
first = os.fork()
if not first:
    sys.stdin.readline()
    second = os.fork()
    if second:
        print(second, flush=True)
    sys.stdin.readline()
    sys.exit()
print(first, flush=True)
os.waitid(os.P_PID, first, os.WEXITED)
print("reaped", flush=True)
sys.stdin.read()
"""
"""A subreaper, whose child forks at the first line and ends at the second; what it forked ends with its stdin."""
AGAIN = """\
import ctypes, os, struct, sys
pid = ctypes.c_int(int(sys.argv[1]))
given = struct.pack("11Q", 0, 0, 0, 0, 17, 0, 0, 0, ctypes.addressof(pid), 1, 0)  # struct clone_args, SIGCHLD
if not ctypes.CDLL(None).syscall(435, given, len(given)):  # clone3(2)
    os.execvp("sleep", ["sleep", "infinity"])
print("ready", flush=True)
sys.stdin.read()
os.kill(pid.value, 9)
"""
"""Starts a process with a given pid."""


def test_process_that_takes_the_pid_while_assign_waits_for_the_lock_does_not_join(hook: Hook) -> None:
    with task() as first, task() as other, ExitStack() as stack:
        assert hook.ask("assign", "--key=batch", str(other.pid)) == WELL
        lock = stack.enter_context((hook.run_dir / "locks/batch").open())
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = ["--key=batch", "--lock-timeout=60", str(first.pid)]
        assign = stack.enter_context(hook.open("assign", *words))
        wait(lambda: f"-> FLOCK  ADVISORY  WRITE {assign.pid} " in Path("/proc/locks").read_text())
        end(first)
        again = [sys.executable, "-ISc", AGAIN, str(first.pid)]
        taker = stack.enter_context(subprocess.Popen(again, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert taker.stdout is not None
        assert taker.stdout.readline() == b"ready\n"
        lock.close()
        outcome = finish(assign)
        assert (outcome.status, f"process {first.pid} is gone" in outcome.stderr) == (2, True)
        assert Path(f"/proc/{first.pid}/comm").read_text() == "sleep\n"
        assert hook.tasks("oci-batch") == {other.pid}
        taker.communicate()


def test_what_a_job_left_to_a_subreaper_of_another_job_stays_in_its_group(hook: Hook) -> None:
    command = [sys.executable, "-ISc", ADOPTING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        first = int(parent.stdout.readline())
        assert hook.ask("assign", "--key=a", str(first)) == WELL
        parent.stdin.write(b"\n")
        second = int(parent.stdout.readline())
        assert hook.tasks("oci-a") == {first, second}
        assert hook.ask("assign", "--key=b", str(parent.pid)) == WELL
        parent.stdin.write(b"\n")
        assert parent.stdout.readline() == b"reaped\n"
        for _ in range(2):
            hook.ask("reconcile")
            assert (hook.tasks("oci-a"), hook.tasks("oci-b")) == ({second}, {parent.pid})


# --- Bad input: which statuses there are. Each reason is in tests/unit/test_jobs.py


def refused(hook: Hook, status: int, word: object, *words: str) -> None:
    outcome = hook.ask(*words)
    assert (outcome.status, outcome.stdout, outcome.stderr.count("\n")) == (status, "", 1), words
    assert str(word) in outcome.stderr


def test_wrong_command_lines_and_keys_are_refused(hook: Hook, init: Task) -> None:
    for words in (["run"], ["run", "--"], ["run", "--key=a"], ["run", "true"], ["assign", "--key=a"], ["release"]):
        refused(hook, 2, "", *words)
    for pid in ("x", "-1", "1.5", "9" * 30):
        refused(hook, 2, "", "assign", "--key=a", str(init.pid), pid)
    for key in ("../x", "--force", "", UID, "x" * 65):
        refused(hook, 65, repr(key[:80]), "assign", f"--key={key}", str(init.pid))
        refused(hook, 65, repr(key[:80]), "run", f"--key={key}", "--", "true")
    hook.assert_clean()


def test_key_and_process_of_a_container_are_refused(hook: Hook) -> None:
    with task() as init, task() as other, container_cgroup(UID, ID) as own:
        own.add(init.pid)
        assert hook(created("web", other.pid)).status == 0
        assert hook(created(ID, init.pid, pod_uid=UID)).status == 0
        before = hook.key("web"), hook.groups()
        with task() as mine:
            refused(hook, 65, "web", "assign", "--key=web", str(mine.pid))
            refused(hook, 65, "web", "release", "--key=web")
        refused(hook, 2, ID, "assign", "--key=a", str(init.pid))
        assert (hook.key("web"), hook.groups()) == before


def test_processes_that_cannot_join_are_named_and_the_others_do_not_join_either(hook: Hook, init: Task) -> None:
    with subprocess.Popen(["true"]) as zombie, family() as other:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        thread = next(int(it) for it in os.listdir(f"/proc/{other.pid}/task") if int(it) != other.pid)
        for pid, word in {zombie.pid: "zombie", 2**22 + 1: "no process", 1: "process 1", thread: "thread"}.items():
            refused(hook, 2, f"{word}", "assign", "--key=a", str(init.pid), str(pid))
    hook.assert_clean()


def test_process_in_another_class_is_refused(hook: Hook, init: Task) -> None:
    gold = hook.resctrl_root / "gold"
    gold.mkdir()
    with task() as other:
        (gold / "tasks").write_text(str(other.pid))
        refused(hook, 78, "gold", "assign", "--key=a", str(init.pid), str(other.pid))
        assert hook.groups() == set()
        assert hook.ask("assign", "--key=golden", str(other.pid)) == WELL  # a job of its own class
        assert hook.groups() == {"gold/oci-golden"}


@pytest.mark.knobs(rmids=2)
def test_without_rmids_nothing_is_started(hook: Hook, init: Task) -> None:
    assert hook.ask("assign", "--key=a", str(init.pid)) == WELL
    refused(hook, 75, "no RMID", "run", "--key=b", "--", "echo", "started")
    assert hook.groups() == {"oci-a"}
    assert hook.key("b") is None
