"""The README says what the code does: every option with its default, every reason, every file that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hook.base.errors import Reason
from hook.base.models import Options
from hook.cli.help_text import HELP_OF_OPTIONS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REASONS = [value for name, value in vars(Reason).items() if name.isupper()]


@pytest.mark.parametrize(("name", "default"), Options().model_dump().items())
def test_each_option_stands_there_with_its_default(name: str, default: object) -> None:
    metavar = HELP_OF_OPTIONS[name][0].replace("|", r"\|")
    option = f"--{name.replace('_', '-')}" + (f"={metavar}" if metavar else "")
    shown = {"[]": "", "{}": "", "False": "off"}.get(str(default), f"`{default}`")
    assert f"| `{option}` | {shown} |".replace("|  |", "| |") in README


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_stands_there(reason: str) -> None:
    assert f"| `{reason}` |" in README


def test_no_option_stands_there_that_is_none() -> None:
    table = re.findall(r"^\| `--([a-z-]+)", README, re.MULTILINE)
    assert sorted(table) == sorted(name.replace("_", "-") for name in Options.model_fields)


def test_the_files_that_it_names_are_there() -> None:
    for path in re.findall(r"`((?:hook|oci-hooks|tests)/[\w./-]+)`|`(\d+-resctrl[\w.-]+\.json)`", README):
        assert (ROOT / path[0]).exists() if path[0] else (ROOT / "oci-hooks" / path[1]).exists()


def test_the_two_commands_stand_at_the_top() -> None:
    head = README.split("\n\n")[1]
    assert [line.split("#")[0].strip() for line in head.splitlines()] == [
        "sudo python3 build.py demo",
        "sudo python3 build.py test",
    ]
