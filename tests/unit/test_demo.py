# SPDX-License-Identifier: Apache-2.0
"""The demo where no container can be run. With real containers: tests/podman/test_try.py."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.unit.documents import ROOT

DEMO = """\
import sys
from tests import demo
demo.missing = lambda: "not root"
status = demo.main([])
assert "pydantic" not in sys.modules, "the demo's own venv does not have it"
sys.exit(status)
"""


def test_demo_without_root_shows_the_same_in_the_simulator_and_says_what_is_not_shown() -> None:
    done = subprocess.run([sys.executable, "-c", DEMO], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    first, *scenes = done.stdout.split("\n> ")
    assert "(not root)" in first
    groups = [re.findall("mon_groups/oci-.*  (pod [a-z]+|container), inode ([0-9]+)", scene) for scene in scenes]
    containers = [re.findall("^    ([a-z-]+) .* put in by its createRuntime", scene, re.M) for scene in scenes]
    shop, batch, alone = groups[0]
    assert groups == [[shop, batch, alone], [shop, batch, alone], [shop, alone], []]
    assert [len(names) for names in containers] == [5, 4, 2, 0]
    assert "Not shown" in scenes[-1]
