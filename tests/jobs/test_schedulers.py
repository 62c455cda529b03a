# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/jobs.md for cron, at and GNU parallel, by the real programs."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.jobs.conftest import BatchNode, read_section

FILES, COMMANDS = read_section("cron, at, GNU parallel")
# In mounts of their own, so that they find nothing of this machine and leave nothing on it.
ALONE = ("unshare", "--mount", "sh", "-ec")
CRON = """\
mount -t tmpfs none /etc/cron.d
mount -t tmpfs none /var/spool/cron
mount -t tmpfs none /run
mount --bind /dev/null /etc/crontab
cp "$0" /etc/cron.d/nightly
exec cron -f
"""
AT = """\
mount -t tmpfs none /run
mount -t tmpfs none /var/spool/cron
mkdir -m 1770 /var/spool/cron/atjobs /var/spool/cron/atspool
touch /var/spool/cron/atjobs/.SEQ
chown -R daemon:daemon /var/spool/cron
sh -ec "$0"
exec atd -s
"""


def add_backup(node: BatchNode) -> None:
    node.add_command("backup", f'#!/bin/sh\necho "$@" >{node.directory}/backup-was-called-with\n')


def test_crons_job_has_a_line(node: BatchNode) -> None:
    """The hour is another one: when cron starts."""
    add_backup(node)
    ((name, line),) = FILES.items()
    line, replaced = re.subn(r"^0 3 \* \* \* ", "@reboot ", node.place(line))
    assert (name, replaced) == ("/etc/cron.d/nightly", 1)
    (node.directory / "crontab").write_text(line, encoding="utf-8")
    with subprocess.Popen(
        [*ALONE, CRON, str(node.directory / "crontab")], env=node.environment
    ) as cron:
        try:
            (run,) = node.await_lines("nightly", 1)
        finally:
            cron.terminate()
    assert (run["kind"], run["runs"]) == ("job", 1)
    assert (node.directory / "backup-was-called-with").read_text() == "--all\n"


def test_ats_job_has_a_line(node: BatchNode) -> None:
    add_backup(node)
    (command,) = [command for command in COMMANDS if "sudo at " in command]
    node.run(*ALONE, AT, node.place(command).replace("at 03:00", "at now"))
    node.await_lines("reindex", 1)


@pytest.mark.parametrize(
    ("which", "keys"), [(0, ["convert"]), (1, ["convert-1", "convert-2", "convert-3"])]
)
def test_parallels_tasks_have_a_line_together_or_one_each(
    node: BatchNode, which: int, keys: list[str]
) -> None:
    for name in "abc":
        (node.directory / f"{name}.log").write_text(name, encoding="utf-8")
    command = [command for command in COMMANDS if "parallel" in command][which]
    node.shell(command)
    assert [len(node.await_lines(key, 1)) for key in keys] == [1] * len(keys)
    for name in "abc":
        (node.directory / f"{name}.log.gz").unlink()
