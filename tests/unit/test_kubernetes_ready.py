# SPDX-License-Identifier: Apache-2.0
"""Whether the chart's containers do their job, by their readiness probes, and what they do where there is none."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyz import archive

import host
import mounts
import node
import ready

if TYPE_CHECKING:
    from pyfakefs.fake_filesystem import FakeFilesystem

RUN = "/run/resctrl-mon-hook"


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return archive.build(output=tmp_path_factory.mktemp("image") / "resctrl-mon-hook.pyz").read_bytes()


@pytest.fixture(autouse=True)
def _node(fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node on which all is well."""
    fs.create_file(f"{ready._RESCTRL}/mon_data/mon_L3_00/llc_occupancy", contents="1\n")
    fs.create_dir(f"{ready._RESCTRL}/mon_groups")
    fs.create_dir(f"{ready._RESCTRL}/info")
    for name, field in (("reconcile", "ended_at"), ("watch", "alive_at")):
        fs.create_file(f"{RUN}/{name}.json", contents=json.dumps({field: time.time() - 60}))
    fs.create_dir("/node")
    monkeypatch.setattr(mounts, "find_problem", lambda _path: None)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\nhealthy\n", ""),
        (b"HTTP/1.0 500 No", "answers b'HTTP/1.0 500 No'"),
        (None, "does not answer at 127.0.0.1 port 1"),
    ],
)
def test_metrics_are_ready_if_the_endpoint_answers_well(
    monkeypatch: pytest.MonkeyPatch, answer: bytes | None, problem: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1] if answer else 1
        monkeypatch.setenv("METRICS", f"--listen=[127.0.0.1]:{port} --sum-domains")

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1000)
                client.sendall(answer or b"")

        if answer is not None:
            threading.Thread(target=serve, daemon=True).start()
        found = ready.find_problem("metrics", []) or ""
        assert (problem in found) if problem else (found == "")


def test_metrics_are_not_ready_if_resctrl_has_no_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRICS", "--listen=[127.0.0.1]:1")
    os.remove(f"{ready._RESCTRL}/mon_data/mon_L3_00/llc_occupancy")
    os.mkdir(f"{ready._RESCTRL}/mon_data/mon_L3_00/mon_sub_L3_00")
    assert "mon_data has no counters" in str(ready.find_problem("metrics", []))


@pytest.mark.parametrize(
    ("name", "record", "problem"),
    [
        ("reconcile", {"ended_at": 0}, None),
        ("reconcile", {"ended_at": -170}, None),
        ("reconcile", {"ended_at": -200}, "reconcile has not ended a run for 200 s: its log says why"),
        ("reconcile", {"started_at": 0, "ended_at": None}, "reconcile has not ended a run yet: its log says why"),
        ("reconcile", {}, "reconcile has not ended a run yet: its log says why"),
        ("reconcile", None, "reconcile has not ended a run yet: its log says why"),
        ("watch", {"alive_at": -170}, None),
        ("watch", {"alive_at": -300}, "watch has not written its record for 300 s: its log says why"),
    ],
)
def test_reconcile_and_watch_are_ready_by_their_records(
    name: str, record: dict[str, float | None] | None, problem: str | None
) -> None:
    file = Path(f"{RUN}/{name}.json")
    now = time.time()
    file.unlink()
    if record is not None:
        file.write_text(json.dumps({key: None if it is None else now + it for key, it in record.items()}))
    found = ready.find_problem(name, ["--prefix=/usr", "--strict", "--linger=600"])
    assert found is None if problem is None else found is not None
    assert (found or "").partition("0 s")[0] == (problem or "").partition("0 s")[0]


@pytest.mark.parametrize("name", ["reconcile", "watch", "metrics"])
def test_none_is_ready_with_a_lost_run_directory(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mounts, "find_problem", lambda path: f"{path} was removed on the node")
    assert ready.main([name, "--run-dir=/run/x"]) == 1
    assert capsys.readouterr().out == "/run/x was removed on the node: this container starts again with the node's\n"


