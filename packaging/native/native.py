# SPDX-License-Identifier: Apache-2.0
"""Links the ELF file: the launcher, a static CPython, the frozen modules, and at its end the zip of the sources."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hook.install.program import DIGEST, digest
from native import cpython
from pyz import ROOT, BuildError, archive
from tests.support.apt import run

HERE = Path(__file__).resolve().parent
OUTPUT = Path("dist") / f"resctrl-mon-hook-{platform.machine()}"
# `python3 FILE` and `unzip` find the zip at the end, as that of the .pyz
MAIN = "import sys\n\nfrom hook.__main__ import start\n\nsys.argv[:0] = ['-c']\nstart()\n"


def build(root: Path = ROOT, output: Path | None = None, *, newest: bool = False, start: str = "") -> Path:
    """Write the ELF file beside its place and rename it there; returns its path. `start`: for tests, what it runs."""
    interpreter = cpython.ready(newest=newest)
    contents = {**archive.read_sources(root), **_read_licenses(interpreter), "__main__.py": MAIN.encode()}
    target = output or root / OUTPUT
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".native-", dir=target.parent) as name:
        work = Path(name)
        (work / "program.zip").write_bytes(archive.zipped(contents)[0])
        freeze: list[str | Path] = [interpreter.python, "-ISB", "-X", "no_debug_ranges", HERE / "freeze.py"]
        _run([*freeze, "program.zip", interpreter.library, ".", *filter(None, [start])], work)
        include: list[str | Path] = [
            f"-I{interpreter.directory / place}" for place in ("", "Include", "Include/internal")
        ]
        sources: list[str | Path] = [HERE / "launcher.c", "frozen.c", "frozen.S"]
        archives = [interpreter.directory / name for name in ("libpython3.13.a", "libHacl_Hash_SHA2.a")]
        options: list[str | Path] = ["-static", "-s", "-O2", "-Wall", "-Wextra", "-Werror"]
        _run(["gcc", *options, *include, *sources, "-o", "program", *archives, "-lz", "-lm"], work)
        program = work / "program"
        linked = program.read_bytes()
        program.write_bytes(archive.zipped({**contents, DIGEST: digest(linked)}, linked)[0])
        program.chmod(0o755)
        program.replace(target)
    whole = target.read_bytes()
    print(f"{hashlib.sha256(whole).hexdigest()}  {target}  {len(whole)} bytes", flush=True)
    print(f"CPython: {cpython.SOURCE} {interpreter.version}", flush=True)
    return target


def _read_licenses(interpreter: cpython.Interpreter) -> dict[str, bytes]:
    """Return the licenses of what is linked in, and a list of the source packages, as entries of the zip."""
    show = ["dpkg-query", "--show", "--showformat=${source:Package} ${source:Version}\n", "libc6-dev", "zlib1g-dev"]
    return {
        "licenses/sources": f"{cpython.SOURCE} {interpreter.version}\n{run(show)}".encode(),
        "licenses/CPython": (interpreter.directory / "LICENSE").read_bytes(),
        "licenses/LGPL-2.1": Path("/usr/share/common-licenses/LGPL-2.1").read_bytes(),
    }


def _run(command: Sequence[str | Path], cwd: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{command[0]}: {done.stderr.strip()[-2000:]}")
