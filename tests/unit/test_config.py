# SPDX-License-Identifier: Apache-2.0
"""The files of container engines as nodes have them: what names the hook is found or reported; names of containers."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook.node import engines, files, programs
from hook.node.engines import Configuration
from hook.node.files import Tree, Unreadable
from hook.node.hooksd import ADMINISTRATOR, SYSTEM
from hook.node.programs import Found
from tests.unit.nodes import add_process

CONFIG = "/etc/containerd/config.toml"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd"
OLD = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n'
NEW = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.rmh]\n"
SPEC = '  base_runtime_spec = "/etc/x.json"\n'
OTHER_SPEC = SPEC.replace("x.json", "y.json")
VALIDATOR = "[plugins.'io.containerd.nri.v1.nri'.default_validator]\n"
UID = "87a3fb58-4084-4186-9c0e-93cf8c32e2ce"
ID = "5f3c" * 16
STORAGE = "/var/lib/containers/storage"


class ContainerdFiles:
    """A containerd that runs on the host, pid 7, and its files. `started`: when it started."""

    def __init__(self, fs: FakeFilesystem) -> None:
        self.fs = fs
        self.words = ["/usr/bin/containerd"]
        self.others: list[str] = []
        self.started = float("inf")
        self.write("/etc/x.json", "{}")
        self.write("/etc/y.json", "{}")

    def write(self, path: str, text: str) -> None:
        self.fs.create_file(path, contents=text)

    def look(self, *words: str) -> Configuration:
        self.words[1:] = words
        return engines.read_containerd()

    def specs(self, *words: str) -> list[str]:
        """The base_runtime_specs of a configuration that is clear."""
        found = self.look(*words)
        assert found.unclear == []
        return [it.path for it in found.specs]

    def find(self, is_wanted: Callable[[list[str]], bool]) -> Found:
        """In place of programs.find_processes."""
        running = {7: self.words, 8: ["/bin/sh", "containerd"]} if self.words else {}
        return Found({pid: words for pid, words in running.items() if is_wanted(words)}, self.others)


@pytest.fixture
def node(fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch) -> ContainerdFiles:
    node = ContainerdFiles(fs)
    for pid in (1, 7):
        add_process(pid)
    fs.create_dir("/work")
    monkeypatch.setattr(programs, "find_processes", node.find)
    monkeypatch.setattr(programs, "see_files", lambda _pid: Tree("", "/work"))
    monkeypatch.setattr(programs, "read_start_time", lambda _pid: node.started)
    return node


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
MORE = 'imports = ["more/*"]\n'
WORDS = [
    *("-c /opt/c.toml", "-c=/opt/c.toml", "--config /opt/c.toml", "--config=/opt/c.toml --log-level debug"),
    *("--address /run/x.sock -config /opt/c.toml", "-c ../opt/c.toml"),
]
"""Each names a file beside the usual one, which is read first."""
K3S_MAIN = f'version = 3\nimports = ["{K3S}/config-v3.toml.d/*.toml"]\n'


@pytest.mark.parametrize(
    ("files", "words", "expected"),
    [
        ({}, "", []),
        ({CONFIG: "version = 2\n" + OLD + SPEC}, "", ["/etc/x.json"]),
        *(({CONFIG: it, "/etc/containerd/more/a.toml": NEW + SPEC}, "", ["/etc/x.json"]) for it in IMPORTS),
        ({CONFIG: MORE, "/etc/containerd/more/.a": NEW + SPEC}, "", ["/etc/x.json"]),  # hidden, as in Go
        ({CONFIG: MORE, "/work/more/a.toml": OLD + SPEC}, "", ["/etc/x.json"]),  # from containerd's directory
        (NESTED, "", ["/etc/x.json"]),
        ({"/etc/containerd/conf.d/a.toml": NEW + SPEC}, "", ["/etc/x.json"]),  # since containerd 2.2
        *(({CONFIG: OLD + OTHER_SPEC, "/opt/c.toml": OLD + SPEC}, it, ["/etc/y.json", "/etc/x.json"]) for it in WORDS),
        ({f"{K3S}/config.toml": K3S_MAIN}, f"-c {K3S}/config.toml", []),
        (
            {f"{K3S}/config.toml": K3S_MAIN, f"{K3S}/config-v3.toml.d/50-hook.toml": NEW + SPEC},
            f"-c {K3S}/config.toml",
            ["/etc/x.json"],
        ),
    ],
)
def test_files_and_their_imports_are_read(
    node: ContainerdFiles, files: dict[str, str], words: str, expected: list[str]
) -> None:
    for path, text in files.items():
        node.write(path, text)
    assert node.specs(*words.split()) == expected


def test_too_many_imports_are_reported(node: ContainerdFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_MOST_FILES", 3)
    node.write(CONFIG, 'imports = ["a.toml", "b.toml", "c.toml"]\n')
    for name in "abc":
        node.write(f"/etc/containerd/{name}.toml", "")
    assert node.look().unclear == [
        "did not read /etc/containerd/c.toml: containerd's configuration has more than 3 files"
    ]


@pytest.mark.parametrize("root", ["k3s", "rke2"])
def test_the_usual_files_are_read_whatever_runs_and_alone_if_that_does_not_count(
    node: ContainerdFiles, root: str
) -> None:
    node.write(f"/var/lib/rancher/{root}/agent/etc/containerd/config-v3.toml.d/a.toml", NEW + SPEC)
    node.words.clear()
    stopped = engines.read_containerd()
    node.write("/opt/c.toml", OLD + OTHER_SPEC)
    node.words[:] = ["containerd", "-c", "/opt/c.toml"]
    assert [it.path for it in stopped.specs] == ["/etc/x.json"]
    assert engines.read_containerd(is_running=False) == stopped


def test_a_process_that_may_be_the_hosts_is_reported_and_not_read(node: ContainerdFiles) -> None:
    node.words.clear()
    node.others.append("process 7 calls itself containerd")
    assert engines.read_containerd() == Configuration(unclear=["process 7 calls itself containerd"])


def test_links_below_another_root_resolve_as_for_containerd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("etc/containerd", "opt"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "opt/real.toml").write_text(OLD + SPEC)
    (tmp_path / CONFIG[1:]).symlink_to("/opt/link.toml")
    (tmp_path / "opt/link.toml").symlink_to("../opt/real.toml")
    monkeypatch.setattr(programs, "find_processes", lambda _is_wanted: Found({os.getpid(): ["containerd"]}, []))
    monkeypatch.setattr(programs, "see_files", lambda _pid: Tree(str(tmp_path)))
    (spec,) = engines.read_containerd().specs
    assert spec.files.at(spec.path) == f"{tmp_path}/etc/x.json"


def test_a_pattern_for_the_whole_machine_is_given_up(node: ContainerdFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.Budget.__init__, "__defaults__", (3,))
    node.write(CONFIG, 'imports = ["/*/*/*/*"]\n')
    (line,) = node.look().unclear
    assert line.startswith("cannot list /")
    assert line.endswith("of containerd's configuration: not listed: the patterns already match 3 names")


# --- How it may be written


Expected = tuple[list[str], list[str]]
"""The base_runtime_specs, and what is unclear."""
FOUND: Expected = (["/etc/x.json"], [])
NOTHING: Expected = ([], [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("base_runtime_spec='/etc/x.json'\r", FOUND),
        ('plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.base_runtime_spec = "/etc/x.json"', FOUND),
        ('# base_runtime_spec = "/etc/y.json"\nbase_runtime_spec = "/etc/x.json"', FOUND),
        ('x = """\nbase_runtime_spec = "/etc/y.json"\n"""\nbase_runtime_spec = "/etc/x.json"', FOUND),
        ('base_runtime_spec = "/etc/x.json"\n[other]\nbase_runtime_spec = ""', FOUND),
        ('runc = { runtime_type = "x", base_runtime_spec = "/etc/x.json" }', FOUND),
        ('base_runtime_spec = """/etc/x.json"""', FOUND),
        (r'"base_runtime_spec" = "/etc/\u0078.json"', FOUND),
        ("Base_Runtime_Spec = '/etc/x.json'", FOUND),
        ("base_runtime_spec = []\nimports = 'a.toml'\npod_annotations = 7", NOTHING),  # containerd refuses this
        ("[other]\nimports = ['a.toml']", NOTHING),
        ('# runc = { base_runtime_spec = "/etc/x.json" }', NOTHING),
        ("imports = [\n  # 'a.toml',\n]", NOTHING),
    ],
)
def test_each_notation_of_toml_is_understood(node: ContainerdFiles, text: str, expected: Expected) -> None:
    node.write(CONFIG, text + "\n")
    found = node.look()
    assert ([it.path for it in found.specs], found.unclear) == expected


# --- What cannot be read


@pytest.mark.parametrize(
    ("text", "words", "problem"),
    [
        ("", "-c /opt/c.toml", "/opt/c.toml of containerd's configuration: ENOENT"),
        ('imports = ["a.toml"]\n', "", "/etc/containerd/a.toml of containerd's configuration: ENOENT"),
        ('imports = ["."]\n', "", "/etc/containerd/. of containerd's configuration: not a regular file"),
        ("runc = [", "", f"{CONFIG} of containerd's configuration: not TOML: Invalid value (at end of document)"),
    ],
)
def test_a_file_that_cannot_be_read_is_reported(node: ContainerdFiles, text: str, words: str, problem: str) -> None:
    """More of what a path may name is in test_door."""
    node.write(CONFIG, text)
    assert node.look(*words.split()).unclear == [f"cannot read {problem}"]


def test_unreadable_files_of_containerd_are_reported(node: ContainerdFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int) -> Tree:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(programs, "see_files", refuse)
    expected = "cannot read the files of containerd (pid 7): EACCES"
    assert node.look().unclear == [expected]
    node.fs.remove_object("/proc/7")
    assert node.look().unclear == [], "it has ended meanwhile"


@pytest.mark.parametrize("changed", [CONFIG, "/etc/containerd/more", "/etc/containerd/more/a.toml", "/etc/x.json"])
def test_a_change_since_containerd_started_is_reported(node: ContainerdFiles, changed: str) -> None:
    """It goes by what it has read then: a line that is taken out is in force until it is restarted."""
    node.write(CONFIG, 'imports = ["more/*.toml"]\n')
    node.write("/etc/containerd/more/a.toml", OLD + SPEC)
    node.started = started = 4e9
    assert node.specs() == ["/etc/x.json"]
    os.utime(changed, (started + 60, started + 60))
    (line,) = node.look().unclear
    assert line == f"{changed} was changed after containerd (pid 7) started; restart containerd"


def test_a_removed_drop_in_or_spec_is_still_in_force(node: ContainerdFiles) -> None:
    node.write(CONFIG, OLD + SPEC)
    node.fs.remove("/etc/x.json")
    node.started = started = 4e9
    node.fs.create_dir("/etc/containerd/conf.d")
    os.utime("/etc/containerd/conf.d", (started + 60, started + 60))
    assert [line.partition(" was changed after containerd (pid 7)")[0] for line in node.look().unclear] == [
        "/etc/x.json",
        "/etc/containerd/conf.d",
    ]


# --- What is in force


@pytest.mark.parametrize(
    ("text", "in_force"),
    [
        ("version = 3\n" + NEW + SPEC, True),
        ("version = 3\n" + OLD + SPEC, False),
        ("version = 4\n" + OLD + SPEC, False),
        ("version = 2\n" + OLD + SPEC, True),
        (OLD + SPEC, True),
        ("version = 3\nplugins.'io.containerd.grpc.v1.cri'." + SPEC.lstrip(), False),
        ("version = 3\n" + OLD + "  runtime_type = 'x'\n" + NEW + SPEC, True),
    ],
)
def test_a_spec_in_an_ignored_table_is_not_in_force(node: ContainerdFiles, text: str, in_force: bool) -> None:
    node.write(CONFIG, text)
    assert [it.in_force for it in node.look().specs] == [in_force]


@pytest.mark.parametrize(
    ("text", "rejects"),
    [
        (VALIDATOR + "  enable = true\n  reject_oci_hook_adjustment = true\n", True),
        (VALIDATOR + "  reject_oci_hook_adjustment = true\n", True),
        (VALIDATOR + "  enable = false\n  reject_oci_hook_adjustment = true\n", False),
        (VALIDATOR + "  reject_oci_hook_adjustment = true\n  enable = false\n", False),
        (VALIDATOR + "  reject_oci_hook_adjustment = true\n[other]\n  enable = false\n", True),
        (VALIDATOR + "  reject_oci_hook_adjustment = false\n", False),
        ("default_validator = { enable = true, reject_oci_hook_adjustment = true }\n", True),
    ],
)
def test_a_validator_that_rejects_hooks_is_found(node: ContainerdFiles, text: str, rejects: bool) -> None:
    node.write(CONFIG, text)
    assert node.look().rejecting == ([CONFIG] if rejects else [])


# --- CRI-O and Podman

USR, ETC, OWN = "/usr/share/containers/containers", "/etc/containers/containers", "/root/.config/containers/containers"


def as_escapes(text: str) -> str:
    return "".join(f"\\u{ord(it):04x}" for it in text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[TABLE]\nhooks_dir = [\n  '/a/', # one\n  \"/b\",\n]\n", ["/a", "/b"]),
        ("TABLE.hooks_dir = ['/a']\nother = {hooks_dir = ['/b']}", ["/a"]),
        ("TABLE = { hooks_dir = ['/a'] }", ["/a"]),
        (f'[TABLE]\nhooks_dir = ["{as_escapes("/a")}", """\n/b"""]', ["/a", "/b"]),
        ("[TABLE]\nHooks_Dir = ['/a']", ["/a"]),
        ("[TABLE]\nhooks_dir = []", []),
        ("[TABLE]\n# hooks_dir = ['/a']", [SYSTEM]),
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
    fs: FakeFilesystem, engine: engines.Engine, path: str, table: str, text: str, expected: list[str] | None
) -> None:
    """None: the file cannot be read, so the answer is unclear."""
    for top in ("", "/host"):
        fs.create_file(top + path, contents=text.replace("TABLE", table))
        if expected is not None:
            assert engine.read_hooks_dirs(top) == expected
        else:
            with pytest.raises(Unreadable, match=re.escape(top + path)):
                engine.read_hooks_dirs(top)


def test_nothing_is_guessed_where_python_cannot_read_toml(fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tomllib", None)
    assert engines.PODMAN.read_hooks_dirs() == [SYSTEM], "there is no file"
    fs.create_file(f"{ETC}.conf", contents="[engine]\nhooks_dir = ['/a']\n")
    with pytest.raises(Unreadable, match=r"^/etc/containers/containers\.conf: needs Python 3\.11 to read TOML$"):
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
        ({f"{ETC}.conf.d/b.conf": "/b", f"{ETC}.conf.d/a.conf": "/a", f"{ETC}.conf.d/x": "/c"}, ["/b"], ["/b"]),
        ({f"{USR}.conf.d/a.conf": "/a"}, [SYSTEM], ["/a"]),
        ({f"{USR}.rootful.conf.d/a.conf": "/a"}, [SYSTEM], ["/a"]),
        ({f"{ETC}.rootful.conf.d/a.conf": "/a"}, [SYSTEM], ["/a"]),
        ({f"{ETC}.conf.d/a.conf": "/a", f"{USR}.conf.d/b.conf": "/b"}, ["/a"], ["/b"]),
        ({f"{ETC}.conf.d/a.conf": "/a", f"{USR}.rootful.conf.d/a.conf": "/b"}, ["/a"], ["/a"]),
        ({f"{ETC}.conf.d/a.conf": "/a", f"{OWN}.conf.d/a.conf": "/b"}, ["/b"], ["/b"]),
    ],
)
def test_the_files_of_podman_count_by_its_version(
    fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch, files: dict[str, str | None], old: list[str], new: list[str]
) -> None:
    """None: a file without the setting."""
    for path, directory in files.items():
        fs.create_file(path, contents=f"[engine]\nhooks_dir = ['{directory}']\n" if directory else "[engine]\n")
    fs.create_dir(f"{ETC}.conf.d/z.conf")
    for version, expected in (("4.3.1", old), ("5.8.6", old), ("6.0.0-rc1", new), ("10.1", new)):
        monkeypatch.setattr(engines, "_ask_podman", lambda _top, version=version: int(version.partition(".")[0]))
        assert engines.PODMAN.read_hooks_dirs() == expected


@pytest.mark.parametrize(
    ("output", "expected"),
    [("podman version 5.8.6\n", ["/a"]), ("podman version 6.0.0-dev\n", [SYSTEM]), ("", None), ("podman 6", None)],
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


def test_the_file_of_ctrl_groups_is_the_last_that_crio_names(fs: FakeFilesystem) -> None:
    assert engines.read_rdt_config_file() is None
    text = 'rdt_config_file = "no"\n[crio.runtime]\nrdt_config_file = "/etc/rdt.yaml"\n'
    fs.create_file("/etc/crio/crio.conf", contents=text)
    assert engines.read_rdt_config_file() == "/etc/rdt.yaml"
    fs.create_file("/etc/crio/crio.conf.d/x", contents='crio.runtime.rdt_config_file = ""\n')
    assert engines.read_rdt_config_file() is None


@pytest.mark.parametrize(
    ("files", "old", "new"),
    [
        ({"/usr/share/containers/storage.conf": "/a/"}, "/a", "/a"),
        ({"/usr/share/containers/storage.conf": "/a", "/etc/containers/storage.conf": ""}, STORAGE, STORAGE),
        ({"/etc/containers/storage.conf": "/a", "/etc/containers/storage.conf.d/x.conf": "/b"}, "/a", "/b"),
        ({"/usr/share/containers/storage.rootful.conf.d/x.conf": "/b"}, STORAGE, "/b"),
    ],
)
def test_the_storage_of_podman_is_where_its_configuration_puts_it(
    fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], old: str, new: str
) -> None:
    for path, directory in files.items():
        fs.create_file(path, contents=f'graphroot = "/no"\n[storage]\ngraphroot = "{directory}"\n')
    for version, expected in ((5, old), (6, new)):
        monkeypatch.setattr(engines, "_ask_podman", lambda _top, version=version: version)
        assert engines.read_graph_root() == expected


# --- Names


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (f"shop_web-0_{UID}", {UID: ("shop", "web-0")}),
        (f"kube-system_etcd-node.example.com_{UID.replace('-', '')}", {UID: ("kube-system", "etcd-node.example.com")}),
        (f"shop_{UID}", {}),
        (f"_web_{UID}", {}),
        (f"shop__{UID}", {}),
        (f"shop_web_x_{UID}", {}),
        ("shop_web_0", {}),
        (f"{UID}.log", {}),
    ],
)
def test_pods_are_named_by_the_kubelets_directories(
    fs: FakeFilesystem, entry: str, expected: dict[str, tuple[str, str]]
) -> None:
    assert engines.KubeletNames().pods == {}
    fs.create_dir(f"/var/log/pods/{entry}")
    assert engines.KubeletNames().pods == expected


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (f"web-0_shop_app-{ID}.log", {ID: "app"}),
        (f"web-0_shop_side-car-{ID}.log", {ID: "side-car"}),
        (f"web-0_shop_app-{ID}", {}),
        (f"web-0_shop_{ID}.log", {}),
        (f"{'p' * 200}_shop_app-{ID}"[:251] + ".log", {ID[:41]: "app"}),  # the kubelet cuts names after 251 characters
    ],
)
def test_containers_are_named_by_the_kubelets_links(fs: FakeFilesystem, entry: str, expected: dict[str, str]) -> None:
    fs.create_symlink(f"/var/log/containers/{entry}", "nowhere")
    assert engines.KubeletNames().containers == expected


def test_a_directory_with_more_entries_than_a_node_has_pods_names_nothing(
    fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.create_file(f"/var/log/containers/web_shop_app-{ID}.log")
    monkeypatch.setattr(files, "NAMES", 0)
    assert engines.KubeletNames().containers == {}
