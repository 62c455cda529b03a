# SPDX-License-Identifier: Apache-2.0
"""The files of container engines as nodes have them: what names the hook is found or reported;
names of containers.
"""

from __future__ import annotations

import re
import sys

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook.node import engines, files, programs
from hook.node.engines import Configuration
from hook.node.files import Unreadable
from hook.node.hooksd import ADMINISTRATOR, SYSTEM

CONFIG = "/etc/containerd/config.toml"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd"
OLD = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n'
NEW = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.rmh]\n"
SPEC = '  base_runtime_spec = "/etc/x.json"\n'
VALIDATOR = "[plugins.'io.containerd.nri.v1.nri'.default_validator]\n"
UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"
ID = "5f3c" * 16
STORAGE = "/var/lib/containers/storage"


def look(fs: FakeFilesystem, texts: dict[str, str]) -> Configuration:
    """What is found in these files."""
    for path, text in texts.items():
        fs.create_file(path, contents=text)
    return engines.read_containerd()


# --- containerd: which files are read

IMPORTS = [
    'imports = ["/etc/containerd/more/a.toml"]',
    'imports = ["more/a.toml"]',
    "imports = ['/etc/containerd/more/*.toml']",
    "imports = ['more/*.toml']  # relative to this file",
    'imports = [\n  "nothing/*.toml", # no such directory\n  "/etc/containerd/m*e/a.toml",\n]',
    "  imports  =  ['./more/../more/[a-c].tom*',]",
]
NESTED = {
    CONFIG: 'imports = ["a.toml", "config.toml"]',
    "/etc/containerd/a.toml": 'imports = ["b.toml"]',
    "/etc/containerd/b.toml": 'imports = ["a.toml"]\n' + OLD + SPEC,
}
K3S_MAIN = f'version = 3\nimports = ["{K3S}/config-v3.toml.d/*.toml"]\n'


@pytest.mark.parametrize(
    "texts",
    [
        {CONFIG: "version = 2\n" + OLD + SPEC},
        *({CONFIG: text, "/etc/containerd/more/a.toml": NEW + SPEC} for text in IMPORTS),
        # Hidden, as in Go.
        {CONFIG: 'imports = ["more/*"]\n', "/etc/containerd/more/.a": NEW + SPEC},
        NESTED,
        {"/etc/containerd/conf.d/a.toml": NEW + SPEC},  # since containerd 2.2
        {f"{K3S}/config.toml": K3S_MAIN, f"{K3S}/config-v3.toml.d/50-hook.toml": NEW + SPEC},
        {f"{K3S.replace('k3s', 'rke2')}/config-v3.toml.d/a.toml": NEW + SPEC},
    ],
)
def test_files_and_their_imports_are_read(fs: FakeFilesystem, texts: dict[str, str]) -> None:
    assert look(fs, {f"{K3S}/none.toml": NEW + SPEC}) == Configuration([], [], [])
    settings = look(fs, texts)
    assert ([spec.path for spec in settings.specs], settings.unclear) == (["/etc/x.json"], [])


