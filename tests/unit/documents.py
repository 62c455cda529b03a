# SPDX-License-Identifier: Apache-2.0
"""The documents as tests read them: pages, sections, tables, and the code in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hook.cli.options import Row

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
PAGES += sorted(
    str(path.relative_to(ROOT))
    for path in [*ROOT.glob("docs/*.md"), *ROOT.glob("tests/**/README.md")]
)


def page(name: str, section: str | None = None) -> str:
    """The text of a page, or of one of its sections, whose subsections are in it."""
    text = (ROOT / name).read_text(encoding="utf-8")
    if section is None:
        return text
    marks, rest = re.split(rf"^(##+) {re.escape(section)}\n", text, maxsplit=1, flags=re.MULTILINE)[
        1:
    ]
    return re.split(rf"^#{{2,{len(marks)}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str, head: str) -> list[list[str]]:
    """The rows of the table whose first column has this head;
    a `|` in a cell is written with a backslash.
    """
    table = text[text.index(f"\n| {head} |") + 1 :].partition("\n\n")[0]
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.strip().splitlines()]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def first_words(text: str, head: str) -> list[str]:
    """What is marked as code in the first column of a table."""
    return [word for row in rows(text, head) for word in re.findall(r"`([^`]+)`", row[0])]


def blocks(text: str) -> list[str]:
    """The fenced blocks."""
    return re.findall(r"^ *```\w*\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)


def code(text: str) -> list[str]:
    """All lines of code: fenced, indented, and within sentences."""
    lines = [
        line.strip() for block in blocks(text) for line in block.replace("\\\n", " ").splitlines()
    ]
    rest = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines += [
        line.strip() for line in re.findall(r"^ {4}(.*)", rest.replace("\\\n", " "), re.MULTILINE)
    ]
    return lines + [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", rest)]


def anchors(text: str) -> set[str]:
    """What GitHub lets a link to a heading of this page end in."""
    titles = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def screen(name: str, command: str) -> str:
    """What a page shows for a command: the rest of the block, or up to the next command in it."""
    start = f"$ {command}\n"
    (text,) = [block for block in blocks(page(name)) if start in block]
    return text.split(start)[1].split("\n$ ")[0].rstrip("\n") + "\n"


def record(name: str, command: str, text: str) -> None:
    """Put what a command prints into a page, in place of what the page shows for it."""
    whole, former = page(name), f"$ {command}\n{screen(name, command)}"
    assert whole.count(former) == 1
    (ROOT / name).write_text(whole.replace(former, f"$ {command}\n{text}"), encoding="utf-8")


def show_argument(row: Row) -> str:
    """How people type an argument of a command."""
    (word, *_), fields = row
    if not word.startswith("-"):
        return str(fields["metavar"])
    return f"{word}={fields['metavar']}" if "metavar" in fields else word
