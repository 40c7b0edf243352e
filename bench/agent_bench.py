"""P-A1: what an accel-agent takes: idle, and with a job of 8 workers that beat 50 times a second.

No peer: torchrun has no daemon.

The shim of the job is counted apart: it is the supervisor of the workers, and lives only as long as they do.
"""

import os
import subprocess
import sys
import tempfile
import time

from measure import BUILD, emit

SECONDS = 30
NUM_WORKERS = 8


def cpu_seconds(pid):
    """Of all its threads, in nanoseconds by the scheduler: /proc/PID/stat counts in ticks of 10 ms, and an idle agent takes one or none."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        total += int(open(f"/proc/{pid}/task/{task}/schedstat").read().split()[0])
    return total / 1e9


def resident_mib(pid):
    """All of it, also what it shares with others: how much that is depends on what else runs."""
    for line in open(f"/proc/{pid}/smaps_rollup"):
        if line.startswith("Rss:"):
            return int(line.split()[1]) / 1024
    sys.exit("agent_bench: no memory is known")


def share_of_core(pid):
    before, began = cpu_seconds(pid), time.monotonic()
    time.sleep(SECONDS)
    return (cpu_seconds(pid) - before) / (time.monotonic() - began) * 100


def children(pid):
    return [int(text) for text in open(f"/proc/{pid}/task/{pid}/children").read().split()]


def tell(case, pid, has_goal):
    cpu, memory = share_of_core(pid), resident_mib(pid)
    emit("agent", case, f"share of a core over {SECONDS} s", "%", cpu, None, None,
         goal="<= 0.2 %" if has_goal else "reported", passed=cpu <= 0.2 if has_goal else None)
    emit("agent", case, "resident memory", "MiB", memory, None, None,
         goal="<= 32 MiB" if has_goal else "reported", passed=memory <= 32 if has_goal else None)


def main():
    worker = os.path.join(BUILD, "tests/fault_worker")
    with tempfile.TemporaryDirectory(prefix="accel-agent-bench-") as folder:
        config = os.path.join(folder, "agent.yaml")
        with open(config, "w") as file:
            file.write("allow_root: true\n")
        agent = subprocess.Popen([os.path.join(BUILD, "bin/accel-agent"), "--state-dir", os.path.join(folder, "state"), "--config", config],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            for line in agent.stderr:
                if " serves at " in line:
                    break
            else:
                sys.exit("agent_bench: the agent does not serve")
            time.sleep(2)
            tell("idle", agent.pid, True)
            accel = [os.path.join(BUILD, "bin/accel")]
            run = subprocess.run([*accel, "run", "--agent", os.path.join(folder, "state/run"), "--detach", "--name", "bench", "-n", str(NUM_WORKERS),
                                  "--", worker, "beats", "0", "bench"], capture_output=True, text=True)
            if run.returncode != 0:
                sys.exit("agent_bench: " + run.stderr)
            time.sleep(2)
            shims = children(agent.pid)
            if len(shims) != 1 or len(children(shims[0])) != NUM_WORKERS:
                sys.exit("agent_bench: the job does not run")
            tell(f"{NUM_WORKERS} workers beat", agent.pid, True)
            tell(f"{NUM_WORKERS} workers beat: the shim", shims[0], False)
            subprocess.run([*accel, "stop", "--agent", os.path.join(folder, "state/run"), "--kill", "bench"], capture_output=True)
        finally:
            agent.terminate()
            agent.wait()


if __name__ == "__main__":
    main()
