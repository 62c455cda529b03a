# SPDX-License-Identifier: Apache-2.0
"""Tiers: what a test needs is said by the directory that it lies in,
and one that did not run is never just green.

Each test carries the marker `tier(name=...)`, so that -m 'tier(name="unit")' selects one. With
`--require fuse,podman,containerd,jobs,fleet,packages,kernel` (the default where CI is set) a skip
in those tiers is a failure. CI has no cluster, so the tier `cluster` is skipped there, and says so.

`--form=native` runs the black-box tests on the ELF file instead of the .pyz. A test that is of
one form, marked `form(name)`, is left out of the other's run; one whose result may depend on the
form is marked `both_forms`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fetch import provision
from tests.support.hook import FORM, FORMS, shipped

TIERS = ("unit", "fuse", "podman", "containerd", "jobs", "fleet", "packages", "kernel", "cluster")
REQUIRED_IN_CI = "fuse,podman,containerd,jobs,fleet,packages,kernel"
_HERE = Path(__file__).resolve().parent
_OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


def pytest_addoption(parser: pytest.Parser) -> None:
    default = REQUIRED_IN_CI if os.environ.get("CI") else ""
    parser.addoption(
        "--require",
        default=default,
        metavar="TIERS",
        help=(
            f"tiers in which a skip is a failure, of {','.join(TIERS)} (default: {REQUIRED_IN_CI} "
            "where CI is set)"
        ),
    )
    parser.addoption(
        "--form",
        choices=sorted(FORMS),
        default=os.environ.get(FORM, "pyz"),
        help=(
            "the form of the program that black-box tests run: the .pyz (default), or the ELF file"
        ),
    )


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", provision.find_scratch())
    config.addinivalue_line(
        "markers", "tier(name): what the test needs, by its directory in tests/"
    )
    config.addinivalue_line(
        "markers", "form(name): the one form of the program that the test is about"
    )
    config.addinivalue_line(
        "markers", "both_forms: `build.py test --all` runs the test on both forms of the program"
    )
    unknown = sorted(set(_required(config)) - set(TIERS))
    if unknown:
        raise pytest.UsageError(
            f"--require: no such tier: {', '.join(unknown)} (there are {', '.join(TIERS)})"
        )
    form: str = config.getoption("--form")
    os.environ[FORM] = form  # for the processes and guests of the tests, too
    if form != "pyz" and not shipped().exists():
        raise pytest.UsageError(f"--form={form}: no {shipped()}: run `python3 build.py {form}`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    others = [item for item in items if _form(item) not in {None, config.getoption("--form")}]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.tier(name=item.path.relative_to(_HERE).parts[0]))


def _form(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("form")
    return marker.args[0] if marker else None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus in (
        pytest.ExitCode.OK,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    ) and _broken_promises(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """A line for each tier. pytest names what failed after this."""
    terminalreporter.section("tiers")
    for tier in TIERS:
        counts = Counter({outcome: len(_reports(config, tier, outcome)) for outcome in _OUTCOMES})
        told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
        terminalreporter.write_line(f"{tier}: {told or 'nothing ran'}")
        reasons = Counter(_reason(report) for report in _reports(config, tier, "skipped"))
        for reason, count in sorted(reasons.items()):
            terminalreporter.write_line(f"    skipped {count}: {reason}")


@pytest.hookimpl(wrapper=True, tryfirst=True, specname="pytest_terminal_summary")
def pytest_summary_of_required(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Iterator[None]:
    """Name the required tiers that were skipped, after the names of the tests that failed."""
    yield
    for line in _broken_promises(config):
        terminalreporter.write_line(line, red=True)


def _required(config: pytest.Config) -> list[str]:
    required: str = config.getoption("--require")
    return [tier for tier in required.split(",") if tier]


def _broken_promises(config: pytest.Config) -> list[str]:
    """A line for each required tier in which a test was skipped."""
    skipped = Counter({tier: len(_reports(config, tier, "skipped")) for tier in _required(config)})
    return [
        f"REQUIRED: {tier}: {skipped[tier]} skipped, and --require allows no skip there"
        for tier in +skipped
    ]


def _reports(
    config: pytest.Config, tier: str, *outcomes: str
) -> list[pytest.TestReport | pytest.CollectReport]:
    """By node ID, since a module that is skipped or broken as a whole has
    no item, and so no marker.
    """
    reporter: pytest.TerminalReporter | None = config.pluginmanager.getplugin("terminalreporter")
    stats = reporter.stats if reporter else {}
    reports = (report for outcome in outcomes for report in stats.get(outcome, []))
    return [report for report in reports if f"tests/{tier}/" in report.nodeid.partition("::")[0]]


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why it was skipped, as given to pytest.skip or skipif."""
    told = report.longrepr
    return str(told[2]).removeprefix("Skipped: ") if isinstance(told, tuple) else str(told)
