# SPDX-License-Identifier: Apache-2.0
"""Hostile input: coverage-guided fuzzing of all that parses, and of the whole hook, on both forms of the models.

Each of targets.TARGETS is a case: atheris (libFuzzer) runs it in a process of its own. No crash, no hang, no change
outside of our directories, and the same from pydantic's models as from the compiled ones. What was found to lead
further is kept, and the next run begins with it. An input that fails is kept, too, and is a case from then on.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests import provision
from tests.faults.fuzzing import targets
from tests.simulator.machine import EndlessCalls

if TYPE_CHECKING:
    from tests.faults.campaign import Campaign

INPUTS = 1_000_000
"""Of all targets together."""
LONGEST = 1 << 15
PATIENCE = 20
"""Seconds for one input, which takes milliseconds: after them it is a hang."""
_DONE = re.compile(r"number_of_executed_units: (\d+)")
_COVERED = re.compile(r"cov: (\d+)")
_KEPT = re.compile(r"Test unit written to (\S+)")


class Fuzzed(NamedTuple):
    """What became of a target. `branches` of hook/ were seen; `problem`: empty if nothing failed, else for `case`."""

    inputs: int
    branches: int
    case: str
    problem: str


def run(campaign: Campaign) -> None:
    begin = time.monotonic()
    target, of, path = (campaign.only or "").partition(" of ")
    if of and target in targets.TARGETS:
        campaign.tally("input again", 1, _again(target, Path(path)), begin)
        return
    shares = [it for it in targets.SHARES if campaign.is_chosen(it.target)]
    if not shares:
        return
    shares.sort(key=lambda it: it.part * it.cost, reverse=True)  # what takes longest begins first
    python = provision.campaign()
    each = (campaign.most or INPUTS) / sum(it.part for it in shares)
    with ThreadPoolExecutor(campaign.jobs) as pool:
        fuzz = partial(_fuzzed, python, campaign.seed)
        done = list(pool.map(fuzz, [it.target for it in shares], [round(each * it.part) for it in shares]))
    problems = {it.case: it.problem for it in done if it.problem}
    campaign.tally(f"inputs to {len(shares)} targets", sum(it.inputs for it in done), problems, begin)
    seen = ", ".join(f"{share.target} {it.branches}" for share, it in zip(shares, done))
    campaign.note(f"branches of hook/ seen: {seen}")


def _fuzzed(python: Path, seed: int, target: str, inputs: int) -> Fuzzed:
    corpus, kept = _cache(target), f"{_cache('failed')}/{target}-"
    words = [f"-runs={inputs}", f"-seed={seed}", f"-max_len={LONGEST}", f"-timeout={PATIENCE}", "-print_final_stats=1"]
    words += ["-keep_seed=1", "-reduce_inputs=0", "-rss_limit_mb=2048", f"-artifact_prefix={kept}", str(corpus)]
    command = [str(python), "-m", "tests.faults.fuzzing.atheris_target", target, *words]
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        status = subprocess.run(command, cwd=provision.ROOT, stdout=log, stderr=log, check=False).returncode
        log.seek(0)
        text = log.read()
    done, covered, failed = _DONE.search(text), _COVERED.findall(text), _KEPT.search(text)
    problem = "" if status == 0 and done else f"exit status {status}: {_reason(text)}"
    case = f"{target} of {failed[1]}" if failed else target
    return Fuzzed(int(done[1]) if done else 0, int(covered[-1]) if covered else 0, case, problem)


def _reason(text: str) -> str:
    """What the fuzzer said of the failure: the traceback, or what libFuzzer thinks."""
    lines = text.splitlines()
    start = next((at for at, line in enumerate(lines) if "Uncaught" in line or "ERROR: libFuzzer" in line), -20)
    return "\n".join(line[:2000] for line in lines[start:][:40])


def _again(target: str, path: Path) -> dict[str, str]:
    """One input that failed before: the problem with it, if there is still one."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            targets.check(targets.TARGETS[target], targets.both_forms(Path(directory)), path.read_bytes())
        except (Exception, EndlessCalls):  # noqa: BLE001  whatever it is, it is reported
            return {f"{target} of {path}": traceback.format_exc()}
    return {}


def _cache(name: str) -> Path:
    """A directory outside of the checkout that is kept from one run to the next."""
    made = provision.cache("fuzz", name)
    made.mkdir(parents=True, exist_ok=True)
    return made
