# SPDX-License-Identifier: Apache-2.0
"""The documents say what the code does: first what holds for all pages, then a section for each page.

The screens that pages show are compared in test_docs_screens.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

import build
from hook import __version__, entry, models
from hook.cli import verbs
from hook.cli.command_line import Argument, list_arguments, list_options, parse_command
from hook.doctor import FAILURE, OK, WARNING, Finding, format_findings
from hook.errors import Reason
from hook.models import KeyState, MonGroup, Options
from hook.node import models as node_models
from hook.node.paths import Places
from hook.reconcile.diagnose import VERBS
from hook.show import hardware, server, snapshot
from hook.show.terminal import Screen
from hook.store import RunDir
from hook.view import View
from tests.conftest import TIERS
from tests.faults.__main__ import PARTS
from tests.unit.documents import PAGES, ROOT, anchors, blocks, code, first_words, page, rows
from tests.unit.metrics import FAMILIES

BOOK = [name for name in PAGES if not name.startswith("tests/")]
"""The pages for readers; those in tests/ are notes beside what they are about."""
REASONS = [value for name, value in vars(Reason).items() if name.isupper()]

# --- All pages


def links(name: str) -> list[str]:
    return [it for it in re.findall(r"\]\(([^)]+)\)", page(name)) if not it.startswith("https://")]


@pytest.mark.parametrize(("name", "link"), [(name, link) for name in PAGES for link in links(name)])
def test_link_leads_to_a_file_and_a_heading_in_it(name: str, link: str) -> None:
    path, _, anchor = link.partition("#")
    target = (ROOT / name).parent / path if path else ROOT / name
    assert target.exists()
    assert not anchor or anchor in anchors(target.read_text(encoding="utf-8"))


def paths(name: str) -> list[str]:
    """The files and directories of the repository that a page names."""
    tops = r"(?<![\w/.~-])((?:hook|oci-hooks|packaging|tests|docs|\.github|\.ci)/[\w./-]*\w)"
    return sorted(set(re.findall(tops, page(name).replace("\\", ""))))


@pytest.mark.parametrize(("name", "path"), [(name, path) for name in PAGES for path in paths(name)])
def test_named_path_exists(name: str, path: str) -> None:
    assert (ROOT / path).exists(), name


def test_paths_below_hook_are_named_in_one_place_only() -> None:
    """A module that moves is then renamed in one place: the way into the code."""
    named = {name for name in PAGES for path in paths(name) if path.startswith("hook/") and path != "hook/__init__.py"}
    assert named == {"docs/design.md"}


def test_readme_leads_to_every_page() -> None:
    found, new = {"README.md"}, {"README.md"}
    while new:
        targets = {(name, link.partition("#")[0]) for name in new for link in links(name)}
        there = {os.path.normpath(os.path.join(os.path.dirname(name), path)) for name, path in targets if path}
        new = {name for name in there if name in PAGES} - found
        found |= new
    assert set(BOOK) <= found


def calls(name: str) -> list[str]:
    """The command lines of the program on a page, from its verb on; those that fail on purpose are left out."""
    text = page(name)
    if name == "docs/commands.md":
        text = text.replace(page(name, "Exit status"), "")
    start = r"(?:^|sudo |[|] |root |dist/|\$ |hooks\.d/)resctrl-mon-hook(?:\.pyz)? ([a-zA-Z-].*)"
    found = [match[1] for line in code(text) if (match := re.search(start, line))]
    return sorted({re.split(r" +[#|<>]|'", call)[0] for call in found})


@pytest.mark.parametrize(("name", "call"), [(name, call) for name in PAGES for call in calls(name)])
def test_command_line_is_accepted(name: str, call: str) -> None:
    verb, *arguments = shlex.split(call)
    if verb == "--version":
        return
    if verb in entry.STAGES:
        assert entry.parse(arguments)[1] == [], name
        return
    parse_command(verb, arguments)


@pytest.mark.parametrize("name", PAGES)
def test_each_verb_of_the_build_is_one(name: str) -> None:
    assert build.__doc__ is not None
    for verb in re.findall(r"build\.py ([a-z]+)", "\n".join(code(page(name)))):
        assert f"build.py {verb}" in build.__doc__


def options_of_the_build() -> set[str]:
    """The options that build.py and what it starts have, as their sources spell them; and those of pytest's own."""
    sources = [ROOT / "build.py", *(ROOT / "packaging").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in sources if path.parent != ROOT / "tests" / "unit"]
    return {"--durations", *re.findall(r"""["'](--[a-z-]+)["']""", "".join(texts))}


