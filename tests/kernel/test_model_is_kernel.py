# SPDX-License-Identifier: Apache-2.0
"""The model of resctrl against the kernel: the same operations on both, and all that came of them compared.

Sequences are made by hypothesis, always the same ones. To look into a difference, or to try others:

    python -m tests.kernel.test_model_is_kernel KIND '[["mkdir", "mon_groups/x"], ...]'
    python -m tests.kernel.test_model_is_kernel KIND --seed 7 --count 500

which prints each difference with its sequence. KIND: a name in KINDS.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
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
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.kernel.kernel import CannotBuild, ready
from tests.kernel.ops import Answer, Operation
from tests.kernel.vm import ROOT, GuestTimeout, Vm, run_in_guest
from tests.resctrlfs.shapes import OCCUPANCY_ONLY

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
FEW: dict[str, Any] = {"rmids": 8, "closids": 4, "cpus": 2, "debug": True}
NO_DECAY: dict[str, Any] = {"decay_ms": 0, "occupancy": False}
ONE_CPU: dict[str, Any] = {"sockets": 1, "smp": 1}
ONE_OF_ALL: dict[str, Any] = {"cpus": 1, "l3_domains": 1, "packages": 1}
KINDS = {  # in the order of their start: the sequences of the one that has most are made while others run already
    "wide": Kind(Vm(rmids=7, closids=4, mount_options="debug", append=NO_LIMBO), FEW | NO_DECAY, count=50),
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
        count=1800,
        size=6,
    ),
    "occupancy": Kind(
        Vm(rmids=7, closids=4, mount_options="debug", append="rdt=!mbmtotal,!mbmlocal,!energy,!perf", **ONE_CPU),
        FEW | ONE_OF_ALL | OCCUPANCY_ONLY,
        first=[["settle"]],
        count=4,
        size=20,
    ),
    "monitoring": Kind(
        Vm(rmids=7, closids=0, mount_options="debug", append=NO_LIMBO, **ONE_CPU),
        FEW | NO_DECAY | ONE_OF_ALL | {"closids": 0},
        count=100,
    ),
    "allocation": Kind(
        Vm(closids=4, mount_options="debug", append=f"{NO_LIMBO},!mbmtotal,!mbmlocal,!energy,!perf", **ONE_CPU),
        FEW | ONE_OF_ALL | {"rmids": 0},
        count=50,
    ),
    # More RMIDs than all rows together need: each group has one that has not been used, and none waits for limbo
    "full": Kind(Vm(rmids=400), {"rmids": 401, "cpus": 2, "busy_packages": 0}),
}

# ---- sequences ----

MONS = ["x", "x", "x", "y", "y", "a b", ".a.", "é\udcff", "x" * 255, "tasks", "info", "mon_data", "a\nb", "mon_groups"]
CTRLS = ["gold", "gold", "silver", "a b"]
ODD = ["", "nope/x", "mon_groups", "mon_data", "info", "info/x", "info/L3_MON", "mon_groups/x/y", "mon_groups/x/tasks"]
ODD += ["mon_groups/x/mon_data", "mon_groups/x/mon_groups/y", "gold/mon_groups", "gold/mon_data", "gold/x", "tasks"]
ODD += ["mon_data/mon_L3_00", "mon_data/mon_L3_00/mbm_total_bytes", "mon_groups/x/mon_data/mon_L3_01"]
WORDS = ["{A}", "{A}", "{B}", "{C}", "{t}", "0", "{A.o}", "{B.x}", "+{A}", " {A}\t", "-1", "x", "", "4194303", "0x"]
WORDS += ["08", "{A} {B}", "{A}\n{B}", "99999999999", "{A}\0{B}", "{A}\n"]
CPUS = ["0", "1", "0-1", "\n", "3"]


def slot() -> st.SearchStrategy[int]:
    return st.integers(1, 2)


LIKELY = ["mon_groups/x", "mon_groups/x", "mon_groups/y", "gold", "gold/mon_groups/x", "gold/mon_groups/y"]


def groups() -> st.SearchStrategy[str]:
    """Mostly such as are there, for little happens in those that are not."""
    mon, ctrl = st.sampled_from(MONS), st.sampled_from(CTRLS)
    strange = [st.builds("mon_groups/{}".format, mon), st.builds("{}/mon_groups/{}".format, ctrl, mon), ctrl]
    return st.one_of(*[st.sampled_from(LIKELY)] * 7, *strange)


def beginnings() -> st.SearchStrategy[list[Operation]]:
    """Something to work on: some of the likely groups, and tasks in two of them."""
    return st.sampled_from(SETUPS).flatmap(
        lambda groups: st.builds(
            lambda first, second: [*(["mkdir", path] for path in groups), *into(first, "{A}"), *into(second, "{B}")],
            st.sampled_from(groups),
            st.sampled_from(groups),
        )
    )


def into(group: str, task: str) -> list[Operation]:
    """By way of its ctrl_group, for nobody gets from one of those into another's mon_group."""
    ctrl = group.partition("mon_groups")[0].rstrip("/")
    return [["write", f"{path}/tasks", task] for path in dict.fromkeys([ctrl, group]) if path]


