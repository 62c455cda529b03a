"""The tier's guests: booted when the first test of the tier asks, for just those tests that were selected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kernel import kernel
from tests.kernel.guests import Case, Guests
from tests.kernel.inside import REAL_ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

collect_ignore = [] if REAL_ROOT else ["guest"]  # those files are for the guest
SUMMARY = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def guests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guests]:
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():  # the first time it takes long, and says so
            kernel.ready()
    except kernel.CannotBuild as error:
        pytest.skip(str(error))
    specs = [getattr(item, "callspec", None) for item in request.session.items]
    cases = [spec.params["case"] for spec in specs if spec is not None and isinstance(spec.params.get("case"), Case)]
    guests = Guests(cases, tmp_path_factory.mktemp("guests"))
    yield guests
    request.config.stash[SUMMARY] = list(guests.summary())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(SUMMARY, []):
        terminalreporter.write_line(f"guests of the kernel tier: {line}")
