# SPDX-License-Identifier: Apache-2.0
"""Mutation testing of the hook path: whatever is changed in it, a test fails.

Each change that mutants_of makes is a case. Its tests are the unit tests that import its module, those of the module's
own name first; then those that run whole hooks; then, with the mutant built into the .pyz, some that start it.
The compiled models (`pyz.COMPILED`) are left out: they are generated, and tests of their own compare them with the
source.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from math import sqrt
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import NamedTuple

from pyz import COMPILED
from tests import provision
from tests.faults.campaign import Campaign
from tests.faults.mutation import hook_coverage

ENOUGH = 0.9
"""Of the mutants are killed, or the part has failed."""
SAMPLE = 400
"""The number of mutants that are tried, chosen at random, without --most: all would take a day."""
PATIENCE = 600.0
"""Seconds for the tests of one mutant: an endless loop is as dead as a failed test."""
WHOLE_HOOKS = (*(f"tests/unit/test_{name}.py" for name in ("create", "remove", "entry", "report", "reconcile")),)
"""They run all of the hook path."""
SIMULATED = ("-m", "tests.simulator", "--random", "15", "--preempt", "50", "--most", "1")
STARTED = tuple(f"tests/fuse/test_{name}.py" for name in ("lifecycle", "refusals", "process", "identity"))
"""They start the .pyz."""
BUILD = "import tests; from pyz import archive; archive.build(interpreters=['/usr/bin/python3'])"
APART = (
    "sh",
    "-ec",
    'mount --make-rprivate /; mount --bind "$0" /mnt; mount -t tmpfs mutants /dev/shm; mount -o remount,bind,ro /;'
    'cd /mnt; TMPDIR=/dev/shm exec "$@"',
)
"""Behind this and a directory, that one is /mnt, and all else is read-only but /dev/shm: a mutant may do anything.

Not /tmp, which would hide the interpreter of a checkout that lies there.
"""


class Mutant(NamedTuple):
    """One change. `module`: by its path in hook/, such as `create`; `text`: all of it, changed."""

    module: str
    change: str
    text: str

    def __str__(self) -> str:
        return f"{self.module}:{self.change}"


def run(campaign: Campaign) -> None:
    begin = time.monotonic()
    chosen = [it for it in find_mutants(hook_coverage.hook_path()) if campaign.is_chosen(str(it))]
    if not chosen:
        return
    of, most = len(chosen), campaign.most or SAMPLE
    unchanged = Mutant(chosen[0].module, "unchanged", (provision.ROOT / f"hook/{chosen[0].module}.py").read_text())
    if not find_survivors([unchanged], 1):
        campaign.tally("mutants", 1, {str(unchanged): "a test fails all the same"}, begin)
        return
    if most < of:
        chosen = Random(campaign.seed).sample(chosen, most)
    survivors = [str(it) for it in find_survivors(chosen, campaign.jobs)]
    killed, low, high = share(len(chosen) - len(survivors), len(chosen))
    problems = dict.fromkeys(survivors, "no test fails") if killed < ENOUGH or campaign.only else {}
    campaign.tally("mutants", len(chosen), problems, begin)
    campaign.note(f"{killed:.1%} of {len(chosen)} killed (of all {of}: {low:.1%} to {high:.1%} with 95 % confidence)")
    for name in survivors:
        campaign.note(f"survived: {name}")


def find_mutants(modules: Sequence[str]) -> list[Mutant]:
    names = [name for name in modules if f"hook/{name}.py" not in COMPILED.values()]
    command = [str(provision.campaign()), "-m", "tests.faults.mutation.mutants_of", *names]
    found = subprocess.run(command, cwd=provision.ROOT, check=True, stdout=subprocess.PIPE).stdout
    return [Mutant(*it) for it in json.loads(found)]


def share(killed: int, number: int) -> tuple[float, float, float]:
    """The share of the killed, and within what it is for all mutants (Wilson's interval)."""
    z, found = 1.96, killed / number
    middle = found + z * z / (2 * number)
    half = z * sqrt(found * (1 - found) / number + z * z / (4 * number * number))
    return found, (middle - half) / (1 + z * z / number), (middle + half) / (1 + z * z / number)


def find_survivors(mutants: Sequence[Mutant], jobs: int) -> list[Mutant]:
    """Those of which no test fails."""
    with tempfile.TemporaryDirectory(dir=provision.find_scratch()) as directory, ThreadPoolExecutor(jobs) as pool:
        idle: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copy = Path(directory) / str(number)
            shutil.copytree(provision.ROOT, copy, ignore=hook_coverage.IGNORED)
            idle.put(copy)

        def judge(mutant: Mutant) -> bool:
            copy = idle.get()
            try:
                return is_killed(copy, mutant)
            finally:
                idle.put(copy)

        killed = []
        for number, is_dead in enumerate(pool.map(judge, mutants), 1):
            killed.append(is_dead)
            print(f"{number} of {len(mutants)}: {sum(killed)} killed", end="\r", file=sys.stderr, flush=True)
        return [mutant for mutant, is_dead in zip(mutants, killed) if not is_dead]


def is_killed(copy: Path, mutant: Mutant) -> bool:
    """Whether a test fails of a mutant, in a copy of the checkout."""
    path = copy / f"hook/{mutant.module}.py"
    sources = path.read_text(encoding="utf-8")
    path.write_text(mutant.text, encoding="utf-8")
    try:
        pytest = ("-m", "pytest", "-qx", "-p", "no:cacheprovider")
        return (
            fails(copy, *pytest, *unit_tests(mutant.module))
            or fails(copy, *SIMULATED)
            or fails(copy, "-c", BUILD)
            or fails(copy, *pytest, *STARTED)
        )
    finally:
        path.write_text(sources, encoding="utf-8")


def fails(copy: Path, *words: str) -> bool:
    """Whether Python, in a copy of the checkout, does not end well or in time."""
    command = [*hook_coverage.ALONE, *APART, str(copy), sys.executable, "-B", *words]
    null = subprocess.DEVNULL
    try:
        return (
            subprocess.run(command, stdin=null, stdout=null, stderr=null, timeout=PATIENCE, check=False).returncode != 0
        )
    except subprocess.TimeoutExpired:
        return True


@cache
def unit_tests(module: str) -> list[str]:
    """The files of unit tests for a module: of its name or its package's, that import it, that run whole hooks."""
    name = module.replace("/", ".")
    above, _, last = name.rpartition(".")
    imports = re.compile(
        rf"^\s*(from hook\.{name} import|import hook\.{name}|from hook\.{above} import .*\b{last}\b)", re.M
    )
    files = sorted((provision.ROOT / "tests/unit").glob("test_*.py"))
    found = [f"tests/unit/{it.name}" for it in files if imports.search(it.read_text(encoding="utf-8"))]
    known = set(hook_coverage.test_files())
    own = [f"tests/unit/test_{it}.py" for it in (last, above.rpartition(".")[2])]
    return list(dict.fromkeys([*(path for path in [*own, *found] if path in known), *WHOLE_HOOKS]))
