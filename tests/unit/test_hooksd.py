# SPDX-License-Identifier: Apache-2.0
"""hooks.d as its readers have it, and the hooks in a config.json: what is valid,
in which order, and what is ours.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook import report
from hook.cli import command_line
from hook.cli.verbs import VERBS
from hook.models import Options
from hook.node import hooksd
from hook.node.files import Unreadable
from hook.node.models import HookFile, HookProgram

ROOT = Path(__file__).resolve().parents[2]
PATH, PROGRAM = "/etc/containers/oci/hooks.d/a.json", "/bin/true"
OURS = "/opt/resctrl-mon-hook.pyz"


def content(when: object = None, **changes: object) -> dict[str, Any]:
    hook = {"path": PROGRAM, "args": ["true"]}
    when = {"always": True} if when is None else when
    return {"version": "1.0.0", "hook": hook, "when": when, "stages": ["poststop"], **changes}


def read(fs: FakeFilesystem, text: object) -> hooksd.Entry:
    fs.create_file(PROGRAM)
    fs.create_file(PATH, contents=text if isinstance(text, str) else json.dumps(text))
    return hooksd.read_entry(PATH)


# As Go 1.19 answers.
VALID_IN_GO = (
    r"[\d-z]",
    "[[:alpha:]]",
    "[[:^digit:]a]",
    r"\pL",
    r"\p{Greek}",
    r"\P{^Lu}",
    "^*",
    "(?U)a+",
    "(?i)(?-s:a)",
    "a(?i)b",
    r"\Qa(b\E",
    r"\Q(",
    r"a\z",
    r"\x{10FFFF}",
    r"\12",
    "(?P<n>a)",
    "[]a]",
    "[^]a]",
    "a{,3}",
    "{",
    "a{1000}",
    "a??",
    r"\_",
    r"\-",
    "",
    "(|a)",
    "()*",
    r"[\]]",
    "a|",
    "]",
    "}",
    "(?i)",
    "(?s).*",
    "[a&&b]",
    "é",
)
REFUSED_BY_GO = (
    "(?=a)",
    "(?!a)",
    "(?<=a)",
    "(?<!a)",
    r"(a)\1",
    "(?P<n>a)(?P=n)",
    "(a)(?(1)b|c)",
    "(?#a)",
    "(?>a)",
    "a*+",
    "a++",
    "a?+",
    "a{2}+",
    "a{2}{3}",
    "a**",
    r"a\Z",
    r"\u0041",
    r"\N{DIGIT ONE}",
    "(?x)a",
    "(?a)a",
    "(?L)a",
    "a{1001}",
    "a{2,1}",
    r"\8",
    r"\x{110000}",
    r"\e",
    r"\h",
    r"[\b]",
    r"[\A]",
    "[",
    "[]",
    "a\\",
    "(?P<n",
    "(a",
    "a)",
    "|*",
    "(*)",
    "(?i)*",
    "+",
)


# --- What a file must hold


@pytest.mark.parametrize(
    ("text", "problem", "remark"),
    [
        (content(), "", ""),
        ("", "not JSON", ""),
        ("{", "Expecting", ""),
        ("[]", "all of it", ""),
        (content(version="2.0.0"), "version", ""),
        (content(hook={}), "hook.path", ""),
        (content(hook={"path": ""}), "hook.path", ""),
        (content(hook={"path": PROGRAM, "timeout": "60"}), "hook.timeout", ""),
        (content(stages=["createRunTime"]), "stages: unknown stage 'createRunTime'", ""),
        (content(stages=None), "stages", ""),
        (content(when={"annotations": ["x"]}), "when.annotations", ""),
        ({"hook": "/bin/true", "stages": ["prestart"], "cmds": [".*"]}, "", "before 1.0.0"),
        (content(version="0.1.0"), "", "before 1.0.0"),
        (content(version="7", Version="1.0.0"), "", ""),  # the last one counts
        (content(Version="7"), "version", ""),
        (content(hook={"path": "/nowhere/x"}), "", "is missing, so readers skip the file"),
        (content(when={"annotations": {"(": "x"}}), "'(' is not a valid regular expression", ""),
        (content(when={"annotations": {"x": "a)"}}), "'a)' is not a valid regular expression", ""),
        (content(when={"commands": ["x", "*"]}), "'*' is not a valid regular expression", ""),
        (
            content(when={"commands": ["("]}, hook={"path": "/nowhere/x"}),
            "",
            "is missing, so readers skip the file",
        ),
        *((content(when={"commands": [valid_in_go]}), "", "") for valid_in_go in VALID_IN_GO),
        *(
            (content(when={"commands": [refused]}), "is not a valid regular expression", "")
            for refused in REFUSED_BY_GO
        ),
    ],
)
def test_an_invalid_file_has_a_problem_and_a_questionable_one_a_remark(
    fs: FakeFilesystem, text: object, problem: str, remark: str
) -> None:
    entry = read(fs, text)
    assert problem in (entry.problem or "")
    assert remark in (entry.remark or "")
    assert (bool(entry.problem), bool(entry.remark)) == (bool(problem), bool(remark))
    assert problem == "" or entry.file is None
    assert text != content() or entry == hooksd.Entry(PATH, HookFile.model_validate(text))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "oci-hooks").glob("*.json")), ids=lambda path: path.name
)
def test_shipped_files_are_ours_and_valid(path: Path) -> None:
    entry = hooksd.read_entry(str(path))
    assert entry.our_hook is not None
    assert hooksd.parse_options(entry.our_hook)[1] == []
    assert (entry.problem, "missing" in (entry.remark or "")) == (None, True)


@pytest.mark.parametrize(
    "text",
    [
        '{"Version": "1.0.0", "HOOK": {"Path": "/bin/true", "Timeout": 60}, "stageS": '
        '["poststop"]}',
        '{"version": "1.0.0", "hook": {"path": "/bin/true", "timeout": 60}, "when": null, '
        '"stages": ["poststop"]}',
    ],
)
def test_fields_of_any_case_are_read_and_those_left_out_are_null(
    fs: FakeFilesystem, text: str
) -> None:
    entry = read(fs, text)
    assert (entry.problem, entry.remark) == (None, None)
    assert entry.file == HookFile(
        version="1.0.0", hook=HookProgram(path=PROGRAM, timeout=60), stages=["poststop"]
    )


def test_invalid_utf_8_is_read_in_a_string_and_nowhere_else(fs: FakeFilesystem) -> None:
    text = json.dumps(content(hook={"path": PROGRAM, "args": ["X"]})).encode()
    fs.create_file(PROGRAM)
    fs.create_file(PATH, contents=text.replace(b"X", b"\xff"))
    entry = hooksd.read_entry(PATH)
    assert entry.problem is None
    assert entry.file is not None
    assert entry.file.hook.args == ["\ufffd"]
    fs.create_file("/out.json", contents=text + b"\xff")
    assert "more than one value" in (hooksd.read_entry("/out.json").problem or "")


def test_a_link_to_nothing_is_skipped_and_a_directory_is_a_problem(fs: FakeFilesystem) -> None:
    fs.create_symlink("/d/a.json", "/nowhere")
    fs.create_dir("/d/b.json")
    link, directory = hooksd.read_directory("/d")
    assert (link.problem, link.remark) == (
        None,
        "it does not exist, or is a link to nothing, so readers skip it",
    )
    assert directory.problem == "cannot read it: not a regular file"


def test_files_are_ordered_by_lower_case_name(fs: FakeFilesystem) -> None:
    assert hooksd.read_directory("/d") == []
    for name in ("B.json", "a.json", "10-c.json", "d.JSON", ".new.json.new", "readme"):
        fs.create_file(f"/d/{name}")
    assert [entry.name for entry in hooksd.read_directory("/d")] == [
        "10-c.json",
        "a.json",
        "B.json",
    ]


# --- The options of the hook

FIRST, LATER = "/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"
KUBERNETES, PODMAN = (f"10-resctrl-mon-hook-{name}.json" for name in ("kubernetes", "podman"))
LOG = "/var/log/resctrl-mon-hook/history.jsonl"


def put(fs: FakeFilesystem, path: str, *words: str) -> None:
    fs.create_file(
        path, contents=json.dumps(content(hook={"path": OURS, "args": ["x", "hook", *words]}))
    )


def options(*specs: str) -> tuple[dict[str, Any], str]:
    """The options that differ from the defaults, and the problems."""
    values, problems = hooksd.read_options([FIRST, LATER], lambda: specs)
    changed = {name: value for name, value in values.items() if value != dict(Options())[name]}
    return changed, "\n".join(problems.values())


def test_no_file_that_calls_the_hook_gives_no_options(fs: FakeFilesystem) -> None:
    assert hooksd.read_options([FIRST, LATER], list) == ({}, {})
    fs.create_file(f"{FIRST}/other.json", contents="{")  # doctor names it
    fs.create_file(f"{FIRST}/a.json", contents=json.dumps(content()))
    assert hooksd.read_options([FIRST, LATER], list) == ({}, {})


def test_options_of_the_shipped_files_serve_both_runtimes(fs: FakeFilesystem) -> None:
    """Kubernetes' groups linger, both have a history; --containers and --strict are for hooks."""
    put(
        fs,
        f"{FIRST}/{KUBERNETES}",
        "--containers=kubernetes",
        "--linger=600",
        f"--history={LOG}",
        "--strict",
    )
    assert options() == ({"linger": 600, "history": LOG}, "")
    put(fs, f"{FIRST}/{PODMAN}", "--containers=podman", f"--history={LOG}")
    assert options() == ({"linger": 600, "history": LOG}, "")


