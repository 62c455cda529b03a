# SPDX-License-Identifier: Apache-2.0
"""Podman's names: what a hook gets from conmon and the cgroup, what Podman's files have,
and what Podman answers.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from hook import host, rare, system
from hook.conmon import find_pod, leaves_out, name_container
from hook.identity import new_pod
from hook.models import KeyState, Options
from hook.node import naming, programs

ID = "c" * 64
POD = "fd174e60a699" + "0" * 52
DIGITS = POD[:12]
RUN = "/run/x"
STORAGE = "/var/lib/containers/storage"
IN_POD = f":/machine.slice/machine-libpod_pod_{POD}.slice/libpod-{ID}.scope"


# --- From conmon's command line


LINE = f"conmon\0-c\0{ID}\0-n\0web\0"


class Conmon:
    """The processes above a hook: 1000, the runtime, and 900, conmon, with a command line.

    `parents`: the runtime's parent at each look, then the last one for good; None: it has ended.
    `foreign`: the namespace that is not the host's. `read`: the files that were read.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.line, self.foreign = LINE, ""
        self.parents: list[str | None] = ["900"]
        self.read = list[str]()
        monkeypatch.setattr(system, "parent_id", lambda: 1000)
        monkeypatch.setattr(system, "stat_fields", self._stat_fields)
        monkeypatch.setattr(host, "link_target", self._link_target)
        monkeypatch.setattr(rare, "read_start", self._read_start)

    def _stat_fields(self, pid: int) -> list[str] | None:
        parent = (
            (self.parents.pop(0) if len(self.parents) > 1 else self.parents[0])
            if pid == 1000
            else None
        )
        return None if parent is None else ["S", parent]

    def _link_target(self, path: str) -> str:
        if path.startswith("/proc/0/"):
            raise FileNotFoundError(path)
        return path if path.endswith(self.foreign or "none") else path.rpartition("/")[2]

    def _read_start(self, path: str, size: int) -> str:
        self.read.append(path)
        return self.line[:size]

    def name(self) -> str | None:
        """The name that a hook gets."""
        container: Any = SimpleNamespace(id=ID, pod=new_pod(), places=[])
        name_container(container)
        name: str | None = container.pod.container
        return name


@pytest.fixture
def conmon(monkeypatch: pytest.MonkeyPatch) -> Conmon:
    processes = Conmon(monkeypatch)
    assert processes.name() == "web"
    processes.read.clear()
    return processes


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--cid", ID, "--name", "web"], "web"),
        ([f"--cid={ID}", "--name=web"], "web"),
        (["-c", ID, "-n", "web", "--exit-command-arg", "-n", "other"], "web"),
        # Podman run --pidfile.
        (["-s", "-c", ID, "-p", "--name=payroll", "--syslog", "-n", "web", "-i"], "web"),
        (["-c", ID, "-n", "web", "--conmon-pidfile", "-n", "-t", "-u", "x"], "web"),
        (["-c", ID, "-t", "-n", "web"], "web"),
        (["-c", ID, "-n", "web", "--log-tag", "--cid", "-l", "--name", "-b", "x"], "web"),
        (["-c", ID, "-n", "web", "--option-of-a-later-version", "--name=payroll"], "web"),
        (["-c", ID, "--log-tag", "--", "-n", "web", "--", "-n", "x", "-c", "y"], "web"),
        (["--log-tag", "--cid", ID, "-c", "d" * 64, "-n", "web"], None),
        (["-c", ID, "-n", "a" * 1_000_000], "a" * 253),  # more than is read
        (["-c", ID, "-n", "\x1b[2J\n\u202e"], "\x1b[2J\n\u202e"),  # escaped where it is shown
        *(
            (words, None)
            for words in (["-c", ID, "-n", ""], ["-c", ID], ["-c", ID, "-n"], ["-n", "other"], [])
        ),
        (["-c", "d" * 64, "-n", "other"], None),
        (["x" * 1_000_000], None),
    ],
)
def test_the_name_is_what_podman_gave_conmon(
    conmon: Conmon, words: list[str], name: str | None
) -> None:
    conmon.line = "".join(f"{word}\0" for word in ["/usr/bin/conmon", "--api-version", "1", *words])
    assert conmon.name() == name


