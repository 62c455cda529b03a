# SPDX-License-Identifier: Apache-2.0
"""What is put to hostile input: all that parses, and the whole hook, each a function of a program and of some texts.

It returns what came of them, which has to be the same for both forms of the program: on pydantic's models, as in the
source tree, and on the compiled ones, as in the .pyz. What must hold in any case is asserted; an exception that is not
documented goes through.
"""

from __future__ import annotations

import importlib
import json
import posixpath
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any, NamedTuple

from pyz import ROOT, archive
from tests.simulator.kernel import RESCTRL, Kernel, KernelNode
from tests.simulator.machine import RUN, Caller, SimulatedMachine

SEPARATOR = b"\x1e"
"""Between the texts of one input: JSON has no such character, and other texts seldom do."""
UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"
CONTAINER = "c1"
NOT_IMPORTED = ("__init__", "loader", "models_compiled", "node_models_compiled")
"""Packages; what runs as it is imported; what are the models in the .pyz."""
MODULES = ["node.runtimes"] + [
    f"{package}.{path.stem}"
    for package in ("base", "state", "stages")
    for path in (ROOT / "hook" / package).glob("*.py")
    if path.stem not in NOT_IMPORTED
]
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+,-]{0,199}")
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
_LONGEST_NUMBER = 25


class Program:
    """The program's modules as attributes: `models`, `entry` and so on. They are this object's alone.

    `place`: the source tree, or a .pyz, of which the sources are taken.
    """

    def __init__(self, place: Path) -> None:
        former = {name: sys.modules.pop(name) for name in _ours()}
        sys.path.insert(0, str(place))
        try:
            self._modules = {name.partition(".")[2]: importlib.import_module(f"hook.{name}") for name in MODULES}
        finally:
            sys.path.remove(str(place))
            self._all = {name: sys.modules.pop(name) for name in _ours()}
            sys.modules.update(former)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  a module
        return self._modules[name]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Let what its functions import be its own modules."""
        former = {name: sys.modules[name] for name in self._all if name in sys.modules}
        sys.modules.update(self._all)
        try:
            with ExitStack() as self._machines:
                yield
        finally:
            for name in self._all:
                del sys.modules[name]
            sys.modules.update(former)

    def on(self, process: dict[str, bytes] | None = None, stdin: bytes = b"") -> HostileMachine:
        """A machine, with this program at work on it."""
        machine = HostileMachine(process or {}, stdin)
        self._machines.enter_context(machine.installed(self.system))
        self.system.time.strftime = lambda *_: "2026-01-02T03:04:05Z"
        return machine


class HostileKernel(Kernel):
    """Every pid is a process, and /proc shows `process` of it; every pid can be put into every group."""

    def __init__(self, process: dict[str, bytes]) -> None:
        super().__init__()
        self.process = process

    def look(self, path: str) -> KernelNode | None:
        _, _, pid, name = (path + "///").split("/", 3)
        name = name.rstrip("/")
        if path.startswith("/proc/") and (pid.isdecimal() or pid == "self"):
            if name in self.process:
                return KernelNode(self.process[name], 1, None)
            if not name:
                return KernelNode([*self.process], 1, None)
        return super().look(path)

    def put(self, path: str, data: bytes) -> None:
        before = self.look(f"{path}/tasks")
        self.files[f"{path}/tasks"] = (before.content if before and isinstance(before.content, bytes) else b"") + data

    def rmdir(self, path: str) -> None:
        super().rmdir(path)
        self.files = {name: text for name, text in self.files.items() if not name.startswith(path + "/")}


class HostileMachine(SimulatedMachine):
    """`add` makes the group that a file is in."""

    def __init__(self, process: dict[str, bytes], stdin: bytes) -> None:
        super().__init__(kernel=HostileKernel(process))
        self.caller = Caller(stdin)

    def add(self, path: str, content: bytes) -> str:
        group, _, counter = path.partition("/mon_data/")
        group = group.removesuffix("/tasks")
        if group.startswith(f"{RESCTRL}/mon_groups/"):
            if group not in self.kernel.groups:
                self.kernel.mkdir(group)
            if counter:
                self.kernel.groups[group].counters[counter] = ""
        return super().add(path, content)


def _ours() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "hook"]


def both_forms(directory: Path) -> tuple[Program, Program]:
    """The program on pydantic's models and on the compiled ones; the directory is for a .pyz."""
    pyz = archive.build(output=directory / "sources.pyz")
    return Program(ROOT), Program(pyz)


