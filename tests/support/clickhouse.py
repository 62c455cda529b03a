# SPDX-License-Identifier: Apache-2.0
"""ClickHouse as a library, in a process of its own:
its Python and its memory are not those of the tests.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from fetch import provision

SCRIPT = """\
import sys
from chdb.session import Session
session = Session(sys.argv[1])
for statement in sys.stdin.read().split(';\\n'):
    if statement.strip():
        sys.stdout.write(session.query(statement, 'TSV').data() or '')
"""


class ClickHouse:
    """A database in a directory. Raises provision.CannotProvision."""

    def __init__(self, directory: Path) -> None:
        self.command = [str(provision.clickhouse()), "-c", SCRIPT, str(directory)]

    def run(self, *statements: str) -> list[list[str]]:
        """Run statements; returns the rows of all of them."""
        words, text = self.command, ";\n".join(statements)
        done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [line.split("\t") for line in done.stdout.splitlines()]