@pytest.mark.parametrize(
    "option",
    [
        "-e",
        "-i",
        "-s",
        "-t",
        "--api-version",
        "--exec",
        "--exec-attach",
        "--full-attach",
        "--leave-stdin-open",
        "--no-container-partial-message",
        "--no-new-keyring",
        "--no-pivot",
        "--no-sync-log",
        "--replace-listen-pid",
        "--stdin",
        "--sync",
        "--syslog",
        "--systemd-cgroup",
        "--terminal",
        "--version",
    ],
)
def test_an_option_of_conmon_without_a_value_does_not_take_the_next_word(
    conmon: Conmon, option: str
) -> None:
    """They are those of conmon(8)."""
    conmon.line = "".join(
        f"{word}\0" for word in ["/usr/bin/conmon", option, "-n", "web", "-c", ID]
    )
    assert conmon.name() == "web"


@pytest.mark.parametrize("parent", [None, "0"])
def test_a_parent_that_has_ended_gives_no_name(conmon: Conmon, parent: str | None) -> None:
    conmon.parents = [parent]
    assert (conmon.name(), conmon.read) == (None, [])


@pytest.mark.parametrize("kind", ["pid", "mnt", "user"])
def test_a_process_with_other_namespaces_is_not_read(conmon: Conmon, kind: str) -> None:
    conmon.foreign = kind
    assert (conmon.name(), conmon.read) == (None, [])


def test_a_pid_that_is_no_more_conmons_after_the_read_gives_no_name(conmon: Conmon) -> None:
    conmon.parents = ["900", "1"]
    assert (conmon.name(), conmon.read) == (None, ["/proc/900/cmdline"])


# --- The pod, and its infra container


@pytest.mark.parametrize(
    ("place", "pod"),
    [
        (IN_POD, DIGITS),
        (f"{IN_POD}/container", DIGITS),
        (f":/own/{POD}/libpod-{ID}", DIGITS),
        (f"cpu,cpuacct:/{POD}/libpod-{ID}", DIGITS),
        (f":/machine.slice/libpod-{ID}.scope", None),
        # Made by the container.
        (f":/machine.slice/libpod-{ID}.scope/{POD}/libpod-{'d' * 64}", None),
        (f":/{POD}", None),
        (f":/{POD.upper()}/libpod-{ID}", None),
        (f":/system.slice/web.service/libpod-payload-{ID}", None),
    ],
)
def test_a_pod_is_known_by_the_cgroup_that_podman_made(place: str, pod: str | None) -> None:
    assert find_pod([":/", place], ID) == pod


@pytest.mark.parametrize(
    ("pod", "name", "mode", "expected"),
    [
        (DIGITS, f"{DIGITS}-infra", "auto", True),
        (DIGITS, f"{DIGITS}-infra", "container", False),
        (DIGITS, f"{DIGITS}-infra", "sandbox", False),
        (DIGITS, "web-infra", "auto", False),
        (DIGITS, "aaaaaaaaaaaa-infra", "auto", False),  # of another pod
        (None, "-infra", "auto", False),
        (None, f"{DIGITS}-infra", "auto", False),
        (DIGITS, None, "auto", False),
    ],
)
def test_only_the_infra_container_of_its_own_pod_is_left_out(
    pod: str | None, name: str | None, mode: str, expected: bool
) -> None:
    pod_of_podman = new_pod(None, (None, pod, name))
    assert not leaves_out(Options.model_validate({"key": mode}), pod_of_podman), (
        "Podman has not made it"
    )
    pod_of_podman.is_podmans = True
    assert leaves_out(Options.model_validate({"key": mode}), pod_of_podman) is expected


# --- containers/storage


def write_json(fs: FakeFilesystem, path: str, content: object) -> None:
    fs.create_file(path, contents=content if isinstance(content, str) else json.dumps(content))


