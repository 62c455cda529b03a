# SPDX-License-Identifier: Apache-2.0
"""What stands between whatever goes wrong and the container; and the command line,
of which what is right counts.
"""

from __future__ import annotations

import errno
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hook import __main__ as program
from hook import conmon, entry, formats, rare, reclaim, system
from hook.doctor import checks
from hook.errors import UNNAMED, HookError
from hook.models import Failure, Options, State
from hook.node.records import Records
from hook.store import RunDir
from tests.simulator.machine import RUN
from tests.unit.simulated import GROUP, UID, Node, cgroup_of, fails, node

if TYPE_CHECKING:
    from hook.context import Call, Context
    from hook.identity import Container

__all__ = ["node"]  # fixtures

VICTIM = "00000000-0000-4000-8000-000000000001"
MANAGER, POD_UID, CRI_UID = (
    "io.container.manager",
    "io.kubernetes.pod.uid",
    "io.kubernetes.cri.sandbox-uid",
)
IN_PODMAN = "/machine.slice/libpod-c1.scope"
STATE: dict[str, object] = {
    "ociVersion": "1.0.2",
    "id": "c1",
    "status": "created",
    "pid": 7,
    "bundle": "/b",
}


def called(
    node: Node, *words: str, verb: str = "createRuntime", exits: int = 0, **state: object
) -> str:
    """Call a stage, which exits with this status; returns its stderr."""
    node.machine.caller.stdin = json.dumps({**STATE, **state}).encode()
    node.machine.caller.stderr = b""
    assert program.dispatch([verb, *words]) == exits
    return node.machine.caller.stderr.decode()


def failure() -> Failure:
    record = RunDir(RUN).glance(Failure, "c1")
    assert record is not None
    return record


def test_no_defect_fails_a_container_not_even_one_in_what_reports_defects(node: Node) -> None:
    def fail(*_: object) -> int:
        raise MemoryError("none left")

    node.patch.setattr(entry, "serve_call", fail)
    assert "none left" in called(node)
    assert "none left" in called(node, "--bogus", "--run-dir=/proc/none")
    assert "none left" in called(node, "--strict", verb="hook")
    assert "none left" in called(node, "--strict", exits=1)
    with Records(RUN) as records:
        assert records.count_events() == {"createRuntime-failed": 2, "hook-failed": 1}
    node.patch.setattr(entry, "parse", fail)
    assert "none left" in called(node, "--strict", exits=1)


@pytest.mark.parametrize("verb", ["hook", "createRuntime", "poststop"])
def test_a_defect_is_on_record_and_counted_and_fails_a_container_only_if_strict(
    node: Node, verb: str
) -> None:
    def act(_call: Call, context: Context) -> bool:
        context.run.complaints.append(HookError("io", "a damaged file"))
        raise ZeroDivisionError("oh")

    node.patch.setattr(entry, "_act", act)
    stage = "poststop" if verb == "poststop" else "createRuntime"
    for words, status in (((), 0), (("--strict",), int(stage == "createRuntime"))):
        said = called(node, *words, verb=verb, exits=status)
        assert "unforeseen ZeroDivisionError: oh" in said
        assert "a damaged file" in said, "what was found before is said, too"
        assert "unforeseen ZeroDivisionError: oh" in failure().problem
    with Records(RUN) as records:
        assert records.count_events() == {f"{stage}-failed": 2}


def test_the_longest_start_takes_as_long_as_doctor_wants_a_timeout_to_be(node: Node) -> None:
    """The state comes late, each lock at its deadline, the search for RMIDs takes its time,
    and none leaves limbo.
    """
    node.start("c1", pid=5, uid=VICTIM)
    node.kernel.die(5)
    node.spawn(7, cgroup_of("c1"))
    node.machine.refusals["mkdir"] = [errno.ENOSPC, *[errno.EBUSY] * 9999]
    read_stdin = system.read_stdin

    def read_late(limit: int, patience: float) -> tuple[bytes, bool]:
        node.kernel.now += patience
        return read_stdin(limit, patience)

    def get_late(_descriptor: int, deadline: float) -> bool:
        node.kernel.now = max(node.kernel.now, deadline)
        return True

    def search(context: Context, _skipped: str) -> bool:
        node.kernel.now += reclaim.LONGEST_SEARCH
        context.run.note_freed()
        return True

    node.patch.setattr(system, "read_stdin", read_late)
    node.patch.setattr(system, "try_flock", lambda _: False)
    node.patch.setattr(rare, "wait_for_flock", get_late)
    node.patch.setattr(reclaim, "reclaim", search)
    began = node.kernel.now
    assert "rmids_in_limbo" in called(node)
    assert node.kernel.now - began == pytest.approx(checks.find_longest_wait(Options()), abs=0.1)


