# SPDX-License-Identifier: Apache-2.0
"""What the compiler learns from while CPython is built (PROFILE_TASK): starts, imports, JSON, files, errors.

It takes nothing from hook/: what is built must not depend on it. Most of what a hook does is what each start does.
"""

import json
import posix
import subprocess
import sys

STARTS = 40
MODULES = (
    *("csv", "dataclasses", "gzip", "http.server", "ipaddress", "json", "posixpath", "shlex", "subprocess", "tempfile"),
    *("tomllib", "zipfile", "_socket", "errno", "fcntl", "marshal", "select", "time"),
)
FILES = ("/proc/self/status", "/proc/self/cgroup", "/proc/self/stat", "/proc/self/mountinfo")


def learn() -> None:
    annotations = {f"io.kubernetes.cri.{number}": "x" * 20 for number in range(30)}
    state = json.dumps({"id": "a" * 64, "status": "creating", "pid": 7, "annotations": annotations})
    for _ in range(20):
        json.dumps(json.loads(state))
    for path in FILES:
        descriptor = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
        text = posix.read(descriptor, 1 << 16).decode("utf-8", "surrogateescape")
        posix.close(descriptor)
        for line in text.splitlines():
            name, _, value = line.partition(":")
            line.split()
            f"{name.strip()}-{value!r}".startswith("x")
    for _ in range(30):
        try:
            posix.stat(b"/nowhere")
        except OSError as error:
            str(error)


if __name__ == "__main__":
    if sys.argv[1:]:
        for module in MODULES:
            __import__(module)
        learn()
    else:
        for _ in range(STARTS):
            subprocess.run([sys.executable, "-IS", __file__, "once"], check=True)
