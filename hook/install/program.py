# SPDX-License-Identifier: Apache-2.0
"""The program as a file: the .pyz, or the ELF file that brings its own Python; and the files in it."""

from __future__ import annotations

import hashlib
import io
import zipfile

from hook.node import files

_LIMIT = 64 << 20  # bytes: five times as many as the larger form has
_MARK, _DOCSTRING = "hook/__init__.py", b'"""resctrl-mon-hook:'
DIGEST = "sha256"
"""In the zip of the ELF file: the SHA-256 of what is before the zip."""
# As in packaging/pyz: how much the kernel reads of the first line, since Linux 5.1 and before.
_LONGEST_LINE = 255
_LONGEST_OLD_LINE = 127
_FOR_PEOPLE = b"if atexit."  # begins the part of that line which kernels before 5.1 do not see


class Program:
    """The content of a file of this project. Raises ValueError for any other file, and for one that is damaged."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.data = files.read(path, _LIMIT)
        try:
            with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
                self._entries = {name: archive.read(name) for name in archive.namelist()}
                begin = min((entry.header_offset for entry in archive.infolist()), default=0)
        except zipfile.BadZipFile as error:
            raise ValueError(f"{path} is damaged, or no program of this project: {error}") from None
        if _DOCSTRING not in self._entries.get(_MARK, b""):
            raise ValueError(f"{path} is no program of resctrl-mon-hook")
        if not self.data.startswith(b"#!/") and self._entries.get(DIGEST) != digest(self.data[:begin]):
            raise ValueError(f"{path} is damaged: what is before its zip has another digest than the zip names")

    @property
    def python(self) -> str | None:
        """Return the interpreter in the first line of a .pyz; None for the ELF file."""
        first = self._first_line()
        return first[2:].partition(b" ")[0].decode("utf-8", "surrogateescape") if first else None

    def _first_line(self) -> bytes:
        return self.data[: self.data.index(b"\n") + 1] if self.data.startswith(b"#!") else b""

    def with_python(self, python: str | None) -> bytes:
        """Return its bytes with another interpreter. Raises ValueError for a path that the kernel rejects.

        The rest is unchanged: neither the zip nor the second line has offsets from the start of the file.
        """
        if python == self.python or python is None:
            return self.data
        if self.python is None:
            raise ValueError("this file brings its own Python")
        if not python.startswith("/") or len(python.split()) != 1 or not (python.isprintable() and python.isascii()):
            raise ValueError(f"must be an absolute path without blanks, not {python!r}")
        line = self._first_line()
        boot, begin, rest = line[line.index(b" ") :].partition(_FOR_PEOPLE)
        changed = (b"#!" + python.encode("ascii") + boot.rstrip(b" ")).ljust(_LONGEST_OLD_LINE) + begin + rest
        if len(changed) > _LONGEST_LINE:
            limit = f"and the kernel reads {_LONGEST_LINE}"
            raise ValueError(f"too long: the first line would have {len(changed)} bytes, {limit}")
        return changed + self.data[len(line) :]

    def text(self, name: str) -> str:
        """Return the text of a file of the repository in it."""
        return self._entries[name].decode()


def digest(data: bytes) -> bytes:
    """Return what the zip's entry DIGEST has for this data."""
    return hashlib.sha256(data).hexdigest().encode()
