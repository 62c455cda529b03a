# SPDX-License-Identifier: Apache-2.0
"""Hostile input to a whole hook, on a simulated machine: files, a state and options, made of what is real.

No container fails, nothing hangs, nothing unforeseen comes up, and nothing of others is changed.
"""

from __future__ import annotations

import json
import re
import time
import traceback
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from hook import entry, models, system
from tests.faults.campaign import Campaign
from tests.simulator.kernel import COUNTERS, RESCTRL, Kernel, KernelNode
from tests.simulator.machine import RUN, Caller, SimulatedMachine
from tests.support.hook import STATES, UID, created, stopped
from tests.unit import strategies

CONTAINER = "c1"
INPUTS = 100_000


def run(campaign: Campaign) -> None:
    begin, most = time.monotonic(), campaign.most or INPUTS
    if not campaign.is_chosen("whole hooks"):
        return
    problems = {}

    @seed(campaign.seed)
    @settings(max_examples=most, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(inputs())
    def check_each(what: HostileInput) -> None:
        check(what)

    try:
        check_each()
    except Exception:  # noqa: BLE001  whatever it is, this input led to it
        problems["whole hooks"] = traceback.format_exc()
    campaign.tally("inputs to whole hooks", most, problems, begin)


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


# --- What is real


FIELDS = ["S", *["0"] * 16, "1", "0", "100", *["0"] * 30]
STAT = f"4711 (runc:[2:INIT]) {' '.join(FIELDS)}\n".encode()
CGROUP = f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-{'a' * 64}.scope\n".encode()
CGROUPS_V1 = f"12:cpu,cpuacct:/kubepods/pod{UID}/{CONTAINER}\n1:name=systemd:/\n0::/\n".encode()
PROCESS = {
    "stat": STAT,
    "cgroup": CGROUP,
    "cpu_resctrl_groups": b"res:/\nmon:\n",
    "uid_map": b"         0          0 4294967295\n",
}
GROUP = f"{RESCTRL}/mon_groups/oci-{CONTAINER}"
RECORD: dict[str, Any] = {
    "key": UID,
    "kind": "pod",
    "groups": [{"path": GROUP, "ctrl_group": "/"}],
    "members": {CONTAINER: {"pid": 4711, "starttime": 100, "group": GROUP}},
}
BEGUN = {**RECORD["groups"][0], "begin": COUNTERS}
FAILED = {"container": CONTAINER, "stage": "createRuntime", "reason": "no_rmids", "problem": "none is left", "key": UID}


def of_pod(state: dict[str, object]) -> dict[str, object]:
    annotations = {"io.kubernetes.pod.uid": UID, "monitor.resctrl-mon.io": "true"}
    return {**state, "bundle": "/bundle", "annotations": annotations}


class HostileInput(NamedTuple):
    """What a hook is given. `process`: what /proc has of each process; `files`: the text of others, by path."""

    stdin: bytes
    words: list[str]
    process: dict[str, bytes]
    files: dict[str, bytes]


CREATED, FURTHER = (of_pod(created(name, 4711)) for name in (CONTAINER, "c2"))
STOPPED = of_pod(stopped(CONTAINER))
RECORDED = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(STATES.glob("*.json"))]
DEAD = {**PROCESS, "stat": STAT.replace(b") S ", b") Z ")}


def _as_files(documents: dict[str, Any]) -> dict[str, bytes]:
    return {path: it if isinstance(it, bytes) else json.dumps(it).encode() for path, it in documents.items()}


CONFIG = {"linux": {"intelRdt": {"closID": "gold"}}, "annotations": {"a": "b"}}
RECORDED_KEY: dict[str, Any] = {**RECORD, "groups": [BEGUN], "created_at": "2026-01-02T03:04:05Z"}
INDEX = {"key": UID}
KNOWN: dict[str, Any] = {
    f"{RUN}/groups/{UID}.json": RECORDED_KEY,
    f"{RUN}/members/{CONTAINER}.json": INDEX,
    f"{RUN}/unmonitored/{CONTAINER}.json": FAILED,
    f"{GROUP}/tasks": b"4711\n",
    f"{GROUP}/mon_data/mon_L3_00/mbm_total_bytes": b"4096\n",
}
LIVES_OF: list[tuple[dict[str, Any], list[str], dict[str, bytes], dict[str, Any]]] = [
    (CREATED, [], PROCESS, {"/bundle/config.json": CONFIG}),
    (FURTHER, ["--strict"], PROCESS, KNOWN),
    (STOPPED, [], DEAD, {**KNOWN, f"{GROUP}/tasks": b""}),
    ({**STOPPED, "annotations": {}}, ["--linger=60"], DEAD, {**KNOWN, f"{GROUP}/tasks": b""}),
    *((state, ["--linger=60", "--monitor=opt-in"], DEAD, {}) for state in RECORDED),
]
LIVES = [
    HostileInput(json.dumps(state).encode(), words, process, _as_files(files))
    for state, words, process, files in LIVES_OF
]


