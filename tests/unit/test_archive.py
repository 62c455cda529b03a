# SPDX-License-Identifier: Apache-2.0
"""The .pyz: the same bytes everywhere, nothing in it but the standard library,
and an exit status of 0.
"""

from __future__ import annotations

import ast
import os
import shutil
import stat
import sys
import zipfile
from pathlib import Path

import pytest

import pyz as made
from fetch import interpreters
from hook import entry
from hook.cli.verbs import VERBS
from pyz import BuildError, archive
from pyz.bytecode import Bytecode
from tests.unit.files import ELSEWHERE, FOUND, broken, each_python, start

TOO_OLD = interpreters.find(minors=interpreters.TOO_OLD)
CUTS = 20
each_old_python = pytest.mark.parametrize(
    "old", TOO_OLD, ids=[f"{python.version}" for python in TOO_OLD]
)


def built_by(python: str, source: Path, output: Path, **circumstances: str) -> bytes:
    """What `python build.py` makes of the sources in these circumstances."""
    command = 'umask "$1"; shift; exec "$@"'
    bytecode = ["--bytecode", str(FOUND[0].path)]
    arguments = [python, str(source / "build.py"), "--output", str(output), *bytecode]
    shell = ["sh", "-c", command, "sh", circumstances.pop("umask", "022")]
    done = start([*shell, *arguments], cwd=output.parent, env={"PATH": os.defpath, **circumstances})
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(output.stat().st_mode) == 0o755
    return output.read_bytes()


# --- The bytes


@pytest.mark.slow
def test_the_bytes_are_the_same_in_other_circumstances_and_by_another_interpreter(
    source: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("dist", "__pycache__"))
    for path in copy.rglob("*.py"):
        path.chmod(0o600)
        os.utime(path, (1, 1))
    elsewhere = {"LC_ALL": "C", "PYTHONUTF8": "0", "SOURCE_DATE_EPOCH": "1"}
    elsewhere |= {"umask": "077", "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "1"}
    first = built_by(sys.executable, copy, tmp_path / "x.pyz", **elsewhere)
    for python in (FOUND[0], FOUND[-1]):  # what differs is a version's zipfile
        assert built_by(str(python.path), source, tmp_path / "x.pyz") == first, python


def test_the_zip_holds_the_sources_with_the_compiled_models_and_what_install_puts_in_place(
    pyz: Path, source: Path
) -> None:
    with zipfile.ZipFile(pyz) as file:
        held = {
            name: file.read(name) for name in file.namelist() if not name.startswith("bytecode/")
        }
    installed = ("completions", "systemd", "tmpfiles.d")
    tops = (source / "oci-hooks", *(source / "packaging" / name for name in installed))
    paths = [*(source / "hook").rglob("*.py"), *(path for top in tops for path in top.iterdir())]
    expected = {str(path.relative_to(source)): path.read_bytes() for path in paths}
    for models, compiled in made.COMPILED.items():
        expected[models] = expected.pop(compiled)
    assert held == {**expected, "__main__.py": archive.MAIN.encode()}


def test_a_build_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "hook").mkdir()
    target = tmp_path / archive.OUTPUT
    target.parent.mkdir()
    target.write_text("old")
    with pytest.raises(BuildError, match=r"hook/models_compiled\.py is missing"):
        archive.build(root=tmp_path)
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    assert target.read_text() == "old"


# --- The first line


@each_python
def test_every_way_of_starting(
    python: str, source: Path, compiled: dict[str, Bytecode], tmp_path: Path
) -> None:
    directory = tmp_path / "a path with blanks"
    directory.mkdir()
    pyz = directory / "x.pyz"
    pyz.write_bytes(
        archive.join(archive.read_sources(source), archive.shebang(python), [compiled[python]])
    )
    pyz.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(pyz)
    ways: list[list[str | Path]] = [[pyz], ["env", "-i", pyz], [link], [python, pyz], ["./x.pyz"]]
    for way in ways:
        done = start([*way, "--help"], cwd=directory)
        assert (done.returncode, done.stderr) == (0, ""), way
        assert "resctrl-mon-hook" in done.stdout, way
    assert start([*ways[-1], "no-such-verb", *ELSEWHERE], cwd=directory).returncode == 2


