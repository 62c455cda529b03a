# SPDX-License-Identifier: Apache-2.0
"""The hook as a process: what it is given and what it is not,
by runtimes that do as they please.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fetch import interpreters
from fetch.interpreters import Interpreter
from tests.support.cgroups import Cgroup, container_cgroup
from tests.support.devlog import DevLog
from tests.support.hook import (
    DEADLINE,
    NATIVE,
    PYZ,
    UID,
    Hook,
    Outcome,
    Task,
    created,
    end,
    finish,
    shipped,
    stopped,
    task,
)

pytestmark = pytest.mark.both_forms


def in_shell(hook: Hook, code: str) -> Hook:
    """The hook as the `$@` of a shell."""
    return replace(hook, wrapper=("sh", "-c", code, "sh"))


# A /dev with nothing in it but a directory in which pytest may have its files.
WITHOUT_DEVICES = (
    "mount -t tmpfs x /mnt; mkdir /mnt/shm; mount --rbind /dev/shm /mnt/shm; mount --move /mnt "
    "/dev; "
)


@pytest.mark.parametrize("before", ["", WITHOUT_DEVICES], ids=["usual", "no /dev/null"])
@pytest.mark.parametrize("missing", [(0,), (1,), (2,), (0, 1, 2), (1, 2)])
def test_closed_descriptors(hook: Hook, init: Task, missing: tuple[int, ...], before: str) -> None:
    """What is opened first would become stdin, stdout or stderr:
    no message may land in a file of ours.
    """
    closed = " ".join(f"{number}<&-" for number in missing)
    code = f'set -e; {before}exec "$@" {closed}'
    wrapped = replace(hook, wrapper=("unshare", "-m", "sh", "-c", code, "sh")).with_options(
        "--no-such-option"
    )
    outcome = wrapped(created("c1", init.pid, pod_uid=UID))
    assert outcome.status == 0
    if 0 in missing:
        assert set(hook.reasons().values()) == {"bad_state"}
    else:
        assert hook.tasks(f"oci-{UID}") == {init.pid}
        assert hook.key(UID)["key"] == UID
    for path in hook.run_dir.glob("*/*.json"):
        json.loads(path.read_text())


def test_a_cwd_that_is_gone(hook: Hook, init: Task, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    assert in_shell(hook, 'rmdir "$PWD"; exec "$@"')(created("c1", init.pid), cwd=gone).stderr == ""
    assert hook.tasks("oci-c1") == {init.pid}


def test_a_hostile_environment(hook: Hook, init: Task, tmp_path: Path) -> None:
    """Python's own variables, and modules of the same names as ours in the cwd, must not matter."""
    for name in ("posix", "select", "hook", "fcntl", "zipimport", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    hostile = {
        "PYTHONPATH": str(tmp_path),
        "PYTHONHOME": "/nowhere",
        "PYTHONINSPECT": "1",
        "LC_ALL": "tr_TR.ISO-8859-9",
    }
    outcome = hook(created("c1", init.pid), env=hostile, cwd=tmp_path)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert hook.tasks("oci-c1") == {init.pid}


def test_the_umask_does_not_matter(hook: Hook, init: Task) -> None:
    masked = in_shell(hook, 'umask 777; exec "$@"')
    masked(created("c1", init.pid))
    view = masked.view("c1").parent
    modes = {
        p.name: oct(p.stat().st_mode & 0o777)
        for p in (hook.run_dir, *hook.run_dir.iterdir())
        if p.is_dir()
    }
    private = dict.fromkeys(
        ("groups", "members", "locks", "unmonitored", "runs", "building"), "0o700"
    )
    assert modes == {"run": "0o755", **private, "mon_groups": "0o755", "mon_data": "0o555"}
    assert {oct(p.lstat().st_mode & 0o777) for p in view.rglob("*") if p.is_dir()} == {"0o755"}
    assert {
        oct(p.lstat().st_mode & 0o777)
        for p in view.rglob("*")
        if p.is_file() and not p.is_symlink()
    } == {"0o644"}
    assert (hook.resctrl_root / "mon_groups" / "oci-c1").stat().st_mode & 0o777 == 0o755


def test_a_user_namespace_is_left_in_silence(hook: Hook, init: Task) -> None:
    wrapped = replace(hook, wrapper=("unshare", "--user", "--map-root-user")).with_options(
        "--strict"
    )
    outcome = wrapped(created("c1", init.pid), verb="createRuntime")
    assert (outcome.status, outcome.stderr) == (0, "")
    assert hook.groups() == set()
    assert not hook.run_dir.exists()


@pytest.mark.parametrize(
    "place", [f"members/.{UID}.tmp", f"groups/.{UID}.tmp", "runs/createRuntime-monitored"]
)
def test_a_fifo_in_place_of_a_file_does_not_block(hook: Hook, init: Task, place: str) -> None:
    """Opened to be written, it used to wait for a reader."""
    hook(created("c1", init.pid, pod_uid=UID))
    (hook.run_dir / place).unlink(missing_ok=True)
    os.mkfifo(hook.run_dir / place)
    with task() as other:
        started = created("c2", other.pid, pod_uid=UID)
        assert replace(hook, wrapper=("timeout", f"{DEADLINE}"))(started).status == 0
        assert hook(started).stderr == ""
        assert hook.tasks(f"oci-{UID}") == {init.pid, other.pid}


def test_a_full_run_directory_makes_no_group(hook: Hook, init: Task) -> None:
    """What cannot be put on record is not begun."""
    hook.run_dir.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=755", "tmpfs", hook.run_dir], check=True
    )
    try:
        subprocess.run(["sh", "-c", f"cat /dev/zero > {hook.run_dir}/filler 2>&-"], check=False)
        outcome = hook(created("c1", init.pid))
        assert outcome.status == 0
        assert "ENOSPC" in outcome.stderr
        assert "full" in outcome.stderr
        assert hook.groups() == set()
        (hook.run_dir / "filler").unlink()
        assert hook(created("c1", init.pid)).stderr == ""
        assert hook.tasks("oci-c1") == {init.pid}
        end(init)
        subprocess.run(["sh", "-c", f"cat /dev/zero > {hook.run_dir}/filler 2>&-"], check=False)
        assert "could not save the final counters of key c1" in hook(stopped("c1")).stderr
        hook.assert_clean()
    finally:
        subprocess.run(["umount", "-l", hook.run_dir], check=True)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DevLog]:
    if os.geteuid() != 0:
        pytest.skip("not root")
    with DevLog(tmp_path) as log:
        yield log