Texts = Sequence[bytes]
Target = Callable[[Program, Texts], object]


class Difference(AssertionError):
    """The two forms of the program make different things of the same input."""


def check(target: Target, forms: Sequence[Program], data: bytes) -> None:
    """Put one input to both forms of the program."""
    texts = data.split(SEPARATOR)
    one, other = [_comparable(_at_work(target, form, texts)) for form in forms]
    if one != other:
        raise Difference(f"{target.__name__}: pydantic {one!a}, compiled {other!a}")


def _at_work(target: Target, form: Program, texts: Texts) -> object:
    with form.at_work():
        return target(form, texts)


_MESSAGE = re.compile(r"Input should be [^;\"]*")
"""What a model says of a value, which each form words in its own way; where that value is they agree on."""


def _comparable(it: object) -> object:
    """Without messages, and as text: 1, 1.0 and True are not the same, and NaN is."""
    if isinstance(it, bytes):
        it = it.decode("utf-8", "surrogateescape")
    if isinstance(it, str):
        return _MESSAGE.sub("", it)
    if isinstance(it, (list, tuple)):
        return [*map(_comparable, it)]
    if isinstance(it, dict):
        return [(name, _comparable(value)) for name, value in it.items()]
    return repr(it)


def _text(texts: Texts, at: int) -> str:
    """A text as the program reads it from a file."""
    return texts[at].decode("utf-8", "surrogateescape") if at < len(texts) else ""


def _bytes(texts: Texts, at: int) -> bytes:
    return texts[at] if at < len(texts) else b""


# --- JSON, and what is in it