SETUPS = [
    ["mon_groups/x"],
    ["mon_groups/x", "mon_groups/y"],
    ["gold", "gold/mon_groups/x"],
    ["mon_groups/x", "gold", "gold/mon_groups/y"],
    ["gold", "gold/mon_groups/x", "gold/mon_groups/y"],
]


def operations() -> st.SearchStrategy[Operation]:
    some = st.one_of(*[groups()] * 9, st.sampled_from(ODD))
    tasks = st.one_of(*[st.builds("{}/tasks".format, groups())] * 5, st.just("tasks"))
    words = st.sampled_from(WORDS)
    data = st.one_of(st.sampled_from(WORDS[:4]), words, st.lists(words, min_size=2, max_size=3).map(",".join))
    name = st.sampled_from("ABCDtu")
    weighted: list[tuple[int, list[object]]] = [
        (8, ["mkdir", some]),
        (5, ["rmdir", some]),
        (2, ["rmdir", st.sampled_from(LIKELY)]),
        (4, ["rename", some, some]),
        (9, ["write", tasks, data]),
        (2, ["as", name, "write", tasks, st.sampled_from(["0", "{A}", "{B}\n"])]),
        (4, ["fork", st.sampled_from("AABC"), st.sampled_from("CD")]),
        (3, ["thread", st.sampled_from("AABC"), st.sampled_from("tu")]),
        (3, ["end", name]),
        (2, ["reap", name]),
        (2, ["read", tasks]),
        (2, ["where", name]),
        (
            3,
            ["open", slot(), st.builds("{}/{}".format, groups(), st.sampled_from(FILES)), st.sampled_from(["r", "rw"])],
        ),
        (2, ["pread", slot()]),
        (2, ["pwrite", slot(), data]),
        (1, ["listing", some]),
        (1, ["stat", some]),
        (1, ["unlink", some]),
        (1, ["create", some]),
        (1, ["fill", st.sampled_from(["mon_groups", "gold/mon_groups", ""])]),
        (1, ["write", st.builds("{}/cpus_list".format, groups()), st.sampled_from(CPUS)]),
        (1, ["write", st.builds("{}/cpus".format, groups()), st.sampled_from(["0", "1", "2", "3\n", "x", "8"])]),
    ]
    return st.one_of(*[st.tuples(*map(constant, parts)).map(list) for weight, parts in weighted for _ in range(weight)])


FILES = ["tasks", "tasks", "tasks", "cpus", "mon_hw_id", "mon_data/mon_L3_00/mbm_total_bytes"]


def constant(part: object) -> st.SearchStrategy[Any]:
    return part if isinstance(part, st.SearchStrategy) else st.just(part)