@contextmanager
def on_small_disk(directory: Path) -> Iterator[None]:
    """Mount a tmpfs of 4 KiB on a directory."""
    directory.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k,mode=755", "tmpfs", str(directory)], check=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def test_what_a_full_disk_has_torn_costs_the_next_line_nothing(hook: Hook, tmp_path: Path) -> None:
    file = tmp_path / "log/history.jsonl"
    recording = hook.with_options(f"--history={file}")

    def live(container: str) -> str:
        with task() as init:
            assert recording(created(container, init.pid)).stderr == ""
        outcome = recording(stopped(container))
        assert outcome.status == 0
        recording.assert_clean()
        return outcome.stderr

    with on_small_disk(file.parent):
        file.write_text("x" * 4000 + "\n")
        said = live("c1")
        assert f"io: could not add what key c1 used to {file}" in said
        assert "ENOSPC" in said
        assert hook.answer("list")["history"]["owed"] == [
            {"file": str(file), "why": "No space left on device: ENOSPC", "lines": 1}
        ]
        text = file.read_text()
        assert len(text) == 4096
        subprocess.run(["mount", "-o", "remount,size=64k", str(file.parent)], check=True)
        assert live("c2") == ""
        first, torn, whole = file.read_text().splitlines()
    assert text == f"{first}\n{torn}"
    assert json.loads(whole)["key"] == "c2"


@pytest.mark.form("pyz")
def test_a_file_that_cannot_run_is_one_line_in_syslog_on_the_hook_path(
    tmp_path: Path, log: DevLog
) -> None:
    """It left a traceback on stderr, which runtimes drop, and no trace besides."""
    cut = tmp_path / "cut.pyz"
    cut.write_bytes(PYZ.read_bytes()[:5000])  # its loader is not whole
    cut.chmod(0o755)
    done = subprocess.run(
        [*log.wrapper, cut, "hook"], input=b"{}", capture_output=True, check=False, timeout=300
    )
    assert done.returncode == 0
    (line,) = log.lines()
    assert re.match(
        r"<28>[A-Z][a-z]{2} [ 1-3][0-9] [0-9:]{8} resctrl-mon-hook\[[0-9]+\]: hook: nothing was "
        r"done",
        line,
    )
    assert f"cannot run {cut}: " in line
    assert line.partition("]: ")[2] in done.stderr.decode()


def test_a_full_syslog_does_not_block(hook: Hook, init: Task, log: DevLog) -> None:
    log.fill()
    outcome = replace(hook, wrapper=log.wrapper)(created("c1", init.pid, pod_uid="no-uid"))
    assert outcome.status == 0
    assert "bad_key" in outcome.stderr
    assert hook.reasons() == {"c1": "bad_key"}


