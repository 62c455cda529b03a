# SPDX-License-Identifier: Apache-2.0
"""What a call of the hook carries along: whom it is about,
and the surroundings of each act on a key.
"""

from __future__ import annotations

from hook import formats, identity, system
from hook.errors import HookError, Reason
from hook.models import Config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.identity import Container
    from hook.models import Member, Options, State
    from hook.resctrl import Resctrl
    from hook.store import RunDir

    class Context:
        """The surroundings of a stage: resctrl, the run directory, the options."""

        resctrl: Resctrl
        run: RunDir
        options: Options
        # The number of RMIDs given back.
        freed: int

    class Call:
        """One call of the hook; nothing changes it."""

        stage: str
        # And a complaint about each bad word of the command line.
        options: Options
        complaints: list[str]
        # The container's ID or, if the state has none, a stable name for its record.
        name: str
        # None if the state has none.
        bundle: str | None
        # None at poststop, and if the state could not be read.
        container: Container | None


def new_context(kernel: Resctrl, run: RunDir, options: Options) -> Context:
    """Make the surroundings of a stage, or of another act on keys."""
    context: Context = formats.Values(resctrl=kernel, run=run, options=options, freed=0)
    return context


def new_call(
    stage: str,
    given: tuple[Options, list[str]],
    name: str,
    bundle: str | None,
    container: Container | None = None,
) -> Call:
    """Make a call, from what is `given`: options and complaints."""
    call: Call = formats.Values(stage=stage, name=name, bundle=bundle, container=container)
    call.options, call.complaints = given
    return call


def make_call(
    verb: str, given: tuple[Options, list[str]], state: State, annotations: dict[str, str] | None
) -> Call:
    """Make a call from a valid state. HookError `bad_state` says that createRuntime has no pid."""
    if name_stage(verb, state.status) == "poststop":
        return new_call("poststop", given, state.id, state.bundle)
    if not state.pid:
        problem = "the state of a container that is being created has no pid"
        raise HookError(Reason.BAD_STATE, "bad state", problem=problem)
    # Without `create`: if that cannot be read, the record has what reconcile tries again by.
    container = read_container(state.id, state.pid, state.bundle, annotations)
    container.history_file = given[0].history
    return new_call("createRuntime", given, state.id, state.bundle, container)


def name_stage(verb: str, status: object) -> str:
    """Return the stage of a verb; of `hook` the container's status decides."""
    if verb != "hook":
        return verb
    return "poststop" if status == "stopped" else "createRuntime"


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
    places = system.cgroups(pid)
    try:
        starttime = system.starttime(pid)
    except (OSError, ValueError, IndexError):
        starttime = None
    return identity.new_container(name, pid, bundle, annotations, (starttime, places, made_in))


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
        not identity.is_member(container, member)
        and system.is_dead(member.pid, member.starttime) is not True
    )
