# SPDX-License-Identifier: Apache-2.0
"""Hostile input to whole hooks, on a simulated machine: files, a state and options,
made of what is real.

No container fails, nothing unforeseen comes up, and nothing of others is changed.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hook import entry, models, system
from tests.simulator.kernel import COUNTERS, RESCTRL, Kernel, KernelNode
from tests.simulator.machine import RUN, Caller, SimulatedMachine
from tests.simulator.oracle import read_json
from tests.support.hook import STATES, UID, created, stopped
from tests.unit import strategies

pytestmark = pytest.mark.slow


class HostileInput(NamedTuple):
    """What a hook is given.

    `process`: what /proc has of each process; `files`: the text of others, by path.
    """

    stdin: bytes
    words: list[str]
    process: dict[str, bytes]
    files: dict[str, bytes]


class HostileKernel(Kernel):
    """Every pid is a process, and /proc shows `process` of it;
    every pid can be put into every group.
    """

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
        self.files[f"{path}/tasks"] = (
            before.content if before and isinstance(before.content, bytes) else b""
        ) + data

    def rmdir(self, path: str) -> None:
        super().rmdir(path)
        self.files = {
            name: text for name, text in self.files.items() if not name.startswith(path + "/")
        }


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
                self.kernel.set_counter(group, counter, "")
        return super().add(path, content)


def check(data: HostileInput) -> None:
    """Run a hook on one input from its start to its end, and look at what it left."""
    machine = HostileMachine(data.process, data.stdin)
    for path, text in data.files.items():
        machine.add(path, text)
    with machine.installed(system):
        status = entry.run_stage("hook", [*data.words])
        chosen, _ = entry.parse(list(data.words))
    assert status == 0 or (status == 1 and chosen.strict), status
    stderr = machine.caller.stderr.decode("ascii")
    assert "unforeseen" not in stderr, stderr
    assert stderr.replace("\n", "").isprintable()
    # Any that is on record, as is a file of the history.
    ours = re.compile(r"/.*/mon_groups/[^/]+(/tasks)?")
    read = (
        read_json(text)
        for path, text in data.files.items()
        if path.startswith(chosen.run_dir + "/")
    )
    known = [chosen.run_dir, *(record.get("history_file") for record in read if record is not None)]
    strangers = [
        (call, path)
        for call, path in machine.changes
        if not path.startswith(chosen.run_dir + "/")
        and path not in known
        and not ours.fullmatch(path)
    ]
    assert not strangers, strangers
    torn = [path for path in machine.files("/") if path.endswith(".tmp")]
    assert not torn, torn


# --- What is real


CONTAINER = "c1"
FIELDS = ["S", *["0"] * 16, "1", "0", "100", *["0"] * 30]
PROCESS = {
    "stat": f"4711 (runc:[2:INIT]) {' '.join(FIELDS)}\n".encode(),
    "cgroup": (
        f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-{'a' * 64}.scope\n"
    ).encode(),
    "cpu_resctrl_groups": b"res:/\nmon:\n",
    "uid_map": b"         0          0 4294967295\n",
}
DEAD = {**PROCESS, "stat": PROCESS["stat"].replace(b") S ", b") Z ")}
CGROUPS_V1 = f"12:cpu,cpuacct:/kubepods/pod{UID}/{CONTAINER}\n1:name=systemd:/\n0::/\n".encode()
GROUP = f"{RESCTRL}/mon_groups/oci-{CONTAINER}"
RECORD: dict[str, Any] = {
    "key": UID,
    "kind": "pod",
    "groups": [{"path": GROUP, "ctrl_group": "/"}],
    "members": {CONTAINER: {"pid": 4711, "starttime": 100, "group": GROUP}},
}
BEGUN = {**RECORD["groups"][0], "begin": COUNTERS}
INDEX = {"key": UID}
CONFIG = {"linux": {"intelRdt": {"closID": "gold"}}, "annotations": {"a": "b"}}
BUNDLE, KEY, MEMBER, UNMONITORED, TASKS, COUNTER = (
    "/bundle/config.json",
    f"{RUN}/groups/{UID}.json",
    f"{RUN}/members/{CONTAINER}.json",
    f"{RUN}/unmonitored/{CONTAINER}.json",
    f"{GROUP}/tasks",
    f"{GROUP}/mon_data/mon_L3_00/mbm_total_bytes",
)
DOCUMENTS: dict[str, Any] = {
    KEY: {**RECORD, "groups": [BEGUN], "created_at": "2026-01-02T03:04:05Z"},
    MEMBER: INDEX,
    UNMONITORED: {
        "container": CONTAINER, "stage": "createRuntime", "reason": "no_rmids",
        "problem": "none is left", "key": UID,
    },
}  # fmt: skip
KNOWN = {
    **{path: json.dumps(content).encode() for path, content in DOCUMENTS.items()},
    TASKS: b"4711\n",
    COUNTER: b"4096\n",
}


def of_pod(state: dict[str, object]) -> dict[str, object]:
    annotations = {"io.kubernetes.pod.uid": UID, "monitor.resctrl-mon.io": "true"}
    return {**state, "bundle": "/bundle", "annotations": annotations}


OF_CRIO = {
    **KNOWN,
    KEY: KNOWN[KEY].replace(b'"pid": 4711', b'"cgroup": ":/x/crio-c1.scope", "pid": 4711'),
}
CREATED, FURTHER = (of_pod(created(name, 4711)) for name in (CONTAINER, "c2"))
STOPPED = of_pod(stopped(CONTAINER))
OF_RUNTIMES = [
    json.loads(path.read_text(encoding="utf-8")) for path in sorted(STATES.glob("*.json"))
]
LIVES: list[tuple[dict[str, object], list[str], dict[str, bytes], dict[str, bytes]]] = [
    (CREATED, [], PROCESS, {BUNDLE: json.dumps(CONFIG).encode()}),
    (FURTHER, ["--strict"], PROCESS, KNOWN),
    (STOPPED, [], DEAD, {**KNOWN, TASKS: b""}),
    ({**STOPPED, "annotations": {}}, ["--linger=60"], DEAD, {**KNOWN, TASKS: b""}),
    (STOPPED, ["--containers=podman"], DEAD, OF_CRIO),
    (CREATED, ["--containers=podman"], PROCESS, {}),
    (CREATED, ["--resctrl-root=/nowhere"], PROCESS, {}),
    (CREATED, ["--resctrl-root=/nowhere"], PROCESS, {f"{RUN}/said-no-resctrl": b"."}),
    *((state, ["--linger=60", "--monitor=opt-in"], DEAD, {}) for state in OF_RUNTIMES),
]
"""A state, options, what /proc shows, and files: hooks that come to the end of what they do."""


# --- What is made of it


def nearly(model: type[models.Model], *real: object) -> st.SearchStrategy[bytes]:
    """A document of this model, nearly as it should be, and anything."""
    fine = st.sampled_from(real)
    some = fine | strategies.nearly_valid(model, fine) | strategies.valid(model)
    return some.map(lambda value: json.dumps(value, default=str).encode()) | st.binary()


def cut(*real: bytes) -> st.SearchStrategy[bytes]:
    """A text of the kernel's, as it is, with something in its midst or cut short, and anything."""
    fine = st.sampled_from(real)
    parts = st.tuples(fine, st.integers(0, 200), st.binary(max_size=8), st.integers(0, 200))
    return (
        fine
        | parts.map(lambda part: part[0][: part[1]] + part[2] + part[0][part[1] + part[3] :])
        | st.binary()
    )


