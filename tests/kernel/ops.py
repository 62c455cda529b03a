# SPDX-License-Identifier: Apache-2.0
"""Operations on a resctrl, and what came of each: for comparing the model with the kernel,
which run the same ones.

    python3 -m tests.kernel.ops kernel SCRIPT RESULTS     as root where the kernel's resctrl is
    mounted python3 -m tests.kernel.ops model SCRIPT RESULTS      as root in a new pid namespace
    (fewer tasks to walk)

SCRIPT is JSON: {"knobs": {...}, "sequences": [[operation, ...], ...]}. An operation is a list: a
method of Player without `do_`, and its arguments. RESULTS has for each operation what it gave and
info/last_cmd_status after it, and at the end of a sequence all that can be seen. Each sequence
begins with new groups and tasks; only the order of the free RMIDs carries over.

Paths are relative to the mount. E runs the sequence; A and B are shells that it has started,
C and D children of these. In what is written {A} is A's process ID. An operation on a task
that is not there is skipped.

What FUSE cannot show is left out: the model gets to look into /proc after each birth
(FORKS_ARE_SEEN), and there are no threads and no zombies.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.kernel.inside import pin
from tests.resctrlfs import Mounted, mounted

Operation = list[Any]
Answer = Any
"""JSON, as what can be compared."""

NO_TASK = 4194303
"""The highest number that a task can have on 64 bits; none gets there."""
SMALL = 99
"""Tasks get higher numbers than this, so that a number in a text is a task's or it is small."""
DEADLINE = 300.0
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c")


# ---- what differs between the two ----


class KernelSide:
    """What the kernel does by other means than the model, where tests want it so."""

    root = "/sys/fs/resctrl"
    PARAMETERS = Path("/sys/module/fakerdt/parameters")
    THRESHOLD = Path(root, "info/L3_MON/max_threshold_occupancy")

    def __init__(self) -> None:
        self.threshold = (
            self.THRESHOLD.read_text(encoding="ascii") if self.THRESHOLD.exists() else ""
        )
        self.options = "debug" if Path(self.root, "mon_hw_id").exists() else "rw"

    def where(self, number: int) -> str:
        """/proc/NUMBER/cpu_resctrl_groups; OSError if there is no such task."""
        return (
            Path(f"/proc/{number}/cpu_resctrl_groups").read_bytes().decode(errors="surrogateescape")
        )

    def counters(self, mode: str) -> None:
        """normal, Unavailable or Error."""
        for parameter, yes in {"unavail": mode == "Unavailable", "error": mode == "Error"}.items():
            (self.PARAMETERS / parameter).write_text(str(int(yes)), encoding="ascii")

    def pin(self, number: int, package: int) -> None:
        """Let a task run on this package only."""
        pin(number, package)

    def umount(self) -> None:
        subprocess.run(["umount", self.root], check=True)

    def mount(self) -> None:
        subprocess.run(
            ["mount", "-t", "resctrl", "-o", self.options, "resctrl", self.root], check=True
        )

    def settle(self) -> None:
        """Let the RMIDs that are in limbo come back: all of them, now or soon."""
        if self.threshold:
            self.THRESHOLD.write_text(self.threshold, encoding="ascii")
            (self.PARAMETERS / "decay_ms").write_text("0", encoding="ascii")

    def hold(self) -> None:
        """Keep RMIDs in limbo from now on, for ever."""
        self.THRESHOLD.write_text("0", encoding="ascii")


class ModelSide:
    """The same of the model."""

    def __init__(self, resctrl: Mounted) -> None:
        self.root = str(resctrl.root)
        self._control = resctrl.control

    def where(self, number: int) -> str:
        try:
            return str(self._control(do="cpu_resctrl_groups", tid=number))
        except RuntimeError as error:
            raise FileNotFoundError(errno.ENOENT, str(error)) from error

    def counters(self, mode: str) -> None:
        self._control(do="set", counters=mode)

    def pin(self, number: int, package: int) -> None:
        self._control(do="run", tid=number, package=package)

    def umount(self) -> None:
        self._control(do="unmount")

    def mount(self) -> None:
        self._control(do="mount")

    def settle(self) -> None:
        self._control(do="settle")

    def hold(self) -> None:
        self._control(do="set", decay_ms=10**9)


