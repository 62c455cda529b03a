#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the packages of the ELF file: `python3 build.py package` starts this.

  python3 packaging/package.py FILE [--output DIR] [--check] [deb] [rpm]

Without a kind it makes both. A .deb takes dpkg-deb, and an RPM rpmbuild (in Debian's package rpm).
--check: lintian and rpmlint have to accept them. Version and architecture are those of the file.
The same file gives the same bytes wherever and whenever it is packed by the same tools; times are
$SOURCE_DATE_EPOCH, or that of the last commit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pyz import ROOT, SCHEMA, BuildError

HERE = Path(__file__).resolve().parent
NAME = "resctrl-mon-hook"
# Of a domain without an owner (RFC 2606): who distributes the packages is not known here
MAINTAINER = f"{NAME} maintainers <maintainers@{NAME}.invalid>"
PROVE = HERE / "prove.sh"  # what the scripts of both do first
PROGRAM = f"usr/libexec/oci/hooks.d/{NAME}.pyz"
# Where the packages have the program, its digest, and the hooks.d files.
SHIPPED = f"usr/lib/{NAME}"
HOOKS_D = "usr/share/containers/oci/hooks.d"
# The names of an architecture in an ELF header (e_machine), for dpkg and for rpm
ARCHITECTURES = {62: ("amd64", "x86_64"), 183: ("arm64", "aarch64")}
NO_COMMIT = 315532800  # 1980-01-01, as in the .pyz


class Source(NamedTuple):
    """The ELF file to pack. `epoch`: Unix time (s) of all files in a package."""

    program: Path
    version: str
    epoch: int
    for_dpkg: str  # the architecture
    for_rpm: str

    def read(self, name: str) -> str:
        """Return the text of a file in its zip."""
        with zipfile.ZipFile(self.program) as file:
            return file.read(name).decode()

    def date(self, form: str) -> str:
        return time.strftime(form, time.gmtime(self.epoch))


def source(program: Path) -> Source:
    with program.open("rb") as file:
        head = file.read(20)
    architecture = ARCHITECTURES.get(int.from_bytes(head[18:20], "little"))
    if not head.startswith(b"\x7fELF") or architecture is None:
        raise BuildError(
            f"{program} is no ELF file for "
            f"{' or '.join(name for _, name in ARCHITECTURES.values())}"
        )
    words = _run([sys.executable, program, "--version"]).split()
    if len(words) != 2 or words[0] != NAME:
        raise BuildError(f"{program} --version prints {' '.join(words)!r}")
    return Source(program, words[1], find_epoch(), *architecture)


def find_epoch() -> int:
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    try:
        return int(
            _run(["git", "-C", ROOT, "-c", f"safe.directory={ROOT}", "log", "-1", "--format=%ct"])
        )
    except BuildError:
        return NO_COMMIT


# --- The files of both packages


def stage(what: Source, tree: Path, owner: str, zsh: str) -> None:
    """Make a tree with the files of both packages.

    `zsh`: the directory of its completions in that distribution.

    The program is not at its path there: dpkg and rpm would unlink that. The scripts put
    it into its place, and last the hooks.d files: without a script nothing makes a
    container need the program.
    """
    _run([sys.executable, what.program, "install", f"--destdir={tree}", "--for=both"])
    (tree / SHIPPED).mkdir()
    shipped = (tree / PROGRAM).rename(tree / SHIPPED / NAME)
    digest = hashlib.sha256(shipped.read_bytes()).hexdigest()
    # The scripts check the copy.
    _write(tree / SHIPPED / "sha256", f"{digest}  /{PROGRAM}.new\n".encode())
    for path in [*(tree / HOOKS_D).iterdir()]:
        path.rename(tree / SHIPPED / path.name)
    # `install`, `doctor` and the chart read the owner of the program from this file
    _write(tree / f"usr/libexec/oci/hooks.d/{NAME}.owner", f"{owner}\n".encode())
    # For the administrator's textfile.conf and metrics.conf.
    (tree / "etc" / NAME).mkdir(parents=True)
    _write(
        tree / f"usr/share/man/man8/{NAME}.8.gz",
        compress((HERE / "man" / f"{NAME}.8").read_bytes()),
    )
    _write(tree / f"usr/share/doc/{NAME}/history.schema.json", (ROOT / SCHEMA).read_bytes())
    completions = {
        "bash": f"bash-completion/completions/{NAME}",
        "zsh": f"zsh/{zsh}/_{NAME}",
        "fish": f"fish/vendor_completions.d/{NAME}.fish",
    }
    for shell, place in completions.items():
        _write(
            tree / "usr/share" / place,
            _run([sys.executable, what.program, "completion", shell]).encode(),
        )


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)


