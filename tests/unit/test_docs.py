# SPDX-License-Identifier: Apache-2.0
"""The documents say what the code does: first what holds for all pages,
then a section for each page.

The screens that pages show are compared in test_docs_screens.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import yaml

import build
from hook import __version__, entry
from hook.cli import verbs
from hook.cli.command_line import main, parse_command
from hook.cli.options import ARGUMENTS, make_row
from hook.errors import HookError, Reason
from hook.models import KeyState, MonGroup, Options
from hook.node.command import NOT_EXECUTABLE, NOT_FOUND
from hook.node.paths import Places
from hook.reconcile.diagnose import VERBS
from hook.show.lists import STATES
from hook.store import RunDir
from hook.view import make_once
from tests.bench import attribution, scale, speed
from tests.conftest import TIERS
from tests.faults.__main__ import PARTS
from tests.support import fleet, prometheus
from tests.unit import lines
from tests.unit.documents import (
    PAGES,
    ROOT,
    anchors,
    blocks,
    code,
    first_words,
    page,
    rows,
    show_argument,
)
from tests.unit.files import start
from tests.unit.metrics import FAMILIES

BOOK = [name for name in PAGES if not name.startswith("tests/")]
"""The pages for readers; those in tests/ are notes beside what they are about."""
BANNED = re.compile(
    r"\b(?:whoever|somebody|nobody|told|anew|stands there|in vain|amid|incarnation|to be had)\b",
    re.I,
)
REASONS = [value for name, value in vars(Reason).items() if name.isupper()]

# --- All pages


def links(name: str) -> list[str]:
    return [
        target
        for target in re.findall(r"\]\(([^)]+)\)", page(name))
        if not target.startswith("https://")
    ]


def test_links_lead_to_a_file_and_a_heading_in_it() -> None:
    broken = []
    for name, link in [(source, link) for source in PAGES for link in links(source)]:
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        if not target.exists() or (
            anchor and anchor not in anchors(target.read_text(encoding="utf-8"))
        ):
            broken.append(f"{name}: {link}")
    assert broken == []


def test_readme_leads_to_every_page() -> None:
    linked, new = {"README.md"}, {"README.md"}
    while new:
        targets = {(name, link.partition("#")[0]) for name in new for link in links(name)}
        there = {
            os.path.normpath(os.path.join(os.path.dirname(name), path))
            for name, path in targets
            if path
        }
        new = {name for name in there if name in PAGES} - linked
        linked |= new
    assert set(BOOK) <= linked


def test_paths_of_the_repository_exist_and_those_below_hook_are_named_in_one_page() -> None:
    """A module that moves is then renamed in one page: the way into the code."""
    tops = r"(?<![\w/.~-])((?:hook|oci-hooks|packaging|tests|docs|\.github|\.ci)/[\w./-]*\w)"
    places = {
        (name, path) for name in PAGES for path in re.findall(tops, page(name).replace("\\", ""))
    }
    assert {(name, path) for name, path in places if not (ROOT / path).exists()} == set()
    assert {name for name, path in places if re.match("hook/(?!__init__)", path)} == {
        "docs/design.md"
    }


def calls(name: str) -> set[str]:
    """Return the command lines of the program on a page, from the verb on,
    without those that fail on purpose.
    """
    text = page(name)
    if name == "docs/commands.md":
        text = text.replace(page(name, "Exit status"), "")
    start = r"(?:^|sudo |[|] |root |dist/|\$ |hooks\.d/)resctrl-mon-hook(?:\.pyz)? ([a-zA-Z-].*)"
    matches = [match[1] for line in code(text) if (match := re.search(start, line))]
    return {re.split(r" +[#|<>]|'", call)[0] for call in matches}


def test_command_lines_are_accepted() -> None:
    problems = []
    for name, call in [(source, call) for source in PAGES for call in sorted(calls(source))]:
        verb, *arguments = shlex.split(call)
        try:
            if verb in entry.STAGES:
                assert entry.parse(arguments)[1] == []
            elif verb != "--version":
                parse_command(verb, arguments)
        except (HookError, AssertionError) as error:
            problems.append(f"{name}: {call}: {error}")
    assert problems == []


def test_verbs_and_options_of_the_build_exist() -> None:
    """The options of build.py and of what it starts are those in their sources;
    one is pytest's own.
    """
    assert build.__doc__ is not None
    lines = [line for name in PAGES for line in code(page(name))]
    verbs = {verb for line in lines for verb in re.findall(r"build\.py ([a-z]+)", line)}
    assert {verb for verb in verbs if f"build.py {verb}" not in build.__doc__} == set()
    sources = [
        ROOT / "build.py",
        *(ROOT / "packaging").rglob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
    ]
    texts = [
        path.read_text(encoding="utf-8")
        for path in sources
        if path.parent != ROOT / "tests" / "unit"
    ]
    commands = [word for line in lines for word in re.findall(r"python3 \S+\.py\b[^|;&#]*", line)]
    # Each field is an option of a benchmark.
    plans = (attribution.GuestPlan, scale.Sizes, speed.SpeedPlan)
    fields = {f"--{field}" for plan in plans for field in plan._fields}
    known = {"--durations", *fields, *re.findall(r"""["'](--[a-z-]+)["']""", "".join(texts))}
    assert set(re.findall(r" (--[a-z-]+)", " ".join(commands))) - known == set()


def test_wording_is_plain_and_lines_fit() -> None:
    wrong = []
    for name in BOOK:
        text = page(name)
        wrong += BANNED.findall(text)
        lines = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL).splitlines()
        wrong += [line for line in lines if len(line) > 120 and not line.startswith(("|", "    "))]
    assert wrong == []


