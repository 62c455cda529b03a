# SPDX-License-Identifier: Apache-2.0
"""Makes the completions of shells from the table of commands.

The words of a command never change, so a shell asks no program for them. The keys and names of a node are those in its
run directory: all users may list the keys, root the names. Tenants choose some, so only harmless ones are offered.
"""

from __future__ import annotations

from hook.cli.command_line import list_arguments, list_options
from hook.cli.verbs import VERBS
from hook.show.history import BY

TIMES = ("today", "yesterday", "last night", "1h", "12h", "7d", "4w")
OFFERED = {"since": TIMES, "until": TIMES, "by": BY}
"""What is offered for options that take more than that."""
KEYS = """ls "$run/mon_groups" 2>/dev/null"""
JOBS = f"{KEYS} | grep -xE '[A-Za-z0-9][A-Za-z0-9_.+,-]*' | grep -vxE '[0-9a-f-]{{32,}}'"
OF_PODS = """s#.*"pod_namespace": "([^"]*)", "pod_name": "([^"]*)".*#\\1/\\2#p"""
OF_OTHERS = """s#.*"pod_namespace": null, "pod_name": (null|"[^"]*"), "name": "([^"]*)".*#\\2#p"""
NAMES = (
    'find "$run/mon_groups" "$run/groups" -mindepth 1 -maxdepth 1 '
    f"-name '*.json' -exec sed -En '{OF_PODS}; {OF_OTHERS}' '{{}}' + "
    "-o -type d -printf '%f\\n' 2>/dev/null | grep -xE '[A-Za-z0-9][A-Za-z0-9_.+,/-]*'"
)
BASH = """\
# bash completion of resctrl-mon-hook: the commands, and the arguments of each
_resctrl_mon_hook() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" words="" run=/run/resctrl-mon-hook before word
    local current="${{line##*[[:space:]]}}"
    read -ra before <<<"${{line%"$current"}}"
    for word in "${{before[@]}}"; do
        [[ "$word" != --run-dir=* ]] || run="${{word#*=}}"
    done
    case "${{before[1]-}}" in
{cases}
    esac
    case "${{before[1]-}}" in
    show) words+=" $({names})" ;;
    run | assign | release) words+=" $({jobs} | sed 's/^/--key=/')" ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    # Not `--run-dir=` again, so that bash offers files
    [[ "${{COMPREPLY[0]-}}" != "$current" || "$current" != *= ]] || COMPREPLY=("${{COMPREPLY[@]:1}}")
    # readline replaces only what follows the last `=`
    [[ "$current" != *=* ]] || COMPREPLY=("${{COMPREPLY[@]#"${{current%%=*}}="}}")
    [[ "${{COMPREPLY[0]-}}" != *= ]] || compopt -o nospace
}}
complete -o default -F _resctrl_mon_hook resctrl-mon-hook
"""
ZSH = """\
#compdef resctrl-mon-hook
# The commands, and the arguments of each
local verb="" words_of_verb="" run=/run/resctrl-mon-hook
(( CURRENT == 2 )) || verb="$words[2]"
local -a places=(${{(M)words:#--run-dir=*}})
(( $#places == 0 )) || run="${{places[-1]#*=}}"
case "$verb" in
{cases}
esac
case "$verb" in
show) words_of_verb+=" $({names})" ;;
run | assign | release) words_of_verb+=" $({jobs} | sed 's/^/--key=/')" ;;
esac
local -a offered=(${{(M)${{(Q)${{(Z+n+)words_of_verb}}}}:#${{(b)PREFIX}}*}})
[[ "$PREFIX" != --*= ]] || offered=(${{offered:#${{(b)PREFIX}}}})
if [[ "$PREFIX" == --*= && -z "$offered" ]]; then
    compset -P '--*='
    _files
else
    compadd -S '' -- ${{(M)offered:#*=}}
    compadd -- ${{offered:#*=}}
fi
"""
FISH = """\
# fish completion of resctrl-mon-hook: the commands, and the arguments of each
function __resctrl_mon_hook_run_dir
    set -l run /run/resctrl-mon-hook (string replace -f -- --run-dir= '' (commandline -opc))
    echo $run[-1]
end
function __resctrl_mon_hook_names
    set -l run (__resctrl_mon_hook_run_dir)
    {names}
end
function __resctrl_mon_hook_jobs
    set -l run (__resctrl_mon_hook_run_dir)
    {jobs} | sed 's/^/--key=/'
end
complete -c resctrl-mon-hook -f
{cases}
# Files for the value of an option
complete -c resctrl-mon-hook -F -n "string match -q -- '--*=*' (commandline -ct)"
"""


def make_completions() -> dict[str, str]:
    """Make the completion script of each shell."""
    words = {"": [*VERBS, "help", "--help", "--version"], "help": [*VERBS, "hook"]}
    words |= {name: list_words(name) for name in VERBS}

    def list_cases(before: str, blank: str, after: str) -> list[tuple[str, str]]:
        """List the commands with their words; one with a blank is between the marks, for the shell to read."""
        quoted = {
            name: [before + word.replace(" ", blank) + after if " " in word else word for word in found]
            for name, found in words.items()
        }
        return [(name or '""', " ".join(found)) for name, found in quoted.items()]

    dynamic = {"names": NAMES, "jobs": JOBS}
    conditions = ["__fish_use_subcommand", *(f"__fish_seen_subcommand_from {name}" for name in words if name)]
    start = "complete -c resctrl-mon-hook -n"
    fish = [f"{start} '{condition}' -a '{row[1]}'" for condition, row in zip(conditions, list_cases('"', " ", '"'))]
    fish.append(f"{start} '__fish_seen_subcommand_from show' -a '(__resctrl_mon_hook_names)'")
    fish.append(f"{start} '__fish_seen_subcommand_from run assign release' -a '(__resctrl_mon_hook_jobs)'")
    bash = [f'    {name}) words="{found}" ;;' for name, found in list_cases("'", "\\ ", "'")]
    zsh = [f'{name}) words_of_verb="{found}" ;;' for name, found in list_cases("'", " ", "'")]
    return {
        "bash": BASH.format(cases="\n".join(bash), **dynamic),
        "zsh": ZSH.format(cases="\n".join(zsh), **dynamic),
        "fish": FISH.format(cases="\n".join(fish), **dynamic),
    }


def list_words(name: str) -> list[str]:
    """List the words that a command may have after it; an option whose value is free ends in `=`."""
    found: list[str] = []
    for argument in (*list_arguments(VERBS[name]), *list_options(VERBS[name].options)):
        start = argument.word + "=" * bool(argument.value) if argument.is_option else ""
        choices = OFFERED.get(argument.name, argument.choices)
        found += [start + choice for choice in choices] or [start] * argument.is_option
    return found
