"""What people are told: --help, --version, what is wrong with a command line. No container start imports this."""

from __future__ import annotations

import gc
import os
import sys

from hook import __version__
from hook.base import system
from hook.base.models import Options
from hook.stages import failures

_STATE_LIMIT = 4 << 20
_PATIENCE = 10.0  # seconds: as on the hook path
HELP_OF_OPTIONS = {
    "resctrl_root": ("DIR", "the resctrl mount"),
    "run_dir": ("DIR", "where state and records are kept"),
    "group_prefix": ("TEXT", "what the names of our groups begin with"),
    "key": ("auto|container|sandbox", "what a group is for: the pod, else the container"),
    "containers": ("all|kubernetes|podman", "whose containers: all, all but Podman's, or Podman's"),
    "namespace": ("NS", "only pods of this namespace (repeatable)"),
    "annotation": ("K=V", "only containers with this annotation (repeatable: all of them)"),
    "monitor": ("all|opt-in|opt-out", "whether monitor.resctrl-mon.io annotations of pods count"),
    "linger": ("SECONDS", "how long a group outlives its last member"),
    "snapshot_ttl": ("SECONDS", "how long the counters of what is gone are kept"),
    "lock_timeout": ("SECONDS", "the longest wait for a key's lock"),
    "rmid_wait": ("SECONDS", "the longest wait for an RMID in limbo"),
    "strict": ("", "createRuntime exits 1 for a container that is not in its group"),
}
HELP_OF_VERBS = {
    "list": ("", "what is monitored, what is not or was never hooked, RMIDs"),
    "show": ("KEY", "a key, or that of a container: its life and counters"),
    "top": ("[--interval=SECONDS] [--count=N]", "who uses how much now"),
    "metrics": ("[--textfile=PATH]", "all of it for Prometheus"),
    "doctor": (
        "[--prefix=DIR] [--hooks-dir=DIR]...\n[--inject=FILE | --self-test]",
        "what is wrong here, and the remedy",
    ),
    "reconcile": (
        "[--dry-run] [--adopt] [--runtime-root=DIR]...\n[--live=FILE] [OPTION...]",
        "puts right what hooks cannot (host's pid namespace)",
    ),
    "install": (
        "[--for=kubernetes|podman|both] [--prefix=DIR] [--hooks-dir=DIR] [--destdir=DIR]\n"
        "[--python=PATH] [--adopt] [--force] [--dry-run]\n[OPTION...]",
        "puts this file, hooks.d and a timer in place",
    ),
    "uninstall": (
        "[--prefix=DIR] [--hooks-dir=DIR] [--destdir=DIR] [--runtime-root=DIR]...\n[--force] [--dry-run]",
        "removes what nobody calls any more; hooks.d at once",
    ),
    "bytecode": ("", "makes this file's bytecode for the Python of this node"),
    "base-runtime-spec": ("[--prefix=DIR] [OPTION...]", "puts the hook into what `ctr oci spec` prints"),
}
EXAMPLES = {
    "list": ("list --json | jq '.unmonitored'", "why containers are not monitored"),
    "show": ("show 87a3fb58", "the key that begins so, with each counter's begin and use"),
    "top": ("top --interval=10 --count=6", "a minute of who uses how much"),
    "metrics": ("metrics --textfile=/var/lib/prometheus/node-exporter/resctrl.prom", "for node_exporter"),
    "doctor": ("doctor --inject=config.json", "would the container of this bundle get the hook, and why not?"),
    "reconcile": ("reconcile --linger=600 --adopt --dry-run", "what it would do, containers without the hook included"),
    "install": ("install --for=podman --key=sandbox --dry-run", "what it would put where, for Podman's pods"),
    "uninstall": ("uninstall --dry-run", "what would go, and who still calls it"),
    "bytecode": ("bytecode", "once the node has another Python; nothing is done if the file has what that needs"),
    "base-runtime-spec": (
        "base-runtime-spec --linger=600 <spec.json >/etc/containerd/base-runtime-spec.json",
        "with what `ctr oci spec >spec.json` has printed, for containerd's base_runtime_spec",
    ),
}
_HEAD = """\
usage: resctrl-mon-hook hook|createRuntime|poststop [OPTION...] < OCI-STATE
       resctrl-mon-hook list|show KEY|top|metrics|doctor|reconcile [OPTION...]
       resctrl-mon-hook install|uninstall|bytecode|base-runtime-spec [OPTION...]

Puts a container's first process into a resctrl mon_group of its pod (createRuntime), and removes
the group when the pod's last container is gone (poststop). `hook` is what hooks.d calls: it takes
the stage from the state's status. Exits 0, whatever happens, unless --strict says otherwise;
failures are in syslog and in RUN-DIR/unmonitored. Needs Python 3.9 or newer.

for people; only reconcile, install, uninstall and bytecode change anything (exit status 0, or 2 on
error; doctor: 1 if it found a failure):
"""
_MIDDLE = """
  each of them with --json, --resctrl-root, --run-dir and --group-prefix
  reconcile takes the options of the hook, too, and so do install and base-runtime-spec, which write
  them down

options, as --x=v or --x v:
"""
_TAIL = """
  --help                              this text; behind a verb, that one with an example
  --version                           the version
"""


