# SPDX-License-Identifier: Apache-2.0
"""A node's file system on pyfakefs; the .pyz as its tests have it;
and nothing of the machine that tests run on.
"""

from __future__ import annotations

import errno
import importlib
import os
import pkgutil
import re
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, AnyStr

import pytest
from hypothesis import HealthCheck, settings
from pyfakefs.fake_filesystem import FakeFilesystem
from pyfakefs.fake_os import FakeOsModule
from pyfakefs.helpers import set_gid, set_uid

import hook
from hook import report, system
from hook.cli.verbs import VERBS
from hook.install.install import DIGEST, digest
from hook.node import files
from hook.node.files import Unreadable
from hook.words import printable
from pyz import archive, bytecode
from pyz.bytecode import Bytecode
from tests.simulator.machine import SimulatedMachine
from tests.support.hook import NATIVE
from tests.support.waiting import wait
from tests.unit.files import ELSEWHERE, FOUND, MOST_OF_DEV, ROOT
from tests.unit.nodes import PID, NodeFiles, add_process

# How long an example takes is the machine's: it may be busy.
# `build.py test` takes "dev" (tests/unit/files.py).
settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", settings.get_profile("unit"), max_examples=MOST_OF_DEV)
settings.load_profile("unit")
OF_THE_MACHINE = re.compile("/(etc|run|usr/share/containers|var/lib|var/log)(/|$)")
OF_THE_NODE = re.compile("(/run/resctrl-mon-hook|/var/log/resctrl-mon-hook|/sys/fs/resctrl)(/|$)")
STARTS = ("subprocess.Popen", "os.exec", "os.posix_spawn")
PLACES = {option.partition("=")[0] for option in ELSEWHERE}
WITHOUT_PLACES = {"--help", "help", "completion"}

_touches: list[str] = []