def _bounded(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:  # noqa: ANN401  a number
        if len(text) > _LONGEST_NUMBER:
            raise ValueError("long")
        return kind(text)

    return parse


def _refuse(text: str) -> None:
    raise ValueError(text)


_REFERENCE = json.JSONDecoder(parse_int=_bounded(int), parse_float=_bounded(float), parse_constant=_refuse)


def jsontext(program: Program, texts: Texts) -> object:
    """The same objects as from `json`, and ValueError for the rest; what is written is one line, and read the same."""
    text = _text(texts, 0)
    expected: object = ValueError
    with suppress(ValueError, RecursionError):
        expected = _REFERENCE.decode(text)
    try:
        found = program.jsontext.loads(text)
    except ValueError as error:
        found = error if "\n" in str(error) else ValueError
    assert repr(found) == repr(expected), (found, expected)
    if found is not ValueError and "inf" not in repr(found):
        written = program.jsontext.dumps(found)
        assert written.isascii()
        assert written.isprintable()
        assert repr(json.loads(written)) == repr(json.loads(json.dumps(found)))
    return found


def _decoded(text: str) -> Any:  # noqa: ANN401  JSON
    """More than our own decoder lets through, for the models to judge: NaN, numbers of any length."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _model(program: Program, name: str, document: object) -> tuple[Any, object]:
    """What a model makes of a document, or None; and what to compare."""
    try:
        found = getattr(program.models, name).model_validate(document)
    except program.models.ValidationError as error:
        first = error.errors()[0]
        return None, (first["loc"], first["type"], program.explain.explain_invalid(error.errors()))
    return found, found.model_dump()


def state(program: Program, texts: Texts) -> object:
    """A state, its annotations, and whose container it is by them."""
    found, outcome = _model(program, "State", _decoded(_text(texts, 0)))
    if found is None:
        return outcome
    said, of_annotations = _model(program, "Annotations", found.annotations or {})
    if said is None:
        return outcome, of_annotations
    pod = program.identity.pod_of(found.id, said, [])
    keys = [_key(program, mode, found.id, said, pod) for mode in ("auto", "container", "sandbox")]
    choices = []
    for monitor in ("all", "opt-in", "opt-out"):
        options = program.models.Options(monitor=monitor, namespace=["default"] if len(keys[0]) % 2 else [])
        choices.append(program.identity.is_wanted(options, found.annotations or {}, pod))
    return outcome, of_annotations, keys, choices


def _key(program: Program, mode: str, container: str, said: object, pod: object) -> tuple[str, ...]:
    try:
        key = program.identity.derive_key(mode, container, said, pod)
    except program.errors.HookError as error:
        return (error.reason,)
    # The hook has looked at the container's ID by then, and no other text becomes a key unseen
    assert key.name == container or _ID.fullmatch(key.name)
    assert key.kind != "pod" or _UID.fullmatch(key.name)
    return key.name, key.kind


RECORDS = {"groups": "KeyState", "members": "Index", "unmonitored": "Failure"}


def records(program: Program, texts: Texts) -> object:
    """A bundle's config.json, and what is on record: as hooks read it, who set aside what they cannot read, and people.

    The first text names where it lies.
    """
    part, text = _text(texts, 0), _bytes(texts, 1)
    if part not in RECORDS:
        return _model(program, "Config", _decoded(_text(texts, 1)))[1]
    found, outcome = _model(program, RECORDS[part], _decoded(_text(texts, 1)))
    if found is not None:
        again = program.jsontext.loads(program.jsontext.dumps(found.model_dump()))
        assert type(found).model_validate(again) == found if "pydantic" in str(type(found).__mro__) else True
    machine = program.on()
    machine.add(f"{RUN}/{part}/{CONTAINER}.json", text)
    return outcome, _read(program), machine.files(RUN)


def _read(program: Program) -> list[str]:
    """What both kinds of readers make of the file."""
    with program.records.Records(RUN) as seen:
        found = [seen.state(CONTAINER), seen.failure(CONTAINER), program.records.glance_index(seen, CONTAINER)]
    run = program.store.RunDir(RUN)
    found += [run.glance(program.models.KeyState, CONTAINER), run.read_key(CONTAINER)]
    found += [run.read_key(CONTAINER), program.records.glance_index(run, CONTAINER)]
    found += [run.glance(program.models.Failure, CONTAINER), *map(str, run.complaints)]
    return [repr(it.model_dump()) if hasattr(it, "model_dump") else repr(it) for it in found]


_NO_NUMBER = re.compile(r"--(linger|snapshot-ttl|lock-timeout|rmid-wait)=(.*[^0-9.].*)?", re.DOTALL)


def options(program: Program, texts: Texts) -> object:
    """A command line, of which each wrong option is complained of and ignored."""
    arguments = _text(texts, 0).split("\n")
    found, complaints = program.entry.parse(list(arguments))
    assert len(complaints) <= len(arguments)
    if all("=" in word for word in arguments):  # so that none is the value of the one before it
        assert len(complaints) >= len([word for word in arguments if _NO_NUMBER.fullmatch(word)])
    accepted, _ = _model(program, "Options", found.model_dump())
    assert accepted == found
    return found.model_dump(), complaints


# --- The kernel's texts


PID = 4711


def proc(program: Program, texts: Texts) -> object:
    """/proc/PID/stat, cgroup, cpu_resctrl_groups and uid_map."""
    machine = program.on({name: text.replace(b"\0", b"") for name, text in zip(PROC, texts)})
    procfs, cgroups = program.procfs, program.cgroups
    found: list[object] = [procfs.is_dead(PID), procfs.is_dead(PID, 100), procfs.in_user_namespace()]
    try:
        found.append(procfs.starttime(PID))
    except (OSError, ValueError, IndexError) as error:  # such a process is refused
        found.append(type(error))
    places = [*procfs.cgroups(PID), procfs.own_cgroup(procfs.cgroups(PID), CONTAINER)]
    for place in places:
        if place is not None:
            found += [
                program.identity.find_pod_cgroup(place, UID),
                cgroups.is_own(place, CONTAINER),
                cgroups.find_container_id(place),
            ]
            found += [program.cgroups.find_directory(place), cgroups.is_within(place, places[0] or "")]
            assert found[-4] is None or cgroups.is_within(place, str(found[-5] or place))
    assert not machine.changes
    return found, places, procfs.resctrl_groups(PID)


def kernel(program: Program, texts: Texts) -> object:
    """What resctrl has in a group's `tasks`, in num_rmids and in last_cmd_status, and a counter's text."""
    machine = program.on({"stat": _bytes(texts, 1)})
    group = f"{RESCTRL}/mon_groups/oci-c1"
    machine.add(f"{group}/tasks", _bytes(texts, 0))
    machine.add(f"{group}/mon_data/mon_L3_00/mbm_total_bytes", _bytes(texts, 2))
    machine.add(f"{RESCTRL}/info/L3_MON/num_rmids", _bytes(texts, 3))
    machine.add(f"{RESCTRL}/info/last_cmd_status", _bytes(texts, 4))
    resctrl = program.resctrl.Resctrl(RESCTRL)
    found = [
        resctrl.tasks(group),
        resctrl.has_live_task(group),
        program.resctrl.read_rmid_limit(RESCTRL),
        resctrl.counters(group),
    ]
    with suppress(program.errors.HookError):
        resctrl.make(f"{RESCTRL}/gone/mon_groups/x")
    assert not machine.changes
    return [sorted(it) if isinstance(it, set) else it for it in found]


def counters(program: Program, texts: Texts) -> object:
    """The arithmetic of use: exact, and unknown rather than wrong."""
    begin, now, before = (_text(texts, at) for at in range(3))
    here = program.counters
    numbers = [here.number(text) for text in (begin, now, before)]
    for text, number in zip((begin, now, before), numbers):
        if number is not None:
            assert number == floor(Fraction(text.strip()) * 10**6)
            assert here.number(here.text_of(number)) == number or len(text) > 23
    counter = "mon_PERF_PKG_00/core_energy" if len(begin) % 2 else "mon_L3_00/mbm_total_bytes"
    used = here.used(counter, begin, now)
    assert used is None or used >= 0
    counts = {"begin": {counter: begin}, "before": {counter: before}}
    group = program.models.MonGroup(path=f"{RESCTRL}/mon_groups/x", ctrl_group="/", **counts)
    lifetime = here.lifetime(group, {counter: now})[counter]
    assert lifetime is None or None not in (numbers[2], used)
    assert here.event_of(begin) is None or begin.endswith(tuple(here.EVENTS))
    return numbers, used, lifetime, here.text_of(lifetime)


# --- Names, and the answers of runtimes


def names(program: Program, texts: Texts) -> object:
    """What may become a part of a path: no more than is promised, and nothing that leads elsewhere."""
    text = _text(texts, 0)
    rules = ("container_id", "component", "path", "ctrl_group", "group_prefix", "directory", "mon_group")
    found = {}
    for rule in rules:
        try:
            found[rule] = getattr(program.names, rule)(text)
        except ValueError as error:
            found[rule] = None if str(error).startswith("not ") else error
    assert (found["container_id"] is not None) == bool(_ID.fullmatch(text))
    found["pod_uid"] = program.identity.canonical_uid(text)
    assert (found["pod_uid"] is not None) == bool(_UID.fullmatch(text.lower()) and text.lower().isascii())
    for rule in ("container_id", "pod_uid", "component", "group_prefix"):
        name = found[rule]
        assert name is None or posixpath.normpath(f"/x/{name}") == f"/x/{name}"
    for rule in ("directory", "mon_group"):
        assert found[rule] is None or posixpath.normpath(str(found[rule])) == found[rule].replace("//", "/", 1)
    return found


def runtimes(program: Program, texts: Texts) -> object:
    """What a runtime's `state` prints."""
    program.on()
    here = program.runtimes
    found = here.parse_state(_text(texts, 0), "web")
    if isinstance(found, str):
        return found
    assert found.id == "web"
    return found.model_dump()


# --- The hook as a whole


def whole(program: Program, texts: Texts) -> object:
    """A hook from its start to its end. The texts: what lies in FILES, in this order, then stdin, and the arguments."""
    files = dict(zip(FILES, texts))
    if texts:
        files["stat"] = _NO_TIME.sub(b"1", texts[0])
    stdin, arguments = _bytes(texts, len(FILES)), _text(texts, len(FILES) + 1)
    machine = program.on({name: files.pop(name, b"") for name in PROC}, stdin)
    for path, text in files.items():
        if text:
            machine.add(path, text)
    words = [word for word in arguments.split("\n") if word]
    verb = words.pop(0) if words and words[0] in VERBS else "hook"
    status = program.entry.dispatch([verb, *words])
    _is_fine(program, machine, status, words)
    return status, machine.caller.stderr, machine.syslog, machine.files("/"), machine.kernel.files


_NO_TIME = re.compile(rb"-|\d{19,}")
"""What no kernel gives as a start time: one below zero, or beyond 64 bits."""
VERBS = ("hook", "createRuntime", "poststop")
PROC = ("stat", "cgroup", "cpu_resctrl_groups", "uid_map")
FILES = (
    *PROC,
    "/bundle/config.json",
    f"{RUN}/groups/{UID}.json",
    f"{RUN}/groups/{CONTAINER}.json",
    f"{RUN}/members/{CONTAINER}.json",
    f"{RUN}/unmonitored/{CONTAINER}.json",
    f"{RESCTRL}/mon_groups/oci-{CONTAINER}/tasks",
    f"{RESCTRL}/mon_groups/oci-{CONTAINER}/mon_data/mon_L3_00/mbm_total_bytes",
)


def _is_fine(program: Program, machine: HostileMachine, status: int, words: list[str]) -> None:
    """No container fails unless by --strict, nothing unforeseen came up, and nothing was changed that is not ours."""
    chosen, _ = program.entry.parse(list(words))
    assert status == 0 or (status == 1 and chosen.strict), status
    said = machine.caller.stderr.decode("ascii")
    assert "unforeseen" not in said, said
    assert said.replace("\n", "").isprintable()
    ours = re.compile(r"/.*/mon_groups/[^/]+(/tasks)?")  # any that is on record
    strangers = [
        (call, path)
        for call, path in machine.changes
        if not path.startswith(chosen.run_dir + "/") and path != chosen.run_dir and not ours.fullmatch(path)
    ]
    assert not strangers, strangers
    torn = [path for path in machine.files("/") if path.endswith(".tmp")]
    assert not torn, torn


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (jsontext, state, records, options, proc, kernel, counters, names, runtimes, whole)
}


class Share(NamedTuple):
    """How much of all inputs a target gets, and how long one takes, in microseconds or so."""

    target: str
    part: float
    cost: int


SHARES = (
    Share("jsontext", 0.15, 250),
    Share("state", 0.2, 210),
    Share("records", 0.15, 400),
    Share("options", 0.1, 170),
    Share("proc", 0.04, 700),
    Share("kernel", 0.03, 700),
    Share("counters", 0.05, 110),
    Share("names", 0.1, 60),
    Share("runtimes", 0.05, 250),
    Share("whole", 0.13, 1700),
)
