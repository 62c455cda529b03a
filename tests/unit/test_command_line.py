# SPDX-License-Identifier: Apache-2.0
"""The command line of each command: what it takes, what --help and the man page say of it,
what shells complete.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest

from hook import __version__, entry, report, system
from hook.cli import command_line, verbs
from hook.cli import command_line as cli
from hook.cli.options import ARGUMENTS, Row, make_row
from hook.cli.verbs import ALL, HOOK, JOB, PLACES, SHARED, VERBS, Request, Usage
from hook.errors import Reason
from hook.models import Options
from hook.node import command
from hook.node.paths import Places
from hook.rare import PARTS
from hook.show import history
from pyz.completions import TIMES, make_completions
from tests.support import house
from tests.unit import lines
from tests.unit.documents import show_argument
from tests.unit.nodes import NodeFiles

ROOT = Path(__file__).resolve().parents[2]
COMPLETIONS = ROOT / "packaging" / "completions"
DEFAULTS = Options().model_dump()
HELP = command_line.find_help("") or ""
NINE = [f"--label=l{number}=x" for number in range(9)]
each_verb = pytest.mark.parametrize("name", VERBS)
needed = {"show": ["KEY"], "completion": ["bash"]}
"""What a command cannot do without."""


def list_all(name: str) -> list[Row]:
    return [
        *ARGUMENTS[name].rows,
        *(make_row(option, VERBS[name].defaults) for option in VERBS[name].options),
    ]


# --- Parsing


@each_verb
def test_command_without_options_has_the_defaults_of_the_hook(name: str) -> None:
    assert command_line.parse_command(name, needed.get(name, []))[1] == Request(
        Options(), {}, is_json=False
    )


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("history", "history", []),
        ("history a b", "name", ["a", "b"]),
        ("list unmonitored", "what", "unmonitored"),
        ("list --state=live --state completed", "state", ["live", "completed"]),
        ("list --limit=20", "limit", 20),
        ("list -o wide", "output", "wide"),
        ("list -owide", "output", "wide"),
        ("show shop/web=1", "key", "shop/web=1"),
        ("show -", "key", "-"),
        ("history --since=--", "since", "--"),
        ("top --interval 0.5", "interval", 0.5),
        ("doctor --hooks-dir=/a/ --hooks-dir=/b", "hooks_dir", ["/a", "/b"]),
        ("install --for both", "targets", "both"),
        ("uninstall --prefix=/usr/local/", "prefix", "/usr/local"),
        ("reconcile --live -", "live", "-"),
        ("completion fish", "shell", "fish"),
    ],
)
def test_argument_of_a_command(line: str, field: str, value: object) -> None:
    given, request = command_line.parse_command(line.split(maxsplit=1)[0], line.split()[1:])
    assert (getattr(given, field), request) == (value, Request(Options(), {}, is_json=False))


@pytest.mark.parametrize(
    "line", ["metrics --json", "list --output=json", "show -ojson x", "top -o json --json"]
)
def test_json_can_be_asked_for(line: str) -> None:
    assert command_line.parse_command(line.split(maxsplit=1)[0], line.split()[1:])[1].is_json


def test_command_gets_its_arguments_and_the_hooks_which_are_kept_as_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [
        "--key",
        "sandbox",
        "--dry-run",
        "--linger=0",
        "--namespace=a",
        "--strict",
        "--namespace",
        "b",
    ]
    of_hook = {
        name: [f"--{name}={text}" for text in texts]
        for name, *texts in (("key", "sandbox"), ("linger", "0"))
    }
    of_hook |= {"namespace": ["--namespace=a", "--namespace=b"], "strict": ["--strict"]}
    called: list[tuple[object, Request]] = []

    def run(given: Namespace, request: Request) -> None:
        called.append((given.dry_run, request))

    monkeypatch.setitem(VERBS, "install", VERBS["install"]._replace(run=run))
    assert cli.main(["install", *words, "--json"]) == 0
    hook = Options(key="sandbox", namespace=["a", "b"], strict=True)
    assert called == [(True, Request(hook, of_hook, is_json=True))]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["list", "--jsno"], "unrecognized arguments: --jsno; see resctrl-mon-hook list --help"),
        (["list", "x"], "invalid choice: 'x'"),
        (["list", "--lim=5"], "unrecognized arguments: --lim=5"),  # no abbreviations
        (["list", "--run-dir"], "argument --run-dir: expected one argument"),
        (["list", "--run-dir", "--limit=0"], "argument --run-dir: expected one argument"),
        (["list", "--run-dir=relative"], "--run-dir: 'relative': not an absolute path"),
        (["list", "--group-prefix="], "--group-prefix: '': not a group prefix"),
        (["list", "--linger=1"], "unrecognized arguments: --linger"),
        (["list", "--sort=cache"], "argument --sort: invalid choice: 'cache' (choose from "),
        (["list", "--json=1"], "argument --json: ignored explicit argument '1'"),
        (["reconcile", "--linger=-1"], "--linger: '-1' is not a whole number"),
        (["reconcile", "--linger=1.5"], "--linger: '1.5' is not a whole number; see"),
        (["reconcile", "--lock-timeout=1.2.3"], "--lock-timeout: '1.2.3' is not a number; see"),
        (["show"], "required: KEY"),
        (["show", "a", "b"], "unrecognized arguments: b"),
        (["completion", "tcsh"], "argument SHELL: invalid choice: 'tcsh'"),
        (["watch", "--json"], "unrecognized arguments: --json"),
        (["top", "--interval=0"], "--interval: '0' is not from 0.001 to 86400"),
        (["top", "--interval=nan"], "--interval: 'nan' is not a number"),
        (["top", "--count=0"], "--count: '0' is not from 1 to 999999999"),
        (["top", "--count=" + "9" * 5000], "is not a whole number"),
        (
            ["top", "--count=x", "--interval=y"],
            "--count: 'x' is not a whole number; --interval: 'y' is not a number; see",
        ),
        (
            ["metrics", "--json", "--textfile=x"],
            "argument --textfile: not allowed with argument --json",
        ),
        (["top", "\x1b[2J\n" + "x" * 5000], r"unrecognized arguments: \x1b[2J\nxxx"),
        (
            ["run", "--strict", "--label=9=x", "--", "true"],
            "--label: '9=x': not a label's name: 1 to 64 of",
        ),
        (
            ["run", "--strict", "--label=a=\x1b[2J", "--", "true"],
            "'a=\\x1b[2J': not a label's value: 1 to 128 printable characters",
        ),
        (["assign", "--key=a", "--label=user", "7"], "--label: 'user' is not K=V"),
        (
            ["assign", "--key=a", "--label=user=a", "--label=user=b", "7"],
            "--label: 'user=b': one name has two values",
        ),
        (
            ["assign", "--key=a", *NINE, "7"],
            "assign: wants --key=NAME, the pids of processes, and 8 labels at most",
        ),
        (["run", "--strict", *NINE, "--", "true"], "run: 9 labels: a job has 8 at most"),
        (["help", "xyzzy"], "unknown command 'xyzzy'; see resctrl-mon-hook --help"),
        (
            ["lsit", "--help"],
            "unknown command 'lsit' (did you mean list?); see resctrl-mon-hook --help",
        ),
        (["help", "hok"], "unknown command 'hok' (did you mean hook?); see"),
    ],
)
def test_wrong_command_line_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    problem: str,
) -> None:
    monkeypatch.setattr(system, "read_stdin", lambda *_: (b"", True))
    assert cli.main(arguments) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n"), len(err) < 500) == ("", 1, True)
    assert err.startswith(
        f"resctrl-mon-hook: {arguments[0]}: " if arguments[0] in VERBS else "resctrl-mon-hook: "
    )
    assert problem in err


def test_what_run_ignores_is_as_if_it_were_not_given(capfd: pytest.CaptureFixture[str]) -> None:
    """Else a default of the hook would take the place of a job's,
    or of what a hooks.d file says.
    """
    words = [
        "--lock-timeout=x",
        "--run-dir=relative",
        "--rmid-wait=2",
        "--rmid-wait=99",
        "--label=a",
        "--key=j",
        "--",
    ]
    given, request = command_line.parse_command("run", [*words, "true"])
    assert (given.key, given.label, given.command) == ("j", {}, ["true"])
    assert (request.given, request.hook) == (
        {"rmid_wait": ["--rmid-wait=2"]},
        Options(rmid_wait=2.0),
    )
    assert capfd.readouterr().err.count("run: ignored: ") == 4


def test_address_to_listen_on() -> None:
    for text, address in (
        *((text, ("127.0.0.1", 9753)) for text in ("127.0.0.1:9753", "9753", ":9753")),
        ("[::1]:80", ("::1", 80)),
        ("[10.0.0.1]:80", ("10.0.0.1", 80)),
    ):
        assert verbs.parse_address(text) == address
    for text in (
        "",
        ":",
        "a:1",
        "localhost:1",
        "1.2.3.4:",
        "1:-1",
        "127.0.0.1:65536",
        "::1:x",
        "\u0661",
    ):
        with pytest.raises(Usage, match="ADDRESS:PORT"):
            verbs.parse_address(text)


# --- Help

HOOK_HELP = command_line.find_help("hook") or ""


def assert_shown(arguments: list[Row], text: str) -> None:
    """Each argument is in a help text, with its value, meaning and default."""
    words = " ".join(text.replace("-\n", "-").split()).replace("- ", "-")
    for argument in arguments:
        assert argument[1]["help"].replace("- ", "-") in words
        assert show_argument(argument).replace("=", " ", 1) in words


def test_help_of_the_hook_has_each_option_with_value_meaning_and_default() -> None:
    rows = {name: make_row(name) for name in DEFAULTS}
    assert_shown([*rows.values()], HOOK_HELP)
    for name, (_, row) in rows.items():
        default = DEFAULTS[name]
        assert row["help"].endswith(
            "" if default is False or default in ("", [], {}) else f" [{default}]"
        )
        assert ("metavar" in row) is (default is not False)
        assert ("repeatable" in row["help"]) is isinstance(default, (list, dict))
        assert row.get("choices") == Options.model_json_schema()["properties"][name].get("enum")


def test_help_has_the_commands_first_one_line_each_and_fits_24_lines_of_80_columns() -> None:
    usage, _, *lines = HELP.splitlines()
    assert usage == "usage: resctrl-mon-hook COMMAND [ARGUMENT...]"
    assert [line.split()[0] for line in lines[: len(VERBS) + 2]] == [*VERBS, "help", "--version"]
    assert len(lines) + 2 < 24
    assert max(map(len, HELP.splitlines())) <= 80


def test_help_of_the_hook_names_the_commands_that_take_its_options() -> None:
    others = {
        "metrics": (*PLACES, "history", "json"),
        "reconcile": ALL,
        "watch": HOOK,
        "view": PLACES,
        "run": JOB,
        **dict.fromkeys(("assign", "release"), (*JOB, "json")),
        "install": ALL,
        "base-runtime-spec": ALL,
        "completion": (),
    }
    assert {name: verb.options for name, verb in VERBS.items() if verb.options != SHARED} == others
    names = HOOK_HELP.partition("also those of ")[2].partition(".\n")[0].replace(" and", ",")
    assert names.split(", ") == [name for name, options in others.items() if {*HOOK} <= {*options}]


@pytest.mark.parametrize(
    "text", [HELP, HOOK_HELP, *(command_line.find_help(name) for name in VERBS)]
)
def test_help_is_ascii_and_all_but_examples_fit_in_80_columns(text: str) -> None:
    assert text.isascii()
    assert [
        line for line in text.splitlines() if len(line) > 80 and "  resctrl-mon-hook " not in line
    ] == []


@each_verb
def test_help_of_a_command_has_each_argument_and_a_valid_example(name: str) -> None:
    text = command_line.find_help(name) or ""
    assert text.startswith(f"usage: resctrl-mon-hook {name} ")
    assert_shown(list_all(name), text)
    (example,) = re.findall(r"^  resctrl-mon-hook (.*)$", text, re.MULTILINE)
    verb, *words = re.split(r" [<|]", example)[0].split()
    assert verb == name
    command_line.parse_command(name, words)


ANSWERS = [
    *((words, HELP) for words in (["--help"], ["-h"], ["help"], ["help", "help"])),
    *(
        (words, HOOK_HELP)
        for words in (["help", "hook"], ["hook", "--help"], ["help", "createRuntime"])
    ),
    *(
        (words, command_line.find_help(name))
        for name in VERBS
        for words in ([name, "--help"], [name, "-h"], ["help", name])
    ),
    (["--version"], f"resctrl-mon-hook {__version__}\n"),
]


def test_help_and_version_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in ANSWERS:
        assert cli.main(arguments) == 0
        assert capsys.readouterr() == (text, ""), arguments


# --- A misspelt command

STATE = b'{"ociVersion": "1.0.2", "id": "c1", "status": "created", "pid": 7, "bundle": "/"}'


@pytest.mark.parametrize("arguments", [[], ["hok"], ["--version", "x"], ["x" * 10_000]])
@pytest.mark.parametrize(
    ("text", "status"),
    [
        *((text, 0) for text in (STATE, b" \n" + STATE, STATE[:-10])),
        *((text, 2) for text in (b"", b"\n", b"{}", b'"ociVersion"', None)),
    ],
)
def test_unknown_command_exits_0_only_with_a_state_on_stdin(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: bytes | None,
    status: int,
) -> None:
    def read_stdin(*_: object) -> tuple[bytes, bool]:
        if text is None:
            raise OSError
        return text, True

    lines: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        report, "write_line", lambda text, *, to_syslog: lines.append((text, to_syslog))
    )
    monkeypatch.setattr(system, "read_stdin", read_stdin)
    assert cli.main(arguments) == status
    ((line, to_syslog),) = lines
    assert to_syslog is (status == 0)
    assert "--help" in line
    assert len(line) < 200
    assert capsys.readouterr() == ("", "")


# --- The man page

MANUAL = ROOT / "packaging" / "man" / "resctrl-mon-hook.8"


def plain(mdoc: str) -> str:
    """The page without its markup: options and values as people type them,
    one item from `It` to `It`.
    """
    text = re.sub(r"^\.(?!It|Sh|Ss)", "", mdoc, flags=re.MULTILINE)
    text = re.sub(r"\b(?:Ar|Cm|Oc|Oo|Op|Pa|Pq|Xc|Xo)\b ?", "", text)
    return (
        text.replace("Fl -", "--")
        .replace(" Ns = Ns ", "=")
        .replace(" | ", "|")
        .replace("\n\n", "\n")
    )


TEXT = plain(MANUAL.read_text(encoding="ascii"))
ITEMS = {
    item.split()[0].partition("=")[0]: item
    for item in re.split(r"^\.It\s", TEXT, flags=re.MULTILINE)[1:]
}


def test_man_page_has_an_item_for_each_command_option_and_reason() -> None:
    reasons = {value for name, value in vars(Reason).items() if name.isupper()}
    assert {*entry.STAGES, *VERBS, "--help", "--version", *reasons} <= set(ITEMS)


@each_verb
def test_man_page_has_the_arguments_of_each_command(name: str) -> None:
    wanted = [
        show_argument(row) for row in ARGUMENTS[name].rows if row[0][0] not in ("what", "shell")
    ]
    assert (
        re.findall(r"--[a-z-]+(?:=\S+)?|\b(?:KEY|NAME|PID|COMMAND)\b", ITEMS[name])[: len(wanted)]
        == wanted
    )


def test_synopsis_has_each_command_and_the_arguments_of_those_that_do_not_say_option() -> None:
    """A word without `--` is there in any case."""
    synopsis = re.split(r"^\.Sh ", TEXT, flags=re.MULTILINE)[2]
    calls = [call.split() for call in re.split(r"^Nm\n", synopsis, flags=re.MULTILINE)[1:]]
    assert sorted(name for call in calls[:-1] for name in call[0].split("|")) == sorted(
        [*entry.STAGES, *VERBS]
    )
    for first, *words in calls[1:-1]:
        for name in first.split("|"):
            own = [row for row in ARGUMENTS[name].rows if row[0][0] != "what"]
            wanted = {
                show_argument(row) for row in own if "option" not in words or row[0][0][0] != "-"
            }
            assert {word for word in words if word not in ("option", "...", "--")} == wanted, name


def test_man_page_has_each_option_of_the_hook_with_its_value_and_its_default() -> None:
    for name, value in DEFAULTS.items():
        row = make_row(name)
        head, _, meaning = ITEMS[row[0][0]].partition("\n")
        assert head == show_argument(row)
        default = re.escape(str(value))
        assert row[1]["help"][-1] != "]" or re.search(
            rf"(^|\(){default}( ;|[.)]| \.|$)", meaning, re.MULTILINE
        )


def test_man_page_has_no_unknown_option() -> None:
    known = {words[0] for name in VERBS for words, _ in list_all(name)} | {
        "--help",
        "--version",
        "--x",
    }
    assert set(re.findall(r"--[a-z-]+", TEXT)) <= known


def list_items(section: str) -> set[str]:
    """The names of the items of a section of the man page."""
    sections = re.split(r"^\.Sh ", MANUAL.read_text(encoding="ascii"), flags=re.MULTILINE)
    (text,) = [text for text in sections if text.startswith(section + "\n")]
    return set(re.findall(r"^\.It (?:(?:Pa|Ev|Dv) )?(\S+)$", text, re.MULTILINE))


def test_man_page_has_each_file_of_an_installation_and_each_part_of_the_run_directory() -> None:
    places = Places()
    run_dir = Options().run_dir
    wanted = {*places.files(), run_dir, *(f"{run_dir}/{part}" for part in PARTS)}
    assert wanted <= list_items("FILES")


def test_man_page_has_each_environment_variable_and_no_other() -> None:
    read = {
        name
        for path, text in house.sources("hook").items()
        for name in re.findall(r'environ(?:\.get\(|\[)"(\w+)"', text)
        if path != "hook/node/programs.py"
    }
    assert read == list_items("ENVIRONMENT")


def test_man_page_has_each_exit_status_and_signal() -> None:
    statuses = {
        *map(str, (*verbs.JOB_STATUSES.values(), command.NOT_FOUND, command.NOT_EXECUTABLE))
    }
    assert list_items("EXIT STATUS") == {"0", "1", "2"} | statuses
    texts = [*house.sources("hook").values()]
    handled = {
        name
        for text in texts
        for name in re.findall(r"signal\.(SIGTERM|SIGINT|SIGHUP|SIGUSR\d)\b", text)
    }
    assert handled == list_items("SIGNALS") - {"SIGPIPE"}


# --- Completion

SHELLS = {
    "bash": r"""
        IFS=:a
        compopt() { true; }
        source "$SCRIPTS/bash"
        COMP_LINE="$LINE" COMP_POINT=${#LINE}
        _resctrl_mon_hook resctrl-mon-hook
        printf '%s\n' "${COMPREPLY[@]}"
    """,
    "zsh": r"""
        zmodload zsh/zpty
        zpty shell zsh -f -i
        zpty -w shell "source $SETUP/setup"
        zpty -w shell "$LINE"$'\t'
        while zpty -r shell line; do
            [[ "$line" != OFFERED:* ]] || print -r -- "${${line#OFFERED:}%%[[:space:]]#}"
        done
    """,
    "fish": r"""
        function resctrl-mon-hook; end
        source "$SCRIPTS/fish"
        complete --do-complete $LINE | string replace --regex '\t.*' ''
        true
    """,
}


ZSH = r"""
    PROMPT=
    fpath=($SETUP $fpath)
    autoload -Uz compinit && compinit -u -d $SETUP/dump
    compadd() {
        if [[ "${@[1,(i)(-|--)]}" == *-[OAD]\ * ]]; then
            builtin compadd "$@"
            return
        fi
        local -a hits
        builtin compadd -A hits "$@"
        print -lr -- "" OFFERED:$IPREFIX$^hits
    }
    comppostfuncs=(exit)
"""
"""Makes an interactive zsh print what its completion offers, and end then."""


def complete(shell: str, line: str, setup: Path) -> set[str]:
    """What a real shell offers, each as the whole word, without the `=` after an option."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (setup / "setup").write_text(ZSH, encoding="ascii")
    (setup / "_resctrl-mon-hook").write_text(
        (COMPLETIONS / "zsh").read_text("ascii"), encoding="ascii"
    )
    env = {
        **os.environ,
        "LINE": f"resctrl-mon-hook {line}",
        "SCRIPTS": str(COMPLETIONS),
        "SETUP": str(setup),
    }
    command = [shell, "-c", SHELLS[shell]]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=300)
    assert done.stderr == ""
    offered = {word.rstrip("=") for word in done.stdout.split("\n") if word}
    option, equals, _ = line.rpartition(" ")[2].partition("=")
    # readline replaces only what follows the last `=`
    return {option + equals + word for word in offered} if shell == "bash" and equals else offered


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_completes(shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "none").mkdir()
    monkeypatch.chdir(tmp_path / "none")
    expected = {
        "": {*VERBS, "help"},
        "rec": {"reconcile"},
        "list un": {"unmonitored"},
        "list --s": {"--sort", "--state"},
        "list --sort=": {f"--sort={word}" for word in ("energy", "traffic", "age", "name")},
        "list --sort=age --state=lin": {"--state=lingering"},
        "completion ": {"bash", "zsh", "fish"},
        "install --pr": {"--prefix"},
        "install --for=podman --key=s": {"--key=sandbox"},
        "help ins": {"install"},
        "help ho": {"hook"},
        "history --since=t": {"--since=today"},
        "history --until=yes": {"--until=yesterday"},
    }
    assert {line: complete(shell, line, tmp_path) for line in expected} == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_completes_the_keys_and_names_of_a_node_if_they_are_harmless(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = NodeFiles(tmp_path)
    monkeypatch.chdir(tmp_path / "sys/fs/resctrl/mon_data")  # no files
    uid, bad = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce", f"$(touch {tmp_path}/bad)"
    pod = {"kind": "pod", "pod_namespace": "shop"}
    records = {
        uid: {**pod, "pod_name": "web-0"},
        "c1": {"name": "db"},
        "c2": {"name": bad},
        "nightly": {"kind": "job"},
    }
    for key, fields in {**records, uid[::-1]: {**pod, "pod_name": bad}}.items():
        node.record(key, **fields)
    node.write("groups", "$(touch bad).json", '{"version": 1, "key": "$(touch bad)"}')
    place = f"--run-dir={node.run}"
    expected = {
        f"show {place} ": {uid, uid[::-1], "c1", "c2", "nightly", "shop/web-0", "db"},
        f"show {place} shop/": {"shop/web-0"},
        **{
            f"{verb} {place} --key=": {f"--key={key}" for key in ("c1", "c2", "nightly")}
            for verb in ("run", "release")
        },
        f"assign {place} --key=n": {"--key=nightly"},
        f"release --run-dir={tmp_path}/none --key=": set(),
    }
    assert {line: complete(shell, line, tmp_path) for line in expected} == expected
    assert not (tmp_path / "bad").exists()


def test_each_time_that_is_offered_is_one() -> None:
    for time in TIMES:
        assert history.parse_time("--since", time, 1e9) < "2001-09-09T02"


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_offers_files_where_one_is_meant(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "place").mkdir()
    monkeypatch.chdir(tmp_path)
    setup = tmp_path / "none"
    setup.mkdir()
    meant = {
        "doctor --hooks-dir=": {"--hooks-dir=place"},
        "history --history=p": {"--history=place"},
    }
    meant |= {"run -- ": {"place"}, "run --key=a -- pl": {"place"}}
    others = (
        "run --label=",
        "list --namespace=",
        "history --since=p",
        "assign --key=",
        "history p",
        "metrics --listen=",
    )
    offered = {
        line: {word.rstrip("/") for word in complete(shell, line, setup)}
        for line in (*meant, *others)
    }
    found = {
        line: {word for word in words if word.endswith("place")} for line, words in offered.items()
    }
    assert found == {**meant, **{line: set() for line in others}}


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_completes_the_labels_of_jobs_that_run_or_have_ended(
    shell: str, tmp_path: Path
) -> None:
    node = NodeFiles(tmp_path)
    node.record(
        "nightly", kind="job", job_labels={"user": 'a, "x": "b}', "team": ""}, labels={"pod": "p"}
    )
    file = tmp_path / "history.jsonl"
    file.write_bytes(
        lines.line(lines.make(1)) + lines.line(lines.make(2, labels={"project": "p", "user": "u"}))
    )
    places, labels = f"--run-dir={node.run} --history={file}", {"project", "team", "user"}
    usual = {"name", "pod", "namespace", "node", "day"}
    expected = {
        f"history {places} --by=": {f"--by={name}" for name in labels | usual},
        f"history {places} --by=te": {"--by=team"},
        f"history {places} --label=": {f"--label={name}" for name in labels},
        f"run {places} --label=p": {"--label=project"},
        f"assign {places} --label=user=x": set(),
    }
    assert {line: complete(shell, line, tmp_path) for line in expected} == expected


def test_completions_are_made_of_the_table_of_commands() -> None:
    """`python3 build.py compile` makes them."""
    assert {
        path.name: path.read_text(encoding="ascii") for path in COMPLETIONS.iterdir()
    } == make_completions()


def test_completion_prints_what_the_shell_reads(pyz: Path) -> None:
    for path in COMPLETIONS.iterdir():
        done = subprocess.run(
            [pyz, "completion", path.name], capture_output=True, check=True, timeout=300
        )
        assert done.stdout == path.read_bytes()