def test_a_stderr_without_reader_does_not_block(hook: Hook, init: Task) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    state = json.dumps(created("c1", init.pid, pod_uid="no-uid")).encode()
    result = subprocess.run(
        hook.command("hook"), input=state, stderr=writer, env={}, check=False, timeout=300
    )
    os.close(reader)
    os.close(writer)
    assert result.returncode == 0
    assert hook.reasons() == {"c1": "bad_key"}


def test_a_runtime_that_goes_on_writing_gets_no_broken_pipe(hook: Hook) -> None:
    process = hook.start(b"")
    finish(process)
    process = subprocess.Popen(
        hook.command("hook"), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}
    )
    assert process.stdin is not None
    for _ in range(200):
        process.stdin.write(b" " * 65536)
    process.stdin.close()
    assert process.wait(300) == 0


def test_a_stdin_that_cannot_be_read_is_a_bad_state(hook: Hook) -> None:
    """It was called a defect of ours, and there was no record of it."""
    with open(os.devnull, "wb") as stdin:
        done = subprocess.run(
            hook.command("createRuntime"), stdin=stdin, capture_output=True, check=False, text=True
        )
    assert done.returncode == 0
    assert "bad_state: no container state on stdin: Bad file descriptor: EBADF" in done.stderr
    assert set(hook.reasons().values()) == {"bad_state"}


