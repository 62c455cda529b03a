# SPDX-License-Identifier: Apache-2.0
"""Finds every CPython that the .pyz promises to run on,
and fetches from Debian those that the machine lacks.

    PYTHONPATH=packaging python3 -m fetch.interpreters [--fetch]     prints what is there, or gets
    what is not

A fetched one lies in the user's cache directory with all the libraries that it needs, its libc too.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fetch import provision
from fetch.apt import Apt, CannotFetch, run

MINORS = tuple((3, minor) for minor in range(9, 15))  # what the .pyz promises
# Where it has to say that it does not run.
TOO_OLD = ((2, 7), *((3, minor) for minor in range(4, 9)))
# Debian never released 3.10 and 3.12.
_SUITES = {(3, 9): "bullseye", (3, 11): "bookworm", (3, 13): "trixie", (3, 14): "sid"}

# Base installations only (a venv is its base once more, with other packages; -S would hide that it
# is one), and no free-threaded or debug builds.
_PROBE = """\
import sys
if sys.version_info < (3, 8):  # the first without an m in its abiflags
    print("%d %d %d" % sys.version_info[:3])
elif sys.implementation.name == "cpython" and sys.prefix == sys.base_prefix and not sys.abiflags:
    print(*sys.version_info[:3])
"""

_WRAPPER = "#!/bin/sh\nexec "
"""How the script begins that starts a fetched one; it ends with `"$@"`."""


class Interpreter(NamedTuple):
    version: tuple[int, int, int]
    path: Path

    @property
    def minor(self) -> tuple[int, int]:
        return self.version[:2]


def find(minors: Sequence[tuple[int, int]] = MINORS) -> list[Interpreter]:
    """One interpreter of each minor version, oldest first. Each was run, so each works."""
    usable: dict[tuple[int, int], Interpreter] = {}
    for directory in directories():
        for minor in minors:
            path = directory / python_name(minor)
            if minor not in usable and os.access(path, os.X_OK) and (interpreter := probe(path)):
                usable.setdefault(interpreter.minor, interpreter)
    return sorted(usable.values())


def oldest_and_newest() -> list[Interpreter]:
    """For what interpreters do not differ in:
    that there is a difference nevertheless would show in one of these.
    """
    usable = find()
    return usable[:: max(1, len(usable) - 1)]


def probe(path: Path) -> Interpreter | None:
    """What this program says that it is; None if it does not start or is not what we look for."""
    try:
        done = subprocess.run(  # -Es: what -I stands for, which 2.7 has not
            [path, "-Es", "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
            cwd="/",
        )
        major, minor, micro = map(int, done.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter((major, minor, micro), path)


def directories() -> Iterator[Path]:
    """Where interpreters lie, in order of preference: what the user would get by name,
    then what is tucked away.
    """
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        # A shim is a script that picks one of the versions below by rules of its own.
        if os.path.isabs(directory) and os.path.basename(directory) != "shims":
            yield Path(directory)
    yield from (Path("/usr/bin"), Path("/usr/local/bin"))
    home = Path(os.environ.get("HOME", "/root"))
    stores = [
        (Path(os.environ.get("PYENV_ROOT") or home / ".pyenv"), "versions/*/bin"),
        (home / ".local/share/uv/python", "*/bin"),
        (Path("/opt"), "*/bin"),
        (Path("/opt"), "*/*/bin"),
        (Path("/opt/hostedtoolcache/Python"), "*/*/bin"),
        (provision.cache("pythons"), "*/usr/bin"),
    ]
    for store, pattern in stores:
        if os.access(store, os.R_OK | os.X_OK):  # another user's may be named in the environment
            yield from sorted(store.glob(pattern), reverse=True)


def start_command(program: Path) -> list[str]:
    """What starts an interpreter, without the shell that starts a fetched one:
    that would be the most of a start.
    """
    with program.open("rb") as file:
        text = file.read(4096)
    if not text.startswith(_WRAPPER.encode()):
        return [str(program)]
    return shlex.split(text.decode()[len(_WRAPPER) :])[:-1]


# --- fetching


def fetch(minor: tuple[int, int]) -> Interpreter:
    """Debian's own build of this version, unpacked in the cache directory."""
    if minor not in _SUITES:
        raise CannotFetch("no Debian suite has it")
    if not all(map(shutil.which, ("apt-get", "dpkg-deb"))):
        raise CannotFetch(
            "it comes from Debian's packages, and there is no apt-get and dpkg-deb here"
        )
    store = provision.cache("pythons")
    store.mkdir(parents=True, exist_ok=True)
    target = store / python_name(minor)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=store) as name:
        work = Path(name)
        apt = Apt(work, _SUITES[minor])
        apt("apt-get", "update")
        apt(
            "apt-get",
            "--yes",
            "--download-only",
            "--no-install-recommends",
            "install",
            python_name(minor),
        )
        tree = work / "tree"
        for package in sorted(work.glob("cache/archives/*.deb")):
            run(["dpkg-deb", "--extract", package, tree])
        _wrap(tree, target, python_name(minor))
        # One that no longer starts, or it would have been found.
        shutil.rmtree(target, ignore_errors=True)
        with suppress(OSError):  # another run was faster: theirs is as good
            tree.rename(target)
    interpreter = probe(target / "usr/bin" / python_name(minor))
    if interpreter is None:
        raise CannotFetch(f"Debian's package was unpacked to {target}, but does not start")
    return interpreter


def python_name(minor: tuple[int, int]) -> str:
    return f"python{minor[0]}.{minor[1]}"


def _wrap(tree: Path, target: Path, name: str) -> None:
    """Puts a script in the interpreter's place that starts it with its own ld.so and
    libraries, in no child's way.
    """
    loader = _loader(tree)
    folders = [path for top in ("lib", "usr/lib") for path in sorted(tree.glob(f"{top}/*-linux-*"))]
    program = tree / "usr/bin" / name
    real = program.rename(program.with_name(name + ".real"))
    # The tree is about to move to its target, so that is what the script names.
    final = {
        path: str(target / path.relative_to(tree)) for path in (loader, program, real, *folders)
    }
    command = [final[loader], "--library-path", ":".join(final[path] for path in folders)]
    # Makes sys.executable this script, where the loader can (glibc 2.33).
    if b"--argv0" in loader.read_bytes():
        command += ["--argv0", final[program]]
    program.write_text(f'{_WRAPPER}{shlex.join([*command, final[real]])} "$@"\n', encoding="utf-8")
    program.chmod(0o755)


def _loader(tree: Path) -> Path:
    # Until glibc 2.34 the loader lies beside a link of the second name
    for pattern in ("ld-[0-9]*.so", "ld-linux*.so.*"):
        for path in sorted(tree.rglob(pattern)):
            if path.is_file() and not path.is_symlink():
                return path
    raise CannotFetch("no dynamic loader among its packages")


def main(arguments: Sequence[str]) -> int:
    """Always 0: a version that cannot be had is reported and fails nothing."""
    usable = find()
    have = {interpreter.minor for interpreter in usable}
    for minor in [minor for minor in MINORS if minor not in have]:
        reason = "not on this machine"
        if "--fetch" in arguments:
            print(f"fetching {python_name(minor)} from Debian", file=sys.stderr, flush=True)
            try:
                usable.append(fetch(minor))
                continue
            except (CannotFetch, OSError) as error:
                reason = f"cannot be had: {error}"
        print(f"{python_name(minor)}: {reason}", file=sys.stderr)
    for interpreter in sorted(usable):
        print(".".join(map(str, interpreter.version)), interpreter.path, sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
