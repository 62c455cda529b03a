# SPDX-License-Identifier: Apache-2.0
"""Links the ELF file: the launcher, a static CPython, the frozen modules,
and at its end the zip of the sources.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from native import cpython
from pyz import ROOT, BuildError, archive

HERE = Path(__file__).resolve().parent
OUTPUT = Path("dist") / f"resctrl-mon-hook-{platform.machine()}"
# `python3 FILE` and `unzip` find the zip at the end, as that of the .pyz
MAIN = "import sys\n\nfrom hook.__main__ import start\n\nsys.argv[:0] = ['-c']\nstart()\n"

# Functions of glibc that launcher.c has a __wrap_ for
WRAPPED = ("-Wl,--wrap=__tunables_init", "-Wl,--wrap=localtime_r", "-Wl,--wrap=gmtime_r")


def build(
    root: Path = ROOT, output: Path | None = None, *, newest: bool = False, start: str = ""
) -> Path:
    """Write the ELF file for this machine; returns its path. `start`: for tests, what it runs."""
    return build_for(platform.machine(), output or root / OUTPUT, root, newest=newest, start=start)


def build_for(
    name: str, target: Path, root: Path = ROOT, *, newest: bool = False, start: str = ""
) -> Path:
    """Write the ELF file for a kind of machine beside its place and rename
    it there; returns its path.
    """
    machine = cpython.MACHINES.get(name)
    if machine is None:
        raise BuildError(f"cannot build for {name} (known: {', '.join(cpython.MACHINES)})")
    python = cpython.ready(machine, newest=newest)
    own = cpython.ready() if machine.triplet else python  # it compiles the modules
    contents = {
        **archive.read_sources(root),
        **_read_licenses(python),
        "__main__.py": MAIN.encode(),
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".native-", dir=target.parent) as place:
        work = Path(place)
        (work / "program.zip").write_bytes(archive.zipped(contents)[0])
        freeze = [str(own.python), "-ISB", "-X", "no_debug_ranges", str(HERE / "freeze.py")]
        _run([*freeze, "program.zip", str(python.library), ".", *filter(None, [start])], work)
        _run([machine.compiler, *_options(python.directory)], work)
        program = work / "program"
        linked = program.read_bytes()
        from hook.install.install import DIGEST, digest  # noqa: PLC0415  it needs pydantic, which the .pyz is built without

        program.write_bytes(archive.zipped({**contents, DIGEST: digest(linked)}, linked)[0])
        program.chmod(0o755)
        program.replace(target)
    whole = target.read_bytes()
    print(f"{hashlib.sha256(whole).hexdigest()}  {target}  {len(whole)} bytes", flush=True)
    print(f"CPython: {cpython.SOURCE} {python.version}", flush=True)
    return target


def _read_licenses(python: cpython.Interpreter) -> dict[str, bytes]:
    """Return the licenses of what is linked in, and a list of the source packages,
    as entries of the zip.
    """
    return {
        "licenses/sources": f"{cpython.SOURCE} {python.version}\n{python.libraries}".encode(),
        "licenses/CPython": (python.directory / "LICENSE").read_bytes(),
        "licenses/LGPL-2.1": Path("/usr/share/common-licenses/LGPL-2.1").read_bytes(),
    }


def _options(python: Path) -> list[str]:
    """Return what the compiler gets. Another machine's zlib lies beside its CPython."""
    headers = (f"-I{python / name}" for name in ("", "Include", "Include/internal"))
    archives = [str(python / name) for name in ("libpython3.13.a", "libHacl_Hash_SHA2.a")]
    sources = [str(HERE / "launcher.c"), "frozen.c", "frozen.S"]
    linking = ("-static-pie", "-fPIE", "-fno-lto", "-Wl,-z,relro,-z,now", *WRAPPED, "-s")
    strict = ("-O2", "-Wall", "-Wextra", "-Werror")
    return [
        *linking,
        *strict,
        *headers,
        *sources,
        "-o",
        "program",
        *archives,
        f"-L{python}",
        "-lz",
        "-lm",
    ]


def _run(command: Sequence[str], cwd: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildError(f"{command[0]}: {done.stderr.strip()[-2000:]}")
