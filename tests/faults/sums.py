# SPDX-License-Identifier: Apache-2.0
"""reconcile adds up the history, writes the line of a run that a power cut took,
and is killed at each call of that.

What must hold: the next reconcile leaves sums that have each line once,
whatever the killed one has left.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from fetch import provision
from tests.faults import processes
from tests.faults.campaign import Campaign
from tests.resctrlfs import mounted
from tests.support.hook import Hook, Outcome, finish

AGAIN = 2
"""A run that is written twice: its later line counts."""
USE = {1: 10, AGAIN: 25, 3: 40, 4: 80, 5: 160, 6: 320}


def run(campaign: Campaign) -> None:
    with opened_history() as history:
        calls = history.list_calls()
        kills = {
            f"sums: {name}#{nth} SIGKILL": partial(history.kill, name, nth) for name, nth in calls
        }
        campaign.try_each(f"sums, {len(calls)} calls, SIGKILL", kills)


class History:
    """A history that was added up once, and has been rotated since."""

    def __init__(self, directory: Path, root: Path) -> None:
        self.hook = Hook(root, directory / "run", options=())
        self._trace = directory / "trace"
        self._top, self._first = directory / "log", directory / "first"
        self.file = self._top / "history.jsonl"
        self._top.mkdir()
        self._append(1)
        self._append(AGAIN, use=5)
        self._expect_sums(self._reconcile(), 15)
        self._append(3)
        self.file.with_name("history.jsonl.2.gz").write_bytes(gzip.compress(self.file.read_bytes()))
        self.file.unlink()
        self._append(4)
        self.file.rename(self.file.with_name("history.jsonl.1"))
        self._append(AGAIN)
        self._append(5)
        with self.file.open("a") as file:
            file.write('{"version": 1, "id"')
        self._lose(6)
        shutil.copytree(self._top, self._first)

    @staticmethod
    def _describe(number: int, **use: float) -> str:
        line = {
            "version": 1,
            "id": f"{number:016x}",
            "kind": "pod",
            "key": f"key-{number}",
            "namespace": "shop",
        }
        energy = {"core_energy": use.get("use", USE[number])}
        return json.dumps({**line, "end": "2026-11-17T01:02:03Z", "use": energy, "unknown": []})

    def _append(self, number: int, **use: float) -> None:
        with self.file.open("a") as file:
            file.write(self._describe(number, **use) + "\n")

    def _lose(self, number: int) -> None:
        """A run was saved at a checkpoint of another boot."""
        path = self._top / "sums.json"
        saved = {
            f"{number:016x}": {
                "key": f"key-{number}",
                "line": self._describe(number),
                "processes": [],
            }
        }
        path.write_text(
            json.dumps({**json.loads(path.read_text()), "saved": saved, "boot": "another"})
        )

    def _reconcile(self, *strace: str) -> Outcome:
        wrapper = (
            ["strace", "-q", "-y", "-e", "signal=none", "-o", str(self._trace), *strace]
            if strace
            else []
        )
        return finish(
            replace(self.hook, wrapper=wrapper).open("reconcile", f"--history={self.file}")
        )

    def _set(self) -> None:
        shutil.rmtree(self._top)
        shutil.copytree(self._first, self._top)

    def list_calls(self) -> list[tuple[str, int]]:
        """List the calls of reconcile that are about the history,
        each by its name and which of that name it is.
        """
        self._set()
        self._expect_sums(self._reconcile("-e", "trace=all"), sum(USE.values()))
        counts, calls = Counter[str](), list[tuple[str, int]]()
        for line in self._trace.read_text(errors="replace").splitlines():
            if match := re.match(r"(\w+)\((.*)", line):
                counts[match[1]] += 1
                if str(self._top) in match[2]:
                    calls.append((match[1], counts[match[1]]))
        assert {"rename", "fsync", "write"} <= {name for name, _ in calls}
        return calls

    def kill(self, name: str, nth: int) -> None:
        self._set()
        outcome = self._reconcile("-e", f"inject={name}:signal=KILL:when={nth}")
        # 0: it makes fewer calls by the machine's state.
        assert outcome.status in (-signal.SIGKILL, 0), outcome
        self._expect_sums(self._reconcile(), sum(USE.values()))
        self._append(1)  # once more, as a hook that was killed does
        self._expect_sums(self._reconcile(), sum(USE.values()))
        assert self.file.read_text().count(f'"id": "{6:016x}"') == 1
        assert {path.name for path in self._top.iterdir()} - {
            path.name for path in self._first.iterdir()
        } == set()

    def _expect_sums(self, outcome: Outcome, energy: float) -> None:
        assert (outcome.status, outcome.stderr) == (0, ""), outcome
        sums = json.loads((self._top / "sums.json").read_text())
        assert sums["namespaces"]["shop"]["use"]["core_energy"] == str(energy), sums


@contextmanager
def opened_history() -> Iterator[History]:
    with (
        tempfile.TemporaryDirectory(prefix="faults-", dir=provision.find_scratch()) as name,
        mounted(Path(name), **processes.MACHINE) as resctrl,
    ):
        yield History(Path(name), resctrl.root)
