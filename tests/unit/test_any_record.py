# SPDX-License-Identifier: Apache-2.0
"""Whatever the run directory holds, damage included: each command answers,
and reconcile gets through.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse_metrics

from hook import ending, report
from hook.cli import command_line as cli
from hook.models import Failure, Index, KeyState
from hook.node.models import ReconcileRecord, ViewRecord, WatchRecord
from tests.unit import strategies
from tests.unit.files import examples
from tests.unit.nodes import NOW, NodeFiles

IDS = ("c1", "c2", "87a3fb58-4084-4186-9c0e-93cf8c32e2ce")
STRAYS = ("c1@4711-99", "a b", "x" * 201, "é")
"""Names of files that cannot be ours: they are left as they are."""
PARTS = {"groups": KeyState, "members": Index, "unmonitored": Failure}
TOTALS = {"reconcile.json": ReconcileRecord, "watch.json": WatchRecord, "view.json": ViewRecord}
READERS = (
    ["list"],
    ["list", "unmonitored"],
    ["list", "--json"],
    ["metrics"],
    ["top", "--count=1", "--interval=0.001"],
    ["top", "--count=1", "--interval=0.001", "--json"],
    ["show", IDS[0]],
    ["show", IDS[0], "--json"],
)


def files() -> st.SearchStrategy[dict[str, Any]]:
    """Documents by their place in the run directory;
    each is one that the models accept, or nearly one.
    """
    by_place = {
        f"{part}/{name}.json": strategies.valid(model) | strategies.nearly_valid(model)
        for part, model in PARTS.items()
        for name in (*IDS, *STRAYS)
    }
    by_place.update({name: strategies.valid(model) for name, model in TOTALS.items()})
    return st.fixed_dictionaries({}, optional=by_place)


def written(directory: Path, records: dict[str, Any]) -> NodeFiles:
    """A node with these files, in which some records are of the key that they are named for,
    and some of what lives.
    """
    node = NodeFiles(directory)
    group = node.make(f"oci-{IDS[0]}", counters=NOW)
    for place, document in records.items():
        part, _, name = place.rpartition("/")
        if isinstance(document, dict) and part == "groups":
            document["key"] = name[: -len(".json")]
            groups = document.get("groups")
            if isinstance(groups, list) and groups and isinstance(groups[0], dict):
                document["groups"] = [{**groups[0], "path": group}]
                document["members"] = {IDS[0]: node.alive(group)}
        node.write(part, name, json.dumps(document, default=str))
    return node


@examples(40, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large)
@example(
    {
        "groups/c1.json": {
            "kind": "pod",
            "version": 1,
            "created_at": "",
            "recovering": True,
            "completed_at": "",
        }
    }
)
@given(files())
def test_each_command_answers(capsys: pytest.CaptureFixture[str], records: dict[str, Any]) -> None:
    complaints: list[str] = []
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write_line", lambda text, **_: complaints.append(text))
        # Records name any file of this machine.
        patch.setattr(ending, "append_lines", lambda *_: None)
        node = written(Path(directory), records)
        strays = {
            path: path.read_text() for path in node.run.rglob("*.json") if path.stem in STRAYS
        }
        for command in [*READERS, ["reconcile", "--dry-run"], ["reconcile", "--json"], *READERS]:
            cli.main([*command, *node.places])
            out, _ = capsys.readouterr()
            assert not [
                complaint
                for complaint in complaints
                if "unforeseen" in complaint or "; see resctrl-mon-hook help " in complaint
            ]
            assert out or command[0] != "top" or not node.run.exists()
            assert out.isascii()
            if "--json" in command and out:
                json.loads(out)
            if command == ["metrics"]:
                list(parse_metrics(out))
        assert {path: path.read_text() for path in strays} == strays
