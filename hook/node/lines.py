# SPDX-License-Identifier: Apache-2.0
"""Reads the lines of the history (docs/design.md), and finds its files.

A crash can tear a line, and a disk can damage one. The file is root's,
but the names in it are texts of tenants.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from hashlib import sha256
from itertools import product
from operator import add
from typing import IO, Any, Union

from hook.names import is_container_id
from hook.node import files, models

LINE = 256 << 10
"""Bytes of a line, at most: four times as many as a hook writes."""
_HEAD = b'{"version": 1'
_BEGIN = re.compile(rb'(\{"version": ?\d)')
"""How a line begins.

Nothing in one has these bytes: JSON escapes the quotes of texts,
and the value of a label that is called `version` is a text.
"""
_NAMES = (
    "version",
    "id",
    "node",
    "written",
    "kind",
    "key",
    "namespace",
    "pod",
    "labels",
    "containers",
    "more_containers",
    "begin",
    "end",
    "seconds",
    "runs",
    "use",
    "unknown",
    "late_cpu_seconds",
    "reason",
)
_OR_NONE = (str, type(None))
_SHAPES = {
    *product(
        *(
            (int,),
            (str,),
            (str,),
            (str,),
            (str,),
            (str,),
            _OR_NONE,
            _OR_NONE,
            (dict,),
            (list,),
            (int,),
        ),
        *(_OR_NONE, (str,), (float, type(None)), (int,), (dict,), (list,), (float,), _OR_NONE),
    )
}
"""The names and the types of the values in a line as hooks write it."""
_TEXT, _FLOAT = {str}, {float}
_MANY, _MOST_USE = 1e9, 1e24
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
BUFFER = 256 << 10
_PACKED = ".gz"
_COMPRESSED = {
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\x04\x22\x4d\x18": "lz4",
}
"""How the files of programs begin that the standard library of some Python cannot read."""
_ROTATED = re.compile(r"(.+)\.(\d{1,9})(?:\.gz)?")
"""The name of a rotated file: that of the file, and a number. The oldest has the largest one."""
_END = ".jsonl"
"""How the names of the histories in a directory end."""
_MOST_FILES = 1_000_000
"""Files in a directory, at most: a year of 10,000 nodes has a seventh of that."""


Stream = Union[IO[bytes], gzip.GzipFile]
Job = dict[str, Any]
"""The fields of a line, with all that models.Job has, and nothing else."""


def read_lines(stream: Stream) -> Iterator[bytes]:
    """Read lines; of one that is much longer than LINE, its end."""
    rest = b""
    while piece := stream.readline(LINE):
        rest = (rest + piece)[-2 * LINE :]
        if piece.endswith(b"\n"):
            yield rest
            rest = b""
    yield rest


def is_complete(line: bytes, *, is_packed: bool) -> bool:
    """Return whether nothing more comes to a line: it ends, or its file is compressed."""
    return line.endswith(b"\n") or (is_packed and bool(line))


def hash_head(stream: Stream, *, is_packed: bool) -> str | None:
    """Hash the first line that is not blank: a file is known by it, whatever its name and form.

    Return None if there is no such line yet, or if more of it may come.
    """
    head = next(filter(bytes.strip, iter(partial(stream.readline, LINE), b"")), b"")
    if not is_complete(head, is_packed=is_packed) and len(head) < LINE:
        return None
    return sha256(head).hexdigest()[:32]


def split_line(line: bytes) -> list[bytes]:
    """Split a line into its parts, since a torn line may be glued to a whole one.

    What is before the first is b"".
    """
    if line.startswith(_HEAD) and line.find(_HEAD[:-2], 1) < 0:  # the usual line
        return [line]
    before, *parts = _BEGIN.split(line)
    return [*([b""] if before.strip() else []), *map(add, parts[::2], parts[1::2])]


def parse(part: bytes) -> Job | None:
    """Parse a job; None is for what is none."""
    text = part.strip(b"\0 \t\r\n")
    try:
        fields = json.loads(text.decode())
        job = fields if is_usual(fields) else models.Job.model_validate(fields).model_dump()
    except (ValueError, RecursionError):
        return None
    return job if _TIME.fullmatch(job["end"]) else None


def is_usual(fields: object) -> bool:
    """Return whether the model accepts these fields, and leaves them as they are:
    it takes longer to say the same.

    False means only that the model has to say it. All that hooks write is usual.
    """
    if (
        type(fields) is not dict
        or (*fields,) != _NAMES
        or (*map(type, fields.values()),) not in _SHAPES
    ):
        return False
    labels, use, containers, seconds = (
        fields["labels"],
        fields["use"].values(),
        fields["containers"],
        fields["seconds"],
    )
    return (
        fields["version"] == 1
        and is_container_id(fields["key"])
        and 0 <= fields["more_containers"] < _MANY
        and 0 <= fields["runs"] < _MANY
        and (seconds is None or 0 <= seconds < _MANY)
        and 0 <= fields["late_cpu_seconds"] < _MANY
        and (not labels or _TEXT.issuperset(map(type, labels.values())))
        and (not fields["unknown"] or _TEXT.issuperset(map(type, fields["unknown"])))
        # And not NaN.
        and (
            not use
            or (_FLOAT.issuperset(map(type, use)) and min(use) >= 0 and sum(use) <= _MOST_USE)
        )
        and all(map(_is_usual_container, containers))
    )


def _is_usual_container(container: object) -> bool:
    if type(container) is not dict or (*container,) != ("id", "name"):
        return False
    return type(container["id"]) is str and (
        container["name"] is None or type(container["name"]) is str
    )


@contextmanager
def opened(path: str) -> Iterator[tuple[Stream, int, bool]]:
    """Open a file of the history; yield its content, unpacked, its descriptor,
    and whether it is compressed.

    Raises Unreadable, and while it is read OSError, EOFError or zlib.error.
    """
    with files.opened(path) as descriptor, unpacked(path, descriptor) as (stream, is_packed):
        yield stream, descriptor, is_packed


@contextmanager
def unpacked(path: str, descriptor: int, buffer: int = BUFFER) -> Iterator[tuple[Stream, bool]]:
    """Yield the content of an open file from its begin, unpacked, and whether it is compressed.

    Raises Unreadable.
    """
    with os.fdopen(descriptor, "rb", buffer, closefd=False) as stream:
        stream.seek(0)
        head = stream.read(6)
        stream.seek(0)
        for magic, program in _COMPRESSED.items():
            if head.startswith(magic):
                raise files.Unreadable(path, f"compressed by {program}; only gzip can be read")
        if not head and path.endswith(_PACKED):
            raise files.Unreadable(path, "empty, and no file of gzip")
        is_packed = head.startswith(b"\x1f\x8b")
        yield gzip.GzipFile(fileobj=stream) if is_packed else stream, is_packed


Files = dict[str, os.stat_result]
"""The files of a history with their status, the oldest first."""


def list_files(path: str) -> Files:
    """List the file of the history and its rotated ones.

    Raises Unreadable if the directory cannot be read.
    """
    directory, name = os.path.split(path)
    return _group(directory, [name], files.list_if_there(directory or "."))[path]


def list_histories(places: Iterable[str]) -> dict[str, Files]:
    """List the histories in some places, each with its files.

    A place is a file that hooks write, a directory, for all `*.jsonl` in it, or a pattern
    of such files and directories. One without any file has an entry of its own, without
    files. Raises Unreadable.
    """
    list_names = lru_cache(maxsize=None)(
        lambda directory: files.list_if_there(directory or ".", _MOST_FILES)
    )
    chosen: dict[str, set[str]] = {}
    empty: dict[str, Files] = {}
    for place in places:
        found = [place] if os.path.lexists(place) else files.match(place, _MOST_FILES)
        is_found = found != [place]
        histories = 0
        for path in found:
            directory, name = os.path.split(path)
            if os.path.isdir(path):
                directory, names = os.path.normpath(path), {*map(_find_history, list_names(path))}
            else:
                names = {_find_history(name) if is_found else name}
            names.discard("")
            chosen.setdefault(directory, set()).update(names)
            histories += len(names)
        if not histories:
            empty[place] = {}
    listed: dict[str, Files] = {}
    for directory, names_of in chosen.items():
        rotated = {
            name
            for name in names_of
            if (match := _ROTATED.fullmatch(name)) and match[1] in names_of
        }
        listed |= _group(directory, sorted(names_of - rotated), list_names(directory))
    return {**listed, **empty}


def _find_history(name: str) -> str:
    """Return the name of the history whose file, which was found and not named, has this name;
    empty if it is none.
    """
    rotated = _ROTATED.fullmatch(name)
    history = rotated[1] if rotated else name
    return history if history.endswith(_END) and not history.startswith(".") else ""


def _group(directory: str, names: Iterable[str], entries: Iterable[str]) -> dict[str, Files]:
    """Group the entries of a directory by the histories with these names."""
    numbers: dict[str, list[tuple[int, str]]] = {name: [] for name in names}
    for entry in entries:
        rotated = _ROTATED.fullmatch(entry)
        if entry in numbers:
            numbers[entry].append((0, entry))
        elif rotated and rotated[1] in numbers:
            numbers[rotated[1]].append((-int(rotated[2]), entry))
    grouped: dict[str, Files] = {}
    for name, entries_of in numbers.items():
        listed = grouped[os.path.join(directory, name)] = {}
        for _, entry in sorted(entries_of):
            file = os.path.join(directory, entry)
            with suppress(OSError):  # it was renamed since
                listed[file] = os.stat(file)
    return grouped
