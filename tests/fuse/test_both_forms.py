# SPDX-License-Identifier: Apache-2.0
"""Each failure is the same in both forms: what a hook says and leaves,
and what the commands then say of it.

The ELF file has a CPython of its own, with less in it, and only failures take many of its paths.
Where CPython itself words a failure by its version (argparse, a comma before the end of a JSON
object), the forms may differ: not here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path

import pytest

from hook.reconcile import run
from hook.words import PROBLEMS
from tests.kernel.inside import REAL_ROOT
from tests.resctrlfs import Mounted, mounted
from tests.support.cgroups import Cgroup, container_cgroup
from tests.support.devlog import DevLog
from tests.support.hook import NATIVE, PYZ, UID, Hook, finish, stopped, task

pytestmark = pytest.mark.form("native")  # once, where there are both files

ID = "c" * 64
ABSENT = 2**22 - 1
POD, NAME, NAMESPACE = (f"io.kubernetes.pod.{name}" for name in ("uid", "name", "namespace"))
ONE_LINE, TWO_LINES = (
    "Out of RMIDs\n",
    "Failed to initialize monitoring\nOut of RMIDs \u00fc\x1b[31m\n",
)
ERRORS = (
    "EACCES",
    "EPERM",
    "EROFS",
    "EINVAL",
    "EIO",
    "ENOMEM",
    "EBUSY",
    "ENOSPC",
    "ENODEV",
    "ENOENT",
    "ESRCH",
)
BLOCKED = (
    f"exec {sys.executable} -ISc 'import os, signal, sys; signal.pthread_sigmask(0, range(1, 65)); "
)
BLOCKED += """os.execv(sys.argv[1], sys.argv[1:])' "$@" """
NO_DEV = """\
d='{place}/dev'; mkdir -p $d; mount -t tmpfs none $d; mkdir $d/shm
[ ! -d /dev/shm ] || mount --rbind /dev/shm $d/shm
mount --rbind $d /dev
"""
"""Without /dev/log and /dev/null. Tests may lie in /dev/shm."""


class Stage:
    """One form at work on one container, in a run directory of its own;
    `seen` is what comes out of it.
    """

    def __init__(
        self, program: Path, model: Mounted, log: DevLog, cgroup: Cgroup, place: Path
    ) -> None:
        self.place = place
        self.hook = Hook(model.root, place / "run", options=("--rmid-wait=0",), program=program)
        self.seen: list[str] = []
        self.model, self._log, self._own = model, log, cgroup
        (self.pid,) = cgroup.pids()

    def state(self, **more: object) -> dict[str, object]:
        """The container's state."""
        annotations = {"io.container.manager": "cri-o", POD: UID}
        known = {"ociVersion": "1.0", "id": ID, "status": "created", "pid": self.pid, "bundle": "/"}
        return {**known, "annotations": annotations, **more}

    def annotated(self, **annotations: str) -> dict[str, object]:
        """Its state with these annotations: `uid`, `name`, `namespace`."""
        names = {"uid": POD, "name": NAME, "namespace": NAMESPACE}
        texts = {names[name]: text for name, text in annotations.items()}
        return self.state(annotations={"io.container.manager": "cri-o", POD: UID, **texts})

    def run(
        self,
        state: Mapping[str, object] | bytes | None = None,
        *options: str,
        verb: str = "hook",
        around: str = "",
    ) -> None:
        """Run a hook; `around` is shell code that starts it by `"$@"`, or comes before that."""
        # So that the limit of lines in a minute does not count
        for counted in self.hook.run_dir.glob("logged-*"):
            counted.unlink()
        around = around.replace("{place}", str(self.place))
        shell = around if around.startswith("exec ") else f'{around}\nexec "$@"'
        hook = replace(
            self.hook, wrapper=(*self._log.wrapper, "sh", "-c", shell, "sh")
        ).with_options(*options)
        outcome = hook(self.state() if state is None else state, verb)
        self.seen += [
            f"status {outcome.status}",
            outcome.stdout,
            outcome.stderr,
            *self._log.lines(),
            *self._records(),
        ]

    def refuse(self, op: str, error: str, status: str = "", path: str = "") -> None:
        """Run a createRuntime and a poststop while the kernel refuses an operation."""
        self.model.control(do="inject", op=op, error=error, status=status, path=path, times=-1)
        self.run()
        self.run(stopped(ID))
        self.model.control(do="forget")

    def ask(self, verb: str, *words: str) -> None:
        """Run a command for people."""
        asked = finish(self.hook.open(verb, *words))
        self.seen += [f"{verb} {words}: status {asked.status}", asked.stdout, asked.stderr]

    def look(self) -> None:
        """Ask each command that says something of each container."""
        for words in (
            ["list"],
            ["list", "-o", "wide"],
            ["metrics"],
            ["reconcile"],
            ["list", "--json"],
        ):
            self.ask(*words)
        self.seen += self._records()

    def write(self, name: str, content: bytes) -> None:
        """Write a file into the run directory."""
        (self.hook.run_dir / name).write_bytes(content)

    def _records(self) -> list[str]:
        paths = sorted(
            path
            for part in ("groups", "members", "unmonitored")
            for path in self.hook.run_dir.glob(f"{part}/*")
        )
        return [
            f"{path.relative_to(self.hook.run_dir)}: {path.read_bytes()!r}"
            for path in paths
            if path.is_file()
        ]

    def clean(self) -> None:
        """Remove what is left."""
        self.model.control(do="forget")
        for group in (self.model.root / "mon_groups").iterdir():
            group.rmdir()
        if self.hook.run_dir.is_mount():
            subprocess.run(["umount", "-l", self.hook.run_dir], check=True)
        shutil.rmtree(self.hook.run_dir, ignore_errors=True)

    def result(self) -> list[str]:
        """What was seen, without what no two runs share: the program's path, times,
        pids of hooks, inodes.
        """
        text = "\n".join(self.seen).replace(str(self.hook.program), "PROGRAM")
        for pattern, word in UNLIKE.items():
            text = re.sub(pattern, word, text, flags=re.MULTILINE)
        return text.splitlines()


