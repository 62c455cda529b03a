# SPDX-License-Identifier: Apache-2.0
"""The units of systemd: as systemd-analyze reads them, and against what they are about."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from hook.cli import verbs
from hook.models import Options
from hook.node import runtimes
from hook.node.paths import HISTORY, Places

import node

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "packaging" / "systemd"
SERVICE = UNITS / "resctrl-mon-hook-reconcile.service"
TIMER = UNITS / "resctrl-mon-hook-reconcile.timer"
WATCH = UNITS / "resctrl-mon-hook-watch.service"
VIEW = UNITS / "resctrl-mon-hook-view.service"
TEXTFILE = UNITS / "resctrl-mon-hook-textfile.service"
TEXTFILE_TIMER = UNITS / "resctrl-mon-hook-textfile.timer"
METRICS = UNITS / "resctrl-mon-hook-metrics.service"
each_service = pytest.mark.parametrize(
    "service", [SERVICE, WATCH, VIEW, TEXTFILE, METRICS], ids=lambda path: path.stem
)
PROGRAM = "/usr/bin/resctrl-mon-hook"
ANALYZE = shutil.which("systemd-analyze")
needs_analyze = pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze")
# Of 10, as systemd 252 counts: it is root, sees all processes, and has the host's
# network namespace. watch has CAP_NET_ADMIN and a netlink socket; metrics has no
# capability, but speaks to whatever asks
MOST_EXPOSED = {SERVICE: 1.8, WATCH: 1.9, VIEW: 1.7, TEXTFILE: 1.8, METRICS: 2.0}
SECONDS = re.compile(r"([0-9]+)s")

Unit = dict[str, dict[str, list[str]]]


def unit(path: Path) -> Unit:
    """A unit by section and name; what can be said twice is a list,
    and nothing else is said twice.
    """
    unit: Unit = {}
    section: dict[str, list[str]] = {}
    for line in path.read_text(encoding="ascii").replace("\\\n", "").splitlines():
        if line.startswith("["):
            assert line.endswith("]")
            section = unit.setdefault(line[1:-1], {})
        elif line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            assert equals, line
            assert re.fullmatch("[A-Za-z]+", name), line
            assert value == value.strip(), line
            section.setdefault(name, []).append(value)
    return unit


def only(path: Path, section: str, name: str) -> str:
    (value,) = unit(path)[section][name]
    return value


def seconds(path: Path, section: str, name: str) -> int:
    match = SECONDS.fullmatch(only(path, section, name))
    assert match is not None
    return int(match[1])


def get_limit(verb: str) -> float:
    limit = verbs.VERBS[verb].limit
    assert limit is not None
    return limit.seconds


def test_a_timer_starts_its_service_again_and_again() -> None:
    for timer, service, period in ((TIMER, SERVICE, 60), (TEXTFILE_TIMER, TEXTFILE, 30)):
        assert only(timer, "Timer", "Unit") == service.name
        assert only(timer, "Install", "WantedBy") == "timers.target"
        assert (
            seconds(timer, "Timer", "OnBootSec")
            == seconds(timer, "Timer", "OnUnitActiveSec")
            == period
        )
        assert seconds(timer, "Timer", "AccuracySec") <= 1


GROUPS = f"{Options().resctrl_root}/mon_groups"
CONFIGURED = "-/etc/resctrl-mon-hook/{}.conf"
SETTINGS = [
    (SERVICE, "ConditionPathIsDirectory", GROUPS),  # it is skipped where resctrl is not mounted
    (WATCH, "ConditionPathIsDirectory", Options().resctrl_root),
    # The connector's, in the host's network.
    (WATCH, "RestrictAddressFamilies", "AF_UNIX AF_NETLINK"),
    (VIEW, "ConditionPathIsDirectory", Options().resctrl_root),
    (VIEW, "ExecStart", f"{PROGRAM} view"),
    (TEXTFILE, "ExecStart", f"{PROGRAM} metrics --textfile=${{TEXTFILE}} $OPTIONS"),
    (TEXTFILE, "EnvironmentFile", CONFIGURED.format("textfile")),
    (METRICS, "ExecStart", f"{PROGRAM} metrics --listen=${{LISTEN}} $OPTIONS"),
    # Where only this machine asks, unless an administrator says.
    (METRICS, "Environment", "LISTEN=127.0.0.1:9753"),
    (METRICS, "EnvironmentFile", CONFIGURED.format("metrics")),
    (METRICS, "RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6"),
    *(
        setting
        for service in (SERVICE, WATCH, VIEW)
        for setting in (
            (service, "RuntimeDirectory", os.path.basename(Options().run_dir)),
            (service, "RuntimeDirectoryMode", "0755"),  # as the hook makes it; consumers read there
            (service, "RuntimeDirectoryPreserve", "yes"),
        )
    ),
    *(
        setting
        for service in (SERVICE, WATCH)
        for setting in (
            (service, "ReadWritePaths", Options().resctrl_root),
            (service, "LogsDirectory", "resctrl-mon-hook"),
            (service, "LogsDirectoryMode", "0750"),  # what a job is called is its user's affair
        )
    ),
]


def test_settings_have_their_values() -> None:
    values = [
        (unit, name, only(unit, "Unit" if name.startswith("Condition") else "Service", name))
        for unit, name, _ in SETTINGS
    ]
    assert values == SETTINGS


def test_one_is_over_before_the_next_is_due() -> None:
    longest = seconds(SERVICE, "Service", "TimeoutStartSec") + seconds(
        SERVICE, "Service", "TimeoutStopSec"
    )
    assert longest < seconds(TIMER, "Timer", "OnUnitActiveSec")
    asked = runtimes._PATIENCE_IN_ALL + runtimes._PATIENCE_FOR_SOME
    assert get_limit("reconcile") >= asked + 10  # the rest of reconcile's


def test_it_ends_by_itself_before_systemd_and_the_chart_end_it() -> None:
    for service, verb in ((SERVICE, "reconcile"), (TEXTFILE, "metrics")):
        assert get_limit(verb) < seconds(service, "Service", "TimeoutStartSec")
    assert seconds(SERVICE, "Service", "TimeoutStartSec") == node.LONGEST


def test_podman_is_asked_for_names_of_pods_only_where_the_mark_is(tmp_path: Path) -> None:
    podman = tmp_path / "podman"
    podman.write_text('#!/bin/sh\necho "$@" >>asked\ncat prepared\n')
    podman.chmod(0o755)
    (tmp_path / "prepared").write_text("[]\n")
    mark, answer = tmp_path / "podman-pods.wanted", tmp_path / "podman-pods.json"
    flags, command = only(SERVICE, "Service", "ExecStartPre").split("/", 1)
    assert flags == "-+", "its failure is ignored, and it has full rights"
    words = shlex.split(f"/{command}".replace(Options().run_dir, str(tmp_path)))

    def start() -> None:
        subprocess.run(words, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False, timeout=60)

    start()
    assert not (tmp_path / "asked").exists()
    mark.touch()
    start()
    assert (tmp_path / "asked").read_text() == "pod ps --format=json\n"
    assert (mark.exists(), answer.read_text(), answer.stat().st_mode & 0o777) == (
        False,
        "[]\n",
        0o600,
    )
    (tmp_path / "prepared").unlink()  # Podman fails now
    mark.touch()
    start()
    assert (mark.exists(), answer.read_text()) == (False, "[]\n")


def test_the_history_is_written_and_rotated_where_the_units_may_write() -> None:
    assert os.path.dirname(HISTORY) == f"/var/log/{only(SERVICE, 'Service', 'LogsDirectory')}"
    assert os.path.dirname(HISTORY) == Places().log_dir


def test_the_run_directory_and_that_of_the_history_are_there_from_the_boot_on() -> None:
    """As the hook and `install` make them, with what Kepler looks for when it starts,
    and for good: no age.
    """
    conf = ROOT / "packaging" / "tmpfiles.d" / "resctrl-mon-hook.conf"
    lines = [
        line.split()
        for line in conf.read_text(encoding="ascii").splitlines()
        if not line.startswith("#")
    ]
    run_dir, data = Options().run_dir, f"{Options().resctrl_root}/mon_data"
    assert lines == [
        ["d", run_dir, "0755", "root", "root", "-"],
        ["d", f"{run_dir}/mon_groups", "0755", "root", "root", "-"],
        ["L", f"{run_dir}/mon_data", "-", "-", "-", "-", data],
        ["d", Places().log_dir, "0750", "root", "root", "-"],
    ]


BREAKING = {
    # Each process is looked at.
    *("ProtectProc", "ProcSubset", "PrivateUsers", "PrivatePIDs", "PIDFile"),
    "PrivateNetwork",  # watch listens in the host's
    *("User", "DynamicUser", "RootDirectory", "RootImage", "UMask", "RestrictFileSystems"),
    # Locks are held there.
    *("MemoryHigh", "TasksMax", "CPUQuota", "LimitAS", "CPUSchedulingPolicy"),
}


@each_service
def test_no_setting_would_break_it_and_its_comments_give_reasons_for_its_capabilities(
    service: Path,
) -> None:
    assert unit(service)["Service"].keys() & BREAKING == set()
    capabilities = only(service, "Service", "CapabilityBoundingSet").split()
    assert capabilities == re.findall(
        "^#   (CAP_[A-Z_]+) +", service.read_text(encoding="ascii"), re.MULTILINE
    )


# --- systemd's own word


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units in a directory of units, with a program that is there:
    systemd-analyze looks for it.
    """
    for path in UNITS.iterdir():
        (tmp_path / path.name).write_text(
            path.read_text(encoding="ascii").replace(PROGRAM, "/bin/true")
        )
    return tmp_path


def analyze(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    return subprocess.run(
        [ANALYZE, *words],
        env={"SYSTEMD_UNIT_PATH": f"{directory}:", "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@needs_analyze
def test_systemd_has_no_complaint_but_of_a_slip(installed: Path) -> None:
    paths = [str(path) for path in installed.iterdir()]
    done = analyze(installed, "verify", "--man=no", "--generators=no", *paths)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    path = installed / SERVICE.name
    path.write_text(path.read_text().replace("Nice=", "Nyce="))
    assert "Nyce" in analyze(installed, "verify", "--man=no", "--generators=no", str(path)).stderr


@needs_analyze
@each_service
def test_it_is_no_more_exposed_than_it_was(installed: Path, service: Path) -> None:
    done = analyze(
        installed, "security", "--offline=true", "--no-pager", str(installed / service.name)
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd-analyze is too old for --offline")
    match = re.search(r"Overall exposure level for .*: ([0-9.]+)", done.stdout)
    assert match is not None, done.stderr
    assert float(match[1]) <= MOST_EXPOSED[service], done.stdout
