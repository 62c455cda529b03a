# SPDX-License-Identifier: Apache-2.0
"""Identifies a container: its process, its pod, and its key. Nothing here reads or writes.

Annotations come from the runtime, from the kubelet and from the author of the pod or of the image.
Each runtime writes its own last, so that an author cannot override them; but an author can add
those of other runtimes. No author can choose the path of the container's cgroup: the kubelet names
the pod's component by the pod's UID, and the runtime names the container's component by its mark
and the container's ID. So the path decides.
"""

from __future__ import annotations

from hook import formats, names
from hook.errors import HookError, Reason
from hook.models import Annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.models import Kind, Member, Options

    Names = tuple[str | None, str | None, str | None]
    """The namespace, the pod and the container; None is unknown."""
    Key = tuple[str, Kind]
    """A key and its kind: `pod` (a pod UID), `container` or `sandbox` (container IDs),
    `job` (a name: hook/jobs).
    """

    class Pod:
        """The container's pod; a field is None if no trustworthy source has it."""

        uid: str | None  # a wrong one is reported
        namespace: str | None
        name: str | None
        container: str | None
        # A contradiction or defect of the UIDs in the annotations.
        problem: HookError | None
        # Podman made the container; then `name` and `container` are Podman's (see hook/conmon.py),
        # and there is no namespace.
        is_podmans: bool

    Seen = tuple[int | None, list[str], list[str] | None]
    """Of a process: its start time, None if it is gone or /proc cannot tell; its cgroups;
    and those that its runtime made for it, None if it is still in them.
    """

    class Container:
        """A container with an init process. context.read_container makes one."""

        id: str
        pid: int
        bundle: str
        all_annotations: dict[str, str] | None  # None if they are unknown
        annotations: Annotations
        # What /proc says of its process; `is_new`: it is still where its runtime made it.
        starttime: int | None
        places: list[str]
        is_new: bool
        pod: Pod
        # The --history of its hook. That of reconcile is only for keys that are no pods,
        # and whose hook named no file.
        history_file: str
        # The --label of a job.
        job_labels: dict[str, str]
        # Its process has used CPU time before it joined, which no group of its key has counted.
        is_late: bool


OPT = "monitor.resctrl-mon.io"
"""The annotation by which a pod's author opts in or out."""


def new_pod(uid: str | None = None, of_pod: Names = (None, None, None)) -> Pod:
    """Make a pod of what a source says of it."""
    pod: Pod = formats.Values(problem=None, is_podmans=False)
    pod.uid = (names.normalize_uid(uid) or uid) if uid else None
    pod.namespace, pod.name, pod.container = map(shorten, of_pod)
    return pod


def new_container(
    name: str, pid: int, bundle: str, annotations: dict[str, str] | None, seen: Seen
) -> Container:
    """Make a container, of its state and of what was `seen` of its process in /proc.

    Raises ValidationError if an annotation is no text.
    """
    starttime, places, made_in = seen
    container: Container = formats.Values(
        id=name,
        pid=pid,
        bundle=bundle,
        all_annotations=annotations,
        annotations=Annotations.model_validate(annotations or {}),
        starttime=starttime,
        places=places,
        is_new=made_in is None,
        history_file="",
        job_labels={},
        is_late=False,
    )
    container.pod = identify_pod(
        name, container.annotations, places if made_in is None else made_in
    )
    if made_in is None and not places:
        container.pod.problem = HookError(Reason.IO, "unknown cgroup", pid=pid)
    return container


def is_member(container: Container, member: Member | None) -> bool:
    """Whether a member is this container's process: the same pid and start time."""
    return member is not None and (member.pid, member.starttime) == (
        container.pid,
        container.starttime,
    )


def find_problem(container: Container, key: Key) -> HookError | None:
    """Return why its annotations need a report although it can be
    monitored under this key, or None.
    """
    name, kind = key
    return container.pod.problem if name == container.pod.uid or kind == "sandbox" else None


def shorten(text: str | None) -> str | None:
    """Cut a name to the length that Kubernetes allows (RFC 1123)."""
    return text[:253] if text else None


def identify_pod(container: str, annotations: Annotations, places: list[str]) -> Pod:
    """Identify the pod of a container by its annotations and the paths of its
    cgroups (as in system.cgroups).

    Only a path with a runtime's mark counts. There a UID in the path is the pod's; the names come
    from the annotations of that runtime with the same UID. If no path has a UID, these annotations
    count, unless those of the other runtime name another pod. Without a mark there is no pod: a
    user of Podman can choose all annotations, the cgroup above the container's (`--cgroup-parent`),
    and that it gets none (`--cgroups=disabled`).
    """
    # Many hierarchies have the same path.
    paths = dict.fromkeys([place.partition(":")[2] for place in places])
    cgroups = [
        (cgroup, container)
        for path in paths
        if (cgroup := names.find_own(path, container)) is not None
    ]
    # Kata's: in their sandbox's.
    cgroups = cgroups or [marked for path in paths for marked in find_marked(path)[:1]]
    runtime = named = None
    for cgroup, name in cgroups:
        maker = names.find_maker(cgroup, name)
        runtime = runtime or maker
        named = named or (names.read_pod_uid(cgroup) if maker in ("cri-o", "containerd") else None)
    claims = _list_claims(runtime, annotations)
    uids = {claim.uid for claim in claims if claim.uid}
    if named is not None:
        pod = claims[0] if claims and claims[0].uid == named else new_pod(named)
        wrong = uids - {named}
    else:
        pod = claims[0] if claims else new_pod()
        wrong = (
            uids if len(uids) > 1 or (pod.uid and names.normalize_uid(pod.uid) is None) else set()
        )
        if wrong:
            pod.uid = None
    if wrong:
        uids_named = ", ".join([repr(text[:80]) for text in sorted(wrong)])
        kind = "unclear pod" if named is None else "wrong pod"
        pod.problem = HookError(Reason.BAD_KEY, kind, uid=named, found=uids_named)
    pod.is_podmans = runtime == "libpod" if cgroups else annotations.manager == "libpod"
    return pod