def generated(seeds: range, size: int, first: Sequence[Operation]) -> Sequences:
    """A sequence for each seed, of up to `size` operations after its beginning."""
    sequences = st.builds(list.__add__, beginnings(), st.lists(operations(), min_size=size // 2, max_size=size))
    return [[*first, *one(sequences, seed)] for seed in seeds]


def one(strategy: st.SearchStrategy[list[Operation]], number: int) -> list[Operation]:
    """The first example of a strategy is its simplest; the next is by chance. Those after it resemble it."""
    found: list[list[Operation]] = []

    @seed(number)
    @settings(
        max_examples=2,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(sequence: list[Operation]) -> None:
        found.append(sequence)

    collect()
    return found[-1]


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
    """Operations that show a row of what the kernel was seen to do. `cannot`: why FUSE cannot show the same."""

    kind: str
    operations: list[Operation]
    cannot: str = ""


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
        kind, name, *cannot = head.split(" | ")
        words = re.findall(r'"(?:[^"\\]|\\.)*"|;|[^\s;]+', body)
        rows[name] = SeenRow(kind, list(operations_of([word_of(word) for word in words])), *cannot)
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
wide | tree: with debug
    tree "" ; made ; tree gold ; tree $X
wide | tree: without occupancy
    tree mon_data ; read info/L3_MON/mon_features
small | tree: without AET
    tree "" ; read info/L3_MON/mon_features
monitoring | tree: monitoring only
    tree "" ; mkdir $X ; tree $X ; read schemata
allocation | tree: allocation only
    tree "" ; mkdir gold ; tree gold
full | tree: modes and owners
    mkdir $X =0o750 ; mkdir gold =0o777 ; stat "" ; stat mon_groups ; stat $X ; stat $X/mon_data ;
    stat $X/mon_data/mon_L3_00 ; stat gold ; stat info ; stat $X/tasks ; stat $X/cpus ;
    stat $X/mon_data/mon_L3_00/llc_occupancy ; stat size ; stat gold/mon_groups ; stat gold/mon_data ;
    stat gold/schemata ; stat info/last_cmd_status
full | tree: chmod
    mkdir $X ; chmod $X =0o700 ; chmod $X/tasks =0o600 ; stat $X
full | tree: writing needs a capability
    mkdir $X ; tell A drop ; as A mkdir $Y ; as A rmdir $X ; as A write $X/tasks 0 ; as A read $X/tasks
full | tree: what only root may write nobody may
    write info/last_cmd_status x ; write mon_data/mon_L3_00/llc_occupancy 0 ; write size 1 ; open =1 mon_groups rw ;
    read mon_groups ; read tasks/x
full | num_rmids
    read info/L3_MON/num_rmids ; read info/PERF_PKG_MON/num_rmids ; read info/L3/num_closids ;
    read info/L3_MON/mon_features ; read info/PERF_PKG_MON/mon_features
wide | num_rmids: of all groups together
    mkdir gold ; fill mon_groups
full | max_threshold_occupancy
    read info/L3_MON/max_threshold_occupancy ;
    put info/L3_MON/max_threshold_occupancy 65535 "65536\n" 0x20000 -1 x 99999999999 4294967295 2147483648 ;
    machine settle
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
    rename $X mon_groups/z ; read $X/tasks ; unlink $X/tasks ; create $X/new ; chmod $X =0o700 ;
    machine read_only =False
full | mkdir: read-only, a name that is not there | the VFS asks for the name before it asks to remove it
    machine read_only =True ; rmdir nope ; machine read_only =False
full | mkdir: not mounted
    machine umount ; mkdir $X ; read tasks ; rmdir $X ; listing "" ; where A ; machine mount ; listing mon_groups
full | mkdir: in what is not mounted
    machine umount ; mkdir x ; create x ; machine mount
allocation | mkdir: allocation only, with parents
    mkdir $X ; mkdir mon_groups ; read mon_groups/ctrl_hw_id ; mkdir $X ; mkdir gold ; mkdir gold/mon_groups ;
    mkdir gold/x ; write mon_groups/tasks {A} ; where A
full | rmdir: with tasks
    made ; put $X/tasks {A} ; rmdir $X ; where A ; rmdir $X
full | rmdir: tasks fall back to the parent
    made ; put gold/tasks {A} ; put gold/mon_groups/g/tasks {A} ; rmdir gold/mon_groups/g ; where A
full | rmdir: open files
    made ; open =1 $X/tasks rw ; open =2 $X/mon_data/mon_L3_00/llc_occupancy r ; rmdir $X ; pread =1 ; pread =2 ;
    pwrite =1 {A} ; mkdir $X ; pread =1 ; pwrite =1 {A}
full | rmdir: fstat of an open file | libfuse asks for a path
    mkdir $X ; open =1 $X/tasks r ; fstat =1 ; rmdir $X ; fstat =1
full | rmdir: an open directory | libfuse says ESTALE of what is relative to a directory that was removed
    mkdir $X ; open =1 $X r ; rmdir $X ; relative =1 tasks ; mkdir $X ; relative =1 tasks
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
full | tasks: no bytes | FUSE never hears of a write of no bytes
    write tasks x ; raw_empty_write tasks
full | tasks: group removed meanwhile
    put $X/tasks {A}
full | tasks: in a pid namespace
    mkdir $X ; tell A unshare ; fork A C ; put $X/tasks {C} ; numbers C $X/tasks ; as C write tasks 1 ; where C ;
    as C write $X/tasks {A} ; where A ; as C write $X/tasks 0 ; where C
full | tasks: read in pieces
    mkdir $X ; put $X/tasks {A},{B} ; pieces $X/tasks =3 ; pieces $X/tasks =7
full | tasks: exec keeps
    mkdir $X ; put $X/tasks {A} ; execute A ; where A ; read $X/tasks
full | tasks: a thread brings its own group along | in /proc it is its process's leader from then on
    mkdir $X ; thread A t ; put $X/tasks {t} ; execute t ; where t
full | tasks: a thread's child | /proc tells the process that is a task's parent, not the thread
    mkdir $X ; thread A t ; put $X/tasks {t} ; fork_unseen t C ; where C
full | tasks: an orphan | when the model first sees it, it has another parent
    mkdir $X ; put $X/tasks {A} ; fork_unseen A C ; end A ; where C
monitoring | tasks: without allocation
    read tasks ; mkdir gold ; mkdir $X ; put $X/tasks {A} ; where A ; read tasks
full | last_cmd_status: what clears it
    write tasks x ; mkdir $X ; write tasks x ; rmdir $X ; mkdir info/x ; mkdir $X ; write tasks x ;
    mkdir "mon_groups/a\nb" ; mkdir $X ; rename $X $Y ; write tasks "\n"
full | cpu_resctrl_groups
    made ; where A ; put gold/tasks {A} ; where A ; put gold/mon_groups/g/tasks {A}
full | rename
    made ; put $X/tasks {A} ; rename $X mon_groups/z ; where A ; listing mon_groups
small | rename: to another ctrl_group
    made ; put $X/tasks {A} ; open =1 $X/tasks rw ; rename $X gold/mon_groups/x ; where A ; pread =1 ; pwrite =1 {B} ;
    rmdir gold ; pread =1 ; fill mon_groups
full | rename: onto an existing name
    made ; rename $X $Y ; rename $X $X ; rename $X mon_groups
full | rename: with CPUs
    made ; write $X/cpus_list 1 ; rename $X gold/mon_groups/x ; rename $X mon_groups/z
full | rename: what is no mon_group, to where none can be
    made ; rename gold silver ; rename $X/tasks $X/y ; rename $X z ; rename $X info/z ;
    rename $X mon_groups/mon_groups ; rename info mon_groups/z ; rename $X $Y/z ; rename mon_data mon_groups/z ;
    rename tasks mon_groups/z ; rename $X $X/z ; rename $X/mon_data mon_groups/z ; rename $X "mon_groups/a\nb" ;
    rename mon_groups x
limbo | umount
    settle ; made ; put $X/tasks {A} ; open =1 info/last_cmd_status r ; close =1 ; machine umount ; where A ;
    machine mount ; where A ; listing mon_groups ; fill mon_groups
small | rename: RMIDs come back in the same order
    made ; mkdir gold/mon_groups/h ; rename gold/mon_groups/g gold/mon_groups/i ; rmdir gold ; fill mon_groups
small | umount: RMIDs come back in an order
    made ; mkdir silver ; mkdir silver/mon_groups/s ; rename $Y silver/mon_groups/y ; put gold/tasks {A} ;
    machine umount ; where A ; machine mount ; where A ; fill mon_groups
full | statfs | the kernel answers for FUSE with FUSE's own f_type
    type_of ""
"""
"""KIND | NAME [| WHY FUSE CANNOT], and operations after it: words, of which those in quotes are JSON, and those after =
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
    row = ROWS[name]
    difference = compared.of_row(name)
    if row.cannot:
        assert difference, f"it can by now: {row.cannot}"
    else:
        assert not difference, difference


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.count])
def test_generated_sequences(compared: Comparisons, kind: str) -> None:
    found = compared.of_sequences(kind)
    assert not found, "\n".join([*found[:5], f"{len(found)} of {KINDS[kind].count} differ"])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("sequence", nargs="?", type=json.loads)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    said = parser.parse_args(arguments)
    kind = KINDS[said.kind]
    seeds = range(said.seed, said.seed + said.count)
    sequences = [said.sequence] if said.sequence else generated(seeds, kind.size, kind.first)
    found = [text for text in differences(kind, sequences) if text]
    print(*found, f"{len(found)} of {len(sequences)} differ", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
