# SPDX-License-Identifier: Apache-2.0
"""The Helm chart as Helm renders it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import yaml

from fetch import helm

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "packaging" / "kubernetes" / "chart"
VALUES = CHART / "values.yaml"

Object = dict[str, Any]


def load(path: Path) -> Object:
    loaded: Object = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def run(*words: str | Path, values: Object | None = None) -> str:
    """What Helm prints.

    RuntimeError with what it says. It does not learn of the user's clusters, and keeps nothing.
    """
    with TemporaryDirectory(prefix="helm-") as home:
        done = subprocess.run(
            [helm.HELM, *words, "--values=-"],
            input=json.dumps(values or {}),
            env={"HOME": home, "GOGC": "off"},  # it ends before it has much garbage
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return done.stdout


def render(
    values: Object | None = None,
    *options: str,
    name: str = "hook",
    namespace: str = "monitoring",
    cluster: Object | None = None,
) -> list[Object]:
    """The objects that Helm would make.

    `options`: of Helm; `cluster`: the DaemonSet that is there.
    """
    words = ["template", name, str(CHART), f"--namespace={namespace}", *options]
    with ExitStack() as stack:
        if cluster is not None:
            server = stack.enter_context(_serve(cluster, render(values)))
            words += [
                "--is-upgrade",
                "--dry-run=server",
                "--disable-openapi-validation",
                f"--kube-apiserver={server}",
            ]
        return [
            item
            for item in yaml.load_all(run(*words, values=values), yaml.CSafeLoader)
            if item is not None
        ]


@contextmanager
def _serve(there: Object, kinds: list[Object]) -> Iterator[str]:
    """An API server with one object, which knows the kinds of some; yields its address."""
    answers: Object = {
        "/version": {"gitVersion": "v1.35.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
    }
    groups: list[Object] = []
    for version in {item["apiVersion"] for item in kinds}:
        made = sorted({item["kind"] for item in kinds if item["apiVersion"] == version})
        resources = [
            {"name": f"{kind.lower()}s", "namespaced": True, "kind": kind, "verbs": ["get"]}
            for kind in made
        ]
        group, slash, name = version.rpartition("/")
        if slash:
            groups.append({"name": group, "versions": [{"groupVersion": version, "version": name}]})
        answers[f"/api{'s' if slash else ''}/{version}"] = {
            **{"kind": "APIResourceList", "groupVersion": version},
            "resources": resources,
        }
    answers["/apis"] = {"kind": "APIGroupList", "groups": groups}
    where = there["metadata"]
    answers[
        f"/apis/{there['apiVersion']}/namespaces/{where['namespace']}/daemonsets/{where['name']}"
    ] = there

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0])
            body = json.dumps(
                answer or {"kind": "Status", "reason": "NotFound", "code": 404}
            ).encode()
            self.send_response(200 if answer else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