@pytest.mark.parametrize("name", PAGES)
def test_each_option_of_the_build_is_one(name: str) -> None:
    named = [word for line in code(page(name)) for word in re.findall(r"python3 \S+\.py\b[^|;&#]*", line)]
    assert {*re.findall(r" (--[a-z-]+)", " ".join(named))} <= options_of_the_build()


@pytest.mark.parametrize("name", BOOK)
def test_wording_is_plain(name: str) -> None:
    assert re.findall(r"\b(?:whoever|somebody|nobody|told|anew|stands there)\b", page(name), re.IGNORECASE) == []


@pytest.mark.parametrize("name", BOOK)
def test_sentences_fit_in_120_columns(name: str) -> None:
    without_code = re.sub(r"^ *```.*?^ *```$", "", page(name), flags=re.MULTILINE | re.DOTALL)
    assert [line for line in without_code.splitlines() if len(line) > 120 and not line.startswith(("|", "    "))] == []


def own_options(verb: str) -> set[str]:
    """The options of a command that neither all commands have nor the hook."""
    return {it.word for it in list_arguments(verbs.VERBS[verb]) if it.name != "json"}


def conditions() -> set[str]:
    """The words that `list` has for the state of a key."""
    source = textwrap.dedent(inspect.getsource(inspect.getattr_static(snapshot.SeenKey, "condition").fget))
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    returned = [node for line in function.body[1:] for node in ast.walk(line)]
    return {node.value for node in returned if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@pytest.mark.parametrize(
    ("name", "head", "expected"),
    [
        ("commands", "command", {f"resctrl-mon-hook {verb}" for verb in verbs.VERBS}),
        ("commands", "STATE", conditions()),
        ("install", "option", own_options("install")),
        ("metrics", "metric", {*FAMILIES}),
        ("options", "option", {f"--{name.replace('_', '-')}" for name in Options.model_fields}),
        ("reconcile", "action", {*VERBS}),
        ("reconcile", "option", {*own_options("reconcile"), "--linger"}),
        ("testing", "part", {*PARTS}),
        ("troubleshooting", "reason", {*REASONS}),
    ],
)
def test_table_has_each_of_what_there_is_and_no_other(name: str, head: str, expected: set[str]) -> None:
    words = first_words(page(f"docs/{name}.md"), head)
    if head == "command":
        words = [" ".join(word.split()[:2]) for word in words if " " in word]
    assert {word.partition("=")[0] for word in words} == expected


KUBERNETES: dict[str, Any] = yaml.safe_load((ROOT / "packaging/kubernetes/chart/Chart.yaml").read_text("utf-8"))
OPENSHIFT: dict[str, Any] = yaml.safe_load((ROOT / "packaging/openshift/resctrl-mon-hook.bu").read_text("utf-8"))
WORDS: list[str] = json.loads((ROOT / "oci-hooks/10-resctrl-mon-hook-kubernetes.json").read_text("utf-8"))["hook"][
    "args"
]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("kubernetes", f"Kubernetes {KUBERNETES['kubeVersion'].removeprefix('>=').removesuffix('.0-0')} or newer"),
        ("metrics", f"A connection lasts {server._PATIENCE:.0f} seconds at most"),
        ("metrics", f"its request has {server._LONGEST_REQUEST >> 10} KiB at most"),
        ("metrics", f"There are {server._MOST} connections at most"),
        ("metrics", f"what `ulimit -n` allows, and {server._MOST_OF_ONE} of one address."),
        ("metrics", {0.5: "for half a second"}[server._STALLED]),
        *(("metrics", f"`{reason}`") for reason in server.REASONS),
        ("openshift", f"OpenShift {OPENSHIFT['version'].removesuffix('.0')} or newer"),
        *(("options", f"The Kubernetes JSON sets {it[9:]} |") for it in WORDS if it.startswith("--linger=")),
        ("security", f"Of a state of more than {entry.STDIN_LIMIT >> 20} MiB"),
    ],
)
def test_page_states_what_the_code_has(name: str, sentence: str) -> None:
    section = "Slow clients" if name == "metrics" else None
    assert sentence in " ".join(page(f"docs/{name}.md", section).split())


