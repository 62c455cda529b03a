# SPDX-License-Identifier: Apache-2.0
"""A machine with resctrl (the model), our hook and Podman."""

from __future__ import annotations

from pathlib import Path

from tests.resctrlfs import Mounted
from tests.support.containers import Lab
from tests.support.hook import PATIENT
from tests.support.observed import Observed


class PodmanNode(Observed):
    """The hook has these options beside its directories."""

    def __init__(self, directory: Path, resctrl: Mounted, *options: str) -> None:
        super().__init__(directory, resctrl)
        self.lab = Lab([*self.directories, PATIENT, *options])