def test_the_longest_first_line_still_starts(
    tmp_path_factory: pytest.TempPathFactory, source: Path
) -> None:
    long = "/" + "p" * 30  # so that nothing is left of the blanks
    room = archive.SHEBANG_LIMIT - len(archive.shebang(long)) + len(long) - 1
    directory = tmp_path_factory.mktemp("x")
    name = "p" * (room - len(str(directory)))
    python = directory / name
    python.symlink_to(FOUND[-1].path)
    pyz = archive.build(root=source, output=directory / "x.pyz", python=str(python))
    assert len(pyz.read_bytes().partition(b"\n")[0]) + 1 == archive.SHEBANG_LIMIT
    assert start([pyz, "--help"]).returncode == 0
    with pytest.raises(BuildError, match="the kernel reads 255"):
        archive.shebang(str(python) + "x")


@each_python
@pytest.mark.parametrize("name", [archive.PYTHON, "/usr/bin/python3.14"])
def test_kernels_before_5_1_cut_the_usual_first_line_where_it_is_whole(
    pyz: Path, python: str, name: str
) -> None:
    """They hand over 127 bytes, without the blanks at their end."""
    line = archive.shebang(name)[: archive.OLD_SHEBANG_LIMIT].decode().rstrip()
    boot = line.partition(" -ISc")[2]
    assert boot == archive.BOOT
    assert start([python, "-ISc", boot, pyz, "--version"]).stdout.startswith("resctrl-mon-hook ")
    cut = pyz.with_name("old kernel.pyz")
    cut.write_bytes(pyz.read_bytes()[:900])
    assert start([python, "-ISc", boot, cut, "hook", *ELSEWHERE]).returncode == 0


RELEASED = [
    "import "
    "sys,atexit,posix;atexit.register(posix._exit,0);f=open(sys.argv[1],'rb');1/any(map(exec,f))"
]
"""What the first line of each release ran, on all kernels.

A line that changes is added: the old ones must go on.
"""


@each_python
def test_a_start_by_an_older_first_line_goes_on_with_the_file_in_its_place(
    pyz: Path, python: str
) -> None:
    assert archive.BOOT in RELEASED
    for boot in RELEASED:
        done = start([python, "-ISc", boot, pyz, "--version"])
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("resctrl-mon-hook ")


def test_an_interpreter_that_no_first_line_can_name_is_refused() -> None:
    for path in ("python3", "", "/a b", "/a\nb", "/a\tb"):
        with pytest.raises(BuildError, match="absolute path"):
            archive.shebang(path)


# --- Whatever goes wrong: 0 for runtimes, 2 for people

PERSON = ["list", "install", "--help", "no-such-verb", ""]
RUNTIME = ["hook", "createRuntime", "poststop"]


