# SPDX-License-Identifier: Apache-2.0
"""--help says what there is, and what is said is there."""

from __future__ import annotations

import argparse
import re

import pytest

from hook import __version__
from hook.base import system
from hook.base.models import Options
from hook.cli import commands, help_text, parser
from hook.cli import main as cli
from hook.cli.status import Usage
from hook.stages import context, failures

OPTION = re.compile(r"^  --(?P<name>[a-z-]+)(?:=(?P<value>\S+))? +(?P<meaning>.+?)(?: \[(?P<default>[^]]*)\])?$")
LINES = [line for line in help_text.format_help().split("Options, as", 1)[1].splitlines() if line.startswith("  --")]
SAID = {found["name"].replace("-", "_"): found for line in LINES if (found := OPTION.match(line))}
DEFAULTS = Options().model_dump()
each_option = pytest.mark.parametrize("name", DEFAULTS)


def test_every_option_line_is_parsed() -> None:
    assert len(SAID) == len(LINES)


def test_options_and_their_lines_match() -> None:
    assert set(help_text.HELP_OF_OPTIONS) == set(DEFAULTS)
    assert set(SAID) - {"help", "version"} == set(DEFAULTS)


@pytest.mark.parametrize("name", sorted(set(DEFAULTS) - {"namespace", "annotation", "strict"}))
def test_an_option_is_shown_with_its_default(name: str) -> None:
    assert SAID[name]["default"] == str(DEFAULTS[name])


@pytest.mark.parametrize("name", ["namespace", "annotation", "strict"])
def test_an_option_off_by_default_shows_no_default(name: str) -> None:
    assert not DEFAULTS[name]
    assert SAID[name]["default"] is None


@each_option
def test_an_option_shows_whether_it_takes_a_value(name: str) -> None:
    assert bool(SAID[name]["value"]) is (DEFAULTS[name] is not False)


@each_option
def test_a_repeatable_option_says_so(name: str) -> None:
    assert ("repeatable" in SAID[name]["meaning"]) is isinstance(DEFAULTS[name], (list, dict))


@pytest.mark.parametrize("name", ["key", "monitor"])
def test_an_option_shows_all_its_choices(name: str) -> None:
    choices = Options.model_json_schema()["properties"][name]["enum"]
    assert SAID[name]["value"].split("|") == choices


def test_meanings_are_aligned() -> None:
    starts = {found.start("meaning") for found in SAID.values() if found["name"] not in ("help", "version")}
    assert len(starts) == 1


def test_help_fits_in_100_columns() -> None:
    assert [line for line in help_text.format_help().splitlines() if len(line) > 100] == []


def test_help_is_ascii() -> None:
    assert help_text.format_help().isascii()


VERBS = {
    found["verb"]: found["arguments"]
    for line in help_text.format_help().split("Commands (", 1)[1].replace("\n      ", " ").splitlines()
    if (found := re.match(r"^  (?P<verb>[a-z][a-z-]*)(?P<arguments>( \S+)*)  +\S", line))
}


def test_every_command_has_its_line() -> None:
    assert set(VERBS) == {*commands.VERBS, "watch"} == set(help_text.HELP_OF_COMMANDS)
    heads = "|".join(help_text.format_help().splitlines()[1:3])
    for word in ("resctrl-mon-hook", "KEY", "[OPTION...]", " "):
        heads = heads.replace(word, "")
    assert heads.split("|") == list(help_text.HELP_OF_COMMANDS)


def accepted(verb: str) -> tuple[set[str], set[str]]:
    """The options and the other arguments that a verb takes."""
    actions = parser.make_parser(verb)._actions
    taken = {name for action in actions for name in action.option_strings}
    return taken - {"-o"}, {str(action.metavar) for action in actions if not action.option_strings}


@pytest.mark.parametrize("verb", help_text.HELP_OF_COMMANDS)
def test_a_command_takes_the_arguments_in_its_line(verb: str) -> None:
    taken, others = accepted(verb)
    common = re.search(r"^  each of them with (.*)$", help_text.format_help(), re.MULTILINE)
    assert common is not None
    left_out = {"watch": {"--json"}, "completion": set(re.findall(r"--[a-z-]+", common[1])) | {"--json"}}
    assert taken == set(re.findall(r"--[a-z-]+", VERBS[verb] + common[1])) - left_out.get(verb, set())
    assert others == set(re.findall(r" \[?([A-Z]+|unmonitored)(?= |$|\])", VERBS[verb]))


@pytest.mark.parametrize("verb", help_text.HELP_OF_COMMANDS)
def test_the_help_of_a_command_explains_each_argument(verb: str) -> None:
    told = help_text.format_command_help(verb)
    for action in parser.make_parser(verb)._actions:
        name = action.option_strings[-1] if action.option_strings else str(action.metavar)
        found = re.search(rf"^  {name}(=\S+)?\n      (\S.*)$", told, re.MULTILINE)
        assert found is not None, name
        assert bool(found[1]) is (bool(action.option_strings) and action.nargs != 0)
        if action.default not in (None, False, []):
            assert found[2].endswith(f"[{action.default}]")


