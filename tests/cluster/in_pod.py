# SPDX-License-Identifier: Apache-2.0
"""What a node has, as the program itself shows it: run in a container of the chart,
as `python3 -c` (see Release.look).

The argument is JSON: `options` of the program, and `keys` to show with their tasks. Prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def ask(*words: str) -> Any:  # noqa: ANN401  JSON
    command = ["/app/resctrl-mon-hook", *words, "--json", *wanted["options"]]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def read_tasks(group: str) -> list[int]:
    try:
        with open(f"{group}/tasks", encoding="ascii") as file:
            return list(map(int, file.read().split()))
    except FileNotFoundError:
        return []


wanted = json.loads(sys.argv[1])
answer = ask("list")
known = {key["key"] for key in answer["keys"]}
shown = {key: ask("show", key) for key in wanted["keys"] if key in known}
groups = {
    key: {member["group"] for member in record["members"].values()} for key, record in shown.items()
}
tasks = {
    key: [pid for group in sorted(paths) for pid in read_tasks(group)]
    for key, paths in groups.items()
}
pid_namespace = os.stat("/proc/self/ns/pid").st_ino
print(json.dumps({"list": answer, "shown": shown, "tasks": tasks, "pid_namespace": pid_namespace}))
