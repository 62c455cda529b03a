# SPDX-License-Identifier: Apache-2.0
"""The arguments of the commands, as rows for argparse: parsing,
--help and the completions of shells follow from them.

The type of an argument is the function that reads its text. Those of the hook are
read by `entry.parse`, and have their types and defaults from the model `Options`:
here they are only described.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from hook import names
from hook.entry import convert
from hook.models import Options
from hook.node import paths

Row = tuple[tuple[str, ...], dict[str, Any]]
"""The arguments of argparse's add_argument."""
_MOST = 999_999_999
_LONGEST_VALUE = 128  # characters


class Take(argparse.Action):
    """Reads the text of an option by the function `const`.

    What is wrong with it is added to the parser's problems.

    With a list or dict as its default the option may be repeated.
    """

    def __call__(
        self,
        parser: Any,  # noqa: ANN401
        namespace: object,
        text: Any,  # noqa: ANN401
        _option: str | None = None,
    ) -> None:
        former = getattr(namespace, self.dest)
        if text == []:  # argparse takes `--` away from --option=-- before Python 3.13
            text = "--"
        try:
            value: Any = self.const(text)
            if isinstance(self.default, dict):
                if {**value, **former} != {**former, **value}:
                    raise ValueError(f"{text[:80]!r}: one name has two values")
                value = {**former, **value}
        except ValueError as error:
            parser.problems.append(f"{self.option_strings[0]}: {error}")
        else:
            setattr(
                namespace, self.dest, [*former, value] if isinstance(self.default, list) else value
            )


# --- What reads a text. Raises ValueError


def _check(check: Callable[[str], str], text: str) -> str:
    try:
        return check(text)
    except ValueError as error:
        raise ValueError(f"{text[:80]!r}: {error}") from None


def _read_number(kind: float, least: float, most: float, text: str) -> object:
    number: Any = convert(kind, None, text)
    if not least <= number <= most:
        raise ValueError(f"{text[:80]!r} is not from {least} to {most}")
    return number


def check_label_value(text: str) -> str:
    """Check the value of a job's label."""
    if not 0 < len(text) <= _LONGEST_VALUE or not text.isprintable():
        raise ValueError(f"not a label's value: 1 to {_LONGEST_VALUE} printable characters")
    return text


def _read_label(text: str) -> dict[str, str]:
    convert({}, None, text)
    name, _, value = text.partition("=")
    try:
        return {names.check_label(name): check_label_value(value)}
    except ValueError as error:
        raise ValueError(f"{text[:80]!r}: {error}") from None


_COUNT = partial(_read_number, 0, 1, _MOST)
_DIRECTORY = partial(_check, names.check_directory)


# --- Rows


def _option(
    word: str,
    value: str,
    meaning: str,
    default: Any = None,  # noqa: ANN401
    read: Any = str,  # noqa: ANN401
    **more: Any,  # noqa: ANN401
) -> Row:
    """Make an option; `value` is the placeholder of its value in the help,
    the words that it may be, or both.
    """
    if "|" in value:
        placeholder, _, words = value.rpartition(":")
        value, more["choices"] = placeholder or words, words.split("|")
    more = {"default": default, "metavar": value, **more}
    return (word, "-o")[: 1 + (word == "--output")], {
        "action": Take,
        "const": read,
        "help": meaning + _show_default(default),
        **more,
    }


def _show_default(default: object) -> str:
    """Return the default as the help has it."""
    return "" if default in (None, "", [], {}) else f" [{default}]"


def _flag(word: str, meaning: str) -> Row:
    return (word,), {"action": "store_true", "help": meaning}


def _word(name: str, value: str, meaning: str, **more: Any) -> Row:  # noqa: ANN401  as of argparse
    return (name,), {"metavar": value, "help": meaning, **more}


_ADOPT = _flag("--adopt", "also monitor containers that run without ever having been hooked")
_DESTDIR = _option(
    "--destdir",
    "DIR",
    "put all files below this directory, for example to make an image (default: /)",
    read=_DIRECTORY,
)
_DRY_RUN = _flag("--dry-run", "print what would be done, and change nothing")
_FORCE = _flag(
    "--force", "also where files belong to a package, to the chart or to a MachineConfig"
)
_HOOKS_DIR = _option(
    "--hooks-dir", "DIR", "the directory for hooks.d files (default: by --prefix)", read=_DIRECTORY
)
_JOB = _option("--key", "NAME", "the job's name")
_LABEL = _option(
    "--label",
    "NAME=VALUE",
    "a label of the job, for the bill: eight at most (repeatable)",
    {},
    _read_label,
)
_NAMESPACE = _option("--namespace", "NS", "only pods of this namespace (repeatable)", [])
_OUTPUT = _option(
    "--output",
    "FORM:wide|json",
    "wide: all columns and counters, nothing cut; json: as --json. Short: -o",
)
_PREFIX = _option(
    "--prefix",
    "DIR",
    "where the program is, or is to be: below libexec and bin there (default: /usr)",
    read=_DIRECTORY,
)


