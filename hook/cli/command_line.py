# SPDX-License-Identifier: Apache-2.0
"""Parses the command lines of commands, and makes --help and the completion scripts for shells.

All of it follows from the models of hook/cli/options.py and the table of hook/cli/verbs.py.
"""

from __future__ import annotations

from hook.base.models import Options, ValidationError
from hook.cli.options import ARGUMENTS
from hook.cli.verbs import ALL, COMMON, VERBS, Usage
from hook.stages.entry import read_words, validate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hook.cli.verbs import Verb

_NAME = "resctrl-mon-hook"


class Argument:
    """An argument of a command: an option, or (`name` in capitals) a word without `--`.

    `kind`: a value of the type that it takes. `value`: the placeholder in the help; empty: it takes no value.
    """

    def __init__(self, row: tuple[Any, ...]) -> None:
        self.name, self.kind, default, self.value, self.choices, self.meaning = row
        self.is_option = not self.name.isupper()
        self.word = "--" + self.name.replace("_", "-") if self.is_option else self.value
        self.shown_default = "" if default is None or default is False or default in ("", [], {}) else f" [{default}]"

    def __str__(self) -> str:
        return f"{self.word}={self.value}" if self.is_option and self.value else self.word


def list_arguments(verb: Verb) -> list[Argument]:
    """A command's own arguments, without the options of the hook."""
    return [Argument(row) for row in ARGUMENTS[verb.form.__name__][1]]


def list_options(names: tuple[str, ...] = ALL) -> list[Argument]:
    """The hook's options of these `names`."""
    return [Argument(row) for row in ARGUMENTS["Options"][1] if row[0] in names]


def get_purpose(verb: Verb) -> str:
    """The purpose of a command, in a line."""
    purpose = ARGUMENTS[verb.form.__name__][0].partition("\n")[0].rstrip(".")
    return purpose[0].lower() + purpose[1:]


# --- Parsing


def parse_command(name: str, words: list[str]) -> tuple[Any, Options, list[str]]:
    """Parse a command's own arguments and the options of the hook; also returns the words of those. Raises Usage."""
    verb = VERBS[name]
    own, options = list_arguments(verb), list_options(verb.hook_options)
    kinds = {it.name: it.kind for it in (*own, *options) if it.is_option}
    joined = _join_values(words, kinds)
    values, others, problems = read_words(joined, kinds)
    places = [it for it in own if not it.is_option]
    for word in others:
        is_word = not word.startswith("-") or word == "-"
        if places and is_word and word in (places[0].choices or {word}):
            values[places.pop(0).name] = word
        else:
            problems.append(f"unknown argument {word.partition('=')[0][:80]!r}")
    together = [f"--{it}" for it in verb.exclusive if it in values]
    if len(together) > 1:
        problems.append(f"{' and '.join(together)} exclude each other")
    chosen = {it.name: values.pop(it.name) for it in options if it.name in values}
    options_given = validate(Options, chosen, problems)
    try:
        given = validate(verb.form, values, problems)
    except ValidationError as error:
        problems.append(f"{error.errors()[0]['loc'][0]} is missing")
        given = None
    if problems:
        raise Usage(f"{name}: {'; '.join(problems)}; see {_NAME} --help")
    return given, options_given, [word for word in joined if _get_name(word) in chosen]


def _join_values(words: list[str], kinds: dict[str, Any]) -> list[str]:
    """Write each option by its long name, in one word with its value."""
    joined = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word.startswith("-o"):
            word = f"--output={word[2:]}" if word[2:] else "--output"
        takes_value = "=" not in word and kinds.get(_get_name(word), False) is not False
        joined.append(f"{word}={waiting.pop(0)}" if takes_value and waiting else word)
    return joined


def _get_name(word: str) -> str:
    return word.partition("=")[0][2:].replace("-", "_")


# --- Help

_HEAD = """\
usage: resctrl-mon-hook hook|createRuntime|poststop [OPTION...] < OCI-STATE
       resctrl-mon-hook list|show KEY|top|metrics|doctor|reconcile|watch [OPTION...]
       resctrl-mon-hook install|uninstall|bytecode|base-runtime-spec|completion [OPTION...]

Puts a container's first process into the resctrl mon_group of its pod (createRuntime), and removes
the group after the pod's last container (poststop). hooks.d calls `hook`, which takes the stage
from the status in the container's state. Always exits 0, except with --strict. Failures are in
syslog and in RUN-DIR/unmonitored. Needs Python 3.9 or newer.

Commands (exit status 0, or 2 on error; doctor: 1 if it finds a failure; reconcile: 1 if it leaves
an action undone):
"""
_MIDDLE = """
  each of them with --resctrl-root, --run-dir and --group-prefix; all but watch with --json
  Only reconcile, watch, install, uninstall and bytecode change anything. reconcile, watch,
  install and base-runtime-spec take the options of the hook, too.

Options, as --x=v or --x v:
"""
_TAIL = """
  -h, --help                          show this help; `help COMMAND`: all about that command
  --version                           show the version
"""
_WIDTH = 60
"""The width of a command's arguments, before its purpose."""


