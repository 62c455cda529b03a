# SPDX-License-Identifier: Apache-2.0
"""Makes completion scripts for shells: the commands, and the options of each with their choices."""

from __future__ import annotations

from hook.cli.help_text import HELP_OF_ARGUMENTS, HELP_OF_COMMANDS, HELP_OF_OPTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = "resctrl-mon-hook"


def format_script(shell: str) -> str:
    """The script of a shell in SHELLS."""
    return SHELLS[shell]()


def _list_words() -> dict[str, list[str]]:
    """What can follow each command: its options, and the choices of those that have some, as `--sort=name`."""
    from hook.cli.parser import WITH_HOOK_OPTIONS, make_parser  # noqa: PLC0415  the parser needs SHELLS

    found: dict[str, list[str]] = {}
    for verb in HELP_OF_COMMANDS:
        words: list[str] = []
        for action in make_parser(verb)._actions:
            name = max(action.option_strings, key=len, default="")
            choices = list(action.choices or ())
            takes_value = action.nargs != 0
            words += [f"{name}={it}" if name else it for it in choices] or [name + ("=" if takes_value else "")]
        if verb in WITH_HOOK_OPTIONS:
            for option, (value, _) in HELP_OF_OPTIONS.items():
                name = "--" + option.replace("_", "-")
                words += [f"{name}={it}" for it in value.split("|")] if "|" in value else [name + "=" * bool(value)]
        found[verb] = sorted({word for word in words if word not in ("", "=")})
    return found


def _make_bash() -> str:
    cases = "".join(f'        {verb}) words="{" ".join(words)}" ;;\n' for verb, words in _list_words().items())
    return f"""\
# bash completion of {_NAME}
_resctrl_mon_hook() {{
    local current="${{COMP_LINE:0:COMP_POINT}}" words
    current="${{current##*[[:space:]]}}"
    case "${{COMP_WORDS[1]}}" in
{cases}        *) words="" ;;
    esac
    [ "$COMP_CWORD" -gt 1 ] || words="{" ".join(HELP_OF_COMMANDS)} help --help --version"
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    # readline replaces only what follows the last `=`
    [[ "$current" != *=* ]] || COMPREPLY=("${{COMPREPLY[@]#"${{current%%=*}}="}}")
    [[ "${{COMPREPLY[0]-}}" != *= ]] || compopt -o nospace
}}
complete -o default -F _resctrl_mon_hook {_NAME}
"""


def _make_zsh() -> str:
    cases = "".join(f"    {verb}) compadd -- {' '.join(words)} ;;\n" for verb, words in _list_words().items() if words)
    return f"""\
#compdef {_NAME}
if (( CURRENT == 2 )); then
    compadd -- {" ".join(HELP_OF_COMMANDS)} help --help --version
else
    case "$words[2]" in
{cases}    esac
    _files
fi
"""


def _make_fish() -> str:
    lines = [f"# fish completion of {_NAME}"]
    for verb, (_, meaning) in HELP_OF_COMMANDS.items():
        lines.append(f"complete -c {_NAME} -n __fish_use_subcommand -f -a {verb} -d {_quote(meaning)}")
    for verb, words in _list_words().items():
        for word in words:
            name, _, value = word.partition("=")
            told = HELP_OF_ARGUMENTS.get(name) or HELP_OF_OPTIONS.get(name[2:].replace("-", "_")) or ("", "")
            seen = f"-n '__fish_seen_subcommand_from {verb}'"
            option = f"-l {name[2:]}" if name.startswith("--") else f"-f -a {name}"
            takes = f" -x -a {value}" if value else " -r" if word.endswith("=") else ""
            lines.append(f"complete -c {_NAME} {seen} {option}{takes} -d {_quote(told[1])}")
    return "\n".join([*lines, ""])


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: dict[str, Callable[[], str]] = {"bash": _make_bash, "zsh": _make_zsh, "fish": _make_fish}
