# SPDX-License-Identifier: Apache-2.0
"""What doctor says of watch: whether it runs where it should, and whether it can."""

from __future__ import annotations

import pytest

from hook.base import system
from hook.doctor import records
from hook.doctor.finding import Site
from hook.doctor.records import check_watch
from hook.node import programs
from hook.node.place import Places
from tests.unit.nodes import NodeFiles


@pytest.mark.parametrize(
    ("silent", "enabled", "connector", "level", "text"),
    [
        (0, True, True, "ok", "running"),
        (100, False, True, "ok", "running"),  # in the chart's pod
        (None, False, True, "ok", "off"),
        (None, False, False, "ok", "off"),
        (None, True, True, "warning", "enabled but does not run"),
        (1000, True, True, "warning", "enabled but does not run"),  # it was killed
        (None, True, False, "warning", "no process connector"),
    ],
)
def test_watch_is_running_off_or_failing_by_its_own_record(
    node: NodeFiles,
    monkeypatch: pytest.MonkeyPatch,
    silent: int | None,
    enabled: bool,
    connector: bool,
    level: str,
    text: str,
) -> None:
    asked: list[list[str]] = []

    def run(words: list[str]) -> programs.Exit:
        asked.append(words)
        return programs.Exit(0 if enabled else 1, "", "")

    node.run.mkdir()
    if silent is not None:
        node.watched(alive_at=system.unix_time() - silent)
    monkeypatch.setattr(programs, "has_systemd", lambda: True)
    monkeypatch.setattr(records, "has_process_connector", lambda: connector)
    monkeypatch.setattr(programs, "run_program", run)
    (found,) = check_watch(Site(Places(), node.options))
    assert (found.level, found.subject) == (level, "watch")
    assert text in found.found
    assert asked == [["systemctl", "is-enabled", "--quiet", "resctrl-mon-hook-watch.service"]]
