# SPDX-License-Identifier: Apache-2.0
"""Operations on a resctrl, and what came of each: for comparing the model with the kernel, which run the same ones.

    python3 -m tests.kernel.ops kernel SCRIPT RESULTS     as root where the kernel's resctrl is mounted
    python3 -m tests.kernel.ops model SCRIPT RESULTS      as root in a pid namespace of its own (fewer tasks to walk)

SCRIPT is JSON: {"knobs": {...}, "sequences": [[operation, ...], ...]}, where knobs are those of the model and an
operation is a list, its name first: a method of Player without `do_`, and the arguments. RESULTS is a list for each
sequence: for each operation what it gave and what info/last_cmd_status said after it, and at the end all that can be
seen. Between sequences all groups and tasks are made afresh, so that each can be run alone; only the order of the free
RMIDs carries over, so that what a sequence did to it differs in the next.

Paths are relative to the mount. Tasks are called by names: E is whoever runs the sequence, A and B are its children.
In what is written, {A} stands for A's number, {A.o} and {A.x} for it in octal and hexadecimal. An operation on a
task that is not there, or on one that is, where one is to be made, is skipped.

What FUSE cannot show is left out here, each in one place:
 * FORKS_ARE_SEEN: the model learns of a task when it next looks into /proc, and takes its group from its parent's
   process; so it gets to look after each birth, and only processes' leaders have children.
 * EMPTY_WRITES: FUSE swallows a write of no bytes, which in the kernel is an empty list that clears last_cmd_status.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import itertools
import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Union

from tests.kernel.inside import pin
from tests.resctrlfs import Mounted, mounted

Operation = list[Any]
Answer = Any
"""JSON, as what can be compared."""

NOBODY = 4194303
"""The highest number that a task can have on 64 bits; none gets there."""
SMALL = 99
"""Tasks get higher numbers than this, so that a number in a text is a task's or it is small."""
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWPID = 0x20000000
FORMS = {"": "{}", ".o": "0{:o}", ".x": "{:#x}"}
DEADLINE = 300.0
LIBC = ctypes.CDLL(None, use_errno=True)


def name_of(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error.errno))


# ---- what a single task does; each can be done by any task ----


class Files:
    """Operations on files. Errors: OSError."""

    def __init__(self, root: str) -> None:
        self.root = root

    def at(self, path: str) -> str:
        return f"{self.root}/{path}".rstrip("/")

    def mkdir(self, path: str) -> None:
        os.mkdir(self.at(path))

    def rmdir(self, path: str) -> None:
        os.rmdir(self.at(path))

    def rename(self, old: str, new: str) -> None:
        os.rename(self.at(old), self.at(new))

    def unlink(self, path: str) -> None:
        os.unlink(self.at(path))

    def create(self, path: str) -> None:
        os.close(os.open(self.at(path), os.O_WRONLY | os.O_CREAT))

    def listing(self, path: str) -> list[str]:
        return sorted(os.listdir(self.at(path)))

    def read(self, path: str) -> str:
        fd = os.open(self.at(path), os.O_RDONLY)
        try:
            return whole(fd)
        finally:
            os.close(fd)

    def pieces(self, path: str, size: int) -> bool:
        """Whether small reads give what one read gives."""
        fd = os.open(self.at(path), os.O_RDONLY)
        try:
            return b"".join(iter(lambda: os.read(fd, size), b"")).decode() == whole(fd)
        finally:
            os.close(fd)

    def write(self, path: str, data: str) -> str:
        """In one write(2)."""
        fd = os.open(self.at(path), os.O_WRONLY)
        try:
            return put(fd, data)
        finally:
            os.close(fd)

    def tree(self, path: str) -> list[str]:
        """All names below a directory."""
        top = self.at(path)
        found = [os.path.join(above, name) for above, dirs, files in os.walk(top) for name in dirs + files]
        return sorted(os.path.relpath(name, top) for name in found)