def test_names_are_those_of_all_drivers_and_of_containers_that_do_not_outlive_a_boot(
    fs: FakeFilesystem,
) -> None:
    assert naming.PodmanNames(RUN).containers == {}
    overlay, vfs = f"{STORAGE}/overlay-containers", f"{STORAGE}/vfs-containers"
    write_json(
        fs, f"{overlay}/containers.json", [{"id": "b"}, {"id": "a", "names": ["db", "other"]}]
    )
    write_json(fs, f"{overlay}/volatile-containers.json", [{"id": "c", "names": ["build"]}])
    write_json(
        fs, f"{vfs}/containers.json", [{"id": "d", "names": ["web"]}, {"id": "e", "names": []}]
    )
    assert naming.PodmanNames(RUN).containers == {"a": "db", "c": "build", "d": "web"}


def test_what_is_no_list_of_containers_is_skipped(fs: FakeFilesystem) -> None:
    fs.create_file(
        "/etc/containers/storage.conf",
        contents='[storage]\n# graphroot = "/x"\ngraphroot = "/srv/s/"\n',
    )
    texts = ["", "{", "[1]", '[{"id": 1, "names": ["x"]}]', '[{"id": "a", "names": [1]}]', "{}"]
    for number, text in enumerate(texts):
        write_json(fs, f"/srv/s/{number}-containers/containers.json", text)
    write_json(fs, "/srv/s/vfs-containers/containers.json", [{"id": "d", "names": ["web"]}])
    assert naming.PodmanNames(RUN).containers == {"d": "web"}


def test_a_container_that_runs_is_named_by_the_storage_that_its_bundle_is_in(
    fs: FakeFilesystem,
) -> None:
    write_json(fs, "/srv/vfs-containers/containers.json", [{"id": ID, "names": ["n" * 300]}])
    for is_podmans, expected in ((True, ("n" * 253, DIGITS)), (False, (None, None))):
        pod = new_pod()
        pod.is_podmans = is_podmans
        naming.name_running(pod, ID, f"/srv/vfs-containers/{ID}/userdata", [IN_POD])
        assert (pod.container, pod.name) == expected


# --- Pods: Podman itself is asked, or by the unit

PODS = json.dumps(
    [{"Id": POD, "Name": "stack", "Status": "Running"}, {"Id": "ab" * 32, "Name": "shop"}]
)
DIRTY = [
    ("", 0),
    ("[", 0),
    ("[" * 100_000, 0),
    ("{}", 0),
    ('[1, {"Id": 1, "Name": "x"}, {"Id": "y"}]', 0),
]


def answer(monkeypatch: pytest.MonkeyPatch, output: str, status: int | None = 0) -> list[list[str]]:
    """Let Podman answer like this, and return what it was asked."""
    asked: list[list[str]] = []

    def run(words: list[str], seconds: float) -> programs.Exit:
        assert seconds <= 5
        asked.append(words)
        return programs.Exit(status, output, "")

    monkeypatch.setattr(programs, "run_program", run)
    return asked


def install_podman(fs: FakeFilesystem, capabilities: int = (1 << 41) - 1) -> None:
    fs.create_file("/usr/bin/podman", st_mode=0o100755)
    fs.create_file(
        "/proc/self/status", contents=f"Name:\tx\nCapEff:\t{capabilities:016x}\nCapBnd:\t0\n"
    )


