# SPDX-License-Identifier: Apache-2.0
"""Runs tests on one mutant after the other, in a copy of the checkout: judge_mutants starts it, and says what.

    python -m tests.faults.mutation.mutant_runner    (in the copy; a JSON job on each line of stdin, answers on stdout)

What all tests import is imported once; for each job a process is forked that has the tests run, in their order, up to
the first that fails. The answer is its name, empty if the tests do not end, null if all pass.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.storm import reaper

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LIBRARIES = ("hypothesis.strategies", "mfusepy", "prometheus_client", "pydantic", "pytest")
BUILD = "import tests; from pyz import archive; archive.build(interpreters=['/usr/bin/python3'])"


class Chosen:
    """A plugin of pytest: of what is collected only these tests, in this order. It notes the first that fails."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._place = {test: at for at, test in enumerate(tests)}
        self.failed: str | None = None

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((it for it in items if it.nodeid in self._place), key=lambda it: self._place[it.nodeid])

    def pytest_collectreport(self, report: Any) -> None:  # noqa: ANN401  pytest's
        self.pytest_runtest_logreport(report)

    def pytest_runtest_logreport(self, report: Any) -> None:  # noqa: ANN401  pytest's
        if report.failed and self.failed is None:
            self.failed = report.nodeid


def run(tests: Sequence[str], patience: float) -> str | None:
    """Have tests run in a process of their own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os._exit(_tested(tests, writing))
    os.close(writing)
    pidfd = os.pidfd_open(pid)
    ended, _, _ = select.select([pidfd], [], [], patience)
    os.close(pidfd)
    status = os.waitpid(pid, 0)[1] if ended else None
    _kill_children()
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read() if ended else b'""'
    # The first line: what a test has forked may have gone on, and told of the other tests, too.
    answer: str | None = json.loads(told.splitlines()[0]) if told else f"the tests ended with wait status {status}"
    return answer


def _tested(tests: Sequence[str], pipe: int) -> int:
    log = os.open("build/mutant_runner.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    null = os.open("/dev/null", os.O_RDONLY)
    for old, new in ((null, 0), (log, 1), (log, 2)):
        os.dup2(old, new)
    chosen = Chosen(tests)
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    words = ["-qx", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", *files]
    try:
        status = int(importlib.import_module("pytest").main(words, plugins=[chosen]))
        problem = f"pytest: exit status {status}" if status else None
    except BaseException as error:  # noqa: BLE001  whatever it is that pytest cannot do here
        problem = f"pytest: {error!r}"
    with os.fdopen(pipe, "w") as told:
        print(json.dumps(chosen.failed or problem), file=told)
    return 0


def _kill_children() -> None:
    """The tests, and what they have left behind: orphans are children of this process."""
    with suppress(ChildProcessError):
        while True:
            for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split():
                os.kill(int(pid), signal.SIGKILL)
            os.waitpid(-1, 0)


def _built() -> bool:
    """The .pyz of the sources as they are, for one interpreter; False: they are none."""
    words = [sys.executable, "-c", BUILD]
    null = [(os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) for number in (1, 2)]
    pid = os.posix_spawn(sys.executable, words, os.environ, file_actions=null)
    return os.waitpid(pid, 0)[1] == 0


def _done(job: dict[str, Any], times: Iterator[int]) -> str | None:
    path = Path(job["path"])
    before, text = path.stat(), path.read_text(encoding="utf-8")
    path.write_text(job["text"], encoding="utf-8")
    changed = next(times)
    os.utime(path, (changed, changed))  # no two have the same bytecode, which is cached by the second and the size
    try:
        return "the build" if job["build"] and not _built() else run(job["tests"], job["patience"])
    finally:
        path.write_text(text, encoding="utf-8")
        os.utime(path, (before.st_atime, before.st_mtime))


def prepare() -> None:
    """Import what all tests do, and have hypothesis try the same in each run, and not shrink what it has found."""
    place = str(Path("build/tmp").resolve())
    os.environ.update(TMPDIR=place, PYTEST_DEBUG_TEMPROOT=place)  # what the tests around this one use is read-only here
    for name in LIBRARIES:
        importlib.import_module(name)
    from hypothesis import Phase, settings  # noqa: PLC0415  as above

    settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], derandomize=True, database=None)
    settings.load_profile("mutants")


def main() -> None:
    prepare()
    with reaper():
        times = itertools.count(1)
        for line in sys.stdin:
            print(json.dumps(_done(json.loads(line), times)), flush=True)


if __name__ == "__main__":
    main()
