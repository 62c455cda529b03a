# SPDX-License-Identifier: Apache-2.0
"""Whether the chart's containers do their job, by their readiness probes,
and what they do where there is none.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from argparse import Namespace
from pathlib import Path

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook.cli import command_line
from hook.cli.verbs import VERBS, Request
from hook.errors import HookError, Reason

import host
import mounts
import node
import ready

RUN = "/run/resctrl-mon-hook"
WORDS = ["--prefix=/usr", "--hooks-dir=/etc/hooks.d", "--strict", "--linger=600"]


@pytest.fixture(autouse=True)
def _node(fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node on which all is well."""
    fs.create_file(f"{ready._RESCTRL}/mon_data/mon_L3_00/llc_occupancy", contents="1\n")
    fs.create_dir(f"{ready._RESCTRL}/mon_groups")
    fs.create_dir(f"{ready._RESCTRL}/info")
    for name, field in (("reconcile", "ended_at"), ("watch", "alive_at"), ("view", "alive_at")):
        fs.create_file(f"{RUN}/{name}.json", contents=json.dumps({field: time.time() - 60}))
    fs.create_dir("/node")
    fs.create_dir("/var/log/resctrl-mon-hook")
    fs.create_dir("/dev")
    monkeypatch.setattr(mounts, "find_problem", lambda _path: None)


def test_metrics_are_ready_if_the_endpoint_answers_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(answer: bytes) -> str | None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            monkeypatch.setenv(
                "METRICS", f"--listen=[127.0.0.1]:{server.getsockname()[1]} --created"
            )

            def serve() -> None:
                client, _ = server.accept()
                with client:
                    client.recv(1000)
                    client.sendall(answer)

            threading.Thread(target=serve, daemon=True).start()
            return ready.find_problem("metrics", [])

    assert not ask(b"HTTP/1.0 200 OK\r\n\r\nhealthy\n")
    assert "answers b'HTTP/1.0 500 No'" in str(ask(b"HTTP/1.0 500 No"))
    monkeypatch.setenv("METRICS", "--listen=[127.0.0.1]:1")
    assert "does not answer at 127.0.0.1 port 1" in str(ready.find_problem("metrics", []))


def test_metrics_are_not_ready_if_resctrl_has_no_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRICS", "--listen=[127.0.0.1]:1")
    os.remove(f"{ready._RESCTRL}/mon_data/mon_L3_00/llc_occupancy")
    os.mkdir(f"{ready._RESCTRL}/mon_data/mon_L3_00/mon_sub_L3_00")
    assert "mon_data has no counters" in str(ready.find_problem("metrics", []))


def test_reconcile_watch_and_view_are_ready_by_their_records() -> None:
    never = "reconcile has not ended a run yet: its log says why"
    for name, record, problem in (
        ("reconcile", {"ended_at": 0}, None),
        ("reconcile", {"ended_at": -170}, None),
        ("reconcile", {"ended_at": -200}, "reconcile has not ended a run for 20"),
        ("reconcile", {"started_at": 0, "ended_at": None}, never),
        ("reconcile", {}, never),
        ("reconcile", None, never),
        ("watch", {"alive_at": -170}, None),
        ("watch", {"alive_at": -300}, "watch has not written its record for 30"),
        ("view", {"alive_at": -170}, None),
        ("view", {"alive_at": -300}, "view has not made all files for 30"),
        ("view", None, "view has not made all files yet: its log says why"),
    ):
        file = Path(f"{RUN}/{name}.json")
        file.unlink(missing_ok=True)
        if record is not None:
            now = time.time()
            file.write_text(
                json.dumps({key: None if age is None else now + age for key, age in record.items()})
            )
        answer = ready.find_problem(name, WORDS)
        assert (answer is None) if problem is None else (answer or "").startswith(problem)


@pytest.mark.parametrize(
    ("installed", "last", "is_ready"),
    [
        (1000, 1100, False),
        (1000, 1059, True),  # the runtime may have read hooksDir before
        (1000, 900, True),  # from before the install
        (1000, None, True),  # excluded, adopted, or a later one has the hook
        (None, 1100, True),  # `install` is not ready
    ],
)
def test_reconcile_is_not_ready_once_the_last_container_that_started_has_no_hook(
    fs: FakeFilesystem, installed: float | None, last: float | None, is_ready: bool
) -> None:
    if installed is not None:
        fs.create_file(ready.INSTALLED)
        os.utime(ready.INSTALLED, (installed, installed))
    containers = {name * 32: {"uid": f"pod-{name}"} for name in ("a1", "b2", "c3", "d4")}
    fs.create_file(
        f"{RUN}/unhooked.json",
        contents=json.dumps({"containers": containers, "last_started_at": last}),
    )
    problem = ready.find_problem("reconcile", WORDS)
    assert (problem is None) is is_ready
    assert is_ready or "4 containers run without it" in str(problem)
    assert is_ready or "UIDs pod-a1, pod-b2, pod-c3, ... (the log of reconcile has all)" in str(
        problem
    )
    assert is_ready or "read hooksDir=/etc/hooks.d?" in str(problem)


