# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus, and samples for it with the labels that it gives to those of a target."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.support import newest
from tests.support.debian import CannotMake

DEADLINE = 300
TARGET = {
    "namespace": "monitoring",
    "pod": "resctrl-mon-hook-x7k2p",
    "container": "metrics",
    "endpoint": "metrics",
    "job": "monitoring/resctrl-mon-hook",
}
"""What Prometheus Operator gives to the target of a PodMonitor; and each has its own `instance`."""
Labels = dict[str, str]


@cache
def program(name: str) -> str | None:
    """`prometheus` or `promtool` of Debian's newest suite (3.x) if its root is there,
    or else this machine's; None.
    """
    root = newest.find()
    path = None if root is None else root / "usr/bin" / name
    return str(path) if path is not None and _runs(path) else shutil.which(name)


def provide() -> None:
    """Make the root of Debian's newest suite if it can be made and is not there."""
    with suppress(CannotMake):
        newest.ready()
    program.cache_clear()


def _runs(path: Path) -> bool:
    """Whether a program of that root runs outside of it, which needs a libc that is new enough."""
    try:
        return (
            subprocess.run(
                [path, "--version"], capture_output=True, check=False, timeout=DEADLINE
            ).returncode
            == 0
        )
    except OSError:
        return False


def version() -> tuple[int, ...]:
    """The version of `program("prometheus")`."""
    words = [str(program("prometheus")), "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=DEADLINE)
    match = re.search(r"version (\d+)\.(\d+)", done.stdout + done.stderr)
    assert match is not None, done.stdout + done.stderr
    return int(match[1]), int(match[2])


def missing() -> str | None:
    """Why there is no Prometheus; None if there is one."""
    absent = [name for name in ("prometheus", "promtool") if program(name) is None]
    return f"no {', '.join(absent)} (Debian: prometheus)" if absent else None


def attach(labels: Labels, target: Labels) -> Labels:
    """The labels of a series once it is scraped without honor_labels,
    as Prometheus does that (mutateSampleLabels).
    """
    clashing = {
        f"exported_{name}": text for name, text in labels.items() if name in target and text
    }
    return {name: text for name, text in {**labels, **clashing, **target}.items() if text}


def write_open_metrics(path: Path, samples: list[tuple[str, Labels, float, int]]) -> None:
    """Write samples with their Unix times, for promtool. Those of a series are together."""
    lines: dict[str, list[str]] = {}
    for name, labels, value, at in samples:
        inside = ",".join(f"{label}={json.dumps(text)}" for label, text in sorted(labels.items()))
        series = f"{name}{{{inside}}}"
        lines.setdefault(series, []).append(f"{series} {value!r} {at}\n")
    text = "".join(line for series in sorted(lines) for line in lines[series])
    path.write_text(text + "# EOF\n", encoding="utf-8")


def backfill(directory: Path, samples: list[tuple[str, Labels, float, int]]) -> Path:
    """A database with these samples."""
    text, data = directory / "samples.txt", directory / "data"
    write_open_metrics(text, samples)
    done = subprocess.run(
        [str(program("promtool")), "tsdb", "create-blocks-from", "openmetrics", text, data],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return data


class Prometheus:
    """A server; `url` is its address."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(
        self, expression: str, at: float | None = None
    ) -> dict[frozenset[tuple[str, str]], float]:
        """The value of each series at a time, or now, by its labels."""
        time = {} if at is None else {"time": at}
        result = self._get("query", query=expression, **time)["result"]
        return {_without_name(series["metric"]): float(series["value"][1]) for series in result}

    def find_last_scrape(self, selector: str) -> float:
        """The newest time at which each of these series had a sample:
        a scrape that failed since does not count.
        """
        return min(
            float(series["values"][-1][0])
            for series in self._get("query", query=f"{selector}[1h]")["result"]
        )

    def ask_range(
        self, expression: str, start: int, end: int, step: int
    ) -> dict[frozenset[tuple[str, str]], dict[int, float]]:
        """The values of each series by time."""
        result = self._get("query_range", query=expression, start=start, end=end, step=step)[
            "result"
        ]
        return {
            _without_name(series["metric"]): {int(at): float(text) for at, text in series["values"]}
            for series in result
        }

    def list_series(self, selector: str) -> list[Labels]:
        """The labels of each series that was ever scraped."""
        series: list[Labels] = self._get("series", **{"match[]": selector})
        return series

    def _get(self, what: str, **query: object) -> Any:  # noqa: ANN401  JSON
        with urlopen(f"{self.url}/api/v1/{what}?{urlencode(query)}", timeout=DEADLINE) as answer:  # noqa: S310  our own
            return json.load(answer)["data"]


def _without_name(metric: Labels) -> frozenset[tuple[str, str]]:
    return frozenset((name, text) for name, text in metric.items() if name != "__name__")


@contextmanager
def serving(
    directory: Path,
    data: Path,
    lookback: str = "5m",
    config: str = "{}",
    options: Sequence[str] = (),
) -> Iterator[Prometheus]:
    """Run a Prometheus on a database. `lookback`: for how long a sample counts."""
    (directory / "prometheus.yml").write_text(config, encoding="utf-8")
    command = [
        str(program("prometheus")),
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=50y",
        "--web.listen-address=127.0.0.1:0",
        f"--query.lookback-delta={lookback}",
        *options,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Prometheus(f"http://{read_address(process)}")
        finally:
            process.kill()


def read_address(process: subprocess.Popen[str]) -> str:
    """The address that it says it listens on, once it is ready. It says the two in any order."""
    log = ""
    assert process.stderr is not None
    end = threading.Timer(DEADLINE, process.kill)
    end.start()
    try:
        for line in process.stderr:
            log += line
            address = re.search(r'msg="Listening on".* address=(\S+)', log)
            if address and "Server is ready to receive web requests" in log:
                return address[1]
    finally:
        end.cancel()
    raise AssertionError(log)