def test_a_later_directory_replaces_a_namesake(fs: FakeFilesystem) -> None:
    put(fs, f"{FIRST}/{PODMAN}", "--linger=600", "--run-dir=/run/x")
    put(fs, f"{LATER}/{PODMAN}", "--linger=5", "--annotation=a=b", "--lingr=7")
    assert options() == ({"linger": 5, "annotation": {"a": "b"}}, "")


def test_options_that_differ_have_their_defaults_and_a_warning(fs: FakeFilesystem) -> None:
    for name, words in (KUBERNETES, ["--run-dir=/run/x"]), (PODMAN, ["--run-dir=/run/y"]):
        put(fs, f"{FIRST}/{name}", *words, "--group-prefix=mine-", f"--history={words[0][10:]}")
    values, problems = options()
    assert values == {"group_prefix": "mine-"}
    files = f"{FIRST}/{KUBERNETES}, {FIRST}/{PODMAN}"
    assert problems == "\n".join(
        f"--{name} differs in {files}; using the default, {default!r}; remedy: make them agree"
        for name, default in (("run-dir", "/run/resctrl-mon-hook"), ("history", ""))
    )


def test_an_unreadable_file_of_ours_is_named_and_the_others_count(fs: FakeFilesystem) -> None:
    fs.create_file(f"{FIRST}/{KUBERNETES}", contents="{")
    fs.create_file(LATER)
    put(fs, f"{FIRST}/{PODMAN}", "--linger=5")
    values, problems = options("/spec.json")
    assert values == {"linger": 5}
    assert f"cannot list {LATER}: " in problems
    assert re.search(
        f"{FIRST}/{KUBERNETES}: cannot read it: .*; its options of the hook are unknown", problems
    )


