# SPDX-License-Identifier: Apache-2.0
"""containerd's configuration, read from trees as real nodes have them: what names the hook is found, or said."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hook.node import containerd, door, host_processes, machine
from hook.node.containerd import Configuration
from hook.node.door import Tree
from hook.node.host_processes import Found

CONFIG = "/etc/containerd/config.toml"
PLACES = containerd._PLACES
K3S = "/var/lib/rancher/k3s/agent/etc/containerd"
OLD = '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n'
NEW = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.rmh]\n"
SPEC = '  base_runtime_spec = "/etc/x.json"\n'
VALIDATOR = "[plugins.'io.containerd.nri.v1.nri'.default_validator]\n"


class ContainerdFiles:
    """The files of a containerd that runs, below a directory."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.words = ["/usr/bin/containerd"]

    def write(self, path: str, text: str) -> None:
        place = self.top / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def look(self, *words: str) -> Configuration:
        self.words[1:] = words
        return containerd.read_configuration()

    def specs(self, *words: str) -> list[str]:
        """The base_runtime_specs of a configuration that is clear."""
        found = self.look(*words)
        assert found.unclear == []
        return [it.path for it in found.specs]


def run_on_host(
    monkeypatch: pytest.MonkeyPatch, processes: dict[int, list[str]], unclear: list[str] | None = None
) -> None:
    """Make these the processes of the host."""

    def find(is_wanted: Callable[[list[str]], bool]) -> Found:
        return Found({pid: words for pid, words in processes.items() if is_wanted(words)}, unclear or [])

    monkeypatch.setattr(host_processes, "find", find)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ContainerdFiles:
    node = ContainerdFiles(tmp_path / "root")
    node.write("/etc/x.json", "{}")
    node.write("/etc/y.json", "{}")
    monkeypatch.setattr(containerd, "_PLACES", ())  # this machine's own
    run_on_host(monkeypatch, {7: node.words, 8: ["/bin/sh", "containerd"]})
    monkeypatch.setattr(host_processes, "see_files", lambda _pid: Tree(str(node.top), "/work"))
    monkeypatch.setattr(machine, "read_start_time", lambda _pid: float("inf"))
    monkeypatch.setattr(machine, "is_running", lambda pid: pid == 7)
    return node


def test_without_a_configuration_file_there_is_no_spec(node: ContainerdFiles) -> None:
    assert node.specs() == []


def test_the_spec_of_the_default_file_is_found(node: ContainerdFiles) -> None:
    node.write(CONFIG, "version = 2\n" + OLD + SPEC)
    assert node.specs() == ["/etc/x.json"]
    (spec,) = node.look().specs
    assert spec.files.at(spec.path) == f"{node.top}/etc/x.json"


@pytest.mark.parametrize(
    "words",
    [
        ("-c", "/opt/c.toml"),
        ("-c=/opt/c.toml",),
        ("--config", "/opt/c.toml"),
        ("--config=/opt/c.toml", "--log-level", "debug"),
        ("--address", "/run/x.sock", "-config", "/opt/c.toml"),
        ("-c", "../opt/c.toml"),
    ],
    ids=" ".join,
)
def test_the_file_on_the_command_line_is_read(node: ContainerdFiles, words: tuple[str, ...]) -> None:
    (node.top / "work").mkdir()
    node.write(CONFIG, OLD + '  base_runtime_spec = "/etc/y.json"\n')
    node.write("/opt/c.toml", OLD + SPEC)
    assert node.specs(*words) == ["/etc/x.json"]


@pytest.mark.parametrize(
    "imports",
    [
        'imports = ["/etc/containerd/more/a.toml"]',
        'imports = ["more/a.toml"]',
        "imports = ['/etc/containerd/more/*.toml']",
        "imports = ['more/*.toml']  # relative to this file",
        'imports = [\n  "nothing/*.toml", # no such directory\n  "/etc/containerd/m*e/a.toml",\n]',
        "  imports  =  ['./more/../more/[a-c].tom*',]",
    ],
)
def test_imports_are_followed(node: ContainerdFiles, imports: str) -> None:
    node.write(CONFIG, f"version = 3\n{imports}\n")
    node.write("/etc/containerd/more/a.toml", NEW + SPEC)
    assert node.specs() == ["/etc/x.json"]


def test_a_pattern_matches_hidden_files_as_in_go(node: ContainerdFiles) -> None:
    node.write(CONFIG, 'imports = ["more/*"]\n')
    node.write("/etc/containerd/more/.a", NEW + SPEC)
    assert node.specs() == ["/etc/x.json"]


def test_a_relative_pattern_starts_at_containerds_directory_too(node: ContainerdFiles) -> None:
    node.write(CONFIG, 'imports = ["more/*.toml"]\n')
    node.write("/work/more/a.toml", OLD + SPEC)
    assert node.specs() == ["/etc/x.json"]