def command_lines() -> st.SearchStrategy[list[str]]:
    """Each option has its value behind a `=`, so that no odd value is taken for another option."""
    values = (
        st.sampled_from(
            ["0", "60", "1e1", "1_0", "nan", "-1", "auto", "sandbox", "opt-in", "/x", ""]
        )
        | st.text()
    )
    names = st.sampled_from([f"--{name.replace('_', '-')}" for name in models.Options.model_fields])
    options = names | st.builds("{}={}".format, names, values) | values
    return st.lists(options.filter(lambda word: "\0" not in word), max_size=4)


NO_TIME = re.compile(rb"-|\d{19,}")
"""What no kernel gives as a start time: one below zero, or beyond 64 bits."""
FILES = {
    BUNDLE: nearly(models.Config, CONFIG),
    KEY: nearly(models.KeyState, RECORD, DOCUMENTS[KEY]),
    MEMBER: nearly(models.Index, INDEX),
    UNMONITORED: nearly(models.Failure, DOCUMENTS[UNMONITORED]),
    TASKS: cut(b"4711\n", b"\n"),
    COUNTER: cut(b"4096\n", b"Unavailable\n", b"9" * 30),
}
SHOWN = {
    "stat": cut(PROCESS["stat"], DEAD["stat"]).map(lambda text: NO_TIME.sub(b"1", text)),
    "cgroup": cut(PROCESS["cgroup"], CGROUPS_V1),
    "cpu_resctrl_groups": cut(PROCESS["cpu_resctrl_groups"], b"res:gold\nmon:x\n", b""),
    "uid_map": cut(PROCESS["uid_map"], b"0 1000 1"),
}


