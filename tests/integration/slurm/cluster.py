"""A real SLURM on one machine: munged, slurmctld and one slurmd a node, everything in one temporary folder.

Needs root (slurmd does) and Debian's slurmctld, slurmd, slurm-client and munge; neither systemd nor cgroups. The nodes
share the machine's address and differ by port. What was started is ended by its pid, also the steps that a killed slurmd
leaves behind.
"""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from programs import free_port  # noqa: E402

PATIENCE = 120
PROGRAMS = ["munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue"]
PARTITIONS = """
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing():
    """Why no cluster can run here; empty when one can."""
    if os.geteuid() != 0:
        return "slurmd needs root"
    absent = [name for name in PROGRAMS if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")]
    return f"not installed: {', '.join(absent)} (scripts/setup.sh --tests)" if absent else ""


class Cluster:
    """With `gpus`, each node has so many: files in the place of devices."""

    def __init__(self, nodes=2, cpus=4, gpus=0):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="accel-slurm-"))
        self.folder.chmod(0o755)
        self.nodes = [f"n{i + 1}" for i in range(nodes)]
        self.processes = {}
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": os.environ["PATH"] + ":/usr/sbin"}
        for name in list(self.environment):
            if name.startswith(("SLURM_", "SLURMD_", "SBATCH_")) and name != "SLURM_CONF":
                del self.environment[name]
        controller, *ports = (free_port() for _ in range(1 + nodes))
        host = socket.gethostname().split(".")[0]
        offer = f" Gres=gpu:{gpus}" if gpus else ""
        lines = [
            *(["GresTypes=gpu"] if gpus else []), "ClusterName=accel", f"SlurmctldHost={host}(127.0.0.1)", f"SlurmctldPort={controller}", "SlurmUser=root", "SlurmdUser=root",
            f"AuthType=auth/munge", f"AuthInfo=socket={self.folder}/munge.socket", "CredType=cred/munge",
            f"StateSaveLocation={self.folder}/state", f"SlurmdSpoolDir={self.folder}/spool.%n",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid", f"SlurmdPidFile={self.folder}/slurmd.%n.pid",
            f"SlurmctldLogFile={self.folder}/slurmctld.log", f"SlurmdLogFile={self.folder}/slurmd.%n.log",
            "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none", "MpiDefault=none", "SwitchType=switch/none",
            "SelectType=select/cons_tres", "SelectTypeParameters=CR_Core", "SchedulerType=sched/backfill",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2,requeue_delay=0", "PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE",
            "SlurmdParameters=config_overrides", "ReturnToService=2", "SlurmdTimeout=10", "SlurmctldTimeout=20", "KillWait=15",
            "UnkillableStepTimeout=60", "JobRequeue=1", "MinJobAge=300", "PropagateResourceLimits=NONE", "InactiveLimit=0", "DebugFlags=NO_CONF_HASH",
            *(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus}{offer} State=UNKNOWN" for name, port in zip(self.nodes, ports)),
            PARTITIONS,
        ]
        (self.folder / "slurm.conf").write_text("\n".join(lines))
        for number in range(gpus):
            (self.folder / f"gpu{number}").touch()
        if gpus:
            (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-{gpus - 1}]\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))

    def start(self):
        f = self.folder
        self.spawn("munged", "munged", "--foreground", "--force", f"--key-file={f}/munge.key", f"--socket={f}/munge.socket", f"--pid-file={f}/munged.pid",
                   f"--seed-file={f}/munge.seed", f"--log-file={f}/munged.log")
        self.wait(lambda: (f / "munge.socket").exists(), "munged does not listen")
        self.spawn("slurmctld", "slurmctld", "-D", "-i")
        for name in self.nodes:
            self.start_node(name)
        self.wait(lambda: all(self.node_state(name).startswith("IDLE") for name in self.nodes), "the nodes do not come up")
        return self

    def start_node(self, name):
        (self.folder / f"spool.{name}").mkdir(exist_ok=True)
        self.spawn(name, "slurmd", "-D", "-N", name)

    def spawn(self, label, *command):
        log = open(self.folder / f"{label}.out", "ab")
        with log:
            self.processes[label] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment)

    def run(self, *command, check=True, **more):
        done = subprocess.run([str(part) for part in command], env={**self.environment, **more}, capture_output=True, text=True, timeout=PATIENCE)
        if check and done.returncode != 0:
            raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}\n{self.logs()}")
        return done

    def wait(self, condition, complaint, patience=PATIENCE, more=lambda: ""):
        end = time.monotonic() + patience
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"{complaint}\n{more()}\n{self.logs()}")
            time.sleep(0.1)

    def node_state(self, name):
        found = [part for part in self.run("scontrol", "show", "node", name, "--oneliner", check=False).stdout.split() if part.startswith("State=")]
        return found[0].removeprefix("State=") if found else ""

    def job(self, job):
        """What scontrol says of the job, as a dictionary."""
        text = self.run("scontrol", "show", "job", job, "--oneliner").stdout
        return dict(part.split("=", 1) for part in text.split() if "=" in part)

    def logs(self):
        return "\n".join(f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:])
                         for path in sorted(self.folder.glob("*.out")) + sorted(self.folder.glob("slurm*.log")))

    def kill_node(self, name):
        """As if its power went: slurmd, the steps and all that they run are killed; the steps first, so that nobody reports."""
        slurmd = self.processes.pop(name)
        kill(slurmd.pid)
        slurmd.wait(PATIENCE)
        tasks = self.processes_on(name)
        for pid in {step for task in tasks for step in ancestors(task) if title_of(step).startswith("slurmstepd")}:
            kill(pid)
        while tasks:
            for pid in tasks:
                kill(pid)
            tasks = self.processes_on(name)

    def processes_on(self, name):
        """What runs in the allocations of a node, by the environment that SLURM gave it: pid and title."""
        wanted = {f"SLURMD_NODENAME={name}".encode(), f"SLURM_CONF={self.folder}/slurm.conf".encode(), }
        found = {}
        for folder in pathlib.Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    environment = set((folder / "environ").read_bytes().split(b"\0"))
                except OSError:
                    continue
                title = title_of(int(folder.name))
                if wanted <= environment and title and not title.startswith("slurm"):
                    found[int(folder.name)] = title
        return found

    def stop(self):
        self.run("scancel", "--user=root", check=False)
        for label in [*self.nodes, "slurmctld", "munged"]:
            process = self.processes.pop(label, None)
            if process is None:
                continue
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def title_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def ancestors(pid):
    while pid > 1:
        try:
            pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return
        yield pid
