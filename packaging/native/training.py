# SPDX-License-Identifier: Apache-2.0
"""What the compiler learns from while CPython is built (PROFILE_TASK): starts, imports,
JSON, files, errors.

It takes nothing from hook/ and nothing of the machine: what is built must depend on neither.
Most of what a hook does is what each start does. The modules are compiled by the first
start, and read by the others.
"""

import json
import posix
import subprocess
import sys

STARTS = 60
MODULES = (
    *(
        "csv",
        "dataclasses",
        "gzip",
        "http.server",
        "ipaddress",
        "json",
        "posixpath",
        "shlex",
        "subprocess",
        "tempfile",
    ),
    *("tomllib", "zipfile", "_socket", "errno", "fcntl", "marshal", "select", "time"),
)
LINES = "".join(
    f"name-{number}:\tvalue {number} of {number} in /sys/fs/cgroup/x\n" for number in range(60)
)


def learn() -> None:
    annotations = {f"io.kubernetes.cri.{number}": "x" * 20 for number in range(30)}
    state = json.dumps({"id": "a" * 64, "status": "creating", "pid": 7, "annotations": annotations})
    for _ in range(20):
        json.dumps(json.loads(state))
    for _ in range(10):
        descriptor = posix.open("/dev/null", posix.O_RDWR | posix.O_CLOEXEC)
        posix.write(descriptor, LINES.encode("utf-8", "surrogateescape"))
        posix.read(descriptor, 1 << 16)
        posix.close(descriptor)
        for line in LINES.encode().decode("utf-8", "surrogateescape").splitlines():
            name, _, value = line.partition(":")
            line.split()
            f"{name.strip()}-{value!r}".startswith("x")
    for _ in range(30):
        try:
            posix.stat(b"/nowhere")
        except OSError as error:
            str(error)


if __name__ == "__main__":
    for module in MODULES:
        __import__(module)
    if sys.argv[1:]:
        learn()
    else:
        for _ in range(STARTS):
            subprocess.run([sys.executable, "-S", __file__, "once"], check=True)
