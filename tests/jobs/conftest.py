# SPDX-License-Identifier: Apache-2.0
"""A node for the examples of docs/jobs.md: the model of resctrl,
and the commands that the examples call.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from fetch import provision
from tests.resctrlfs import Mounted, mounted
from tests.support.hook import PATIENT, Hook, shipped
from tests.support.leftovers import MARK, own_mark
from tests.support.waiting import wait
from tests.unit.documents import page

# It is where the examples have the program, and notes each call.
# The path in it is the only thing that an example on a node has otherwise.
PROGRAM = """\
#!/bin/sh
echo "$*" >>{calls}
verb=$1
shift
exec {program} "$verb" {options} "$@"
"""


def read_section(heading: str) -> tuple[dict[str, str], list[str]]:
    """Return the blocks of a section of jobs.md:
    files by the path or name that the text before has, and commands.
    """
    files, commands = {}, []
    for paragraph, block in re.findall(
        r"((?:.+\n)+)\n```\n((?:.*\n)*?)```", page("docs/jobs.md", heading)
    ):
        if paths := re.findall(r"`(/etc/[\w./-]+|\w+\.c)`", paragraph):
            files[paths[-1]] = block
        else:
            commands.append(block)
    return files, commands


class BatchNode:
    """A directory that every user can reach, with a history, and with `bin`,
    where the examples' commands are.
    """

    def __init__(self, directory: Path, resctrl: Mounted) -> None:
        self.directory = directory
        self.resctrl = resctrl
        self.hook = Hook(resctrl.root, directory / "run")
        self.history = directory / "history.jsonl"
        self.bin = directory / "bin"
        self.bin.mkdir()
        options = [f"--resctrl-root={resctrl.root}", f"--run-dir={self.hook.run_dir}", PATIENT]
        options.append(f"--history={self.history}")
        command = PROGRAM.format(
            calls=quote(str(directory / "calls")),
            program=quote(str(shipped())),
            options=" ".join(map(quote, options)),
        )
        self.add_command("resctrl-mon-hook", command)
        self.add_command("sudo", '#!/bin/sh\nexec "$@"\n')
        self.environment = {
            "PATH": f"{self.bin}:{os.defpath}:/usr/sbin:/sbin",
            "LC_ALL": "C",
            "HOME": str(directory),
            MARK: os.environ.get(MARK, ""),
        }

    def add_command(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text, encoding="utf-8")
        (self.bin / name).chmod(0o755)

    def place(self, text: str) -> str:
        """Return an example with the paths that it has here."""
        for path in ("/etc/slurm", "/usr/local/lib/slurm"):
            text = text.replace(path, str(self.directory))
        return re.sub(r"/usr/bin/(?=resctrl-mon-hook|backup)", f"{self.bin}/", text)

    def run(self, *words: str, stdin: str = "") -> str:
        """Run a command, which has to succeed; returns what it prints."""
        done = subprocess.run(
            words,
            input=stdin,
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def shell(self, script: str) -> str:
        return self.run("sh", "-ec", self.place(script))

    def charge(self, key: str, joules: int) -> None:
        """Let a job use energy once it has a process."""
        wait(lambda: f"oci-{key}" in self.hook.groups() and bool(self.hook.tasks(f"oci-{key}")))
        where = {
            "group": f"/mon_groups/oci-{key}",
            "domain": "mon_PERF_PKG_00",
            "event": "core_energy",
        }
        self.resctrl.control(do="add", amount=joules, **where)

    def calls(self, verb: str) -> list[str]:
        """Return what the program was called with, for each call with this verb."""
        lines = (self.directory / "calls").read_text(encoding="utf-8").splitlines()
        return [rest for word, _, rest in (line.partition(" ") for line in lines) if word == verb]

    def await_lines(self, key: str, count: int) -> list[dict[str, Any]]:
        """Return the lines of history of a key once there are so many."""
        wait(lambda: len(self.lines(key)) == count)
        return self.lines(key)

    def lines(self, key: str) -> list[dict[str, Any]]:
        text = self.history.read_text(encoding="utf-8") if self.history.exists() else ""
        return [line for line in map(json.loads, text.splitlines()) if line["key"] == key]


@pytest.fixture(scope="module")
def node() -> Iterator[BatchNode]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if reasons := provision.install(provision.JOBS):
        pytest.skip("; ".join(reasons))
    with tempfile.TemporaryDirectory(prefix=own_mark()) as name:
        directory = Path(name)
        directory.chmod(0o755)
        with mounted(directory) as resctrl:
            yield BatchNode(directory, resctrl)
