# SPDX-License-Identifier: Apache-2.0
"""Which createRuntime hooks the files of CDI devices have, in both of their formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hook.host import cdi

HOOK = {"hookName": "createRuntime", "path": "/usr/bin/join", "args": ["join", "--class: x"]}
OTHER = {"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk"}
# As kubelet plugins write them
BLOCK = """\
cdiVersion: 0.6.0
kind: resctrl.example.com/class
containerEdits:
  deviceNodes:
    - path: /dev/null
  hooks:
    - hookName: createContainer
      path: /usr/bin/nvidia-ctk
devices:
  - name: gold
    containerEdits:
      env:
        - CLASS=gold
      hooks:
        - args:
            - join
            - "--class: gold"
          hookName: "createRuntime"   # after those of hooks.d
          path: '/usr/bin/join'
        - path: /usr/bin/late
          hookName: poststop
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cdi, "DIRECTORIES", (str(tmp_path), "/nowhere"))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", json.dumps({"containerEdits": {"hooks": [OTHER, HOOK]}})),
        ("a.json", json.dumps({"devices": [{"name": "x", "containerEdits": {"hooks": [HOOK]}}]}, indent=1)),
        ("a.yaml", json.dumps({"containerEdits": {"hooks": [HOOK, HOOK]}})),
        ("a.yaml", BLOCK),
        ("a.yml", BLOCK.replace("  ", "    ")),
    ],
)
def test_a_create_runtime_hook_is_found(directory: Path, name: str, text: str) -> None:
    (directory / name).write_text(text)
    assert cdi.list_hooks() == [(f"{directory}/{name}", "/usr/bin/join")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        "{",
        '{"devices": 7}',
        '{"devices": [7, {"containerEdits": []}]}',
        '{"containerEdits": {"hooks": 7}}',
        json.dumps({"containerEdits": {"hooks": [7, OTHER, {"hookName": "createRuntime"}]}}),
        BLOCK.partition("devices")[0],
    ],
)
def test_a_file_without_a_create_runtime_hook_or_invalid_has_none(directory: Path, text: str) -> None:
    for name in ("a.json", "b.yaml"):
        (directory / name).write_text(text)
    (directory / "c.json").mkdir()
    assert cdi.list_hooks() == []


def test_files_with_other_endings_are_not_read(directory: Path) -> None:
    (directory / "a.json.tmp").write_text(json.dumps({"containerEdits": {"hooks": [HOOK]}}))
    assert cdi.list_hooks() == []