# --- What is made of it


def inputs() -> st.SearchStrategy[HostileInput]:
    """A hook that comes to the end of what it does, with some of its input nearly as it should be, or anything."""
    states = [json.loads(it.stdin) for it in LIVES]
    files = {
        "/bundle/config.json": _document(models.Config, CONFIG),
        f"{RUN}/groups/{UID}.json": _document(models.KeyState, RECORD, RECORDED_KEY),
        f"{RUN}/members/{CONTAINER}.json": _document(models.Index, INDEX),
        f"{RUN}/unmonitored/{CONTAINER}.json": _document(models.Failure, FAILED),
        f"{GROUP}/tasks": _text(b"4711\n", b"\n"),
        f"{GROUP}/mon_data/mon_L3_00/mbm_total_bytes": _text(b"4096\n", b"Unavailable\n", b"9" * 30),
    }
    process = {
        "stat": _text(PROCESS["stat"], DEAD["stat"]).map(lambda text: _NO_TIME.sub(b"1", text)),
        "cgroup": _text(CGROUP, CGROUPS_V1),
        "cpu_resctrl_groups": _text(PROCESS["cpu_resctrl_groups"], b"res:gold\nmon:x\n", b""),
        "uid_map": _text(PROCESS["uid_map"], b"0 1000 1"),
    }
    return st.builds(
        lambda life, stdin, words, process, files: HostileInput(
            life.stdin if stdin is None else stdin,
            life.words + words,
            {**life.process, **process},
            {**life.files, **files},
        ),
        st.sampled_from(LIVES),
        st.none() | _document(models.State, *states),
        _words(),
        st.fixed_dictionaries({}, optional=process),
        st.fixed_dictionaries({}, optional=files),
    )


_NO_TIME = re.compile(rb"-|\d{19,}")
"""What no kernel gives as a start time: one below zero, or beyond 64 bits."""


def _document(model: type[models.Model], *real: dict[str, Any]) -> st.SearchStrategy[bytes]:
    fine = st.sampled_from(real)
    some = fine | strategies.nearly_valid(model, fine) | strategies.valid(model)
    return some.map(lambda it: json.dumps(it, default=str).encode()) | st.binary()


def _text(*real: bytes) -> st.SearchStrategy[bytes]:
    """The kernel's, as it is, with something in its midst or cut short, and anything."""
    fine = st.sampled_from(real)
    cut = st.tuples(fine, st.integers(0, 200), st.binary(max_size=8), st.integers(0, 200))
    return fine | cut.map(lambda it: it[0][: it[1]] + it[2] + it[0][it[1] + it[3] :]) | st.binary()


def _words() -> st.SearchStrategy[list[str]]:
    """A command line. Each option has its value behind a `=`, so that no odd value is taken for another option."""
    values = st.sampled_from(["0", "60", "1e1", "1_0", "nan", "-1", "auto", "sandbox", "opt-in", "/x", ""]) | st.text()
    names = st.sampled_from([f"--{name.replace('_', '-')}" for name in models.Options.model_fields])
    options = names | st.builds("{}={}".format, names, values) | values
    return st.lists(options.filter(lambda word: "\0" not in word), max_size=4)


# --- What must hold


def check(given: HostileInput) -> None:
    """Run a hook on one input from its start to its end, and look at what it left."""
    machine = HostileMachine(given.process, given.stdin)
    for path, text in given.files.items():
        machine.add(path, text)
    with machine.installed(system):
        status = entry.run_stage("hook", [*given.words])
        chosen, _ = entry.parse(list(given.words))
    assert status == 0 or (status == 1 and chosen.strict), status
    stderr = machine.caller.stderr.decode("ascii")
    assert "unforeseen" not in stderr, stderr
    assert stderr.replace("\n", "").isprintable()
    ours = re.compile(r"/.*/mon_groups/[^/]+(/tasks)?")  # any that is on record
    strangers = [
        (call, path)
        for call, path in machine.changes
        if not path.startswith(chosen.run_dir + "/") and path != chosen.run_dir and not ours.fullmatch(path)
    ]
    assert not strangers, strangers
    torn = [path for path in machine.files("/") if path.endswith(".tmp")]
    assert not torn, torn