NO_STATES: dict[str, tuple[bytes | dict[str, object], str]] = {
    **{
        repr(text[:9]): (text, "bad_state")
        for text in (b"", b"Segmentation fault", b"\0", b"[" * 200_000, b"{}")
    },
    "an absurd number": (b'{"pid": ' + b"9" * 5000 + b"}", "bad_state"),
    "id a number": ({"id": 7}, " id: "),
    "pid zero": ({"pid": 0}, "no pid"),
    "pid beyond pid_t": ({"pid": 2**31}, " pid: "),
    "bundle with a NUL": ({"bundle": "/a\0b"}, " bundle: "),
    "bundle endless": ({"bundle": "/" + "b" * 5000}, " bundle: "),
    "annotation null": ({"annotations": {"a": None}}, " annotations.a: "),
    **{
        repr(name[:9]): ({"id": name}, "is not a container ID")
        for name in ("..", "a\0b", "a" * 300, "", "%s%n")
    },
}


@pytest.mark.parametrize(("given", "said"), NO_STATES.values(), ids=NO_STATES)
def test_a_state_that_is_none_is_reported_and_recorded(
    node: Node, given: bytes | dict[str, object], said: str
) -> None:
    """What a process makes of it: fuse/test_process.py."""
    node.machine.caller.stdin = (
        given if isinstance(given, bytes) else json.dumps({**STATE, **given}).encode()
    )
    assert program.dispatch(["createRuntime", "--strict"]) == 1
    (line,) = node.machine.caller.stderr.decode().splitlines()
    assert ": bad_state: " in line
    assert said in line
    assert set(node.failures().values()) == {"bad_state"}
    assert node.groups() == {}


BAD_NAMES = [
    ("../../etc/cron.d/x", UID, "bad_state"),
    ("\ud800", UID, "bad_state"),
    ("c1", "../" + UID, "bad_key"),
    ("c1", "a" * 1_000_000, "bad_key"),
]
"""The ID of a container, the UID of its pod, and the reason;
fuse/test_hostile gives the same to a process.
"""


@pytest.mark.parametrize(("container", "uid", "reason"), BAD_NAMES)
def test_a_name_that_is_none_reaches_no_path(
    node: Node, container: str, uid: str, reason: str
) -> None:
    """A failure leaves its record, a run, and a byte in the count of the log;
    the record goes with the container.
    """
    node.spawn(7, cgroup="/own/crio-c1")
    called(node, id="warm-up")
    before = set(node.machine.files("/"))
    said = called(node, verb="hook", id=container, annotations={POD_UID: uid})
    assert said.count("\n") == 1
    assert len(said) < 1000
    name = (
        "c1"
        if reason == "bad_key"
        else UNNAMED + formats.hash_of(container.encode("utf-8", "surrogatepass"))
    )
    assert node.failures() == {name: reason}
    made = {
        re.sub(r"(/logged(-.*)?)-\d+$", r"\1", path)
        for path in set(node.machine.files("/")) - before
    }
    counted = ["logged", f"logged-{reason}.{name if reason == 'bad_key' else UNNAMED}"]
    assert made == {
        f"{RUN}/{file}"
        for file in (f"unmonitored/{name}.json", "runs/createRuntime-failed", *counted)
    }
    node.kernel.die(7)
    called(node, verb="hook", id=container, status="stopped")
    assert node.failures() == {}


def test_the_record_of_a_state_without_a_pid_has_its_bundle(node: Node) -> None:
    called(node, pid=0)
    assert failure().bundle == STATE["bundle"]


def test_a_failure_on_record_goes_when_the_container_is_monitored(node: Node) -> None:
    called(node)  # there is no process 7
    assert node.failures().keys() == {"c1"}
    node.spawn(7)
    called(node)
    assert node.failures() == {}


def test_a_required_option_cannot_be_left_out() -> None:
    with pytest.raises(ValueError, match="id"):
        entry.validate(State, {"pid": 7}, [])


def test_a_bad_option_is_said_of_a_call_that_fails_too(node: Node) -> None:
    failed, ignored = called(node, "--bogus").splitlines()  # there is no process 7
    assert "--bogus" not in failed
    assert "usage: " in ignored
    assert "--bogus" in ignored


