"""What all benchmarks share: the JSON line, and timing two commands in turn (A B A B ...)."""

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time

BUILD = os.environ.get("ACCEL_BUILD_DIR", "build")
SOURCE = os.environ.get("ACCEL_SOURCE_DIR", ".")
PEER_BIN = os.path.join(SOURCE, ".deps/peer/bin")
PEER_PYTHON = os.path.join(PEER_BIN, "python")
# Both sides run it with PEER_PYTHON: torchrun has no other, accel-launch takes that of $VIRTUAL_ENV.
PYTHON_WORKER = os.path.join(SOURCE, "bench/python_worker.py")
# These workers compute nothing, and must start on a machine with fewer GPUs than workers too.
PYTHON_ENVIRONMENT = dict(os.environ, VIRTUAL_ENV=os.path.abspath(os.path.dirname(PEER_BIN)), CUDA_VISIBLE_DEVICES="")


def emit(bench, case, metric, unit, accel, peer, peer_name, *, goal, passed, limit=None, spread=None):
    """Prints one result. `ratio` is peer / accel for times and sizes, accel / peer for rates ("MB/s")."""
    ratio = None
    if peer:
        ratio = accel / peer if unit.endswith("/s") else peer / accel
    line = {
        "bench": bench, "case": case, "metric": metric, "unit": unit, "accel": rounded(accel),
        "peer": rounded(peer), "peer_name": peer_name, "ratio": rounded(ratio), "limit": rounded(limit),
        "of_limit": rounded(accel / limit if limit else None), "goal": goal, "pass": passed,
    }
    if spread:
        line["spread"] = [rounded(value) for value in spread]
    print(json.dumps(line), flush=True)


def rounded(value):
    return None if value is None else float(f"{value:.4g}")


def timed(command, **options):
    """Runs a command to its end. Returns (seconds, exit status, output)."""
    started = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    return time.perf_counter() - started, done.returncode, done.stdout


def in_turn(first, second, rounds):
    """Calls first() and second() in turn; returns their results as two lists. One warm-up each is dropped."""
    first(), second()
    a, b = [], []
    for _ in range(rounds):
        a.append(first())
        b.append(second())
    return a, b


@contextlib.contextmanager
def held_port():
    """A port, in digits, that no other program takes meanwhile: a socket is bound to it, and never listens. A store may
    listen there beside it, for it sets SO_REUSEADDR as well."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield str(held.getsockname()[1])


def run_ranks(command, ranks, more=None, joined=True):
    """Runs a program as so many ranks with a thread and a core each, and `more` variables; returns the rows of numbers that
    each printed. joined=False: as programs that know nothing of each other."""
    cores = sorted(os.sched_getaffinity(0), reverse=True)
    with held_port() as port:
        workers = []
        for rank in range(ranks):
            environment = dict(os.environ, OMP_NUM_THREADS="1", BENCH_RANK=str(rank), **(more or {}))
            if joined:
                environment.update(
                    RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
                    MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE="False")
            pin = ["taskset", "-c", str(cores[rank % len(cores)])]
            workers.append(subprocess.Popen(pin + command, env=environment, stdout=subprocess.PIPE, text=True))
        outputs = [worker.communicate()[0] for worker in workers]
    for worker in workers:
        if worker.returncode != 0:
            sys.exit(f"bench: {command} ended with {worker.returncode}")
    return [[[float(word) for word in line.split()] for line in output.splitlines()] for output in outputs]


def median(values):
    return statistics.median(values)


def spread(values):
    return [min(values), max(values)]
