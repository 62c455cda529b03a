# SPDX-License-Identifier: Apache-2.0
"""Makes the completions of shells from the table of commands: words that never change, so a shell asks no program."""

from __future__ import annotations

from hook.cli.command_line import list_arguments, list_options
from hook.cli.verbs import VERBS

BASH = """\
# bash completion of resctrl-mon-hook: the commands, and the arguments of each
_resctrl_mon_hook() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" words="" before
    local current="${{line##*[[:space:]]}}"
    read -ra before <<<"${{line%"$current"}}"
    case "${{before[1]-}}" in
{cases}
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    # Nothing for `--run-dir=`, so that bash offers files
    [[ "${{COMPREPLY[*]}}" != "$current" || "$current" != *= ]] || COMPREPLY=()
    # readline replaces only what follows the last `=`
    [[ "$current" != *=* ]] || COMPREPLY=("${{COMPREPLY[@]#"${{current%%=*}}="}}")
    [[ "${{COMPREPLY[0]-}}" != *= ]] || compopt -o nospace
}}
complete -o default -F _resctrl_mon_hook resctrl-mon-hook
"""
ZSH = """\
#compdef resctrl-mon-hook
# The commands, and the arguments of each
local verb="" words_of_verb=""
(( CURRENT == 2 )) || verb="$words[2]"
case "$verb" in
{cases}
esac
local -a offered=(${{(M)${{=words_of_verb}}:#${{(b)PREFIX}}*}})
if [[ "$PREFIX" == --*= && "$offered" == "$PREFIX" ]]; then
    compset -P '--*='
    _files
else
    compadd -S '' -- ${{(M)offered:#*=}}
    compadd -- ${{offered:#*=}}
fi
"""
FISH = """\
# fish completion of resctrl-mon-hook: the commands, and the arguments of each
complete -c resctrl-mon-hook -f
{cases}
# Files for the value of an option
complete -c resctrl-mon-hook -F -n "string match -q -- '--*=*' (commandline -ct)"
"""


def make_completions() -> dict[str, str]:
    """Make the completion script of each shell."""
    words = {"": [*VERBS, "help", "--help", "--version"], "help": [*VERBS, "hook"]}
    words |= {name: list_words(name) for name in VERBS}
    rows = [(name or '""', " ".join(found)) for name, found in words.items()]
    conditions = ["__fish_use_subcommand", *(f"__fish_seen_subcommand_from {name}" for name in words if name)]
    start = "complete -c resctrl-mon-hook -n"
    fish = [f"{start} '{condition}' -a '{row[1]}'" for condition, row in zip(conditions, rows)]
    return {
        "bash": BASH.format(cases="\n".join(f'    {name}) words="{found}" ;;' for name, found in rows)),
        "zsh": ZSH.format(cases="\n".join(f'{name}) words_of_verb="{found}" ;;' for name, found in rows)),
        "fish": FISH.format(cases="\n".join(fish)),
    }


def list_words(name: str) -> list[str]:
    """List the words that a command may have after it; an option whose value is free ends in `=`."""
    found: list[str] = []
    for argument in (*list_arguments(VERBS[name]), *list_options(VERBS[name].options)):
        start = argument.word + "=" * bool(argument.value) if argument.is_option else ""
        found += [start + choice for choice in argument.choices] or [start] * argument.is_option
    return found
