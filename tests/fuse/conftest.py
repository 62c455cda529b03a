# SPDX-License-Identifier: Apache-2.0
"""A resctrl to work on for each test: the model behind FUSE, or a real one.

Where RESCTRL_MON_HOOK_TEST_ROOT names a real one (in the guest of tests/kernel), `hook` works on
that, cleaned of all groups before and after. What needs the model itself, for its faults and its
log of events, asks for `resctrl`.

On the model, this machine's own containers do not show: reconcile would ask their runtimes for
them, or take a pod of another run for never hooked. They come and go. So where only this tier runs,
it has a /run of its own.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fetch import provision
from tests.kernel.inside import REAL_ROOT, remove_groups
from tests.resctrlfs import Mounted, mounted
from tests.resctrlfs.places import is_mounted
from tests.support.hook import Hook, shipped, task

HERE = Path(__file__).parent
CLONE_NEWNS, MS_REC, MS_SLAVE = 0x20000, 0x4000, 0x80000


def pytest_collection_finish(session: pytest.Session) -> None:
    is_alone = all(item.path.is_relative_to(HERE) for item in session.items)
    if (
        is_alone
        and REAL_ROOT is None
        and os.geteuid() == 0
        and not session.config.option.collectonly
    ):
        libc = ctypes.CDLL(None, use_errno=True)
        done = [
            libc.unshare(CLONE_NEWNS),
            libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None),
            libc.mount(b"tmpfs", b"/run", b"tmpfs", 0, b"mode=755"),
        ]
        assert not any(done), os.strerror(ctypes.get_errno())
        # Of a runtime that has no container: reconcile goes by no cgroups of others' pods.
        os.mkdir("/run/runc")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Mounted]]:
    """Gives a model with these knobs and without groups.

    One server does for all tests: to start it costs more than most of them.
    """
    if REAL_ROOT is not None:
        pytest.skip("needs the model, and this resctrl is real")
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("needs root and /dev/fuse")
    with ExitStack() as stack:
        servers: list[Mounted] = []

        def give(**knobs: object) -> Mounted:
            if servers and is_mounted(servers[-1].root) and servers[-1].process.poll() is None:
                servers[-1].control(do="reset", **knobs)
            else:
                place = tmp_path_factory.mktemp("model")
                servers.append(stack.enter_context(mounted(place, **knobs)))
            return servers[-1]

        yield give


@pytest.fixture
def resctrl(request: pytest.FixtureRequest, models: Callable[..., Mounted]) -> Mounted:
    """The model, with the knobs that `pytest.mark.knobs` names."""
    marker = request.node.get_closest_marker("knobs")
    return models(**(marker.kwargs if marker else {}))


@pytest.fixture
def resctrl_root(request: pytest.FixtureRequest) -> Iterator[Path]:
    if REAL_ROOT is None:
        model: Mounted = request.getfixturevalue("resctrl")
        yield model.root
    else:
        remove_groups(REAL_ROOT)
        yield REAL_ROOT
        remove_groups(REAL_ROOT)


@pytest.fixture
def hook(resctrl_root: Path, tmp_path: Path) -> Hook:
    return Hook(resctrl_root, tmp_path / "run")


@pytest.fixture
def init() -> Iterator[subprocess.Popen[bytes]]:
    with task() as process:
        yield process


@pytest.fixture
def public_program() -> Iterator[Path]:
    """A copy of the file under test that every user can run:
    the checkout and the tests' directories may be root's.
    """
    with tempfile.TemporaryDirectory(dir=provision.find_scratch()) as place:
        Path(place).chmod(0o755)
        program = Path(shutil.copy(shipped(), place))
        program.chmod(0o755)
        yield program