def test_a_bad_option_is_on_record_while_the_container_is_monitored(node: Node) -> None:
    node.spawn(7)
    assert "usage" in called(node, "--linger=soon")
    assert (failure().reason, failure().monitored) == ("usage", True)
    node.kernel.die(7)
    assert "poststop c1: usage: " in called(node, "--linger=soon", verb="poststop")
    assert (node.groups(), node.failures()) == ({}, {})


def test_a_machine_without_resctrl_is_said_once_and_recorded_nowhere(node: Node) -> None:
    nowhere = ("--resctrl-root=/nowhere", "--strict")
    assert "no /nowhere here: nothing is monitored on this machine" in called(node, *nowhere)
    assert called(node, *nowhere) == ""
    for _ in range(2):
        assert called(node, *nowhere, "--run-dir=/proc/none").count("\n") == 1, (
            "where that cannot be recorded, always"
        )
    assert node.failures() == {}


@pytest.mark.parametrize("is_left_out", [True, False])
def test_an_infra_container_of_podmans_is_left_out(node: Node, is_left_out: bool) -> None:
    """Which one that is: test_podman.py."""
    node.patch.setattr(conmon, "leaves_out", lambda *_: is_left_out)
    node.spawn(7, cgroup="/machine.slice/app.scope")
    called(node, annotations={"io.container.manager": "libpod"})
    assert bool(node.groups()) is not is_left_out


def test_a_container_with_an_invalid_sandbox_id_is_monitored_and_that_is_said(node: Node) -> None:
    node.spawn(7, cgroup=IN_PODMAN)
    said = called(node, "--key=sandbox", annotations={"io.kubernetes.cri-o.SandboxID": "../x"})
    assert "bad_key: the annotations hold an invalid sandbox ID: '../x'" in said
    assert node.groups() == {"oci-c1": {7}}
    assert (failure().reason, failure().monitored) == ("bad_key", True)
    assert node.repair().outcomes == []


def test_report_of_a_run_directory_that_cannot_be_opened_has_podmans_name(node: Node) -> None:
    def name(container: Container) -> None:
        container.pod.container = "web"

    node.spawn(7, cgroup=IN_PODMAN)
    node.patch.setattr(conmon, "name_container", name)
    assert "createRuntime web (c1): io" in called(node, "--run-dir=/proc/none")


def test_forged_annotations_leave_a_container_in_its_own_pod_and_are_reported(node: Node) -> None:
    """Under each runtime: test_evasion.py."""
    node.spawn(7, cgroup=cgroup_of("c1"))
    said = called(
        node, "--strict", annotations={MANAGER: "cri-o", POD_UID: VICTIM, CRI_UID: VICTIM}
    )
    assert node.groups() == {GROUP: {7}}
    assert (failure().reason, failure().monitored, failure().key) == ("bad_key", True, UID)
    assert VICTIM in failure().problem
    assert VICTIM in said


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("cgroup", "said", "kubernetes", "podman", "group"),
    [
        (
            cgroup_of("c1"),
            {MANAGER: "libpod"},
            "--group-prefix=k8s-",
            "--key=sandbox",
            f"k8s-{UID}",
        ),
        (cgroup_of("c1"), {MANAGER: "libpod"}, "--key=container", "--group-prefix=mine-", "oci-c1"),
        (
            IN_PODMAN,
            {POD_UID: VICTIM, CRI_UID: VICTIM},
            "--group-prefix=k8s-",
            "--key=auto",
            "oci-c1",
        ),
    ],
)
def test_if_both_hooks_d_files_call_only_the_call_that_is_for_a_container_handles_it(
    node: Node,
    cgroup: str,
    said: dict[str, str],
    kubernetes: str,
    podman: str,
    group: str,
    order: int,
) -> None:
    calls = [
        ("--containers=kubernetes", "--linger=600", kubernetes),
        ("--containers=podman", podman),
    ][::order]
    node.spawn(7, cgroup=cgroup)
    for words in calls:
        assert called(node, *words, annotations=said) == ""
    assert node.groups() == {group: {7}}
    node.kernel.die(7)
    for words in calls:
        called(node, *words, verb="poststop", status="stopped")  # Podman's has no annotations then
    assert node.groups().keys() == (set() if cgroup == IN_PODMAN else {group}), (
        "only Kubernetes' file lets it linger"
    )


def test_a_call_of_the_other_hooks_d_file_keeps_the_record_of_a_failure(node: Node) -> None:
    called(node, "--containers=kubernetes")  # there is no process 7
    node.spawn(7, cgroup=cgroup_of("c1"))
    called(node, "--containers=podman")
    assert (node.failures(), node.groups()) == ({"c1": "task_gone"}, {})