def _list_claims(runtime: str | None, annotations: Annotations) -> list[Pod]:
    """List the pods that the annotations name, if a runtime of Kubernetes made the container:
    first that of its own.
    """
    of = annotations
    in_crio = new_pod(of.pod_uid, (of.pod_namespace, of.pod_name, of.container_name))
    in_containerd = new_pod(
        of.cri_sandbox_uid, (of.cri_sandbox_namespace, of.cri_sandbox_name, of.cri_container_name)
    )
    if runtime == "cri-o":
        return [in_crio, in_containerd]
    if runtime == "containerd":
        return [in_containerd, in_crio] if annotations.manager == "cri-o" else [in_containerd]
    return []


def derive_key(mode: str, container: str, annotations: Annotations, pod: Pod) -> Key:
    """Derive the key of a container for `--key=auto|container|sandbox`.

    `sandbox` is for Podman's pods. A container of Kubernetes has its pod's key with it, too: a
    pod's author can make the hook run with Podman's options. If an image's author wrote an invalid
    sandbox ID, the container's ID is the key, and the pod gets a `problem`. HookError `bad_key`: an
    invalid pod UID, or annotations that contradict each other, so that no key would be charged
    rightly.
    """
    if mode == "container":
        return container, "container"
    if pod.uid is not None:
        return pod.uid, "pod"
    if pod.problem is not None:
        raise pod.problem
    if mode == "auto":
        return container, "container"
    try:
        return names.check_container_id(annotations.sandbox_id or container), "sandbox"
    except ValueError:
        pod.problem = HookError(
            Reason.BAD_KEY, "bad sandbox", sandbox_id=(annotations.sandbox_id or "")[:80]
        )
        return container, "sandbox"


def is_wanted(options: Options, annotations: dict[str, str] | None, pod: Pod) -> bool:
    """Whether the filters and, if the administrator allows it,
    the pod's author want this container monitored.

    If its annotations are unknown, because there are too many, no filter leaves it out:
    an author cannot evade by size.
    """
    if annotations is None:
        return True
    if options.namespace and pod.namespace not in options.namespace:
        return False
    if not options.annotation.items() <= annotations.items():
        return False
    if options.monitor == "all":
        return True
    # It goes before the pod's.
    choice = annotations.get(f"{OPT}/{pod.container}") if pod.container else None
    if choice not in ("true", "false"):
        choice = annotations.get(OPT)
    return choice == "true" if options.monitor == "opt-in" else choice != "false"


# --- What the path of a cgroup says; it is written `<controllers>:<path>`, as in /proc/PID/cgroup


def find_marked(cgroup: str) -> list[tuple[str, str]]:
    """List the cgroups in a path that have a runtime's mark, each with its container's ID,
    the outermost first.

    Which of them counts: the outermost is the one that a container cannot have made itself, so it
    names a pod and a key. The innermost is the one whose processes these are: see
    processes.is_in_container.
    """
    marked, end = [], cgroup.find("/")
    for name in cgroup[end + 1 :].split("/"):
        end += 1 + len(name)
        container = name.removesuffix(".scope")[-names.ID_LENGTH :]
        if names.is_engine_id(container) and names.find_maker(cgroup[:end], container) is not None:
            marked.append((cgroup[:end], container))
    return marked


def choose_cgroup(places: list[str], container: str) -> str | None:
    """Choose the cgroup to record of a container: its own,
    if its process's path names it, else its process's.

    Of several hierarchies cgroup v2's (no controllers) counts, unless the process is at its root:
    on hybrid hosts a container may have a cgroup in v1 hierarchies only, and the first of those
    counts. Source: cgroups(7).
    """
    below = [place for place in places if not place.endswith(":/")]
    unified = [place for place in below if place.startswith(":")]
    place = (unified or below or places or [""])[0]
    return names.find_own(place, container) or place or None


def find_pod_cgroup(cgroup: str | None, uid: str) -> str | None:
    """Return the cgroup of a pod: the nearest ancestor of the container's whose
    name has the UID, or None.

    systemd's slices have `_` for the UID's dashes; static pods have their UID without any.
    """
    digits = uid.replace("-", "")
    above = (cgroup or "").rpartition("/")[0]
    while "/" in above:
        parent, _, name = above.rpartition("/")
        name = name.replace("_", "-")
        if uid in name or digits in name:
            return above
        above = parent
    return None
