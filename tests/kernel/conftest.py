# SPDX-License-Identifier: Apache-2.0
"""The tier's guests: those whose tests were selected, and booted at once,
beside the tests of other tiers.

Where there is no kernel for them yet, it is built when the first test of the tier asks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fetch import provision
from tests.kernel import kernel
from tests.kernel.guests import GuestKind, Guests
from tests.kernel.inside import REAL_ROOT

collect_ignore = [] if REAL_ROOT else ["guest"]  # those files are for the guest
HERE = Path(__file__).parent
GUESTS = pytest.StashKey[Guests]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tier comes last: until then its guests run beside the others, which often wait;
    then they have all CPUs.
    """
    items.sort(key=lambda item: HERE in item.path.parents)


def pytest_collection_finish(session: pytest.Session) -> None:
    can_boot = kernel.find() is not None and not provision.missing(provision.GUEST)
    if can_boot and not session.config.option.collectonly:
        boot_guests(session)


def boot_guests(session: pytest.Session) -> Guests:
    """Return the guests, which run from the first call on."""
    stash = session.config.stash
    if GUESTS not in stash:
        kinds = [
            item.callspec.params.get("kind") for item in session.items if hasattr(item, "callspec")
        ]
        stash[GUESTS] = Guests([kind for kind in kinds if isinstance(kind, GuestKind)])
    return stash[GUESTS]


@pytest.fixture(scope="session")
def guests(request: pytest.FixtureRequest) -> Guests:
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():  # the first time it takes long, and says so
            kernel.ready()
    except kernel.CannotBuild as error:
        pytest.skip(str(error))
    reports = boot_guests(request.session)
    reports.hurry()
    return reports