def test_a_container_whose_cgroup_cannot_be_read_is_tried_again_and_not_taken_for_one_in_no_pod(
    node: Node,
) -> None:
    """The simulator found it: its ID was its key,
    and the other containers of its pod had another one.
    """
    node.spawn(7, cgroup=cgroup_of("c1"))
    node.machine.add(
        "/b/config.json", json.dumps({"linux": {"cgroupsPath": cgroup_of("c1")}}).encode()
    )
    with node.patch.context() as unreadable:
        unreadable.setattr(system, "cgroups", lambda _pid: [])
        assert "the cgroup of process 7 cannot be read" in called(
            node, annotations={"io.kubernetes.pod.uid": UID}
        )
    assert (node.failures(), node.groups()) == ({"c1": "io"}, {})
    assert node.verbs() == ["retry"]
    assert node.groups() == {GROUP: {7}}


def test_a_state_that_does_not_end_is_reported(node: Node) -> None:
    node.patch.setattr(entry, "STDIN_PATIENCE", 0.0)
    assert "bad_state: no container state on stdin: it did not end within 0 seconds" in called(node)


def test_an_invalid_name_is_quoted_in_part(node: Node) -> None:
    said = called(node, id="-" * 200)
    assert f"{'-' * 80!r} is not a container ID; hint: a runtime that does not follow" in said


@pytest.mark.parametrize("status", ["stopped", 7])
def test_the_verb_decides_the_stage_whatever_the_state_says(node: Node, status: object) -> None:
    called(node, status=status)
    assert failure().stage == "createRuntime"


def test_failure_to_open_the_run_directory_is_recorded_with_the_process(node: Node) -> None:
    """Without it reconcile would never try again."""
    node.spawn(7, born=99)
    node.patch.setattr(entry, "RunDir", fails(errno.EMFILE))
    called(node)
    record = failure()
    assert (record.reason, record.pid, record.starttime) == ("io", 7, 99)


# --- The command line


DEFAULTS = Options().model_dump()
GOOD: dict[str, tuple[str, Any]] = {
    "resctrl_root": ("/mnt/resctrl/", "/mnt/resctrl"),
    "run_dir": ("/run/elsewhere", "/run/elsewhere"),
    "group_prefix": ("mine-", "mine-"),
    "key": ("sandbox", "sandbox"),
    "containers": ("podman", "podman"),
    "namespace": ("kube-system", ["kube-system"]),
    "annotation": ("a.b/c=d=e", {"a.b/c": "d=e"}),
    "monitor": ("opt-out", "opt-out"),
    "linger": ("60", 60),
    "snapshot_ttl": ("0", 0),
    "lock_timeout": ("0.25", 0.25),
    "rmid_wait": ("3", 3.0),
    "history": ("/var/log/jobs.jsonl", "/var/log/jobs.jsonl"),
    "node": ("n2", "n2"),
}
"""A good value of each option that takes one, and what it becomes."""


def changed(*words: str) -> tuple[dict[str, Any], list[str]]:
    """The fields that are not as by default, and the complaints."""
    options, complaints = entry.parse(list(words))
    return {
        name: value for name, value in options.model_dump().items() if value != DEFAULTS[name]
    }, complaints


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


@pytest.mark.parametrize("name", GOOD)
def test_an_option_has_two_forms_and_without_a_value_does_not_swallow_the_next_one(
    name: str,
) -> None:
    text, value = GOOD[name]
    assert changed(f"{option(name)}={text}") == changed(option(name), text) == ({name: value}, [])
    complaint = [f"{option(name)} wants a value"]
    assert (
        changed("--strict", option(name))
        == changed(option(name), "--strict")
        == ({"strict": True}, complaint)
    )
    other = "linger" if name != "linger" else "resctrl_root"
    text, value = GOOD[other]
    assert changed(option(name), f"{option(other)}={text}") == ({other: value}, complaint)
    assert changed(option(name), option(other), text) == ({other: value}, complaint)
    assert changed(f"{option(name)}=--strict")[1] != complaint, "a value that begins so needs the ="


