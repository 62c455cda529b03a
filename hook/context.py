# SPDX-License-Identifier: Apache-2.0
"""What a call of the hook carries along: whom it is about,
and the surroundings of each act on a key.
"""

from __future__ import annotations

from hook import formats, system
from hook.identity import Container
from hook.models import Config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.models import Member, Options
    from hook.resctrl import Resctrl
    from hook.store import RunDir


class Context:
    """The surroundings of a stage: resctrl, the run directory, the options."""

    def __init__(self, kernel: Resctrl, run: RunDir, options: Options) -> None:
        self.resctrl = kernel
        self.run = run
        self.options = options
        # The number of RMIDs given back.
        self.freed = 0


class Call:
    """One call of the hook; immutable."""

    def __init__(
        self,
        stage: str,
        given: tuple[Options, list[str]],
        name: str,
        bundle: str | None,
        container: Container | None = None,
    ) -> None:
        self.stage = stage
        # The options, and a complaint about each bad word of the command line.
        self.options, self.complaints = given
        # The container's ID or, if the state has none, a stable name for its record.
        self.name = name
        # None if the state has none.
        self.bundle = bundle
        # None at poststop, and if the state could not be read.
        self.container = container


# --- What the machine says of a container


def read_container(
    name: str,
    pid: int,
    bundle: str,
    annotations: dict[str, str] | None,
    made_in: list[str] | None = None,
) -> Container:
    """Identify a container by what /proc says of its process.

    `made_in` has the cgroups that its runtime made for it; a new container is still in them.
    Raises ValidationError if an annotation is no text.
    """
    container = Container(name, pid, bundle, annotations)
    places = system.cgroups(pid)
    try:
        starttime = system.starttime(pid)
    except (OSError, ValueError, IndexError):
        starttime = None
    container.locate(starttime, places, made_in)
    return container


def read_config(bundle: str) -> Config | None:
    """Read a bundle's config.json.

    An unreadable one stops nothing, since the kernel names the ctrl_group.
    """
    try:
        return Config.model_validate(
            formats.loads(system.read_file(bundle + "/config.json", limit=16 << 20))
        )
    except (OSError, ValueError):
        return None


def displaces(container: Container, member: Member) -> bool:
    """Whether a member of this ID is another process that is not known to be dead,
    and so stays a member.
    """
    return (
        not container.is_member(member) and system.is_dead(member.pid, member.starttime) is not True
    )
