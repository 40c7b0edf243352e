"""P-L4: what eight flooding workers get through the launcher to their log files, and what a stopped sink costs.

Lossless: `accel-launch --redirects 3` against `torchrun --redirects 3`. torchrun gives the workers their log
files directly, so it copies each byte once; accel has a pipe between, which is what lets it survive a full disk.
Each file is compared with the expected bytes before any figure is printed. Two rates: of the whole command, as a
user sees it, and of the stream alone (first write() to the last byte in its file). The limit is one `cat` per
worker from a pipe to a file.

Both for workers that are a program and for workers in Python.

Dropping: a router under the policy `drop`, its console read at full speed or not at all.
"""

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from measure import BUILD, PEER_BIN, PEER_PYTHON, PYTHON_ENVIRONMENT, PYTHON_WORKER, emit, in_turn, median, spread
from python_worker import BLOCK, block_of

RANKS = 8
BYTES = 128 << 20  # of each worker
ROUNDS = 5
FLOODER = [os.path.join(BUILD, "bench/flooder")]
PYTHON_FLOODER = [PYTHON_WORKER, "flood"]


def check_file(path, rank):
    """Every byte of the file, or an error."""
    expected = block_of(rank)
    with open(path, "rb") as file:
        for number in range(BYTES // BLOCK):
            if file.read(BLOCK) != expected:
                sys.exit(f"logs_bench: {path} differs from what rank {rank} wrote in MiB {number}")
        if file.read(1):
            sys.exit(f"logs_bench: {path} holds more than rank {rank} wrote")


def flood(make_command, flooder):
    """One run. Returns (bytes/s of the command, bytes/s of the stream)."""
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        times = os.path.join(folder, "times")
        os.mkdir(times)
        worker = [*([] if flooder == PYTHON_FLOODER else ["--no_python"]), *flooder, "--bytes", str(BYTES), "--times", times]
        os.sync()
        started = time.monotonic_ns()
        done = subprocess.run(make_command(folder, worker), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, env=PYTHON_ENVIRONMENT)
        ended = time.monotonic_ns()
        if done.returncode != 0:
            sys.exit(f"logs_bench: the command failed:\n{done.stdout.decode(errors='replace')}")
        for rank in range(RANKS):
            check_file(log_of(folder, rank), rank)
        reports = [json.load(open(path)) for path in glob.glob(times + "/*.json")]
        assert len(reports) == RANKS
        began = min(report["began"] for report in reports)
        # Nobody but the kernel is between a torchrun worker and its file; an accel worker's last bytes are in
        # the file when the command ends.
        written = ended if "accel" in make_command.__name__ else max(report["ended"] for report in reports)
        total = RANKS * BYTES
        return total / (ended - started) * 1e9, total / (written - began) * 1e9


def find_one(pattern):
    found = glob.glob(pattern)
    if len(found) != 1:
        sys.exit(f"logs_bench: {pattern} matches {found}")
    return found[0]


def accel_command(folder, worker):
    return [os.path.join(BUILD, "bin/accel-launch"), "--num_processes", str(RANKS), "--log_dir",
            folder + "/logs", "--redirects", "3", *worker]


def torchrun_command(folder, worker):
    return [os.path.join(PEER_BIN, "torchrun"), "--standalone", "--nproc_per_node", str(RANKS), "--log_dir",
            folder + "/logs", "--redirects", "3", *worker]


def log_of(folder, rank):
    return find_one(f"{folder}/logs/*/attempt_0/{rank}/stdout.log")


def alone(flooder):
    """The words that start a flooder without a launcher."""
    return [PEER_PYTHON, *flooder] if flooder == PYTHON_FLOODER else flooder


def cat_rate(flooder):
    """Bytes/s of eight `flooder | cat >file` at once: the limit of anything that reads pipes."""
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        command = " ".join(
            f"RANK={rank} {' '.join(alone(flooder))} --bytes {BYTES} | cat >{folder}/{rank} &" for rank in range(RANKS))
        os.sync()
        started = time.monotonic_ns()
        subprocess.run(["sh", "-c", command + " wait"], check=True)
        ended = time.monotonic_ns()
        for rank in range(RANKS):
            check_file(f"{folder}/{rank}", rank)
        return RANKS * BYTES / (ended - started) * 1e9


def lossless(workers, flooder):
    accel, peer = in_turn(lambda: flood(accel_command, flooder), lambda: flood(torchrun_command, flooder), ROUNDS)
    limit = median([cat_rate(flooder) for _ in range(3)])
    command, peer_command = median([run[0] for run in accel]), median([run[0] for run in peer])
    stream, peer_stream = median([run[1] for run in accel]), median([run[1] for run in peer])
    case = f"{RANKS} {workers}, {BYTES >> 20} MiB each, lossless"
    emit("logs", case, "whole command", "GB/s", command / 1e9, peer_command / 1e9, "torchrun --redirects 3",
         limit=limit / 1e9, spread=spread([run[0] / 1e9 for run in accel]),
         goal=">= 1 GB/s and >= 3x torchrun", passed=command >= 1e9 and command >= 3 * peer_command)
    emit("logs", case, "stream alone", "GB/s", stream / 1e9, peer_stream / 1e9, "torchrun --redirects 3",
         limit=limit / 1e9, spread=spread([run[1] / 1e9 for run in accel]), goal="none (reported)", passed=None)


def drop_run(mode, flooder):
    """Returns (p99 of write() in us: the median rank's, bytes of memory a rank)."""
    with tempfile.TemporaryDirectory(dir=BUILD) as times:
        done = subprocess.run([os.path.join(BUILD, "bench/log_drop"), str(RANKS), mode, *alone(flooder),
                               "--seconds", "2", "--write", "4096", "--times", times], stdout=subprocess.PIPE, check=True)
        reports = [json.load(open(path)) for path in glob.glob(times + "/*.json")]
        assert len(reports) == RANKS
        memory = json.loads(done.stdout)
        return (median([report["p99_us"] for report in reports]),
                (memory["private_bytes"] + memory["pipe_bytes"]) / RANKS)


def dropping(workers, flooder):
    stopped, running = in_turn(lambda: drop_run("stopped", flooder), lambda: drop_run("running", flooder), ROUNDS)
    slow, quick = median([run[0] for run in stopped]), median([run[0] for run in running])
    case = f"{RANKS} {workers}, policy drop, console stopped"
    emit("logs", case, "p99 of write(4096)", "us", slow, quick, "same, console running",
         spread=spread([run[0] for run in stopped]), goal="<= 2x running", passed=slow <= 2 * quick)
    memory = max(run[1] for run in stopped)
    emit("logs", case, "memory a rank", "MiB", memory / 2**20, None, None, goal="<= 8 MiB",
         passed=memory <= 8 * 2**20)


if __name__ == "__main__":
    if shutil.disk_usage(BUILD).free < 4 * RANKS * BYTES:
        sys.exit(f"logs_bench: needs {4 * RANKS * BYTES >> 30} GiB free below {BUILD}")
    for workers, flooder in (("workers", FLOODER), ("Python workers", PYTHON_FLOODER)):
        lossless(workers, flooder)
        dropping(workers, flooder)
