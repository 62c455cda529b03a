# SPDX-License-Identifier: Apache-2.0
"""The names that the kubelet gives its directories of logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hook.node import kubelet_logs

UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"
ID = "5f3c" * 16


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is read instead of /var/log."""
    monkeypatch.setattr(kubelet_logs, "_LOGS", str(tmp_path))
    for name in ("pods", "containers"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (f"shop_web-0_{UID}", {UID: ("shop", "web-0")}),
        (f"kube-system_etcd-node.example.com_{UID.replace('-', '')}", {UID: ("kube-system", "etcd-node.example.com")}),
        (f"shop_{UID}", {}),
        (f"_web_{UID}", {}),
        (f"shop__{UID}", {}),
        (f"shop_web_x_{UID}", {}),
        ("shop_web_0", {}),
        (f"{UID}.log", {}),
    ],
)
def test_pods_are_named_by_their_directories(logs: Path, entry: str, expected: dict[str, tuple[str, str]]) -> None:
    (logs / "pods" / entry).mkdir()
    assert kubelet_logs.read_pods() == expected


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (f"web-0_shop_app-{ID}.log", {ID: "app"}),
        (f"web-0_shop_side-car-{ID}.log", {ID: "side-car"}),
        (f"web-0_shop_app-{ID}", {}),
        (f"web-0_shop_{ID}.log", {}),
    ],
)
def test_containers_are_named_by_their_links(logs: Path, entry: str, expected: dict[str, str]) -> None:
    (logs / "containers" / entry).symlink_to("nowhere")
    assert kubelet_logs.read_containers() == expected


def test_a_name_that_was_cut_names_no_container(logs: Path) -> None:
    """The kubelet cuts names of links after 251 characters."""
    entry = f"{'p' * 200}_shop_app-{ID}"[:251]
    (logs / "containers" / f"{entry}.log").symlink_to("nowhere")
    assert ID not in kubelet_logs.read_containers()


def test_a_directory_with_more_entries_than_a_node_has_pods_names_nothing(logs: Path) -> None:
    for number in range(10_000):
        (logs / "containers" / f"web_shop_app-{number}.log").touch()
    assert len(kubelet_logs.read_containers()) == 10_000
    (logs / "containers" / "web_shop_app-more.log").touch()
    assert kubelet_logs.read_containers() == {}


def test_without_a_kubelet_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet_logs, "_LOGS", str(tmp_path / "none"))
    assert (kubelet_logs.read_pods(), kubelet_logs.read_containers()) == ({}, {})
