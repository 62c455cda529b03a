# SPDX-License-Identifier: Apache-2.0
"""The text of --help."""

from __future__ import annotations

from hook.base.models import Options

HELP_OF_OPTIONS = {
    "resctrl_root": ("DIR", "the resctrl mount"),
    "run_dir": ("DIR", "directory for state and records"),
    "group_prefix": ("TEXT", "prefix of the names of our groups"),
    "key": ("auto|container|sandbox", "one group for each pod, or for each container"),
    "containers": ("all|kubernetes|podman", "all containers, all but Podman's, or only Podman's"),
    "namespace": ("NS", "only pods of this namespace (repeatable)"),
    "annotation": ("K=V", "only containers with all these annotations (repeatable)"),
    "monitor": ("all|opt-in|opt-out", "use of the pod annotation monitor.resctrl-mon.io"),
    "linger": ("SECONDS", "how long a group outlives its last member"),
    "snapshot_ttl": ("SECONDS", "how long to keep the counters of a removed group"),
    "lock_timeout": ("SECONDS", "maximum wait for the lock of a key"),
    "rmid_wait": ("SECONDS", "maximum wait for an RMID in limbo"),
    "strict": ("", "createRuntime exits 1 if it cannot monitor the container"),
}
HELP_OF_COMMANDS = {
    "list": (
        "[unmonitored] [--namespace=NS]... [--state=STATE]...\n[--sort=BY] [--limit=N] [--output=FORM]",
        "show keys, containers that are not monitored, RMIDs",
    ),
    "show": ("KEY [--output=FORM]", "show one key: its use, containers, life"),
    "top": (
        "[--interval=SECONDS] [--count=N] [--namespace=NS]...\n[--sort=BY] [--output=FORM]",
        "show current usage, like top(1)",
    ),
    "metrics": (
        "[--textfile=PATH | --listen=[ADDRESS:]PORT]\n[--events=EVENT,...] [--sum-domains]",
        "print, write or serve Prometheus metrics",
    ),
    "doctor": (
        "[--prefix=DIR] [--hooks-dir=DIR]...\n[--self-test]",
        "check this node and suggest fixes",
    ),
    "reconcile": (
        "[--dry-run] [--adopt] [--runtime-root=DIR]...\n[--live=FILE] [OPTION...]",
        "repair what hooks cannot (in the host's pid namespace)",
    ),
    "watch": ("[--adopt] [OPTION...]", "move in at once what exec adds to containers"),
    "install": (
        "[--for=kubernetes|podman|both] [--prefix=DIR] [--hooks-dir=DIR] [--destdir=DIR]\n"
        "[--python=PATH] [--adopt] [--watch] [--force] [--dry-run]\n[OPTION...]",
        "install this file, hooks.d files and a timer",
    ),
    "uninstall": (
        "[--prefix=DIR] [--hooks-dir=DIR] [--destdir=DIR] [--runtime-root=DIR]...\n[--force] [--dry-run]",
        "remove hooks.d files, and the rest when unused",
    ),
    "bytecode": ("", "compile this file for the Python of this node"),
    "base-runtime-spec": ("[--prefix=DIR] [OPTION...]", "add the hook to the output of `ctr oci spec`"),
    "completion": ("SHELL", "print a completion script for bash, zsh or fish"),
}
_COMMON = ("resctrl_root", "run_dir", "group_prefix", "json")
_DIR = "DIR"
HELP_OF_ARGUMENTS = {
    "unmonitored": ("", "only the containers that are not monitored: each of them, and why"),
    "KEY": ("", "a key, `namespace/pod`, a pod, a container's ID or name, or how one of them begins"),
    "SHELL": ("", "bash, zsh or fish"),
    "--json": ("", "print JSON, one object on a line"),
    "--output": ("FORM", "wide: all columns and counters, nothing cut; json: as --json. Short: -o"),
    "--namespace": ("NS", "only pods of this namespace (repeatable)"),
    "--state": ("STATE", "only keys in this state: live, missing, recovering, lingering, completed (repeatable)"),
    "--sort": ("BY", "what comes first: most energy or memory, youngest age (top: most cache), or by name"),
    "--limit": ("N", "no more keys than this many"),
    "--interval": ("SECONDS", "time between two tables"),
    "--count": ("N", "end after this many tables (default: on a terminal none, else 1)"),
    "--textfile": ("PATH", "replace this file, for the textfile collector of node_exporter"),
    "--listen": ("[ADDRESS:]PORT", "answer GET /metrics there until it is stopped (default address: 127.0.0.1)"),
    "--events": ("EVENT,...", "only these events of the kernel's (default: all that it has)"),
    "--sum-domains": ("", "one series for all domains of an event, instead of one for each"),
    "--prefix": (_DIR, "where the program is, or is to be: below libexec and bin there (default: /usr)"),
    "--hooks-dir": (_DIR, "the directory for hooks.d files (default: by --prefix; doctor: all that are read here)"),
    "--destdir": (_DIR, "put all files below this directory, for example to make an image (default: /)"),
    "--self-test": ("", "start a process, and put it into a group and out again"),
    "--dry-run": ("", "print what would be done, and change nothing"),
    "--adopt": ("", "also monitor containers that run without ever having been hooked"),
    "--runtime-root": (_DIR, "look for containers in this state directory of an OCI runtime, too (repeatable)"),
    "--live": ("FILE", "the keys that live, one on each line (-: of stdin), instead of a look at their members"),
    "--for": ("RUNTIMES", "kubernetes, podman or both (default: those that are found here)"),
    "--python": ("PATH", "the interpreter that runs the program (default: the one in its first line)"),
    "--watch": ("", "also install and start the watch service"),
    "--force": ("", "also where files belong to a package or to the chart, or containers still call the program"),
}
"""The value and the meaning of each argument of a command, by its name."""
EXAMPLES = {
    "list": ("list --namespace=shop --sort=memory --limit=20", "show the 20 pods of shop with the most memory traffic"),
    "show": ("show shop/web-7c9f", "show the pod of shop whose name begins so"),
    "top": ("top --interval=10 --count=6", "print the usage for a minute"),
    "metrics": ("metrics --textfile=/var/lib/prometheus/node-exporter/resctrl.prom", "write a file for node_exporter"),
    "doctor": ("doctor --self-test", "try the hardware with a group of its own"),
    "reconcile": (
        "reconcile --linger=600 --adopt --dry-run",
        "print what it would do, also for containers without the hook",
    ),
    "watch": ("watch --linger=600", "listen to execs until it is stopped, with the options of reconcile"),
    "install": ("install --for=podman --key=sandbox --dry-run", "print what it would install for Podman's pods"),
    "uninstall": ("uninstall --dry-run", "print what it would remove, and who still calls the program"),
    "bytecode": ("bytecode", "let hooks start fast again after an upgrade of the distribution"),
    "base-runtime-spec": (
        "base-runtime-spec --linger=600 <spec.json >/etc/containerd/base-runtime-spec.json",
        "make containerd's base_runtime_spec from the output of `ctr oci spec >spec.json`",
    ),
    "completion": (
        "completion bash",
        "let bash complete command lines",
    ),
}
_HEAD = """\
usage: resctrl-mon-hook hook|createRuntime|poststop [OPTION...] < OCI-STATE
       resctrl-mon-hook list|show KEY|top|metrics|doctor|reconcile|watch [OPTION...]
       resctrl-mon-hook install|uninstall|bytecode|base-runtime-spec|completion [OPTION...]

Puts a container's first process into the resctrl mon_group of its pod (createRuntime), and removes
the group after the pod's last container (poststop). hooks.d calls `hook`, which takes the stage
from the status in the container's state. Always exits 0, except with --strict. Failures are in
syslog and in RUN-DIR/unmonitored. Needs Python 3.9 or newer.

Commands (exit status 0, or 2 on error; doctor: 1 if it finds a failure; reconcile: 1 if it leaves
an action undone):
"""
_MIDDLE = """
  each of them with --resctrl-root, --run-dir and --group-prefix; all but watch with --json
  Only reconcile, watch, install, uninstall and bytecode change anything. reconcile, watch,
  install and base-runtime-spec take the options of the hook, too.

Options, as --x=v or --x v:
"""
_TAIL = """
  -h, --help                          show this help; `help COMMAND`: all about that command
  --version                           show the version
"""