def test_wording_of_the_program_is_plain() -> None:
    """In docstrings, comments and messages."""
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "hook").rglob("*.py")}
    assert {path: words for path, text in sources.items() if (words := BANNED.findall(text))} == {}


def list_names(code: CodeType) -> Iterator[str]:
    """The names that code has, and what is defined in it."""
    yield from (*code.co_names, *code.co_varnames, *code.co_cellvars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from list_names(constant)


@pytest.mark.parametrize("top", ["hook", "tests"])
def test_no_variable_is_called_it(top: str) -> None:
    codes = {path: compile(path.read_bytes(), path, "exec") for path in (ROOT / top).rglob("*.py")}
    assert [path for path, code in codes.items() if "it" in list_names(code)] == []


def own_options(verb: str) -> set[str]:
    """The options of a command that neither all commands have nor the hook."""
    return {words[0] for words, _ in ARGUMENTS[verb].rows}


@pytest.mark.parametrize(
    ("name", "head", "expected"),
    [
        ("commands", "command", {f"resctrl-mon-hook {verb}" for verb in verbs.VERBS}),
        ("commands", "STATE", {*STATES}),
        ("install", "option", own_options("install")),
        (
            "jobs",
            "exit status",
            {"0", "2", *map(str, (*verbs.JOB_STATUSES.values(), NOT_EXECUTABLE, NOT_FOUND))},
        ),
        ("metrics", "metric", {*FAMILIES}),
        ("options", "option", {f"--{name.replace('_', '-')}" for name in Options.model_fields}),
        ("reconcile", "action", {*VERBS}),
        ("reconcile", "option", {*own_options("reconcile"), "--linger"}),
        ("testing", "part", {*PARTS}),
        ("troubleshooting", "reason", {*REASONS}),
    ],
)
def test_table_has_each_of_what_there_is_and_no_other(
    name: str, head: str, expected: set[str]
) -> None:
    words = first_words(page(f"docs/{name}.md"), head)
    if head == "command":
        words = [" ".join(word.split()[:2]) for word in words if " " in word]
    assert {word.partition("=")[0] for word in words} == expected


# --- README.md


def test_readme_is_short() -> None:
    assert len(page("README.md").splitlines()) <= 150


def test_readme_shows_a_bill_first_and_what_is_to_be_seen_before_the_installation() -> None:
    text = page("README.md")
    assert 'history --since "last night" --by=user' in "".join(text.splitlines()[:24])
    assert text.index("\n## What you see") < text.index("\n## Install")


# --- docs/install.md


def test_install_names_everything_that_is_installed() -> None:
    table = " ".join(first_words(page("docs/install.md", "What it installs"), "path"))
    for path in Places().files():
        anywhere = re.sub(r"-(kubernetes|podman)\.json$", "-*.json", path)
        assert anywhere.replace("reconcile.service", "reconcile.timer") in table
        assert os.path.splitext(path)[1] in table


# --- docs/options.md and docs/commands.md


def test_options_has_each_option_with_its_value_and_default() -> None:
    shown = {"": "", "[]": "", "{}": "", "False": "off"}
    expected = [
        [
            f"`{show_argument(make_row(name))}`".replace("|", r"\|"),
            shown.get(str(default), f"`{default}`"),
        ]
        for name, default in Options().model_dump().items()
    ]
    assert sorted(row[:2] for row in rows(page("docs/options.md"), "option")) == sorted(expected)


def test_commands_says_which_commands_take_dry_run_and_the_directories() -> None:
    text = " ".join(page("docs/commands.md").split())
    assert "With `--dry-run`, which `reconcile`, `install` and `uninstall` take" in text
    takers = [name for name in verbs.VERBS if "--dry-run" in own_options(name)]
    assert takers == ["reconcile", "install", "uninstall"]
    assert (
        "Every command but `completion` takes `--resctrl-root`, `--run-dir` and `--group-prefix`"
        in text
    )
    assert [
        name for name, verb in verbs.VERBS.items() if not {*verbs.PLACES} <= {*verb.options}
    ] == ["completion"]


def test_commands_has_the_exit_status_of_each_call(pyz: Path, tmp_path: Path) -> None:
    shown = {
        row[0].strip("`"): int(row[1].partition(";")[0])
        for row in rows(page("docs/commands.md"), "call")
    }
    texts = {}
    for call in shown:
        _, verb, *more = shlex.split(call)
        elsewhere = (
            []
            if verb in {"--version", "help"}
            else [f"--run-dir={tmp_path}", f"--resctrl-root={tmp_path}"]
        )
        texts[call] = start([pyz, verb, *elsewhere, *more]).returncode
    assert texts == shown


# --- docs/metrics.md


def test_metrics_configures_a_collector_of_defined_parts_that_scrapes_our_endpoint() -> None:
    collector, discovery = map(yaml.safe_load, blocks(page("docs/metrics.md", "OpenTelemetry")))
    (pipeline,) = collector["service"]["pipelines"].values()
    assert pipeline == {
        part: [*collector[part]] for part in ("receivers", "processors", "exporters")
    }
    (job,) = collector["receivers"]["prometheus"]["config"]["scrape_configs"]
    endpoint = f"http://{job['static_configs'][0]['targets'][0]}{job['metrics_path']}"
    assert f" {endpoint} " in page("packaging/systemd/resctrl-mon-hook-metrics.service")
    copied = re.findall(
        r', datapoint.attributes\["(\w+)"\]',
        "".join(collector["processors"]["transform"]["metric_statements"]),
    )
    assert set(copied) <= {
        *dict(next(iter(FAMILIES["resctrl_mon_core_energy_joules_total"].samples)))
    }
    chart = "".join(
        path.read_text("utf-8")
        for path in (ROOT / "packaging/kubernetes/chart/templates").glob("*.*")
    )
    assert f"{{name: {discovery['relabel_configs'][0]['regex']}, containerPort:" in chart
    labels = discovery["kubernetes_sd_configs"][0]["selectors"][0]["label"].split(",")
    made = chart.replace("{{ .Chart.Name }}", "resctrl-mon-hook")
    assert [label for label in labels if label.replace("=", ": ") + "\n" not in made] == []


# --- docs/consumer-view.md


def test_consumer_view_has_every_file_of_an_entry(tmp_path: Path) -> None:
    kernel = "/sys/fs/resctrl"
    begin = {"mon_L3_00/mbm_total_bytes": "1"}
    group = MonGroup(
        path=f"{kernel}/mon_groups/oci-a", ctrl_group="/", begin=begin, before=begin, known=begin
    )
    ended = MonGroup(path=f"{kernel}/mon_groups/oci-b", ctrl_group="/", begin=begin, end=begin)
    run = RunDir(str(tmp_path / "run"))
    for state in (
        KeyState(key="a", kind="container", created_at="x", groups=[group]),
        KeyState(key="b", kind="container", created_at="x", completed_at="y", groups=[ended]),
        KeyState(key="c", kind="container", created_at="x", lingering_since=9.0, groups=[group]),
    ):
        run.write(KeyState, state.key, state)
    assert make_once(Options(resctrl_root=kernel, run_dir=run.path)) == []
    places = [tmp_path / "run" / "mon_groups" / key for key in "abc"]
    files = {
        str(path.relative_to(top)) for top in places for path in top.rglob("*") if not path.is_dir()
    }
    block = blocks(page("docs/consumer-view.md"))[0].replace(
        "<domain>/<event>", "mon_L3_00/mbm_total_bytes"
    )
    names = {
        name
        for line in block.splitlines()[2:]
        for name in re.split(r", ", re.split(r"  +", line.strip())[0])
    }
    assert files == names


# --- docs/history.md

COLUMNS = {
    "integer": ("BIGINT", "Int64"),
    "number": ("DOUBLE", "Float64"),
    "string": ("VARCHAR", "string"),
    "date-time": ("TIMESTAMPTZ", "datetime64[ns, UTC]"),
    "object of string": ("MAP(VARCHAR, VARCHAR)", "object"),
    "object of number": ("MAP(VARCHAR, DOUBLE)", "object"),
    "array of string": ("VARCHAR[]", "object"),
    "array of JobContainer": ("STRUCT(id VARCHAR, name VARCHAR)[]", "object"),
}
"""What DuckDB and pandas make of the types of the schema."""


def name_type(field: dict[str, Any]) -> str:
    """Name the type of a field of the schema, or of a value of it or null."""
    one = field.get("anyOf", [field])[0]
    inner = one.get("additionalProperties") or one.get("items")
    of = f" of {inner.get('type') or inner['$ref'].rpartition('/')[2]}" if inner else ""
    return str(field.get("format") or one["type"] + of)


def test_history_names_the_types_of_the_schema_for_duckdb_and_pandas() -> None:
    _, duckdb, pandas = blocks(page("docs/history.md", "jq, DuckDB, pandas"))
    fields = json.loads(page("docs/history.schema.json"))["properties"]
    columns = re.findall(r"""(?:[{\n,] *)"?(\w+)"?: '([^']+)'""", duckdb)
    assert columns == [(name, COLUMNS[name_type(field)][0]) for name, field in fields.items()]
    types = ast.literal_eval(pandas.partition("TYPES = ")[2].partition("\njobs")[0])
    assert types == {name: COLUMNS[name_type(field)][1] for name, field in fields.items()}


RUN = {
    "jq": ["sh", "-ec"],
    "DuckDB": [
        sys.executable,
        "-c",
        "import duckdb, sys; duckdb.sql(sys.argv[1]).write_csv('/dev/stdout', sep='\t')",
    ],
    "pandas": [sys.executable, "-c"],
}
"""How the examples of the page are run, in their order there."""
CRASHED = [
    (1, "alice", 2.5, "01:00"),
    *((2, "alice", joules, "01:00") for joules in (4.0, 5.0)),  # within a second
    # The clock was set back.
    *((3, "bob", joules, end) for joules, end in ((2.0, "01:05"), (3.0, "00:05"))),
    (4, None, 2.5, "01:06"),
    (5, "bob", 7.0, "01:07"),
]


@pytest.mark.parametrize("tool", RUN)
def test_history_has_examples_that_agree_with_it_on_what_a_crash_has_left(
    tool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Torn lines, zeros, and lines with one id, of which the last counts, in the newest file."""
    if tool == "jq" and shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    file = tmp_path / "history.jsonl"
    parts = [
        lines.line(
            lines.make(
                number,
                labels={"user": user} if user else {},
                use={"core_energy": joules},
                end=f"2026-11-17T{end}:00Z",
            )
        )
        for number, user, joules, end in CRASHED
    ]
    damage = [parts[0][:99] + b"\n", b"\0" * 4096 + b"\n"]
    older = [] if tool == "pandas" else parts[:2]  # that example reads one file
    file.with_name(f"{file.name}.1").write_bytes(b"".join([*older, parts[0][:99]] if older else []))
    file.write_bytes(b"".join([*parts[len(older) :], *damage, parts[0][:99]]))
    assert main(["history", "--by=user", "--json", f"--history={file}"]) == 0
    expected = {
        str(row["name"] or "-"): row["use"]["core_energy"]
        for row in json.loads(capsys.readouterr().out)["sums"]
    }
    assert expected == {"-": 2.5, "alice": 7.5, "bob": 10.0}
    example = blocks(page("docs/history.md", "jq, DuckDB, pandas"))[[*RUN].index(tool)]
    assert "/var/log/resctrl-mon-hook/history.jsonl" in example
    example = example.replace("/var/log/resctrl-mon-hook/history.jsonl", str(file))
    done = subprocess.run([*RUN[tool], example], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    sums = re.findall(r"^(\S*)[ \t]+(?:\d+\t)?([\d.]+)$", done.stdout, re.MULTILINE)
    assert {
        {"": "-", "NaN": "-"}.get(name, name): float(joules) for name, joules in sums
    } == expected


# --- docs/security.md


def test_security_names_a_test_for_each_thing_that_a_tenant_can_write_or_be() -> None:
    cells = [row[-1] for row in rows(page("docs/security.md"), "what a tenant can write or be")]
    assert len(cells) >= 10
    assert [cell for cell in cells if not re.search(r"`tests/[\w/]+\.py`", cell)] == []


# --- docs/design.md


def test_design_draws_and_explains_every_state() -> None:
    text = page("docs/design.md", "The states of a key")
    drawn = {
        state
        for arrow in re.findall(r"^ +(\S+) --> ([^\s:]+)", text, re.MULTILINE)
        for state in arrow
    }
    assert drawn - {"[*]"} == set(first_words(text, "state"))
    shown = {row[3].strip("`") for row in rows(text, "state")} - {"not shown"}
    assert shown == {*STATES}


def test_design_names_every_directory_of_the_run_directory(tmp_path: Path) -> None:
    make_once(Options(run_dir=str(tmp_path / "run")))
    names = {word.partition("/")[0] for word in first_words(page("docs/design.md"), "path")}
    assert set(os.listdir(tmp_path / "run")) <= names


# --- CONTRIBUTING.md, CHANGELOG.md and what CI runs


def test_contributing_has_every_tier() -> None:
    assert [row[0] for row in rows(page("CONTRIBUTING.md"), "tier")] == list(TIERS)


def test_contributing_lists_an_empty_node_from_the_sources(tmp_path: Path) -> None:
    (example,) = [block for block in blocks(page("CONTRIBUTING.md")) if "-m hook list" in block]
    example = example.replace(".venv/bin/python", sys.executable).replace(
        "/tmp/node", str(tmp_path)
    )
    done = subprocess.run(
        ["sh", "-ec", example], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("NAME")


def test_changelog_has_the_present_version() -> None:
    assert re.search(rf"^## {re.escape(__version__)}\b", page("CHANGELOG.md"), re.MULTILINE)


# --- docs/fleet.md

HOUR = 6
"""Samples: there is one every 10 minutes, 100 more each time."""


def test_fleet_has_queries_that_prometheus_answers_with_all_that_nodes_used_in_a_month(
    tmp_path: Path,
) -> None:
    """Of a node that was there, of one that came, from 0 on, and of one that left.

    increase() adds half an interval of that one, so that its sums are rounded.
    """
    promtool = prometheus.program("promtool")
    if promtool is None:
        pytest.skip("no promtool (Debian: prometheus)")
    energy, users, unknown, rules, recorded, exact = blocks(
        page("docs/fleet.md", "Bill a cluster by namespace")
    )
    node = 'resctrl_mon_namespace_core_energy_joules_total{namespace="%s", instance="%s"}'
    all_month = f"0+100x{745 * HOUR}"
    series = {
        node % ("a", "stays"): all_month,
        node % ("a", "comes"): f"_x{424 * HOUR} 0+100x{321 * HOUR}",
        node % ("b", "leaves"): f"0+100x{324 * HOUR}",
        'resctrl_mon_label_core_energy_joules_total{label="user", value="ann"}': all_month,
        'resctrl_mon_namespace_unknown_runs_total{namespace="a"}': all_month,
    }
    bill = {"a": (720 + 320) * HOUR * 100, "b": 300 * HOUR * 100}
    expected = {
        energy: {f'{{namespace="{name}"}}': joules for name, joules in bill.items()},
        users: {'{value="ann"}': 720 * HOUR * 100},
        unknown: {'{namespace="a"}': 720 * HOUR * 100},
    }
    asked = [
        (f"round({query.strip()}, 1000)", "744h", samples) for query, samples in expected.items()
    ]
    asked.append((exact.strip(), "744h", expected[energy]))
    # Half an hour after the last record, so that there are 720 in a month, up to now.
    asked.append((f"round({recorded.strip()}, 1000)", "744h30m", expected[energy]))
    case = {
        "interval": "10m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": query,
                "eval_time": at,
                "exp_samples": [
                    {"labels": labels, "value": value} for labels, value in samples.items()
                ],
            }
            for query, at, samples in asked
        ],
    }
    (tmp_path / "rules.yaml").write_text(rules, encoding="utf-8")
    tested = {"rule_files": ["rules.yaml"], "evaluation_interval": "1h", "tests": [case]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(tested), encoding="utf-8")
    words = [promtool, "test", "rules", str(tmp_path / "test.yaml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_fleet_counts_the_series_of_forty_namespaces_and_ten_events() -> None:
    for nodes, *cells in rows(page("docs/fleet.md"), "nodes"):
        number = int(nodes.replace(",", ""))
        assert [int(cell.replace(",", "")) for cell in cells] == [
            40 * number,
            400 * number,
            400 * number // 30,
        ]


@pytest.mark.parametrize(
    ("by", "name"),
    [
        ("namespace", "namespace"),
        ("user", "user"),
        ("node", "node"),
        ("day, in UTC", "day"),
        ("pod", None),
        ("job, over all of its nodes", "key"),
    ],
)
def test_fleet_bills_by_duckdb_what_the_lines_of_many_nodes_have(
    by: str, name: str | None, tmp_path: Path
) -> None:
    duckdb = pytest.importorskip("duckdb")
    truth = fleet.write_files(tmp_path, nodes=3, lines=3000, seed=3, names=("", ".1", ".2.gz"))
    text = page("docs/fleet.md", "DuckDB")
    (query,) = blocks(text)
    assert "'/srv/bills/" in query
    query = query.replace("/srv/bills", str(tmp_path))
    others = {row[0]: row[1:] for row in rows(text, "by")}
    if by != "namespace":
        column, value = others.pop(by)
        query = query.replace(
            ", namespace: 'VARCHAR'", "".join(f", {code}" for code in re.findall("`(.+)`", column))
        )
        query = query.replace("SELECT namespace,", f"SELECT {value.strip('`')} AS namespace,")
    bill = {value: joules for value, _, joules in duckdb.sql(query).fetchall()}
    assert math.fsum(bill.values()) == pytest.approx(
        math.fsum(truth.joules("node").values()), rel=1e-12
    )
    if name == "key":
        del bill[""]  # all that is no job
    if name is not None:
        assert bill == pytest.approx(truth.joules(name), rel=1e-12)


def test_fleet_configures_collectors_with_parts_that_exist_and_read_a_history() -> None:
    texts = [
        blocks(page("docs/fleet.md", name))[0]
        for name in ("OpenTelemetry Collector", "Vector", "Fluent Bit")
    ]
    collector, vector, fluent_bit = map(yaml.safe_load, texts)
    (pipeline,) = collector["service"]["pipelines"].values()
    assert pipeline == {part: [*collector[part]] for part in ("receivers", "exporters")}
    assert collector["service"]["extensions"] == [*collector["extensions"]]
    assert {receiver["storage"] for receiver in collector["receivers"].values()} == {
        *collector["extensions"]
    }
    assert vector["transforms"]["line"]["inputs"] == [*vector["sources"]]
    assert vector["sinks"]["clickhouse"]["inputs"] == [*vector["transforms"]]
    tags = {part["tag"] for part in fluent_bit["pipeline"]["inputs"]}
    assert (
        tags == {*vector["sources"]} == {name.partition("/")[2] for name in collector["receivers"]}
    )
    files = [str(lines.FILE), f"{lines.FILE}.1"]
    assert (
        collector["receivers"]["file_log/file"]["include"]
        == vector["sources"]["file"]["include"]
        == files
    )
    assert fluent_bit["pipeline"]["inputs"][0]["path"] == ",".join(files)
    assert vector["sinks"]["clickhouse"]["table"] == "bill_lines"
    assert "INTO+bill_lines+FORMAT" in fluent_bit["pipeline"]["outputs"][0]["uri"]