def format_help() -> str:
    """The text of --help."""
    verbs = []
    for name, verb in VERBS.items():
        *first, last = _format_usage("  ", name, verb)
        purpose = get_purpose(verb)
        verbs += [*first, f"{last:<38}  {purpose}" if len(last) + len(purpose) < 98 else f"{last}\n{'':<38}  {purpose}"]
    options = [f"  {it!s:<34}  {it.meaning}{it.shown_default}" for it in list_options()]
    return _HEAD + "\n".join(verbs) + _MIDDLE + "\n".join(options) + _TAIL


def _format_usage(start: str, name: str, verb: Verb) -> list[str]:
    """A command with its own arguments, in lines that fit a terminal."""
    words = [name]
    for it in list_arguments(verb):
        word = str(it) if it.word.isupper() else f"[{it}]" + "..." * (it.kind == [])
        if it.name in verb.exclusive[1:] and it.name != "json":
            words[-1] = f"{words[-1][:-1]} | {word[1:]}"
        elif it.name != "json":
            words.append(word)
    if len(verb.hook_options) > len(COMMON):
        words.append("[OPTION...]")
    lines = [start + words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) < _WIDTH:
            lines[-1] += " " + word
        else:
            lines.append("      " + word)
    return lines


def format_command_help(name: str) -> str:
    """The text of --help after a command: every argument with its meaning and default, and an example."""
    verb = VERBS[name]
    lines = [*_format_usage(f"usage: {_NAME} ", name, verb), "", get_purpose(verb), ""]
    common = [it for it in list_options(verb.hook_options) if it.name in COMMON]
    own = list_arguments(verb)
    lines += ["Arguments:"]
    for it in (*(it for it in own if it.name != "json"), *common, *(it for it in own if it.name == "json")):
        lines += [f"  {it}", f"      {it.meaning}{it.shown_default}"]
    call, _, purpose = ARGUMENTS[verb.form.__name__][0].rpartition("\n")[2].rpartition(": ")
    lines += ["", "Example:", f"  {_NAME} {call}", f"      {purpose}"]
    if len(verb.hook_options) > len(COMMON):
        lines += ["", f"OPTION is an option of the hook: {_NAME} --help shows them."]
    return "\n".join([*lines, ""])


# --- Completion


def format_script(shell: str) -> str:
    """The completion script of a shell: bash, zsh or fish."""
    make = {"bash": _format_bash, "zsh": _format_zsh, "fish": _format_fish}[shell]
    return make({name: [*list_arguments(verb), *list_options(verb.hook_options)] for name, verb in VERBS.items()})


def _list_words(argument: Argument) -> list[str]:
    """The completions of an argument: each choice, or the option, with `=` if it takes a value."""
    if not argument.is_option:
        return list(argument.choices)
    return [f"{argument.word}={it}" for it in argument.choices] or [argument.word + "=" * bool(argument.value)]


def _join_words(arguments: list[Argument]) -> str:
    return " ".join(sorted(word for it in arguments for word in _list_words(it)))


def _format_bash(verbs: dict[str, list[Argument]]) -> str:
    cases = "".join(f'        {name}) words="{_join_words(arguments)}" ;;\n' for name, arguments in verbs.items())
    return f"""\
# bash completion of {_NAME}
_resctrl_mon_hook() {{
    local current="${{COMP_LINE:0:COMP_POINT}}" words
    current="${{current##*[[:space:]]}}"
    case "${{COMP_WORDS[1]}}" in
{cases}        *) words="" ;;
    esac
    [ "$COMP_CWORD" -gt 1 ] || words="{" ".join(verbs)} help --help --version"
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    # readline replaces only what follows the last `=`
    [[ "$current" != *=* ]] || COMPREPLY=("${{COMPREPLY[@]#"${{current%%=*}}="}}")
    [[ "${{COMPREPLY[0]-}}" != *= ]] || compopt -o nospace
}}
complete -o default -F _resctrl_mon_hook {_NAME}
"""


def _format_zsh(verbs: dict[str, list[Argument]]) -> str:
    cases = "".join(f"    {name}) compadd -- {_join_words(arguments)} ;;\n" for name, arguments in verbs.items())
    return f"""\
#compdef {_NAME}
if (( CURRENT == 2 )); then
    compadd -- {" ".join(verbs)} help --help --version
else
    case "$words[2]" in
{cases}    esac
    _files
fi
"""


def _format_fish(verbs: dict[str, list[Argument]]) -> str:
    lines = [f"# fish completion of {_NAME}"]
    for name in verbs:
        purpose = _quote(get_purpose(VERBS[name]))
        lines.append(f"complete -c {_NAME} -n __fish_use_subcommand -f -a {name} -d {purpose}")
    for name, arguments in verbs.items():
        start = f"complete -c {_NAME} -n '__fish_seen_subcommand_from {name}'"
        for it in arguments:
            values = f" -a {_quote(' '.join(it.choices))}" if it.choices else ""
            if it.is_option:
                kind = (" -x" if values else " -r") if it.value else ""
                lines.append(f"{start} -l {it.word[2:]}{kind}{values} -d {_quote(it.meaning)}")
            elif values:
                lines.append(f"{start} -f{values} -d {_quote(it.meaning)}")
    return "\n".join([*lines, ""])


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
