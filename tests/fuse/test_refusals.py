# SPDX-License-Identifier: Apache-2.0
"""The kernel says no: the reason, the three traces, and that nothing of the attempt is left.

Each errno is one outcome: unit/test_resctrl.py. Each of them at each call: tests.simulator.
"""

from __future__ import annotations

from pathlib import Path

from tests.kernel.inside import fill
from tests.support.hook import Hook, Task, created


def only(hook: Hook, container: str) -> dict[str, object]:
    failures = hook.failures()
    assert set(failures) == {container}
    found: dict[str, object] = failures[container]
    return found


def test_exhaustion_quotes_the_kernel(hook: Hook, init: Task) -> None:
    fill(hook.resctrl_root / "mon_groups")
    hook(created("c1", init.pid))
    record = only(hook, "c1")
    assert record["reason"] == "no_rmids"
    assert record["kernel"] == "Out of RMIDs"


def test_missing_resctrl_is_reported_where_nothing_can_be_recorded(hook: Hook, init: Task, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    outcome = Hook(hook.run_dir / "no-such-directory", tmp_path / "file")(created("c1", init.pid))
    assert outcome.status == 0
    assert "nothing is monitored" in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


def test_missing_resctrl_is_reported_once_and_recorded_nowhere(hook: Hook, init: Task) -> None:
    nowhere = Hook(hook.run_dir / "no-such-directory", hook.run_dir)
    first, second = nowhere(created("c1", init.pid)), nowhere(created("c1", init.pid))
    assert (first.status, second.status) == (0, 0)
    assert "nothing is monitored" in first.stderr
    assert second.stderr == ""
    assert (hook.run_dir / "said-no-resctrl").exists()
    assert hook.leftovers() == set()
    assert nowhere.with_options("--strict")(created("c1", init.pid)).status == 0