@pytest.mark.parametrize("name", ["reconcile", "watch", "metrics"])
def test_none_is_ready_before_resctrl_is_mounted(name: str) -> None:
    for directory in ("info", "mon_groups"):
        os.rmdir(f"{ready._RESCTRL}/{directory}")
    assert "mount -t resctrl resctrl /sys/fs/resctrl" in str(ready.find_problem(name, []))


def test_a_port_in_use_is_named_with_its_value(monkeypatch: pytest.MonkeyPatch, fs: FakeFilesystem, pyz: bytes) -> None:
    fs.create_file(host.PYZ, contents=pyz)
    fs.create_dir("/dev")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("METRICS", f"--listen=[127.0.0.1]:{port}")
        assert node.main(["metrics", "--prefix=/usr", "--hooks-dir=/x", "--release=a/b"]) == 1
    remedy = "remedy: write another one into the chart's values, from 1024 to 65535"
    assert Path(node.MESSAGE).read_text() == f"metrics.port={port} is in use on this node, at 127.0.0.1; {remedy}"


# --- Nodes that cannot monitor


def without_directory() -> None:
    os.remove(f"{ready._RESCTRL}/mon_data/mon_L3_00/llc_occupancy")
    os.removedirs(f"{ready._RESCTRL}/mon_data/mon_L3_00")
    for name in ("info", "mon_groups"):
        os.rmdir(f"{ready._RESCTRL}/{name}")
    os.rmdir(ready._RESCTRL)


def without_monitoring() -> None:
    os.rmdir(f"{ready._RESCTRL}/mon_groups")


def without_python() -> None:
    Path(ready.UNSUPPORTED).write_text("Some Linux 12 has no /usr/bin/python3")


@pytest.mark.parametrize("change", [without_directory, without_monitoring, without_python])
@pytest.mark.parametrize("name", ["reconcile", "watch", "metrics"])
def test_all_are_ready_where_there_is_nothing_to_do(name: str, change: object) -> None:
    assert callable(change)
    change()
    assert ready.find_problem(name, ["--run-dir=/none"]) is None


def test_check_says_why_a_node_cannot_monitor_and_ends_well(
    fs: FakeFilesystem, pyz: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    fs.create_file(host.PYZ, contents=pyz)
    fs.create_dir("/dev")
    words = ["check", "--prefix=/usr", "--hooks-dir=/usr/share/containers/oci/hooks.d", "--release=a/b"]
    assert node.main(words) == 0
    message = Path(node.MESSAGE).read_text()
    assert "this host has no /usr/bin/python3: hooks cannot run there" in message
    assert message.endswith("Nothing is installed. Delete this pod to look again.")
    assert capsys.readouterr().out == message + "\n"
    assert "no /usr/bin/python3" in Path(ready.UNSUPPORTED).read_text()
    assert ready.main(["install", *words[1:]]) == 0, "there is nothing to install"
    capsys.readouterr()

    fs.create_file("/host/usr/bin/python3.11", st_mode=0o100755)
    fs.create_symlink("/host/usr/bin/python3", "python3.11")
    fs.create_file("/host/usr/lib/python3.11/os.py")
    assert node.main(words) == 0
    assert Path(node.MESSAGE).read_text() == "This node can monitor."
    assert not os.path.exists(ready.UNSUPPORTED)
    assert ready.main(["install", *words[1:]]) == 1
    assert "not in place as this pod installs them" in capsys.readouterr().out
    fs.create_file(ready.INSTALLED)
    assert ready.main(["install", *words[1:]]) == 0


def test_a_failure_is_left_as_the_message_of_the_container(fs: FakeFilesystem, pyz: bytes) -> None:
    fs.create_file(host.PYZ, contents=pyz)
    fs.create_dir("/dev")
    assert node.main(["check", "--prefix=/usr", "--hooks-dir=/x", "--release=a/b", "--lingr=1"]) == 1
    assert "unknown option '--lingr'" in Path(node.MESSAGE).read_text()
