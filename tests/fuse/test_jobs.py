# SPDX-License-Identifier: Apache-2.0
"""run, assign and release, by the shipped file, with real processes.

In every order: tests.simulator.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.cgroups import container_cgroup
from tests.support.containers import REPOSITORY
from tests.support.devlog import DevLog
from tests.support.hook import UID, Hook, Outcome, Task, created, end, finish, shipped, task
from tests.support.waiting import wait
from tests.unit.documents import blocks, page

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
    with subprocess.Popen(
        [sys.executable, "-ISc", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def members(hook: Hook, key: str) -> set[int]:
    state = hook.key(key)
    return {member["pid"] for member in state["members"].values()} if state is not None else set()


def name(pid: int) -> str:
    """Return the name of a process as a member of a job."""
    born = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"job-{pid}-{born}"


def test_command_takes_the_place_of_run_with_its_pid_and_is_in_a_group_of_its_own(
    hook: Hook,
) -> None:
    with running(hook, "--key=nightly") as process:
        assert Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"sh\0-c\0")
        assert members(hook, "nightly") == {process.pid}
        assert process.pid in hook.tasks("oci-nightly")
        (listed,) = hook.answer("list")["keys"]
        assert (listed["kind"], listed["key"], listed["name"], listed["state"]) == (
            "job",
            "nightly",
            "nightly",
            "live",
        )
        assert hook.answer("show", "nightly")["members_alive"] == 1
        assert 'key="nightly"' in hook.ask("metrics").stdout
    outcome = hook.ask("reconcile", "--json")
    assert [action["action"] for action in json.loads(outcome.stdout)["actions"]] == ["drop"]
    hook.assert_clean()


def test_job_without_a_name_is_named_by_pid_and_start_time(hook: Hook) -> None:
    with running(hook) as process:
        (key,) = [path.stem for path in (hook.run_dir / "groups").iterdir()]
        assert key == name(process.pid)


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", -signal.SIGTERM)]
)
def test_exit_status_and_signals_are_the_commands_own(hook: Hook, script: str, status: int) -> None:
    assert hook.ask("run", "--", "sh", "-c", script).status == status


SETTING = """\
import os, signal, sys
for number in (signal.SIGUSR1, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
    ignored = number in (signal.SIGUSR1, signal.SIGCHLD)
    signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
os.umask(0o027)
os.chdir("/usr")
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Executes a program with a umask, signals and a directory of its own."""


def test_command_has_the_environment_of_run(hook: Hook) -> None:
    """The umask, ignored signals, open files and the directory are those
    that run was started with.
    """
    shell = ["sh", "-c", "umask; ls /proc/self/fd | wc -l; pwd; env | sort"]
    status = ["grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"]  # a shell changes them
    setting = [sys.executable, "-ISc", SETTING]
    for words, command in itertools.product(([], ["--wait"]), (shell, status)):
        wanted = subprocess.run(
            [*setting, *command], env={"PLACE": "x"}, capture_output=True, text=True, check=True
        )
        outcome = finish(
            replace(hook, wrapper=setting).open("run", *words, "--", *command, env={"PLACE": "x"})
        )
        assert (outcome.status, outcome.stderr, outcome.stdout) == (0, "", wanted.stdout)


ODD = """\
import ctypes, sys
libc = ctypes.CDLL(None)
entries, words = ([*map(str.encode, text)] for text in (sys.argv[1].split("|"), sys.argv[2:]))
lists = ((ctypes.c_char_p * (len(texts) + 1))(*texts, None) for texts in (words, entries))
libc.execve(words[0], *lists)
"""
"""Executes a program with an environment of any entries, as no function of Python does."""


@pytest.mark.parametrize("is_mounted", [True, False])
@pytest.mark.parametrize("words", [(), ("--wait",)])
@pytest.mark.parametrize(
    ("entries", "around"),
    [
        ("=x|A=1|NOTHING|A=2|=|==|B=", ""),
        ("TZ=:/dev/zero|A=1|TZ=UTC|LC_CTYPE=C|LC_CTYPE=POSIX|LANG=C", ""),
        ("A=\udcff|TZ=Asia/Kolkata", "mount -t tmpfs none /proc"),
        ("A=1|=x", "mount -t tmpfs none /proc; mount -t tmpfs none /sys"),
    ],
)
def test_command_has_each_entry_of_the_environment_as_it_came(
    hook: Hook,
    tmp_path: Path,
    entries: str,
    around: str,
    words: tuple[str, ...],
    *,
    is_mounted: bool,
) -> None:
    """Entries without a name, without =, twice, in their order;
    also after a failure in syslog, and without /proc.
    """
    shell = ["unshare", "--mount", "sh", "-ec", f'{around or ":"}; exec "$@"', "sh"]
    odd = [
        sys.executable,
        "-ISc",
        ODD.replace("str.encode", "os.fsencode").replace("ctypes,", "ctypes, os,"),
        entries,
    ]
    with DevLog(tmp_path) as log:
        place = hook if is_mounted else replace(hook, resctrl_root=tmp_path)
        place = replace(place, wrapper=[*log.wrapper, *shell, *odd])
        outcome = subprocess.run(
            [*place.command("run"), *words, "--key=a", "--", "/usr/bin/env", "-0"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env={"PATH": os.defpath},
        )
    assert (outcome.returncode, os.fsdecode(outcome.stdout).rstrip("\0").split("\0")) == (
        0,
        entries.split("|"),
    )
    fails = not is_mounted or bool(around)
    assert outcome.stderr.count(b"the command runs, and is not monitored") == fails
    assert (b"/proc is not mounted" in outcome.stderr) == bool(around)


@pytest.mark.parametrize(
    ("given", "said", "labels"),
    [
        (["--label=account="], "'account=': not a label's value", {}),
        (["--label=", "--label=user=ann"], "'' is not K=V", {"user": "ann"}),
        (
            ["--label=9=x", "--label=user=ann", "--label=user=bob"],
            "'user=bob': one name has two",
            {"user": "ann"},
        ),
        (
            [f"--label=n{number}=x" for number in range(9)],
            "9 labels",
            {f"n{number}": "x" for number in range(8)},
        ),
        (["--linger=1.5", "--kye=a"], "unrecognized arguments: --linger=1.5 --kye=a", {}),
        (["--lock-timeout=1.2.3"], "'1.2.3' is not a number", {}),
        (["--snapshot-ttl=1.5"], "'1.5' is not a whole number", {}),
        (["x"], "write -- before the command", {}),
        (["--rmid-wait"], "expected one argument", None),
        (["--wait", "--kye=a"], "unrecognized arguments: --kye=a", {}),
        (["--wait", "--rmid-wait"], "expected one argument", None),
    ],
)
def test_wrong_option_is_said_and_ignored_and_the_command_runs_or_with_strict_it_is_refused(
    hook: Hook, given: list[str], said: str, labels: dict[str, str] | None
) -> None:
    """With a line in syslog if the process did not join."""
    with hook.open(
        "run",
        "--key=a",
        *given,
        "--",
        "sh",
        "-c",
        "echo ready; read line; exit 7",
        stdin=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        state = hook.key("a")
        assert (state and state["job_labels"]) == labels
        stdout, stderr = process.communicate(b"\n")
    assert (process.returncode, stdout, said in stderr.decode()) == (7, b"", True)
    assert (b"is not monitored" in stderr) == (labels is None)
    hook.ask("reconcile")
    expect_refusal(hook, 2, said, "run", "--strict", "--key=a", *given, "--", "echo", "started")
    hook.assert_clean()


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


def test_assigned_processes_are_in_the_group_with_threads_and_children_until_release(
    hook: Hook,
) -> None:
    with family() as first, task() as second:
        assert hook.ask("assign", "--key=batch", str(first.pid), str(second.pid)) == WELL
        child = int(Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text())
        threads = {int(tid) for tid in os.listdir(f"/proc/{first.pid}/task")}
        assert hook.tasks("oci-batch") == threads | {child, second.pid}
        assert hook.ask("reconcile", "--dry-run").stdout == "nothing to do\n"
        assert hook.ask("assign", "--key=batch", str(second.pid)) == WELL  # once more
        assert members(hook, "batch") == {first.pid, second.pid}
        assert hook.ask("release", "--key=batch") == WELL
        hook.assert_clean()
        again = hook.ask("release", "--key=batch")
        assert (again.status, again.stderr.count("\n")) == (0, 1)


def test_labels_of_a_job_are_on_the_screens_in_its_metrics_and_in_its_line(
    hook: Hook, tmp_path: Path
) -> None:
    file = tmp_path / "history.jsonl"
    labels = {"user": "alice", "project": 'J\u00f6rg "x"'}
    words = [f"--label={name}={text}" for name, text in labels.items()]
    with running(hook, "--key=nightly", f"--history={file}", *words) as process:
        assert (
            hook.answer("list")["keys"][0]["labels"]
            == hook.answer("show", "nightly")["labels"]
            == labels
        )
        assert r'user=alice,project=J\xf6rg\x20"x"' in hook.ask("list").stdout
        assert r'label_user="alice",label_project="J\\xf6rg \"x\""' in hook.ask("metrics").stdout
        expect_refusal(
            hook, 65, "user=alice", "assign", "--key=nightly", "--label=user=bob", str(process.pid)
        )
    hook.ask("reconcile")
    (line,) = map(json.loads, file.read_text().splitlines())
    jsonschema.validate(line, json.loads((REPOSITORY / "docs/history.schema.json").read_text()))
    assert (line["kind"], line["key"], len(line["containers"]), line["labels"]) == (
        "job",
        "nightly",
        1,
        labels,
    )
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
    sys.stdin.read()
    sys.exit()
print(first, flush=True)
os.waitid(os.P_PID, first, os.WEXITED)
print("reaped", flush=True)
sys.stdin.read()
"""
"""A subreaper, whose child forks at a line; all of them end with their stdin."""
AGAIN = """\
import ctypes, os, struct, sys
pid = ctypes.c_int(int(sys.argv[1]))
# struct clone_args, SIGCHLD
given = struct.pack("11Q", 0, 0, 0, 0, 17, 0, 0, 0, ctypes.addressof(pid), 1, 0)
if not ctypes.CDLL(None).syscall(435, given, len(given)):  # clone3(2)
    os.execvp("sleep", ["sleep", "infinity"])
print("ready", flush=True)
sys.stdin.read()
os.kill(pid.value, 9)
"""
"""Starts a process with a given pid."""


def test_process_that_takes_the_pid_while_assign_waits_for_the_lock_does_not_join(
    hook: Hook,
) -> None:
    """Nor later: the record of the failure is about the process that was there."""
    with task() as first, task() as other, ExitStack() as stack:
        assert hook.ask("assign", "--key=batch", str(other.pid)) == WELL
        lock = stack.enter_context((hook.run_dir / "locks/batch").open())
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = ["--key=batch", "--lock-timeout=60", str(first.pid)]
        assign = stack.enter_context(hook.open("assign", *words))
        wait(lambda: f"-> FLOCK  ADVISORY  WRITE {assign.pid} " in Path("/proc/locks").read_text())
        recorded = name(first.pid)
        end(first)
        again = [sys.executable, "-ISc", AGAIN, str(first.pid)]
        taker = stack.enter_context(
            subprocess.Popen(again, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        assert taker.stdout is not None
        assert taker.stdout.readline() == b"ready\n"
        lock.close()
        outcome = finish(assign)
        assert (outcome.status, f"process {first.pid} is gone" in outcome.stderr) == (2, True)
        assert Path(f"/proc/{first.pid}/comm").read_text() == "sleep\n"
        assert hook.failures().keys() == {recorded}
        hook.ask("reconcile")
        assert (hook.tasks("oci-batch"), hook.failures()) == ({other.pid}, {})
        taker.communicate()


def test_what_a_job_left_to_a_subreaper_of_another_job_stays_in_its_group(hook: Hook) -> None:
    command = [sys.executable, "-ISc", ADOPTING]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        first = int(parent.stdout.readline())
        assert hook.ask("assign", "--key=a", str(first)) == WELL
        parent.stdin.write(b"\n")
        second = int(parent.stdout.readline())
        assert hook.tasks("oci-a") == {first, second}
        assert hook.ask("assign", "--key=b", str(parent.pid)) == WELL
        os.kill(first, signal.SIGTERM)
        assert parent.stdout.readline() == b"reaped\n"
        for _ in range(2):
            hook.ask("reconcile")
            assert (hook.tasks("oci-a"), hook.tasks("oci-b")) == ({second}, {parent.pid})


def test_members_child_stays_in_its_group_when_a_call_fails_and_when_its_release_is_refused(
    hook: Hook,
) -> None:
    with family() as parent, task() as other, ExitStack() as stack:
        assert hook.ask("assign", "--key=a", str(parent.pid)) == WELL
        child = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().strip()
        inside = hook.tasks("oci-a")
        lock = stack.enter_context((hook.run_dir / f"locks/{name(other.pid):-<65}").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        assign = stack.enter_context(
            hook.open("assign", "--key=a", "--lock-timeout=60", child, str(other.pid))
        )
        wait(lambda: f"-> FLOCK  ADVISORY  WRITE {assign.pid} " in Path("/proc/locks").read_text())
        assert members(hook, "a") == {parent.pid, int(child)}
        end(other)
        lock.close()
        assert finish(assign).status == 2
        assert (hook.tasks("oci-a"), members(hook, "a")) == (inside, {parent.pid})
        assert hook.ask("assign", "--key=a", child) == WELL
        expect_refusal(hook, 2, f"descends from {name(parent.pid)}", "release", "--key=a", child)
        hook.ask("reconcile")
        assert (hook.tasks("oci-a"), members(hook, "a")) == (inside, {parent.pid, int(child)})
        assert hook.ask("release", "--key=a", child, str(parent.pid)) == WELL
        assert hook.groups() == set()


# --- Bad input: which statuses there are. Each reason is in tests/unit/test_jobs.py


def expect_refusal(hook: Hook, status: int, word: object, *words: str) -> None:
    outcome = hook.ask(*words)
    assert (outcome.status, outcome.stdout, outcome.stderr.count("\n")) == (status, "", 1), words
    assert str(word) in outcome.stderr


def test_wrong_command_lines_and_keys_are_refused(hook: Hook, init: Task) -> None:
    for words in (
        ["run"],
        ["run", "--"],
        ["run", "--key=a"],
        ["run", "true"],
        ["assign", "--key=a"],
        ["release"],
    ):
        expect_refusal(hook, 2, "", *words)
    for pid in ("x", "-1", "1.5", "9" * 30):
        expect_refusal(hook, 2, "", "assign", "--key=a", str(init.pid), pid)
    for key in ("../x", "--force", "", UID, "x" * 65):
        expect_refusal(hook, 65, repr(key[:80]), "assign", f"--key={key}", str(init.pid))
        expect_refusal(
            hook, 65, repr(key[:80]), "run", "--strict", f"--key={key}", "--", "echo", "started"
        )
    assert {
        (failure["reason"], failure["key"], failure["pid"]) for failure in hook.failures().values()
    } == {("bad_key", None, init.pid)}


def test_key_and_process_of_a_container_are_refused(hook: Hook) -> None:
    with task() as init, task() as other, container_cgroup(UID, ID) as cgroup:
        cgroup.add(init.pid)
        assert hook(created("web", other.pid)).status == 0
        assert hook(created(ID, init.pid, pod_uid=UID)).status == 0
        before = hook.key("web"), hook.groups()
        with task() as mine:
            expect_refusal(hook, 65, "web", "assign", "--key=web", str(mine.pid))
            expect_refusal(hook, 65, "web", "release", "--key=web")
        expect_refusal(hook, 2, ID, "assign", "--key=a", str(init.pid))
        assert (hook.key("web"), hook.groups()) == before


def test_processes_that_cannot_join_are_named_and_the_others_do_not_join_either(
    hook: Hook, init: Task
) -> None:
    with subprocess.Popen(["true"]) as zombie, family() as other:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        thread = next(
            int(tid) for tid in os.listdir(f"/proc/{other.pid}/task") if int(tid) != other.pid
        )
        for pid, word in {
            zombie.pid: "zombie",
            2**22 + 1: "no process",
            1: "process 1",
            thread: "thread",
        }.items():
            expect_refusal(hook, 2, f"{word}", "assign", "--key=a", str(init.pid), str(pid))
        assert hook.groups() == set()
        assert {failure["pid"]: failure["reason"] for failure in hook.failures().values()} == {
            init.pid: "task_gone"
        }


def test_process_in_another_class_is_refused(hook: Hook, init: Task) -> None:
    gold = hook.resctrl_root / "gold"
    gold.mkdir()
    with task() as other:
        (gold / "tasks").write_text(str(other.pid))
        expect_refusal(hook, 78, "gold", "assign", "--key=a", str(init.pid), str(other.pid))
        assert hook.groups() == set()
        assert hook.ask("assign", "--key=golden", str(other.pid)) == WELL  # a job of its own class
        assert hook.groups() == {"gold/oci-golden"}


# --- run fails open, and a failed assign is tried again


@contextmanager
def unmounted(hook: Hook) -> Iterator[Hook]:
    """A hook that finds no resctrl."""
    yield replace(hook, resctrl_root=hook.run_dir.parent)


@contextmanager
def without_rmids(hook: Hook) -> Iterator[Hook]:
    """Other jobs have all RMIDs."""
    with task() as first, task() as second:
        for other in (first, second):
            assert hook.ask("assign", f"--key=other-{other.pid}", str(other.pid)) == WELL
        yield hook


@contextmanager
def locked(hook: Hook) -> Iterator[Hook]:
    """Another process holds the lock of the key."""
    with task() as other:
        assert hook.ask("assign", "--key=a", str(other.pid)) == WELL
        with (hook.run_dir / "locks/a").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield hook


@contextmanager
def of_other_class(hook: Hook) -> Iterator[Hook]:
    """The job is of a class that the process is not in."""
    gold = hook.resctrl_root / "gold"
    gold.mkdir()
    with task() as other:
        (gold / "tasks").write_text(str(other.pid))
        assert hook.ask("assign", "--key=a", str(other.pid)) == WELL
        yield hook


@contextmanager
def without_directory(hook: Hook) -> Iterator[Hook]:
    """The run directory can be no directory."""
    yield replace(hook, run_dir=hook.resctrl_root / "info/last_cmd_status")


@pytest.mark.knobs(rmids=3)
@pytest.mark.parametrize(
    ("happens", "status", "reason"),
    [
        (unmounted, 69, "not_mounted"),
        (without_rmids, 75, "no_rmids"),
        (locked, 75, "lock_timeout"),
        (of_other_class, 78, "no_ctrl_group"),
        (without_directory, 2, "io"),
    ],
)
def test_run_that_cannot_join_executes_the_command_with_the_three_traces_or_refuses(
    hook: Hook,
    tmp_path: Path,
    happens: Callable[[Hook], AbstractContextManager[Hook]],
    status: int,
    reason: str,
) -> None:
    """A failed assign has the traces as well, and its answer in JSON says why."""
    words = ["--lock-timeout=0", "--key=a"]
    with DevLog(tmp_path) as log, happens(hook) as broken, task() as other:
        logging = replace(broken, wrapper=log.wrapper)
        expect_refusal(logging, status, "", "run", "--strict", *words, "--", "echo", "started")
        assert (len(log.lines()), hook.failures()) == (1, {})
        shell = ["sh", "-c", "echo ready; read line; exit 7"]
        with logging.open("run", *words, "--", *shell, stdin=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            pids = {
                failure["pid"]: (failure["stage"], failure["reason"], failure["key"])
                for failure in hook.failures().values()
            }
            stdout, stderr = process.communicate(b"\n")
        assert (process.returncode, stdout, stderr.count(b"\n")) == (7, b"", 1)
        assert b"the command runs, and is not monitored" in stderr
        outcome = logging.ask("assign", *words, str(other.pid), "--json")
        answer = json.loads(outcome.stdout)
        assert (
            outcome.status,
            outcome.stderr.count("\n"),
            answer["problem"] in outcome.stderr,
        ) == (status, 1, True)
        assert (answer["key"], answer["reason"]) == ("a", reason)
        assert answer["pids"] == [{"pid": other.pid, "outcome": "failed"}]
        if happens != without_directory:
            assert pids == {process.pid: ("run", reason, "a")}
            assert hook.failures().keys() >= {f"job-{other.pid}-{read_start(other.pid)}"}
            listed = {
                problem["key"]: problem["reason"] for problem in hook.answer("list")["unmonitored"]
            }
            assert listed == {"a": reason}
            for verb in ("list", "list unmonitored", "doctor"):
                assert f"a (job-{other.pid}-" in hook.ask(*verb.split()).stdout
            if happens != locked:
                assert "a (job-" in hook.ask("show", "a").stderr + hook.ask("show", "a").stdout
            assert (
                f'resctrl_mon_unmonitored_containers{{reason="{reason}"}} 2'
                in hook.ask("metrics").stdout
            )
        lines = log.lines()
        # That resctrl is not mounted is in the log once in a boot.
        assert [f" of a: {reason}: " in line for line in lines] == [True] * (
            0 if happens == unmounted else 2
        )


def read_start(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


@pytest.mark.knobs(rmids=2)
def test_command_that_could_not_join_does_so_at_the_next_reconcile_and_has_its_line(
    hook: Hook, tmp_path: Path
) -> None:
    words = ["--key=a", f"--history={tmp_path / 'jobs'}"]
    with ExitStack() as stack:
        with task() as other:
            assert hook.ask("assign", "--key=other", str(other.pid)) == WELL
            process = stack.enter_context(running(hook, *words))
            assert hook.tasks("oci-other") == {other.pid}
            assert hook.ask("release", "--key=other") == WELL
        outcome = json.loads(hook.ask("reconcile", "--json").stdout)
        assert [(action["action"], action["name"]) for action in outcome["actions"]] == [
            ("retry", "a")
        ]
        assert (hook.tasks("oci-a"), hook.failures()) == ({process.pid}, {})
    hook.ask("reconcile")
    assert json.loads((tmp_path / "jobs").read_text())["key"] == "a"
    hook.assert_clean()


def test_answers_in_json_name_each_process(hook: Hook) -> None:
    with task() as first, task() as second:
        assert hook.answer("assign", "--key=a", str(first.pid))["pids"] == [
            {"pid": first.pid, "outcome": "joined"}
        ]
        assert hook.answer("assign", "--key=a", str(first.pid), str(second.pid)) == {
            **{"key": "a", "reason": None, "problem": None, "hint": None},
            "pids": [
                {"pid": first.pid, "outcome": "was a member"},
                {"pid": second.pid, "outcome": "joined"},
            ],
        }
        outcome = hook.ask("assign", "--key=b", str(first.pid), "--json")
        assert (outcome.status, json.loads(outcome.stdout)["reason"], hook.failures()) == (
            2,
            "usage",
            {},
        )
        released = hook.answer("release", "--key=a")
        assert released == {
            **{"key": "a", "reason": None, "problem": None, "hint": None},
            "released": True,
        }
        outcome = hook.ask("release", "--key=a", "--json")
        assert (outcome.status, json.loads(outcome.stdout)["released"]) == (0, False)


def test_ordinary_user_reads_that_root_is_needed_and_has_its_command_run(
    hook: Hook, public_program: Path
) -> None:
    hook = replace(hook, program=public_program)
    for verb, *words in (
        ["run", "--", "id", "-u"],
        ["assign", "--key=a", "1"],
        ["release", "--key=a"],
    ):
        outcome = finish(hook.open(verb, *words, user=65534))
        assert (f"{verb} needs root" in outcome.stderr, outcome.stderr.count("\n")) == (True, 1)
        assert (outcome.status, outcome.stdout) == ((0, "65534\n") if verb == "run" else (2, ""))
    assert finish(hook.open("run", "--strict", "--", "echo", "started", user=65534)).status == 2


def test_of_32_commands_of_one_job_at_once_each_joins_and_is_in_the_line(
    hook: Hook, tmp_path: Path
) -> None:
    words = ["--strict", "--key=a", f"--history={tmp_path / 'jobs'}", "--lock-timeout=60"]
    with ExitStack() as stack:
        started = [stack.enter_context(hook.open("run", *words, "--", "true")) for _ in range(32)]
        assert [finish(process) for process in started] == [WELL] * 32
    hook.ask("reconcile")
    lines = [json.loads(line) for line in (tmp_path / "jobs").read_text().splitlines()]
    assert sum(len(line["containers"]) + line["more_containers"] for line in lines) == 32
    assert {line["key"] for line in lines} == {"a"}
    hook.assert_clean()


# --- run --wait

NOTING = """\
import os, signal, sys
others = map(signal.Signals, map(int, sys.argv[1:]))
caught = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *others}
signal.pthread_sigmask(signal.SIG_BLOCK, caught)
print(os.getpid(), flush=True)
while (number := signal.sigwaitinfo(caught).si_signo) != signal.SIGUSR2:
    print(number, flush=True)
    if number == signal.SIGUSR1 and os.getpgrp() == os.getppid():
        os.kill(0, signal.SIGRTMIN)
sys.exit(7)
"""
"""A command that prints its pid and each signal but those of its arguments, until SIGUSR2.

At SIGUSR1 it sends another one to its process group, if that is one of its own and its parent's."""
ALARMING = """\
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
signal.setitimer(signal.ITIMER_REAL, 1e-6)
while signal.SIGALRM not in signal.sigpending():
    pass
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Executes a program with an alarm that it has not taken yet."""
SHELL = """\
import fcntl, json, os, signal, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
pid = os.fork()
if not pid:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[2], sys.argv[2:])
while True:
    _, status = os.waitpid(pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        sys.exit(os.waitstatus_to_exitcode(status))
    print("stopped", flush=True)
    os.read(int(sys.argv[1]), 1)
    os.killpg(pid, signal.SIGCONT)
"""
"""A shell whose only job has the terminal on stdin;
a descriptor says when the job goes on that has stopped.
"""


@contextmanager
def waiting(
    hook: Hook,
    *words: str,
    command: Sequence[str] = (),
    **streams: Any,  # noqa: ANN401
) -> Iterator[tuple[Task, int]]:
    """`run --wait`, and its command's pid."""
    with hook.open(
        "run", "--wait", *words, "--", *(command or [sys.executable, "-ISc", NOTING]), **streams
    ) as parent:
        try:
            assert parent.stdout is not None
            yield parent, int(parent.stdout.readline())
        finally:
            parent.kill()


def read_lines(process: Task, count: int) -> list[int]:
    assert process.stdout is not None
    return [int(process.stdout.readline()) for _ in range(count)]


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)],
)
def test_run_that_waits_has_the_status_as_of_a_shell_and_ends_the_job(
    hook: Hook, tmp_path: Path, script: str, status: int
) -> None:
    """Also if its caller ignores SIGCHLD, and what the command has left behind lives."""
    hook = replace(hook, wrapper=[sys.executable, "-ISc", SETTING])
    words = [
        f"--history={tmp_path / 'jobs'}",
        "--",
        "sh",
        "-c",
        f"sleep 600 >&- 2>&- & echo $!; {script}",
    ]
    outcome = hook.ask("run", "--wait", "--key=a", *words)
    assert (outcome.status, outcome.stderr) == (status, "")
    left = int(outcome.stdout)
    assert left in {int(line) for line in (hook.resctrl_root / "tasks").read_text().split()}
    os.kill(left, signal.SIGKILL)
    hook.assert_clean()
    (line,) = map(json.loads, (tmp_path / "jobs").read_text().splitlines())
    assert (line["key"], line["runs"]) == ("a", 1)


def test_command_that_cannot_be_started_under_run_that_waits_leaves_nothing(hook: Hook) -> None:
    expect_refusal(hook, 127, "no-such-command", "run", "--wait", "--", "no-such-command")
    expect_refusal(hook, 126, "/tmp", "run", "--wait", "--key=a", "--", "/tmp")
    hook.assert_clean()


def test_signals_to_run_that_waits_reach_the_command_once(hook: Hook) -> None:
    """So does an alarm that its caller has set, although the kernel sends that."""
    hook = replace(hook, wrapper=[sys.executable, "-ISc", ALARMING])
    numbers = signal.valid_signals() - {
        signal.SIGKILL,
        signal.SIGSTOP,
        signal.SIGCHLD,
        signal.SIGUSR2,
        signal.SIGCONT,
    }
    with waiting(hook, "--key=a") as (parent, pid):
        assert (members(hook, "a"), hook.tasks("oci-a")) == ({pid}, {pid})
        assert read_lines(parent, 1) == [signal.SIGALRM]
        for number in sorted(numbers):
            os.kill(parent.pid, number)
            assert read_lines(parent, 1) == [number]
        os.kill(parent.pid, signal.SIGUSR2)
        assert finish(parent) == Outcome(7, "", "")
    hook.assert_clean()


def test_signals_of_the_terminal_reach_the_command_of_run_that_waits_once_and_both_stop_and_go_on(
    hook: Hook,
) -> None:
    control, terminal = os.openpty()
    read_end, go_on = os.pipe()
    job = [
        *replace(hook, options=()).command("run"),
        "--wait",
        "--key=a",
        "--",
        sys.executable,
        "-ISc",
        NOTING,
    ]
    shell = [
        sys.executable,
        "-ISc",
        SHELL,
        str(read_end),
        *job,
        str(int(signal.SIGTSTP)),
        str(int(signal.SIGCONT)),
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        shell, stdin=terminal, stdout=pipe, stderr=pipe, pass_fds=[read_end]
    ) as process:
        assert process.stdout is not None
        (pid,) = read_lines(process, 1)
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.write(control, b"\x03")
        assert read_lines(process, 1) == [signal.SIGINT]
        os.write(control, b"\x1a")
        assert process.stdout.readline() == b"stopped\n"
        states = [
            Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
            for process in (parent, pid)
        ]
        assert states == ["T", "T"]
        os.write(go_on, b".")
        os.kill(parent, signal.SIGUSR1)
        # And no second SIGINT before.
        assert read_lines(process, 2) == [signal.SIGUSR1, signal.SIGRTMIN]
        os.kill(parent, signal.SIGTSTP)
        assert process.stdout.readline() == b"stopped\n"
        os.write(go_on, b".")
        os.write(control, b"\x1c")
        assert read_lines(process, 1) == [signal.SIGQUIT]
        os.kill(parent, signal.SIGUSR2)
        assert finish(process) == Outcome(7, "", "")
    for number in (control, terminal, read_end, go_on):
        os.close(number)
    hook.assert_clean()


def test_command_of_run_that_was_killed_goes_on_and_reconcile_ends_the_job(hook: Hook) -> None:
    with waiting(hook, "--key=a") as (parent, pid):
        parent.kill()
        parent.wait()
        assert hook.tasks("oci-a") == {pid}
        os.kill(pid, signal.SIGUSR2)
        wait(lambda: not Path(f"/proc/{pid}").exists())
    hook.ask("reconcile")
    hook.assert_clean()


def test_job_of_several_runs_that_wait_ends_with_the_last_one(hook: Hook, tmp_path: Path) -> None:
    history = f"--history={tmp_path / 'jobs'}"
    with (
        waiting(hook, "--key=a", history) as (first, _),
        waiting(hook, "--key=a", history) as (second, pid),
    ):
        first.send_signal(signal.SIGUSR2)
        assert finish(first).status == 7
        assert (members(hook, "a"), hook.tasks("oci-a")) == ({pid}, {pid})
        second.send_signal(signal.SIGUSR2)
        assert finish(second).status == 7
    hook.assert_clean()
    (line,) = map(json.loads, (tmp_path / "jobs").read_text().splitlines())
    assert (line["runs"], len(line["containers"])) == (2, 2)


def test_run_that_waits_holds_no_file_of_the_command_and_does_without_its_own(
    hook: Hook, tmp_path: Path
) -> None:
    """The program may be another version by then,
    and who reads what the command writes waits for its end only.
    """
    program = Path(shutil.copy(shipped(), tmp_path / "program"))
    command = ["sh", "-c", "echo $$; exec sh -c 'read line' >&- 3>&-"]
    read_end, write_end = os.pipe()
    hook = replace(hook, program=program)
    shell = ["bash", "-c", f'exec 3>&{write_end} {write_end}>&-; exec "$@"', "bash"]
    streams = {"stdin": subprocess.PIPE, "pass_fds": [write_end]}
    with waiting(replace(hook, wrapper=shell), "--key=a", command=command, **streams) as (
        parent,
        pid,
    ):
        os.close(write_end)
        assert parent.stdout is not None
        assert (parent.stdout.read(), os.read(read_end, 1)) == (b"", b"")
        assert members(hook, "a") == {pid}
        (tmp_path / "other").write_bytes(b"#!/bin/false\n")
        (tmp_path / "other").rename(program)
        assert finish(parent).status == 1
        assert parent.stderr is not None
    replace(hook, program=None).assert_clean()
    os.close(read_end)


# --- Members that are released alone, and the adapter in docs/jobs.md


def test_released_processes_leave_alone_and_a_child_is_refused(hook: Hook) -> None:
    with family() as first, task() as second, task() as other:
        assert hook.ask("assign", "--key=a", str(first.pid), str(second.pid)) == WELL
        child = int(Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text())
        expect_refusal(hook, 2, "descends from", "release", "--key=a", str(second.pid), str(child))
        expect_refusal(hook, 2, "no pid", "release", "--key=a", "x")
        outcome = hook.ask("release", "--key=a", str(first.pid), str(other.pid), "--json")
        assert (outcome.status, f"process {other.pid} is no member" in outcome.stderr) == (0, True)
        rows = {row["pid"]: row["outcome"] for row in json.loads(outcome.stdout)["pids"]}
        assert rows == {first.pid: "released", other.pid: "not released"}
        assert (members(hook, "a"), hook.tasks("oci-a")) == ({second.pid}, {second.pid})
        assert hook.ask("release", "--key=a", str(second.pid)) == WELL
        hook.assert_clean()


@pytest.mark.knobs(rmids=4)
def test_adapter_of_the_docs_does_what_it_says(hook: Hook, tmp_path: Path) -> None:
    (text,) = blocks(page("docs/jobs.md", "An adapter"))
    assert len(text.splitlines()) <= 60
    module = dict[str, Any]()
    exec(text, module)  # noqa: S102  the text is of the docs
    program = tmp_path / "program"
    call = " ".join(replace(hook, options=()).command('"$verb"'))
    program.write_text(f'#!/bin/sh\nverb=$1\nshift\nexec {call} "$@"\n')
    program.chmod(0o755)
    adapter = module["Monitor"]("toy-", str(program))
    gold = hook.resctrl_root / "gold"
    gold.mkdir()
    with task() as first, task() as second, task() as third:
        adapter.assign("web", first.pid, second.pid)
        # Another user of the node.
        assert hook.ask("assign", "--key=nightly", str(third.pid)) == WELL
        assert (adapter.list_members(), hook.tasks("oci-toy-web")) == (
            {"web": 2},
            {first.pid, second.pid},
        )
        assert isinstance(adapter.read_use("web")["mbm_total_bytes"], (int, float))
        with task() as fourth, task() as fifth:
            (gold / "tasks").write_text(str(fifth.pid))
            for reason, key, pid in (
                ("bad_key", "a/b", fourth.pid),
                ("no_rmids", "db", fourth.pid),
                ("task_gone", "web", 2**22 + 1),
                ("usage", "db", third.pid),
                ("no_ctrl_group", "web", fifth.pid),
            ):
                with pytest.raises(module["MonitorError"]) as caught:
                    adapter.assign(key, pid)
                assert caught.value.args[0] == reason
        assert (
            adapter.remove_member("web", second.pid),
            adapter.remove_member("web", second.pid),
        ) == (True, False)
        adapter.reconcile(["web"])
        assert (adapter.list_members(), hook.groups()) == (
            {"web": 1},
            {"oci-toy-web", "oci-nightly"},
        )
        end(first)
        adapter.reconcile([])
        assert (adapter.list_members(), hook.groups()) == ({}, {"oci-nightly"})
        adapter.assign("db", second.pid)
        assert (adapter.remove("db"), adapter.remove("db"), hook.groups()) == (
            True,
            False,
            {"oci-nightly"},
        )
