# SPDX-License-Identifier: Apache-2.0
"""A machine with resctrl (the model), our hook and Podman."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.resctrlfs import Mounted
from tests.support.containers import Lab
from tests.support.hook import PATIENT
from tests.support.observed import Observed


class PodmanNode(Observed):
    """The hook has these options beside its directories."""

    def __init__(self, directory: Path, resctrl: Mounted, *options: str) -> None:
        super().__init__(directory, resctrl)
        self.lab = Lab([*self.directories, PATIENT, *options])


def list_actions(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What a `reconcile --json` has done. With --adopt its status tells of containers beside the test's, too."""
    assert done.stderr == ""
    found: list[dict[str, Any]] = json.loads(done.stdout)["actions"]
    assert done.returncode <= any(it["problem"] for it in found), done
    return found
