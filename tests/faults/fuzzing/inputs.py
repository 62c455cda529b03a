# SPDX-License-Identifier: Apache-2.0
"""Hostile input made from what is real: seeds for each target, and mutations of JSON beside those of raw bytes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any

from hook.base import models
from tests.faults.fuzzing import targets
from tests.faults.fuzzing.targets import CONTAINER, FILES, PROC, SEPARATOR, UID
from tests.simulator.kernel import RESCTRL
from tests.support.hook import STATES, created, stopped
from tests.unit import strategies

if TYPE_CHECKING:
    from tests.faults.fuzzing.targets import Program

Havoc = Callable[[bytes], bytes]
"""Makes other bytes of some."""

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
COMMANDS = (
    b"--strict",
    b"--linger=1e1\n--rmid-wait=1_0\n--lock-timeout=nan",
    b"--linger=60\n--key\nauto\n--monitor=opt-in\n--namespace=default\n--annotation=a=b",
    b"--resctrl-root=/sys/fs/resctrl\n--run-dir=/run/resctrl-mon-hook\n--group-prefix\noci-\n--snapshot-ttl=0",
    b"--lock-timeout=0.5\n--rmid-wait\n1.5\n--key=sandbox\n--monitor\nopt-out\nstray\n-x\n--linger",
)
_CLEAN_STATE = {"annotations": {"io.kubernetes.pod.uid": UID, "monitor.resctrl-mon.io": "true"}}


def seeds(target: str, program: Program) -> list[bytes]:
    """Inputs that a target makes the most of."""
    return [SEPARATOR.join(texts) for texts in _seeds(program)[target]]


def _seeds(program: Program) -> dict[str, Sequence[tuple[bytes, ...]]]:
    states = [path.read_bytes() for path in sorted(STATES.glob("*.json"))]
    config = json.dumps({"linux": {"intelRdt": {"closID": "gold"}}, "annotations": {"a": "b"}}).encode()
    records = [(part.encode(), text) for part, text in _recorded(program)]
    process = [tuple(PROCESS.values()), (STAT.replace(b") S ", b") Z "), CGROUPS_V1, b"res:gold\nmon:x\n", b"0 1000 1")]
    texts = [UID, UID.upper(), UID.replace("-", ""), "a" * 200, "/r/gold/mon_groups/oci-1", "oci-", "..", "/"]
    return {
        "jsontext": [(it,) for it in (*states, b'[1e9, -0.5, true, null, "\\ud83d\\ude00", {}]', b"NaN", b"[" * 5000)],
        "state": [(it,) for it in states],
        "records": [*records, (b"config", config)],
        "options": [(it,) for it in COMMANDS],
        "proc": process,
        "kernel": [
            (b"1\n2\n4711\n", STAT, b"4096\n", b"576\n", b"ok\n"),
            (b"", STAT, b"Unavailable\n", b"", b"no room"),
        ],
        "counters": [(b"1000", b"5000", b"7"), (b"Unavailable", b"8.750000", b"0.5"), (b"9" * 30, b"Error", b"-1")],
        "names": [(it.encode(),) for it in texts],
        "runtimes": [(json.dumps(created("web", 9)).encode(),), (b"null",), (states[0],)],
        "whole": [*_lives(states, config, dict(records))],
    }


def _lives(states: list[bytes], config: bytes, records: dict[bytes, bytes]) -> list[tuple[bytes, ...]]:
    """Hooks that come to the end of what they do: for the first of a key, for a further one, for the last."""
    bundle = {"bundle": "/bundle", **_CLEAN_STATE}
    life = [{**created(CONTAINER, 4711), **bundle}, {**created("c2", 4712), **bundle}, {**stopped(CONTAINER), **bundle}]
    texts = [*states, *(json.dumps(it).encode() for it in life)]
    empty = dict.fromkeys(FILES, b"")
    fresh = {**empty, **PROCESS, FILES[4]: config}
    known = {**fresh, FILES[5]: records[b"groups"], FILES[7]: records[b"members"], FILES[8]: records[b"unmonitored"]}
    known = {**known, "cpu_resctrl_groups": b"", FILES[9]: b"4711\n", FILES[10]: b"4096\n"}
    dead = {**known, "stat": STAT.replace(b") S ", b") Z ")}
    return [
        (*place.values(), text, command)
        for text in texts
        for place, command in ((fresh, b""), (known, b"createRuntime\n" + COMMANDS[0]), (dead, COMMANDS[2]))
    ]


def _recorded(program: Program) -> list[tuple[str, bytes]]:
    """What hooks have on record: of a key that lives, of one that is over, of a failure."""
    found = []
    states = [{**created(CONTAINER, 4711)}, {**created("c2", 0)}, {**stopped(CONTAINER)}]
    with program.at_work():
        process = dict(PROCESS)
        machine = program.on(process)
        for state in states:
            machine.caller.stdin = json.dumps({**state, **_CLEAN_STATE}).encode()
            if state["status"] == "stopped":
                process["stat"] = STAT.replace(b") S ", b") Z ")
            program.entry.dispatch(["hook", "--linger=0"])
            for path, text in machine.files().items():
                part = path.split("/")[3]
                if part in targets.RECORDS and isinstance(text, bytes) and text:
                    found.append((part, text))
    return found


def stream(seeds: list[bytes], dice: Random, number: int) -> Iterator[bytes]:
    """So many inputs made of these, for where there is no fuzzer that learns."""
    change = havoc(dice)
    for _ in range(number):
        data = dice.choice(seeds)
        for _ in range(dice.randint(1, 3)):
            data = mutated(data, 1 << 15, dice, change)
        yield data


def mutated(data: bytes, most: int, dice: Random, havoc: Havoc) -> bytes:
    """Another input of at most so many bytes: one of its texts is another, as JSON where it is JSON, or as bytes."""
    texts = data.split(SEPARATOR)
    there = [at for at, text in enumerate(texts) if text]
    at = dice.choice(there) if there and dice.random() < 0.9 else dice.randrange(len(texts))
    if dice.random() < 0.75 and (document := _document(texts[at])) is not None:
        texts[at] = _written(_rearranged(document, dice), dice)
    else:
        texts[at] = havoc(texts[at])
    return SEPARATOR.join(texts)[:most]


def _document(text: bytes) -> list[Any] | dict[str, Any] | None:
    if text[:1] not in (b"{", b"["):
        return None
    try:
        found = json.loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, (list, dict)) else None


def _written(document: object, dice: Random) -> bytes:
    text = json.dumps(document, ensure_ascii=dice.random() < 0.5, indent=dice.choice((None, None, None, 1)))
    return text.encode("utf-8", "surrogatepass")


def _rearranged(document: object, dice: Random) -> object:
    """One to three changes at places anywhere in the tree."""
    holder = [document]
    for _ in range(dice.randint(1, 3)):
        container, key = dice.choice(list(strategies.places(holder)))
        value = container[key]
        what = dice.choice(("replace", "replace", "drop", "add", "rename", "wrap", "text", "copy"))
        if what == "drop" and container is not holder:
            del container[key]
        elif what == "add" and isinstance(value, dict):
            value[dice.choice(_words())] = copy.deepcopy(dice.choice(_values()))
        elif what == "rename" and isinstance(container, dict):
            container[dice.choice(_words())] = container.pop(key)
        elif what == "wrap":
            container[key] = dice.choice(([value], {"a": value}))
        elif what == "text":
            container[key] = str(value)
        elif what == "copy" and isinstance(container, list) and container is not holder:
            container.append(copy.deepcopy(value))
        else:
            container[key] = copy.deepcopy(dice.choice(_values()))
    return holder[0]


@cache
def _classes() -> list[Any]:
    return [
        cls
        for cls in vars(models).values()
        if isinstance(cls, type) and issubclass(cls, models.Model) and cls.model_fields
    ]


@cache
def _values() -> list[Any]:
    """What is strange to any of the models, and what is right in many a place."""
    strange = [value for cls in _classes() for value in strategies.strange_values(cls)]
    fine = [
        UID,
        CONTAINER,
        "c2",
        4711,
        100,
        "/",
        "gold",
        "true",
        "false",
        "cri-o",
        "Unavailable",
        "12.5",
        "stopped",
        "/bundle",
    ]
    return [*strange, *fine, f"{RESCTRL}/mon_groups/oci-{CONTAINER}", "../../x", {"a/b": "1", "../x": "2"}]


@cache
def _words() -> list[str]:
    """Names that mean something in some document."""
    return sorted(
        {name for cls in _classes() for name in strategies.names(cls.__pydantic_core_schema__)} | {"", "a", "c1"}
    )


PIECES = (
    *(
        b"\0",
        b"\n",
        b"\xff",
        b"\xed\xa0\x80",
        b"9" * 30,
        b"-",
        b".",
        b"..",
        b"/",
        b"../",
        b":",
        b")",
        b"(",
        b" ",
        b"0",
        b"e9",
    ),
    *(
        b"--",
        b"=",
        b"--linger",
        b"--key=",
        b"--namespace=",
        b"--strict",
        b"--run-dir=/",
        b"res:",
        b"mon:",
        b"0::/",
        b"Z",
    ),
    *(
        b"[" * 2000,
        b'{"a":' * 500,
        b"null",
        b"true",
        b"NaN",
        b'"',
        b"\\u",
        b"\\ud800",
        b"{}",
        b"[]",
        b"Unavailable",
        b"x" * 300,
    ),
)


def havoc(dice: Random) -> Havoc:
    """Changes of raw bytes, for where there is no fuzzer that has better ones."""

    def change(data: bytes) -> bytes:
        made = bytearray(data)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(made) + 1)
            to = min(len(made), at + dice.choice((1, 1, 2, 4, 16, 64)))
            what = dice.randrange(5)
            if what == 0:
                made[at:at] = dice.choice(PIECES)
            elif what == 1:
                del made[at:to]
            elif what == 2:
                made[at:at] = made[at:to]
            elif what == 3:
                made[at:to] = dice.choice(PIECES)
            elif at < len(made):
                made[at] ^= 1 << dice.randrange(8)
        return bytes(made)

    return change


assert tuple(PROCESS) == PROC
