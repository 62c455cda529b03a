# SPDX-License-Identifier: Apache-2.0
"""Slurm on this machine: munged, slurmctld and slurmd of one node,
as processes that read only their own directory.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.jobs.conftest import BatchNode
from tests.support.hook import DEADLINE
from tests.support.waiting import wait

# Of what needs systemd or cgroups there is nothing; the node claims CPUs that it lacks, to run many
# tasks at once. Credentials expire soon, since a requeued job waits for that.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={slurmctld}
SlurmdPort={slurmd}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthInfo=socket={directory}/munge.socket,cred_expire=5
SlurmUser=root
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.log
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=1,batch_sched_delay=0
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=10
KillWait=1
Prolog={directory}/prolog
NodeName=localhost CPUs=64 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES
"""
PROLOG = """\
#!/bin/sh
cat /proc/$PPID/comm >{directory}/parent-of-prolog
"""


class Slurm:
    """`settings`: further lines of slurm.conf."""

    def __init__(self, node: BatchNode, settings: str) -> None:
        self.directory = node.directory
        self._node = node
        self._daemons: list[subprocess.Popen[bytes]] = []
        for name in ("state", "spool"):
            (self.directory / name).mkdir()
        (self.directory / "munge.key").write_bytes(secrets.token_bytes(64))
        (self.directory / "munge.key").chmod(0o400)
        prolog = self.directory / "prolog"
        prolog.write_text(PROLOG.format(directory=self.directory), encoding="ascii")
        prolog.chmod(0o755)
        self._configuration = self.directory / "slurm.conf"
        ports = dict(zip(("slurmctld", "slurmd"), find_ports()))
        text = CONFIGURATION.format(directory=self.directory, **ports) + settings
        self._configuration.write_text(text, encoding="ascii")
        node.environment["SLURM_CONF"] = str(self._configuration)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        files = [
            f"--{name}-file={self.directory}/munge.{name}" for name in ("key", "pid", "log", "seed")
        ]
        munge = self.directory / "munge.socket"
        self._open("munged", "--foreground", "--force", *files, f"--socket={munge}")
        wait(munge.exists)
        self._open("slurmctld", "-D")
        self._open("slurmd", "-D", "-N", "localhost")
        wait(lambda: self._ask("sinfo", "--noheader", "--format=%T") == "idle\n")

    def _open(self, *words: str) -> None:
        daemon = subprocess.Popen(
            words,
            cwd=self.directory,
            env=self._node.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._daemons.append(daemon)

    def _ask(self, *words: str) -> str:
        """What a command prints; it may fail."""
        return subprocess.run(
            words,
            env=self._node.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=False,
        ).stdout

    def submit(self, script: str, *options: str) -> list[int]:
        """Submit a batch job; once it runs, returns the IDs of its tasks,
        which are one job each.
        """
        text = f"#!/bin/sh\n{script}\n"
        words = ("--parsable", "--output=/dev/null", "--chdir=/", *options)
        job = int(self._node.run("sbatch", *words, stdin=text))
        wait(lambda: {*self._list(job, "%T")} == {"RUNNING"})
        return sorted(map(int, self._list(job, "%A")))

    def _list(self, job: int, form: str) -> list[str]:
        return self._ask("squeue", "--noheader", f"--jobs={job}", f"--format={form}").split()

    def close(self) -> None:
        """End the jobs, then the daemons, then what is left of either. Can be called twice."""
        if len(self._daemons) > 1:
            self._ask("scancel", "--full", "--user=root")
            self._ask("scancel", "--full", "--user=nobody")
        for daemon in reversed(self._daemons):
            daemon.terminate()
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(DEADLINE)
            daemon.kill()
        for pid in find_processes(f"SLURM_CONF={self._configuration}"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._daemons.clear()


def find_ports() -> list[int]:
    """Two free ports."""
    with socket.socket() as first, socket.socket() as second:
        for end in (first, second):
            end.bind(("127.0.0.1", 0))
        return [end.getsockname()[1] for end in (first, second)]


def find_processes(variable: str) -> list[int]:
    """The processes that have this in their environment."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{variable}\0".encode() in path.read_bytes():
                pids.append(int(path.parent.name))
    return pids
