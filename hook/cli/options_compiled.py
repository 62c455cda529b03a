# SPDX-License-Identifier: Apache-2.0
"""The models of hook/cli/options.py in plain Python, for where pydantic cannot be: this takes their place in the .pyz.

Made by `python3 build.py compile` from the core schemas that pydantic itself executes: change those, not this. The
tests prove both equal in what they accept, in the values, and in the place of the first error.
"""

# ruff: noqa: E501, I001
# fmt: off
from __future__ import annotations

from hook.base import names
from hook.base.validation import ABSENT, FLAG, Form, NONE, TEXT, TEXT_OR_NONE, check_float, check_int, check_list, check_literal, check_named, check_nullable

__all__ = ["ARGUMENTS"]

List = Form("List", (
    ("what", "WHAT", None, (check_nullable, NONE, (check_literal, (), "unmonitored"))),
    ("namespace", "namespace", [], (check_list, (), TEXT)),
    ("state", "state", [], (check_list, (), (check_literal, (), "live", "missing", "recovering", "lingering", "completed"))),
    ("sort", "sort", "energy", (check_literal, (), "energy", "traffic", "memory", "age", "name")),
    ("by", "by", None, (check_nullable, NONE, (check_literal, (), "namespace"))),
    ("limit", "limit", None, (check_nullable, NONE, (check_int, (), 1, 999999999))),
    ("output", "output", None, (check_nullable, NONE, (check_literal, (), "wide", "json"))),
))
Show = Form("Show", (
    ("key", "KEY", ABSENT, TEXT),
    ("output", "output", None, (check_nullable, NONE, (check_literal, (), "wide", "json"))),
))
Top = Form("Top", (
    ("interval", "interval", 2.0, (check_float, (), 0.001, 86400)),
    ("count", "count", None, (check_nullable, NONE, (check_int, (), 1, 999999999))),
    ("namespace", "namespace", [], (check_list, (), TEXT)),
    ("sort", "sort", "energy", (check_literal, (), "energy", "traffic", "memory", "cache", "name")),
    ("output", "output", None, (check_nullable, NONE, (check_literal, (), "wide", "json"))),
))
History = Form("History", (
    ("name", "NAME", [], (check_list, (), TEXT)),
    ("since", "since", None, TEXT_OR_NONE),
    ("by", "by", None, (check_nullable, NONE, (check_literal, (), "name", "pod", "namespace", "day"))),
    ("history", "history", "/var/log/resctrl-mon-hook/history.jsonl", TEXT),
    ("csv", "csv", False, FLAG),
))
Metrics = Form("Metrics", (
    ("textfile", "textfile", None, TEXT_OR_NONE),
    ("listen", "listen", None, TEXT_OR_NONE),
    ("events", "events", None, TEXT_OR_NONE),
    ("sum_domains", "sum_domains", False, FLAG),
    ("created", "created", False, FLAG),
))
Doctor = Form("Doctor", (
    ("prefix", "prefix", None, (check_nullable, NONE, (check_named, (), names.directory))),
    ("hooks_dir", "hooks_dir", [], (check_list, (), (check_named, (), names.directory))),
    ("self_test", "self_test", False, FLAG),
    ("output", "output", None, (check_nullable, NONE, (check_literal, (), "wide", "json"))),
))
Reconcile = Form("Reconcile", (
    ("dry_run", "dry_run", False, FLAG),
    ("adopt", "adopt", False, FLAG),
    ("runtime_root", "runtime_root", [], (check_list, (), (check_named, (), names.directory))),
    ("live", "live", None, TEXT_OR_NONE),
))
RunWatch = Form("RunWatch", (("adopt", "adopt", False, FLAG),))
Install = Form("Install", (
    ("targets", "for", None, (check_nullable, NONE, (check_literal, (), "kubernetes", "podman", "both"))),
    ("prefix", "prefix", None, (check_nullable, NONE, (check_named, (), names.directory))),
    ("hooks_dir", "hooks_dir", None, (check_nullable, NONE, (check_named, (), names.directory))),
    ("destdir", "destdir", None, (check_nullable, NONE, (check_named, (), names.directory))),
    ("python", "python", None, TEXT_OR_NONE),
    ("adopt", "adopt", False, FLAG),
    ("watch", "watch", False, FLAG),
    ("force", "force", False, FLAG),
    ("dry_run", "dry_run", False, FLAG),
))
Uninstall = Form("Uninstall", (
    ("prefix", "prefix", None, (check_nullable, NONE, (check_named, (), names.directory))),
    ("hooks_dir", "hooks_dir", None, (check_nullable, NONE, (check_named, (), names.directory))),
    ("destdir", "destdir", None, (check_nullable, NONE, (check_named, (), names.directory))),
    ("runtime_root", "runtime_root", [], (check_list, (), (check_named, (), names.directory))),
    ("force", "force", False, FLAG),
    ("dry_run", "dry_run", False, FLAG),
))
MakeBytecode = Form("MakeBytecode", ())
BaseRuntimeSpec = Form("BaseRuntimeSpec", (
    ("prefix", "prefix", None, (check_nullable, NONE, (check_named, (), names.directory))),
))
Completion = Form("Completion", (("shell", "SHELL", ABSENT, (check_literal, (), "bash", "zsh", "fish")),))
ARGUMENTS: dict[str, tuple[str, str, tuple[tuple[object, ...], ...]]] = {
    "Options": ("the options of the hook; `--resctrl-root` is `resctrl_root`, and so on. Times are in seconds", "`title` is the placeholder of a value in the help, unless the value is one of a few words.", (("resctrl_root", "", "/sys/fs/resctrl", "DIR", (), "the resctrl mount"), ("run_dir", "", "/run/resctrl-mon-hook", "DIR", (), "directory for state and records"), ("group_prefix", "", "oci-", "TEXT", (), "prefix of the names of our groups"), ("key", "", "auto", "auto|container|sandbox", ("auto", "container", "sandbox"), "one group for each pod, or for each container"), ("containers", "", "all", "all|kubernetes|podman", ("all", "kubernetes", "podman"), "all containers, all but Podman's, or only Podman's"), ("namespace", [], [], "NS", (), "only pods of this namespace (repeatable)"), ("annotation", {}, {}, "K=V", (), "only containers with all these annotations (repeatable)"), ("monitor", "", "all", "all|opt-in|opt-out", ("all", "opt-in", "opt-out"), "use of the pod annotation monitor.resctrl-mon.io"), ("linger", 0, 0, "SECONDS", (), "how long a group outlives its last member"), ("snapshot_ttl", 0, 300, "SECONDS", (), "how long to keep the counters of a removed group"), ("lock_timeout", 0.0, 1.0, "SECONDS", (), "maximum wait for the lock of a key"), ("rmid_wait", 0.0, 1.5, "SECONDS", (), "maximum wait for an RMID in limbo"), ("history", "", "", "FILE", (), "append a line to this file when a key ends: its use"), ("strict", False, False, "", (), "createRuntime exits 1 if it cannot monitor the container"))),
    "List": ("show keys, containers that are not monitored, RMIDs", "list --namespace=shop --sort=traffic --limit=20: show the 20 pods of shop with the most memory traffic", (("WHAT", "", None, "unmonitored", ("unmonitored",), "only the containers that are not monitored: each of them, and why"), ("namespace", [], [], "NS", (), "only pods of this namespace (repeatable)"), ("state", [], [], "STATE", ("live", "missing", "recovering", "lingering", "completed"), "only keys in this state: live, missing, recovering, lingering, completed (repeatable)"), ("sort", "", "energy", "BY", ("energy", "traffic", "memory", "age", "name"), "what comes first: most energy or memory traffic, youngest age, or by name"), ("by", "", None, "namespace", ("namespace",), "sums by namespace, of all keys that are not completed, or by --state"), ("limit", 0, None, "N", (), "no more keys than this many"), ("output", "", None, "FORM", ("wide", "json"), "wide: all columns and counters, nothing cut; json: as --json. Short: -o"))),
    "Show": ("show one key: its use, containers, life", "show shop/web-7c9f: show the pod of shop whose name begins so", (("KEY", "", None, "KEY", (), "a key, `namespace/pod`, a pod, a container's ID or name, or how one of them begins"), ("output", "", None, "FORM", ("wide", "json"), "wide: all columns and counters, nothing cut; json: as --json. Short: -o"))),
    "Top": ("show current usage, like top(1)", "top --interval=10 --count=6: print the usage for a minute", (("interval", 0.0, 2.0, "SECONDS", (), "time between two tables"), ("count", 0, None, "N", (), "end after this many tables (default: on a terminal none, else 1)"), ("namespace", [], [], "NS", (), "only pods of this namespace (repeatable)"), ("sort", "", "energy", "BY", ("energy", "traffic", "memory", "cache", "name"), "what comes first: most energy, memory traffic or cache, or by name"), ("output", "", None, "FORM", ("wide", "json"), "wide: all columns and counters, nothing cut; json: as --json. Short: -o"))),
    "History": ("show what containers used that have ended", "history job-17 --since=7d: show what each job-17 of the last week used", (("NAME", [], [], "NAME", (), "only `namespace/pod`, a pod, a container's name or ID, a key, or how one of them begins"), ("since", "", None, "TIME", (), "only what ended since: 90s, 15m, 12h, 7d or 2w ago, or a date (2026-11-24, UTC)"), ("by", "", None, "name|pod|namespace|day", ("name", "pod", "namespace", "day"), "sums by name, pod, namespace or day of the end"), ("history", "", "/var/log/resctrl-mon-hook/history.jsonl", "FILE", (), "the file that hooks write, with its rotated ones"), ("csv", False, False, "", (), "print CSV, for a spreadsheet"))),
    "Metrics": ("print, write or serve Prometheus metrics", "metrics --textfile=/var/lib/prometheus/node-exporter/resctrl.prom: write a file for node_exporter", (("textfile", "", None, "PATH", (), "replace this file, for the textfile collector of node_exporter"), ("listen", "", None, "[ADDRESS:]PORT", (), "answer GET /metrics there until it is stopped (default address: 127.0.0.1)"), ("events", "", None, "EVENT,...", (), "only these events of the kernel's (default: all that it has)"), ("sum_domains", False, False, "", (), "one series for all domains of an event, instead of one for each"), ("created", False, False, "", (), "with --listen, in OpenMetrics: also when each counter of a key was 0"))),
    "Doctor": ("check this node and suggest fixes", "doctor --self-test: try the hardware with a group of its own", (("prefix", "", None, "DIR", (), "where the program is, or is to be: below libexec and bin there (default: /usr)"), ("hooks_dir", [], [], "DIR", (), "a directory of hooks.d files (repeatable; default: all that are read here)"), ("self_test", False, False, "", (), "start a process, and put it into a group and out again"), ("output", "", None, "FORM", ("wide", "json"), "wide: lines not wrapped; json: as --json. Short: -o"))),
    "Reconcile": ("repair what hooks cannot (in the host's pid namespace)", "reconcile --linger=600 --adopt --dry-run: print what it would do, also for containers without the hook", (("dry_run", False, False, "", (), "print what would be done, and change nothing"), ("adopt", False, False, "", (), "also monitor containers that run without ever having been hooked"), ("runtime_root", [], [], "DIR", (), "look for containers in this state directory of an OCI runtime, too (repeatable)"), ("live", "", None, "FILE", (), "the keys that live, one on each line (-: of stdin), instead of a look at their members"))),
    "RunWatch": ("move in at once what exec adds to containers", "watch --linger=600: listen to execs until it is stopped, with the options of reconcile", (("adopt", False, False, "", (), "also monitor containers that run without ever having been hooked"),)),
    "Install": ("install this file, hooks.d files and a timer", "install --for=podman --key=sandbox --dry-run: print what it would install for Podman's pods", (("for", "", None, "kubernetes|podman|both", ("kubernetes", "podman", "both"), "for which runtimes (default: those that are found here)"), ("prefix", "", None, "DIR", (), "where the program is, or is to be: below libexec and bin there (default: /usr)"), ("hooks_dir", "", None, "DIR", (), "the directory for hooks.d files (default: by --prefix)"), ("destdir", "", None, "DIR", (), "put all files below this directory, for example to make an image (default: /)"), ("python", "", None, "PATH", (), "the interpreter that runs the program (default: the one in its first line)"), ("adopt", False, False, "", (), "also monitor containers that run without ever having been hooked"), ("watch", False, False, "", (), "also install and start the watch service"), ("force", False, False, "", (), "also where files belong to a package or to the chart, or containers still call the program"), ("dry_run", False, False, "", (), "print what would be done, and change nothing"))),
    "Uninstall": ("remove hooks.d files, and the rest when unused", "uninstall --dry-run: print what it would remove, and who still calls the program", (("prefix", "", None, "DIR", (), "where the program is, or is to be: below libexec and bin there (default: /usr)"), ("hooks_dir", "", None, "DIR", (), "the directory for hooks.d files (default: by --prefix)"), ("destdir", "", None, "DIR", (), "put all files below this directory, for example to make an image (default: /)"), ("runtime_root", [], [], "DIR", (), "look for containers in this state directory of an OCI runtime, too (repeatable)"), ("force", False, False, "", (), "also where files belong to a package or to the chart, or containers still call the program"), ("dry_run", False, False, "", (), "print what would be done, and change nothing"))),
    "MakeBytecode": ("compile this file for the Python of this node", "bytecode: let hooks start fast again after an upgrade of the distribution", ()),
    "BaseRuntimeSpec": ("add the hook to the output of `ctr oci spec`", "base-runtime-spec --linger=600 <spec.json >/etc/containerd/spec.json: make the base_runtime_spec of containerd", (("prefix", "", None, "DIR", (), "where the program is, or is to be: below libexec and bin there (default: /usr)"),)),
    "Completion": ("print a completion script for bash, zsh or fish", "completion bash: let bash complete command lines", (("SHELL", "", None, "SHELL", ("bash", "zsh", "fish"), "bash, zsh or fish"),)),
}
