# SPDX-License-Identifier: Apache-2.0
"""resctrl-mon-hook: an OCI hook that gives every pod a resctrl monitoring group of its own.

Open `stages/create` (createRuntime) and `stages/remove` (poststop) first: they are the two use cases. Each package
imports only those above it in this list:

    base       system calls, JSON, the models of everything that is parsed, /proc, resctrl
    state      the records below /run: the state of each key, how it changes, and the view that consumers read
    stages     the hook: from stdin to the two use cases; modules that only failures need are imported on failure
    node       this machine: its files, programs, runtimes and their settings, and our installation
    reconcile  repairs after lost or failed hooks
    watch      moves processes that exec starts in a container into its group at once
    observe    output for people and Prometheus; reads only
    install    installs and removes the program
    doctor     checks a node and suggests fixes
    cli        the commands for people
"""

__version__ = "0.1.0"
