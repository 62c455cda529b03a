"""The shipped file: the same bytes everywhere, nothing in it but the standard library, and an exit status of 0."""

from __future__ import annotations

import ast
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import build
from hook.cli import help_text
from hook.host.pyz_file import PyzFile
from hook.stages import entry
from tests.support import interpreters

ROOT = Path(__file__).resolve().parents[2]
FOUND = interpreters.find()
TOO_OLD = interpreters.find(minors=interpreters.TOO_OLD)
CUTS = 40

# What a container start may import, each of which is cheap. `json` is for a Python without the C half of it; hashlib
# and _socket are imported only once something is wrong; _signal is a part of the interpreter.
HOOK_PATH_IMPORTS = {
    "_json",
    "_signal",
    "_socket",
    "errno",
    "fcntl",
    "hashlib",
    "json",
    "marshal",
    "posix",
    "select",
    "sys",
    "time",
}

each_python = pytest.mark.parametrize("python", [str(it.path) for it in FOUND], ids=[f"{it.version}" for it in FOUND])
each_old_python = pytest.mark.parametrize("old", TOO_OLD, ids=[f"{it.version}" for it in TOO_OLD])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, so that nobody changes them between two builds. Its path has a blank in it."""
    root = tmp_path_factory.mktemp("sources") / "a copy"
    shutil.copytree(ROOT / "hook", root / "hook", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "build.py", root)
    for name in ("oci-hooks", "packaging"):
        shutil.copytree(ROOT / name, root / name)
    return root


@pytest.fixture(scope="module")
def pyz(source: Path) -> Path:
    return build.build(root=source, python=str(FOUND[-1].path), bytecode=[str(it.path) for it in FOUND])


def start(
    command: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
    )


def built_by(python: str, source: Path, output: Path, **circumstances: str) -> bytes:
    """What `python build.py` makes of the sources in these circumstances."""
    umask = circumstances.pop("umask", "022")
    command = 'umask "$1"; shift; exec "$@"'
    bytecode = [word for it in FOUND[:2] for word in ("--bytecode", str(it.path))]
    arguments = [python, str(source / "build.py"), "--output", str(output), *bytecode]
    cwd = output.parent
    env = {"PATH": os.defpath, **circumstances}
    done = start(["sh", "-c", command, "sh", umask, *arguments], cwd=cwd, env=env)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(output.stat().st_mode) == 0o755
    return output.read_bytes()


# --- The bytes


def test_the_bytes_are_the_same_in_other_circumstances(source: Path, tmp_path: Path) -> None:
    python = sys.executable
    first = built_by(python, source, tmp_path / "1.pyz")
    assert built_by(python, source, tmp_path / "1.pyz") == first
    assert built_by(python, source, tmp_path / "2.pyz", umask="077", TZ="Asia/Tokyo", PYTHONHASHSEED="1") == first
    assert built_by(python, source, tmp_path / "3.pyz", LC_ALL="C", PYTHONUTF8="0", SOURCE_DATE_EPOCH="1") == first


def test_the_bytes_do_not_depend_on_how_the_sources_lie_there(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("dist", "__pycache__"))
    for path in copy.rglob("*.py"):
        path.chmod(0o600)
        os.utime(path, (1, 1))
    assert built_by(sys.executable, copy, tmp_path / "1.pyz") == built_by(sys.executable, source, tmp_path / "2.pyz")


@each_python
def test_the_bytes_are_the_same_by_every_interpreter(python: str, source: Path, tmp_path: Path) -> None:
    expected = built_by(sys.executable, source, tmp_path / "first.pyz")
    assert built_by(python, source, tmp_path / "x.pyz") == expected


def test_the_entries_are_sorted_dated_and_stored(pyz: Path) -> None:
    with zipfile.ZipFile(pyz) as file:
        entries = file.infolist()
        assert file.testzip() is None
    assert [it.filename for it in entries] == sorted(it.filename for it in entries)
    for it in entries:
        assert it.date_time == (1980, 1, 1, 0, 0, 0)
        assert it.compress_type == zipfile.ZIP_STORED
        assert it.external_attr >> 16 == stat.S_IFREG | 0o644
        assert (it.create_system, it.create_version, it.extract_version) == (3, 20, 20)
        assert (it.flag_bits, it.extra, it.comment) == (0, b"", b"")


def test_the_zip_holds_the_sources_with_the_compiled_models_in_place(pyz: Path, source: Path) -> None:
    with zipfile.ZipFile(pyz) as file:
        held = {name: file.read(name) for name in file.namelist()}
    assert held["__main__.py"] == build.MAIN.encode()
    assert held["hook/models.py"] == (source / build.COMPILED).read_bytes()
    others = {path.name for path in (source / "hook").glob("*.py")} - {"__main__.py", "models_compiled.py"}
    texts = {name for name in held if name.endswith(".py")}
    assert texts == {"__main__.py"} | {f"hook/{name}" for name in others}


def test_the_zip_holds_what_install_puts_in_place(pyz: Path, source: Path) -> None:
    with zipfile.ZipFile(pyz) as file:
        held = {name: file.read(name) for name in file.namelist() if not name.startswith(("hook/", "bytecode/"))}
    del held["__main__.py"]
    directories = ("oci-hooks", "packaging/systemd", "packaging/tmpfiles.d")
    paths = [path for name in directories for path in (source / name).iterdir()]
    assert held == {str(path.relative_to(source)): path.read_bytes() for path in paths}


def test_a_file_to_be_installed_is_missing(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    shutil.rmtree(copy / "oci-hooks")
    with pytest.raises(build.BuildError, match=r"oci-hooks/\*.json is missing"):
        build.entries(copy)


def test_the_zip_holds_bytecode_for_every_interpreter(pyz: Path) -> None:
    with zipfile.ZipFile(pyz) as file:
        held = {name for name in file.namelist() if name.startswith("bytecode/")}
    tags = {start([it.path, "-c", "import sys; print(sys.implementation.cache_tag)"]).stdout.strip() for it in FOUND}
    assert held == {f"bytecode/{tag}" for tag in tags} | {build.SOURCES}


def test_a_release_needs_every_version(source: Path, tmp_path: Path) -> None:
    done = start(
        [sys.executable, source / "build.py", "--release", "--bytecode", sys.executable, "--output", tmp_path / "x.pyz"]
    )
    assert done.returncode == 2
    assert "no interpreter of 3." in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_interpreter_that_does_not_start_is_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match=r"/bin/false cannot compile: .*exit status 1"):
        build.build(root=source, output=tmp_path / "x.pyz", bytecode=["/bin/false"])


PLACE = "import importlib.util as u, sys; print(sys.implementation.cache_tag + '-' + u.MAGIC_NUMBER.hex())"


@each_python
@pytest.mark.parametrize("arguments", [["--help"], ["no-such-verb"], ["list", "--run-dir=/nowhere"], ["hook"]])
def test_every_interpreter_finds_its_bytecode(pyz: Path, python: str, arguments: list[str]) -> None:
    assert "hook.errors" not in imported(pyz, python, arguments)


@each_python
def test_a_python_that_nobody_compiled_for_takes_the_sources(source: Path, python: str, tmp_path: Path) -> None:
    others = [str(it.path) for it in FOUND if str(it.path) != python]
    pyz = build.build(root=source, output=tmp_path / "x.pyz", bytecode=others)
    assert "hook.errors" in imported(pyz, python, ["--help"])
    assert start([python, pyz, "--help"]).returncode == 0


@each_python
def test_bytecode_of_a_pre_release_is_passed_over(source: Path, python: str, tmp_path: Path) -> None:
    """It has the version's name, and another magic number."""
    contents = build.entries(source)
    stale = [build.compiled(contents, python, [])._replace(magic=b"xx\r\n")]
    pyz = tmp_path / "x.pyz"
    pyz.write_bytes(build.archive(contents, build.shebang(python), stale))
    assert "hook.errors" in imported(pyz, python, ["--help"])
    assert start([python, pyz, "--help"]).returncode == 0


