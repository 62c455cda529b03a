# SPDX-License-Identifier: Apache-2.0
"""The man page says what --help says: every verb with its arguments, every option with its default, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hook.base.models import Options
from hook.base.reasons import Reason
from hook.cli import help_text
from hook.stages import entry

MANUAL = Path(__file__).resolve().parents[2] / "packaging" / "man" / "resctrl-mon-hook.8"
STAGES = entry._STAGES
ARGUMENT = re.compile(r"--[a-z-]+(?:=[^]\s]+)?|\bKEY\b")


def plain(mdoc: str) -> str:
    """The page without its markup: options and values as people type them, one item from `It` to `It`."""
    text = re.sub(r"^\.(?!It|Sh|Ss)", "", mdoc, flags=re.MULTILINE)
    text = re.sub(r"\b(?:Ar|Cm|Oc|Oo|Op|Pa|Pq|Xc|Xo)\b ?", "", text)
    return text.replace("Fl -", "--").replace(" Ns = Ns ", "=").replace(" | ", "|").replace("\n\n", "\n")


TEXT = plain(MANUAL.read_text(encoding="ascii"))
ITEMS = {item.split()[0].partition("=")[0]: item for item in re.split(r"^\.It\s", TEXT, flags=re.MULTILINE)[1:]}


@pytest.mark.parametrize("verb", [*STAGES, *help_text.HELP_OF_COMMANDS])
def test_each_command_has_its_item(verb: str) -> None:
    assert verb in ITEMS


@pytest.mark.parametrize("verb", help_text.HELP_OF_COMMANDS)
def test_each_command_has_its_arguments(verb: str) -> None:
    wanted = ARGUMENT.findall(help_text.HELP_OF_COMMANDS[verb][0])
    assert ARGUMENT.findall(ITEMS[verb])[: len(wanted)] == wanted


@pytest.mark.parametrize(("name", "default"), Options().model_dump().items())
def test_each_option_has_its_item_with_its_value_and_its_default(name: str, default: object) -> None:
    option, value = f"--{name.replace('_', '-')}", help_text.HELP_OF_OPTIONS[name][0]
    head, _, meaning = ITEMS[option].partition("\n")
    assert head == (f"{option}={value}" if value else option)
    if default not in (False, [], {}):
        assert re.search(rf"(^|\(){re.escape(str(default))}( ;|[.)]| \.|$)", meaning, re.MULTILINE)


@pytest.mark.parametrize("reason", [value for name, value in vars(Reason).items() if name.isupper()])
def test_each_reason_has_its_item(reason: str) -> None:
    assert reason in ITEMS


def test_the_page_has_no_unknown_option() -> None:
    known = set(re.findall(r"--[a-z-]+", help_text.format_help()))
    assert set(re.findall(r"--[a-z-]+", TEXT)) <= known


def test_man_page_has_help_and_version() -> None:
    assert {"--help", "--version"} <= set(ITEMS)
