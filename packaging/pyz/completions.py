# SPDX-License-Identifier: Apache-2.0
"""Makes the completions of shells from the table of commands.

The words of a command never change, so a shell asks no program for them. The keys and names of a node are those in its
records, which only root may read, and labels also those of the last jobs in the history. Tenants choose some, so only
harmless ones are offered. Files are only offered where one is meant.
"""

from __future__ import annotations

from textwrap import indent

from hook.cli.options import ARGUMENTS, Row, make_row
from hook.cli.verbs import VERBS
from hook.models import Options
from hook.node.paths import HISTORY
from hook.show.history import BY

TIMES = ("today", "yesterday", "last night", "1h", "12h", "7d", "4w")
OFFERED = {"since": TIMES, "until": TIMES, "by": BY}
"""What is offered for options that take more than that."""
OF_KEYS = """s#^[{]"version": 1, "key": "([^"]*)".*#\\1#p"""
OF_PODS = """s#.*"pod_namespace": "([^"]*)", "pod_name": "([^"]*)".*#\\1/\\2#p"""
OF_OTHERS = """s#.*"pod_namespace": null, "pod_name": (null|"[^"]*"), "name": "([^"]*)".*#\\2#p"""
RECORDS = """find "$run/groups" -maxdepth 1 -name '*.json' -exec sed -En '%s' '{}' + 2>/dev/null"""
JOBS = f"{RECORDS % OF_KEYS} | grep -xE '[A-Za-z0-9][A-Za-z0-9_.+,-]*' | grep -vxE '[0-9a-f-]{{32,}}'"
NAMES = f"{RECORDS % f'h; {OF_KEYS}; g; {OF_PODS}; {OF_OTHERS}'} | grep -xE '[A-Za-z0-9][A-Za-z0-9_.+,/-]*'"
OBJECT = r"""[{]("[A-Za-z0-9_]+": "([^"\]|[\].)*",? ?)*"""  # fish would take two backslashes for one
LABELS = (
    f"find \"$run/groups\" \"$file\" -name '*.json' -exec grep -ohE '\"job_labels\": {OBJECT}' '{{}}' + "
    f"-o -path \"$file\" -exec tail -n 1000 '{{}}' ';' 2>/dev/null | grep -oE '\"(job_)?labels\": {OBJECT}' | "
    "grep -oE '\"[A-Za-z_][A-Za-z0-9_]*\": \"' | tr -d '\": ' | sort -u"
)
VALUES = {"by": "s/^/--by=/", "label": "s/.*/--label=&=/"}
"""The options that take a label, with what sed makes of its name."""
PLACES = ("DIR", "FILE", "PATH")
"""The placeholders of values that are files."""
BASH = """\
# bash completion of resctrl-mon-hook: the commands, and the arguments of each
_resctrl_mon_hook() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" words="" run={run} file={history} before word IFS=$' \\t\\n'
    local current="${{line##*[[:space:]]}}"
    read -ra before <<<"${{line%"$current"}}"
    for word in "${{before[@]}}"; do
        case "$word" in
        --run-dir=*) run="${{word#*=}}" ;;
        --history=*) file="${{word#*=}}" ;;
        esac
    done
    case "${{before[1]-}}" in
{cases}
    esac
    case "${{before[1]-}}" in
    show) words+=" $({names})" ;;
    run | assign | release) words+=" $({jobs} | sed 's/^/--key=/')" ;;
    esac
    case "${{before[1]-}} $current" in
{labels}
    esac
    [[ " ${{before[*]}} " != *" -- "* ]] || words=""
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    # Not `--run-dir=` again, so that bash offers files
    [[ "${{COMPREPLY[0]-}}" != "$current" || "$current" != *= ]] || COMPREPLY=("${{COMPREPLY[@]:1}}")
    # readline replaces only what follows the last `=`
    [[ "$current" != *=* ]] || COMPREPLY=("${{COMPREPLY[@]#"${{current%%=*}}="}}")
    [[ "${{COMPREPLY[0]-}}" != *= ]] || compopt -o nospace
    # Files for the value of an option that names one, and for the command of `run`
    [[ "$current" =~ ^--({places})= || " ${{before[*]}} " == *" -- "* ]] || compopt +o default
}}
complete -o default -F _resctrl_mon_hook resctrl-mon-hook
"""
ZSH = """\
#compdef resctrl-mon-hook
# The commands, and the arguments of each
local verb="" words_of_verb="" run={run} file={history}
(( CURRENT == 2 )) || verb="$words[2]"
local -a places=(${{(M)words:#--run-dir=*}})
(( $#places == 0 )) || run="${{places[-1]#*=}}"
places=(${{(M)words[1,CURRENT-1]:#--history=*}})
(( $#places == 0 )) || file="${{places[-1]#*=}}"
case "$verb" in
{cases}
esac
case "$verb" in
show) words_of_verb+=" $({names})" ;;
run | assign | release) words_of_verb+=" $({jobs} | sed 's/^/--key=/')" ;;
esac
case "$verb $PREFIX" in
{labels}
esac
local -a offered=(${{(M)${{(Q)${{(Z+n+)words_of_verb}}}}:#${{(b)PREFIX}}*}})
[[ "$PREFIX" != --*= ]] || offered=(${{offered:#${{(b)PREFIX}}}})
# Files for the value of an option that names one, and for the command of `run`
if [[ "$PREFIX" =~ '^--({places})=' ]]; then
    compset -P '--*='
    _files
elif (( ${{words[(I)--]}} > 0 && ${{words[(I)--]}} < CURRENT )); then
    _files
else
    compadd -S '' -- ${{(M)offered:#*=}}
    compadd -- ${{offered:#*=}}
fi
"""
FISH = """\
# fish completion of resctrl-mon-hook: the commands, and the arguments of each
function __resctrl_mon_hook_run_dir
    set -l run {run} (string replace -f -- --run-dir= '' (commandline -opc))
    echo $run[-1]
end
function __resctrl_mon_hook_labels
    set -l run (__resctrl_mon_hook_run_dir)
    set -l file {history} (string replace -f -- --history= '' (commandline -opc))
    set file $file[-1]
    {labels}
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
# Files for the value of an option that names one, and for the command of `run`
complete -c resctrl-mon-hook -F -n "string match -qr -- '^--({places})=' (commandline -ct)"
complete -c resctrl-mon-hook -F -n "contains -- -- (commandline -opc)"
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

    taking = {
        option: [name for name in VERBS if f"--{option}" in {words[0] for words, _ in ARGUMENTS[name].rows}]
        for option in VALUES
    }
    arguments = [argument for name in VERBS for argument in list_all(name)]
    places = "|".join(sorted({words[0][2:] for words, row in arguments if row.get("metavar") in PLACES}))
    dynamic = {"names": NAMES, "jobs": JOBS, "places": places, "run": Options().run_dir, "history": HISTORY}
    conditions = ["__fish_use_subcommand", *(f"__fish_seen_subcommand_from {name}" for name in words if name)]
    start = "complete -c resctrl-mon-hook -n"
    fish = [f"{start} '{condition}' -a '{row[1]}'" for condition, row in zip(conditions, list_cases('"', " ", '"'))]
    fish.append(f"{start} '__fish_seen_subcommand_from show' -a '(__resctrl_mon_hook_names)'")
    fish.append(f"{start} '__fish_seen_subcommand_from run assign release' -a '(__resctrl_mon_hook_jobs)'")
    for option, names in taking.items():
        values = f'(__resctrl_mon_hook_labels | sed "{VALUES[option]}")'
        fish.append(f"{start} '__fish_seen_subcommand_from {' '.join(names)}' -a '{values}'")

    def list_labels(variable: str) -> str:
        """List the cases in which an option is being typed that takes a label."""
        cases = {option: " | ".join(f'"{name} --{option}="*' for name in names) for option, names in taking.items()}
        return "\n".join(
            f"{case}) {variable}+=\" $({LABELS} | sed '{VALUES[option]}')\" ;;" for option, case in cases.items()
        )

    bash = [f'    {name}) words="{found}" ;;' for name, found in list_cases("'", "\\ ", "'")]
    zsh = [f'{name}) words_of_verb="{found}" ;;' for name, found in list_cases("'", " ", "'")]
    return {
        "bash": BASH.format(cases="\n".join(bash), labels=indent(list_labels("words"), "    "), **dynamic),
        "zsh": ZSH.format(cases="\n".join(zsh), labels=list_labels("words_of_verb"), **dynamic),
        "fish": FISH.format(cases="\n".join(fish), labels=LABELS, **dynamic),
    }


def list_all(name: str) -> list[Row]:
    return [*ARGUMENTS[name].rows, *map(make_row, VERBS[name].options)]


def list_words(name: str) -> list[str]:
    """List the words that a command may have after it; an option whose value is free ends in `=`."""
    found: list[str] = []
    for (word, *_), row in list_all(name):
        is_option = word.startswith("-")
        start = word + "=" * ("metavar" in row) if is_option else ""
        choices = OFFERED.get(word[2:], row.get("choices") or ())
        found += [start + choice for choice in choices] or [start] * is_option
    return found
