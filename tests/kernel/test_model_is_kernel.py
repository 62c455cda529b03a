# SPDX-License-Identifier: Apache-2.0
"""The model of resctrl against the kernel: the same operations on both, and all that came of them compared.

Most sequences are made by chance, always the same ones: a seed gives one. What differs is printed with its sequence.
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.kernel import CannotBuild, ready
from tests.kernel.ops import Answer, Operation
from tests.kernel.vm import ROOT, GuestTimeout, Vm, run_in_guest

Sequences = list[list[Operation]]


@dataclass(frozen=True)
class Kind:
    """A machine: as a guest, and as knobs of the model."""

    vm: Vm
    knobs: dict[str, Any]
    first: list[Operation] = field(default_factory=list)
    """What each generated sequence begins with."""
    count: int = 0
    """How many are generated."""
    size: int = 9
    """How many operations one of them has at most, after its beginning."""


NO_LIMBO = "rdt=!cmt"
FEW: dict[str, Any] = {"rmids": 8, "closids": 4, "debug": True}
NO_DECAY: dict[str, Any] = {"decay_ms": 0, "occupancy": False}
ONE_CPU: dict[str, Any] = {"sockets": 1, "smp": 1}
ONE_OF_ALL: dict[str, Any] = {"l3_domains": 1, "packages": 1}
KINDS = {  # in the order of their start
    # To settle takes seconds: few sequences, and long ones
    "limbo": Kind(
        Vm(rmids=7, closids=4, mount_options="debug", **ONE_CPU),
        FEW | ONE_OF_ALL,
        first=[["settle"]],
        count=8,
        size=40,
    ),
    # One CPU, few counters and short sequences: quick
    "small": Kind(
        Vm(rmids=7, closids=4, mount_options="debug", append=f"{NO_LIMBO},!energy,!perf", **ONE_CPU),
        FEW | NO_DECAY | ONE_OF_ALL | {"packages": 0},
        count=500,
        size=6,
    ),
    # More RMIDs than all rows together need: each group has one that has not been used, and none waits for limbo
    "full": Kind(Vm(rmids=400), {"rmids": 401, "busy_packages": 0}),
}

# ---- sequences ----

LIKELY = ["mon_groups/x", "mon_groups/x", "mon_groups/y", "gold", "gold/mon_groups/x", "gold/mon_groups/y"]
MONS = ["x", "y", "a b", ".a.", "é\udcff", "x" * 255, "tasks", "info", "mon_data", "a\nb", "mon_groups"]
CTRLS = ["gold", "silver", "a b"]
STRANGE = [*(f"mon_groups/{it}" for it in MONS), *(f"gold/mon_groups/{it}" for it in MONS), *CTRLS]
GROUPS = [*LIKELY * 20, *STRANGE]
"""Mostly such as are there, for little happens in those that are not."""
ODD = ["", "nope/x", "mon_groups", "mon_data", "info", "info/x", "info/L3_MON", "mon_groups/x/y", "mon_groups/x/tasks"]
ODD += ["mon_groups/x/mon_data", "mon_groups/x/mon_groups/y", "gold/mon_groups", "gold/mon_data", "gold/x", "tasks"]
ODD += ["mon_data/mon_L3_00", "mon_data/mon_L3_00/mbm_total_bytes", "mon_groups/x/mon_data/mon_L3_01"]
WORDS = ["{A}", "{A}", "{B}", "{C}", "{t}", "0", "{A.o}", "{B.x}", "+{A}", " {A}\t", "-1", "x", "", "4194303", "0x"]
WORDS += ["08", "{A} {B}", "{A}\n{B}", "99999999999", "{A}\0{B}", "{A}\n"]
SOME = [*GROUPS * 2, *ODD]
TASKS = [*(f"{it}/tasks" for it in GROUPS), *["tasks"] * 20]
DATA = [*WORDS[:4] * 20, *WORDS * 2, *map(",".join, itertools.product(WORDS[:6], WORDS))]
FILES = [f"{group}/{name}" for group in GROUPS for name in ("tasks", "mon_hw_id", "mon_data/mon_L3_00/mbm_total_bytes")]
SETUPS = [
    ["mon_groups/x"],
    ["mon_groups/x", "mon_groups/y"],
    ["gold", "gold/mon_groups/x"],
    ["mon_groups/x", "gold", "gold/mon_groups/y"],
    ["gold", "gold/mon_groups/x", "gold/mon_groups/y"],
]
OPERATIONS: list[tuple[int, list[Any]]] = [
    (8, ["mkdir", SOME]),
    (7, ["rmdir", [*SOME, *LIKELY * 10]]),
    (4, ["rename", ["mon_groups/x", "mon_groups/y"], ["mon_groups/y", "mon_groups/z"]]),
    (9, ["write", TASKS, DATA]),
    (2, ["as", "ABCDtu", "write", TASKS, ["0", "{A}", "{B}\n"]]),
    (4, ["fork", "AABC", "CD"]),
    (3, ["thread", "AABC", "tu"]),
    (3, ["end", "ABCDtu"]),
    (2, ["reap", "ABCDtu"]),
    (2, ["read", TASKS]),
    (2, ["where", "ABCDtu"]),
    (3, ["open", [1, 2], FILES, ["r", "rw"]]),
    (2, ["pread", [1, 2]]),
    (2, ["pwrite", [1, 2], DATA]),
    (1, ["listing", SOME]),
    (1, ["unlink", SOME]),
    (1, ["create", SOME]),
    (1, ["fill", ["mon_groups", "gold/mon_groups", ""]]),
]
"""How often each comes; an argument is one of several. A name of one letter is a task's."""