@each_python
def test_started_by_name_it_finds_its_bytecode_too(pyz: Path, python: str) -> None:
    done = start([python, "-X", "importtime", "-IS", pyz, "list", "--run-dir=/nowhere"])
    assert "hook.errors" not in loaded(done.stderr)
    assert done.returncode == 0


@each_python
@pytest.mark.parametrize("first_line", [b"", b"#!/bin/no such place\n", b"#!" + b"x" * 300 + b"\n"])
def test_with_another_first_line_it_finds_its_bytecode_too(
    pyz: Path, python: str, first_line: bytes, tmp_path: Path
) -> None:
    """As `python3 -m zipapp --python=...` makes it."""
    changed = tmp_path / "x.pyz"
    changed.write_bytes(first_line + pyz.read_bytes().partition(b"\n")[2])
    done = start([python, "-X", "importtime", changed, "--help"])
    assert "hook.errors" not in loaded(done.stderr)
    assert "resctrl-mon-hook" in done.stdout


def imported(pyz: Path, python: str, arguments: list[str]) -> set[str]:
    """What an interpreter looks for to import; modules that are made from bytecode are not among it."""
    return loaded(start([python, "-X", "importtime", "-ISc", build.BOOT, pyz, *arguments]).stderr)


@each_python
@pytest.mark.parametrize("name", ["lifecycle", "people"])
def test_a_traceback_names_file_and_line(source: Path, python: str, tmp_path: Path, name: str) -> None:
    text = (source / f"hook/{name}.py").read_bytes() + b"\nraise MemoryError\n"
    contents = {**build.entries(source), f"hook/{name}.py": text}
    data = build.archive(
        contents, build.shebang(python), build.all_bytecode(contents, [python], build.hot_path(source))
    )
    done = broken(tmp_path / "x", data, "broken.pyz", "list")
    assert f'"hook/{name}.py", line {len(text.splitlines())}' in done.stderr


