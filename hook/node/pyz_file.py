# SPDX-License-Identifier: Apache-2.0
"""The .pyz as a file: its interpreter, and the files in it that `install` copies."""

from __future__ import annotations

import io
import marshal
import zipfile

from hook.node import door

# As in packaging/pyz: how much the kernel reads of the first line, since Linux 5.1 and before.
_LONGEST_LINE = 255
_LONGEST_OLD_LINE = 127
_LIMIT = 64 << 20  # bytes: twenty times as many as it has
_FOR_PEOPLE = b"if atexit."  # begins the part of that line which kernels before 5.1 do not see
_BUILD_ID = "bytecode/build-id"
_PROGRAM, _DOCSTRING = "hook/__init__.py", b'"""resctrl-mon-hook:'


class PyzFile:
    """A .pyz. Raises ValueError for any other file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.data = door.read(path, _LIMIT)
        try:
            with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
                self._entries = {name: archive.read(name) for name in archive.namelist()}
        except zipfile.BadZipFile as error:
            raise ValueError(f"{path} is not a .pyz: {error}") from None
        if not self.data.startswith(b"#!/") or _DOCSTRING not in self._entries.get(_PROGRAM, b""):
            raise ValueError(f"{path} is not a .pyz of resctrl-mon-hook")

    @property
    def python(self) -> str:
        """The interpreter in its first line."""
        return self._read_first_line()[2:].partition(b" ")[0].decode("utf-8", "surrogateescape")

    def with_python(self, python: str) -> bytes:
        """Its bytes with another interpreter. Raises ValueError for a path that the kernel rejects.

        The rest is unchanged: neither the zip nor the second line has offsets from the start of the file.
        """
        if not python.startswith("/") or len(python.split()) != 1 or not (python.isprintable() and python.isascii()):
            raise ValueError(f"must be an absolute path without blanks, not {python!r}")
        line = self._read_first_line()
        boot, begin, rest = line[line.index(b" ") :].partition(_FOR_PEOPLE)
        changed = (b"#!" + python.encode("ascii") + boot.rstrip(b" ")).ljust(_LONGEST_OLD_LINE) + begin + rest
        if len(changed) > _LONGEST_LINE:
            raise ValueError(
                f"too long: the first line would have {len(changed)} bytes, and the kernel reads {_LONGEST_LINE}"
            )
        return changed + self.data[len(line) :]

    def needs_new_kernel(self, python: str) -> bool:
        """Whether the first line is too long for kernels before Linux 5.1."""
        return self.with_python(python).index(_FOR_PEOPLE) > _LONGEST_OLD_LINE

    def has_bytecode(self, magic: bytes) -> bool:
        """Whether it has bytecode for a Python (`magic`: what that begins with, importlib.util.MAGIC_NUMBER)."""
        end_of_second_line = self.data.index(b"\n", len(self._read_first_line()))
        return magic in marshal.loads(self.data[end_of_second_line + 1 :])  # noqa: S302  as trusted as the program

    @property
    def build_id(self) -> bytes:
        """The digest of its sources."""
        return self._entries[_BUILD_ID]

    def text(self, name: str) -> str:
        """The text of a file of the repository in it."""
        return self._entries[name].decode()

    def _read_first_line(self) -> bytes:
        return self.data[: self.data.index(b"\n") + 1]


def is_pyz(path: str) -> bool:
    """Whether a file is a .pyz of resctrl-mon-hook."""
    try:
        PyzFile(path)
    except (OSError, ValueError):
        return False
    return True