@pytest.mark.parametrize("name", ["reconcile", "watch", "view", "metrics"])
def test_none_is_ready_before_resctrl_is_mounted_and_all_are_where_it_cannot_be(name: str) -> None:
    for directory in ("info", "mon_groups"):
        os.rmdir(f"{ready._RESCTRL}/{directory}")
    assert "mount -t resctrl resctrl /sys/fs/resctrl" in str(ready.find_problem(name, []))
    os.mkdir(f"{ready._RESCTRL}/info")
    assert ready.find_problem(name, ["--run-dir=/none"]) is None, "it cannot monitor"
    os.mkdir(f"{ready._RESCTRL}/mon_groups")
    Path(ready.UNSUPPORTED).write_text("no resctrl")
    assert ready.find_problem(name, ["--run-dir=/none"]) is None


def test_a_port_in_use_is_named_with_its_value(
    monkeypatch: pytest.MonkeyPatch, fs: FakeFilesystem, shipped: bytes
) -> None:
    fs.create_file(host.SHIPPED, contents=shipped)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("METRICS", f"--listen=[127.0.0.1]:{port}")
        assert node.main(["metrics", "--prefix=/usr", "--hooks-dir=/x", "--release=a/b"]) == 1
    remedy = "remedy: write another one into the chart's values, from 1024 to 65535"
    assert (
        Path(node.MESSAGE).read_text()
        == f"metrics.port={port} is in use on this node, at 127.0.0.1; {remedy}"
    )


def test_a_failure_of_a_verb_is_left_as_a_sentence(
    monkeypatch: pytest.MonkeyPatch, fs: FakeFilesystem, shipped: bytes
) -> None:
    def fail(_node: host.Host) -> None:
        raise HookError(Reason.IO, "not root's", path=RUN, owner=7, mode=0o755)

    fs.create_file(host.SHIPPED, contents=shipped)
    monkeypatch.setitem(node.VERBS, "uninstall", fail)
    assert node.main(["uninstall", "--prefix=/usr", "--hooks-dir=/x", "--release=a/b"]) == 1
    problem = (
        f"the run directory {RUN} is not ours alone: its owner is uid 7, its mode 0755; hint: run "
        "it as root; "
    )
    assert Path(node.MESSAGE).read_text().startswith(problem)


def test_history_prints_the_lines_of_the_last_hour_and_those_that_come(
    monkeypatch: pytest.MonkeyPatch, fs: FakeFilesystem, shipped: bytes
) -> None:
    def run(given: Namespace, request: Request) -> int:
        called.append((given.follow, given.since, request.is_json, given.history))
        return 0

    called: list[tuple[bool, str, bool, list[str]]] = []
    fs.create_file(host.SHIPPED, contents=shipped)
    monkeypatch.setitem(VERBS, "history", VERBS["history"]._replace(run=run))
    monkeypatch.setattr("hook.__main__.dispatch", command_line.main)
    monkeypatch.setattr(node, "_end_with", sys.exit)
    followed: list[str] = []
    monkeypatch.setattr(node, "_follow_directories", lambda *, history: followed.append(history))
    with pytest.raises(SystemExit, match="0"):
        node.main(["history", "--prefix=/usr", "--hooks-dir=/x", "--release=a/b"])
    assert called == [(True, "1h", True, [])], "of the default place"
    assert followed == ["/var/log/resctrl-mon-hook/history.jsonl"]


# --- Nodes that cannot monitor


def test_check_says_why_a_node_cannot_monitor_and_ends_well(
    fs: FakeFilesystem, shipped: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    fs.create_file(host.SHIPPED, contents=shipped)
    os.rmdir(f"{ready._RESCTRL}/mon_groups")
    words = [
        "check",
        "--prefix=/usr",
        "--hooks-dir=/usr/share/containers/oci/hooks.d",
        "--release=a/b",
    ]
    assert node.main(words) == 0
    message = Path(node.MESSAGE).read_text()
    assert "the node's CPU or its kernel has no resctrl that monitors" in message
    assert message.endswith("Nothing is installed. Delete this pod to look again.")
    assert capsys.readouterr().out == message + "\n"
    assert Path(ready.UNSUPPORTED).read_text() == message
    assert ready.main(["install", *words[1:]]) == 0, "there is nothing to install"
    capsys.readouterr()

    os.mkdir(f"{ready._RESCTRL}/mon_groups")
    assert node.main(words) == 0
    assert Path(node.MESSAGE).read_text() == "This node can monitor."
    assert not os.path.exists(ready.UNSUPPORTED)
    assert ready.main(["install", *words[1:]]) == 1
    assert "not in place as this pod installs them" in capsys.readouterr().out
    fs.create_file(ready.INSTALLED)
    assert ready.main(["install", *words[1:]]) == 0
