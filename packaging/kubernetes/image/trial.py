# SPDX-License-Identifier: Apache-2.0
"""Proves that nodes meter, for `helm test`: by a pod on a node, and what that node then says of it.

On one node, or with test.everyNode on all of them at once:

1. wait until the DaemonSet's pod is ready; if it is not, its own probes say why
2. start a pod, and wait until the node's metrics have its UID, and its container is a member
3. wait until one of its counters has grown
4. start a process in it by exec; with `watch` that one is in the pod's group at once
5. delete the pod, and wait until its key is completed

Each node that fails has a line in the words of docs/troubleshooting.md.
A node that cannot monitor is left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from websocket import WebSocketException

import cluster
from cluster import Failed
from ready import SUPPORTED, UNCALLED

if TYPE_CHECKING:
    from collections.abc import Callable

POLL = 1.0  # seconds between two looks
READY, START, MEMBER, GROWTH, COMPLETION = 120.0, 120.0, 60.0, 60.0, 180.0
"""Seconds for each step. reconcile, which runs once a minute,
completes a key whose pod has gone.
"""
AT_ONCE = 10.0  # seconds for watch
_MOST_AT_ONCE = 20  # nodes
_LONGEST = 1000  # characters of the API server's words
_HELP = "docs/troubleshooting.md#"
_PROGRAM = "/app/resctrl-mon-hook"
_INSIDE = [
    "python3",
    "-c",
    "import time\nfor _ in range(60): print('in', flush=True); time.sleep(1)",
]
"""It prints more than once, since the client may read a frame of TLS
only when the next one comes.
"""

Object = dict[str, Any]
ThingT = TypeVar("ThingT")


def test() -> None:
    """Run as above, in the cluster. Raises Failed."""
    plan = json.loads(cluster.PLAN.read_text(encoding="utf-8"))
    run(cluster.connect(plan["namespace"]), plan, os.environ["POD_NAME"])


def run(api: cluster.Api, plan: Object, tester: str) -> None:
    """Run as above.

    `plan`: from the chart; `tester`: the name of the pod that this runs in. Raises Failed.
    """
    if not plan["metrics"]:
        raise Failed("metrics.enabled=false: this asks the nodes' metrics")
    _pass_filters(plan)
    pods = api.select(api.core.list_namespaced_pod, plan["selector"])
    daemons = sorted(pods, key=lambda pod: (not _is_ready(pod), _get_node(pod)))
    if not daemons:
        raise Failed(_explain_no_pods(api, plan["daemonset"]))
    body = {"metadata": {"ownerReferences": _find_owner(daemons[0])}}  # gone with the release
    api.call(api.core.patch_namespaced_pod, tester, body=body)
    able = []
    for daemon in daemons:
        if reason := _find_unsupported(daemon):
            print(f"{_get_node(daemon)}: not tried: {reason}")
        else:
            able.append(daemon)
    if not able:
        raise Failed('no node can monitor: docs/kubernetes.md, "Which nodes"')
    chosen = able if plan["everyNode"] else able[:1]
    failed = []
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        for daemon, (meters, outcome) in zip(
            chosen, pool.map(lambda daemon: _try_node(api, plan, daemon), chosen)
        ):
            print(f"{_get_node(daemon)}: {outcome}")
            failed += [] if meters else [_get_node(daemon)]
    if failed:
        raise Failed(
            f"{len(failed)} of {len(chosen)} nodes tried do not meter: {', '.join(failed)}"
        )
    print(f"nodes that meter: {len(chosen)} of {len(chosen)} tried")


def _try_node(api: cluster.Api, plan: Object, daemon: Object) -> tuple[bool, str]:
    """Try a node; returns whether it meters, and why, or why not."""
    try:
        return True, Trial(api, plan, daemon).run()
    except (
        Failed,
        LookupError,
        ValueError,
    ) as error:  # the last two: of an answer that is not as it should be
        return False, f"FAILED: {error if isinstance(error, Failed) else repr(error)}"


class Trial:
    """The trial of one node, with the DaemonSet's pod there."""

    def __init__(self, api: cluster.Api, plan: Object, daemon: Object) -> None:
        self._api = api
        self._plan = plan
        self._daemon = daemon
        self._pod: Object = json.loads(json.dumps(plan["pod"]))
        # A node's name may be longer than a pod's.
        digest = hashlib.sha256(_get_node(daemon).encode()).hexdigest()[:10]
        self._name = f"{self._pod['metadata']['name']}-{digest}"
        self._pod["metadata"].update(name=self._name, ownerReferences=_find_owner(daemon))
        self._pod["spec"]["nodeName"] = _get_node(daemon)

    def run(self) -> str:
        """Try the node; returns what it did. Raises Failed."""
        self._await_daemon()
        self._delete_pod()  # of a test that was killed
        if not _await(START, lambda: not self._read_pod(self._name)):
            raise Failed(f"the pod {self._name} of an earlier test does not end")
        try:
            self._api.call(self._api.core.create_namespaced_pod, body=self._pod)
            uid, container = self._await_start()
            self._await_member(uid, container)
            counter = self._await_growth(uid)
            self._try_exec(uid)
        finally:
            self._delete_pod()
        if not _await(COMPLETION, lambda: self._show(uid).get("state", "completed") == "completed"):
            raise Failed(
                f"its key {uid} is not completed {COMPLETION:.0f} s after the pod: "
                f"{_HELP}resctrlmonreconcileneverends"
            )
        at_once = ", at once" if self._plan["watch"] else ""
        return (
            f"meters: {uid} was a member, {counter} grew, exec was charged{at_once}, and it was "
            "completed"
        )

    def _await_daemon(self) -> None:
        name = self._daemon["metadata"]["name"]
        _await(READY, lambda: _is_ready(self._read_pod(name)))
        self._daemon = self._read_pod(name)
        if not self._daemon:
            raise Failed(f"the DaemonSet's pod {name} was deleted during the trial")
        statuses = self._daemon["status"].get("containerStatuses", [])
        problems = [self._explain(status) for status in statuses if not status["ready"]]
        if all(UNCALLED in problem for problem in problems) and problems:
            # As on a node that has started no pod since the hook-injector: the pod of the test
            # shows it.
            return
        if not _is_ready(self._daemon):
            raise Failed(
                f"{name} is not ready: {'; '.join(problems) or self._daemon['status'].get('phase')}"
            )

    def _explain(self, status: Object) -> str:
        """Say why a container of the DaemonSet is not ready:
        by its own probe, or by how it ended.
        """
        name, state = status["name"], {**status.get("lastState", {}), **status.get("state", {})}
        if "running" not in state:
            ended = {**state.get("waiting", {}), **state.get("terminated", {})}
            return f"{name}: {ended.get('message') or ended.get('reason')}"
        (command,) = (
            container["readinessProbe"]["exec"]["command"]
            for container in self._daemon["spec"]["containers"]
            if container["name"] == name
        )
        with suppress(Failed):
            return f"{name}: {self._execute(name, command)[1].strip()}"
        return f"{name}: its probe cannot be asked"

    def _await_start(self) -> tuple[str, str]:
        """Wait until the pod runs; returns its UID, and its container's ID. Raises Failed."""

        def look() -> Object:
            pod = self._read_pod(self._name)
            return pod if pod.get("status", {}).get("phase") not in (None, "Pending") else {}

        pod = _await(START, look) or self._read_pod(self._name)
        statuses = pod.get("status", {}).get("containerStatuses") or [{}]
        if pod.get("status", {}).get("phase") != "Running":
            why = (
                statuses[0].get("state")
                or pod.get("status", {}).get("message")
                or "it stays pending"
            )
            raise Failed(f"a pod does not start on the node: {why}")
        uid: str = pod["metadata"]["uid"]
        return uid, statuses[0]["containerID"].rpartition("/")[2]

    def _await_member(self, uid: str, container: str) -> None:
        if _await(
            MEMBER, lambda: container in self._show(uid).get("members", {}) and self._measure(uid)
        ):
            return
        answer = _await(MEMBER, lambda: self._execute("reconcile", self._command("list")))
        failures = json.loads(answer[1])["unmonitored"] if answer else []
        known = [failure for failure in failures if failure["container"] == container]
        if known:
            raise Failed(
                f"a container is not monitored: {known[0]['reason']}: {known[0]['problem']}; "
                f"{_HELP}reasons"
            )
        if container in self._show(uid).get("members", {}):
            raise Failed(f"metrics have no series with the uid {uid}")
        raise Failed(
            "nothing is monitored and nothing is recorded: no hook was called for a container. "
            "Does the runtime read "
            f"hooksDir={self._plan['hooksDir']}? containerd, k3s: does the hook-injector run, and "
            "see the program? "
            f"{_HELP}nothing-is-monitored-and-nothing-is-recorded"
        )

    def _await_growth(self, uid: str) -> str:
        """Wait until a counter of the pod grows; returns its name. Raises Failed."""
        first = _await(MEMBER, lambda: self._measure(uid)) or {}

        def look() -> str | None:
            now = self._measure(uid)
            grown = [series for series in now if now[series] > first.get(series, 0.0)]
            return next((re.split("[{]", series)[0] for series in grown), None)

        counter = _await(GROWTH, look)
        if counter is None:
            raise Failed(
                f"no counter of {uid} grew within {GROWTH:.0f} s: docs/hardware.md says what each "
                "CPU counts"
            )
        return counter

    def _try_exec(self, uid: str) -> None:
        """Start a process in the pod.

        With watch, wait until it is in the pod's group. Raises Failed.
        """
        name = self._pod["spec"]["containers"][0]["name"]
        before = _await(START, lambda: self._count_tasks(uid)) or 0
        with ExitStack() as connections:

            def start() -> bool:
                process = self._api.start(self._name, name, _INSIDE)
                connections.callback(process.sock.shutdown)
                with suppress(WebSocketException):
                    return bool(process.readline_stdout(timeout=START))
                return False

            if not _await(START, start):
                raise Failed("exec into the pod starts no process")
            if self._plan["watch"] and not _await(AT_ONCE, lambda: self._count_tasks(uid) > before):
                raise Failed(
                    f"a process of exec is not in its pod's group within {AT_ONCE:.0f} s: "
                    f"{_HELP}resctrlmonwatchstopped"
                )

    # --- What the node says

    def _command(self, verb: str, *words: str) -> list[str]:
        places = [
            word
            for word in self._plan["options"]
            if word.startswith(("--resctrl-root=", "--group-prefix="))
        ]
        return [_PROGRAM, verb, *words, "--json", *places]

    def _show(self, uid: str) -> Object:
        """Return what `show` prints of a key; empty if there is none."""
        status, answer = self._execute("reconcile", self._command("show", uid))
        shown: Object = json.loads(answer) if status == 0 else {}
        return shown

    def _count_tasks(self, uid: str) -> int:
        paths = [f"{group['path']}/tasks" for group in self._show(uid).get("groups", [])]
        program = f"print(sum(len(open(path).read().split()) for path in {paths!r}))"
        status, answer = self._execute("reconcile", ["python3", "-c", program])
        return int(answer) if status == 0 else 0

    def _read_pod(self, name: str) -> Object:
        """Return a pod; empty if there is none."""
        return self._api.call(self._api.core.read_namespaced_pod, name)

    def _delete_pod(self) -> None:
        self._api.call(self._api.core.delete_namespaced_pod, self._name)

    def _execute(self, container: str, command: list[str]) -> tuple[int, str]:
        return self._api.execute(self._daemon["metadata"]["name"], container, command)

    def _measure(self, uid: str) -> dict[str, float]:
        """Return the samples of a pod's counters that the node's metrics have, by series.

        Raises Failed.
        """
        address = self._daemon["status"]["podIP"]
        url = f"http://{f'[{address}]' if ':' in address else address}:{self._plan['port']}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                lines = answer.read().decode().splitlines()
        except OSError as error:
            raise Failed(f"{url}: {error}: {_HELP}resctrlmonnodevanished") from None
        pairs = (
            line.rpartition(" ")
            for line in lines
            if f'uid="{uid}"' in line and "use_unknown" not in line
        )
        return {series: float(value) for series, _, value in pairs}