TIME_IS_OVER = (run._NOT_REACHED, "ended after ", PROBLEMS["locked"].partition("{")[0])
"""What reconcile and a hook say then."""
UNLIKE = {
    r"<28>[A-Z][a-z]{2} [ 1-3][0-9] [0-9:]{8} resctrl-mon-hook\[[0-9]+\]": (
        "<28>TIME resctrl-mon-hook[PID]"
    ),
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?": "TIME",
    r'"([a-z_]*(boottime|inode|seconds|_at|since|until))": [-0-9.e]+': r'"\1": NUMBER',
    # Of the runtimes of the machine, which may be busy: whether they could be asked in time.
    r'"unhooked": (null|\{[^{}]*\})': '"unhooked": ASKED',
    r"^(# (HELP|TYPE) )?resctrl_mon_un(hooked|checked)_containers.*\n": "",
    r"unreadable-\d+": "unreadable-INODE",
    r"job-\d+-\d+": "job-PID-STARTTIME",
    r"\.\d+\.tmp": ".PID.tmp",
    r"^(resctrl_mon\w*(seconds|timestamp|time)\w*(\{.*\})?) .*$": r"\1 NUMBER",
    r" *\b\d+(\.\d+)? ?(s|ms)\b": " SECONDS",  # the cell of a table has blanks before a short one
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    if REAL_ROOT is not None or os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs the model, root and /dev/fuse")
    with mounted(tmp_path_factory.mktemp("model"), decay_ms=0) as resctrl:
        yield resctrl


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevLog]:
    with DevLog(tmp_path_factory.mktemp("log")) as log:
        yield log


@pytest.fixture(scope="module")
def cgroup(model: Mounted) -> Iterator[Cgroup]:
    """The container's cgroup, with its init."""
    assert model.root.is_dir()
    with task() as init, container_cgroup(UID, ID) as cgroup:
        cgroup.add(init.pid)
        yield cgroup


def text_of(state: Mapping[str, object]) -> bytes:
    return json.dumps(state).encode()


