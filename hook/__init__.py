# SPDX-License-Identifier: Apache-2.0
"""resctrl-mon-hook: an OCI hook that gives every pod a resctrl monitoring group of its own.

Open `stages/create` (createRuntime) and `stages/remove` (poststop) first: they are the two use cases. Packages, each of
which imports only those above it in this list, and its modules only those before them in its row:

    base       what everything uses: system calls, text, JSON and the models of all that is parsed, /proc, resctrl
    state      the records below /run: the truth about each key, how it changes, and what consumers see of it
    stages     what a runtime starts: from stdin to the two use cases; and what is imported when one of them fails
    node       what this machine has: its files, programs, runtimes and their settings, and where we are installed
    reconcile  what puts right what hooks could not do
    watch      what brings in at once what exec adds to containers
    observe    what people and Prometheus see; reads only
    install    what puts the program in place and takes it away
    doctor     what checks a node and suggests fixes
    cli        the commands for people
"""

__version__ = "0.1.0"
