# SPDX-License-Identifier: Apache-2.0
"""The units of systemd: as systemd-analyze reads them, and against what they are about."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hook import entry
from hook.cli import command_line, deadline, verbs
from hook.cli.options import History
from hook.models import Options
from hook.node import runtimes
from hook.node.paths import Places

import node

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "packaging" / "systemd"
SERVICE = UNITS / "resctrl-mon-hook-reconcile.service"
TIMER = UNITS / "resctrl-mon-hook-reconcile.timer"
WATCH = UNITS / "resctrl-mon-hook-watch.service"
TEXTFILE = UNITS / "resctrl-mon-hook-textfile.service"
TEXTFILE_TIMER = UNITS / "resctrl-mon-hook-textfile.timer"
METRICS = UNITS / "resctrl-mon-hook-metrics.service"
each_service = pytest.mark.parametrize(
    "service", [SERVICE, WATCH, TEXTFILE, METRICS], ids=["reconcile", "watch", "textfile", "metrics"]
)
PROGRAM = "/usr/bin/resctrl-mon-hook"
ANALYZE = shutil.which("systemd-analyze")
needs_analyze = pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze")
# Of 10, as systemd 252 counts: it is root, sees all processes, and has the host's network namespace.
# watch has CAP_NET_ADMIN and a netlink socket; metrics has no capability, but speaks to whatever asks
MOST_EXPOSED = {SERVICE: 1.8, WATCH: 1.9, TEXTFILE: 1.8, METRICS: 2.0}
SECONDS = re.compile(r"([0-9]+)s")

Unit = dict[str, dict[str, list[str]]]


def unit(path: Path) -> Unit:
    """A unit by section and name; what can be said twice is a list, and nothing else is said twice."""
    found: Unit = {}
    section: dict[str, list[str]] = {}
    for line in path.read_text(encoding="ascii").splitlines():
        if line.startswith("["):
            assert line.endswith("]")
            section = found.setdefault(line[1:-1], {})
        elif line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            assert equals, line
            assert re.fullmatch("[A-Za-z]+", name), line
            assert value == value.strip(), line
            section.setdefault(name, []).append(value)
    return found


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
    return limit[0]


def default_options() -> list[str]:
    """What $OPTIONS is without a file of the administrator's."""
    (value,) = re.findall('^"OPTIONS=([^"]*)"$', only(SERVICE, "Service", "Environment"))
    return str(value).split()


def test_there_are_two_services_with_their_timers_and_two_that_stay() -> None:
    assert {*UNITS.iterdir()} == {SERVICE, TIMER, WATCH, TEXTFILE, TEXTFILE_TIMER, METRICS}
    for path in UNITS.iterdir():
        expected = {"Unit", path.suffix[1:].capitalize()} | ({"Install"} if path not in (SERVICE, TEXTFILE) else set())
        assert set(unit(path)) == expected


@pytest.mark.parametrize("path", sorted(UNITS.iterdir()), ids=lambda path: path.name)
def test_no_setting_is_given_twice(path: Path) -> None:
    said = {name: values for names in unit(path).values() for name, values in names.items() if len(values) > 1}
    assert set(said) <= {"SystemCallFilter"}


@pytest.mark.parametrize(
    ("timer", "service", "period"),
    [(TIMER, SERVICE, 60), (TEXTFILE_TIMER, TEXTFILE, 30)],
    ids=["reconcile", "textfile"],
)
def test_a_timer_starts_its_service_again_and_again(timer: Path, service: Path, period: int) -> None:
    assert only(timer, "Timer", "Unit") == service.name
    assert only(timer, "Install", "WantedBy") == "timers.target"
    assert seconds(timer, "Timer", "OnBootSec") == seconds(timer, "Timer", "OnUnitActiveSec") == period
    assert seconds(timer, "Timer", "AccuracySec") <= 1