class Arguments(NamedTuple):
    """A command's purpose and example, for the help,
    and the arguments that it does not share with others.
    """

    purpose: str
    example: str
    rows: tuple[Row, ...] = ()


ARGUMENTS = {
    "list": Arguments(
        "show keys, containers that are not monitored, RMIDs",
        "list --namespace=shop --sort=traffic --limit=20: show the 20 pods of shop with the most "
        "memory traffic",
        (
            _word(
                "what",
                "unmonitored",
                "only containers that are not monitored, and why",
                nargs="?",
                choices=("unmonitored",),
            ),
            _NAMESPACE,
            _option(
                "--state",
                "STATE:live|taken|missing|recovering|lingering|completed",
                "only keys in this state: live, taken, missing, recovering, lingering, completed "
                "(repeatable)",
                [],
            ),
            _option(
                "--sort",
                "BY:energy|traffic|age|name",
                "most energy or traffic, age, or name",
                "energy",
            ),
            _option("--limit", "N", "no more keys than this many", read=_COUNT),
            _OUTPUT,
        ),
    ),
    "show": Arguments(
        "show one key: its use, containers, life",
        "show shop/web-7c9f: show the pod of shop whose name begins so",
        (
            _word(
                "key",
                "KEY",
                "a key, `namespace/pod`, pod, container's ID or name, or how one begins",
            ),
            _option("--output", "FORM", "json: as --json. Short: -o", choices=("json",)),
        ),
    ),
    "top": Arguments(
        "show current usage, a table each interval",
        "top --interval=10 --count=6: print the usage for a minute",
        (
            _option(
                "--interval",
                "SECONDS",
                "time between two tables",
                2.0,
                partial(_read_number, 0.0, 0.001, 86400),
            ),
            _option(
                "--count",
                "N",
                "end after this many tables (default: on a terminal none, else 1)",
                read=_COUNT,
            ),
            _NAMESPACE,
            _option(
                "--sort",
                "BY:energy|traffic|cache|name",
                "most energy, traffic, cache, or name",
                "energy",
            ),
            _OUTPUT,
        ),
    ),
    "history": Arguments(
        "show what containers used that have ended",
        "history --since=yesterday --sort=energy --limit=5: show the 5 jobs since yesterday that "
        "used the most energy",
        (
            _word(
                "name", "NAME", "only this key, `namespace/pod`, pod, container or ID", nargs="*"
            ),
            _option(
                "--since",
                "TIME",
                "only what ended since: 90s, 15m, 12h, 7d or 2w ago, today, yesterday, `last "
                "night` (18:00 to 8:00), "
                "a date (2026-11-24) or a time (2026-11-24T18:30), in local time or with a zone",
            ),
            _option(
                "--until", "TIME", "only what ended before, or by the end of that day or night"
            ),
            _option(
                "--label",
                "NAME=VALUE",
                "only jobs with all these labels (repeatable)",
                {},
                _read_label,
            ),
            _option(
                "--by",
                "NAME",
                "sums by name, pod, namespace, node, day of the end, or by a label of this name",
                read=partial(_check, names.check_label),
            ),
            _option(
                "--sort",
                "BY:energy|traffic|start",
                "most energy or traffic, or latest start (default: as they ended; sums by name)",
            ),
            _option(
                "--limit",
                "N",
                "no more rows than this many; without --sort the last ones",
                read=_COUNT,
            ),
            _option(
                "--history",
                "FILE",
                "the file that hooks write, with its rotated ones, or a directory, or a pattern "
                "of these "
                f"(repeatable; default: {paths.HISTORY})",
                [],
            ),
            _flag("--csv", "print CSV, for a spreadsheet"),
            _flag(
                "--follow",
                "print each job as it ends, until stopped; with --since also those that ended "
                "since",
            ),
        ),
    ),
    "metrics": Arguments(
        "print, write or serve Prometheus metrics",
        "metrics --textfile=/var/lib/prometheus/node-exporter/resctrl.prom: write a file for "
        "node_exporter",
        (
            _option(
                "--textfile",
                "PATH",
                "replace this file, for the textfile collector of node_exporter",
            ),
            _option(
                "--listen",
                "[ADDRESS:]PORT",
                "answer GET /metrics there until stopped (default: 127.0.0.1)",
            ),
            _flag(
                "--created", "with --listen, in OpenMetrics: also when each counter of a key was 0"
            ),
        ),
    ),
    "doctor": Arguments(
        "check this node and suggest fixes",
        "doctor --report: print what this machine shows, for an issue",
        (
            _PREFIX,
            _option(
                "--hooks-dir",
                "DIR",
                "check these hooks.d files (repeatable; default: all that are read)",
                [],
                _DIRECTORY,
            ),
            _flag(
                "--report",
                "print what the kernel shows of this machine, without names of containers",
            ),
        ),
    ),
    "reconcile": Arguments(
        "repair what hooks cannot (in the host's namespaces)",
        "reconcile --linger=600 --adopt --dry-run: print what it would do, also for containers "
        "without the hook",
        (
            _DRY_RUN,
            _ADOPT,
            _option(
                "--runtime-root",
                "DIR",
                "look for containers in this state directory of an OCI runtime, too (repeatable)",
                [],
                _DIRECTORY,
            ),
            _option(
                "--sum-label",
                "NAME",
                "also add the history up by this label of jobs (repeatable, once)",
                [],
                partial(_check, names.check_label),
            ),
            _option(
                "--checkpoint",
                "SECONDS",
                "save so often what runs, in case of a power cut; 0: never",
                300,
                partial(_read_number, 0, 0, 86400),
            ),
            _option(
                "--live",
                "FILE",
                "read the live keys from FILE, a line each (- is stdin), not from processes",
            ),
        ),
    ),
    "watch": Arguments(
        "move in at once what exec adds to containers",
        "watch --linger=600: listen to execs until it is stopped",
    ),
    "view": Arguments(
        "keep what each key used in files like resctrl's",
        "view --once: make these files, and end",
        (_flag("--once", "make them once: nothing keeps them up to date then"),),
    ),
    "run": Arguments(
        "run a command in a group of its own (jobs)",
        "run --key=nightly -- make -j8 all: let make and all that it starts be the job nightly",
        (
            _option("--key", "NAME", "the job's name (default: job-PID-STARTTIME of the command)"),
            _LABEL,
            _flag(
                "--wait", "stay as its parent, pass signals on, and release the job when it ends"
            ),
            _flag("--strict", "do not run the command if it cannot join the job"),
            _word(
                "command",
                "COMMAND",
                "the command and its arguments: all that is after --",
                nargs="*",
            ),
        ),
    ),
    "assign": Arguments(
        "put processes that run into a job's group",
        "assign --key=nightly 4711: put process 4711, with its threads and children, into the job "
        "nightly",
        (
            _JOB,
            _LABEL,
            _flag("--force", "also if the process is that of the service which makes this call"),
            _word("pid", "PID", "a process, which is in no other group yet", nargs="*"),
        ),
    ),
    "release": Arguments(
        "end a job: its group goes, processes stay",
        "release --key=nightly: end the job nightly, and keep what it used",
        (
            _JOB,
            _word("pid", "PID", "take only this process out; the last one ends the job", nargs="*"),
        ),
    ),
    "install": Arguments(
        "install this file, hooks.d files and a timer",
        "install --for=podman --key=sandbox --dry-run: print what it would install for Podman's "
        "pods",
        (
            _option(
                "--for",
                "|".join(paths.FOR),
                "for which runtimes, for jobs alone, or as it is (default: the runtimes found "
                "here)",
                dest="targets",
            ),
            _PREFIX,
            _HOOKS_DIR,
            _DESTDIR,
            _ADOPT,
            _flag("--watch", "also start the watch service"),
            _flag("--view", "also start the view service"),
            _FORCE,
            _DRY_RUN,
        ),
    ),
    "uninstall": Arguments(
        "remove hooks.d files, end all keys, and remove the rest",
        "uninstall --dry-run: print what it would remove",
        (_PREFIX, _HOOKS_DIR, _DESTDIR, _FORCE, _DRY_RUN),
    ),
    "base-runtime-spec": Arguments(
        "add the hook to the output of `ctr oci spec`",
        "base-runtime-spec --linger=600 <spec.json >/etc/containerd/spec.json: "
        "make the base_runtime_spec of containerd",
        (_PREFIX,),
    ),
    "completion": Arguments(
        "print a completion script for bash, zsh or fish",
        "completion bash: let bash complete command lines",
        (_word("shell", "SHELL", "bash, zsh or fish", choices=("bash", "zsh", "fish")),),
    ),
}
_OF_HOOK = {
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
    "history": ("FILE", "append a line to this file when a key ends: its use"),
    "node": ("NAME", "the name of this node in that line (default: the host's)"),
    "strict": ("", "createRuntime exits 1 if it cannot monitor the container"),
}


def make_row(name: str, defaults: Mapping[str, Any] = {}) -> Row:
    """Make the row of --json, or of an option of the hook,
    whose value is a list of the words that were written.
    """
    word = "--" + name.replace("_", "-")
    if name not in _OF_HOOK:
        return _flag(word, "print JSON, one object on a line")
    value, meaning = _OF_HOOK[name]
    if not value:
        return (word,), {
            "action": "append_const",
            "const": word,
            "default": [],
            "dest": name,
            "help": meaning,
        }
    meaning += _show_default({**dict(Options()), **defaults}[name])
    return _option(word, value, meaning, [], f"{word}={{}}".format)
