"""Hostile input: coverage-guided fuzzing of all that parses, and of the whole hook, on both forms of the models.

    python -m tests.faults.fuzz [--inputs N] [--seed S] [--target NAME]...

Each target of tests.faults.targets is given to atheris (libFuzzer) in a process of its own: no crash, no hang, no
change outside of our directories, and the same from pydantic's models as from the compiled ones. What was found to lead
further is kept, and the next run begins with it. An input that fails is kept, too, and its file told: to see it fail,
`python -m tests.faults.fuzz --target NAME --again FILE`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path

from tests import provision
from tests.faults import part, targets
from tests.faults.part import Row

INPUTS = 1_000_000
LONGEST = 1 << 15
PATIENCE = 20
"""Seconds for one input, which takes milliseconds: after them it is a hang."""
_DONE = re.compile(r"number_of_executed_units: (\d+)")
_COVERED = re.compile(r"cov: (\d+)")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--inputs", type=int, default=INPUTS, help=f"of all targets together (default: {INPUTS})")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", action="append", choices=list(targets.TARGETS), help="no more than this one")
    parser.add_argument("--again", type=Path, metavar="FILE", help="an input that failed, for one target")


def run(given: argparse.Namespace) -> Row:
    if given.again is not None:
        return _again(given.target[0], given.again)
    began = time.monotonic()
    python = provision.campaign()
    shares = [it for it in targets.SHARES if given.target is None or it.target in given.target]
    shares.sort(key=lambda it: it.part * it.cost, reverse=True)  # what takes longest begins first
    whole = sum(it.part for it in shares)
    with ThreadPoolExecutor(cpu_count()) as pool:
        jobs = [
            pool.submit(_fuzzed, python, it.target, round(given.inputs * it.part / whole), given.seed) for it in shares
        ]
        done = [job.result() for job in jobs]
    failures = [failure for _, _, failure in done if failure]
    covered = ", ".join(f"{it.target} {edges}" for it, (_, edges, _) in zip(shares, done))
    cases, seconds = sum(inputs for inputs, _, _ in done), time.monotonic() - began
    return Row("fuzz", "inputs", cases, failures, seconds, f"branches of hook/ seen: {covered}")


def _fuzzed(python: Path, target: str, inputs: int, seed: int) -> tuple[int, int, str]:
    """How many inputs one target was given, how many branches they led to, and what failed, if anything."""
    corpus = part.cache(f"fuzz/{target}")
    artifacts = f"{part.cache('fuzz-failures')}/{target}-"
    words = [f"-runs={inputs}", f"-seed={seed}", f"-max_len={LONGEST}", f"-timeout={PATIENCE}", "-print_final_stats=1"]
    words += ["-keep_seed=1", "-reduce_inputs=0", "-rss_limit_mb=2048", f"-artifact_prefix={artifacts}", str(corpus)]
    command = [str(python), "-m", "tests.faults.fuzzer", target, *words]
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        status = subprocess.run(command, cwd=provision.ROOT, stdout=log, stderr=log, check=False).returncode
        log.seek(0)
        text = log.read()
    done, covered = _DONE.search(text), _COVERED.findall(text)
    failure = "" if status == 0 and done else f"{target}: exit status {status}: {_reason(text)}"
    return int(done[1]) if done else 0, int(covered[-1]) if covered else 0, failure


def _reason(text: str) -> str:
    """What the fuzzer said of the failure: the traceback, or what libFuzzer thinks, and where the input is."""
    lines = text.splitlines()
    start = next((at for at, line in enumerate(lines) if "Uncaught" in line or "ERROR: libFuzzer" in line), -20)
    return "\n".join(line[:2000] for line in lines[start:][:40])


def _again(target: str, path: Path) -> Row:
    with tempfile.TemporaryDirectory() as name:
        targets.check(targets.TARGETS[target], targets.both_forms(Path(name)), path.read_bytes())
    return Row("fuzz", "input again", 1, [], 0.0)


if __name__ == "__main__":
    sys.exit(part.main(run, options, sys.argv[1:]))