def whole(fd: int) -> str:
    """From the beginning, in one read(2) if it fits."""
    pieces = []
    offset = 0
    while piece := os.pread(fd, 1 << 20, offset):
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces).decode(errors="surrogateescape")


def put(fd: int, data: str) -> str:
    written = os.write(fd, data.encode(errors="surrogateescape"))
    return "ok" if written == len(data.encode(errors="surrogateescape")) else f"ok: {written} bytes"


def attempt(action: Callable[[], object]) -> Answer:
    """What it gave, or the errno's name."""
    try:
        given = action()
    except OSError as error:
        return name_of(error)
    return "ok" if given is None else given


class Puppet:
    """A task's side: does what E tells it by a socket, until it is told to end."""

    def __init__(self, root: str, address: str, name: str) -> None:
        self.files = Files(root)
        self.address = address
        self.stream = socket.socket(socket.AF_UNIX)
        self.stream.connect(address)
        self._say([name, _thread.get_native_id()])

    def _say(self, answer: Answer) -> None:
        self.stream.sendall(json.dumps(answer).encode() + b"\n")

    def obey(self) -> None:
        with self.stream.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                what, *arguments = json.loads(line)
                if what == "end_thread":
                    return
                getattr(self, "do_" + what)(*arguments)

    def do_file(self, operation: str, arguments: list[Any]) -> None:
        self._say(attempt(lambda: getattr(self.files, operation)(*arguments)))

    def do_fork(self, name: str) -> None:
        fork_puppet(self.files.root, self.address, name)

    def do_thread(self, name: str) -> None:
        _thread.start_new_thread(lambda: Puppet(self.files.root, self.address, name).obey(), ())

    def do_await(self, pid: int) -> None:
        """Until a child of this process is a zombie."""
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self._say("ok")

    def do_reap(self, pid: int) -> None:
        os.waitpid(pid, 0)
        self._say("ok")

    def do_wake(self) -> None:
        self._say("ok")

    def do_unshare(self) -> None:
        """Whoever is forked from now on is in a pid namespace of its own."""
        self._say("ok" if LIBC.unshare(CLONE_NEWPID) == 0 else errno.errorcode[ctypes.get_errno()])

    def do_drop(self) -> None:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        self._say("ok")

    def do_end(self) -> None:
        os._exit(0)


def fork_puppet(root: str, address: str, name: str) -> None:
    """Its number comes with its first words."""
    if os.fork() == 0:
        try:
            Puppet(root, address, name).obey()
        finally:
            os._exit(0)


# ---- E's side ----


@dataclass
class HelperTask:
    """What E knows of a task. `parent` is the name of the process that has to reap it; a thread's is its leader's."""

    name: str
    number: int
    leader: str
    parent: str
    stream: socket.socket
    zombie: bool = False
    changed: bool = False
    """It is not as it was born, and no good for the next sequence."""

    def __post_init__(self) -> None:
        self._lines = self.stream.makefile("r", encoding="utf-8")

    def tell(self, *words: object) -> None:
        self.stream.sendall(json.dumps(words).encode() + b"\n")

    def ask(self, *words: object) -> Answer:
        self.tell(*words)
        return json.loads(self._lines.readline())

    def hear(self) -> Answer:
        return json.loads(self._lines.readline())

    def hang_up(self) -> None:
        self._lines.close()
        self.stream.close()