def compress(content: bytes) -> bytes:
    return subprocess.run(["gzip", "-9n"], input=content, capture_output=True, check=True).stdout


def _copyright(what: Source) -> str:
    """All licenses, and the source packages of what is linked in, in Debian's format."""
    license_text = "\n".join(
        f" {line.strip() or '.'}" for line in what.read("licenses/CPython").splitlines()
    )
    sources = "\n".join(f"  * {line}" for line in what.read("licenses/sources").splitlines())
    text = (HERE / "copyright").read_text(encoding="utf-8")
    values = {"SOURCES": sources, "VERSION": what.version, "CPYTHON": license_text}
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _changes(version: str) -> list[str]:
    """The bullet points of a version in CHANGELOG.md."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(rf"^## {re.escape(version)}\b.*\n([^#]*)", text, re.MULTILINE)
    points = re.findall(r"^\* (.*(?:\n  .*)*)", section[1], re.MULTILINE) if section else []
    return [" ".join(point.split()) for point in points] or [f"Version {version}."]


def _wrapped(point: str, first: str, other: str) -> str:
    return (
        textwrap.fill(
            point, 79, initial_indent=first, subsequent_indent=other, break_on_hyphens=False
        )
        + "\n"
    )


def _filled(template: Path, **values: object) -> str:
    """Fill in a template: drop its comments, and replace its @NAMES@."""
    lines = template.read_text(encoding="utf-8").splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("#"))
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text


# --- The .deb


def deb(what: Source, work: Path) -> Path:
    """Make a binary package (deb(5)) from our files and control files,
    by dpkg-deb alone, without debhelper.
    """
    tree = work / "deb"
    stage(what, tree, "deb", "vendor-completions")
    shutil.rmtree(tree / "var")  # postinst makes it, for root alone
    shutil.rmtree(tree / "usr/share/containers")  # the same
    documents = tree / "usr/share/doc" / NAME
    _write(documents / "copyright", _copyright(what).encode())
    _write(documents / "changelog.gz", compress(_changelog(what).encode()))
    files = {str(path.relative_to(tree)): path for path in sorted(tree.rglob("*"))}
    sums = [
        f"{_md5(path)}  {name}\n"
        for name, path in files.items()
        if path.is_file() and not path.is_symlink()
    ]
    size = sum(-(-path.lstat().st_size // 1024) if path.is_file() else 1 for path in files.values())
    built = [line.split() for line in what.read("licenses/sources").splitlines()]
    values = {
        "VERSION": what.version,
        "ARCHITECTURE": what.for_dpkg,
        "MAINTAINER": MAINTAINER,
        "SIZE": size,
        "SOURCES": ", ".join(f"{name} (= {version})" for name, version in built),
    }
    _write(tree / "DEBIAN/control", _filled(HERE / "deb" / "control", **values).encode())
    _write(tree / "DEBIAN/md5sums", "".join(sums).encode())
    prove = PROVE.read_text(encoding="utf-8")
    for script in ("preinst", "postinst", "prerm", "postrm"):
        text = (HERE / "deb" / script).read_text(encoding="utf-8").replace("@PROVE@\n", prove)
        _write(tree / "DEBIAN" / script, text.encode(), 0o755)
    out = work / f"{NAME}_{what.version}_{what.for_dpkg}.deb"
    # One thread: else xz would cut its blocks by the number of cores
    environment = {"SOURCE_DATE_EPOCH": str(what.epoch), "DPKG_DEB_THREADS_MAX": "1"}
    _run(["dpkg-deb", "--root-owner-group", "-Zxz", "--build", tree, out], **environment)
    return out


def _changelog(what: Source) -> str:
    points = "".join(_wrapped(point, "  * ", "    ") for point in _changes(what.version))
    return (
        f"{NAME} ({what.version}) unstable; urgency=medium\n\n{points}\n"
        f" -- {MAINTAINER}  {what.date('%a, %d %b %Y %H:%M:%S +0000')}\n"
    )


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


# --- The RPM


def rpm(what: Source, work: Path) -> Path:
    """Make a binary package by rpmbuild from our spec, the same on each distribution."""
    tree, top = work / "staged", work / "rpmbuild"
    stage(what, tree, "rpm", "site-functions")
    _write(
        tree / "usr/lib/systemd/system-preset" / f"80-{NAME}.preset",
        (HERE / "rpm" / "preset").read_bytes(),
    )
    licenses = tree / "usr/share/licenses" / NAME
    _write(licenses / "LICENSE", (ROOT / "LICENSE").read_bytes())
    _write(licenses / "LGPL-2.1", what.read("licenses/LGPL-2.1").encode())
    _write(licenses / "copyright", _copyright(what).encode())
    changes = "".join(_wrapped(point, "- ", "  ") for point in _changes(what.version))
    _write(work / "changes", changes.replace("%", "%%").encode())
    macros = {
        "_topdir": top,
        "staged": tree,
        "program_version": what.version,
        "maintainer": MAINTAINER,
        "changes": work / "changes",
        "prove": PROVE,
        "changelog_date": what.date("%a %b %d %Y"),
        # No values of this machine
        "_buildhost": "localhost",
        "use_source_date_epoch_as_buildtime": 1,
        "clamp_mtime_to_source_date_epoch": 1,
        "_binary_payload": "w6.xzdio",
        "_build_id_links": "none",
        "__os_install_post": "%{nil}",
        "vendor": "%{nil}",
        "distribution": "%{nil}",
    }
    defines = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
    spec = HERE / "rpm" / f"{NAME}.spec"
    _run(
        ["rpmbuild", "-bb", f"--target={what.for_rpm}", *defines, spec],
        SOURCE_DATE_EPOCH=str(what.epoch),
    )
    (found,) = top.glob(f"RPMS/{what.for_rpm}/*.rpm")
    return found


# --- All of it


class Kind(NamedTuple):
    make: Callable[[Source, Path], Path]
    maker: str
    linter: tuple[str | Path, ...]


KINDS = {
    "deb": Kind(
        deb,
        "dpkg-deb",
        (
            "lintian",
            "--fail-on=error,warning,info,pedantic",
            "--display-info",
            "--pedantic",
            "--allow-root",
            # watch and view are optional, and another init can start it by hand as well
            "--suppress-tags=package-supports-alternative-init-but-no-init.d-script",
            # Of the program's path, for as long as dpkg unpacks: see preinst
            "--suppress-tags=package-uses-local-diversion",
            # One static file is what is wanted. Texts and sections are those of CPython and glibc
            "--suppress-tags=statically-linked-binary,embedded-library",
            # A static PIE has the form of a shared library, and needs no other one
            "--suppress-tags=shared-library-lacks-prerequisites",
            "--suppress-tags=spelling-error-in-binary,binary-has-unneeded-section",
        ),
    ),
    "rpm": Kind(
        rpm, "rpmbuild", ("rpmlint", "--strict", f"--config={HERE / 'rpm' / 'rpmlint.toml'}")
    ),
}


def package(program: Path, output: Path, kinds: Iterable[str], *, check: bool) -> list[Path]:
    """Make the packages and rename them into place; returns their paths.

    `check`: only if the linters accept them.
    """
    what = source(program)
    output.mkdir(parents=True, exist_ok=True)
    made = []
    for kind in kinds:
        if shutil.which(KINDS[kind].maker) is None:
            raise BuildError(f"{kind}: there is no {KINDS[kind].maker} here")
        with tempfile.TemporaryDirectory(prefix=".package-", dir=output) as work:
            file = KINDS[kind].make(what, Path(work))
            if check:
                _lint(KINDS[kind].linter, file)
            made.append(file.replace(output / file.name))
        data = made[-1].read_bytes()
        print(f"{hashlib.sha256(data).hexdigest()}  {made[-1]}  {len(data)} bytes", flush=True)
    return made


def _lint(linter: Sequence[str | Path], file: Path) -> None:
    if shutil.which(str(linter[0])) is None:
        raise BuildError(f"{file.name} cannot be checked: {linter[0]} is not installed")
    done = subprocess.run([*linter, file], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{linter[0]} does not accept {file.name}:\n{done.stdout}{done.stderr}")


def _run(command: Sequence[str | Path], **environment: str) -> str:
    settings: Mapping[str, str] = {**os.environ, "LC_ALL": "C", "TZ": "UTC", **environment}
    try:
        done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise BuildError(f"{command[0]}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="what `python3 build.py native` makes")
    parser.add_argument("kinds", nargs="*", metavar="deb|rpm", help="(default: both)")
    parser.add_argument("--check", action="store_true", help="by lintian and rpmlint")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "dist", help="a directory (default: %(default)s)"
    )
    given = parser.parse_intermixed_args(arguments)
    os.umask(0o022)  # the packages must not depend on the caller's
    if unknown := set(given.kinds) - set(KINDS):
        parser.error(f"no such kind of package: {', '.join(sorted(unknown))}")
    try:
        package(given.file, given.output, given.kinds or KINDS, check=given.check)
    except (BuildError, OSError) as error:
        print(f"package.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