def test_too_many_imports_are_reported(fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_MOST_FILES", 3)
    texts = {CONFIG: 'imports = ["a.toml", "b.toml", "c.toml"]\n'}
    texts |= {f"/etc/containerd/{name}.toml": "" for name in "abc"}
    assert look(fs, texts).unclear == ["containerd's configuration has more than 3 files"]


def test_a_pattern_for_the_whole_machine_is_given_up(
    fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "NAMES", 3)
    (line,) = look(
        fs, {CONFIG: 'imports = ["/*"]\n', "/a": "", "/b": "", "/c": "", "/d": ""}
    ).unclear
    assert line == "cannot read / of containerd's configuration: more than 3 entries"


# --- How it may be written


def test_settings_count_in_any_table_and_notation_but_not_as_another_type(
    fs: FakeFilesystem,
) -> None:
    for text, expected in (
        (
            'plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.base_runtime_spec = '
            '"/etc/x.json"',
            True,
        ),
        (
            'x = """\nbase_runtime_spec = "/etc/y.json"\n"""\nbase_runtime_spec = "/etc/x.json"',
            True,
        ),
        ('runc = { runtime_type = "x", base_runtime_spec = "/etc/x.json" }', True),
        ("Base_Runtime_Spec = '/etc/x.json'", True),
        ("base_runtime_spec = []\nimports = 'a.toml'", False),  # containerd refuses this
        ("[other]\nimports = ['a.toml']", False),
    ):
        settings = look(fs, {CONFIG: text})
        assert ([spec.path for spec in settings.specs], settings.unclear) == (
            ["/etc/x.json"] if expected else [],
            [],
        ), text
        fs.remove(CONFIG)


# --- What cannot be read, and what is in force


def test_a_file_that_cannot_be_read_is_reported(fs: FakeFilesystem) -> None:
    """More of what a path may name is in test_files."""
    for text, problem in (
        ('imports = ["a.toml"]\n', "/etc/containerd/a.toml of containerd's configuration: ENOENT"),
        (
            'imports = ["."]\n',
            "/etc/containerd/. of containerd's configuration: not a regular file",
        ),
        (
            "runc = [",
            f"{CONFIG} of containerd's configuration: not TOML: Invalid value (at end of document)",
        ),
    ):
        assert look(fs, {CONFIG: text}).unclear == [f"cannot read {problem}"]
        fs.remove(CONFIG)


def test_a_spec_in_an_ignored_table_is_not_in_force(fs: FakeFilesystem) -> None:
    for text, is_in_force in (
        ("version = 3\n" + NEW + SPEC, True),
        ("version = 3\n" + OLD + SPEC, False),
        ("version = 4\n" + OLD + SPEC, False),
        ("version = 4\n" + NEW + SPEC, True),
        ("version = 2\n" + OLD + SPEC, True),
        (OLD + SPEC, True),
        ("version = 3\nplugins.'io.containerd.grpc.v1.cri'." + SPEC.lstrip(), False),
        ("version = 3\n" + OLD + "  runtime_type = 'x'\n" + NEW + SPEC, True),
    ):
        assert [spec.is_in_force for spec in look(fs, {CONFIG: text}).specs] == [is_in_force], text
        fs.remove(CONFIG)


def test_a_validator_that_rejects_hooks_is_found(fs: FakeFilesystem) -> None:
    rejects = "  reject_oci_hook_adjustment = true\n"
    for text, expected in (
        (VALIDATOR + "  enable = true\n" + rejects, True),
        (VALIDATOR + rejects, True),
        (VALIDATOR + "  enable = false\n" + rejects, False),
        (VALIDATOR + rejects + "  enable = false\n", False),
        (VALIDATOR + rejects + "[other]\n  enable = false\n", True),
        (VALIDATOR + "  reject_oci_hook_adjustment = false\n", False),
        ("default_validator = { enable = true, reject_oci_hook_adjustment = true }\n", True),
    ):
        assert look(fs, {CONFIG: text}).rejecting == ([CONFIG] if expected else []), text
        fs.remove(CONFIG)


# --- CRI-O and Podman

USR, ETC, OWN = (
    "/usr/share/containers/containers",
    "/etc/containers/containers",
    "/root/.config/containers/containers",
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[TABLE]\nhooks_dir = [\n  '/a/', # one\n  \"/b\",\n]\n", ["/a", "/b"]),
        ("[TABLE]\nhooks_dir = []", []),
        ("[containers]\nhooks_dir = ['/a']", [SYSTEM]),
        ("hooks_dir = ['/a']\n[TABLE]\nx = 1", [SYSTEM]),
        ("TABLE = 7", [SYSTEM]),
        ("[TABLE]\nhooks_dir = '/a'", []),  # the engine refuses this
        ("[TABLE", None),
        ("x = " + "[" * 100_000, None),
    ],
)
@pytest.mark.parametrize(
    ("engine", "path", "table"),
    [
        (engines.CRIO, "/etc/crio/crio.conf", "crio.runtime"),
        (engines.CRIO, "/etc/crio/crio.conf.d/.x", "crio.runtime"),
        (engines.PODMAN, f"{ETC}.conf", "engine"),
    ],
)
def test_hooks_dir_counts_in_its_own_table_in_each_notation(
    fs: FakeFilesystem,
    engine: engines.Engine,
    path: str,
    table: str,
    text: str,
    expected: list[str] | None,
) -> None:
    """None: the file cannot be read, so the answer is unclear.

    Podman itself is the judge of further notations.
    """
    fs.create_file(path, contents=text.replace("TABLE", table))
    if expected is not None:
        assert engine.read_hooks_dirs() == expected
    else:
        with pytest.raises(Unreadable, match=re.escape(path)):
            engine.read_hooks_dirs()


def test_nothing_is_guessed_where_python_cannot_read_toml(
    fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tomllib", None)
    assert engines.PODMAN.read_hooks_dirs() == [SYSTEM], "there is no file"
    fs.create_file(f"{ETC}.conf", contents="[engine]\nhooks_dir = ['/a']\n")
    with pytest.raises(
        Unreadable, match=r"^/etc/containers/containers\.conf: needs Python 3\.11 to read TOML$"
    ):
        engines.PODMAN.read_hooks_dirs()
    assert engines.list_hooks_dirs() == [SYSTEM, ADMINISTRATOR]
    assert engines.read_graph_root() == STORAGE


@pytest.mark.parametrize(
    ("files", "old", "new"),
    [
        ({f"{USR}.conf": "/a"}, ["/a"], ["/a"]),
        ({f"{USR}.conf": "/a", f"{ETC}.conf": None}, ["/a"], [SYSTEM]),
        ({f"{USR}.conf": "/a", f"{ETC}.conf": "/b"}, ["/b"], ["/b"]),
        ({f"{ETC}.conf": "/b", f"{OWN}.conf": "/c"}, ["/c"], ["/c"]),
        ({f"{ETC}.conf": "/b", f"{OWN}.conf": None}, ["/b"], [SYSTEM]),
        (
            {f"{ETC}.conf.d/b.conf": "/b", f"{ETC}.conf.d/a.conf": "/a", f"{ETC}.conf.d/x": "/c"},
            ["/b"],
            ["/b"],
        ),
        ({f"{USR}.conf.d/a.conf": "/a"}, [SYSTEM], ["/a"]),
        ({f"{USR}.rootful.conf.d/a.conf": "/a"}, [SYSTEM], ["/a"]),
        ({f"{ETC}.rootful.conf.d/a.conf": "/a"}, [SYSTEM], ["/a"]),
        ({f"{ETC}.conf.d/a.conf": "/a", f"{USR}.conf.d/b.conf": "/b"}, ["/a"], ["/b"]),
        ({f"{ETC}.conf.d/a.conf": "/a", f"{USR}.rootful.conf.d/a.conf": "/b"}, ["/a"], ["/a"]),
        ({f"{ETC}.conf.d/a.conf": "/a", f"{OWN}.conf.d/a.conf": "/b"}, ["/b"], ["/b"]),
    ],
)
def test_the_files_of_podman_count_by_its_version(
    fs: FakeFilesystem,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str | None],
    old: list[str],
    new: list[str],
) -> None:
    """None: a file without the setting."""
    for path, directory in files.items():
        fs.create_file(
            path, contents=f"[engine]\nhooks_dir = ['{directory}']\n" if directory else "[engine]\n"
        )
    fs.create_dir(f"{ETC}.conf.d/z.conf")
    for version, expected in (("4.3.1", old), ("5.8.6", old), ("6.0.0-rc1", new), ("10.1", new)):
        monkeypatch.setattr(
            engines, "_ask_podman", lambda version=version: int(version.partition(".")[0])
        )
        assert engines.PODMAN.read_hooks_dirs() == expected


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("podman version 5.8.6\n", ["/a"]),
        ("podman version 6.0.0-dev\n", [SYSTEM]),
        ("", None),
        ("podman 6", None),
    ],
)
def test_podman_is_asked_for_its_version_only_where_that_matters(
    fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch, output: str, expected: list[str] | None
) -> None:
    asked: list[list[str]] = []

    def run(words: list[str], seconds: float) -> programs.Exit:
        assert seconds <= 10
        asked.append(words)
        return programs.Exit(0, output, "")

    monkeypatch.setattr(programs, "run_program", run)
    fs.create_file("/usr/bin/podman", st_mode=0o100755)
    fs.create_file(f"{USR}.conf", contents="[engine]\nhooks_dir = ['/a']\n")
    assert engines.PODMAN.read_hooks_dirs() == ["/a"]
    assert asked == []
    fs.create_file(f"{ETC}.conf")
    if expected is None:
        with pytest.raises(Unreadable, match="depends on Podman's version, which is unknown"):
            engines.PODMAN.read_hooks_dirs()
    else:
        assert engines.PODMAN.read_hooks_dirs() == expected
    assert asked == [["/usr/bin/podman", "--version"]]