GROUPS = f"{Options().resctrl_root}/mon_groups"
CONFIGURED = "-/etc/resctrl-mon-hook/{}.conf"
SETTINGS = [
    (SERVICE, "ExecStart", f"{PROGRAM} reconcile $OPTIONS"),
    (SERVICE, "Type", "oneshot"),
    (SERVICE, "ConditionPathIsDirectory", GROUPS),  # it is skipped where resctrl is not mounted
    (SERVICE, "EnvironmentFile", CONFIGURED.format("reconcile")),
    (WATCH, "ExecStart", f"{PROGRAM} watch $OPTIONS"),
    (WATCH, "EnvironmentFile", CONFIGURED.format("reconcile")),
    (WATCH, "Restart", "on-failure"),
    (WATCH, "ConditionPathIsDirectory", Options().resctrl_root),
    (WATCH, "RestrictAddressFamilies", "AF_UNIX AF_NETLINK"),  # the connector's, in the host's network
    (TEXTFILE, "ExecStart", f"{PROGRAM} metrics --textfile=${{TEXTFILE}} $OPTIONS"),
    (TEXTFILE, "EnvironmentFile", CONFIGURED.format("textfile")),
    (METRICS, "ExecStart", f"{PROGRAM} metrics --listen=${{LISTEN}} $OPTIONS"),
    (METRICS, "Environment", "LISTEN=127.0.0.1:9753"),  # where only this machine asks, unless an administrator says
    (METRICS, "EnvironmentFile", CONFIGURED.format("metrics")),
    (METRICS, "RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6"),
    (METRICS, "Restart", "on-failure"),
    *(
        setting
        for service in (SERVICE, WATCH)
        for setting in (
            (service, "ReadWritePaths", Options().resctrl_root),
            (service, "RuntimeDirectory", os.path.basename(Options().run_dir)),
            (service, "RuntimeDirectoryMode", "0755"),  # as the hook makes it; consumers read there
            (service, "RuntimeDirectoryPreserve", "yes"),
            (service, "LogsDirectory", "resctrl-mon-hook"),
            (service, "LogsDirectoryMode", "0750"),  # what a job is called is its user's affair
        )
    ),
]


@pytest.mark.parametrize(("path", "name", "value"), SETTINGS, ids=lambda it: getattr(it, "stem", str(it)))
def test_setting_has_its_value(path: Path, name: str, value: str) -> None:
    assert only(path, "Unit" if name.startswith("Condition") else "Service", name) == value


def test_the_examples_in_the_units_are_options_of_their_commands() -> None:
    """And the textfile is written where its unit may write."""
    name, _, path = only(TEXTFILE, "Service", "Environment").partition("=")
    assert (name, f"-{os.path.dirname(path)}") == ("TEXTFILE", only(TEXTFILE, "Service", "ReadWritePaths"))
    examples = {
        it: dict(re.findall("^#     ([A-Z]+)=(.*)$", it.read_text(encoding="ascii"), re.MULTILINE))
        for it in (SERVICE, TEXTFILE, METRICS)
    }

    def parse(path: Path, verb: str, *words: str) -> Any:  # noqa: ANN401  the options of a verb
        return command_line.parse_command(verb, [*words, *examples[path]["OPTIONS"].split()])[0]

    assert parse(SERVICE, "reconcile").adopt
    assert parse(TEXTFILE, "metrics", f"--textfile={path}").sum_domains
    given = parse(METRICS, "metrics", f"--listen={examples[METRICS]['LISTEN']}")
    assert (given.sum_domains, verbs.parse_address(given.listen)[1]) == (True, 9753)


def test_one_is_over_before_the_next_is_due() -> None:
    longest = seconds(SERVICE, "Service", "TimeoutStartSec") + seconds(SERVICE, "Service", "TimeoutStopSec")
    assert longest < seconds(TIMER, "Timer", "OnUnitActiveSec")
    asked = runtimes._PATIENCE_IN_ALL + runtimes._PATIENCE_FOR_SOME
    assert get_limit("reconcile") >= asked + 10  # the rest of reconcile's


@pytest.mark.parametrize(("service", "verb"), [(SERVICE, "reconcile"), (TEXTFILE, "metrics")])
def test_it_ends_by_itself_before_systemd_and_the_chart_end_it(service: Path, verb: str) -> None:
    longest = get_limit(verb) + deadline.GRACE
    assert longest < seconds(service, "Service", "TimeoutStartSec")
    assert seconds(SERVICE, "Service", "TimeoutStartSec") == node.LONGEST
    assert seconds(SERVICE, "Service", "TimeoutStopSec") > deadline.GRACE


PEAK = {SERVICE: 60 + 110, WATCH: 15 + 60, TEXTFILE: 90, METRICS: 220}
"""MiB with 2,000 pods and 10,000 processes: docs/performance.md."""


@each_service
def test_memory_is_limited_to_four_times_what_a_big_node_takes(service: Path) -> None:
    number, unit_of = re.fullmatch("([0-9]+)([MG])", only(service, "Service", "MemoryMax")).groups()  # type: ignore[union-attr]
    assert int(number) * {"M": 1, "G": 1024}[unit_of] >= 4 * PEAK[service]


def test_watch_is_called_with_the_options_of_reconcile_in_the_hosts_network() -> None:
    assert only(WATCH, "Service", "Environment") == only(SERVICE, "Service", "Environment")
    assert (
        command_line.parse_command("watch", [*default_options(), "--adopt"])[1].hook
        == entry.parse(default_options())[0]
    )
    assert "CAP_NET_ADMIN" in only(WATCH, "Service", "CapabilityBoundingSet").split()
    assert "PrivateNetwork" not in unit(WATCH)["Service"]