# --- README.md


def test_readme_is_short() -> None:
    assert len(page("README.md").splitlines()) <= 150


def test_readme_begins_with_the_two_commands() -> None:
    head = page("README.md").split("\n\n")[1]
    assert [line.split("#")[0].strip() for line in head.splitlines()] == [
        "sudo python3 build.py demo",
        "sudo python3 build.py test",
    ]


# --- docs/install.md


def test_install_names_the_hooks_d_files() -> None:
    named = set(re.findall(r"`(10-resctrl[\w.-]+\.json)`", page("docs/install.md")))
    assert named == {path.name for path in (ROOT / "oci-hooks").iterdir()}


def test_install_names_everything_that_is_installed() -> None:
    named = " ".join(first_words(page("docs/install.md", "What it installs"), "path"))
    for path in Places().files():
        anywhere = re.sub(r"-(kubernetes|podman)\.json$", "-*.json", path)
        assert anywhere.replace("reconcile.service", "reconcile.timer") in named
        assert os.path.splitext(path)[1] in named


def test_install_says_of_each_record_with_a_version_what_a_downgrade_does() -> None:
    documented = {
        re.sub(r"<\w+>", "", name) for name in first_words(page("docs/install.md"), "record in `/run/resctrl-mon-hook`")
    }
    versioned = [
        model
        for model in {**vars(models), **vars(node_models)}.values()
        if hasattr(model, "model_fields") and "version" in model.model_fields
    ]
    others = (node_models.HookFile, node_models.Job)
    records = {(model.__doc__ or "").split("`")[1] for model in versioned if model not in others}
    assert len(records) == 6
    assert {re.sub(r"<[\w-]+>", "", name) for name in records} == documented


# --- docs/hardware.md


def test_hardware_names_each_file_that_is_read() -> None:
    source = (ROOT / "hook" / "show" / "hardware.py").read_text(encoding="utf-8").partition("# ---")[0]
    files = {
        name for name in re.findall(r"/(\w+)\"", source) if name.partition("_")[0] in ("available", "mbm", "mon", "num")
    }
    assert len(files) == 7
    assert [name for name in sorted(files) if not re.search(rf"[`/]{name}`", page("docs/hardware.md"))] == []


def test_hardware_has_what_doctor_says_of_memory_traffic() -> None:
    known = findings("doctor/kernel", "show/hardware")
    shown = [row[0] for row in rows(page("docs/hardware.md"), "`doctor` says of `memory traffic`")]
    assert [text for text in shown if not any(re.fullmatch(it, text.replace("`", "")) for it in known)] == []


def test_hardware_has_every_event_of_the_hardware_check() -> None:
    text = page("docs/hardware.md")
    assert all(f"`{event}`" in text for event in (hardware.OCCUPANCY, *hardware.TRAFFIC, "core_energy", "activity"))


# --- docs/kubernetes.md


def test_kubernetes_names_values_of_the_chart_with_their_defaults() -> None:
    chart = ROOT / "packaging" / "kubernetes" / "chart"
    values: dict[str, Any] = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    text = page("docs/kubernetes.md")
    assert f"`prefix` (`{values['prefix']}`)" in text
    for name in ("hooksDir", "options", "nodeSelector", "uninstall"):
        assert name in values
        assert re.search(rf"`{name}\b", text)
    assert "deadlineSeconds" in values["uninstall"]


# --- docs/options.md


@pytest.mark.parametrize("option", list_options(), ids=lambda it: it.name)
def test_options_has_each_option_with_its_value_and_default(option: Argument) -> None:
    default = Options().model_dump()[option.name]
    shown = {"": "", "[]": "", "{}": "", "False": "off"}.get(str(default), f"`{default}`")
    shown_option = f"`{option}`".replace("|", r"\|")
    assert [shown_option, shown] in [row[:2] for row in rows(page("docs/options.md"), "option")]


# --- docs/commands.md


@pytest.mark.parametrize("verb", verbs.VERBS)
def test_commands_has_every_option_of_a_command(verb: str) -> None:
    text = page("docs/commands.md")
    words = [it.word for it in list_arguments(verbs.VERBS[verb]) if it.is_option]
    assert [word for word in words if f"`{word}" not in text and f" {word}=" not in text] == []


