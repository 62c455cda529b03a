# SPDX-License-Identifier: Apache-2.0
"""Mutation testing of the hook path: whatever is changed in it, a test fails.

Each change that make_mutants makes is a case. Of the tests, those run that have run its lines, as hook_coverage has
measured: unit tests first, those of the module ahead; then, with the mutant built into the .pyz, those that start it.
What was killed is not tried again unless its module has changed, what survived is when a test has: so this can be
stopped, and goes on. equivalent.json lists the mutants that no test can kill, with the reason. `models_compiled`
is left out: it is generated, and compared with its source by tests of its own.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from math import sqrt
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from pyz import COMPILED
from tests import provision
from tests.faults.mutation import hook_coverage
from tests.faults.mutation.mutant import Mutant

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from tests.faults.campaign import Campaign

ENOUGH = 0.9
"""Of the mutants are killed, or the part has failed."""
SAMPLE = 400
"""So many mutants are tried, by chance, where nobody says how many: all would take half a day."""
PATIENCE = 20.0
"""Seconds that tests may take longer than they took before: an endless loop is as dead as a failed test."""
BUDGET = {"unit": 60.0, "fuse": 60.0}
"""Seconds of tests for one mutant: the quickest ones that fit in; those of its own module's file come first.

Those have as many seconds of their own: a case of theirs is not to lose its place to slower tests of other modules.
"""
FEW = 3
"""So many cases of a parametrised test go ahead of the others."""
EQUIVALENT = Path(__file__).with_name("equivalent.json")
"""Mutants that no test can kill, by the reason."""
APART = (
    "sh",
    "-ec",
    'mount --make-rprivate /; mount --bind "$0" /mnt; mkdir -p /mnt/build/tmp; mount -t tmpfs mutants /mnt/build/tmp;'
    'mount -o remount,bind,ro /; cd /mnt; exec "$@"',
)
"""Behind this and a directory, that one is /mnt, and all else is read-only: who knows what a mutant does.

