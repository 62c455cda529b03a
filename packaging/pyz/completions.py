# SPDX-License-Identifier: Apache-2.0
"""Makes the completions of shells from the table of commands, by shtab.

The words of a command never change, so a shell asks no program for them. The keys and names of a
node are those in its records, which only root may read, and labels also those of the last jobs in
the history. Tenants choose some, so only harmless ones are offered. Files are only offered where
one is meant.
"""

from __future__ import annotations

import argparse
import shlex
from typing import Any

import shtab

from hook.cli.command_line import make_parser
from hook.cli.options import ARGUMENTS, Take
from hook.cli.verbs import VERBS
from hook.models import Options
from hook.node.paths import HISTORY, NAME
from hook.show.history import BY

shtab.OPTION_MULTI = (Take,)  # type: ignore[assignment]  # zsh offers these options repeatedly
TIMES = ("today", "yesterday", "1h", "12h", "7d", "4w")
FILES = {
    **shtab.FILE,
    "fish": "(__fish_complete_path (string split -m1 = -- (commandline -ct))[-1])",
}
PLACES = ("COMMAND", "DIR", "FILE", "PATH")
"""The placeholders of values that are files."""
FOUND = {"key": "jobs", "by": "by", "label": "labels"}
"""What FIND finds for these arguments."""
FIND = rf"""
run={Options().run_dir} file={HISTORY}
set -f
for word in $2; do
    case $word in
    --run-dir=*) run=${{word#*=}} ;;
    --history=*) file=${{word#*=}} ;;
    esac
done
read_records() {{
    find "$run/groups" -maxdepth 1 -name "*.json" -exec sed -En "$1" "{{}}" + 2>/dev/null
}}
key="s#^[{{]\"version\": 1, \"key\": \"([^\"]*)\".*#\\1#p"
pod="s#.*\"pod_namespace\": \"([^\"]*)\", \"pod_name\": \"([^\"]*)\".*#\\1/\\2#p"
other="s#.*\"pod_namespace\": null, \"pod_name\": (null|\"[^\"]*\"), \"name\": \"([^\"]*)\".*#\\2#p"
labels="labels\": [{{](\"[A-Za-z0-9_]+\": \"([^\"\\]|[\\].)*\",? ?)*"
case $1 in
keys) read_records "h; $key; g; $pod; $other" | grep -xE "[A-Za-z0-9][A-Za-z0-9_.+,/-]*" ;;
jobs)
    read_records "$key" | grep -xE "[A-Za-z0-9][A-Za-z0-9_.+,-]*" | grep -vxE "[0-9a-f-]{{32,}}"
    ;;
*)
    [ "$1" = labels ] && end="=" || printf "%s\n" {" ".join(BY)}
    {{
        find "$run/groups" -maxdepth 1 -name "*.json" -exec grep -ohE "\"job_$labels" "{{}}" +
        tail -n 1000 "$file" | grep -oE "\"$labels"
    }} 2>/dev/null | grep -oE "\"[A-Za-z_][A-Za-z0-9_]*\": \"" | tr -d "\": " | sort -u |
        sed "s/\$/$end/"
    ;;
esac
"""
"""Prints the `$1` of the node, one a line; `$2` is the command line."""
BASH = f"""
_resctrl_mon_hook_find() {{ sh -c {shlex.quote(FIND)} sh "$1" "$COMP_LINE"; }}
""" + "".join(
    f'_resctrl_mon_hook_{kind}() {{ compgen -W "$(_resctrl_mon_hook_find {kind})" -- "$1"; }}\n'
    for kind in ("keys", *FOUND.values())
)
ZSH = f"""
_resctrl_mon_hook_find() {{
    local -a found=(${{(f)"$(sh -c {shlex.quote(FIND)} sh "$1" "$BUFFER")"}})
    compadd -S '' -- ${{(M)found:#*=}}
    compadd -- ${{found:#*=}}
}}"""
FISH = """
function _resctrl_mon_hook_find
    sh -c '{}' sh $argv (commandline -c | string collect)
end""".format(FIND.replace("\\", r"\\"))
END_OF_BASH = """
# What shtab has made takes an option as `--option=` and its value
_resctrl_mon_hook() {
    local IFS=$' \\t\\n' line="${COMP_LINE:0:COMP_POINT}" word words COMP_CWORD
    local -a COMP_WORDS=()
    read -ra words <<<"$line"
    for word in "${words[@]}"; do
        [[ "$word" != --*=* ]] || COMP_WORDS+=("${word%%=*}=")
        COMP_WORDS+=("${word#--*=}")
    done
    [[ "$line" != *[[:space:]] ]] || COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _shtab_resctrl_mon_hook
    # readline replaces only what follows the last `=`
    [[ "${COMP_WORDS[-1]}" != *=* ]] || COMPREPLY=()
    [[ "${COMPREPLY[0]-}" != *= ]] || compopt -o nospace
}
complete -F _resctrl_mon_hook resctrl-mon-hook
"""


def make_completions() -> dict[str, str]:
    """Make the completion script of each shell."""
    before = {"bash": BASH, "fish": FISH, "zsh": ZSH}
    texts = {
        shell: shtab.complete(_make_parser(shell), shell, NAME, text)
        for shell, text in before.items()
    }
    return {**texts, "bash": texts["bash"] + END_OF_BASH}


def _make_parser(shell: str) -> argparse.ArgumentParser:
    """Make one parser of all commands, with what shtab offers for each argument."""
    root = argparse.ArgumentParser(NAME)
    root.add_argument("--version", action="version", help="show the version")
    commands = root.add_subparsers()
    for name in VERBS:
        command = commands.add_parser(
            name, parents=[make_parser(name)], add_help=False, help=ARGUMENTS[name].purpose
        )
        for action in command._actions:
            _complete(action)
            # With `=` after it, for zsh and bash, as the program's documents have it
            if action.option_strings and action.nargs != 0 and shell != "fish":
                action.option_strings = [f"{action.option_strings[0]}="]
    explained = commands.add_parser("help", add_help=False, help="explain a command")
    explained.add_argument(
        "command", choices=[*VERBS, "hook"], help="a command, or hook: what runtimes call"
    )
    return root


def _complete(action: Any) -> None:  # noqa: ANN401  shtab reads its attribute `complete`
    """Say what is offered for an argument."""
    found = "keys" if action.metavar == "KEY" else FOUND.get(action.dest)
    if action.metavar == "COMMAND":
        action.nargs = argparse.REMAINDER
    if action.dest in ("since", "until"):
        action.choices = TIMES
    elif action.metavar in PLACES:
        action.complete = FILES
    elif found and not action.choices:
        of_zsh = f" _resctrl_mon_hook_find {found}"
        action.complete = {
            "bash": f"_resctrl_mon_hook_{found}",
            "zsh": of_zsh,
            "fish": f"({of_zsh[1:]})",
        }