def test_nested_and_circular_imports_are_read_once(node: ContainerdFiles) -> None:
    node.write(CONFIG, 'imports = ["a.toml", "config.toml"]\n')
    node.write("/etc/containerd/a.toml", 'imports = ["b.toml"]\n')
    node.write("/etc/containerd/b.toml", 'imports = ["a.toml"]\n' + OLD + SPEC)
    assert node.specs() == ["/etc/x.json"]


def test_too_many_imports_are_reported(node: ContainerdFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containerd, "_MOST_FILES", 3)
    node.write(CONFIG, 'imports = ["a.toml", "b.toml", "c.toml"]\n')
    for name in "abc":
        node.write(f"/etc/containerd/{name}.toml", "")
    assert node.look().unclear == [
        "did not read /etc/containerd/c.toml: containerd's configuration has more than 3 files"
    ]


def test_drop_ins_of_k3s_are_read(node: ContainerdFiles) -> None:
    node.write(f"{K3S}/config.toml", f'version = 3\nimports = ["{K3S}/config-v3.toml.d/*.toml"]\n')
    assert node.specs("-c", f"{K3S}/config.toml") == []
    node.write(f"{K3S}/config-v3.toml.d/50-hook.toml", NEW + SPEC)
    assert node.specs("-c", f"{K3S}/config.toml") == ["/etc/x.json"]


def test_the_drop_ins_of_containerd_2_2_are_read_without_a_file(node: ContainerdFiles) -> None:
    node.write("/etc/containerd/conf.d/a.toml", NEW + SPEC)
    assert node.specs() == ["/etc/x.json"]


@pytest.mark.parametrize("root", ["k3s", "rke2"])
def test_files_of_a_stopped_containerd_are_read(
    node: ContainerdFiles, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    run_on_host(monkeypatch, {})
    monkeypatch.setattr(containerd, "_PLACES", [f"{node.top}{it}" for it in PLACES])
    node.write(f"/var/lib/rancher/{root}/agent/etc/containerd/config-v3.toml.d/a.toml", NEW + SPEC)
    assert node.specs() == ["/etc/x.json"]
    assert containerd.read_usual_files() == node.look()


def test_the_usual_files_alone_are_read_whatever_runs(node: ContainerdFiles) -> None:
    node.write(CONFIG, OLD + SPEC)
    assert containerd.read_usual_files() == Configuration()


def test_a_process_that_may_be_the_hosts_is_reported_and_not_read(
    node: ContainerdFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on_host(monkeypatch, {}, ["process 7 calls itself containerd"])
    node.write(CONFIG, OLD + SPEC)
    assert node.look() == Configuration(unclear=["process 7 calls itself containerd"])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "not a regular file"),
        (lambda path: path.mkdir(), "not a regular file"),
        (lambda path: path.write_bytes(b"\xff"), "not UTF-8 at byte 0"),
        (lambda path: path.write_bytes(bytes((4 << 20) + 1)), "larger than 4194304 bytes"),
    ],
    ids=["FIFO", "directory", "no text", "huge"],
)
def test_a_file_that_is_no_configuration_is_reported(
    node: ContainerdFiles, make: Callable[[Path], object], why: str
) -> None:
    (node.top / "etc/containerd").mkdir()
    make(node.top / CONFIG.lstrip("/"))
    assert f"cannot read {CONFIG} of containerd's configuration: {why}" in node.look("-c", CONFIG).unclear


def test_a_pattern_for_the_whole_machine_is_given_up(node: ContainerdFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door.Budget.__init__, "__defaults__", (3,))
    node.write(CONFIG, 'imports = ["/*/*/*/*"]\n')
    (line,) = node.look().unclear
    assert line.startswith("cannot list /")
    assert line.endswith("of containerd's configuration: not listed: the patterns already match 3 names")


def test_links_resolve_as_for_containerd(node: ContainerdFiles) -> None:
    node.write("/opt/real.toml", OLD + SPEC)
    (node.top / "etc/containerd").mkdir()
    (node.top / "etc/containerd/config.toml").symlink_to("/opt/link.toml")
    (node.top / "opt/link.toml").symlink_to("../opt/real.toml")
    assert node.specs() == ["/etc/x.json"]


# --- How it may be written


@pytest.mark.parametrize(
    "text",
    [
        "base_runtime_spec='/etc/x.json'",
        '\tbase_runtime_spec\t=  "/etc/x.json"   # ours',
        '"base_runtime_spec" = "/etc/x.json"\r',
        'plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.base_runtime_spec = "/etc/x.json"',
        "runc . base_runtime_spec = '/etc/x.json'",
        '# base_runtime_spec = "/etc/y.json"\nbase_runtime_spec = "/etc/x.json"',
        'other = "# no comment" # a "comment"\nbase_runtime_spec = "/etc/x.json"',
        'x = """\n# one text\n"""\nbase_runtime_spec = "/etc/x.json"',
        'base_runtime_spec = "/etc/x.json"\n[other]\nbase_runtime_spec = ""',
    ],
)
def test_a_spec_is_found_in_each_notation(node: ContainerdFiles, text: str) -> None:
    node.write(CONFIG, text + "\n")
    assert node.specs() == ["/etc/x.json"]


