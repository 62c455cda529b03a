"""Checks of the installation: the program and its Python, the timer, syslog."""

from __future__ import annotations

import os
import stat

from hook.doctor.finding import FAILURE, OK, WARNING, Finding
from hook.host import machine, programs
from hook.host.machine import Interpreter
from hook.host.paths import NAME
from hook.host.pyz_file import Shipped
from hook.install import install
from hook.install import owner as origins
from hook.install.file_steps import Refused
from hook.stages.options import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hook.doctor.site import Site

_RECONCILES = {"/app/node.py", "reconcile"}  # of the chart's image


def check_programs(site: Site) -> Iterator[Finding]:
    yield Finding(OK, "installed by", site.origin.name)
    for path in site.programs:
        yield from _check_program(site, path)
    if site.origin.link and os.path.realpath(site.places.link) not in map(os.path.realpath, site.programs):
        remedy = f"{site.origin.again}; elsewhere: doctor --prefix=DIR"
        yield Finding(WARNING, "program", f"{site.places.link} does not lead to it", remedy)


def _check_program(site: Site, path: str) -> Iterator[Finding]:
    try:
        shipped = Shipped(path)
    except FileNotFoundError:
        yield Finding(FAILURE, "program", f"no {path}", site.origin.again)
        return
    except ValueError as error:
        yield Finding(FAILURE, "program", str(error), f"move it away, then: {site.origin.again}")
        return
    found = os.stat(path)
    if found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        remedy = f"chown root {path}; chmod 755 {path}: runtimes start it as root"
        yield Finding(FAILURE, "program", f"{path} can be changed by others than root", remedy)
    yield from _check_python(shipped)
    try:
        install.prove(path)
    except Refused as error:
        yield Finding(FAILURE, "program", str(error), "until then each container that has the hook fails to start")
    else:
        yield Finding(OK, "program", f"{path} runs")


def _check_python(shipped: Shipped) -> Iterator[Finding]:
    found = machine.interpreter(shipped.python)
    if not isinstance(found, Interpreter):
        yield Finding(FAILURE, "Python", found, "install it, or install --python=PATH")
        return
    version = ".".join(map(str, found.version))
    if found.version < machine.OLDEST:
        yield Finding(FAILURE, "Python", f"{found.path} is {version}, which is too old", "install --python=PATH")
    elif not shipped.has_bytecode(found.tag):
        remedy = f"python3 build.py --bytecode={found.path}, and install that"
        yield Finding(
            WARNING, "Python", f"{found.path} is {version}: no bytecode for it, each hook starts slowly", remedy
        )
    else:
        yield Finding(OK, "Python", f"{found.path}, {version}")


def check_timer(site: Site) -> Iterator[Finding]:
    if not site.origin.timer:
        yield _check_chart_pod()
        return
    timer = os.path.basename(site.places.timer)
    if not machine.has_systemd():
        remedy = f"have `{NAME} reconcile` called once a minute by other means"
        yield Finding(WARNING, "timer", "systemd does not run here", remedy)
        return
    if (problem := programs.run(["systemctl", "is-active", timer]).problem) is not None:
        yield Finding(WARNING, "timer", f"{timer} is not active ({problem})", f"systemctl enable --now {timer}")
    elif programs.run(["systemctl", "is-failed", "--quiet", os.path.basename(site.places.service)]).status == 0:
        service = os.path.basename(site.places.service)
        yield Finding(WARNING, "timer", f"{service} failed", f"journalctl -u {service}")
    else:
        yield Finding(OK, "timer", f"{timer} is active")
    yield from _check_timer_options(site)


def _check_chart_pod() -> Finding:
    """On a node of the chart's a pod does the timer's work."""
    if any(set(words) >= _RECONCILES for words in machine.commands()):
        return Finding(OK, "reconcile", "the chart's pod does it")
    found = "no pod of the chart's runs here: what hooks cannot do is not put right"
    return Finding(WARNING, "reconcile", found, "kubectl get pods of the chart's DaemonSet on this node")


def _check_timer_options(site: Site) -> Iterator[Finding]:
    """What reconcile does in a hook's place is done by the hook's options: the unit's, or those of its file."""
    files = [path for path in (site.places.service, site.places.conf) if os.path.exists(path)]
    if not files:
        return
    last = [line for path in files for line in _read_timer_options(path)][-1:]
    options, _own = parse([word for line in last for word in line.split() if word != "--adopt"])
    anybodys = "--containers=all"  # reconcile is for all of them
    theirs = [parse([*(it.file.hook.args or [])[2:], anybodys])[0] for it in site.ours if it.file is not None]
    if theirs and options not in theirs:
        remedy = f"`{NAME} install` writes both; beside those of {site.origin.name}, OPTIONS= in {site.places.conf}"
        if site.origin is origins.INSTALL:
            remedy = f"{NAME} install writes both"
        yield Finding(WARNING, "timer", f"{files[-1]} has other options than the hook", remedy)


def _read_timer_options(path: str) -> list[str]:
    """What each line of a unit or of its file of options gives to reconcile."""
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line.removeprefix("Environment=") for line in file]
    return [line.partition("=")[2].strip() for line in lines if line.startswith("OPTIONS=")]


def check_syslog(_site: Site) -> Iterator[Finding]:
    if os.path.exists("/dev/log"):
        yield Finding(OK, "syslog", "there")
    else:
        yield Finding(WARNING, "syslog", "no /dev/log: failures are in the records alone", "run journald or a syslogd")
