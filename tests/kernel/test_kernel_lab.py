# SPDX-License-Identifier: Apache-2.0
"""A guest says how its command went."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernel import kernel
from tests.kernel.vm import Vm, run_in_guest


def test_status_output_and_knobs(capfd: pytest.CaptureFixture[str]) -> None:
    try:
        kernel.ready()
    except kernel.CannotBuild as error:
        pytest.skip(str(error))
    text = "cat /sys/fs/resctrl/info/L3_MON/num_rmids; cat /sys/fs/resctrl/mon_groups/x/mon_hw_id; pwd >&2; exit 124"
    assert run_in_guest(f"mkdir /sys/fs/resctrl/mon_groups/x; {text}", Vm(rmids=6, mount_options="debug")) == 124
    assert capfd.readouterr() == ("7\n1\n", f"{Path.cwd()}\n")
