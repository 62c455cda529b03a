# SPDX-License-Identifier: Apache-2.0
"""Compiles the program for the .pyz by each CPython found; hook/install/bytecode.py describes the result."""

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
    """Compile the zip's content by each interpreter; of two interpreters of one version the first counts."""
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
    """Return the interpreters of a build without --bytecode: python3.9 to 3.14 on PATH and in /usr/bin, and ours."""
    named = [shutil.which(f"python3.{minor}", path=f"{os.environ.get('PATH', '')}:/usr/bin") for minor in MINORS]
    return [path for path in named if path and _works(path)] + [sys.executable]


def _works(path: str) -> bool:
    """Return whether an interpreter starts: a name on PATH may be a shim for a version that is not installed."""
    try:
        return subprocess.run([path, "-ISc", ""], capture_output=True, check=False, timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False
