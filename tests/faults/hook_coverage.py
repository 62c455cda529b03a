# SPDX-License-Identifier: Apache-2.0
"""Branch coverage of the hook path: of unit tests in their process, of the hooks that tests start in each of theirs.

The tests run in a copy of the checkout, where the build makes a .pyz that measures itself: code objects name the files
of the copy, and its first line starts coverage before it does anything else.

The hook path is every module in hook/ itself, at once or when needed, and all that is in it: also what runs
only after a failure, or for people. In place of `models` there is what the build puts there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyz import COMPILED, archive
from tests import provision
from tests.support.cgroups import cgroup

if TYPE_CHECKING:
    from tests.faults.campaign import Campaign

# What runs little or nothing of the hook path, or takes its time and goes by chance.
LEFT_OUT = {
    "tests/unit": "archive build bytecode fuzz grafana layers linters provision simulator systemd tiers",
    "tests/fuse": "bench doctor faults imports native storm",
}
LEFT_OUT_TEST = "tests/fuse/test_process.py::test_ps_shows_what_the_documents_quote"
"""It looks at the first line, which measures here."""
ALONE = ("unshare", "--mount", "--fork", "--kill-child", "setsid")
"""What a command behind this mounts goes with it, and it ends with who started it.

It shares the pid namespace: in one of its own reconcile and reclaim refuse to work.
"""
INTO_CGROUP = ("sh", "-ec", 'echo $$ >"$0"; exec "$@"')
PATIENCE = 1800.0
"""Seconds for the tests of one file."""
IGNORED = shutil.ignore_patterns(".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "dist", "build")
SETTINGS = """\
[run]
branch = true
parallel = true
include = {copy}/hook/*
data_file = {copy}/build/coverage/data
disable_warnings = no-data-collected,module-not-measured,couldnt-parse
[report]
exclude_also =
    if TYPE_CHECKING:
    from __future__ import annotations
"""
BOOT = """\
import sys, posix
def measure(before):
    import coverage
    leave = posix._exit
    measured = coverage.Coverage(config_file="{copy}/build/coveragerc")
    def end(status):
        sys.path.insert(0, "{libraries}")
        try:
            measured.stop()
            measured.save()
        finally:
            leave(status)
    posix._exit = end
    measured.start()
    for name in ("gc", "fcntl", "_json", "json", "json.decoder"):  # the hook finds what a start finds
        if name not in before:
            sys.modules.pop(name, None)
if sys.version_info[:2] == {version}:
    sys.path.insert(0, "{libraries}")
    try:
        measure(set(sys.modules))
    except OSError:  # there is no working directory, which coverage asks for: nobody looks
        pass
    del sys.path[0]
{boot}
"""
# In the copy: what there is, and what takes its place.
MEASURED = {
    "packaging/pyz/archive.py": (
        f'BOOT = "{archive.BOOT}"',
        "BOOT = \"import sys,atexit,posix;exec(open('{copy}/build/boot.py').read())\"",
    ),
    "packaging/pyz/bytecode.py": (
        "compile(_Bare().visit(tree), path,",
        f"compile(_Bare().visit(tree), '{{copy}}/' + {COMPILED!r}.get(path, path),",
    ),
}


def run(campaign: Campaign) -> None:
    begin = time.monotonic()
    if not campaign.is_chosen("all"):
        return
    with tempfile.TemporaryDirectory() as name:
        measured = Measured(Path(name))
        files = test_files()
        failed = [path for path in files if not measured.run(path)]
        report = measured.report()
    is_whole = report.split()[-1] == "100.00%"
    campaign.tally("files of tests, measured", len(files), {} if is_whole else {"all": report}, begin)
    campaign.note(f"statements and branches: {report.splitlines()[-1]}")
    campaign.note(f"tests fail where they are measured: {', '.join(failed) or 'none'}")


class Measured:
    """A new copy of the checkout, and what tests in it have run."""

    def __init__(self, copy: Path) -> None:
        self.copy = copy
        shutil.copytree(provision.ROOT, copy, ignore=IGNORED, dirs_exist_ok=True)
        self._prepare()

    def _prepare(self) -> None:
        """Build what measures itself, and put what that needs there."""
        (self.copy / "build").mkdir()
        ask = "import sys, coverage; print(sys.version_info[:2]); print(coverage.__path__[0])"
        version, package = subprocess.check_output([sys.executable, "-c", ask], text=True).splitlines()
        known = {
            "{boot}": archive.BOOT,
            "{copy}": str(self.copy),
            "{version}": version,
            "{libraries}": str(Path(package).parent),
        }
        for name, text in (("coveragerc", SETTINGS), ("boot.py", BOOT)):
            (self.copy / "build" / name).write_text(_filled(text, known))
        for name, (text, other) in MEASURED.items():
            module = self.copy / name
            script = module.read_text(encoding="utf-8")
            assert script.count(text) == 1, text
            module.write_text(script.replace(text, _filled(other, known)), encoding="utf-8")
        code = (
            "import sys, tests; from pyz import archive; archive.build(python=sys.argv[1], interpreters=sys.argv[1:])"
        )
        command = [sys.executable, "-c", code, sys.executable]
        subprocess.run(command, cwd=self.copy, check=True, stdout=subprocess.DEVNULL)

    def run(self, path: str) -> bool:
        """Run the tests of a file; returns whether all passed, in time."""
        print(f"coverage: {path}", file=sys.stderr, flush=True)
        try:
            status, output = self._coverage(
                "run", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--deselect={LEFT_OUT_TEST}", path
            )
        except subprocess.TimeoutExpired:
            return False
        self._coverage("combine", "-q", "--append")
        sys.stderr.write(output if status else "")
        return status == 0

    def report(self) -> str:
        """What is missing in each module of the hook path, and at last how much there is of it."""
        files = [f"hook/{module}.py" for module in hook_path()]
        status, report = self._coverage("report", "--show-missing", "--precision=2", f"--include={','.join(files)}")
        assert status == 0, report
        return "\n".join([*(f"{file}: never imported" for file in files if file not in report), report.strip()])

    def _coverage(self, verb: str, *words: str) -> tuple[int, str]:
        """Return its exit status, and what it says."""
        measured = [sys.executable, "-m", "coverage", verb, f"--rcfile={self.copy}/build/coveragerc", *words]
        environment = {**os.environ, "PYTHONPATH": f"{self.copy}/build", "PYTHONDONTWRITEBYTECODE": "1"}
        # What the tests leave running goes with the cgroup; until then it may hold the output.
        with cgroup(f"/coverage-{os.getpid()}") as own, (self.copy / "build/log").open("w+") as log:
            done = subprocess.run(
                [*INTO_CGROUP, f"{own.directory}/cgroup.procs", *ALONE, *measured],
                cwd=self.copy,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=PATIENCE,
            )
            log.seek(0)
            return done.returncode, log.read()


def _filled(text: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        text = text.replace(name, value)
    return text


def test_files() -> list[str]:
    """The files of all tests that are looked at."""
    left_out = {f"{tier}/test_{name}.py" for tier, names in LEFT_OUT.items() for name in names.split()}
    found = [path for tier in LEFT_OUT for path in sorted((provision.ROOT / tier).glob("test_*.py"))]
    return [name for name in (str(path.relative_to(provision.ROOT)) for path in found) if name not in left_out]


def hook_path() -> list[str]:
    """The modules that a container's start may import, by their paths in hook/; `models` as it is in the .pyz."""
    names = {path.stem for path in (provision.ROOT / "hook").glob("*.py")}
    return sorted(names - {"__init__", "__main__", "models"})