def into(group: str, task: str) -> list[Operation]:
    """Through the ctrl_group above it: the kernel moves no task from one ctrl_group into a mon_group of another."""
    ctrl = group.partition("mon_groups")[0].rstrip("/")
    return [["write", f"{path}/tasks", task] for path in dict.fromkeys([ctrl, group]) if path]


def generated(seeds: range, size: int, first: Sequence[Operation]) -> Sequences:
    """A sequence for each seed, of up to `size` operations after its beginning."""
    return [[*first, *by_chance(random.Random(number), size)] for number in seeds]


def by_chance(chance: random.Random, size: int) -> Iterator[Operation]:
    """Some of the likely groups, tasks in two of them, and operations."""
    groups = chance.choice(SETUPS)
    yield from (["mkdir", path] for path in groups)
    for task in ("{A}", "{B}"):
        yield from into(chance.choice(groups), task)
    weights = [weight for weight, _ in OPERATIONS]
    for _, (name, *arguments) in chance.choices(OPERATIONS, weights, k=chance.randint(size // 2, size)):
        yield [name, *(it if it == "write" else chance.choice(it) for it in arguments)]


# ---- on both ----


def run_script(kind: Kind, sequences: Sequences, where: str) -> list[list[Answer]]:
    """`where`: kernel or model."""
    with tempfile.TemporaryDirectory(prefix="resctrl-same-") as name:
        directory = Path(name)
        script = json.dumps({"knobs": kind.knobs, "sequences": sequences})
        (directory / "script").write_text(script, encoding="utf-8")
        status = on_kernel(kind, directory) if where == "kernel" else on_model(directory)
        assert status == 0, f"{where}: exit status {status}"
        results: list[list[Answer]] = json.loads((directory / "results").read_text(encoding="utf-8"))
        return results


def on_kernel(kind: Kind, directory: Path) -> int:
    words = command("kernel", Path("/tmp/share"))
    try:
        return run_in_guest(words, kind.vm, share=directory, cwd=ROOT)
    except GuestTimeout as error:  # an emulator can stand still; a kernel or an operation that hangs does so again
        print(f"booted again, for {error}", file=sys.stderr)
        return run_in_guest(words, kind.vm, share=directory, cwd=ROOT)


def on_model(directory: Path) -> int:
    """In a pid namespace of its own: fewer tasks to walk, and none that comes and goes."""
    namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return subprocess.run([*namespace, *command("model", directory)], cwd=ROOT, check=False).returncode


def command(where: str, directory: Path) -> list[str]:
    return [sys.executable, "-m", "tests.kernel.ops", where, str(directory / "script"), str(directory / "results")]


def on_both(kind: Kind, sequences: Sequences) -> tuple[list[list[Answer]], list[list[Answer]]]:
    """What the kernel and what the model gave, at the same time."""
    with ThreadPoolExecutor(2) as pool:
        kernel = pool.submit(run_script, kind, sequences, "kernel")
        model = pool.submit(run_script, kind, sequences, "model")
        return kernel.result(), model.result()


def differences(kind: Kind, sequences: Sequences) -> list[str]:
    """For each sequence a text: what came of it up to the first difference. Empty: nothing differs."""
    kernel, model = on_both(kind, sequences)
    assert len(kernel) == len(model) == len(sequences)
    return [told(*three) if three[1] != three[2] else "" for three in zip(sequences, kernel, model)]


def told(sequence: list[Operation], kernel: list[Answer], model: list[Answer]) -> str:
    steps = [*sequence, ["everything"]]
    first = next(number for number, pair in enumerate(zip(kernel, model)) if pair[0] != pair[1])
    lines = [f"  {json.dumps(step)} -> {json.dumps(answer)}" for step, answer in zip(steps[:first], kernel)]
    return "\n".join(
        [
            f"{json.dumps(sequence)}",
            *lines,
            f"  {json.dumps(steps[first])}",
            f"    kernel: {json.dumps(kernel[first])}",
            f"    model:  {json.dumps(model[first])}",
        ]
    )


# ---- what was measured, row by row ----


@dataclass(frozen=True)
class SeenRow:
    """Operations that show a row of what the kernel was seen to do."""

    kind: str
    operations: list[Operation]


X = "mon_groups/x"
Y = "mon_groups/y"
MADE: list[Operation] = [["mkdir", X], ["mkdir", Y], ["mkdir", "gold"], ["mkdir", "gold/mon_groups/g"]]


def put(path: str, *data: str) -> list[Operation]:
    """Each is written, and the file is read after it."""
    return [step for text in data for step in (["write", path, text], ["read", path])]


def parsed(script: str) -> dict[str, SeenRow]:
    """SCRIPT below."""
    rows: dict[str, SeenRow] = {}
    for paragraph in re.split(r"\n(?=\S)", script.strip()):
        head, _, body = paragraph.partition("\n")
        kind, name = head.split(" | ")
        words = re.findall(r'"(?:[^"\\]|\\.)*"|;|[^\s;]+', body)
        rows[name] = SeenRow(kind, list(operations_of([word_of(word) for word in words])))
    return rows


def operations_of(words: list[Any]) -> Iterator[Operation]:
    for last, group in itertools.groupby(words, lambda word: word == ";"):
        first, *arguments = group
        if first == "made":
            yield from MADE
        elif first == "put":
            yield from put(*arguments)
        elif not last:
            yield [first, *arguments]


def word_of(text: str) -> object:
    if text.startswith("="):
        return ast.literal_eval(text[1:])
    word = json.loads(text) if text.startswith('"') else text
    return re.sub(r"^\$([XY])", lambda found: {"X": X, "Y": Y}[found[1]], word)


SCRIPT = r"""
full | tree
    tree "" ; made ; tree gold ; tree $X ; listing "" ; listing mon_groups
small | tree: with debug, without occupancy and AET
    tree "" ; made ; tree gold ; tree $X ; read info/L3_MON/mon_features
full | tree: writing needs a capability
    mkdir $X ; tell A drop ; as A mkdir $Y ; as A rmdir $X ; as A write $X/tasks 0 ; as A read $X/tasks
full | tree: what only root may write nobody may
    write info/last_cmd_status x ; write mon_data/mon_L3_00/llc_occupancy 0 ; write size 1 ; open =1 mon_groups rw ;
    read mon_groups ; read tasks/x
full | num_rmids
    read info/L3_MON/num_rmids ; read info/PERF_PKG_MON/num_rmids ; read info/L3/num_closids ;
    read info/L3_MON/mon_features ; read info/PERF_PKG_MON/mon_features
small | num_rmids: of all groups together
    mkdir gold ; fill mon_groups
full | counters
    mkdir $X ; read mon_data/mon_L3_00/llc_occupancy ; read mon_data/mon_L3_01/mbm_local_bytes ;
    read mon_data/mon_PERF_PKG_00/core_energy ; read mon_data/mon_PERF_PKG_01/activity ;
    read mon_data/mon_PERF_PKG_01/uops_retired ; read $X/mon_data/mon_L3_00/llc_occupancy
full | counters: an RMID that never ran
    mkdir $X ; read $X/mon_data/mon_L3_00/llc_occupancy ; read $X/mon_data/mon_L3_01/mbm_local_bytes ;
    read $X/mon_data/mon_PERF_PKG_00/core_energy ; read $X/mon_data/mon_PERF_PKG_01/activity ;
    read $X/mon_data/mon_PERF_PKG_01/uops_retired
full | counters: each package has data of the RMIDs that ran on it
    mkdir $X ; mkdir $Y ; mkdir gold ; mkdir gold/mon_groups/g ; run A =1 ; write $X/tasks {A} ; run A =1 ;
    read $X/mon_data/mon_PERF_PKG_00/core_energy ; read $X/mon_data/mon_PERF_PKG_01/core_energy ;
    read $X/mon_data/mon_PERF_PKG_00/uops_retired ; read $X/mon_data/mon_PERF_PKG_01/uops_retired ;
    read $X/mon_data/mon_L3_00/mbm_total_bytes ;
    run B =0 ; write gold/tasks {B} ; write gold/mon_groups/g/tasks {B} ; run B =0 ;
    read gold/mon_groups/g/mon_data/mon_PERF_PKG_00/activity ;
    read gold/mon_groups/g/mon_data/mon_PERF_PKG_01/activity ;
    read gold/mon_data/mon_PERF_PKG_00/activity ; read gold/mon_data/mon_PERF_PKG_01/activity ;
    write $Y/tasks {A} ; run A =0 ; write tasks {A} ; run A =1 ;
    read $X/mon_data/mon_PERF_PKG_00/core_energy ; read $X/mon_data/mon_PERF_PKG_01/core_energy ;
    read $Y/mon_data/mon_PERF_PKG_00/core_energy ; read $Y/mon_data/mon_PERF_PKG_01/core_energy
full | counters: Unavailable
    mkdir $X ; machine counters Unavailable ; read mon_data/mon_L3_00/llc_occupancy ;
    read mon_data/mon_L3_01/mbm_local_bytes ; read mon_data/mon_PERF_PKG_00/core_energy ;
    read mon_data/mon_PERF_PKG_01/activity ; read mon_data/mon_PERF_PKG_01/uops_retired ; machine counters normal
full | counters: Error
    mkdir $X ; machine counters Error ; read mon_data/mon_L3_00/llc_occupancy ;
    read mon_data/mon_L3_01/mbm_local_bytes ; read mon_data/mon_PERF_PKG_00/core_energy ; machine counters normal
full | mkdir: new, existing
    mkdir $X ; mkdir $X ; mkdir gold ; mkdir gold
full | mkdir: newline
    mkdir "mon_groups/a\nb" ; mkdir "a\nb" ; mkdir "gold/\n"
full | mkdir: mon_groups, inside a mon_group
    made ; mkdir mon_groups/mon_groups ; mkdir $X/y ; mkdir $X/mon_groups ; mkdir gold/y ; mkdir $X/mon_groups/y ;
    mkdir mon_data/y ; mkdir mon_data/mon_L3_00/y ; mkdir info/y ; mkdir info/L3_MON/y ; mkdir tasks/y
full | mkdir: parent gone
    mkdir gold/mon_groups/x ; made ; rmdir gold ; mkdir gold/x
small | mkdir: no RMID left
    fill mon_groups ; mkdir gold ; rmdir mon_groups/fill3 ; mkdir $X
limbo | mkdir: no RMID left but in limbo
    settle ; fill mon_groups ; mkdir gold ; rmdir mon_groups/probe ; mkdir $X ; mkdir gold
limbo | mkdir: none left while others are in limbo
    settle ; mkdir $X ; rmdir $X ; mkdir $X ; read $X/mon_hw_id ; fill mon_groups
small | mkdir: no CLOSID left
    mkdir a ; mkdir b ; mkdir c ; mkdir d ; rmdir b ; mkdir d ; read d/ctrl_hw_id
small | mkdir: a ctrl_group without an RMID gives its CLOSID back
    fill mon_groups ; mkdir a ; rmdir mon_groups/fill0 ; mkdir a ; mkdir b
full | mkdir: read-only
    made ; machine read_only =True ; mkdir mon_groups/new ; mkdir $X ; rmdir $X ; write $X/tasks {A} ;
    rename $X mon_groups/z ; read $X/tasks ; unlink $X/tasks ; create $X/new ; machine read_only =False
full | mkdir: not mounted
    machine umount ; mkdir $X ; read tasks ; rmdir $X ; listing "" ; where A ; machine mount ; listing mon_groups
full | mkdir: in what is not mounted
    machine umount ; mkdir x ; create x ; machine mount
full | rmdir: with tasks
    made ; put $X/tasks {A} ; rmdir $X ; where A ; rmdir $X
full | rmdir: tasks fall back to the parent
    made ; put gold/tasks {A} ; put gold/mon_groups/g/tasks {A} ; rmdir gold/mon_groups/g ; where A
full | rmdir: open files
    made ; open =1 $X/tasks rw ; open =2 $X/mon_data/mon_L3_00/llc_occupancy r ; rmdir $X ; pread =1 ; pread =2 ;
    pwrite =1 {A} ; mkdir $X ; pread =1 ; pwrite =1 {A}
full | rmdir: files and directories inside
    made ; unlink $X/tasks ; rmdir $X/tasks ; rmdir $X/mon_data ; unlink $X ; rmdir mon_groups ;
    rmdir gold/mon_groups ; rmdir gold/mon_data ; rmdir info ; rmdir info/L3_MON ; rmdir "" ; unlink tasks ;
    unlink $X/mon_data/mon_L3_00/llc_occupancy
small | rmdir: a ctrl_group takes its mon_groups
    made ; put gold/tasks {A} {B} ; put gold/mon_groups/g/tasks {A} ; rmdir gold ; mkdir a ; read a/mon_hw_id ;
    fill mon_groups ; where A
full | tasks: number, newline
    made ; put $X/tasks {A} "{B}\n" "\n" " {A} "
full | tasks: a thread, its process
    made ; thread A t ; put $X/tasks {t} ; where A ; where t ; put $Y/tasks {A}
full | tasks: threads and children made later inherit
    made ; thread A t ; fork A C ; put $X/tasks {A} ; thread A u ; fork A D
full | tasks: dead
    mkdir $X ; fork A C ; end C ; reap C ; put $X/tasks {C} {A},{C},{B}
full | tasks: a zombie
    mkdir $X ; fork A C ; put $X/tasks {C} ; end C ; put $X/tasks {C} ; where C ; reap C
full | tasks: 0
    made ; put $X/tasks 0 ; as A write $Y/tasks 0 ; where A ; where E
full | tasks: no numbers
    mkdir $X ; put $X/tasks -1 x "{A} {B}" "{A}\n{B}" {A},x , {A}, 1.0
full | tasks: a list
    made ; put $X/tasks {A},{B} ; put $Y/tasks "{A}, {B}\n" {A},4194303,{B}
full | tasks: base 0
    mkdir $X ; put $X/tasks {A.o} {B.x} 08 0x +{A} --1 99999999999
full | tasks: another ctrl_group
    made ; put gold/mon_groups/g/tasks {A} ; put gold/tasks {A} ; put $X/tasks {A} ; where A
full | tasks: another mon_group
    made ; put $X/tasks {A} ; put $Y/tasks {A} ; read $X/tasks
full | tasks: of the ctrl_group
    made ; put $X/tasks {A} ; write tasks {A} ; where A ; put gold/tasks {A} ; where A
full | tasks: group removed meanwhile
    put $X/tasks {A}
full | tasks: in a pid namespace
    mkdir $X ; tell A unshare ; fork A C ; put $X/tasks {C} ; numbers C $X/tasks ; as C write tasks 1 ; where C ;
    as C write $X/tasks {A} ; where A ; as C write $X/tasks 0 ; where C
full | tasks: read in pieces
    mkdir $X ; put $X/tasks {A},{B} ; pieces $X/tasks =3 ; pieces $X/tasks =7
full | last_cmd_status: what clears it
    write tasks x ; mkdir $X ; write tasks x ; rmdir $X ; mkdir info/x ; mkdir $X ; write tasks x ;
    mkdir "mon_groups/a\nb" ; mkdir $X ; rename $X $Y ; write tasks "\n"
full | cpu_resctrl_groups
    made ; where A ; put gold/tasks {A} ; where A ; put gold/mon_groups/g/tasks {A}
full | rename
    made ; put $X/tasks {A} ; rename $X mon_groups/z ; where A ; listing mon_groups
full | rename: onto an existing name
    made ; rename $X $Y ; rename $X $X
limbo | umount
    settle ; made ; put $X/tasks {A} ; open =1 info/last_cmd_status r ; close =1 ; machine umount ; where A ;
    machine mount ; where A ; listing mon_groups ; fill mon_groups
small | rename: RMIDs come back in the same order
    made ; mkdir gold/mon_groups/h ; rename gold/mon_groups/g gold/mon_groups/i ; rmdir gold ; fill mon_groups
small | umount: RMIDs come back in an order
    made ; mkdir silver ; mkdir silver/mon_groups/s ; put gold/tasks {A} ;
    machine umount ; where A ; machine mount ; where A ; fill mon_groups
"""
"""KIND | NAME, and operations after it: words, of which those in quotes are JSON, and those after =
Python. $X and $Y are two mon_groups; `made` makes them and a ctrl_group; `put FILE DATA...` writes and reads."""

LONG = {
    "mkdir: any name": [
        *[["mkdir", f"mon_groups/{name}"] for name in ("a b", ".a.b", "é", "\udcff", "tasks", "info", "mon_data")],
        *[["mkdir", f"mon_groups/{'n' * 255}"], ["listing", "mon_groups"]],
        *[["mkdir", "a b"], ["mkdir", "tasks"], ["mkdir", "n" * 255], ["listing", ""]],
    ],
    "mkdir: a long name": [["mkdir", "mon_groups/" + "n" * 1024], ["listing", "mon_groups"]],
    "tasks: more than a page": [["mkdir", X], *put(f"{X}/tasks", " " * 5000, " " * 4096, "{A}," * 2000)],
    "tasks: a page with a task": [["mkdir", X], *put(f"{X}/tasks", "{A}" + " " * 3000, "x" * 4096)],
}
ROWS = parsed(SCRIPT) | {name: SeenRow("full", operations) for name, operations in LONG.items()}

# ---- tests ----


class Comparisons:
    """What differs on each kind of machine, all in one boot: the generated sequences that do, and the rows.

    Two machines at a time, while the tests that wait for the first ones already tell.
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        self._pool = ThreadPoolExecutor(2)
        self._found = {name: self._pool.submit(differences, KINDS[name], list(self._scripts(name))) for name in kinds}

    @staticmethod
    def _rows(kind: str) -> dict[str, SeenRow]:
        return {title: row for title, row in ROWS.items() if row.kind == kind}

    def _scripts(self, name: str) -> Iterator[list[Operation]]:
        yield from (row.operations for row in self._rows(name).values())
        yield from generated(range(KINDS[name].count), KINDS[name].size, KINDS[name].first)

    def of_row(self, name: str) -> str:
        kind = ROWS[name].kind
        return dict(zip(self._rows(kind), self._found[kind].result()))[name]

    def of_sequences(self, kind: str) -> list[str]:
        return [text for text in self._found[kind].result()[len(self._rows(kind)) :] if text]


@pytest.fixture(scope="module")
def compared(request: pytest.FixtureRequest) -> Comparisons:
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs root and /dev/fuse")
    try:
        ready()
    except CannotBuild as error:
        pytest.skip(str(error))
    here = [item for item in request.session.items if item.path == request.path]
    chosen = [getattr(item, "callspec").params for item in here]  # noqa: B009  only parametrized items have it
    needed = {params.get("kind") or ROWS[params["name"]].kind for params in chosen}
    return Comparisons(name for name in KINDS if name in needed)


@pytest.mark.parametrize("name", ROWS)
def test_a_row(compared: Comparisons, name: str) -> None:
    difference = compared.of_row(name)
    assert not difference, difference


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.count])
def test_generated_sequences(compared: Comparisons, kind: str) -> None:
    found = compared.of_sequences(kind)
    assert not found, "\n".join([*found[:5], f"{len(found)} of {KINDS[kind].count} differ"])