The name is short, as names of sockets have to be. Temporary files go to build/tmp there, into memory.
"""
Lines = dict[str, dict[str, list[str]]]


class MutantVerdict(NamedTuple):
    """What became of one mutant. `by`: the test that failed; `tests`: how many there were to run; `known`: which."""

    id: str
    name: str
    outcome: str
    by: str
    tests: int
    seconds: float
    known: str


KILLED = ("killed", "late")


def run(campaign: Campaign) -> None:
    begin = time.monotonic()
    every = made(hook_coverage.hook_path())
    equivalent = find_equivalent()
    problems = dict.fromkeys(equivalent - {it.name for it in every}, "equivalent.json: there is no such mutant")
    chosen = [it for it in every if campaign.is_chosen(it.name)]
    most = campaign.most or SAMPLE
    if most < len(chosen):
        chosen = Random(campaign.seed).sample(chosen, most)
    verdicts = judged([it for it in chosen if it.name not in equivalent], campaign.jobs) if chosen else []
    survivors = [it for it in verdicts if it.outcome not in KILLED]
    dead, low, high = share(len(verdicts) - len(survivors), len(verdicts))
    if dead < ENOUGH or campaign.only:
        problems.update((it.name, f"{it.outcome}: {it.tests} tests") for it in survivors)
    campaign.tally("mutants", len(verdicts), problems, begin)
    beside = f"; {len(chosen) - len(verdicts)} more are equivalent" if len(chosen) > len(verdicts) else ""
    of_all = f" (of all {len(every)}: {low:.1%} to {high:.1%} with 95 % confidence)" if len(chosen) < len(every) else ""
    campaign.note(f"{dead:.1%} killed{of_all}{beside}")
    for it in survivors:
        campaign.note(f"survived {it.tests} tests: {it.name}")


def find_equivalent() -> set[str]:
    """The names of the mutants that no test can kill."""
    return {name for names in json.loads(EQUIVALENT.read_text("utf-8")).values() for name in names}


def made(modules: Iterable[str]) -> list[Mutant]:
    """All mutants of these modules."""
    names = [name for name in modules if f"hook/{name}.py" != COMPILED]
    command = [str(provision.campaign()), "-m", "tests.faults.mutation.make_mutants", *names]
    told = subprocess.run(command, cwd=provision.ROOT, check=True, stdout=subprocess.PIPE).stdout
    return [Mutant(*it) for it in json.loads(told)]


def share(killed: int, number: int) -> tuple[float, float, float]:
    """The share of the killed, and within what it is for all mutants (Wilson's interval)."""
    if number == 0:
        return 1.0, 0.0, 1.0
    z, found = 1.96, killed / number
    middle = found + z * z / (2 * number)
    half = z * sqrt(found * (1 - found) / number + z * z / (4 * number * number))
    return found, (middle - half) / (1 + z * z / number), (middle + half) / (1 + z * z / number)


def judged(mutants: Sequence[Mutant], jobs: int) -> list[MutantVerdict]:
    """The verdicts on mutants, from the journal as far as they are in it and still hold."""
    by = known(hook_coverage.test_files())
    journal = cache() / "journal.jsonl"
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    former = {it.id: it for it in (MutantVerdict(*json.loads(line)) for line in lines)}
    found = {it.id: former[it.id] for it in mutants if it.id in former and _holds(former[it.id], by)}
    left = [it for it in mutants if it.id not in found]
    idle: SimpleQueue[MutantWorker] = SimpleQueue()
    workers = [MutantWorker(by, cache() / f"copy-{number}") for number in range(min(jobs, len(left)))]
    for worker in workers:
        idle.put(worker)

    def judge(mutant: Mutant) -> MutantVerdict:
        worker = idle.get()
        try:
            return worker.judge(mutant)
        finally:
            idle.put(worker)

    try:
        with ThreadPoolExecutor(jobs) as pool, journal.open("a", encoding="utf-8") as log:
            for number, verdict in enumerate(pool.map(judge, left), 1):
                found[verdict.id] = verdict
                print(json.dumps(verdict), file=log, flush=True)
                counts = Counter(it.outcome for it in found.values())
                print(f"{number} of {len(left)}: {dict(counts)}", end="\r", file=sys.stderr, flush=True)
    finally:
        for worker in workers:
            worker.close()
    return [found[it.id] for it in mutants]


def _holds(verdict: MutantVerdict, known: Known) -> bool:
    """A mutant that was killed stays dead: its id has the text of its module in it, and tests are not made weaker."""
    return verdict.outcome in KILLED or verdict.known == known.name


class MutantWorker:
    """A copy of the checkout, and the process that tests mutants in it."""

    def __init__(self, known: Known, copy: Path) -> None:
        self._known = known
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(provision.ROOT, copy, ignore=hook_coverage.IGNORED)
        command = [*hook_coverage.ALONE, *APART, str(copy), sys.executable, "-m", "tests.faults.mutation.mutant_runner"]
        self._sound: set[str] = set()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def judge(self, mutant: Mutant) -> MutantVerdict:
        begin = time.monotonic()
        outcome, by, count = "survived", "", 0
        for tests in self._known.steps(mutant):
            count += len(tests)
            failed = self._failed(mutant, tests)
            if failed is not None:
                outcome, by = "killed" if failed else "late", failed
                break
        seconds = round(time.monotonic() - begin, 1)
        return MutantVerdict(mutant.id, mutant.name, outcome, by, count, seconds, self._known.name)

    def _failed(self, mutant: Mutant, tests: Sequence[str]) -> str | None:
        """Which of these tests fails of this mutant; empty if they do not end, None if all pass.

        One that would fail here of no mutant at all does not count.
        """
        sources = (provision.ROOT / f"hook/{mutant.module}.py").read_text(encoding="utf-8")
        left = list(tests)
        while left:
            failed = self._ask(mutant.module, mutant.text, left)
            if failed not in self._known.seconds or failed in self._sound:
                return failed
            if self._ask(mutant.module, sources, [failed]) is None:
                self._sound.add(failed)
                return failed
            print(f"mutants: fails without a mutant: {failed}", file=sys.stderr, flush=True)
            left.remove(failed)
        return None

    def _ask(self, module: str, text: str, tests: Sequence[str]) -> str | None:
        """Which of these tests fails with this text of the module."""
        job = {
            "path": f"hook/{module}.py",
            "text": text,
            "tests": tests,
            "build": any(_tier(test) == "fuse" for test in tests),
            "patience": PATIENCE + 5 * sum(self._known.seconds[test] for test in tests),
        }
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps(job), file=stdin, flush=True)
        answer: str | None = json.loads(stdout.readline())
        return answer

    def close(self) -> None:
        self._process.communicate()