def _pass_filters(plan: Object) -> None:
    """Have the tested pod monitored whatever the hook's filters are. Raises Failed."""
    given = [word.split("=", 1) for word in plan["options"] if "=" in word]
    namespaces = [value for option, value in given if option == "--namespace"]
    if namespaces and plan["namespace"] not in namespaces:
        raise Failed(
            f"options: --namespace leaves out {plan['namespace']}, in which the tested pods are"
        )
    wanted = dict(value.split("=", 1) for option, value in given if option == "--annotation")
    plan["pod"]["metadata"]["annotations"].update(wanted)


# --- Pods as the API server has them


def _explain_no_pods(api: cluster.Api, daemonset: str) -> str:
    """Say why the DaemonSet has no pod: Pod Security, a quota or a webhook,
    as its last event of an hour says.
    """
    selector = f"involvedObject.kind=DaemonSet,involvedObject.name={daemonset},reason=FailedCreate"
    events = api.call(api.core.list_namespaced_event, field_selector=selector).get("items", [])
    if not events:
        return "the DaemonSet has no pod: does its nodeSelector leave out all nodes?"
    last = max(events, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
    why = str(last.get("message")).strip().partition("\n")[0][:_LONGEST]
    return f"the DaemonSet can make no pod: FailedCreate: {why}; {_HELP}the-daemonset-has-no-pod"


def _await(seconds: float, look: Callable[[], ThingT]) -> ThingT | None:
    """Look until there is something, and return it; None if there is nothing after so many seconds.

    A look that fails, as on a busy node, is followed by another. Raises Failed:
    the last look failed.
    """
    until = time.monotonic() + seconds
    while True:
        problem = None
        try:
            if thing := look():
                return thing
        except Failed as error:
            problem = error
        if time.monotonic() > until:
            if problem is not None:
                raise problem
            return None
        time.sleep(POLL)


def _find_unsupported(daemon: Object) -> str | None:
    """Say why the node of a pod cannot monitor, by its container `check`; None if it can,
    or is not known yet.
    """
    for status in daemon["status"].get("initContainerStatuses", []):
        message: str = status.get("state", {}).get("terminated", {}).get("message", "")
        if status["name"] == "check" and status["ready"] and message != SUPPORTED:
            return message.partition("\n")[0]
    return None


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )


def _get_node(pod: Object) -> str:
    return str(pod["spec"].get("nodeName") or "a pod without a node")


def _find_owner(daemon: Object) -> list[Object]:
    """Return the owner of a pod that is deleted with the DaemonSet:
    `helm uninstall` deletes no pods of tests.
    """
    (owner,) = daemon["metadata"]["ownerReferences"]
    return [{name: owner[name] for name in ("apiVersion", "kind", "name", "uid")}]
