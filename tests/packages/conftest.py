# SPDX-License-Identifier: Apache-2.0
"""Packages of the ELF file, and machines without Python to install them in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Callable, NamedTuple

import pytest

from fetch import provision
from hook import __version__
from native import cpython, native
from pyz import SCHEMA
from tests.kernel.inside import remove_groups
from tests.packages.machine import Machine
from tests.resctrlfs import mounted
from tests.support import debian
from tests.support.containers import REPOSITORY
from tests.support.debian import CannotMake
from tests.support.machine import AT_BOOT, HOOKS_DIR, PROGRAM

NEWER = "1000.0"
SUITES = {12: "bookworm", 13: "trixie"}
"""Debian's versions. Each machine is a fresh one."""
DEBIAN = (
    "--variant=apt",
    # With all that they need; systemd says which units would be started.
    "--include=podman,runc,systemd",
    # No Python. One is at hand in apt's cache, so that apt can install it without a network.
    '--customize-hook=APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get install -qq -d python3',
    "--skip=cleanup/apt",
)
USUAL = 12
"""The version of Debian of all tests but those of `fresh`."""
QUICKLY = {'"-Zxz"': '"-Znone"', '"w6.xzdio"': '"w1.gzdio"'}
"""What packaging/package.py says of compression, and what takes a sixth of the time."""


OLDER = "0.0.1"
PODMAN = "10-resctrl-mon-hook-podman.json"
OLDER_CONTROL = f"""\
Package: resctrl-mon-hook
Version: {OLDER}
Architecture: all
Maintainer: none <none@resctrl-mon-hook.invalid>
Description: an early version
"""
OLDER_SPEC = f"""\
Name: resctrl-mon-hook
Version: {OLDER}
Release: 1
Summary: an early version
License: Apache-2.0
AutoReqProv: no
%global debug_package %{{nil}}
%global __os_install_post %{{nil}}
%description
%install
cp -a %{{tree}}/. %{{buildroot}}/
%files
{PROGRAM}
{HOOKS_DIR}/{PODMAN}
"""


class Packages(NamedTuple):
    """The packages of one version."""

    version: str
    deb: Path
    rpm: Path


def pack(
    program: Path,
    output: Path,
    *words: str,
    root: Path = REPOSITORY,
    before: Sequence[str] = (),
    umask: int = 0o022,
    **environment: str,
) -> None:
    """packaging/package.py, as a process."""
    script = root / "packaging" / "package.py"
    command = [*before, sys.executable, str(script), str(program), f"--output={output}", *words]
    subprocess.run(command, env={**os.environ, **environment}, check=True, timeout=300, umask=umask)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ELF file of these sources. There is all that packing and looking at packages takes."""
    if absent := provision.install(provision.PACKAGES):
        pytest.skip("; ".join(absent))
    if cpython.find() is None:
        pytest.skip("no static CPython: run `python3 build.py native`")
    return native.build(output=tmp_path_factory.mktemp("program") / native.OUTPUT.name)


@pytest.fixture(scope="session")
def packages(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Packages:
    return _packages(program, __version__, tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="session")
def newer(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """The same program in a later version, in packages that are hardly compressed."""
    tree = tmp_path_factory.mktemp("newer")
    for name in ("hook", "oci-hooks", "packaging"):
        shutil.copytree(
            REPOSITORY / name, tree / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    module = tree / "hook" / "__init__.py"
    module.write_text(module.read_text().replace(f'"{packages.version}"', f'"{NEWER}"'))
    shutil.copy(REPOSITORY / "CHANGELOG.md", tree)
    shutil.copy(REPOSITORY / "LICENSE", tree)
    (tree / "docs").mkdir()
    shutil.copy(REPOSITORY / SCHEMA, tree / SCHEMA)
    script = tree / "packaging" / "package.py"
    text = script.read_text()
    for usual, quick in QUICKLY.items():
        assert usual in text
        text = text.replace(usual, quick)
    script.write_text(text)
    output = tmp_path_factory.mktemp("newer-packages")
    return _packages(native.build(tree, tree / native.OUTPUT), NEWER, output, root=tree)


def _packages(program: Path, version: str, output: Path, root: Path = REPOSITORY) -> Packages:
    pack(program, output, root=root)
    (deb,), (rpm,) = output.glob("*.deb"), output.glob("*.rpm")
    return Packages(version, deb, rpm)


@pytest.fixture(scope="session")
def older(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """Packages that ship the program at its path, as early ones did,
    and the JSON that calls the program.
    """
    directory = tmp_path_factory.mktemp("older")
    tree = directory / "tree"
    for source, path in (
        (program, PROGRAM),
        (REPOSITORY / "oci-hooks" / PODMAN, f"{HOOKS_DIR}/{PODMAN}"),
    ):
        target = tree / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    spec = directory / "spec"
    spec.write_text(OLDER_SPEC)
    macros = {
        "tree": tree,
        "_rpmdir": directory,
        "_rpmfilename": "older.rpm",
        "_build_id_links": "none",
        "_binary_payload": "w1.gzdio",
    }
    defines = [f"--define={name} {value}" for name, value in macros.items()]
    subprocess.run(
        ["rpmbuild", "-bb", f"--define=_topdir {directory}/top", *defines, spec],
        check=True,
        timeout=300,
    )
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(OLDER_CONTROL)
    subprocess.run(
        ["dpkg-deb", "-Znone", "--build", tree, directory / "older.deb"], check=True, timeout=300
    )
    return Packages(OLDER, directory / "older.deb", directory / "older.rpm")


MakeMachine = Callable[[Path, int], "AbstractContextManager[Machine]"]


@pytest.fixture(scope="session")
def make_machine(packages: Packages, newer: Packages, older: Packages) -> MakeMachine:
    """Machines with a version of Debian that have the packages at hand,
    each in a directory of its own.
    """
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs root and /dev/fuse")

    @contextmanager
    def make(directory: Path, version: int) -> Iterator[Machine]:
        try:
            base = debian.root(SUITES[version], *DEBIAN)
        except CannotMake as reason:
            pytest.skip(str(reason))
        with mounted(directory) as resctrl, closing(Machine(base, directory, resctrl)) as machine:
            for file in (*packages[1:], *newer[1:], *older[1:]):
                shutil.copy(file, machine.shared)
            yield machine

    return make


@pytest.fixture(scope="session")
def _machine(
    make_machine: MakeMachine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    with make_machine(tmp_path_factory.mktemp("machine"), USUAL) as machine:
        yield machine


@pytest.fixture
def machine(_machine: Machine) -> Iterator[Machine]:
    """A machine that has none of our packages.

    All tests have the same one, which is cleaned after each.
    """
    yield _machine
    _machine.podman_rm()
    _machine.dpkg("--purge", "resctrl-mon-hook")
    _machine.run("rm", "-rf", "/run/resctrl-mon-hook", PROGRAM, AT_BOOT)
    remove_groups(_machine.resctrl.root)


@pytest.fixture(params=SUITES, ids="debian-{}".format)
def fresh(
    request: pytest.FixtureRequest, _machine: Machine, make_machine: MakeMachine, tmp_path: Path
) -> Iterator[Machine]:
    """A machine with each Debian: the one of all tests, and one more."""
    if request.param == USUAL:
        yield _machine
    else:
        with make_machine(tmp_path, request.param) as machine:
            yield machine
