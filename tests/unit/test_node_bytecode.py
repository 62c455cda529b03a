# SPDX-License-Identifier: Apache-2.0
"""Bytecode that a node makes: the start of a program runs it if it is right, and else the sources."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from hook.install import bytecode
from hook.install.bytecode import HEADER_SIZE, Bytecode, PyzFile
from hook.node import programs
from hook.node.programs import Interpreter
from pyz import archive
from tests.unit.files import FOUND, imported, loaded, start

pytestmark = pytest.mark.slow

UNPRIVILEGED = 65534
one_python = pytest.mark.parametrize("made", [str(FOUND[-1].path)], ids=[f"{FOUND[-1].version}"], indirect=True)


class NodeProgram(NamedTuple):
    """A program that ships no bytecode, the Python that its first line names, and the bytecode made of it."""

    pyz: Path
    python: str
    file: Path

    def runs_sources(self) -> bool:
        done = start([self.python, "-X", "importtime", "-ISc", archive.BOOT, self.pyz, "--version"])
        assert (done.returncode, done.stdout[:17]) == (0, "resctrl-mon-hook ")
        assert all(line.startswith("import time:") for line in done.stderr.splitlines())
        return "hook.errors" in loaded(done.stderr)

    def is_current(self) -> bool:
        """What doctor and install hold of the bytecode."""
        python = programs.ask_interpreter(self.python)
        assert isinstance(python, Interpreter)
        return bytecode.has_bytecode(str(self.pyz), PyzFile(str(self.pyz)), python)


@pytest.fixture(scope="module", params=[str(one.path) for one in FOUND], ids=[f"{one.version}" for one in FOUND])
def made(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> NodeProgram:
    """One that `bytecode` has made it for, by each CPython."""
    python: str = request.param
    pyz = archive.build(root=source, output=tmp_path_factory.mktemp("x") / "x.pyz", python=python)
    done = start([pyz, "bytecode"])
    assert (done.returncode, done.stderr) == (0, "")
    (file,) = set(pyz.parent.iterdir()) - {pyz}
    assert done.stdout == f"compile {file}\n"
    return NodeProgram(pyz, python, file)


@pytest.fixture
def node(made: NodeProgram, tmp_path: Path) -> NodeProgram:
    """The same, to be spoilt."""
    return NodeProgram(Path(shutil.copy2(made.pyz, tmp_path)), made.python, Path(shutil.copy2(made.file, tmp_path)))


def test_file_holds_what_the_build_would_ship(made: NodeProgram, compiled: dict[str, Bytecode]) -> None:
    shipped = compiled[made.python]
    assert made.file.name == f"x.pyz.{shipped.tag}"
    assert made.file.read_bytes()[HEADER_SIZE:] == shipped.content
    assert stat.S_IMODE(made.file.stat().st_mode) == 0o644


@pytest.mark.parametrize(
    "arguments", [["--help"], ["no-such-verb"], ["list", "--run-dir=/nowhere"], ["hook", "--run-dir=/proc/nowhere"]]
)
def test_start_runs_it(made: NodeProgram, arguments: list[str]) -> None:
    assert "hook.errors" not in imported(made.pyz, made.python, arguments)
    assert made.is_current()


def test_start_by_a_link_or_by_name_runs_it(made: NodeProgram, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(made.pyz)
    assert not made._replace(pyz=link).runs_sources()
    assert "hook.errors" not in loaded(start([made.python, "-X", "importtime", "-IS", made.pyz, "--help"]).stderr)


def test_start_without_it_runs_the_sources(node: NodeProgram) -> None:
    node.file.unlink()
    assert node.runs_sources()
    assert not node.is_current()


def change(at: int, new: bytes) -> Callable[[Path], object]:
    def changed(file: Path) -> None:
        data = file.read_bytes()
        at_ = at % len(data)
        file.write_bytes(data[:at_] + new + data[at_ + len(new) :])

    return changed


def move_behind_a_link(file: Path) -> None:
    file.symlink_to(file.rename(file.with_name("elsewhere")))


def replace(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def replaced(file: Path) -> None:
        file.unlink()
        make(file)

    return replaced


BUILD_ID, MAGIC = 20, HEADER_SIZE - 9  # where the header has them
SPOILT: dict[str, Callable[[Path], object]] = {
    "other build": change(BUILD_ID, b"other"),
    "other magic number": change(MAGIC, b"xx"),
    "no header": change(0, b"\0" * HEADER_SIZE),
    "one byte too short": lambda file: os.truncate(file, file.stat().st_size - 1),
    "one byte too long": lambda file: os.truncate(file, file.stat().st_size + 1),
    "cut in its header": lambda file: os.truncate(file, HEADER_SIZE // 2),
    "empty": lambda file: os.truncate(file, 0),
    "writable by its group": lambda file: file.chmod(0o664),
    "writable by all": lambda file: file.chmod(0o646),
    "of another user": lambda file: os.chown(file, UNPRIVILEGED, -1),
    "link": move_behind_a_link,
    "no bytecode behind a right header": lambda file: change(HEADER_SIZE, bytes(file.stat().st_size - HEADER_SIZE))(
        file
    ),
    "directory": replace(Path.mkdir),
    "FIFO": replace(os.mkfifo),
}


@pytest.mark.parametrize("how", SPOILT)
def test_start_runs_the_sources_instead_of(node: NodeProgram, how: str) -> None:
    if "user" in how and os.geteuid() != 0:
        pytest.skip("not root")
    SPOILT[how](node.file)
    assert node.runs_sources()
    assert node.is_current() == ("behind" in how)


@one_python
def test_start_of_a_new_program_beside_old_bytecode_runs_its_sources(
    node: NodeProgram, source: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    with (copy / "hook/__init__.py").open("a") as file:
        file.write('__version__ = "1000.0"\n')
    archive.build(root=copy, output=node.pyz, python=node.python)
    assert node.runs_sources()
    assert start([node.pyz, "--version"]).stdout == "resctrl-mon-hook 1000.0\n"
    assert start([node.pyz, "bytecode"]).returncode == 0
    assert not node.runs_sources()
    assert start([node.pyz, "--version"]).stdout == "resctrl-mon-hook 1000.0\n"


# --- The command


@one_python
def test_bytecode_again_changes_nothing_and_removes_that_of_other_pythons(node: NodeProgram) -> None:
    before = node.file.stat().st_ino
    done = start([node.pyz, "bytecode"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    other, half = node.pyz.with_name("x.pyz.cpython-399"), node.pyz.with_name(".x.pyz.cpython-398.new")
    stays = node.pyz.with_name("x.pyz.txt")
    for path in (other, half, stays):
        path.touch()
    assert start([node.pyz, "bytecode"]).returncode == 0
    assert set(node.pyz.parent.iterdir()) == {node.pyz, node.file, stays}
    assert node.file.stat().st_ino == before


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/bin/false", "cannot compile with /bin/false: exit status 1"),
        ("/bin/echo", "cannot compile with /bin/echo: unexpected output"),
        (sys.executable, "compiled for another Python than cpython-399"),
    ],
)
def test_a_python_that_does_not_compile_is_named(source: Path, tmp_path: Path, path: str, problem: str) -> None:
    program = archive.build(root=source, output=tmp_path / "x.pyz")
    python = Interpreter(path, (3, 99), "cpython-399", b"none")
    (step,) = bytecode.plan_bytecode(str(program), PyzFile(str(program)), python)
    assert problem in str(step.do())
    assert not step.is_done()


def test_bytecode_that_cannot_be_written_stops_nothing(source: Path, tmp_path: Path) -> None:
    program = archive.build(root=source, output=tmp_path / "x.pyz")
    python = programs.ask_interpreter(sys.executable)
    assert isinstance(python, Interpreter)
    step = bytecode.compile_program(str(tmp_path / "x.pyz/no directory"), PyzFile(str(program)), python)
    assert "Not a directory" in str(step.do())