class Crew:
    """The tasks of a sequence. E itself is none of them, but has a number like them."""

    def __init__(self, root: str, directory: Path) -> None:
        if LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
        self.root = root
        self.tasks: dict[str, HelperTask] = {}
        self.numbers = {"E": os.getpid()}
        """Of the dead, too: the last one that had the name."""
        self._listener = socket.socket(socket.AF_UNIX)
        self.address = str(directory / "tasks.sock")
        self._listener.bind(self.address)
        self._listener.listen()
        self._listener.settimeout(DEADLINE)  # for whoever fails before it says who it is
        os.chmod(self.address, 0o777)
        self._skip_small_numbers()

    def _skip_small_numbers(self) -> None:
        while True:
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            if pid > SMALL:
                return

    def names(self) -> dict[int, str]:
        return {number: name for name, number in self.numbers.items()}

    def live(self, name: str) -> HelperTask | None:
        task = self.tasks.get(name)
        return task if task is not None and not task.zombie else None

    def fill(self, template: str) -> str:
        """With numbers for names; whoever has not been yet has one that nobody has."""
        return re.sub(
            r"\{(\w)(\.[ox])?\}",
            lambda found: FORMS[found[2] or ""].format(self.numbers.get(found[1], NOBODY)),
            template,
        )

    def unfill(self, text: str) -> str:
        """With names for numbers, which are as they are in C."""
        if not re.search(r"\d", text):
            return text
        named = {number: name for number, name in self.names().items() if number > SMALL}
        names = {form.format(number): name for number, name in named.items() for form in FORMS.values()}
        return re.sub(r"\b\w+\b", lambda found: f"{{{names[found[0]]}}}" if found[0] in names else found[0], text)

    def _admit(self, parent: str, leader: str = "") -> None:
        """Whoever was just told to begin: it says who it is."""
        stream, _ = self._listener.accept()
        # Its number as E sees it, whatever namespace it is in; of a thread's, only itself can tell.
        pid, _, _ = struct.unpack("3i", stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        task = HelperTask("", pid, leader, parent, stream)
        stream.settimeout(DEADLINE)
        task.name, own = task.hear()
        task.number, task.leader = (own, leader) if leader else (pid, task.name)
        self.tasks[task.name] = task
        self.numbers[task.name] = task.number

    def begin(self, name: str) -> None:
        fork_puppet(self.root, self.address, name)
        self._admit("E")

    def fork(self, parent: HelperTask, name: str) -> None:
        parent.tell("fork", name)
        self._admit(parent.leader)

    def thread(self, parent: HelperTask, name: str) -> None:
        parent.tell("thread", name)
        self._admit(parent.parent, parent.leader)

    def end(self, task: HelperTask) -> None:
        if task.name != task.leader:
            self._end_thread(task)
            return
        task.tell("end")
        self._on_parent(task, "await")
        self._forget([other.name for other in self.tasks.values() if other.leader == task.name and other is not task])
        task.zombie = True
        for child in self.tasks.values():
            child.parent = "E" if child.parent == task.name else child.parent

    def _end_thread(self, task: HelperTask) -> None:
        task.tell("end_thread")
        entry = f"/proc/{self.tasks[task.leader].number}/task/{task.number}"
        while os.path.exists(entry):  # nobody can wait for a thread of another process in any other way
            os.sched_yield()
        self._forget([task.name])

    def reap(self, task: HelperTask) -> None:
        self._on_parent(task, "reap")
        self._forget([task.name])

    def _on_parent(self, task: HelperTask, what: str) -> None:
        if task.parent != "E":
            self.tasks[task.parent].ask(what, task.number)
        elif what == "await":
            os.waitid(os.P_PID, task.number, os.WEXITED | os.WNOWAIT)
        else:
            os.waitpid(task.number, 0)

    def _forget(self, names: list[str]) -> None:
        for name in names:
            self.tasks.pop(name).hang_up()

    def renew(self) -> None:
        """Only A and B, alive. Children first: whoever is left without a parent becomes E's."""
        for task in [task for task in self.tasks.values() if task.name == task.leader and not task.zombie]:
            if task.name not in "AB" or task.changed:
                self.end(task)
        for task in [*self.tasks.values()]:
            if task.zombie:
                self.reap(task)
        for task in [task for task in self.tasks.values() if task.name != task.leader]:
            self.end(task)
        for name in "AB":
            if name not in self.tasks:
                self.begin(name)
        self.numbers = {"E": os.getpid(), **{task.name: task.number for task in self.tasks.values()}}


class KernelSide:
    """What the kernel does by other means than the model, where tests want it so."""

    root = "/sys/fs/resctrl"
    PARAMETERS = Path("/sys/module/fakerdt/parameters")
    THRESHOLD = Path(root, "info/L3_MON/max_threshold_occupancy")

    def __init__(self) -> None:
        self.threshold = self.THRESHOLD.read_text(encoding="ascii") if self.THRESHOLD.exists() else ""
        self.options = "debug" if Path(self.root, "mon_hw_id").exists() else "rw"

    def where(self, number: int) -> str:
        """/proc/NUMBER/cpu_resctrl_groups; OSError if there is no such task."""
        return Path(f"/proc/{number}/cpu_resctrl_groups").read_bytes().decode(errors="surrogateescape")

    def counters(self, mode: str) -> None:
        """normal, Unavailable or Error."""
        for parameter, yes in {"unavail": mode == "Unavailable", "error": mode == "Error"}.items():
            (self.PARAMETERS / parameter).write_text(str(int(yes)), encoding="ascii")

    def pin(self, number: int, package: int) -> None:
        """Let a task run on this package only."""
        pin(number, package)

    def read_only(self, yes: bool) -> None:
        subprocess.run(["mount", "-o", f"remount,{'ro' if yes else 'rw'}", self.root], check=True)

    def umount(self) -> None:
        subprocess.run(["umount", self.root], check=True)

    def mount(self) -> None:
        subprocess.run(["mount", "-t", "resctrl", "-o", self.options, "resctrl", self.root], check=True)

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
            raise ProcessLookupError(errno.ENOENT, str(error)) from error

    def counters(self, mode: str) -> None:
        self._control(do="set", counters=mode)

    def pin(self, number: int, package: int) -> None:
        self._control(do="run", tid=number, package=package)

    def read_only(self, yes: bool) -> None:
        self._control(do="set", read_only=yes)

    def umount(self) -> None:
        self._control(do="unmount")

    def mount(self) -> None:
        self._control(do="mount")

    def settle(self) -> None:
        self._control(do="settle")

    def hold(self) -> None:
        self._control(do="set", decay_ms=10**9)


Side = Union[KernelSide, ModelSide]


def of_live(method: Callable[..., Answer]) -> Callable[..., Answer]:
    """An operation of a task, which is skipped if that does not live."""

    def operation(player: Player, name: str, *arguments: object) -> Answer:
        task = player.crew.live(name)
        if task is None:
            return "skipped"
        answer = method(player, task, *arguments)
        return "ok" if answer is None else answer

    return operation


def of_open(method: Callable[..., Answer]) -> Callable[..., Answer]:
    """An operation of an open file, which is skipped if there is none."""

    def operation(player: Player, slot: int, *arguments: object) -> Answer:
        if slot not in player.slots:
            return "skipped"
        answer = method(player, slot, *arguments)
        return "ok" if answer is None else answer

    return operation


@dataclass
class Player:
    """Runs sequences. Each method do_X is an operation X; an operation of Files is done by E, or `as` a task."""

    machine: Side
    crew: Crew
    slots: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Open files: the descriptor, and the path by which it was opened."""

    def __post_init__(self) -> None:
        self.files = Files(self.machine.root)
        self.fixed = {*self.files.listing("")}
        """What is no group. Where nothing can be monitored, a ctrl_group can be called mon_groups."""

    # ---- operations ----

    def perform(self, operation: Operation) -> Answer:
        name, *arguments = operation
        method = getattr(self, "do_" + name, None)
        if method is not None:
            return method(*arguments)
        return self._file("E", name, arguments)

    def do_as(self, name: str, operation: str, *arguments: object) -> Answer:
        return self._file(name, operation, list(arguments))

    def _file(self, name: str, operation: str, arguments: list[Any]) -> Answer:
        if operation == "write":
            arguments = [arguments[0], self.crew.fill(arguments[1])]
            if not arguments[1]:
                return "EMPTY_WRITES"
        if name == "E":
            answer = attempt(lambda: getattr(self.files, operation)(*arguments))
        else:
            task = self.crew.live(name)
            if task is None:
                return "skipped"
            answer = task.ask("file", operation, arguments)
        return self._shown(arguments[0], answer) if operation == "read" else answer

    def _shown(self, path: str, text: str) -> Answer:
        """Of what was read that which can be the same on two machines."""
        if text in errno.errorcode.values():
            return text
        if path.rpartition("/")[2] == "tasks":
            names = self.crew.names()
            return sorted(names[number] for number in map(int, text.split()) if number in names)
        return shape(text) if "mon_data/" in path else text

    @of_live
    def do_numbers(self, task: HelperTask, path: str) -> Answer:
        """A task reads `tasks`: the numbers as they are, for whoever is in a pid namespace of its own."""
        return task.ask("file", "read", [path])

    def do_fork(self, parent: str, child: str) -> Answer:
        return self._birth(parent, child, self.crew.fork)

    def do_thread(self, parent: str, child: str) -> Answer:
        return self._birth(parent, child, self.crew.thread)

    def _birth(self, parent: str, child: str, make: Callable[[HelperTask, str], None]) -> Answer:
        task = self.crew.live(parent)
        if task is None or child in self.crew.tasks or task.leader != task.name:
            return "skipped"
        make(task, child)
        with suppress(OSError):  # FORKS_ARE_SEEN
            self.files.read("tasks")
        return "ok"

    @of_live
    def do_end(self, task: HelperTask) -> None:
        self.crew.end(task)

    def do_reap(self, name: str) -> Answer:
        task = self.crew.tasks.get(name)
        if task is None or not task.zombie:
            return "skipped"
        self.crew.reap(task)
        return "ok"

    @of_live
    def do_run(self, task: HelperTask, package: int) -> Answer:
        """On this package, and from now on on no other. It runs when the answer is there."""
        task.changed = True
        self.machine.pin(task.number, package)
        return task.ask("wake")

    @of_live
    def do_tell(self, task: HelperTask, what: str) -> Answer:
        """unshare, drop"""
        task.changed = True
        return task.ask(what)

    def do_where(self, name: str) -> Answer:
        number = self.crew.numbers.get(name)
        return "skipped" if number is None else attempt(lambda: self.machine.where(number))

    def do_open(self, slot: int, path: str, mode: str) -> Answer:
        if slot in self.slots:
            return "skipped"
        flags = {"r": os.O_RDONLY, "w": os.O_WRONLY, "rw": os.O_RDWR}[mode]
        fd = attempt(lambda: os.open(self.files.at(path), flags))
        if isinstance(fd, int):
            self.slots[slot] = fd, path
            return "ok"
        return fd

    @of_open
    def do_pread(self, slot: int) -> Answer:
        fd, path = self.slots[slot]
        return self._shown(path, attempt(lambda: whole(fd)))

    @of_open
    def do_pwrite(self, slot: int, data: str) -> Answer:
        text = self.crew.fill(data)
        return attempt(lambda: put(self.slots[slot][0], text)) if text else "EMPTY_WRITES"

    @of_open
    def do_close(self, slot: int) -> None:
        os.close(self.slots.pop(slot)[0])

    def do_fill(self, above: str) -> Answer:
        """mkdir until it fails: how many, and why no more."""
        for count in itertools.count():
            why = attempt(lambda: self.files.mkdir(f"{above}/fill{count}".lstrip("/")))  # noqa: B023  called at once
            if why != "ok":
                return [count, why]
        raise AssertionError

    def do_machine(self, what: str, *arguments: object) -> Answer:
        """counters, read_only, umount, mount, hold, settle"""
        return attempt(lambda: getattr(self.machine, what)(*arguments))

    def do_settle(self) -> Answer:
        """No RMID in limbo, all of them free but one that mon_groups/probe has; the order of the free ones is known.

        As long as nothing is free: the first that is shows that a look was taken, and a look frees all that are clean.
        """
        for wanted in ("ENOSPC", "ok"):
            self._clear()
            self.machine.settle()
            self._await(wanted)
        self.machine.hold()
        return "ok"

    def _await(self, wanted: str) -> None:
        """mkdir until it gives this."""
        end = time.monotonic() + DEADLINE
        for count in itertools.count():
            name = "probe" if wanted == "ok" else f"settle{count}"
            got = attempt(lambda: self.files.mkdir(f"mon_groups/{name}"))  # noqa: B023  called at once
            if got == wanted:
                return
            if time.monotonic() > end:
                raise RuntimeError(f"mkdir says {got}, not {wanted}")
            if got == "EBUSY":
                time.sleep(0.02)  # only so that waiting costs others nothing; resctrl looks once a second

    # ---- around them ----

    def play(self, sequence: list[Operation]) -> list[Answer]:
        self.start_afresh()
        answers = [[self.perform(operation), self.status()] for operation in sequence]
        return [*answers, [self.everything(), "ok"]]

    def status(self) -> str:
        return self.crew.unfill(attempt(lambda: self.files.read("info/last_cmd_status")))

    def everything(self) -> Answer:
        groups = {path: self._group(path) for path in ["", *self._groups()]}
        return {"groups": groups, "where": {name: self.do_where(name) for name in sorted(self.crew.numbers)}}

    def _group(self, path: str) -> Answer:
        files = ["tasks", "mon_hw_id", "ctrl_hw_id"]
        return {name: self._file("E", "read", [f"{path}/{name}".lstrip("/")]) for name in files}

    def _groups(self) -> Iterator[str]:
        """mon_groups after their ctrl_group, in order of names."""
        if "mon_groups" in self.fixed:
            yield from self._below("mon_groups")
        for name in self._below(""):
            if name not in self.fixed:
                yield name
                yield from self._below(f"{name}/mon_groups")

    def _below(self, directory: str) -> list[str]:
        names = attempt(lambda: self.files.listing(directory))
        return [f"{directory}/{name}".lstrip("/") for name in names] if isinstance(names, list) else []

    def start_afresh(self) -> None:
        self._clear()
        self.crew.renew()
        with suppress(OSError):
            self.files.write("tasks", "\n")  # clears last_cmd_status

    def _clear(self) -> None:
        for fd, _ in self.slots.values():
            os.close(fd)
        self.slots.clear()
        for path in [*self._groups()]:
            with suppress(FileNotFoundError):  # it went with its ctrl_group
                self.files.rmdir(path)


def shape(text: str) -> str:
    """Of a counter: what does not depend on how long something ran."""
    if re.fullmatch(r"\d+\n", text):
        return "integer"
    return "decimal" if re.fullmatch(r"\d+\.\d{6}\n", text) else text


@contextmanager
def machine(kind: str, directory: Path, knobs: dict[str, Any]) -> Iterator[Side]:
    if kind == "kernel":
        yield KernelSide()
        return
    with mounted(directory, **knobs) as resctrl:
        yield ModelSide(resctrl)


def run(kind: str, script: Path, results: Path) -> None:
    told = json.loads(script.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="resctrl-ops-") as name, machine(kind, Path(name), told["knobs"]) as found:
        os.chmod(name, 0o755)
        os.umask(0o022)
        player = Player(found, Crew(found.root, Path(name)))
        answers = [player.play(sequence) for sequence in told["sequences"]]
        player.start_afresh()
        results.write_text(json.dumps(answers), encoding="utf-8")
        for task in player.crew.tasks.values():
            task.tell("end")
            os.waitpid(task.number, 0)


def main(arguments: list[str]) -> None:
    where, script, results = arguments
    run(where, Path(script), Path(results))


if __name__ == "__main__":
    main(sys.argv[1:])
