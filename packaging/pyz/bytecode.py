# SPDX-License-Identifier: Apache-2.0
"""Bytecode of the program for the .pyz, by each CPython at hand; hook/install/bytecode.py explains it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping

from hook.install import bytecode
from hook.install.bytecode import Bytecode
from pyz import ROOT, BuildError

MINORS = range(9, 15)  # of the CPythons 3.x that the file is made for


def compile_all(contents: Mapping[str, bytes], interpreters: Iterable[str]) -> list[Bytecode]:
    """The bytecode that the interpreters make of what the zip holds; of two of one version the first counts."""
    found: dict[str, Bytecode] = {}
    with tempfile.NamedTemporaryFile(suffix=".zip") as program:
        with zipfile.ZipFile(program, "w") as file:
            for name, content in contents.items():
                file.writestr(name, content)
        program.flush()
        for interpreter in interpreters:
            command = bytecode.make_command(interpreter, str(ROOT), program.name)
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
            except (OSError, subprocess.SubprocessError) as error:
                why = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
                raise BuildError(f"{interpreter} cannot compile: {why}") from error
            compiled = bytecode.parse_answer(done.stdout)
            found.setdefault(compiled.tag, compiled)
    return sorted(found.values(), key=lambda compiled: compiled.version)


def find_interpreters() -> list[str]:
    """The interpreters that a plain build compiles by."""
    named = [shutil.which(f"python3.{minor}", path=f"{os.environ.get('PATH', '')}:/usr/bin") for minor in MINORS]
    return [path for path in named if path and _works(path)] + [sys.executable]


def _works(path: str) -> bool:
    """Whether it starts at all: what PATH offers may be a shim for a version that is not there."""
    try:
        return subprocess.run([path, "-ISc", ""], capture_output=True, check=False, timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False