def test_pods_are_named_by_podman(fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer(monkeypatch, PODS)
    names = naming.PodmanNames(RUN)
    assert names.find_pod(DIGITS) is None, "there is no Podman"
    assert not names.wants_pods
    install_podman(fs)
    names = naming.PodmanNames(RUN)
    assert [names.find_pod(digits) for digits in (DIGITS, "ab" * 6, "c" * 12)] == [
        "stack",
        "shop",
        None,
    ]
    assert not names.wants_pods, "Podman has answered"
    assert asked == [["/usr/bin/podman", "pod", "ps", "--format=json"]]


def test_an_answer_of_podman_that_is_none_names_nothing(
    fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_podman(fs)
    # None: it hung, or printed without end.
    for output, status in [*DIRTY, (PODS, 125), ("", None)]:
        answer(monkeypatch, output, status)
        assert naming.PodmanNames(RUN).find_pod(DIGITS) is None, output[:80]


def test_podman_without_the_rights_that_it_needs_is_not_asked_but_the_mark_is_wanted(
    fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unit's second start has the answer, which stays."""
    install_podman(fs, capabilities=1 << 1 | 1 << 5)
    asked = answer(monkeypatch, PODS)
    assert not naming.PodmanNames(RUN).wants_pods, "no name is missing"
    file = None
    for output in (None, *(text for text, _ in DIRTY)):
        if output is not None:
            file = file or fs.create_file(f"{RUN}/podman-pods.json")
            file.set_contents(output)
        names = naming.PodmanNames(RUN)
        assert names.find_pod(DIGITS) is None
        assert names.wants_pods, str(output)[:80]
    assert file is not None
    file.set_contents(PODS)
    names = naming.PodmanNames(RUN)
    assert names.find_pod(DIGITS) == "stack"
    assert (names.wants_pods, asked) == (False, [])


# --- A record that lacks names


def state(**fields: Any) -> KeyState:  # noqa: ANN401
    member = {
        "pid": 1,
        "starttime": 1,
        "group": "/x/mon_groups/oci-c",
        "cgroup": IN_POD,
        **fields.pop("member", {}),
    }
    return KeyState.model_validate(
        {"key": ID, "kind": "container", "members": {ID: member}, **fields}
    )


@pytest.fixture
def known(fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch) -> naming.PodmanNames:
    write_json(fs, f"{STORAGE}/vfs-containers/containers.json", [{"id": ID, "names": ["web"]}])
    names = naming.PodmanNames(RUN)
    monkeypatch.setattr(naming.PodmanNames, "_pods", {DIGITS: "stack"})
    return names


ELSEWHERE = {"cgroup": f":/machine.slice/libpod-{ID}.scope"}  # in no pod
COMPLETED: list[tuple[dict[str, Any], tuple[str | None, ...]]] = [
    ({}, ("stack", "web", "web")),
    ({"pod_name": DIGITS, "name": "old", "member": {"name": "old"}}, ("stack", "old", "old")),
    ({"pod_name": "b" * 12, "name": "old", "member": {"name": "old"}}, ("b" * 12, "old", "old")),
    ({"pod_name": "given", "member": {"name": "old"}}, ("given", None, "old")),
    ({"kind": "sandbox"}, ("stack", None, "web")),
    (
        {"pod_namespace": "shop", "pod_name": DIGITS, "member": {"name": "app"}},
        (DIGITS, None, "app"),
    ),
    ({"member": ELSEWHERE}, (None, "web", "web")),
    ({"member": {"cgroup": f":/plain/{ID}"}}, (None, None, None)),  # not Podman's
    ({"member": {"cgroup": None}}, (None, None, None)),
]


def test_names_are_added_to_a_record_that_lacks_them(known: naming.PodmanNames) -> None:
    for fields, expected in COMPLETED:
        before = state(**fields)
        after = naming.add_names(before, naming.KubeletNames(), known)
        assert (after.pod_name, after.name, after.members[ID].name) == expected, fields
        assert naming.add_names(after, naming.KubeletNames(), known) is after
        assert (after == before) is (after is before)


def test_a_pods_digits_stay_its_label(known: naming.PodmanNames) -> None:
    web = {"namespace": "", "pod": DIGITS, "container": "web"}
    for fields, labels in (
        ({}, web),  # as before the record was lost
        ({"kind": "sandbox"}, {**web, "container": ""}),
        ({"pod_name": DIGITS, "name": "web"}, web),
        ({"pod_name": "stack"}, {}),
        ({"member": ELSEWHERE}, {}),
    ):
        state_with_names = naming.add_names(state(**fields), naming.KubeletNames(), known)
        assert state_with_names.metric_labels == labels, fields
        assert naming.add_names(state_with_names, naming.KubeletNames(), known) is state_with_names


def test_a_pod_that_has_ended_is_named_while_podman_has_it(known: naming.PodmanNames) -> None:
    completed = state(pod_name=DIGITS, members={})
    assert naming.add_names(completed, naming.KubeletNames(), known).pod_name == "stack"
