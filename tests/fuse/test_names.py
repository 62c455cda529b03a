# SPDX-License-Identifier: Apache-2.0
"""Podman's names, by processes that stand where conmon stands: what they say, and who they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.hook import DEADLINE, Hook, created, stopped, task

ID = "c" * 64
STAND_IN = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[sys.argv.index('--') + 1 :]).returncode)"
"""A conmon: it runs what follows `--`."""
RUNTIME = 'hook=$1; state=$2; shift 2; "$hook" "$@" <"$state"; exit $?'
"""A runtime: it runs the hook, and stays its parent."""
APART = ("unshare", "--mount")
BACK = ("nsenter", f"--mount=/proc/{os.getpid()}/ns/mnt")


def name_of(
    hook: Hook, tmp_path: Path, words: Sequence[str | bytes], conmon: Sequence[str] = (), runtime: Sequence[str] = ()
) -> str | None:
    """The recorded name of a container that a conmon with these words starts. `conmon`, `runtime`: what runs these."""
    with task() as init:
        path = tmp_path / "state.json"
        path.write_text(json.dumps(created(ID, init.pid, **{"io.container.manager": "libpod"})))
        program, *more = hook.command("hook")
        command: list[Any] = [*conmon, sys.executable, "-ISc", STAND_IN, *words, "--"]
        command += [*runtime, "/bin/sh", "-c", RUNTIME, "sh", program, str(path), *more]
        done = subprocess.run(command, capture_output=True, check=False, timeout=DEADLINE)
        assert (done.returncode, done.stderr) == (0, b"")
        member = hook.key(ID)["members"][ID]
        assert hook.tasks(f"oci-{ID}") == {init.pid}, "whatever its name"
    hook(stopped(ID))
    found: str | None = member["name"]
    return found


def test_a_name_of_any_kind_harms_nothing(hook: Hook, tmp_path: Path) -> None:
    """All kinds of command lines: unit/test_podman.py."""
    words: list[str | bytes] = ["-c", ID, "-n", b"caf\xe9\n\x1b[2Jb c\xff"]
    assert name_of(hook, tmp_path, words) == "caf\ufffd\n\x1b[2Jb c\ufffd"
    listed = hook.ask("list").stdout
    assert listed.isascii()
    assert "\x1b" not in listed


def test_a_process_of_another_mount_namespace_is_not_asked(hook: Hook, tmp_path: Path) -> None:
    """A process of a container is in one. The runtime, its child, is in ours."""
    words = ["-c", ID, "-n", "web"]
    assert name_of(hook, tmp_path, words, runtime=BACK) == "web"
    assert name_of(hook, tmp_path, words, conmon=APART, runtime=BACK) is None
