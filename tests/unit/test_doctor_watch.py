# SPDX-License-Identifier: Apache-2.0
"""What doctor says of watch: whether it runs where it should, and whether it can."""

from __future__ import annotations

import pytest

from hook.base.models import Options
from hook.doctor.site import Site
from hook.doctor.watch import check_watch
from hook.host import machine, programs
from hook.host.paths import Places

RUNS = ["/usr/bin/python3", "-IScimport ...", "/usr/bin/resctrl-mon-hook", "watch", "--linger=600"]
IN_POD = ["python3", "-I", "-S", "/app/resctrl-mon-hook.pyz", "watch"]


@pytest.mark.parametrize(
    ("commands", "enabled", "connector", "level", "text"),
    [
        ([RUNS], True, True, "ok", "running"),
        ([IN_POD], False, True, "ok", "running"),
        ([], False, True, "ok", "off"),
        ([], False, False, "ok", "off"),
        ([], True, True, "warning", "enabled but does not run"),
        ([], True, False, "warning", "no process connector"),
        ([["watch", "resctrl-mon-hook", "list"]], True, True, "warning", "enabled but does not run"),
        ([["resctrl-mon-hook", "list", "watch"]], True, True, "warning", "enabled but does not run"),
    ],
)
def test_watch_is_found_running_off_or_failing(
    monkeypatch: pytest.MonkeyPatch, commands: list[list[str]], enabled: bool, connector: bool, level: str, text: str
) -> None:
    asked: list[list[str]] = []

    def run(words: list[str]) -> programs.Ended:
        asked.append(words)
        return programs.Ended(0 if enabled else 1, "", "")

    monkeypatch.setattr(machine, "list_commands", lambda: commands)
    monkeypatch.setattr(machine, "has_systemd", lambda: True)
    monkeypatch.setattr(machine, "has_process_connector", lambda: connector)
    monkeypatch.setattr(programs, "run", run)
    (found,) = check_watch(Site(Places(), Options()))
    assert (found.level, found.subject) == (level, "watch")
    assert text in found.found
    assert asked == [["systemctl", "is-enabled", "--quiet", "resctrl-mon-hook-watch.service"]]