def _note_touches(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what a test does with the node's own directories,
    or a process of the program that it starts may do.
    """
    if event in STARTS:
        words = [os.fsdecode(word) for word in arguments[1] or ()]
        if starts_on_the_node(words):
            _touches.append(shlex.join(words))
    elif event == "open" or event.startswith("os."):
        # What it leads to is only its content.
        used = arguments[1:] if event == "os.symlink" else arguments
        paths = (os.fsdecode(path) for path in used if isinstance(path, (str, bytes)))
        _touches.extend(f"{event} {path}" for path in paths if OF_THE_NODE.match(path))


def starts_on_the_node(words: Sequence[str]) -> bool:
    """Whether a command starts the program, and leaves it the places that it has by default."""
    for place, word in enumerate(words):
        if word.endswith((".pyz", NATIVE.name)) or list(words[place - 1 : place + 1]) == [
            "-m",
            "hook",
        ]:
            verb, *options = words[place + 1 :] or ["--help"]
            given = {option.partition("=")[0] for option in options}
            needed = {*PLACES, *(["--history"] if verb == "history" else [])}
            is_away = verb.startswith("-") or {verb, *given} & WITHOUT_PLACES or needed <= given
            return not is_away
    return False


sys.addaudithook(_note_touches)


@pytest.fixture(autouse=True)
def touches() -> Iterator[list[str]]:
    """Fail a test that touches the run directory,
    the history or the resctrl of the machine that it runs on.
    """
    _touches.clear()
    yield _touches
    assert _touches == []


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Wait for the threads of a test, or fail it: one that goes on would work on what the next
    test has, and slow down all that follow.
    """
    before = threading.active_count()
    yield
    wait(lambda: threading.active_count() <= before)


@pytest.fixture(scope="session")
def _whole_hook() -> None:
    """Import all of hook/: pyfakefs forgets what is first imported while it is there,
    and that is made once more.
    """
    for module in pkgutil.walk_packages(hook.__path__, "hook."):
        if not module.name.endswith("__main__"):  # it runs what it is part of
            importlib.import_module(module.name)


@pytest.fixture
def fs(fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch, _whole_hook: None) -> FakeFilesystem:
    """pyfakefs' own fixture, with hook.system on it as well: paths as they are on a node,
    and none of them there.

    The system calls of hook.system are those of the simulator's machine, on the same files; `os` is
    pyfakefs'. That has no flock(2), takes a link for ELOOP where O_DIRECTORY makes it ENOTDIR,
    opens FIFOs, and knows no ENAMETOOLONG.
    """
    # Pyfakefs copies the machine's directory for temporary files, wherever that is.
    for name in os.listdir("/"):
        fs.remove_object(f"/{name}")
    # As a node's programs are root's, so is every file; the fixture of the next test gives this
    # back.
    set_uid(0)
    set_gid(0)
    monkeypatch.setattr(system, "user_id", lambda: 0)
    fs.create_dir("/tmp", 0o1777)
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    machine = SimulatedMachine(fs, mounts=())
    monkeypatch.setattr(system, "posix", machine)
    of_others = fs.get_open_file
    monkeypatch.setattr(
        fs, "get_open_file", lambda number: machine.find_open(number) or of_others(number)
    )
    for name, verb in VERBS.items():
        # Its thread is of the real system.
        monkeypatch.setitem(VERBS, name, verb._replace(limit=None))
    open_ = FakeOsModule.open

    def open_as_it_is(
        fake: FakeOsModule,
        path: AnyStr,
        flags: int,
        mode: int | None = None,
        *,
        dir_fd: int | None = None,
    ) -> int:
        """pyfakefs gives each file that is opened a new mode, and has no /proc/self/fd."""
        by_descriptor = re.fullmatch(r"/proc/self/fd/(\d+)", os.fsdecode(path))
        if by_descriptor:
            opened: Any = fs.get_open_file(int(by_descriptor[1])).get_object()
            path = opened.path
        whole = fake._path_with_dir_fd(path, fake.open, dir_fd)
        if fs.exists(whole):
            mode = fs.resolve(whole).st_mode & 0o7777
        return open_(fake, whole, flags, mode)

    monkeypatch.setattr(FakeOsModule, "open", open_as_it_is)
    return fs


@pytest.fixture
def node(fs: FakeFilesystem) -> NodeFiles:
    """A node whose resctrl is mounted, with the host's pid namespace,
    an init process, and one more, PID.
    """
    fs.create_symlink("/proc/self/ns/pid", "pid:[4026531836]")
    fs.create_file("/proc/self/uid_map", contents="0 0 4294967295\n")
    add_process(1)
    add_process(PID)
    return NodeFiles(pid=PID)


@pytest.fixture
def complaints(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a command prints on stderr, line by line.

    Pytest's own capfd cannot work while `fs` is there.
    """
    lines: list[str] = []

    def say(text: str, *, to_syslog: bool) -> None:
        assert not to_syslog
        lines.append(printable(text))

    monkeypatch.setattr(report, "write_line", say)
    return lines


@pytest.fixture(autouse=True)
def _without_the_machine(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runtimes may be installed here, and run containers:
    to the functions that are tested there are none.
    """
    if "fs" in request.fixturenames:
        yield
        return
    opened, list_names = files.opened, files.list_names
    list_directory = system.list_directory

    def open_other(path: str, *kind: int) -> AbstractContextManager[int]:
        if OF_THE_MACHINE.match(path):
            raise Unreadable(path, "ENOENT", errno.ENOENT)
        return opened(path, *kind)

    def list_names_of_other(path: str, *most: int) -> list[str]:
        if OF_THE_MACHINE.match(path):
            raise Unreadable(path, "ENOENT", errno.ENOENT)
        return list_names(path, *most)

    def list_other(path: str, dir_fd: int | None = None) -> list[str]:
        if dir_fd is None and OF_THE_MACHINE.match(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return list_directory(path, dir_fd)

    def of_other(look: Callable[[Any], bool]) -> Callable[[Any], bool]:
        return lambda path: not OF_THE_MACHINE.match(str(path)) and look(path)

    # `monkeypatch` itself would be undone after a test's own fixtures.
    with pytest.MonkeyPatch.context() as patch:
        for look in (os.path.exists, os.path.isdir, os.path.isfile, os.path.lexists):
            patch.setattr(os.path, look.__name__, of_other(look))
        patch.setattr(files, "opened", open_other)
        patch.setattr(files, "list_names", list_names_of_other)
        patch.setattr(system, "list_directory", list_other)
        yield


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, which stays as it is between two builds.

    Its path has a blank in it.
    """
    root = tmp_path_factory.mktemp("sources") / "a copy"
    for name in ("hook", "oci-hooks", "packaging"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "build.py", root)
    return root


@pytest.fixture(scope="session")
def pythons(request: pytest.FixtureRequest) -> list[str]:
    """The interpreters to compile for: only the newest where the slow tests,
    which start the others, do not run.
    """
    pythons = FOUND[-1:] if request.config.getoption("markexpr") == "not slow" else FOUND
    return [str(python.path) for python in pythons]


@pytest.fixture(scope="session")
def compiled(source: Path, pythons: list[str]) -> dict[str, Bytecode]:
    """The bytecode of these sources, by the interpreter that makes it."""
    contents = archive.read_sources(source)
    return {python: code for python in pythons for code in bytecode.compile_all(contents, [python])}


@pytest.fixture(scope="session")
def pyz(source: Path, compiled: dict[str, Bytecode]) -> Path:
    """The .pyz of these sources."""
    path = source / archive.OUTPUT
    path.parent.mkdir()
    newest = archive.shebang(list(compiled)[-1])
    path.write_bytes(archive.join(archive.read_sources(source), newest, list(compiled.values())))
    path.chmod(0o755)
    return path


@pytest.fixture(scope="session")
def shipped() -> bytes:
    """A file as the ELF file is: the zip of the sources, after other bytes."""
    other = b"\x7fELF"
    return archive.zipped({**archive.read_sources(ROOT), DIGEST: digest(other)}, other)[0]
