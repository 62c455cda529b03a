# SPDX-License-Identifier: Apache-2.0
"""Fresh Debians with Podman, for packages to be installed in.

They have no Python: that lies in apt's cache there, so that apt can install it without a network.
"""

from __future__ import annotations

from pathlib import Path

from tests.support import debian

SUITES = {12: "bookworm", 13: "trixie"}
"""By Debian's version."""
PACKAGES = ("podman", "runc", "systemd")
"""What is installed, with all that it needs. systemd: does not run there, and says which units would be started."""
AT_HAND = ("python3",)
"""What apt can install without a network, with all that it needs, and nothing that is only recommended."""
OPTIONS = (
    "--variant=apt",
    f"--include={','.join(PACKAGES)}",
    f'--customize-hook=APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get install -qq -d {" ".join(AT_HAND)}',
    "--skip=cleanup/apt",
)


def ready(version: int) -> Path:
    """The directory of the root, as debian.root has it."""
    return debian.root(SUITES[version], *OPTIONS)