def test_all_of_them_together_and_none() -> None:
    assert {*GOOD, "strict"} == set(DEFAULTS)
    words = [f"{option(name)}={text}" for name, (text, _) in GOOD.items()]
    assert changed(*words, "--strict") == (
        {name: value for name, (_, value) in GOOD.items()} | {"strict": True},
        [],
    )
    assert entry.parse([]) == (Options(), [])


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        # A flag takes no word from the others.
        ("--strict --linger=5", {"strict": True, "linger": 5}),
        # Repeats add up.
        ("--namespace=a --namespace b --namespace=a", {"namespace": ["a", "b", "a"]}),
        ("--annotation=a=1 --annotation b=", {"annotation": {"a": "1", "b": ""}}),
        ("--annotation=a=1 --annotation=a=2", {"annotation": {"a": "2"}}),
        ("--linger=5 --linger=6", {"linger": 6}),  # of others the last counts
        ("--namespace=b", {"namespace": ["b"]}),  # nothing of the above is in the defaults
        ("--namespace=", {"namespace": [""]}),
        # The bounds are within.
        ("--linger=86400 --snapshot-ttl=604800", {"linger": 86400, "snapshot_ttl": 604800}),
        ("--lock-timeout=0 --rmid-wait=60", {"lock_timeout": 0.0, "rmid_wait": 60.0}),
    ],
)
def test_words_become_fields_of_the_kind_that_their_defaults_have(
    words: str, fields: dict[str, Any]
) -> None:
    values, complaints = changed(*words.split())
    assert (repr(values), complaints) == (
        repr({name: fields[name] for name in DEFAULTS if name in fields}),
        [],
    )


NO_NUMBERS = ["soon", "", "1.5", "-1", "86401", "9" * 5000]
BAD = {
    **{f"--linger={text}": "--linger" for text in NO_NUMBERS},
    "--group-prefix=": "--group-prefix: '': not a group prefix",
    "": "''",
    "--\nnewline": "newline",
    **{
        word: word.partition("=")[0]
        for word in (
            "--snapshot-ttl=604801",
            "--lock-timeout=60.1",
            "--lock-timeout=-0.1",
            "--lock-timeout=nan",
            "--rmid-wait=inf",
            "--key=pod",
            "--key=Auto",
            "--monitor=some",
            "--strict=true",
            "--annotation=K",
            "--annotation==V",
            "--group-prefix=a/b",
            "--run-dir=run",
            "--resctrl-root=/",
            "--resctrl-root=/a/../b",
            "--no-such=1",
            "--snapshot_ttl=3",
            "--LINGER=3",
            "--",
            "-h",
            "word",
            "--model_config=1",
        )
    },
}


@pytest.mark.parametrize(("word", "named"), BAD.items())
def test_a_bad_option_is_named_and_ignored(word: str, named: str) -> None:
    values, complaints = changed("--namespace=a", word, "--strict")
    assert values == {"namespace": ["a"], "strict": True}
    (complaint,) = complaints
    assert named in complaint
    assert "\n" not in complaint
    assert len(complaint) < 200


@pytest.mark.parametrize(
    "word", ["{}", "--key={}", "--linger={}", "--rmid-wait={}", "--annotation={}"]
)
def test_an_absurdly_long_word_is_quoted_in_part(word: str) -> None:
    _, (complaint,) = changed(word.format("Q" * 1000))
    assert complaint.count("Q") == 80


def test_each_bad_option_has_its_own_complaint() -> None:
    _, complaints = entry.parse(
        ["--key=x", "--linger=-1", "--monitor=y", "--linger=z", "q", "--rmid-wait=nan"]
    )
    said = sorted(line.partition(":")[0] for line in complaints)
    assert said == [
        "--key",
        "--linger",
        "--linger",
        "--monitor",
        "--rmid-wait",
        "unknown option 'q'",
    ]


options = st.sampled_from([option(name) for name in DEFAULTS])
words = st.one_of(
    st.text(st.characters(codec=None), max_size=30),
    options,
    st.builds("{}={}".format, options, st.text() | st.floats() | st.integers()),
    st.builds("--{}".format, st.text()),
    st.sampled_from(
        [
            "--annotation=\ud800=\udcff",
            "--namespace=\udcff",
            "--key=\ud800",
            "--linger=\u0663",
            "\u2028",
        ]
    ),
)


@given(st.lists(words, max_size=8))
@example(["--key=\ud800", "--annotation=\ud800", "--run-dir=/\udcff/.."])
def test_whatever_the_words_are_there_are_options_and_complaints_of_one_line(
    arguments: list[str],
) -> None:
    before = list(arguments)
    options, complaints = entry.parse(arguments)
    assert arguments == before
    assert Options.model_validate(options.model_dump()) == options
    assert all(len(line.splitlines()) == 1 and len(line) < 500 for line in complaints)
