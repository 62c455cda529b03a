"""resctrl-mon-hook: an OCI hook that gives every pod a resctrl monitoring group of its own.

Open `lifecycle` first: it holds the two use cases, createRuntime and poststop. Layers, each of which imports only those
above it in this list:

    errors, names       why a container is not monitored; what may become a key or a path
    system              every system call of the hook path
    jsontext            text to objects
    validation, models  objects to typed values: what compiled models share; what is parsed
    cgroups             what the path of a cgroup tells
    options, identity   the command line; whose container this is
    counters            what the kernel's counters mean, and what was used between two of their values
    process, resctrl    /proc and /sys/fs/resctrl, one module each
    rundir              /run: the truth about each key, its lock, the index
    incarnation, view   how a key's use is carried from one life to the next; what consumers see of it
    node                one node's kernel, records and options, and the steps that several modules share
    ending              how members leave a key, and how it lingers and ends
    reclaim             RMIDs from the dead, once the kernel has none left
    lifecycle           the two stages
    report, entry       the traces of a failure; verbs and exit statuses
    loader              makes all of these from the bytecode in the .pyz
  for people only, never imported when a container starts:
    records, inventory  a look at /run and at /sys/fs/resctrl that takes no lock and writes nothing
    tasks, runtimes     the processes of containers; the containers that OCI runtimes know of
    survey, plan        what reconcile has to go by, and what it is going to do about it
    movein, rebuild     containers that run already, into their groups; records that were lost
    room                what it takes in /run to count hooks is given back
    machine, hooksd     the machine that we are to be installed on; hooks.d as its readers have it
    configured          what CRI-O and Podman are told of hooks and RDT
    containerd          what containerd is, with all the files that it imports
    shipped, places     the .pyz as a file; where an installation has what
    injection           would this container get the hook, and if not, why not
    unhooked            containers that run and were never hooked
    reconcile           puts right what hooks cannot
    rates               how fast keys use what they use
    steps               what is put into its place, or taken away, durably and at once
    origin              whose an installation is: a package's, the Helm chart's, a MachineConfig's, our own
    install, uninstall  in what order, whether it may be, and who still needs it
    basespec            the hook where containerd takes it from
    screens, metrics    what was seen, as text and as JSON; for Prometheus
    injector            the NRI hook-injector, and what it sees of hooks.d
    cdi                 the createRuntime hooks that devices bring
    selftest            a group, a child in it, its counters, and all of it gone again
    doctor              is all well here, and what is to be done
    upkeep              the verbs of whoever looks after the node
    people, usage       the verbs for people; --help and what is wrong with a command line
"""

__version__ = "0.1.0"