def test_a_build_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "hook").mkdir()
    target = tmp_path / build.OUTPUT
    target.parent.mkdir()
    target.write_text("old")
    with pytest.raises(build.BuildError, match=r"hook/models_compiled\.py is missing"):
        build.build(root=tmp_path)
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    assert target.read_text() == "old"


# --- The first line


@each_python
def test_every_way_of_starting(python: str, source: Path, tmp_path: Path) -> None:
    directory = tmp_path / "a path with blanks"
    pyz = build.build(root=source, output=directory / "x.pyz", python=python)
    link = tmp_path / "link"
    link.symlink_to(pyz)
    ways: list[list[str | Path]] = [[pyz], ["env", "-i", pyz], [link], [python, pyz], ["./x.pyz"]]
    for way in ways:
        done = start([*way, "--help"], cwd=directory)
        assert (done.returncode, done.stderr) == (0, ""), way
        assert "resctrl-mon-hook" in done.stdout, way
        assert start([*way, "no-such-verb"], cwd=directory).returncode == 2, way


def test_the_longest_first_line_still_starts(tmp_path_factory: pytest.TempPathFactory, source: Path) -> None:
    long = "/" + "p" * 30  # so that nothing is left of the blanks
    room = build.SHEBANG_LIMIT - len(build.shebang(long)) + len(long) - 1
    directory = tmp_path_factory.mktemp("x")
    name = "p" * (room - len(str(directory)))
    python = directory / name
    python.symlink_to(FOUND[-1].path)
    pyz = build.build(root=source, output=directory / "x.pyz", python=str(python))
    assert len(pyz.read_bytes().partition(b"\n")[0]) + 1 == build.SHEBANG_LIMIT
    assert start([pyz, "--help"]).returncode == 0
    with pytest.raises(build.BuildError, match="the kernel reads 255"):
        build.shebang(str(python) + "x")


@each_python
@pytest.mark.parametrize("name", [build.PYTHON, "/usr/bin/python3.14"])
def test_kernels_before_5_1_cut_the_usual_first_line_where_it_is_whole(pyz: Path, python: str, name: str) -> None:
    """They hand over 127 bytes, without the blanks at their end."""
    line = build.shebang(name)[: build.OLD_SHEBANG_LIMIT].decode().rstrip()
    boot = line.partition(" -ISc")[2]
    assert boot == build.BOOT
    assert start([python, "-ISc", boot, pyz, "--version"]).stdout.startswith("resctrl-mon-hook ")
    cut = pyz.with_name("old kernel.pyz")
    cut.write_bytes(pyz.read_bytes()[:900])
    assert start([python, "-ISc", boot, cut, "hook"]).returncode == 0