def format_help() -> str:
    """The text of --help, with the defaults of the model."""
    lines = []
    for name, default in Options().model_dump().items():
        metavar, meaning = HELP_OF_OPTIONS[name]
        option = "--" + name.replace("_", "-") + ("=" + metavar if metavar else "")
        shown = "" if default is False or default in ([], {}) else f" [{default}]"
        lines.append(f"  {option:<34}  {meaning}{shown}")
    verbs = [_format_command(f"{verb} {arguments}", meaning) for verb, (arguments, meaning) in HELP_OF_COMMANDS.items()]
    return _HEAD + "\n".join(verbs) + _MIDDLE + "\n".join(lines) + _TAIL


def _format_command(call: str, meaning: str) -> str:
    """A command with its arguments, which may take several lines, and its meaning after the last one."""
    *first, last = f"  {call}".replace("\n", "\n      ").split("\n")
    return "\n".join([*first, f"{last:<38}  {meaning}"])


def format_command_help(verb: str) -> str:
    """The text of --help after a command: every argument with its meaning and default, and an example."""
    arguments, meaning = HELP_OF_COMMANDS[verb]
    call, purpose = EXAMPLES[verb]
    between = "\n" if "\n" in arguments else " "
    lines = [f"usage: resctrl-mon-hook {verb}{between}{arguments}".replace("\n", "\n      ").rstrip(), "", meaning, ""]
    lines += _format_arguments(verb)
    lines += ["", "Example:", f"  resctrl-mon-hook {call}", f"      {purpose}", ""]
    if "[OPTION...]" in arguments:
        lines.append("OPTION is an option of the hook: resctrl-mon-hook --help shows them.")
    return "\n".join(lines).rstrip() + "\n"


def _format_arguments(verb: str) -> list[str]:
    """Two lines for each argument of a command."""
    from hook.cli.parser import make_parser  # noqa: PLC0415  `parse` needs this module for nothing

    lines = []
    own_first = sorted(make_parser(verb)._actions, key=lambda action: action.dest in _COMMON)
    for action in own_first:
        name = max(action.option_strings, key=len) if action.option_strings else str(action.metavar)
        option = name[2:].replace("-", "_")
        value, meaning = HELP_OF_ARGUMENTS.get(name) or HELP_OF_OPTIONS[option]
        default = f" [{action.default}]" if action.default not in (None, False, []) else ""
        lines += [f"  {name}{'=' + value if value else ''}", f"      {meaning}{default}"]
    return ["Arguments:", *lines] if lines else []