NAMED = b'{"ociVersion": "1.0", "id": "c1", "status": "created", "bundle": "/", "pid": '
BEFORE = NAMED + b'%d, "root": ' % ABSENT
STATES: dict[str, list[bytes]] = {
    "that are no text": [
        b'{"ociVersion": "1.0", "id": "c1\xff"}',
        text_of({"ociVersion": "1.0", "id": "c1"}).decode().encode("utf-16"),
        '{"id": "é'.encode()[:-1],
        bytes(100),
        b'{"id": "c1\0"}',
        b'{"id": "c1\\u0000"}',
        b'{"ociVersion": "1.0", "id": "\\ud800", "pid": 1}',
        '{"ociVersion": "1.0", "id": "é\u20ac\U0001f600\\n", "status": "stopped"}'.encode(),
        b"\xef\xbb\xbf{}",
    ],
    "that are no JSON": [
        b"",
        b" \n",
        b"[1]",
        b"null",
        b'"\\u00e9"',
        b"Segmentation fault",
        b'{"id": "c1',
        b'{"id": "c1", ',
        b'{"id": "\\u12"}',
        b"{} {}",
        b"{1: 2}",
        b'{"id" 1}',
        b'{"id": }',
        b'"\t"',
    ],
    "that are deep or have odd numbers": [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        BEFORE + b"[" * 99_999,
        NAMED + b"1e400}",
        NAMED + b"9" * 5000 + b"}",
        NAMED + b"NaN}",
        NAMED + b"-1}",
        NAMED + b"9" * 20 + b"}",
        NAMED + b"1.5}",
    ],
    "that are too large": [
        BEFORE + b'"/", "annotations": {"a": "' + "é".encode() * (5 << 20),
        BEFORE + b'"\xff", "annotations": {"a": "' + b"x" * (5 << 20),
        BEFORE + b"[" * (5 << 20),
        b"\xff" * (5 << 20),
    ],
}
RECORDS: list[bytes] = [
    b"",
    b'{"version": 1, "key"',
    b'{"version": 1, "key": "\xff"}',
    b"[" * 100_000,
    b"[]",
    b"\0",
    b'{"version": 99, "key": "\xc3\xa9"}',
    b'{"version": "\\ud800"}',
    b'{"version": 1, "key": "\\u00fc\\n"}',
]


def give(states: list[bytes]) -> Callable[[Stage], None]:
    def serve(stage: Stage) -> None:
        for state in states:
            stage.run(state)
        stage.run(states[0], "--strict", verb="createRuntime")
        stage.look()

    return serve


def refuse_each_step(stage: Stage) -> None:
    """What a state of the kernel's refusal is worded as,
    with a text of one line, two lines and none.
    """
    for number, error in enumerate(ERRORS):
        stage.refuse("mkdir", error, ("", ONE_LINE, TWO_LINES)[number % 3])
    for op, path, errors in (
        ("write", "/tasks", ("ESRCH", "EINVAL", "EPERM", "ENODEV")),
        ("rmdir", "", ("EPERM", "EBUSY")),
        ("read", "_bytes", ("EIO", "ENODEV")),
        ("listdir", "mon_data", ("EIO", "EACCES")),
    ):
        for error in errors:
            stage.refuse(op, error, TWO_LINES, path)
    stage.run(stage.state(pid=ABSENT))
    stage.look()


def refuse_for_good(stage: Stage) -> None:
    """Also what reconcile tries then, and jobs."""
    stage.model.control(do="inject", op="mkdir", error="EPERM", status=TWO_LINES, times=-1)
    stage.run(stage.annotated(name="p\u00f6d\n\u20ac", namespace="\U0001f600\ud800"))
    stage.look()
    stage.ask("run", "--key=a", "--", "true")
    stage.ask("assign", "--key=b", str(stage.pid))
    stage.ask("list")


def name_in_another_script(stage: Stage) -> None:
    for texts in ({"uid": "é"}, {"uid": "\ud800"}, {"uid": "a\0b\nc\u2028d"}, {"name": "\ud800"}):
        stage.run(stage.annotated(**texts), "--strict", verb="createRuntime")
    stage.look()
    stage.run(stage.annotated(name="p\u00f6d\n\u20ac", namespace="\U0001f600\ud800"))
    stage.run(stage.state(bundle="/\u00fc\ud800"))
    stage.run(stage.state(bundle="/\0"))
    stage.look()
    for words in (
        ["show", UID],
        ["show", "p\u00f6d"],
        ["show", "\udcff"],
        ["top", "--interval=0.01"],
    ):
        stage.ask(*words)
    stage.run(None, "--\u00fc=1", "--linger=\u00e9", "--key=\u00fc", "--annotation=\u00fc")
    stage.run(None, "--group-prefix=\u00fc/")
    stage.run(None, "--run-dir=/\u00fc/\u00fc")
    stage.run(None, "--resctrl-root=/\u00fc")
    stage.look()


def damage_records(stage: Stage) -> None:
    for content in RECORDS:
        stage.run()
        for name in (f"groups/{UID}.json", f"members/{ID}.json", f"unmonitored/{ID}.json"):
            stage.write(name, content)
            if name.startswith("groups"):
                stage.ask("list")
            stage.run()
    stage.run(stopped(ID))
    stage.write("unmonitored/c9.json", RECORDS[1])
    (stage.hook.run_dir / "groups/\u00fc.json").mkdir()
    stage.run()
    stage.look()


