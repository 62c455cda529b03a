# SPDX-License-Identifier: Apache-2.0
"""What a node bills a namespace: run in the chart's container `metrics` (see Release.bill).

The argument is the namespace. Prints JSON: `lines` of the history, what they add up to by the
program (`total`) and in `sums.json` (`sums`), and the samples of the endpoint (`samples`).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from http.client import HTTPConnection
from typing import Any

SAMPLE = re.compile(r'resctrl_mon_namespace_(\w+_total)\{namespace="([^"]*)"\} (\S+)')


def ask(*words: str) -> Any:  # noqa: ANN401  JSON
    command = ["/app/resctrl-mon-hook", "history", "--json", *words]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


namespace = sys.argv[1]
listen = os.environ["METRICS"].split()[0].partition("=")[2]
host, _, port = listen.rpartition(":")
endpoint = HTTPConnection(host.strip("[]"), int(port), timeout=60)
endpoint.request("GET", "/metrics")
samples = SAMPLE.findall(endpoint.getresponse().read().decode())
with open("/var/log/resctrl-mon-hook/sums.json", encoding="utf-8") as file:
    sums = json.load(file)["namespaces"][namespace]
answer = {
    "lines": [job for job in ask()["jobs"] if job["namespace"] == namespace],
    "total": next(total for total in ask("--by=namespace")["sums"] if total["name"] == namespace),
    "sums": {event: float(text) for event, text in sums["use"].items()},
    "samples": {metric: float(value) for metric, name, value in samples if name == namespace},
}
print(json.dumps(answer))