def cuts(data: bytes) -> list[int]:
    """Where a file is cut: all over it, and more often in its second line."""
    first = data.index(b"\n") + 1
    all_over = {first + (len(data) - first - 1) * step // (CUTS - 1) for step in range(CUTS)}
    return sorted(all_over | set(range(first, data.index(b"\n", first) + 2, 100)))


@pytest.mark.slow
def test_a_truncated_file_says_so_and_exits_with_0_for_a_runtime_and_2_for_people(
    pyz: Path,
) -> None:
    data = pyz.read_bytes()
    for cut in cuts(data):
        done = broken(pyz, data[:cut], "cut.pyz", "hook", *ELSEWHERE)
        assert done.returncode == 0, cut
        assert done.stderr, cut
        done = broken(pyz, data[:cut], "cut.pyz", "list", *ELSEWHERE)
        assert done.returncode == 2 or "RMIDs" in done.stdout or "not mounted" in done.stdout, cut
        assert done.stderr or done.stdout, cut


@each_python
def test_broken_code_exits_with_0_for_runtimes_and_2_for_people(pyz: Path, python: str) -> None:
    sources = archive.read_sources(pyz.parents[1])
    for name, text, said in (
        ("hook/entry.py", "raise MemoryError", "MemoryError"),
        ("hook/entry.py", "raise SystemExit(3)", "None"),
        ("hook/entry.py", "(", "SyntaxError"),
        ("hook/context.py", "raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("hook/entry.py", None, "ImportError"),
    ):
        contents = {module: code for module, code in sources.items() if module != name}
        contents |= {} if text is None else {name: text.encode()}
        for verb, status in (("createRuntime", 0), ("list", 2)):
            done = broken(
                pyz, archive.join(contents, archive.shebang(python)), "broken.pyz", verb, *ELSEWHERE
            )
            last = done.stderr.splitlines()[-1]
            assert (done.returncode, last.partition(": ")[0]) == (status, "resctrl-mon-hook")
            assert f"cannot run {pyz.with_name('broken.pyz')}: {said}" in last


@each_python
def test_broken_code_executes_the_command_of_run_unless_it_is_strict(
    pyz: Path, python: str
) -> None:
    contents = {
        **archive.read_sources(pyz.parents[1]),
        "hook/cli/command_line.py": b"raise MemoryError",
    }
    path = pyz.with_name("broken.pyz")
    path.write_bytes(archive.join(contents, archive.shebang(python)))
    path.chmod(0o755)
    shell = ["sh", "-c", "umask; env"]
    environment = {"TZ": "x", "A": "1", "PATH": os.defpath}

    def run(*words: str) -> tuple[int, str, bool]:
        done = start([path, "run", *ELSEWHERE, *words], env=environment)
        return done.returncode, done.stdout, "the command runs, and is not monitored" in done.stderr

    assert run("--key=x", "--", *shell) == (0, start(shell, env=environment).stdout, True)
    assert run("--", "sh", "-c", "exit 7") == (7, "", True)
    assert (run("--", "no-such-command"), run("--", "/")) == ((127, "", True), (126, "", True))
    assert run("--strict", "--", *shell) == run(*shell) == run() == run("--") == (2, "", False)


def test_the_first_line_tells_the_verbs_for_runtimes_from_those_for_people() -> None:
    """By their first two letters, since the kernel reads no longer a line."""
    assert list(entry.STAGES) == RUNTIME
    assert "".join(verb[:2] for verb in RUNTIME) == "hocrpo"
    assert 'not in"hocrpo"' in archive.FOR_PEOPLE
    assert not [verb for verb in (*VERBS, "help", "-h") if verb[:2] in "hocrpo"]


# --- A Python that is too old


@each_old_python
def test_a_python_that_is_too_old_says_so_and_exits_with_0_for_runtimes_and_2_for_people(
    pyz: Path, old: interpreters.Interpreter
) -> None:
    version = ".".join(map(str, old.version[:2]))
    for verb in (*PERSON, *RUNTIME):
        done = start([old.path, pyz, verb, *ELSEWHERE])
        assert (done.returncode, done.stdout) == (0 if verb in RUNTIME else 2, "")
        (line,) = done.stderr.splitlines()
        skipped = f"{verb}: nothing was done for this container: " if verb in RUNTIME else ""
        assert line.startswith(
            f"resctrl-mon-hook: {skipped}{old.path} is Python {version}, which is too old; "
        )
        assert line.endswith(
            "; hint: install Python 3.9 or newer, or the ELF file, which brings its own"
        )


def test_pythons_from_3_4_on_can_read_what_runs_before_their_version_is_known() -> None:
    for text in (
        archive.BOOT,
        archive.BOOT + archive.FOR_PEOPLE,
        archive.FROM_SOURCES,
        archive.FALLBACK,
        archive.MAIN,
        archive.SECOND_LINE.format(fallback=archive.FALLBACK, table=1, sources=1, room=1),
    ):
        ast.parse(text, feature_version=(3, 4))
