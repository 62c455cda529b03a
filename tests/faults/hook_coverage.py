# SPDX-License-Identifier: Apache-2.0
"""Branch coverage of the hook path by the unit tests, which run whole hooks in their own process.

The hook path is every module in hook/ itself, also what runs only after a failure, or for people.
In place of `models` there is what the build puts there. Left out is what only a process of its own
can run: tests/fuse has a test of each. So is the loader, by which each process of the .pyz starts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fetch import provision

if TYPE_CHECKING:
    from tests.faults.campaign import Campaign

LEFT_OUT = "archive build bytecode grafana layers linters provision simulator systemd tiers"
"""Unit tests that run little or nothing of the hook path, or take their time and go by chance."""
SETTINGS = r"""
[run]
branch = true
include = hook/*.py
[report]
exclude_also =
    if TYPE_CHECKING:
    from __future__ import annotations
    # closed descriptors, pipes that block, a stdin that cannot be read (test_process)
    def ensure_standard_descriptors\(
    except BlockingIOError:
    return posix.open\("/proc/self/fd/0"
    if any\(event & select.POLLOUT
    except OSError as caught:
    # the compiled models in the place of pydantic's (every test of tests/fuse)
    def __instancecheck__\(
    # CPython 3.10 and 3.11 without a module (test_hostile)
    except \(SystemError, ImportError\):
"""


def run(campaign: Campaign) -> None:
    begin = time.monotonic()
    if not campaign.is_chosen("all"):
        return
    files = test_files()
    with tempfile.TemporaryDirectory() as name:
        Path(name, "settings").write_text(SETTINGS, encoding="utf-8")
        tests = _coverage(Path(name), "run", "-m", "pytest", "-q", "-p", "no:cacheprovider", *files)
        of_path = [f"hook/{module}.py" for module in hook_path() if module != "loader"]
        report = _coverage(
            Path(name),
            "report",
            "--show-missing",
            "--precision=2",
            f"--include={','.join(of_path)}",
        )
    never = [f"{file}: never imported" for file in of_path if file not in report.stdout]
    text = "\n".join([*never, report.stdout.strip()])
    is_whole = not never and text.split()[-1] == "100.00%"
    campaign.tally("files of tests, measured", len(files), {} if is_whole else {"all": text}, begin)
    campaign.note(f"statements and branches: {text.splitlines()[-1]}")
    if tests.returncode:
        campaign.note(f"tests fail where they are measured: {tests.stdout[-2000:]}")


def _coverage(directory: Path, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    settings = [f"--rcfile={directory}/settings", f"--data-file={directory}/data"]
    command = [sys.executable, "-m", "coverage", verb, *settings, *words]
    return subprocess.run(command, cwd=provision.ROOT, capture_output=True, text=True, check=False)


def test_files() -> list[str]:
    """The files of unit tests that are looked at."""
    left_out = {f"test_{name}.py" for name in LEFT_OUT.split()}
    paths = sorted((provision.ROOT / "tests/unit").glob("test_*.py"))
    return [f"tests/unit/{path.name}" for path in paths if path.name not in left_out]


def hook_path() -> list[str]:
    """The modules that a container's start may import, by their paths in hook/;
    `models` as it is in the .pyz.
    """
    names = {path.stem for path in (provision.ROOT / "hook").glob("*.py")}
    return sorted(names - {"__init__", "__main__", "models"})
