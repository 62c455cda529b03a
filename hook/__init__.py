# SPDX-License-Identifier: Apache-2.0
"""resctrl-mon-hook: an OCI hook that gives every pod its resctrl monitoring group.

Open `create` (createRuntime) and `poststop` first: they are the two use cases. `life`, `life_end`
and `life_turns` have the transitions of a key's life, and `create` and `key` carry them out.

The core is the modules beside this file: what the start and the end of a container may run. The
tools are the packages: what people, timers and services run. The core imports no tool. Each package
imports the core and the packages above it in this list:

    node       this machine: its files, programs, runtimes and their settings, and our installation
    reconcile  repairs after lost or failed hooks
    jobs       puts processes that are no containers into groups: run, assign, release
    watch      moves processes that exec starts in a container into its group at once
    view       keeps the consumer's view of the records, which reads like a resctrl mount
    show       output for people and Prometheus; reads only
    install    installs and removes the program
    doctor     checks a node and suggests fixes
    cli        the commands for people
"""

__version__ = "0.1.0"
