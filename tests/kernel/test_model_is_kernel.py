# SPDX-License-Identifier: Apache-2.0
"""The model of resctrl against the kernel: the same operations on both,
and all that came of them compared.

Most sequences are made by chance, always the same ones: a seed gives one.
What differs is printed with its sequence.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.kernel import CannotBuild, ready
from tests.kernel.ops import Answer, Operation
from tests.kernel.vm import ROOT, GuestTimeout, Vm, run_in_guest


@dataclass(frozen=True)
class Kind:
    """A machine, as a guest and as knobs of the model, and what happens on it.

    `rows`: sequences for what chance does not bring. `count`: how many are made by chance, each of
    `first` and of up to `size` operations after it.
    """

    vm: Vm
    knobs: dict[str, Any]
    rows: tuple[str, ...]
    first: tuple[Operation, ...] = ()
    count: int = 0
    size: int = 0

    def sequences(self) -> list[list[Operation]]:
        by_seed = (
            [*self.first, *by_chance(random.Random(seed), self.size)] for seed in range(self.count)
        )
        return [*map(parsed, self.rows), *by_seed]


MADE = "mkdir $X ; mkdir $Y ; mkdir gold ; mkdir gold/mon_groups/g"


def parsed(row: str) -> list[Operation]:
    """Operations of a row, as a shell would cut their words;
    $X and $Y are two mon_groups, and `made` is MADE.
    """
    text = row.replace("made ", f"{MADE} ").replace("$", "mon_groups/")
    return [shlex.split(command) for command in text.split(";")]


# ---- sequences ----

LIKELY = [
    "mon_groups/x",
    "mon_groups/x",
    "mon_groups/y",
    "gold",
    "gold/mon_groups/x",
    "gold/mon_groups/y",
]
MONS = [
    "x",
    "y",
    "a b",
    ".a.",
    "é\udcff",
    "x" * 255,
    "tasks",
    "info",
    "mon_data",
    "a\nb",
    "mon_groups",
]
CTRLS = ["gold", "silver", "a b"]
STRANGE = [
    *(f"mon_groups/{group}" for group in MONS),
    *(f"gold/mon_groups/{group}" for group in MONS),
    *CTRLS,
]
GROUPS = [*LIKELY * 20, *STRANGE]
"""Mostly such as are there, for little happens in those that are not."""
ODD = [
    "",
    "nope/x",
    "mon_groups",
    "mon_data",
    "info",
    "info/x",
    "info/L3_MON",
    "mon_groups/x/y",
    "mon_groups/x/tasks",
]
ODD += [
    "mon_groups/x/mon_data",
    "mon_groups/x/mon_groups/y",
    "gold/mon_groups",
    "gold/mon_data",
    "gold/x",
    "tasks",
]
ODD += [
    "mon_data/mon_L3_00",
    "mon_data/mon_L3_00/mbm_total_bytes",
    "mon_groups/x/mon_data/mon_L3_01",
]
WORDS = ["{A}", "{A}", "{B}", "{C}", "0", "{B}\n", "4194303"]
SOME = [*GROUPS * 2, *ODD]
TASKS = [*(f"{group}/tasks" for group in GROUPS), *["tasks"] * 20]
DATA = [*WORDS[:4] * 5, *WORDS]
FILES = [
    f"{group}/{name}"
    for group in GROUPS
    for name in ("tasks", "mon_hw_id", "mon_data/mon_L3_00/mbm_total_bytes")
]
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
    (9, ["write", TASKS, DATA]),
    (2, ["itself", "AB", TASKS]),
    (4, ["fork", "AAB", "CD"]),
    (3, ["end", "ABCD"]),
    (2, ["read", TASKS]),
    (2, ["where", "ABCD"]),
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
    """Through the ctrl_group above it: the kernel moves no task from one ctrl_group
    into a mon_group of another.
    """
    ctrl = group.partition("mon_groups")[0].rstrip("/")
    return [["write", f"{path}/tasks", task] for path in dict.fromkeys([ctrl, group]) if path]


def by_chance(chance: random.Random, size: int) -> Iterator[Operation]:
    """Some of the likely groups, tasks in two of them, and operations."""
    groups = chance.choice(SETUPS)
    yield from (["mkdir", path] for path in groups)
    for task in ("{A}", "{B}"):
        yield from into(chance.choice(groups), task)
    weights = [weight for weight, _ in OPERATIONS]
    for _, (name, *arguments) in chance.choices(
        OPERATIONS, weights, k=chance.randint(size // 2, size)
    ):
        yield [name, *map(chance.choice, arguments)]


# ---- what chance does not bring ----

OF_LIMBO = (
    # no RMID is left, but some are in limbo
    "settle ; fill mon_groups ; mkdir gold ; rmdir mon_groups/probe ; mkdir $X ; mkdir gold",
    # an umount
    "settle ; made ; write $X/tasks {A} ; open 1 info/last_cmd_status r ; close 1 ; machine "
    "umount ; where A ;"
    "machine mount ; where A ; listing mon_groups ; fill mon_groups",
)
OF_FEW = (
    # what there is with debug, without occupancy and AET
    'tree "" ; made ; tree gold ; tree $X ; read info/L3_MON/mon_features',
    # a ctrl_group without an RMID gives its CLOSID back
    "fill mon_groups ; mkdir a ; rmdir mon_groups/fill0 ; mkdir a ; mkdir b",
    # files of a group that is removed
    "made ; open 1 $X/tasks rw ; open 2 $X/mon_data/mon_L3_00/mbm_total_bytes r ; rmdir $X ; "
    "pread 1 ; pread 2 ;"
    "pwrite 1 {A} ; mkdir $X ; pread 1 ; pwrite 1 {A}",
    # RMIDs come back in an order, also after an umount
    "made ; mkdir silver ; mkdir silver/mon_groups/s ; write gold/tasks {A} ;"
    "machine umount ; where A ; machine mount ; where A ; fill mon_groups",
)
L3 = ("mon_data/mon_L3_00/llc_occupancy", "mon_data/mon_L3_01/mbm_local_bytes")
AET = ("mon_data/mon_PERF_PKG_00/core_energy", "mon_data/mon_PERF_PKG_01/activity")
COUNTERS = (*L3, *AET, "mon_data/mon_PERF_PKG_01/uops_retired")


def reads(group: str, *names: str) -> str:
    return " ; ".join(f"read {group}/{name}".replace(" /", " ") for name in names or COUNTERS)


OF_MANY = (
    # what there is
    'tree "" ; made ; tree gold ; tree $X ; listing "" ; listing mon_groups',
    "read info/L3_MON/num_rmids ; read info/PERF_PKG_MON/num_rmids ; read info/L3/num_closids ;"
    "read info/L3_MON/mon_features ; read info/PERF_PKG_MON/mon_features",
    # to write takes a capability, and some files cannot be written by any user
    "mkdir $X ; nobody 'mkdir $Y' ; nobody 'rmdir $X' ; nobody 'echo 0 >$X/tasks' ; nobody 'cat "
    "$X/tasks'",
    "write info/last_cmd_status x ; write mon_data/mon_L3_00/llc_occupancy 0 ; write size 1 ; "
    "open 1 mon_groups rw ;"
    "read mon_groups ; read tasks/x",
    # counters: of the root, of an RMID that never ran, of those that ran on one package,
    # without data, with errors
    f"mkdir $X ; {reads('')} ; {reads('$X')}",
    f"mkdir $X ; mkdir $Y ; mkdir gold ; mkdir gold/mon_groups/g ; run A 1 ; write $X/tasks {{A}} "
    "; run A 1 ;"
    f"{reads('$X')} ; run B 0 ; write gold/tasks {{B}} ; write gold/mon_groups/g/tasks {{B}} ; "
    "run B 0 ;"
    f"{reads('gold/mon_groups/g')} ; {reads('gold')} ; write $Y/tasks {{A}} ; run A 0 ; write "
    f"tasks {{A}} ; run A 1 ;"
    f"{reads('$X')} ; {reads('$Y')}",
    f"mkdir $X ; machine counters Unavailable ; {reads('')} ; machine counters normal",
    f"mkdir $X ; machine counters Error ; {reads('', *L3, AET[0])} ; machine counters normal",
    # not mounted
    'machine umount ; mkdir $X ; read tasks ; rmdir $X ; listing "" ; where A ; mkdir x ; create '
    "x ; machine mount",
    # `tasks` in pieces
    "mkdir $X ; write $X/tasks {A} ; write $X/tasks {B} ; pieces $X/tasks 3 ; pieces $X/tasks 7",
    # any name
    "mkdir 'a\nb' ; mkdir 'gold/\n' ; mkdir 'a b' ; mkdir tasks ; mkdir $tasks ; mkdir $\udcff",
    f"mkdir {'n' * 255} ; mkdir ${'n' * 255} ; mkdir ${'n' * 1024} ; listing '' ; listing "
    "mon_groups",
)

FEW: dict[str, Any] = {"rmids": 8, "closids": 4, "debug": True, "l3_domains": 1}
ONE_CPU: dict[str, Any] = {
    "rmids": 7,
    "closids": 4,
    "mount_options": "debug",
    "sockets": 1,
    "smp": 1,
}
KINDS = {
    # To settle takes seconds: few sequences, and long ones
    "limbo": Kind(
        Vm(**ONE_CPU), FEW | {"packages": 1}, OF_LIMBO, first=(["settle"],), count=8, size=40
    ),
    # Few counters and short sequences: quick
    "small": Kind(
        Vm(append="rdt=!cmt,!energy,!perf", **ONE_CPU),
        FEW | {"decay_ms": 0, "occupancy": False, "packages": 0},
        OF_FEW,
        count=250,
        size=6,
    ),
    # More RMIDs than all rows together need: each group has one that has not been used,
    # and none waits for limbo
    "full": Kind(Vm(rmids=400), {"rmids": 401, "busy_packages": 0}, OF_MANY),
}

# ---- on both ----


def run_script(kind: Kind, where: str) -> list[list[Answer]]:
    """`where`: kernel or model."""
    with tempfile.TemporaryDirectory(prefix="resctrl-same-") as name:
        directory = Path(name)
        script = json.dumps({"knobs": kind.knobs, "sequences": kind.sequences()})
        (directory / "script").write_text(script, encoding="utf-8")
        status = on_kernel(kind, directory) if where == "kernel" else on_model(directory)
        assert status == 0, f"{where}: exit status {status}"
        results: list[list[Answer]] = json.loads(
            (directory / "results").read_text(encoding="utf-8")
        )
        return results


def on_kernel(kind: Kind, directory: Path) -> int:
    words = command("kernel", Path("/tmp/share"))
    try:
        return run_in_guest(words, kind.vm, share=directory, cwd=ROOT)
    except (
        GuestTimeout
    ) as error:  # an emulator can stand still; a kernel or an operation that hangs does so again
        print(f"booted again, for {error}", file=sys.stderr)
        return run_in_guest(words, kind.vm, share=directory, cwd=ROOT)


def on_model(directory: Path) -> int:
    """In a new pid namespace: fewer tasks to walk, and none that comes and goes."""
    namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return subprocess.run(
        [*namespace, *command("model", directory)], cwd=ROOT, check=False
    ).returncode


def command(where: str, directory: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "tests.kernel.ops",
        where,
        str(directory / "script"),
        str(directory / "results"),
    ]


def difference(sequence: list[Operation], kernel: list[Answer], model: list[Answer]) -> str:
    """What came of a sequence up to the first difference."""
    steps = [*sequence, ["everything"]]
    first = next(number for number, pair in enumerate(zip(kernel, model)) if pair[0] != pair[1])
    lines = [
        f"  {json.dumps(step)} -> {json.dumps(answer)}"
        for step, answer in zip(steps[:first], kernel)
    ]
    ours, theirs = json.dumps(model[first]), json.dumps(kernel[first])
    last = [f"  {json.dumps(steps[first])}", f"    kernel: {theirs}", f"    model:  {ours}"]
    return "\n".join([json.dumps(sequence), *lines, *last])


@pytest.mark.parametrize("name", KINDS)
def test_the_same_comes_of_each_sequence(name: str) -> None:
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs root and /dev/fuse")
    try:
        ready()
    except CannotBuild as error:
        pytest.skip(str(error))
    with ThreadPoolExecutor(2) as pool:
        kernel, model = pool.map(lambda where: run_script(KINDS[name], where), ("kernel", "model"))
    sequences = KINDS[name].sequences()
    assert len(kernel) == len(model) == len(sequences)
    differences = [
        difference(*three) for three in zip(sequences, kernel, model) if three[1] != three[2]
    ]
    assert not differences, "\n".join(
        [*differences[:5], f"{len(differences)} of {len(sequences)} differ"]
    )