def test_each_life_comes_to_its_end() -> None:
    for state, words, process, files in LIVES:
        check(HostileInput(json.dumps(state).encode(), words, process, files))


@settings(suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(LIVES),
    st.none() | nearly(models.State, *(state for state, *_ in LIVES)),
    command_lines(),
    st.fixed_dictionaries({}, optional=SHOWN),
    st.fixed_dictionaries({}, optional=FILES),
)
def test_hostile_input(
    life: tuple[dict[str, object], list[str], dict[str, bytes], dict[str, bytes]],
    stdin: bytes | None,
    further: list[str],
    odd_process: dict[str, bytes],
    odd_files: dict[str, bytes],
) -> None:
    """Of what such a hook is given, some is odd."""
    state, words, process, files = life
    given_in = json.dumps(state).encode() if stdin is None else stdin
    check(
        HostileInput(given_in, words + further, {**process, **odd_process}, {**files, **odd_files})
    )


# --- What was found once


def whole(
    stdin: object, files: dict[str, object] | None = None, *words: str, **process: bytes
) -> HostileInput:
    texts = {
        path: content if isinstance(content, bytes) else json.dumps(content).encode()
        for path, content in (files or {}).items()
    }
    return HostileInput(json.dumps(stdin).encode(), [*words], {**PROCESS, **process}, texts)


def test_unforeseen_failure_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "cgroups", lambda _pid: 1 / 0)
    with pytest.raises(AssertionError, match="unforeseen"):
        check(whole(CREATED))


def with_class(name: str) -> HostileInput:
    """The first container of a pod, whose bundle asks for this ctrl_group,
    of which the kernel says nothing.
    """
    return whole(
        CREATED, {BUNDLE: {"linux": {"intelRdt": {"closID": name}}}}, cpu_resctrl_groups=b""
    )


def with_record(*words: str, **fields: object) -> HostileInput:
    """The poststop of the last container of a pod, of which this is recorded besides."""
    return whole(
        {**STOPPED, "annotations": {}},
        {MEMBER: INDEX, KEY: {**RECORD, **fields}, TASKS: b"\n"},
        *words,
    )


def with_counter(name: str) -> HostileInput:
    return with_record(groups=[{**BEGUN, "begin": {name: "1"}}])


def with_completed(**fields: object) -> HostileInput:
    """The first container of a pod whose key is complete."""
    at = {"completed_at": "2026-01-02T03:04:05Z", "completed_boottime": 1.0}
    record = {**RECORD, "groups": [{**BEGUN, "end": COUNTERS}], "members": {}, **at, **fields}
    return whole(CREATED, {KEY: record})


FOUND = {
    "a ctrl_group that has no UTF-8": with_class("\ud800"),
    "a cgroup on record with a NUL": with_record("--linger=60", cgroup=":/a\0b"),
    "a cgroup on record that has no UTF-8": with_record("--linger=60", cgroup=":/a\ud800b"),
    "a counter on record that leads elsewhere": with_counter("a/../../../../../../sys/x"),
    "a counter on record with a NUL": with_counter("a/b\0"),
    "a counter on record that has no UTF-8": with_counter("a/\ud800"),
    "a time on record that has no UTF-8": with_record(groups=[BEGUN], created_at="\ud800"),
    "a time on record that has no UTF-8, and the key goes on": with_completed(created_at="\ud800"),
    "a value on record that has no UTF-8": with_record(
        groups=[{**BEGUN, "begin": dict.fromkeys(COUNTERS, "\ud800")}]
    ),
    "no state, and a run directory that is not there": whole({}, {}, "--run-dir=/no/such/place"),
    "no state, and a run directory that cannot be": whole({}, {}, f"--run-dir=/{'x' * 300}/y"),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_once(name: str) -> None:
    check(FOUND[name])
