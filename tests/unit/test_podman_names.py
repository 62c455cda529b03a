# SPDX-License-Identifier: Apache-2.0
"""The names of Podman's containers, from files of its storage as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hook.node import podman_names, runtime_config


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runtime_config, "_STORAGE", (str(tmp_path / "storage.conf"),))
    (tmp_path / "storage.conf").write_text(f'[storage]\n# graphroot = "/x"\ngraphroot = "{tmp_path}/storage/"\n')
    (tmp_path / "storage/overlay-containers").mkdir(parents=True)
    (tmp_path / "storage/vfs-containers").mkdir()
    return tmp_path / "storage"


def write(path: Path, *containers: dict[str, object]) -> None:
    path.write_text(json.dumps(containers))


def test_names_are_those_of_all_drivers_and_of_containers_that_do_not_outlive_a_boot(storage: Path) -> None:
    write(storage / "overlay-containers/containers.json", {"id": "b"}, {"id": "a", "names": ["db", "other"]})
    write(storage / "overlay-containers/volatile-containers.json", {"id": "c", "names": ["build"]})
    write(storage / "vfs-containers/containers.json", {"id": "d", "names": ["web-infra"]}, {"id": "e", "names": []})
    assert podman_names.read_names() == {"a": "db", "c": "build", "d": "web"}


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"id": 1, "names": ["x"]}]', '[{"id": "a", "names": [1]}]', "{}"])
def test_what_is_no_list_of_containers_is_skipped(storage: Path, text: str) -> None:
    (storage / "overlay-containers/containers.json").write_text(text)
    write(storage / "vfs-containers/containers.json", {"id": "d", "names": ["web"]})
    assert podman_names.read_names() == {"d": "web"}


def test_without_podman_there_are_no_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runtime_config, "_STORAGE", (str(tmp_path / "none"),))
    monkeypatch.setattr(runtime_config, "read_podman_graph_root", lambda: str(tmp_path / "none"))
    assert podman_names.read_names() == {}


def test_the_usual_place_is_podmans_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runtime_config, "_STORAGE", (str(tmp_path / "none"),))
    assert runtime_config.read_podman_graph_root() == "/var/lib/containers/storage"