def test_a_base_runtime_spec_has_the_options_if_no_file_of_hooks_d_has_them(
    fs: FakeFilesystem,
) -> None:
    hooks = {"createRuntime": [{"path": OURS, "args": ["x", "hook", "--linger=5"]}]}
    fs.create_file("/spec.json", contents=json.dumps({"hooks": hooks}))
    assert options("/nowhere", "/spec.json") == ({"linger": 5}, "")
    put(fs, f"{FIRST}/{KUBERNETES}")
    assert options("/spec.json") == ({}, "")


def test_commands_use_the_options_in_the_files_unless_the_command_line_has_others(
    fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks: list[Options] = []
    lines: list[str] = []
    monkeypatch.setattr(report, "write_line", lambda line, **_more: lines.append(line))
    for name in ("list", "reconcile", "watch", "uninstall", "install", "base-runtime-spec"):
        monkeypatch.setitem(
            VERBS,
            name,
            VERBS[name]._replace(run=lambda _given, request: hooks.append(request.hook)),
        )
    put(fs, f"{FIRST}/{KUBERNETES}", "--run-dir=/run/x", "--linger=600", "--namespace=shop")
    put(
        fs,
        f"{FIRST}/{PODMAN}",
        "--run-dir=/run/x",
        "--linger=600",
        "--namespace=shop",
        "--key=container",
    )
    for name, words in (
        ("list", []),
        ("reconcile", ["--linger=5", "--namespace=test"]),
        ("watch", ["--key=auto"]),
    ):
        assert command_line.main([name, *words]) == 0
    # `list` does not take --key, and `watch` has it on its command line
    assert [line.partition(" in ")[0] for line in lines] == ["warning: --key differs"]
    assert [(hook.run_dir, hook.linger, hook.namespace) for hook in hooks] == [
        ("/run/x", 600, ["shop"]),
        ("/run/x", 5, ["test"]),
        ("/run/x", 600, ["shop"]),
    ]
    fs.create_dir("/other")
    fs.rename(f"{FIRST}/{KUBERNETES}", "/other/a.json")
    fs.remove(f"{FIRST}/{PODMAN}")
    assert (
        command_line.main(["uninstall", "--hooks-dir", "/other", "--dry-run", "--destdir=/nowhere"])
        == 0
    )
    assert hooks.pop().run_dir == "/run/x"
    for name in "install", "base-runtime-spec":
        assert command_line.main([name]) == 0
    assert (hooks[3:], len(lines)) == ([Options(), Options()], 1)


@pytest.mark.parametrize(
    ("words", "run_dir", "lock_timeout", "history"),
    [
        ([], "/run/x", 30.0, LOG),
        (["--run-dir=/run/x"], "/run/x", 30.0, LOG),
        (["--run-dir=/run/resctrl-mon-hook"], "/run/resctrl-mon-hook", 30.0, LOG),
        (["--run-dir=/run/scratch"], "/run/scratch", 30.0, ""),
        (["--run-dir=/run/scratch", "--history=/x.jsonl"], "/run/scratch", 30.0, "/x.jsonl"),
        (["--history=", "--lock-timeout=2"], "/run/x", 2.0, ""),
    ],
)
@pytest.mark.parametrize("name", ["run", "assign", "release"])
def test_a_job_takes_only_the_places_from_the_files_and_has_its_own_defaults(
    fs: FakeFilesystem,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    words: list[str],
    run_dir: str,
    lock_timeout: float,
    history: str,
) -> None:
    hooks: list[Options] = []
    lines: list[str] = []
    monkeypatch.setattr(report, "write_line", lambda line, **_more: lines.append(line))
    monkeypatch.setitem(
        VERBS, name, VERBS[name]._replace(run=lambda _given, request: hooks.append(request.hook))
    )
    of_containers = [
        "--run-dir=/run/x",
        "--linger=600",
        "--lock-timeout=5",
        "--snapshot-ttl=0",
        "--history=/var/log/c",
    ]
    put(
        fs,
        f"{FIRST}/{KUBERNETES}",
        *of_containers,
        "--group-prefix=mine-",
        "--namespace=shop",
        "--rmid-wait=9",
    )
    put(
        fs,
        f"{FIRST}/{PODMAN}",
        *of_containers,
        "--group-prefix=mine-",
        "--rmid-wait=8",
        "--key=sandbox",
    )
    assert command_line.main([name, *words]) == 0
    wanted = Options(
        run_dir=run_dir, group_prefix="mine-", lock_timeout=lock_timeout, history=history
    )
    assert (hooks, lines) == ([wanted], [])


# --- The hooks in a config.json


@pytest.mark.parametrize(
    ("config", "is_called", "options"),
    [
        ({}, False, []),
        ({"hooks": None}, False, []),
        (
            {
                "hooks": {
                    "createRuntime": [{"path": PROGRAM, "args": ["resctrl-mon-hook.sh", "hook"]}]
                }
            },
            False,
            [],
        ),
        ({"hooks": {"prestart": None, "poststop": [{"path": OURS}]}}, True, []),
        ({"hooks": {"createRuntime": [{"path": OURS}, {"path": PROGRAM}]}}, True, [0]),
        (
            {"hooks": {"createRuntime": [{"path": OURS, "args": ["x", "hook", "--linger=5"]}]}},
            True,
            [5],
        ),
        (
            {
                "hooks": {
                    "createRuntime": [
                        {"path": "/m", "args": ["resctrl-mon-hook", "hook", "--linger=5"]}
                    ]
                }
            },
            True,
            [5],
        ),
        ({"hooks": {"createRuntime": [{"path": "/opt/resctrl-mon-hook-aarch64"}]}}, True, [0]),
    ],
)
def test_the_hooks_of_a_config_are_found(
    fs: FakeFilesystem, config: object, is_called: bool, options: list[int]
) -> None:
    """`options`: the --linger of each createRuntime hook that is ours."""
    fs.create_file("/config.json", contents=json.dumps(config))
    assert hooksd.calls_ours(hooksd.read_hooks("/config.json")) is is_called
    ours = hooksd.find_our_hooks(hooksd.read_hooks("/config.json"))
    assert [hooksd.parse_options(hook)[0].linger for hook in ours] == options


@pytest.mark.parametrize(
    "config", [[], {"hooks": 7}, {"hooks": {"poststop": [7]}}, {"hooks": {"poststop": [{}]}}]
)
def test_invalid_hooks_of_a_config_are_unreadable(fs: FakeFilesystem, config: object) -> None:
    fs.create_file("/config.json", contents=json.dumps(config))
    with pytest.raises(Unreadable, match=r"^/config\.json: invalid hooks: "):
        hooksd.read_hooks("/config.json")


def test_a_bad_option_of_a_hook_is_complained_of() -> None:
    hook = HookProgram(path=OURS, args=["x", "hook", "--lingr=5", "--linger=x"])
    assert [complaint.split()[-1] for complaint in hooksd.parse_options(hook)[1]] == [
        "'--lingr'",
        "number",
    ]
