# SPDX-License-Identifier: Apache-2.0
"""The tier's guests: for just those tests that were selected, and booted at once, beside the tests of other tiers.

Where there is no kernel for them yet, it is built when the first test of the tier asks.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests import provision
from tests.kernel import kernel
from tests.kernel.guests import GuestCase, Guests
from tests.kernel.inside import REAL_ROOT

collect_ignore = [] if REAL_ROOT else ["guest"]  # those files are for the guest
HERE = Path(__file__).parent
GUESTS = pytest.StashKey[Guests]()
PLACE = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tier comes last: until then its guests run beside the others, which often wait; then they have all CPUs."""
    items.sort(key=lambda item: HERE in item.path.parents)


def pytest_collection_finish(session: pytest.Session) -> None:
    can_boot = kernel.find() is not None and not provision.missing(provision.KERNEL[:1])
    if can_boot and cases_of(session) and not session.config.option.collectonly:
        booted(session)


def cases_of(session: pytest.Session) -> list[GuestCase]:
    specs = [getattr(item, "callspec", None) for item in session.items]
    return [
        spec.params["case"] for spec in specs if spec is not None and isinstance(spec.params.get("case"), GuestCase)
    ]


def booted(session: pytest.Session) -> Guests:
    """The guests, from the first call on."""
    stash = session.config.stash
    if GUESTS not in stash:
        stash[PLACE] = tempfile.TemporaryDirectory(prefix="guests-", ignore_cleanup_errors=True)
        stash[GUESTS] = Guests(cases_of(session), Path(stash[PLACE].name))
    return stash[GUESTS]


@pytest.fixture(scope="session")
def guests(request: pytest.FixtureRequest) -> Guests:
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():  # the first time it takes long, and says so
            kernel.ready()
    except kernel.CannotBuild as error:
        pytest.skip(str(error))
    found = booted(request.session)
    found.hurry()
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if GUESTS in config.stash:
        terminalreporter.write_line(f"guests of the kernel tier: {', '.join(config.stash[GUESTS].summary())}")


def pytest_unconfigure(config: pytest.Config) -> None:
    if PLACE in config.stash:
        config.stash[PLACE].cleanup()
