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

    def text(self, name: str) -> str:
        """Return the text of a file of the repository in it."""
        return self._entries[name].decode()


def digest(data: bytes) -> bytes:
    """Return what the zip's entry DIGEST has for this data."""
    return hashlib.sha256(data).hexdigest().encode()
