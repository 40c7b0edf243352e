"""P-L2: from SIGKILL of a worker to the first instruction of its successor, against torchrun, for a program and for a
Python script (its first statement); and the time until the supervisor has seen the death."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

from measure import BUILD, PEER_BIN, PEER_PYTHON, PYTHON_ENVIRONMENT, PYTHON_WORKER, emit, in_turn, median, spread

ROUNDS = 15
DEATH_ROUNDS = 200
PROBE = os.path.join(BUILD, "bench/restart_probe")
ACCEL = [os.path.join(BUILD, "bin/accel-launch"), "--quiet", "--num_processes", "2", "--max_restarts", "1"]
TORCHRUN = [os.path.join(PEER_BIN, "torchrun"), "--nproc_per_node", "2", "--max-restarts", "1", "--master_port", "0"]


def restart_ms(command):
    """Milliseconds from the kill of rank 1 to the first instruction of the new rank 1."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        path = os.path.join(folder, "probe")
        inbox.bind(path)
        inbox.settimeout(60)
        job = subprocess.Popen(command, env=dict(PYTHON_ENVIRONMENT, PROBE_SOCKET=path),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seen = {}

        def read_until(wanted):
            while wanted not in seen:
                rank, generation, pid, at = map(int, inbox.recv(128).split())
                seen[rank, generation] = (pid, at)

        read_until((0, 0)), read_until((1, 0))
        killed_at = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        os.kill(seen[1, 0][0], signal.SIGKILL)
        read_until((0, 1)), read_until((1, 1))
        if job.wait(timeout=60) != 0:
            sys.exit(f"restart_bench: {' '.join(command)} did not end well after the restart")
        return (seen[1, 1][1] - killed_at) / 1e6


def interpreter_ms():
    """Milliseconds until the first statement of the script when nobody launches it."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        path = os.path.join(folder, "probe")
        inbox.bind(path)
        inbox.settimeout(60)
        started = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        subprocess.run([PEER_PYTHON, "-u", PYTHON_WORKER, "probe"], check=True,
                       env=dict(os.environ, PROBE_SOCKET=path, RANK="0", TORCHELASTIC_RESTART_COUNT="1"))
        return (int(inbox.recv(128).split()[3]) - started) / 1e6


def compare(case, metric, worker, limit=None):
    a, b = in_turn(lambda: restart_ms([*ACCEL, *worker]), lambda: restart_ms([*TORCHRUN, *worker]), ROUNDS)
    ours, theirs = median(a), median(b)
    emit("restart", case, metric, "ms", ours, theirs, "torchrun", limit=limit, goal="<= 5 ms p50 and <= 1/15",
         passed=ours <= 5 and theirs / ours >= 15, spread=spread(a))


def main():
    compare("SIGKILL of 1 of 2 workers", "first instruction of the successor", ["--no-python", PROBE])
    compare("SIGKILL of 1 of 2 Python workers",
            "first statement of the successor; limit: that of an interpreter alone", [PYTHON_WORKER, "probe"],
            limit=median([interpreter_ms() for _ in range(ROUNDS)]))

    done = subprocess.run([os.path.join(BUILD, "bench/death_seen"), os.path.join(BUILD, "bin/accel-shim"),
                           str(DEATH_ROUNDS)], capture_output=True, text=True, check=True)
    times = sorted(int(line) / 1e6 for line in done.stdout.split())
    p99 = times[int(len(times) * 0.99) - 1]
    emit("restart", "SIGKILL of a worker", f"death seen, p99 of {len(times)}", "ms", p99, None, None,
         goal="<= 1 ms p99", passed=p99 <= 1, spread=[times[0], times[-1]])


if __name__ == "__main__":
    main()
