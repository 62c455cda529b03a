# SPDX-License-Identifier: Apache-2.0
"""Debian's packages by an apt that has lists of its own: the machine's apt says which mirror,
and learns of nothing.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class CannotFetch(Exception):
    """This cannot be had here; the message says why in one line."""


class Apt:
    """A suite's packages; `deb-src`: their sources, with those of the security team.

    It believes that nothing is installed. `place`: for what it writes.
    """

    def __init__(self, place: Path, suite: str, kind: str = "deb", architecture: str = "") -> None:
        for name in ("state/lists/partial", "cache/archives/partial"):
            (place / name).mkdir(parents=True, exist_ok=True)
        (place / "status").touch()
        listing = run(
            ["apt-get", "indextargets", "--no-release-info", "--format", "$(REPO_URI)"]
        ).split()
        # The archive itself, since others have one suite or lack what it has
        mirror = next((uri for uri in listing if uri.rstrip("/").endswith("/debian")), None)
        if mirror is None:
            raise CannotFetch("apt is configured for no mirror of Debian's archive")
        keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
        lines = [f"{kind} [signed-by={keys}] {mirror} {suite} main\n"]
        security = next(
            (uri for uri in listing if uri.rstrip("/").endswith("/debian-security")), None
        )
        if kind == "deb-src" and security is not None:
            lines.append(f"{kind} [signed-by={keys}] {security} {suite}-security main\n")
        (place / "sources.list").write_text("".join(lines), encoding="utf-8")
        settings = {
            "Dir::Etc::SourceList": place / "sources.list",
            "Dir::Etc::SourceParts": "-",
            "Dir::Etc::Preferences": "-",
            "Dir::Etc::PreferencesParts": "-",
            "Dir::State": place / "state",
            "Dir::State::status": place / "status",
            "Dir::Cache": place / "cache",
            # Apt keeps our user then; its own one cannot read our cache directory.
            "APT::Sandbox::User": "root",
            "APT::Update::Error-Mode": "any",
            "Acquire::Languages": "none",
        }
        if architecture:
            settings |= {"APT::Architecture": architecture, "APT::Architectures": architecture}
        self._options = [
            "-q",
            *(word for key, value in settings.items() for word in ("-o", f"{key}={value}")),
        ]

    def __call__(self, program: str, *words: str, cwd: Path | None = None) -> str:
        """Run apt-get or apt-cache; returns what it prints. Raises CannotFetch."""
        return run([program, *self._options, *words], cwd)


def run(
    command: Sequence[str | Path],
    cwd: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """What a command prints.

    Raises CannotFetch with its first error, from which those after it follow.
    """
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**environment, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [
            f"exit status {done.returncode}"
        ]
        error = next((line for line in lines if line.startswith(("E: ", "ERROR: "))), lines[-1])
        raise CannotFetch(f"{command[0]}: {error}")
    return done.stdout
