# SPDX-License-Identifier: Apache-2.0
"""Files of the history of many nodes, as they come together on one machine,
with the truth about them.

They have what kills, power cuts and shippers leave: torn lines, zeros, lines with one node and id
in any order, of which the one that was written last counts, and lines that are there twice.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hook import formats
from hook.show.snapshot import EVENTS

DAY = 86400
START = 20_759 * DAY  # 2026-11-02
DAYS = 28
NAMESPACES = 40
USERS = 25
MILLION = 1_000_000
TWICE = 500
"""One line in so many is written twice."""
TORN = 1000
"""One line in so many is torn, and whole behind that."""
KEYS_OF_JOBS = 50
EVENTS_THAT_ADD_UP = sorted({*EVENTS} - {"llc_occupancy"})


@dataclass
class Truth:
    """The energy in millionths of a joule, by what bills are made for."""

    by: dict[str, Counter[str]] = field(
        default_factory=lambda: {
            name: Counter() for name in ("namespace", "user", "node", "day", "key")
        }
    )
    lines: int = 0
    size: int = 0

    def add(self, line: dict[str, Any], energy: int) -> None:
        self.by["namespace"][line["namespace"] or ""] += energy
        self.by["user"][line["labels"].get("user", "")] += energy
        self.by["node"][line["node"]] += energy
        self.by["day"][line["end"][:10]] += energy
        if line["kind"] == "job":
            self.by["key"][line["key"]] += energy

    def joules(self, name: str) -> dict[str, float]:
        return {value: energy / MILLION for value, energy in self.by[name].items()}


def write_files(
    directory: Path, nodes: int, lines: int, seed: int, names: Sequence[str] = ("",)
) -> Truth:
    """Write the files of these nodes, with about so many lines in all; `names`:
    how each of a node's files ends.
    """
    truth = Truth()
    for number in range(nodes):
        chance = random.Random(f"{seed} {number}")
        written = list(_make_lines(chance, f"node-{number}", lines // nodes, truth))
        chance.shuffle(written)  # as a shipper may send them
        share = -(-len(written) // len(names))
        for place, name in enumerate(names):
            text = b"".join(written[place * share : (place + 1) * share])
            # What a power cut and a kill leave at the end.
            content = text + b"\0" * 4096 + b"\n" + written[0][:99]
            truth.size += len(content)
            path = directory / f"node-{number}.jsonl{name}"
            path.write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)
    return truth


def _make_lines(chance: random.Random, node: str, count: int, truth: Truth) -> Iterator[bytes]:
    for number in range(count):
        line, energy = _make_line(chance, node, number)
        truth.add(line, energy)
        text = json.dumps(line).encode() + b"\n"
        if number % TORN == 1:
            yield text[: chance.randrange(1, len(text) - 1)] + b"\n"
        if number % TWICE == 2:
            yield _make_earlier(line)
        if number % TWICE == 3:
            yield text
        yield text
        truth.lines += 1


def _make_line(chance: random.Random, node: str, number: int) -> tuple[dict[str, Any], int]:
    is_job = number % 3 == 0
    energy = chance.randrange(1, 10_000 * MILLION)
    seconds = chance.randrange(1, 7200)
    end = START + chance.randrange(DAYS * DAY)
    key = f"job-{number % KEYS_OF_JOBS}" if is_job else str(_uid(chance))
    line = {
        "version": 1,
        "id": f"{number:016x}",  # other nodes have the same ones
        "node": node,
        "written": _write_time(end + 1, chance.randrange(MILLION)),
        "kind": "job" if is_job else "pod",
        "key": key,
        "namespace": None if is_job else f"team-{chance.randrange(NAMESPACES)}",
        "pod": None if is_job else f"web-{number}",
        "labels": {"user": f"user-{chance.randrange(USERS)}"} if is_job else {},
        "containers": [
            {"id": f"{chance.getrandbits(256):064x}", "name": None if is_job else "app"}
        ],
        "more_containers": 0,
        "begin": formats.format_utc(end - seconds),
        "end": formats.format_utc(end),
        "seconds": float(seconds),
        "runs": 1,
        "use": {event: chance.randrange(10**9) / 1000 for event in EVENTS_THAT_ADD_UP}
        | {"core_energy": energy / MILLION},
        "unknown": [],
        "late_cpu_seconds": 0.0,
        "reason": None,
    }
    return line, energy


def _make_earlier(line: dict[str, Any]) -> bytes:
    """A line of the same run that was written before, when less was used."""
    earlier = {**line, "use": {"core_energy": 1.0}, "written": "2026-11-01T00:00:00.000000Z"}
    return json.dumps(earlier).encode() + b"\n"


def _write_time(seconds: int, micros: int) -> str:
    return f"{formats.format_utc(seconds).rstrip('Z')}.{micros:06d}Z"


def _uid(chance: random.Random) -> str:
    text = f"{chance.getrandbits(128):032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