def test_it_is_called_with_the_options_of_the_shipped_hook() -> None:
    """What reconcile does in a hook's place should be done as that would: Kubernetes' lets groups linger.

    But for all containers, whichever file is for them.
    """
    called = []
    for target in ("kubernetes", "podman"):
        hooks = json.loads((ROOT / f"oci-hooks/10-resctrl-mon-hook-{target}.json").read_text(encoding="utf-8"))
        ours, *options = hooks["hook"]["args"][2:]
        assert ours == f"--containers={target}"
        called += options
    assert default_options() == called == ["--linger=600", f"--history={History().history}"]
    assert entry.parse(default_options())[1] == []


def test_the_history_is_written_where_the_units_may_write_and_rotated_there() -> None:
    text = (ROOT / "packaging/logrotate/resctrl-mon-hook").read_text(encoding="ascii")
    head, *settings, end = [line for line in text.splitlines() if not line.startswith("#")]
    assert (head, end) == (f"{History().history} {{", "}")
    expected = "monthly, maxsize 100M, rotate 12, compress, delaycompress, missingok, notifempty, create 0600 root root"
    assert [line.strip() for line in settings] == expected.split(", ")
    assert os.path.dirname(History().history) == f"/var/log/{only(SERVICE, 'Service', 'LogsDirectory')}"
    assert os.path.dirname(History().history) == Places().log_dir


def test_the_run_directory_is_there_from_the_boot_on(tmp_path: Path) -> None:
    """As the hook makes it, with what Kepler looks for when it starts, and for good: no age."""
    conf = ROOT / "packaging" / "tmpfiles.d" / "resctrl-mon-hook.conf"
    lines = [line.split() for line in conf.read_text(encoding="ascii").splitlines() if not line.startswith("#")]
    run_dir, data = Options().run_dir, f"{Options().resctrl_root}/mon_data"
    assert lines == [
        ["d", run_dir, "0755", "root", "root", "-"],
        ["d", f"{run_dir}/mon_groups", "0755", "root", "root", "-"],
        ["L", f"{run_dir}/mon_data", "-", "-", "-", "-", data],
    ]
    if shutil.which("systemd-tmpfiles") is None or os.geteuid() != 0:
        pytest.skip("no systemd-tmpfiles here, or not root")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/:\n")
    (tmp_path / "etc/group").write_text("root:x:0:\n")
    for _ in range(2):
        subprocess.run(["systemd-tmpfiles", "--create", f"--root={tmp_path}", conf], check=True, capture_output=True)
    made = tmp_path / run_dir.lstrip("/")
    assert {path.name: path.lstat().st_mode & 0o777 for path in made.iterdir()} == {
        "mon_groups": 0o755,
        "mon_data": 0o777,
    }
    assert os.readlink(made / "mon_data") in (data, f"{tmp_path}{data}")


@pytest.mark.parametrize(
    "name",
    [
        *("ProtectProc", "ProcSubset", "PrivateUsers", "PrivatePIDs", "PIDFile"),  # each process is looked at
        *("User", "DynamicUser", "RootDirectory", "RootImage", "UMask", "RestrictFileSystems"),
        *("MemoryHigh", "TasksMax", "CPUQuota", "LimitAS", "CPUSchedulingPolicy"),  # locks are held there
    ],
)
@each_service
def test_settings_that_would_break_it_are_absent(service: Path, name: str) -> None:
    assert name not in unit(service)["Service"]


@each_service
def test_the_capabilities_are_those_that_the_comments_give_reasons_for(service: Path) -> None:
    capabilities = only(service, "Service", "CapabilityBoundingSet").split()
    assert capabilities == re.findall("^#   (CAP_[A-Z_]+) +", service.read_text(encoding="ascii"), re.MULTILINE)


# --- systemd's own word


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units in a directory of units, with a program that is there: systemd-analyze looks for it."""
    for path in UNITS.iterdir():
        (tmp_path / path.name).write_text(path.read_text(encoding="ascii").replace(PROGRAM, "/bin/true"))
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
@pytest.mark.parametrize("name", sorted(path.name for path in UNITS.iterdir()))
def test_systemd_has_no_complaint(installed: Path, name: str) -> None:
    done = analyze(installed, "verify", "--man=no", "--generators=no", str(installed / name))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_analyze
def test_systemd_does_complain_of_a_slip(installed: Path) -> None:
    """Else the test above would say nothing."""
    path = installed / SERVICE.name
    path.write_text(path.read_text().replace("Nice=", "Nyce="))
    assert "Nyce" in analyze(installed, "verify", "--man=no", "--generators=no", str(path)).stderr


@needs_analyze
@each_service
def test_it_is_no_more_exposed_than_it_was(installed: Path, service: Path) -> None:
    done = analyze(installed, "security", "--offline=true", "--no-pager", str(installed / service.name))
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd-analyze is too old for --offline")
    found = re.search(r"Overall exposure level for .*: ([0-9.]+)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) <= MOST_EXPOSED[service], done.stdout
