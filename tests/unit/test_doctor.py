# SPDX-License-Identifier: Apache-2.0
"""Findings of doctor that no machine of tests/fuse shows: of watch, and of containers that their runtime has lost."""

from __future__ import annotations

from typing import Any

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook import system
from hook.doctor import Finding, Site, failure, format_findings, ok, run_check, to_objects, warning
from hook.doctor.records import check_containers, check_lost_containers, check_reconcile, check_watch
from hook.models import State
from hook.node import programs, runtimes
from hook.node.models import ReconcileRecord
from hook.node.paths import Places
from hook.show.terminal import Screen
from hook.store import RunDir
from tests.unit.nodes import NodeFiles

LOST = [it * 32 for it in ("a1", "b2", "c3", "d4")]
UNIT = "resctrl-mon-hook-watch.service"


@pytest.mark.parametrize(
    ("silent", "enabled", "connector", "expected"),
    [
        (0, True, True, "ok running"),
        (100, False, True, "ok running"),  # in the chart's pod
        (None, False, True, "ok off: what exec brings"),
        (None, False, False, "ok off: what exec brings"),
        (None, True, True, f"warning {UNIT} is enabled but does not run"),
        (1000, True, True, f"warning {UNIT} is enabled but does not run"),  # it was killed
        (None, True, False, f"warning {UNIT} is enabled, but this kernel has no process connector"),
    ],
)
def test_watch_is_running_off_or_failing_by_its_own_record(
    node: NodeFiles,
    fs: FakeFilesystem,
    monkeypatch: pytest.MonkeyPatch,
    silent: int | None,
    enabled: bool,
    connector: bool,
    expected: str,
) -> None:
    asked: list[list[str]] = []

    def run(words: list[str]) -> programs.Exit:
        asked.append(words)
        return programs.Exit(0 if enabled else 1, "", "")

    node.run.mkdir()
    if silent is not None:
        node.watched(alive_at=system.unix_time() - silent)
    fs.create_dir("/run/systemd/system")
    if connector:
        fs.create_file("/proc/net/connector", contents="Name            ID\ncn_proc         1:1\n")
    monkeypatch.setattr(programs, "run_program", run)
    (found,) = check_watch(Site(Places(), node.options))
    assert f"{found.level} {found.found}".startswith(expected)
    assert asked == [["systemctl", "is-enabled", "--quiet", UNIT]]


def test_live_containers_that_no_runtime_knows_are_lost(
    node: NodeFiles, fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    for container in LOST:
        member = node.alive(str(node.path(f"oci-{container}")), cgroup=f":/kubepods/{container}")
        node.record(container, members={container: member})
    fs.create_file(f"/bundles/{LOST[0]}/config.json")
    known = [State(ociVersion="1", id=it, status="running", bundle=f"/bundles/{it}") for it in LOST[:2]]

    class Answers(runtimes.Runtimes):
        def list_states(self, *_others: Any, **_how: Any) -> tuple[list[State], list[str]]:  # noqa: ANN401
            return known, []

        def find_states(self, containers: Any) -> tuple[dict[str, State], set[str]]:  # noqa: ANN401
            assert containers == {*LOST[2:]}
            return {}, {LOST[2]}

    monkeypatch.setattr(runtimes, "find_runtimes", lambda: Answers([], []))
    found = [(it.level, it.found) for it in check_lost_containers(Site(Places(), node.options))]
    assert found == [
        ("warning", f"{LOST[1][:12]}: its processes run, but its bundle is gone (/bundles/{LOST[1]})"),
        ("warning", f"{LOST[3][:12]}: its processes run, but no OCI runtime knows it"),
    ]
    known.clear()  # then its root directory is not one of ours
    assert [*check_lost_containers(Site(Places(), node.options))] == []


def test_a_container_whose_config_cannot_be_read_is_not_taken_for_one_without_the_hook(
    node: NodeFiles, fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.create_file("/bundles/large/config.json", contents="x")
    fs.create_file("/bundles/plain/config.json", contents="{}")
    known = [
        State(ociVersion="1", id=it, status="running", bundle=f"/bundles/{it}") for it in ("large", "plain", "gone")
    ]
    monkeypatch.setattr(runtimes.Runtimes, "list_states", lambda *_others, **_how: (known, []))
    found = [(it.level, it.found) for it in check_containers(Site(Places(), node.options))]
    assert found == [
        ("ok", "3 running, 0 with the hook"),
        ("warning", "without the hook: gone, plain"),
        ("warning", "cannot read the config.json of large"),
    ]


def test_reconcile_that_could_not_read_something_is_a_warning(node: NodeFiles) -> None:
    RunDir(node.options.run_dir).write(
        ReconcileRecord, "reconcile", ReconcileRecord(started_at=1, ended_at=system.unix_time(), unread=2)
    )
    (found,) = check_reconcile(Site(Places(), node.options))
    assert (found.level, "could not read 2 of the keys" in found.found) == ("warning", True)


def test_a_check_that_fails_is_a_finding(node: NodeFiles) -> None:
    def check(_site: Site) -> Any:  # noqa: ANN401
        yield ok("a", "well")
        raise PermissionError(13, "Permission denied", "/x")

    found = [*run_check("a", check, Site(Places(), node.options))]
    remedy = "run doctor as root"
    assert found == [ok("a", "well"), failure("a", "cannot check: [Errno 13] Permission denied: '/x'", remedy)]


FINDINGS: list[Finding] = [warning("b", "odd", "look"), ok("a", "well"), failure("c", "bad", "fix it")]
LINES = """\
ok       a: well
1 failure, 1 warning, 1 ok
FAIL     c: bad
           fix it
warning  b: odd
           look
""".splitlines()


def test_findings_end_with_what_is_wrong_worst_first_after_a_count() -> None:
    assert format_findings(FINDINGS, Screen()) == LINES
    assert format_findings([], Screen()) == ["0 failures, 0 warnings, 0 ok"]
    assert format_findings(FINDINGS * 2, Screen())[2] == "2 failures, 2 warnings, 2 ok"


def test_count_stands_at_the_end_too_where_what_is_wrong_is_taller_than_the_terminal() -> None:
    assert format_findings(FINDINGS, Screen(height=6)) == LINES
    assert format_findings(FINDINGS, Screen(height=5)) == [*LINES, LINES[1]]


def test_lines_are_wrapped_with_an_indent_and_long_words_stay_whole() -> None:
    path = "/usr/share/containers/oci/hooks.d"
    found = [failure(path, "no file calls it: use\n--hooks-dir=DIR", f"see {path} and install it again")]
    assert format_findings(found, Screen(40))[1:] == [
        f"FAIL     {path}:",
        "         no file calls it:",
        "         use\\n--hooks-dir=DIR",
        "           see",
        f"           {path}",
        "           and install it again",
    ]


def test_findings_are_objects_in_the_order_of_the_checks() -> None:
    assert to_objects(FINDINGS)[1:] == [
        {"level": "ok", "subject": "a", "found": "well", "remedy": None},
        {"level": "fail", "subject": "c", "found": "bad", "remedy": "fix it"},
    ]