RELEASED = ("import sys,atexit,posix;atexit.register(posix._exit,0);f=open(sys.argv[1],'rb');1/any(map(exec,f))",)
"""What the first line of every release until now ran, or will, on all kernels."""


@each_python
@pytest.mark.parametrize("boot", RELEASED)
def test_who_began_with_an_older_file_goes_on_with_the_one_in_its_place(pyz: Path, python: str, boot: str) -> None:
    done = start([python, "-ISc", boot, pyz, "--version"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("resctrl-mon-hook ")


def test_what_the_first_line_runs_is_on_record() -> None:
    assert build.BOOT in RELEASED, "a first line that changes is another contract: keep the old ones working"


@pytest.mark.parametrize("path", ["/p", build.PYTHON, "/usr/bin/python3.14", "/opt/python/bin/python3.12"])
def test_install_names_another_interpreter_as_the_build_does(pyz: Path, path: str) -> None:
    changed = PyzFile(str(pyz)).with_python(path)
    assert changed == build.shebang(path) + pyz.read_bytes().partition(b"\n")[2]
    assert PyzFile(str(pyz)).needs_new_kernel(path) is (len(path) > 22)


@pytest.mark.parametrize("path", ["python3", "", "/a b", "/a\nb", "/a\tb"])
def test_an_interpreter_that_no_first_line_can_name_is_refused(path: str) -> None:
    with pytest.raises(build.BuildError, match="absolute path"):
        build.shebang(path)


# --- Whatever goes wrong: 0 for runtimes, 2 for people

PERSON = ["list", "show", "install", "--help", "no-such-verb", "", "doctor"]
RUNTIME = ["hook", "createRuntime", "poststop"]


def broken(pyz: Path, data: bytes, name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What becomes of a hook whose file holds this."""
    path = pyz.with_name(name)
    path.write_bytes(data)
    path.chmod(0o755)
    return start([path, *(arguments or ("createRuntime",))])


def cuts(data: bytes) -> list[int]:
    """Where a file is cut: all over it, and more often in its second line."""
    first = data.index(b"\n") + 1
    all_over = {first + (len(data) - first - 1) * step // (CUTS - 1) for step in range(CUTS)}
    return sorted(all_over | set(range(first, data.index(b"\n", first) + 2, 50)))


def test_a_truncated_file_exits_with_0_for_a_runtime_and_says_so(pyz: Path) -> None:
    data = pyz.read_bytes()
    for cut in cuts(data):
        done = broken(pyz, data[:cut], "cut.pyz")
        assert done.returncode == 0, cut
        assert done.stderr, cut


def test_a_truncated_file_exits_with_2_for_people_and_says_so(pyz: Path) -> None:
    """It exited with 0, as if the work were done."""
    data = pyz.read_bytes()
    for cut in cuts(data):
        done = broken(pyz, data[:cut], "cut.pyz", "list", "--run-dir=/nowhere")
        assert done.returncode == 2 or "RMIDs" in done.stdout or "not mounted" in done.stdout, cut
        assert done.stderr or done.stdout, cut


@each_python
@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("hook/start.py", "(", "SyntaxError"),
        ("hook/start.py", "raise MemoryError", "MemoryError"),
        ("hook/start.py", "import no_such_module", "ModuleNotFoundError"),
        ("hook/start.py", "raise SystemExit(3)", "None"),
        ("hook/entry.py", "(", "SyntaxError"),
        ("hook/system.py", "1 / 0", "ZeroDivisionError"),
        ("hook/lifecycle.py", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_broken_code_exits_with_0_for_runtimes_and_2_for_people(
    pyz: Path, python: str, name: str, text: str, said: str
) -> None:
    contents = {**build.entries(pyz.parents[1]), name: text.encode()}
    for verb, status in (("createRuntime", 0), ("list", 2)):
        done = broken(pyz, build.archive(contents, build.shebang(python)), "broken.pyz", verb)
        assert done.returncode == status
        last = done.stderr.splitlines()[-1]
        assert last.startswith("resctrl-mon-hook: ")
        assert f"cannot run {pyz.with_name('broken.pyz')}: {said}" in last


@each_python
@pytest.mark.parametrize("name", ["the code of the loader", "what the loader loads"])
def test_bytecode_that_is_no_bytecode_exits_with_0_for_runtimes_and_2_for_people(
    source: Path, pyz: Path, python: str, name: str
) -> None:
    contents = build.entries(source)
    (code,) = build.all_bytecode(contents, [python], build.hot_path(source))
    at = 0 if name.startswith("the code") else build.ROOM
    spoilt = code._replace(content=code.content[:at] + b"\0" * (len(code.content) - at))
    data = build.archive(contents, build.shebang(python), [spoilt])
    for verb, status in (("hook", 0), ("list", 2), ("--help", 2)):
        done = broken(pyz, data, "spoilt.pyz", verb)
        assert done.returncode == status
        assert "resctrl-mon-hook: " in done.stderr.splitlines()[-1]


def test_a_file_without_an_entry_point_exits_with_0(pyz: Path, source: Path) -> None:
    contents = build.entries(source)
    del contents["hook/start.py"]
    done = broken(pyz, build.archive(contents, build.shebang(str(FOUND[-1].path))), "empty.pyz")
    assert done.returncode == 0
    assert "hook.start" in done.stderr


def test_a_file_that_is_gone_by_the_time_python_opens_it_exits_with_0_and_says_so() -> None:
    for verb in RUNTIME:
        done = start([FOUND[-1].path, "-ISc", build.BOOT + build.FOR_PEOPLE, "/nowhere.pyz", verb])
        assert (done.returncode, "FileNotFoundError" in done.stderr) == (0, True), verb


def test_the_first_line_tells_the_verbs_for_runtimes_from_those_for_people() -> None:
    """By their first letter, since the kernel reads no longer a line."""
    assert list(entry._STAGES) == RUNTIME
    assert {verb[0] for verb in RUNTIME} == set("hcp")
    assert not {verb[0] for verb in help_text.HELP_OF_COMMANDS} & set("hcp")


# --- A Python that is too old


@each_old_python
@pytest.mark.parametrize("verb", PERSON)
def test_a_python_that_is_too_old_says_so_to_people_and_exits_with_2(
    pyz: Path, old: interpreters.Interpreter, verb: str
) -> None:
    """Each verb printed nothing and exited with 0, `install` as well."""
    done = start([old.path, pyz, verb])
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"resctrl-mon-hook: {old.path} is Python {old.version[0]}.{old.version[1]}, which is too old; "
    )
    assert line.endswith(f"run: PYTHON {pyz} install --python=PYTHON")


@each_old_python
@pytest.mark.parametrize("verb", RUNTIME)
def test_a_python_that_is_too_old_says_so_to_runtimes_and_exits_with_0(
    pyz: Path, old: interpreters.Interpreter, verb: str
) -> None:
    done = start([old.path, pyz, verb])
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"resctrl-mon-hook: {verb}: nothing was done for this container: {old.path} is Python ")


@each_old_python
def test_a_first_line_that_names_a_python_that_is_too_old_says_so(
    pyz: Path, old: interpreters.Interpreter, tmp_path: Path
) -> None:
    if old.minor < (3, 4):
        pytest.skip("it has no -I, which the first line takes")
    copy = tmp_path / "old.pyz"
    copy.write_bytes(build.shebang(str(old.path)) + pyz.read_bytes().partition(b"\n")[2])
    copy.chmod(0o755)
    for arguments, status in ((["hook"], 0), (["install"], 2), ([], 2)):
        done = start([copy, *arguments])
        assert (done.returncode, "which is too old" in done.stderr) == (status, True)
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        build.BOOT,
        build.BOOT + build.FOR_PEOPLE,
        build.SECOND_LINE.format(fallback=build.FALLBACK, table=1, sources=1, room=1),
        build.FROM_SOURCES,
        build.FALLBACK,
        build.MAIN,
    ],
)
def test_pythons_from_3_4_on_can_read_what_runs_before_their_version_is_known(text: str) -> None:
    ast.parse(text, feature_version=(3, 4))


# --- Imports


def imports(text: str) -> Iterator[tuple[str, bool]]:
    """The modules that a text imports when it runs, and whether at once or only in some function."""

    def walk(nodes: Sequence[ast.AST], at_once: bool) -> Iterator[tuple[str, bool]]:
        for node in nodes:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                yield from walk(node.orelse, at_once)
            elif isinstance(node, ast.Import):
                yield from ((alias.name, at_once) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                assert node.module is not None
                inner = node.module == "hook"
                yield from ((f"hook.{alias.name}", at_once) for alias in node.names if inner)
                yield node.module, at_once
            else:
                function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
                yield from walk(list(ast.iter_child_nodes(node)), at_once and not function)

    yield from walk(ast.parse(text).body, True)


def package(module: str) -> str:
    return module.partition(".")[0]


@pytest.fixture(scope="module")
def texts(source: Path) -> dict[str, str]:
    """The modules in the zip, by the names that imports give them."""
    entries = {name: text.decode() for name, text in build.entries(source).items() if name.endswith(".py")}
    named = {name[: -len(".py")].replace("/", "."): text for name, text in entries.items()}
    return {name[: -len(".__init__")] if name.endswith(".__init__") else name: text for name, text in named.items()}


def test_the_zip_imports_the_standard_library_alone(texts: dict[str, str]) -> None:
    allowed = sys.stdlib_module_names | {"hook"}
    strangers = {(name, module) for name, text in texts.items() for module, _ in imports(text)}
    assert not {(name, module) for name, module in strangers if package(module) not in allowed}


def on_hook_path(texts: Mapping[str, str]) -> set[str]:
    """The modules that are imported at once when the file starts, and what those import at once, and so on."""
    found: set[str] = set()
    waiting = ["hook.start"]
    while waiting:
        name = waiting.pop()
        if name in texts and name not in found:
            found.add(name)
            waiting += [module for module, at_once in imports(texts[name]) if at_once]
    return found


def test_a_container_start_imports_nothing_dear(texts: dict[str, str]) -> None:
    path = on_hook_path(texts)
    assert "hook.lifecycle" in path
    assert "hook.usage" not in path
    used = {
        module for name in path for module, _ in imports(texts[name]) if package(module) not in ("hook", "__future__")
    }
    assert {package(module) for module in used} <= HOOK_PATH_IMPORTS


@each_python
def test_a_container_start_loads_nothing_else(pyz: Path, python: str, tmp_path: Path) -> None:
    """Seen at run time, with what the imports themselves import."""
    options = [f"--run-dir={tmp_path}/run", f"--resctrl-root={tmp_path}/none"]
    boot = [python, "-X", "importtime", "-ISc", build.BOOT]
    done = start([*boot, pyz, "hook", *options])
    assert done.returncode == 0
    bare = loaded(start([python, "-X", "importtime", "-ISc", "import atexit"]).stderr)
    allowed = HOOK_PATH_IMPORTS | {"_hashlib", "__future__", "hook"}
    extra = {package(module) for module in loaded(done.stderr) - bare}
    assert "select" in extra
    assert extra <= allowed | {"_struct", "struct", "_sha2", "_sha256", "_blake2", "_sha512", "_md5", "_sha1", "_sha3"}


def loaded(importtime: str) -> set[str]:
    lines = [line for line in importtime.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines} - {"imported package"}


# --- The command


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return start([sys.executable, ROOT / "build.py", *arguments])


def test_help_names_every_verb() -> None:
    done = command("--help")
    assert done.returncode == 0
    assert all(verb in done.stdout for verb in build.VERBS if verb != "-h")
    assert all(len(line) <= 120 for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such-verb"], "unknown verb no-such-verb"),
        (["--no-such-option"], "unknown option --no-such-option"),
        (["--python"], "--python takes a value"),
        (["--python=python3"], "absolute path"),
        (["compile", "more"], "one argument too many: more"),
        (["bench", "no-such-bench"], "unknown benchmark no-such-bench"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_2(arguments: list[str], said: str) -> None:
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_a_build_prints_hash_and_size(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = build.build(root=source, output=tmp_path / "x.pyz")
    line, bytecode = capsys.readouterr().out.splitlines()
    assert bytecode == "bytecode: none"
    done = start(["sha256sum", target])
    assert line.split() == [*done.stdout.split(), str(target.stat().st_size), "bytes"]