@pytest.mark.parametrize(("call", "status"), [row[:2] for row in rows(page("docs/commands.md"), "call")])
def test_commands_has_the_exit_status_of_a_call(call: str, status: str) -> None:
    program, *arguments = shlex.split(call.strip("`"))
    assert program == "resctrl-mon-hook"
    command = [sys.executable, "-m", "hook", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == int(status.partition(";")[0])


# --- docs/troubleshooting.md


def test_troubleshooting_says_for_each_reason_what_to_do() -> None:
    assert all(len(row) == 3 and all(row) for row in rows(page("docs/troubleshooting.md"), "reason"))


def findings(*of: str) -> list[str]:
    """What doctor can say, as regular expressions: the texts in its sources, with anything where a value goes.

    `of`: of which sources; by default all of doctor.
    """
    found = []
    sources = {str(path.relative_to(ROOT)): path for path in (ROOT / "hook").rglob("*.py")}
    for path in [path for name, path in sources.items() if any(part in name for part in of or ("doctor",))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.JoinedStr, ast.Constant)):
                parts = node.values if isinstance(node, ast.JoinedStr) else [node]
                texts = [part.value if isinstance(part, ast.Constant) else None for part in parts]
                if any(isinstance(text, str) and re.search(r"\w{3}", text) for text in texts):
                    found.append("".join(".+" if text is None else re.escape(str(text)) for text in texts))
    return found


def test_troubleshooting_shows_what_doctor_says_on_a_terminal_of_80_columns() -> None:
    (screen,) = [block for block in blocks(page("docs/troubleshooting.md")) if "doctor" in block]
    lines = screen.splitlines()[1:]
    found: list[Finding] = []
    for line in lines:
        level, _, rest = line.partition(" ")
        if level in (OK, WARNING, FAILURE):
            subject, _, text = rest.strip().partition(": ")
            found.append(Finding(level, subject, text) if text else Finding(level, rest.strip(": "), ""))
        elif re.match(r" {11}\S", line):
            found[-1] = found[-1]._replace(remedy=f"{found[-1].remedy} {line.strip()}".strip())
        elif re.match(r" {9}\S", line):
            found[-1] = found[-1]._replace(found=f"{found[-1].found} {line.strip()}".strip())
    printed = format_findings(found, Screen(80))
    shown = [line for line in lines if line != "..."]
    assert [line for line in printed if not line.endswith(" ok")] == [
        line for line in shown if not line.endswith(" ok")
    ]
    assert re.fullmatch(rf"{printed[3].rpartition(' 3 ok')[0]} \d+ ok", shown[3])
    known = findings()
    for text in [text for it in found for text in (it.found, it.remedy) if text]:
        assert any(re.fullmatch(pattern, text) for pattern in known), text


# --- docs/consumer-view.md


def test_consumer_view_has_every_file_of_an_entry(tmp_path: Path) -> None:
    kernel = "/sys/fs/resctrl"
    begin = {"mon_L3_00/mbm_total_bytes": "1"}
    group = MonGroup(path=f"{kernel}/mon_groups/oci-a", ctrl_group="/", begin=begin, before=begin, known=begin)
    over = MonGroup(path=f"{kernel}/mon_groups/oci-b", ctrl_group="/", begin=begin, end=begin)
    view = View(RunDir(str(tmp_path / "run")), kernel)
    view.make_parts()
    view.show(KeyState(key="a", kind="container", generation=1, created_at="x", groups=[group]))
    view.show(KeyState(key="b", kind="container", generation=1, created_at="x", completed_at="y", groups=[over]))
    places = [tmp_path / "run" / "mon_groups" / key for key in "ab"]
    files = {str(path.relative_to(top)) for top in places for path in top.rglob("*") if not path.is_dir()}
    block = blocks(page("docs/consumer-view.md"))[0].replace("<domain>/<event>", "mon_L3_00/mbm_total_bytes")
    named = {name for line in block.splitlines()[2:] for name in re.split(r", ", re.split(r"  +", line.strip())[0])}
    assert files == named


# --- docs/security.md


def test_security_names_a_test_for_each_thing_that_a_tenant_can_write_or_be() -> None:
    rows_of_tests = [cells[-1] for cells in rows(page("docs/security.md"), "what a tenant can write or be")]
    assert len(rows_of_tests) >= 10
    for cell in rows_of_tests:
        paths = re.findall(r"`(tests/[\w/]+\.py)`", cell)
        assert paths
        assert [path for path in paths if not (ROOT / path).is_file()] == []