@contextmanager
def machine(kind: str, directory: Path, knobs: dict[str, Any]) -> Iterator[KernelSide | ModelSide]:
    if kind == "kernel":
        yield KernelSide()
        return
    with mounted(directory, **knobs) as resctrl:
        yield ModelSide(resctrl)


# ---- the tasks ----


class Shell:
    """A shell that does what it is asked, as a task that is in a group: A or B."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            ["sh"],
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="surrogateescape",
        )
        self.number = self._process.pid
        self.is_pinned = False

    def ask(self, command: str) -> str:
        """Return what a command prints, errors too."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(f"{command}\necho END", file=self._process.stdin, flush=True)
        text = ""
        while (line := self._process.stdout.readline()) != "END\n":
            if not line:
                raise RuntimeError(f"the shell has ended at {command}")
            text += line
        return text

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class Crew:
    """The tasks of a sequence, by name. E itself is none of them, but has a number like them."""

    def __init__(self) -> None:
        self.shells: dict[str, Shell] = {}
        self.children: dict[str, int] = {}
        self.numbers = {"E": os.getpid()}
        """Of the dead, too: the last one that had the name."""
        pid = 0
        while pid <= SMALL:
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)

    def names(self) -> dict[int, str]:
        return {number: name for name, number in self.numbers.items()}

    def fill(self, template: str) -> str:
        """With numbers for names; one that has not been yet has a number that no task has."""
        return re.sub(r"\{(\w)\}", lambda match: str(self.numbers.get(match[1], NO_TASK)), template)

    def unfill(self, text: str) -> str:
        """With names for numbers."""
        names = {str(number): name for number, name in self.names().items() if number > SMALL}
        return re.sub(
            r"\b\w+\b",
            lambda match: f"{{{names[match[0]]}}}" if match[0] in names else match[0],
            text,
        )

    def fork(self, parent: str, name: str) -> None:
        self.children[name] = int(self.shells[parent].ask("sleep infinity >&- 2>&- & echo $!"))
        self.numbers[name] = self.children[name]

    def end(self, name: str) -> None:
        """End a task, and wait until it is reaped: by its shell, or if that has ended,
        by init, which E may be.
        """
        if name in self.shells:
            self.shells.pop(name).end()
            return
        number = self.children.pop(name)
        os.kill(number, signal.SIGKILL)
        for shell in self.shells.values():
            shell.ask(f"wait {number} 2>&-")
        with suppress(ChildProcessError):
            os.waitpid(number, 0)
        while os.path.exists(f"/proc/{number}"):
            os.sched_yield()

    def renew(self) -> None:
        """Only A and B, alive."""
        for name in [
            *self.children,
            *(name for name, shell in self.shells.items() if shell.is_pinned),
        ]:
            self.end(name)
        for name in "AB":
            self.shells[name] = self.shells.get(name) or Shell()
        self.numbers = {
            "E": os.getpid(),
            **{name: shell.number for name, shell in self.shells.items()},
        }

    def clear(self) -> None:
        for name in [*self.children, *self.shells]:
            self.end(name)


# ---- the operations ----


class Skipped(Exception):
    """The operation is about a task or an open file that is not there."""


def attempt(action: Callable[[], object]) -> Answer:
    """What it gave, or the errno's name."""
    try:
        given = action()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return "ok" if given is None else given


def whole(fd: int) -> str:
    """From the beginning, in one read(2) if it fits."""
    text = b""
    while piece := os.pread(fd, 1 << 20, len(text)):
        text += piece
    return text.decode(errors="surrogateescape")


def put(fd: int, data: str) -> str:
    """In one write(2)."""
    written = os.write(fd, data.encode(errors="surrogateescape"))
    return "ok" if written == len(data.encode(errors="surrogateescape")) else f"ok: {written} bytes"