def test_a_later_file_of_podman_replaces_or_adds_to_the_hooks_dirs(fs: FakeFilesystem) -> None:
    assert engines.PODMAN.read_hooks_dirs() == [SYSTEM]
    expected = {"a": ["/a"], "b": ["/a", "/b"], "c": ["/a", "/b", "/c"], "d": ["/d"], "e": ["/e"]}
    marks = {"b": ", {append = true}", "d": ", {append = false}"}
    for name, directories in expected.items():
        text = f"[engine]\nhooks_dir = ['/{name}'{marks.get(name, '')}]\n"
        fs.create_file(f"{ETC}.conf.d/{name}.conf", contents=text)
        assert engines.PODMAN.read_hooks_dirs() == directories, name


def test_the_storage_of_podman_is_where_its_configuration_puts_it(
    fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    usr, etc = "/usr/share/containers/storage", "/etc/containers/storage"
    for number, (texts, *expected) in enumerate(
        (
            ({f"{usr}.conf": "/a/"}, "/a", "/a"),
            ({f"{usr}.conf": "/a", f"{etc}.conf": ""}, STORAGE, STORAGE),
            ({f"{etc}.conf": "/a", f"{etc}.conf.d/x.conf": "/b"}, "/a", "/b"),
            ({f"{usr}.rootful.conf.d/x.conf": "/b"}, STORAGE, "/b"),
        )
    ):
        monkeypatch.setattr(engines, "_PODMANS", [f"/{number}{path}" for path in engines._PODMANS])
        for path, directory in texts.items():
            fs.create_file(
                f"/{number}{path}",
                contents=f'graphroot = "/no"\n[storage]\ngraphroot = "{directory}"\n',
            )
        roots = []
        for version in (5, 6):
            monkeypatch.setattr(engines, "_ask_podman", lambda version=version: version)
            roots.append(engines.read_graph_root())
        assert roots == expected, texts
        monkeypatch.undo()
