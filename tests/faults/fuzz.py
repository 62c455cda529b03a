# SPDX-License-Identifier: Apache-2.0
"""Hostile input to whole hooks (hostile.py), guided by coverage: atheris (libFuzzer) makes hypothesis' choices.

    python -m tests.faults.fuzz ARGUMENTS-OF-LIBFUZZER... [CORPUS | FILE]

runs it, until so many inputs were tried or one fails; FILE: an input that was kept. The part of the campaign starts
one such process a job, all on one corpus, which is kept: the next run begins with it. No crash, no hang, no change
outside of our directories, and the same from pydantic's models as from the compiled ones. Both forms of the program are
imported under the eyes of the fuzzer, which then knows how far each input led.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from hypothesis import given, settings

from tests import provision
from tests.faults import hostile
from tests.faults.campaign import Campaign

INPUTS = 100_000
PATIENCE = 60
"""Seconds for one input, which takes milliseconds: after them it is a hang."""
_DONE = re.compile(r"number_of_executed_units: (\d+)")
_COVERED = re.compile(r"cov: (\d+)")


def run(campaign: Campaign) -> None:
    begin = time.monotonic()
    if not campaign.is_chosen("whole hooks"):
        return
    python = provision.campaign()
    corpus = provision.cache("fuzz")
    corpus.mkdir(parents=True, exist_ok=True)
    words = [f"-runs={(campaign.most or INPUTS) // campaign.jobs}", f"-timeout={PATIENCE}", "-print_final_stats=1"]
    words += ["-max_len=4096", "-len_control=0", "-rss_limit_mb=2048", f"-artifact_prefix={corpus}-failed-"]
    command = [str(python), "-m", "tests.faults.fuzz", *words]

    def fuzz(seed: int) -> tuple[int, str, str]:
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            seeded = [*command, f"-seed={seed}", str(corpus)]
            status = subprocess.run(seeded, cwd=provision.ROOT, stdout=log, stderr=log, check=False).returncode
            log.seek(0)
            text = log.read()
        done, covered = _DONE.search(text), _COVERED.findall(text)
        is_fine = status == 0 and done
        return int(done[1]) if done else 0, "".join(covered[-1:]), "" if is_fine else text[-20_000:]

    with ThreadPoolExecutor(campaign.jobs) as pool:
        found = list(pool.map(fuzz, range(campaign.seed, campaign.seed + campaign.jobs)))
    problems = [problem for _, _, problem in found if problem]
    campaign.tally(
        "inputs to whole hooks",
        sum(number for number, _, _ in found),
        {"whole hooks": "\n".join(problems)} if problems else {},
        begin,
    )
    campaign.note(f"branches of hook/ seen: {', '.join(covered for _, covered, _ in found)}")


def main() -> NoReturn:
    atheris = importlib.import_module("atheris")
    with tempfile.TemporaryDirectory() as directory, atheris.instrument_imports(include=["hook"]):
        forms = hostile.both_forms(Path(directory))

    @settings(database=None, deadline=None)
    @given(hostile.inputs())
    def check(what: hostile.HostileInput) -> None:
        hostile.check(forms, what)

    atheris.Setup(sys.argv, check.hypothesis.fuzz_one_input)  # type: ignore[attr-defined]
    atheris.Fuzz()
    sys.exit()  # not reached: libFuzzer ends the process


if __name__ == "__main__":
    main()