def test_no_argument_is_explained_that_no_command_takes() -> None:
    taken = {
        name
        for verb in help_text.HELP_OF_COMMANDS
        for action in parser.make_parser(verb)._actions
        for name in (action.option_strings or [str(action.metavar)])
    }
    assert set(help_text.HELP_OF_ARGUMENTS) - taken == set()


@pytest.mark.parametrize("verb", [verb for verb in help_text.HELP_OF_COMMANDS if verb != "completion"])
def test_a_command_has_the_defaults_of_the_hook(verb: str) -> None:
    given = parser.make_parser(verb).parse_args(["KEY"] if verb == "show" else [])
    common = ("resctrl_root", "run_dir", "group_prefix")
    assert [getattr(given, name) for name in common] == [DEFAULTS[name] for name in common]


@pytest.mark.parametrize("verb", help_text.HELP_OF_COMMANDS)
def test_the_help_of_a_command_has_a_valid_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "--help"]) == 0
    told = capsys.readouterr().out
    assert told.splitlines()[0].startswith(f"usage: resctrl-mon-hook {verb}")
    found = re.search(r"^  resctrl-mon-hook (.*)$", told, re.MULTILINE)
    assert found is not None
    name, *words = re.split(r" [<|]", found[1])[0].split()
    assert name == verb
    _, rest = parser.make_parser(verb).parse_known_args(words)
    assert context.parse(rest)[1] == []
    assert not rest or verb in parser.WITH_HOOK_OPTIONS
    assert max(map(len, told.splitlines())) <= 100


def test_a_command_gets_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[argparse.Namespace] = []
    monkeypatch.setitem(commands.VERBS, "list", lambda _options, given: called.append(given))
    assert cli.main(["list", "--run-dir", "/tmp", "--group-prefix=x", "--json"]) == 0
    assert (called[0].run_dir, called[0].group_prefix, called[0].json) == ("/tmp", "x", True)


# --- What people are answered


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What `report.say` was to say, and whether to syslog as well."""
    lines: list[tuple[str, bool]] = []
    monkeypatch.setattr(failures, "say", lambda text, *, to_syslog: lines.append((text, to_syslog)))
    return lines


def stdin_is(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(system, "read_stdin", lambda *_: (text, True))


@pytest.mark.parametrize("verb", help_text.HELP_OF_COMMANDS)
def test_help_of_a_command_can_be_asked_for_in_three_ways(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for arguments in ([verb, "--help"], [verb, "-h"], ["help", verb]):
        assert cli.main(arguments) == 0
        answers.append(capsys.readouterr().out)
    assert answers == [help_text.format_command_help(verb)] * 3


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"], ["hook", "--help"], ["--nonsense", "--help"]])
def test_help_prints_the_help_text(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert cli.main(arguments) == 0
    assert capsys.readouterr() == (help_text.format_help(), "")


def test_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr() == (f"resctrl-mon-hook {__version__}\n", "")
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


STATE = b'{"ociVersion": "1.0.2", "id": "c1", "status": "created", "pid": 7, "bundle": "/"}'


@pytest.mark.parametrize("arguments", [[], ["hok"], ["--version", "x"], ["x" * 10_000]])
@pytest.mark.parametrize(
    ("text", "status"),
    [(STATE, 0), (b" \n" + STATE, 0), (STATE[:-10], 0), (b"", 2), (b"\n", 2), (b"{}", 2), (b'"ociVersion"', 2)],
)
def test_an_unknown_command_exits_0_only_with_a_state_on_stdin(
    monkeypatch: pytest.MonkeyPatch, said: list[tuple[str, bool]], arguments: list[str], text: bytes, status: int
) -> None:
    stdin_is(monkeypatch, text)
    assert cli.main(arguments) == status
    (line, to_syslog), *more = said
    assert not more
    assert to_syslog is (status == 0)
    assert "--help" in line
    assert len(line) < 200


def test_an_unknown_command_with_unreadable_stdin_exits_2(
    monkeypatch: pytest.MonkeyPatch, said: list[tuple[str, bool]]
) -> None:
    def fails(*_: object) -> tuple[bytes, bool]:
        raise OSError

    monkeypatch.setattr(system, "read_stdin", fails)
    assert cli.main(["hok"]) == 2
    assert len(said) == 1


def test_an_unknown_command_prints_nothing_itself(
    monkeypatch: pytest.MonkeyPatch, said: list[tuple[str, bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    stdin_is(monkeypatch, b"")
    cli.main(["hok"])
    assert capsys.readouterr() == ("", "")
    assert len(said) == 1


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9753", ("127.0.0.1", 9753)),
        ("9753", ("127.0.0.1", 9753)),
        (":9753", ("127.0.0.1", 9753)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),  # noqa: S104  not listened on here
        ("[::1]:80", ("::1", 80)),
        ("[10.0.0.1]:80", ("10.0.0.1", 80)),
    ],
)
def test_an_address_to_listen_on(text: str, address: tuple[str, int]) -> None:
    assert parser.parse("metrics", [f"--listen={text}"])[1].listen == address


@pytest.mark.parametrize(
    "text", ["", ":", "a:1", "localhost:1", "1.2.3.4:", "1:-1", "127.0.0.1:65536", "::1:x", "\u0661"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(Usage, match="ADDRESS:PORT"):
        parser.parse("metrics", [f"--listen={text}"])