def test_a_complete_state_on_a_stdin_that_is_not_closed_is_served(hook: Hook, init: Task) -> None:
    """After the wait of STDIN_PATIENCE."""
    with subprocess.Popen(
        hook.command("createRuntime"), stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(json.dumps(created("c1", init.pid)).encode())
        process.stdin.flush()
        assert (process.wait(DEADLINE), process.stderr.read()) == (0, b"")
    assert hook.tasks("oci-c1") == {init.pid}


def test_ps_shows_what_the_documents_quote(hook: Hook) -> None:
    first_line = (
        ""
        if shipped() == NATIVE
        else PYZ.read_bytes().partition(b"\n")[0].removeprefix(b"#!").decode()
    )
    with subprocess.Popen(
        hook.command("hook"), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"{")
        process.stdin.flush()
        while any(fcntl.ioctl(process.stdin, termios.FIONREAD, bytes(4))):
            pass  # until it has read that, and waits for more
        proc = Path(f"/proc/{process.pid}")
        assert (proc / "comm").read_text() == "resctrl-mon-hoo\n"
        shown = (proc / "cmdline").read_bytes().decode().split("\0")
    assert shown[:-1] == [*filter(None, first_line.split(" ", 1)), *map(str, hook.command("hook"))]
    assert not first_line or " ".join(shown).startswith(
        "/usr/bin/python3 -IScimport sys,atexit,posix;"
    )


# --- A state of any size, as a pod's author can make it: monitored in the right group, in bounded
# memory


ID = "c" * 64
VICTIM = "00000000-0000-4000-8000-000000000001"
MEMORY = 150_000
"""KiB of address space: less than the largest state."""
MEGABYTES = 200
ANNOTATIONS = (
    '"annotations": {"io.kubernetes.pod.uid": "%s", "io.kubernetes.container.preStopHandler": "'
)


@pytest.fixture
def cgroup(init: Task) -> Iterator[Cgroup]:
    """The container's own cgroup in its pod's, with its init."""
    with container_cgroup(UID, ID) as made:
        made.add(init.pid)
        yield made


@pytest.fixture
def bounded(hook: Hook) -> Hook:
    """With so little memory that it cannot hold what it is given."""
    return replace(hook, wrapper=("sh", "-c", f'ulimit -v {MEMORY} && exec "$@"', "sh"))


def members(state: Mapping[str, object]) -> str:
    """Those of a state but for its annotations."""
    return json.dumps({name: value for name, value in state.items() if name != "annotations"})[1:-1]


def give(hook: Hook, head: str, tail: str) -> Outcome:
    """Run a hook on a state that has MEGABYTES between its head and its tail,
    made while the hook reads.
    """
    process = subprocess.Popen(
        hook.command("hook"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        cwd="/",
    )
    assert process.stdin is not None
    process.stdin.write(head.encode())
    # A hook that stops reading is a BrokenPipeError here, as for a runtime.
    for _ in range(MEGABYTES * 10):
        process.stdin.write(b"\\u003c" * (100_000 // 6))
    process.stdin.write(tail.encode())
    process.stdin.close()
    process.stdin = None
    return finish(process)


def annotations_last(hook: Hook, state: Mapping[str, object]) -> Outcome:
    return give(hook, "{" + members(state) + ", " + ANNOTATIONS % VICTIM, '"}}')


def test_a_state_of_any_size_is_monitored_in_the_group_of_its_pod(
    bounded: Hook, cgroup: Cgroup, init: Task
) -> None:
    outcome = annotations_last(bounded, created(ID, init.pid))
    assert outcome.status == 0
    assert bounded.tasks(f"oci-{UID}") == cgroup.pids() == {init.pid}
    assert bounded.reasons() == {}
    (line,) = outcome.stderr.splitlines()
    assert f"createRuntime {ID[:12]}: bad_state: its state is larger than 4194304 bytes" in line
    end(init)
    outcome = annotations_last(bounded, stopped(ID))
    assert (outcome.status, outcome.stderr) == (0, "")
    bounded.assert_clean()


def test_a_state_of_any_size_that_begins_with_annotations_ends_in_bounded_memory(
    bounded: Hook, init: Task
) -> None:
    """What is recorded of it: unit/test_odd_state.py."""
    state = "{" + ANNOTATIONS % VICTIM, '"}, ' + members(created(ID, init.pid)) + "}"
    outcome = give(bounded.with_options("--strict"), *state)
    assert outcome.status == 0
    assert len(outcome.stderr.splitlines()) == 1
    assert bounded.groups() == set()
    assert "bad_state: no container state on stdin" in outcome.stderr
    assert "it is larger than 4194304 bytes" in outcome.stderr
    assert [*bounded.reasons().values()] == ["bad_state"]


# --- Commands for people


def test_output_that_cannot_be_written_is_one_line_and_a_reader_that_has_ended_is_none(
    hook: Hook,
) -> None:
    places = [f"--resctrl-root={hook.resctrl_root}", f"--run-dir={hook.run_dir}"]
    hook.run_dir.mkdir()
    answers = (
        ["--version"],
        ["help"],
        ["help", "hook"],
        ["list", "--help"],
        ["completion", "bash"],
    )
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full", "wb") as full:
        for words in (*answers, ["list", *places], ["metrics", *places]):
            command = [str(shipped()), *words]
            refused, unread = (
                subprocess.run(
                    command,
                    stdout=stdout,
                    stderr=subprocess.PIPE,
                    text=True,
                    check=False,
                    timeout=DEADLINE,
                )
                for stdout in (full, writer)
            )
            problem = (
                "resctrl-mon-hook: cannot write to stdout; tried: No space left on device: ENOSPC\n"
            )
            assert (refused.returncode, refused.stderr) == (2, problem), words
            assert (unread.returncode, unread.stderr) == (0, ""), words
    os.close(writer)


def test_reconcile_does_all_it_would_though_nothing_can_be_printed(hook: Hook, init: Task) -> None:
    hook(created("c1", init.pid))
    hook(created("c2", os.getpid()))
    for key in ("c1", "c2"):
        os.rmdir(hook.resctrl_root / "mon_groups" / f"oci-{key}")
    with open("/dev/full", "wb") as full:
        done = hook.open("reconcile", stdout=full)
        _, said = done.communicate(timeout=DEADLINE)
    assert (done.returncode, b"cannot write to stdout" in said) == (2, True)
    assert hook.groups() == {"oci-c1", "oci-c2"}


@pytest.mark.parametrize(
    "verb", [["list"], ["show", "c1"], ["top"], ["metrics"], ["reconcile"], ["watch"]]
)
def test_who_is_not_root_is_told_to_be(
    hook: Hook, init: Task, verb: list[str], public_program: Path
) -> None:
    other = Hook(hook.resctrl_root, public_program.parent / "run", options=())
    other(created("c1", init.pid))
    # Only root sees the model.
    where = [f"--run-dir={other.run_dir}", f"--resctrl-root={public_program.parent}"]
    command = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        str(public_program),
        *verb,
        *where,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=DEADLINE, env={}
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "run it as root" in done.stderr


@pytest.mark.form("pyz")
@pytest.mark.parametrize(
    "python", interpreters.oldest_and_newest(), ids=lambda python: str(python.minor)
)
def test_every_python_gives_the_same_answers(hook: Hook, init: Task, python: Interpreter) -> None:
    hook(created("c1", init.pid, pod_uid=UID))
    hook(created("c2", 2**31 - 1))
    other = replace(hook, python=[str(python.path), "-IS"])
    for verb in (
        ["list"],
        ["list", "--json"],
        ["show", "c1"],
        ["metrics"],
        ["top", "--interval=0.01", "--json"],
    ):
        first, second = (program.ask(*verb) for program in (hook, other))
        assert (second.status, second.stderr) == (0, "")
        assert without_times(second.stdout) == without_times(first.stdout)
    assert other.ask("list", "--nonsense") == hook.ask("list", "--nonsense")


def without_times(text: str) -> str:
    """Nor with the padding of a number that has one more digit by now."""
    return re.sub(r" *[0-9][0-9.:TZ-]*[smh]? *", "0", text.replace(UID, "key"))
