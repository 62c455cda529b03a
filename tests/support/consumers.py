# SPDX-License-Identifier: Apache-2.0
"""Who reads the view: a consumer that adds up what a key used in its life."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Optional

OVER = ("end", "before", "begin", "known")
Use = dict[str, Optional[Decimal]]
"""By `<domain>/<event>`; None where nobody knows."""


class Inconsistent(Exception):
    """An entry that no state of a key explains."""


@dataclass
class Entry:
    """One key, as its directory shows it: the texts by path; of what is a link,
    what can be read through it.
    """

    texts: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    """Links that lead nowhere."""

    @property
    def completed(self) -> bool:
        return "completed_at" in self.texts

    def counters(self) -> set[str]:
        """`<domain>/<event>`, in several ctrl_groups `<domain>@<ctrl_group>/<event>`."""
        names = {
            name.removeprefix("mon_data/")
            for name in [*self.texts, *self.links]
            if name.startswith("mon_data/")
        }
        return {
            name.rpartition(".")[0] if name.rpartition(".")[2] in OVER else name for name in names
        }

    def check(self) -> None:
        """Raise Inconsistent unless this is a live key, whole, or a completed one, whole."""
        if not self.texts.get("created_at"):
            raise Inconsistent(f"no created_at: {self}")
        tasks = [name for name in self.links if name.partition("@")[0] == "tasks"]
        if self.completed == bool(tasks) or (self.completed and self.texts["tasks"]):
            raise Inconsistent(f"tasks: {self}")
        for counter in self.counters():
            place = f"mon_data/{counter}"
            if f"{place}.begin" not in self.texts:
                raise Inconsistent(f"no begin of {counter}: {self}")
            if (f"{place}.end" in self.texts) != self.completed or (
                place in self.links
            ) == self.completed:
                raise Inconsistent(f"{counter} is live and over, or neither: {self}")

    def use(self) -> Use:
        """before + (end or live) - begin, as docs/consumer-view.md says it."""
        return {
            counter: self._use(f"mon_data/{counter}")
            for counter in self.counters()
            if "occupancy" not in counter
        }

    def _use(self, place: str) -> Decimal | None:
        last, first = (
            self.texts.get(f"{place}.end", self.texts.get(place)),
            self.texts.get(f"{place}.begin"),
        )
        now, begin = _number(last), _number(first)
        if "mon_PERF_PKG_" in place and first == "Unavailable":
            begin = Decimal(0)
            now = begin if last == "Unavailable" else now
        if "/mbm_" in place and first == "Unavailable":
            begin = Decimal(0)
        before = _number(self.texts.get(f"{place}.before", "0"))
        if now is None or begin is None or before is None or now < begin:
            return None
        return before + now - begin


def _number(text: str | None) -> Decimal | None:
    return Decimal(text) if text is not None and re.fullmatch(r"\d+(\.\d+)?", text) else None


def read(place: Path, pause: Callable[[], object] = lambda: None) -> Entry | None:
    """One entry, by the rule of docs/consumer-view.md:
    afterwards its path must lead to the same directory.

    None: it is gone, or was replaced; a consumer reads again.
    `pause` is called before each system call.
    """
    entry = Entry()
    try:
        pause()
        with _opened(place) as top:
            _read_into(entry, top, "", pause)
            pause()
            return entry if os.path.samestat(os.stat(place), os.fstat(top)) else None
    except FileNotFoundError:
        return None


def read_by_path(place: Path, pause: Callable[[], object] = lambda: None) -> Entry | None:
    """The same for consumers that know paths alone."""
    entry = Entry()
    try:
        pause()
        before = place.stat()
        for path in sorted(place.rglob("*")):
            pause()
            name = str(path.relative_to(place))
            if path.is_symlink():
                entry.links[name] = str(path.readlink())
            if not path.is_dir():
                entry.texts[name] = path.read_text().strip()
        pause()
        return entry if os.path.samestat(place.stat(), before) else None
    except OSError:  # ENODEV: a live counter whose group went
        return None


@contextmanager
def _opened(place: str | Path, dir_fd: int | None = None) -> Iterator[int]:
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=dir_fd)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_into(entry: Entry, directory: int, above: str, pause: Callable[[], object]) -> None:
    pause()
    for item in sorted(os.scandir(directory), key=lambda item: item.name):
        name = above + item.name
        pause()
        if item.is_symlink():
            entry.links[name] = os.readlink(item.name, dir_fd=directory)
            with suppress(FileNotFoundError, OSError):
                entry.texts[name] = _text(item.name, directory)
            if name not in entry.texts:
                entry.gone.add(name)
        elif item.is_dir():
            with _opened(item.name, directory) as below:
                _read_into(entry, below, name + "/", pause)
        else:
            entry.texts[name] = _text(item.name, directory)


def _text(name: str, directory: int) -> str:
    with open(os.open(name, os.O_RDONLY, dir_fd=directory), encoding="utf-8") as file:
        return file.read().strip()
