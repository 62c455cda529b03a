# SPDX-License-Identifier: Apache-2.0
"""What the last run of reconcile left undone: counted, not printed again."""

from __future__ import annotations

from hook.node.models import LeftUndone
from hook.reconcile.diagnose import Action
from hook.reconcile.run import Outcome, format_changes, is_known


def failed(verb: str, container: str, reason: str, recorded: str = "") -> Outcome:
    return Outcome(Action(verb, container=container, why="it runs", reason=recorded), "no", reason=reason)


def left(*outcomes: Outcome) -> LeftUndone:
    return LeftUndone(failures={it.action.id: it.reason or "" for it in outcomes if it.has_failed})


def test_an_action_that_fails_again_for_the_same_reason_is_known() -> None:
    last = left(failed("remake", "a", "io"))
    assert is_known(last, failed("remake", "a", "io"))
    assert not is_known(last, failed("remake", "a", "no_rmids"))
    assert not is_known(last, failed("remake", "b", "io"))
    assert not is_known(last, failed("evict", "a", "io"))
    assert not is_known(last, Outcome(Action("remake", container="a")))


def test_a_failure_that_its_hook_has_reported_is_known_from_the_first_run_on() -> None:
    assert is_known(LeftUndone(), failed("retry", "a", "no_rmids", recorded="no_rmids"))
    assert not is_known(LeftUndone(), failed("retry", "a", "io", recorded="no_rmids"))


def test_a_busy_key_is_no_failure() -> None:
    busy = Outcome(Action("drop", "k", "a"), "busy", reason="lock_timeout")
    assert left(busy) == LeftUndone()
    assert not is_known(left(busy), busy)


def test_a_number_is_printed_when_it_changes() -> None:
    many = [failed("retry", name, "no_rmids") for name in "abc"]
    line = "{} containers still not monitored: no_rmids (see list)"
    assert format_changes(LeftUndone(), left(*many)) == [line.format(3)]
    assert format_changes(left(*many), left(*many)) == []
    assert format_changes(left(*many), left(*many[:2])) == [line.format(2)]
    assert format_changes(left(*many), LeftUndone()) == [line.format(0)]
    more = left(*many, failed("evict", "a", "io"))
    assert format_changes(left(*many), more) == ["still failing: 1 action, evict, io (see reconcile --json)"]
