"""The .pyz as a file: the interpreter that it names, and what it holds for `install` besides the program."""

from __future__ import annotations

import io
import marshal
import zipfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# As in build.py: what the kernel reads of the line that names an interpreter, since Linux 5.1 and before.
_LONGEST_LINE = 255
_LONGEST_OLD_LINE = 127
_FOR_PEOPLE = b"if atexit."  # begins the part of that line which kernels before 5.1 do not see
_BUILD_ID = "bytecode/build-id"
_PROGRAM, _BEGIN = "hook/__init__.py", b'"""resctrl-mon-hook:'


class Shipped:
    """A .pyz. ValueError if it is none."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as file:
            self.data = file.read()
        try:
            with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
                self._entries = {name: archive.read(name) for name in archive.namelist()}
        except zipfile.BadZipFile as error:
            raise ValueError(f"{path} is no .pyz: {error}") from None
        if not self.data.startswith(b"#!/") or not self._entries.get(_PROGRAM, b"").startswith(_BEGIN):
            raise ValueError(f"{path} is no .pyz of resctrl-mon-hook")

    @property
    def python(self) -> str:
        """The interpreter that its first line names."""
        return self._first_line()[2:].partition(b" ")[0].decode("utf-8", "surrogateescape")

    def with_python(self, python: str) -> bytes:
        """Its bytes with another interpreter. ValueError if the kernel would not take that.

        Nothing else changes: neither the zip nor the second line counts from the beginning of the file.
        """
        if not python.startswith("/") or len(python.split()) != 1 or not (python.isprintable() and python.isascii()):
            raise ValueError(f"the kernel takes an absolute path without blanks, not {python!r}")
        line = self._first_line()
        boot, begin, rest = line[line.index(b" ") :].partition(_FOR_PEOPLE)
        changed = (b"#!" + python.encode("ascii") + boot.rstrip(b" ")).ljust(_LONGEST_OLD_LINE) + begin + rest
        if len(changed) > _LONGEST_LINE:
            raise ValueError(f"the first line would have {len(changed)} bytes, and the kernel reads {_LONGEST_LINE}")
        return changed + self.data[len(line) :]

    def needs_new_kernel(self, python: str) -> bool:
        """Whether the first line would be too long for a kernel before Linux 5.1."""
        return self.with_python(python).index(_FOR_PEOPLE) > _LONGEST_OLD_LINE

    def has_bytecode(self, magic: bytes) -> bool:
        """Whether it holds bytecode for a Python whose bytecode has this magic number."""
        after_two_lines = self.data.index(b"\n", len(self._first_line())) + 1
        return magic in marshal.loads(self.data[after_two_lines:])  # noqa: S302  as trusted as the program

    @property
    def build_id(self) -> bytes:
        """What tells its sources from those of another build."""
        return self._entries[_BUILD_ID]

    @property
    def entries(self) -> Mapping[str, bytes]:
        """What the zip holds, by name."""
        return self._entries

    def text(self, name: str) -> str:
        """A file of the repository that is shipped in it."""
        return self._entries[name].decode()

    def _first_line(self) -> bytes:
        return self.data[: self.data.index(b"\n") + 1]


def is_shipped(path: str) -> bool:
    """Whether a file is a .pyz of ours."""
    try:
        Shipped(path)
    except (OSError, ValueError):
        return False
    return True