def text() -> str:
    """The whole of --help, with the defaults that the model has."""
    lines = []
    for name, default in Options().model_dump().items():
        metavar, meaning = HELP_OF_OPTIONS[name]
        option = "--" + name.replace("_", "-") + ("=" + metavar if metavar else "")
        shown = "" if default is False or default in ([], {}) else f" [{default}]"
        lines.append(f"  {option:<34}  {meaning}{shown}")
    verbs = [_line(f"{verb} {arguments}", meaning) for verb, (arguments, meaning) in HELP_OF_VERBS.items()]
    return _HEAD + "\n".join(verbs) + _MIDDLE + "\n".join(lines) + _TAIL


def _line(call: str, meaning: str) -> str:
    """A verb with its arguments, which may take several lines, and its meaning behind the last of them."""
    *first, last = f"  {call}".replace("\n", "\n      ").split("\n")
    return "\n".join([*first, f"{last:<38}  {meaning}"])


def text_of(verb: str) -> str:
    """The --help of one verb for people."""
    arguments, meaning = HELP_OF_VERBS[verb]
    call, purpose = EXAMPLES[verb]
    between = "\n" if "\n" in arguments else " "
    lines = [f"usage: resctrl-mon-hook {verb}{between}{arguments}".replace("\n", "\n      ").rstrip(), "", meaning, ""]
    lines += ["for example:", f"  resctrl-mon-hook {call}", f"      {purpose}", ""]
    return "\n".join(
        [*lines, "resctrl-mon-hook --help tells of the options that all verbs take, and of the hook's", ""]
    )


def main(arguments: list[str]) -> int:
    """Answer a person. An unknown verb with a container's state on stdin is a misspelt hook: the container starts."""
    if "--help" in arguments:
        sys.stdout.write(text_of(arguments[0]) if arguments[0] in HELP_OF_VERBS else text())
        sys.stdout.flush()
        return 0
    if arguments == ["--version"]:
        sys.stdout.write(f"resctrl-mon-hook {__version__}\n")
        sys.stdout.flush()
        return 0
    if arguments and arguments[0] in HELP_OF_VERBS:
        from hook.cli import commands  # noqa: PLC0415  not for a hook that is misspelt

        gc.enable()  # which the loader does without: top and metrics may stay for long
        return commands.main(arguments)
    problem = f"unknown verb {arguments[0][:80]!r}" if arguments else "no verb"
    is_hook = _called_by_a_runtime()
    failures.say(f"usage: {problem}; see resctrl-mon-hook --help", to_syslog=is_hook)
    return 0 if is_hook else 2


def _called_by_a_runtime() -> bool:
    """Whether stdin has what looks like the state of a container, readable as JSON or not."""
    if os.isatty(0):
        return False
    try:
        text, _whole = system.read_stdin(_STATE_LIMIT, _PATIENCE)
    except OSError:
        return False
    return text.lstrip().startswith(b"{") and b'"ociVersion"' in text