class Player:
    """Runs sequences. Each method do_X is an operation X.

    `slots`: open files, each with its descriptor and the path by which it was opened.
    """

    def __init__(self, machine: KernelSide | ModelSide) -> None:
        self.machine = machine
        self.crew = Crew()
        self.slots: dict[object, tuple[int, str]] = {}
        self.fixed = {*self.do_listing("")}
        """What is no group.

        Where nothing can be monitored, a ctrl_group can be called mon_groups.
        """

    def perform(self, name: str, *arguments: Any) -> Answer:  # noqa: ANN401  as in Operation
        try:
            return attempt(lambda: getattr(self, "do_" + name)(*arguments))
        except Skipped:
            return "skipped"

    def at(self, path: str) -> str:
        return f"{self.machine.root}/{path}".rstrip("/")

    # ---- on files ----

    def do_mkdir(self, path: str) -> None:
        os.mkdir(self.at(path))

    def do_rmdir(self, path: str) -> None:
        os.rmdir(self.at(path))

    def do_unlink(self, path: str) -> None:
        os.unlink(self.at(path))

    def do_create(self, path: str) -> None:
        os.close(os.open(self.at(path), os.O_WRONLY | os.O_CREAT))

    def do_listing(self, path: str) -> list[str]:
        return sorted(os.listdir(self.at(path)))

    def do_tree(self, path: str) -> list[str]:
        """All names below a directory."""
        top = self.at(path)
        paths = [
            os.path.join(above, name)
            for above, dirs, files in os.walk(top)
            for name in dirs + files
        ]
        return sorted(os.path.relpath(name, top) for name in paths)

    def do_read(self, path: str) -> Answer:
        with open(self.at(path), "rb", buffering=0) as file:
            return self._shown(path, whole(file.fileno()))

    def _shown(self, path: str, text: str) -> Answer:
        """Of what was read that which can be the same on two machines."""
        if path.rpartition("/")[2] == "tasks":
            names = self.crew.names()
            return sorted(names[number] for number in map(int, text.split()) if number in names)
        return shape(text) if "mon_data/" in path else text

    def do_pieces(self, path: str, size: str) -> bool:
        """Whether small reads give what one read gives."""
        with open(self.at(path), "rb", buffering=0) as file:
            return b"".join(iter(lambda: file.read(int(size)), b"")).decode() == whole(
                file.fileno()
            )

    def do_write(self, path: str, data: str) -> str:
        fd = os.open(self.at(path), os.O_WRONLY)
        try:
            return put(fd, self.crew.fill(data))
        finally:
            os.close(fd)

    def do_open(self, slot: object, path: str, mode: str) -> None:
        if slot in self.slots:
            raise Skipped
        self.slots[slot] = os.open(self.at(path), {"r": os.O_RDONLY, "rw": os.O_RDWR}[mode]), path

    def _opened(self, slot: object) -> tuple[int, str]:
        if slot not in self.slots:
            raise Skipped
        return self.slots[slot]

    def do_pread(self, slot: object) -> Answer:
        fd, path = self._opened(slot)
        return self._shown(path, whole(fd))

    def do_pwrite(self, slot: object, data: str) -> Answer:
        return put(self._opened(slot)[0], self.crew.fill(data))

    def do_close(self, slot: object) -> None:
        os.close(self._opened(slot)[0])
        del self.slots[slot]

    def do_nobody(self, command: str) -> str:
        """What a user without rights gets to see of a shell command."""
        words, env = [*NOBODY, command], {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(
            words, env=env, cwd=self.machine.root, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    # ---- on tasks ----

    def _shell(self, name: str) -> Shell:
        if name not in self.crew.shells:
            raise Skipped
        return self.crew.shells[name]

    def do_itself(self, name: str, path: str) -> str:
        """A task writes 0, which stands for the writer."""
        return (
            self._shell(name).ask(f"echo 0 2>&1 >'{self.at(path)}'").replace(self.machine.root, "")
        )

    def do_fork(self, parent: str, child: str) -> None:
        self._shell(parent)
        if child in self.crew.children:
            raise Skipped
        self.crew.fork(parent, child)
        with suppress(OSError):  # FORKS_ARE_SEEN
            self.do_read("tasks")

    def do_end(self, name: str) -> None:
        if name not in self.crew.shells and name not in self.crew.children:
            raise Skipped
        self.crew.end(name)

    def do_run(self, name: str, package: str) -> None:
        """On this package, and from now on on no other. It runs when the answer is there."""
        shell = self._shell(name)
        shell.is_pinned = True
        self.machine.pin(shell.number, int(package))
        shell.ask(":")

    def do_where(self, name: str) -> str:
        if name not in self.crew.numbers:
            raise Skipped
        return self.machine.where(self.crew.numbers[name])

    # ---- on the machine ----

    def do_fill(self, above: str) -> Answer:
        """mkdir until it fails: how many, and why no more."""
        for count in itertools.count():
            why = self.perform("mkdir", f"{above}/fill{count}".lstrip("/"))
            if why != "ok":
                return [count, why]
        raise AssertionError

    def do_machine(self, what: str, *arguments: str) -> None:
        """counters, umount, mount, hold, settle"""
        getattr(self.machine, what)(*arguments)

    def do_settle(self) -> None:
        """No RMID in limbo, all of them free but one that mon_groups/probe has;
        the order of the free ones is known.

        As long as nothing is free: the first that is shows that a look was taken,
        and a look frees all that are clean.
        """
        for wanted in ("ENOSPC", "ok"):
            self._clear()
            self.machine.settle()
            self._await(wanted)
        self.machine.hold()

    def _await(self, wanted: str) -> None:
        """mkdir until it gives this."""
        end = time.monotonic() + DEADLINE
        for count in itertools.count():
            got = self.perform(
                "mkdir", "mon_groups/probe" if wanted == "ok" else f"mon_groups/settle{count}"
            )
            if got == wanted:
                return
            if time.monotonic() > end:
                raise RuntimeError(f"mkdir says {got}, not {wanted}")
            if got == "EBUSY":
                # Only so that waiting costs others nothing; resctrl looks once a second.
                time.sleep(0.02)

    # ---- around them ----

    def play(self, sequence: list[Operation]) -> list[Answer]:
        self.start_afresh()
        answers = [[self.perform(*operation), self.status()] for operation in sequence]
        return [*answers, [self.everything(), "ok"]]

    def status(self) -> str:
        return self.crew.unfill(self.perform("read", "info/last_cmd_status"))

    def everything(self) -> Answer:
        files = ("tasks", "mon_hw_id", "ctrl_hw_id")
        paths = [f"{group}/{name}".lstrip("/") for group in ["", *self._groups()] for name in files]
        names = sorted(self.crew.numbers)
        return [
            {path: self.perform("read", path) for path in paths},
            {name: self.perform("where", name) for name in names},
        ]

    def _groups(self) -> Iterator[str]:
        """mon_groups after their ctrl_group, in order of names."""
        if "mon_groups" in self.fixed:
            yield from self._below("mon_groups")
        for name in self._below(""):
            if name not in self.fixed:
                yield name
                yield from self._below(f"{name}/mon_groups")

    def _below(self, directory: str) -> list[str]:
        names = self.perform("listing", directory)
        return (
            [f"{directory}/{name}".lstrip("/") for name in names] if isinstance(names, list) else []
        )

    def start_afresh(self) -> None:
        self._clear()
        self.crew.renew()
        self.perform("write", "tasks", "{E}")  # clears last_cmd_status

    def _clear(self) -> None:
        for fd, _ in self.slots.values():
            os.close(fd)
        self.slots.clear()
        for path in [*self._groups()]:
            with suppress(FileNotFoundError):  # it went with its ctrl_group
                self.do_rmdir(path)


def shape(text: str) -> str:
    """Of a counter: what does not depend on how long something ran."""
    if re.fullmatch(r"\d+\n", text):
        return "integer"
    return "decimal" if re.fullmatch(r"\d+\.\d{6}\n", text) else text


def main(kind: str, script: str, results: str) -> None:
    given = json.loads(Path(script).read_text(encoding="utf-8"))
    with (
        tempfile.TemporaryDirectory(prefix="resctrl-ops-") as name,
        machine(kind, Path(name), given["knobs"]) as target,
    ):
        os.chmod(name, 0o755)
        os.umask(0o022)
        player = Player(target)
        answers = [player.play(sequence) for sequence in given["sequences"]]
        player.start_afresh()
        Path(results).write_text(json.dumps(answers), encoding="utf-8")
        player.crew.clear()


if __name__ == "__main__":
    main(*sys.argv[1:])
