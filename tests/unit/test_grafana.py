# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard is complete, and asks for metrics and labels that exist.

Grafana itself does not run here, but the models of its SDK do. What a panel shows is what
Prometheus' own checker and the table of metrics say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from hook.show.snapshot import EVENTS
from tests.unit.metrics import FAMILIES, OF_EVENTS

DASHBOARD: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[2] / "packaging/grafana/resctrl-mon-hook.json").read_text(
        encoding="utf-8"
    )
)
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
GRAPHS = [panel for panel in PANELS if panel["type"] != "row"]
VARIABLES: dict[str, dict[str, Any]] = {
    variable["name"]: variable for variable in DASHBOARD["templating"]["list"]
}
QUERIES: list[str] = [
    variable["query"]["query"] for variable in VARIABLES.values() if variable["type"] == "query"
]
EXPRESSIONS: list[str] = [target["expr"] for panel in GRAPHS for target in panel["targets"]]
ADDED_BY_PROMETHEUS = {"instance", "job", "exported_namespace", "exported_pod"}
BUILT_IN = {"__rate_interval", "__range", "1"}  # $1 is label_replace's


def list_metrics(expression: str) -> set[str]:
    return set(re.findall(r"\bresctrl_mon_\w+", expression))


def test_it_can_be_imported() -> None:
    assert DASHBOARD["uid"]
    assert len(DASHBOARD["uid"]) <= 40
    assert DASHBOARD["title"]
    assert isinstance(DASHBOARD["schemaVersion"], int)
    assert "id" not in DASHBOARD, "an id is of one Grafana; the uid names it everywhere"
    assert "__inputs" not in DASHBOARD, "the data source is a variable"


def test_grafana_knows_every_field() -> None:
    """The models of its SDK leave out what they do not know.

    They lack `definition`, a query as the editor shows it.
    """
    plugins.register_default_plugins()
    understood = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARD)))
    assert {
        place for place in _list_lost(DASHBOARD, understood) if not place.endswith(".definition")
    } == set()


def _list_lost(whole: object, understood: object, at: str = "") -> Iterator[str]:
    """Where in a JSON value something is missing, or is another value."""
    if isinstance(whole, dict) and isinstance(understood, dict):
        for name, value in whole.items():
            yield from _list_lost(value, understood.get(name), f"{at}.{name}")
    elif isinstance(whole, list) and isinstance(understood, list) and len(whole) == len(understood):
        for number, pair in enumerate(zip(whole, understood)):
            yield from _list_lost(*pair, f"{at}.{number}")
    elif whole != understood:
        yield at


def test_every_panel_asks_the_data_source_that_is_chosen() -> None:
    assert VARIABLES["datasource"]["type"] == "datasource"
    assert VARIABLES["datasource"]["query"] == "prometheus"
    for panel in GRAPHS:
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for asked in (panel, *panel["targets"]):
            assert asked["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_expressions_have_variables_and_choices_that_exist() -> None:
    for expression in EXPRESSIONS + QUERIES:
        assert set(re.findall(r"\$(\w+)", expression)) <= set(VARIABLES) | BUILT_IN
    for query in QUERIES:
        (name,) = list_metrics(query)
        has = {label for labels in FAMILIES[name].samples for label, _ in labels}
        assert {*re.findall(r"label_values\(.*, (\w+)\)", query)} <= has | ADDED_BY_PROMETHEUS


def test_a_node_that_is_scraped_twice_counts_once_and_at_most_twenty_pods_are_shown() -> None:
    assert (VARIABLES["job"]["multi"], VARIABLES["job"]["includeAll"]) == (False, False)
    assert list(VARIABLES).index("job") < list(VARIABLES).index("instance")
    for expression in [*EXPRESSIONS, *QUERIES[1:]]:
        assert expression.count('{job="$job"') == len(re.findall(r"\bresctrl_mon_\w+", expression))
    for expression in EXPRESSIONS:
        assert expression.startswith("topk(20, ") is bool(
            re.search(r"by \([^)]*\b(pod|key|value)\b", expression)
        )


NOT_SHOWN = {"resctrl_mon_endpoint_dropped_connections_total"}


def test_everything_that_the_hook_measures_of_pods_for_bills_is_on_it() -> None:
    shown = set().union(*map(list_metrics, EXPRESSIONS))
    events = ("core_energy", "mbm_total_bytes", "mbm_local_bytes", "llc_occupancy")
    assert shown >= {
        f"resctrl_mon_{part}{EVENTS[event].metric}" for event in events for part in ("", "node_")
    }
    assert shown >= {
        f"resctrl_mon_{part}core_energy_joules_total" for part in ("namespace_", "label_")
    }
    assert shown >= FAMILIES.keys() - OF_EVENTS - NOT_SHOWN