# --- docs/performance.md


def test_what_a_hook_costs_is_what_was_measured() -> None:
    """The least and the most of all Pythons, in instructions, which do not vary."""
    costs = {name: cells for name, _, *cells in rows(page("docs/performance.md"), "hook / exit floor")}

    def more(stage: str) -> tuple[int, int]:
        ratios = [float(cell.split()[0]) for cell in costs[f"{stage}: instructions"]]
        return round(100 * min(ratios)) - 100, round(100 * max(ratios)) - 100

    start, end = more("createRuntime, a further one"), more("poststop, not the last")
    assert f"[{start[0]}-{start[1]} % more](docs/performance.md#what-it-costs)" in page("README.md")
    row, floors = costs["createRuntime, a further one: ms more"], costs["exit floor: ms"]
    more_ms, floor_ms = ([float(cell.split()[0]) for cell in cells] for cells in (row, floors))
    text = f"{min(more_ms)} to {max(more_ms)} ms on top of {min(floor_ms)} to {max(floor_ms)} ms"
    assert text in page("README.md")
    sentence = "costs {} to {} % more than starting Python and exiting, and for its end {} to {} %"
    assert sentence.format(*start, *end) in " ".join(page("docs/performance.md").split())


def test_what_pollers_reach_is_what_was_measured() -> None:
    shares = [
        float(cell.split()[0])
        for workload, *_, of_1_s, of_3_s in rows(page("docs/performance.md"), "workload")
        for cell in (of_1_s, of_3_s)
        if "exec" not in workload
    ]
    assert f"[{min(shares):.0f} to {max(shares):.0f} %](docs/performance.md#accuracy)" in page("README.md")


# --- docs/design.md


def test_design_draws_and_explains_every_state() -> None:
    text = page("docs/design.md", "The states of a key")
    drawn = {state for arrow in re.findall(r"^ +(\S+) --> ([^\s:]+)", text, re.MULTILINE) for state in arrow}
    assert drawn - {"[*]"} == set(first_words(text, "state"))
    shown = {row[3].strip("`") for row in rows(text, "state")} - {"not shown"}
    assert shown == conditions()


def test_design_names_real_fields_of_the_state() -> None:
    cells = " ".join(row[1] for row in rows(page("docs/design.md", "The states of a key"), "state"))
    fields = {*KeyState.model_fields, *MonGroup.model_fields}
    assert set(re.findall(r"`(\w+)`", cells)) - {"live", "reconcile"} <= fields


def test_design_names_every_directory_of_the_run_directory(tmp_path: Path) -> None:
    run = RunDir(str(tmp_path / "run"))
    View(run, "/sys/fs/resctrl").make_parts()
    named = {word.partition("/")[0] for word in first_words(page("docs/design.md"), "path")}
    assert set(os.listdir(tmp_path / "run")) <= named


def test_design_leads_in_four_clicks_to_the_line_that_writes_the_pid() -> None:
    assert "docs/design.md" in links("README.md")
    steps = re.findall(r"^\d\. \[.*?\]\((.*?)\)", page("docs/design.md", "Way into the code"), re.MULTILINE)
    assert len(steps) == 4
    source = (ROOT / "docs" / steps[-1]).read_text(encoding="utf-8")
    (put,) = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef) and node.name == "put"]
    assert "/tasks" in ast.unparse(put)


# --- CONTRIBUTING.md, CHANGELOG.md and what CI runs


def test_contributing_has_every_tier() -> None:
    assert [row[0] for row in rows(page("CONTRIBUTING.md"), "tier")] == list(TIERS)


def test_changelog_has_the_present_version() -> None:
    assert re.search(rf"^## {re.escape(__version__)}\b", page("CHANGELOG.md"), re.MULTILINE)


WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


def test_workflow_runs_the_whole_suite_within_its_time() -> None:
    (job,) = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"].values()
    assert job["timeout-minutes"] == 90
    assert ".ci/run" in [step.get("run") for step in job["steps"]]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "python3 build.py test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_workflow_pins_its_actions_and_keys_its_cache_by_files_that_exist() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+", action) for action in re.findall(r"uses: (\S+)", text))
    (key,) = re.findall(r"hashFiles\((.*?)\)", text)
    assert all((ROOT / path.strip(" '")).is_file() for path in key.split(","))