@pytest.mark.parametrize(
    "text",
    [
        'runc = { runtime_type = "x", base_runtime_spec = "/etc/x.json" }',
        'base_runtime_spec = """/etc/x.json"""',
        "base_runtime_spec = '''\n/etc/x.json'''",
        r'base_runtime_spec = "/etc/\u0078.json"',
        "base_runtime_spec = [",
        'imports = "/etc/other.toml"',
        r'imports = ["/etc/\u0078.toml"]',
        'x = """ # """\nrunc = { base_runtime_spec = "/etc/x.json" }',
    ],
)
def test_an_unsupported_notation_is_reported(node: ContainerdFiles, text: str) -> None:
    node.write(CONFIG, text + "\n")
    (line,) = node.look().unclear
    assert line.startswith(f"{CONFIG}: cannot parse base_runtime_spec or imports")


@pytest.mark.parametrize(
    "text",
    [
        '# runc = { base_runtime_spec = "/etc/x.json" }',
        'runtime_type = "x" # base_runtime_spec = nothing',
        'path = "/etc/base_runtime_spec.json"',
        'imports = []\nroot = "/imports"',
        "imports = [\n  # 'a.toml',\n]",
        'my_imports = ["a.toml"]',
    ],
)
def test_files_without_a_spec_are_not_reported(node: ContainerdFiles, text: str) -> None:
    node.write(CONFIG, text + "\n")
    assert node.look() == Configuration()


# --- What cannot be read


def test_a_missing_import_is_reported(node: ContainerdFiles) -> None:
    node.write(CONFIG, 'imports = ["a.toml"]\n')
    expected = "cannot read /etc/containerd/a.toml of containerd's configuration: ENOENT"
    assert node.look().unclear == [expected]


def test_a_missing_file_on_the_command_line_is_reported(node: ContainerdFiles) -> None:
    assert "cannot read /opt/c.toml of containerd's configuration" in node.look("-c", "/opt/c.toml").unclear[0]


def test_unreadable_files_of_containerd_are_reported(node: ContainerdFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int) -> Tree:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(host_processes, "see_files", refuse)
    expected = "cannot read the files of containerd (pid 7): EACCES"
    assert node.look().unclear == [expected]
    monkeypatch.setattr(machine, "is_running", lambda _pid: False)
    assert node.look().unclear == [], "it has ended meanwhile"


@pytest.mark.parametrize("changed", [CONFIG, "/etc/containerd/more", "/etc/containerd/more/a.toml", "/etc/x.json"])
def test_a_change_since_containerd_started_is_reported(
    node: ContainerdFiles, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """It goes by what it has read then: a line that is taken out is in force until it is restarted."""
    node.write(CONFIG, 'imports = ["more/*.toml"]\n')
    node.write("/etc/containerd/more/a.toml", OLD + SPEC)
    started = 4e9
    monkeypatch.setattr(machine, "read_start_time", lambda _pid: started)
    assert node.specs() == ["/etc/x.json"]
    os.utime(f"{node.top}{changed}", (started + 60, started + 60))
    (line,) = node.look().unclear
    assert line == f"{changed} was changed after containerd (pid 7) started; restart containerd"


def test_a_removed_drop_in_is_still_in_force(node: ContainerdFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    started = 4e9
    monkeypatch.setattr(machine, "read_start_time", lambda _pid: started)
    directory = node.top / "etc/containerd/conf.d"
    directory.mkdir(parents=True)
    os.utime(directory, (started + 60, started + 60))
    assert "/etc/containerd/conf.d was changed after containerd (pid 7) started" in node.look().unclear[0]


def test_a_removed_spec_is_still_in_force(node: ContainerdFiles) -> None:
    node.write(CONFIG, OLD + SPEC)
    (node.top / "etc/x.json").unlink()
    assert "/etc/x.json was changed after containerd (pid 7) started" in node.look().unclear[0]


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
        (VALIDATOR + "  # reject_oci_hook_adjustment = true\n", False),
        ("default_validator = { enable = true, reject_oci_hook_adjustment = true }\n", True),
    ],
)
def test_a_validator_that_rejects_hooks_is_found(node: ContainerdFiles, text: str, rejects: bool) -> None:
    node.write(CONFIG, text)
    assert node.look().rejecting == ([CONFIG] if rejects else [])


# --- A process's files


def test_the_files_of_this_process_are_ours() -> None:
    files = host_processes.see_files(os.getpid())
    assert files == Tree("", os.getcwd())
    assert 0 < machine.read_start_time(os.getpid()) <= time.time() + 1