class Known:
    """Which tests run which lines, by module and line, and how long they take. `name` stands for the tests' texts."""

    def __init__(self, name: str, seconds: dict[str, float], lines: Lines) -> None:
        self.name = name
        self.seconds = seconds
        self._lines = lines

    def steps(self, mutant: Mutant) -> Iterator[list[str]]:
        """The tests that run a mutant's lines: unit tests of its module, other unit tests, and those of the .pyz.

        What runs as the module is imported is every test's, or the first one's; those count that run what is beside it,
        and all in the module's own file.
        """
        own = f"tests/unit/test_{Path(mutant.module).name}.py"
        found = self._of(mutant.module, mutant.lines)
        is_in_none = mutant.name.startswith(f"{mutant.module}::")
        if is_in_none or not any(_tier(test) == "unit" for test in found):
            found |= self._of(mutant.module, mutant.scope)
        if is_in_none:
            found |= {test for test in self.seconds if _file(test) == own}
        for tier, budget in BUDGET.items():
            for mine in (True, False):
                tests = (test for test in found if _tier(test) == tier and (_file(test) == own) is mine)
                if chosen := list(self._within(budget, tests)):
                    yield chosen

    def _of(self, module: str, lines: Iterable[int]) -> set[str]:
        found = self._lines.get(module, {})
        return {test for line in lines for test in found.get(str(line), ())}

    def _within(self, budget: float, tests: Iterable[str]) -> Iterator[str]:
        """The quickest, until the budget is used up."""
        cases: Counter[str] = Counter()
        ranks: dict[str, tuple[bool, float]] = {}
        for test in sorted(tests, key=lambda it: (self.seconds[it], it)):
            name = test.partition("[")[0]
            cases[name] += 1
            ranks[test] = cases[name] > FEW, self.seconds[test]
        for test in sorted(ranks, key=lambda it: ranks[it]):
            budget -= self.seconds[test]
            if budget < 0:
                return
            yield test


def known(files: Sequence[str]) -> Known:
    """What is known of the tests in these files. It holds until a file changes, and as long as hook/ does not."""
    now = {path: _hash([provision.ROOT / path]) for path in files}
    sources = _hash((provision.ROOT / "hook").rglob("*.py"))
    stored = cache() / "tests.json"
    former: Any = json.loads(stored.read_text()) if stored.exists() else {}
    same = {path for path, name in former.get("files", {}).items() if now.get(path) == name}
    if former.get("sources") != sources:
        same = set()
    seconds, lines = _only(same, former["seconds"], former["lines"]) if same else ({}, {})
    if new := now.keys() - same:
        place = cache() / "measured"
        shutil.rmtree(place, ignore_errors=True)
        measured = hook_coverage.Measured(place)
        for path in sorted(new):
            measured.run(path)
        more_seconds, more = _only(new, measured.seconds(), measured.lines())
        seconds |= more_seconds
        for module in lines.keys() | more.keys():
            former_lines, more_lines = lines.get(module, {}), more.get(module, {})
            both = former_lines.keys() | more_lines.keys()
            lines[module] = {line: [*former_lines.get(line, ()), *more_lines.get(line, ())] for line in both}
        stored.write_text(json.dumps({"sources": sources, "files": now, "seconds": seconds, "lines": lines}))
    return Known(_hash(provision.ROOT / path for path in files), seconds, lines)


def _only(files: Collection[str], seconds: dict[str, float], lines: Lines) -> tuple[dict[str, float], Lines]:
    """What is known of the tests in these files that passed."""
    kept = {test: it for test, it in seconds.items() if _file(test) in files}
    found = {
        module: {line: [test for test in tests if test in kept] for line, tests in of_module.items()}
        for module, of_module in lines.items()
    }
    return kept, found


def cache() -> Path:
    """What is kept from one run to the next, outside of the checkout."""
    place = provision.cache("faults", "mutants")
    place.mkdir(parents=True, exist_ok=True)
    return place


def _file(test: str) -> str:
    return test.partition("::")[0]


def _tier(test: str) -> str:
    return test.split("/")[1]


def _hash(paths: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()[:16]