def fill_run_directory(stage: Stage) -> None:
    stage.hook.run_dir.mkdir()
    options = "size=64k,nr_inodes=40,mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", stage.hook.run_dir], check=True)
    subprocess.run(["sh", "-c", f"cat /dev/zero >{stage.hook.run_dir}/filler 2>&-"], check=False)
    for state in (stage.state(), stopped(ID), b"\xff"):
        stage.run(state)
    stage.look()


def starve(stage: Stage) -> None:
    """What a runtime can leave a hook without."""
    for around in (
        NO_DEV,
        BLOCKED,
        "export TZ=Asia/Kolkata",
        "exec <&-",
        "exec 2>&-",
        "exec 1>&- 2>&-",
    ):
        stage.run(b"\xff", around=around)
        stage.run(stage.annotated(uid="\u00e9"), around=around)
    for size in (192, 256, 1024):
        for limit in (f"ulimit -Ss {size}", f"ulimit -s {size}"):
            for state in STATES["that are deep or have odd numbers"][:3]:
                stage.run(state, around=limit)
    stage.look()


def call_jobs(stage: Stage) -> None:
    for words in (
        ["assign", "--key=\u00fc", "1"],
        ["assign", "--key=\udcff", "1"],
        ["assign", "--key=a", "\u0661"],
        ["assign", "--key=a", str(ABSENT)],
        ["assign", "--json", "--key=\u00fc", "1"],
        ["run", "--key=\u00fc", "--", "true"],
        ["run", "--", "/bin/\u00fc"],
        ["run", "--", "/bin/\udcff\n"],
        ["run", "--key=\u00fc\n", "--", "/bin/\u00fc"],
        ["release", "--key=\u00fc"],
        ["list"],
        ["run", "--label=\u00fc=", "--kye=a", "--", "/bin/env"],
        ["run", "--rmid-wait", "--", "/bin/env"],
        ["run", "--wait", "--label=a=\u00fc\n", "--rmid-wait=x", "--", "/bin/env"],
        ["run", "--", "/"],
    ):
        stage.ask(*words)


def call_wrongly(stage: Stage) -> None:
    path = stage.place / "history.jsonl"
    file = f"--history={path}"
    line = {"id": "a", "kind": "job", "key": "\u00fc\n", "begin": "x", "names": ["\ud800"]}
    path.write_bytes(json.dumps(line).encode() + b'\n{"\xff\n' + b"[" * 100_000)
    stage.run()
    for words in (
        ["\u00fc"],
        ["list", "--\u00fc"],
        ["show", "\u00fc"],
        ["top", "--interval=\u0661"],
        ["help", "\u00fc"],
        ["metrics", "--listen=\u00fc:80"],
        ["metrics", "--textfile=/dev/null/\u00fc"],
        ["reconcile", "--live=/\u00fc"],
        ["doctor", "--\u00fc"],
        ["history", "--since=\u00e9"],
        ["history", "\u00fc", file],
        ["history", f"--history={path}"],
        ["history", "--json", f"--history={path}"],
        ["history", "--history=/\u00fc"],
    ):
        stage.ask(*words)


ROWS: dict[str, Callable[[Stage], None]] = {
    **{f"states {name}": give(states) for name, states in STATES.items()},
    "refusals": refuse_each_step,
    "a refusal for good": refuse_for_good,
    "names in another script": name_in_another_script,
    "damaged records": damage_records,
    "a full run directory": fill_run_directory,
    "what a runtime can leave out": starve,
    "jobs": call_jobs,
    "wrong calls": call_wrongly,
}


@pytest.mark.parametrize("play", ROWS.values(), ids=ROWS)
def test_failure_is_the_same_in_both_forms(
    model: Mounted, log: DevLog, cgroup: Cgroup, tmp_path: Path, play: Callable[[Stage], None]
) -> None:
    def play_on(program: Path) -> list[str]:
        """Play until no time of the program's own is over, as on a busy machine:
        that says nothing of its form.
        """
        while True:
            stage = Stage(program, model, log, cgroup, tmp_path)
            log.lines()
            try:
                play(stage)
            finally:
                stage.clean()
            result = stage.result()
            if not any(words in line for line in result for words in TIME_IS_OVER):
                return result

    difference = [*unified_diff(play_on(PYZ), play_on(NATIVE), "pyz", "native", n=1, lineterm="")]
    assert not difference, "\n".join(difference)
