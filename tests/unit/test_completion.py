# SPDX-License-Identifier: Apache-2.0
"""What shells complete, as far as the shells are here: bash always is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hook.cli import commands, completion, help_text

BASH = """
source /dev/stdin
compopt() { :; }
COMP_LINE="$1"; COMP_POINT=${#COMP_LINE}
read -ra COMP_WORDS <<<"$COMP_LINE"
[[ "$COMP_LINE" != *" " ]] || COMP_WORDS+=("")
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
_resctrl_mon_hook
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(line: str) -> set[str]:
    """What bash offers for the last word of a command line."""
    command = ["bash", "--norc", "-c", BASH, "bash", f"resctrl-mon-hook {line}"]
    script = completion.format_script("bash")
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=True, timeout=300)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {*help_text.HELP_OF_COMMANDS, "help", "--help", "--version"}),
        ("re", {"reconcile"}),
        ("list un", {"unmonitored"}),
        (
            "list --s",
            {f"--sort={it}" for it in ("energy", "memory", "age", "name")}
            | {"--state=" + it for it in ("live", "missing", "recovering", "lingering", "completed")},
        ),
        ("list --sort=n", {"name"}),
        ("completion ", {"bash", "zsh", "fish"}),
        ("watch --key=", {"auto", "container", "sandbox"}),
        ("install --for=k", {"kubernetes"}),
        ("lsit --", set()),
    ],
)
def test_bash_completes(line: str, expected: set[str]) -> None:
    assert completed(line) == expected


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_a_script_has_every_command(shell: str) -> None:
    script = completion.format_script(shell)
    assert script.isascii()
    assert all(verb in script for verb in [*commands.VERBS, "watch"])


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_shell_accepts_its_script(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(completion.format_script(shell))
    done = subprocess.run([shell, "-n", tmp_path / "script"], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
