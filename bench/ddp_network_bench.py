#!/usr/bin/env python3
"""P-T1 over a network: the step of a transformer on two hosts with a rank each, libaccel against PyTorch DDP on Gloo.

The hosts are network namespaces of this machine, whose links let so many bits a second out (tc, a token bucket) and delay nothing.
The rows say what it brings to sum buckets beside the backward (ACCEL_OVERLAP_COMM): the losses of both ways must be equal to the bit,
and those of the peer within a tolerance, before a time is printed. The limit is the same program as two processes at once that
do not talk to each other.

Needs root, `ip` and `tc` (package iproute2).
"""
import os
import signal
import subprocess
import sys
import tempfile

from ddp_bench import CASES, ROUNDS, WARMUP, check_losses, run_pair, write_case
from measure import BUILD, SOURCE, emit, median, spread

sys.path.append(os.path.join(SOURCE, "tests/integration/network"))
from cluster import Network, ip, require_namespaces  # noqa: E402

HOSTS = ["a", "b"]
PORT = "29500"  # in a namespace of its own
RATES = {"1 Gbit/s": "1gbit", "10 Gbit/s": "10gbit"}
OVERLAP = "ACCEL_OVERLAP_COMM"


def limit_rate(network, rate):
    for name in HOSTS:
        # The bucket holds what a timer tick of 4 ms lets out.
        burst = {"1gbit": "512k", "10gbit": "5m"}[rate]
        subprocess.run([*network.command(name), "tc", "qdisc", "replace", "dev", "veth0", "root", "tbf", "rate", rate,
                        "burst", burst, "latency", "50ms"], check=True)


def run_hosts(network, command, more):
    """(losses by rank, median seconds of the slower rank)"""
    cores = sorted(os.sched_getaffinity(0), reverse=True)
    workers = []
    for rank, name in enumerate(HOSTS):
        environment = dict(
            os.environ, OMP_NUM_THREADS="1", RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(len(HOSTS)), LOCAL_WORLD_SIZE="1",
            GROUP_RANK=str(rank), GROUP_WORLD_SIZE=str(len(HOSTS)), MASTER_ADDR=network.address(HOSTS[0]), MASTER_PORT=PORT,
            TORCHELASTIC_USE_AGENT_STORE="False", GLOO_SOCKET_IFNAME="veth0", **more)
        pin = ["taskset", "-c", str(cores[rank % len(cores)])]
        workers.append(subprocess.Popen(pin + network.command(name) + command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [worker.communicate()[0] for worker in workers]
    for worker in workers:
        if worker.returncode != 0:
            sys.exit(f"bench: {command} ended with {worker.returncode}")
    rows = [[[float(word) for word in line.split()] for line in output.splitlines()] for output in outputs]
    return [[row[0] for row in of_rank] for of_rank in rows], max(median([row[1] for row in of_rank[WARMUP:]]) for of_rank in rows)


def bench_case(network, name, case, rate):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "case.safetensors")
        write_case(case, path)
        steps = str(case["steps"])
        ours = [os.path.join(BUILD, "bench/ddp_step"), path, steps]
        theirs = [sys.executable, os.path.join(SOURCE, "bench/ddp_bench.py"), "--worker", path, steps]
        limit_rate(network, RATES[rate])
        seconds = {"as decided": [], "true": [], "false": [], "peer": [], "alone": []}
        for _ in range(ROUNDS):
            expected = None
            for way, of_way in seconds.items():
                if way == "alone":
                    of_way.append(run_pair(ours, joined=False)[1])
                    continue
                more = {OVERLAP: way} if way in ("true", "false") else {}
                losses, took = run_hosts(network, theirs if way == "peer" else ours, more)
                of_way.append(took)
                expected = expected or losses
                if way == "peer":
                    check_losses(name, expected, losses)
                elif losses != expected:
                    sys.exit(f"bench: {name}: {OVERLAP}={way} has other losses, no time is printed")
    title = f"transformer {name}, 2 hosts, {rate}"
    mine = median(seconds["as decided"])
    for way, text in (("peer", "torch DDP on Gloo"), ("false", "buckets summed within the backward"),
                      ("true", "buckets summed beside it")):
        emit("ddp_network", title, "step", "ms", 1e3 * mine, 1e3 * median(seconds[way]), text,
             goal=">= 1x" if way == "peer" else "reported", passed=mine <= median(seconds[way]) if way == "peer" else None,
             spread=[1e3 * value for value in spread(seconds["as decided"]) + spread(seconds[way])])
    emit("ddp_network", title, "part of two processes without communication", "1", median(seconds["alone"]) / mine, None,
         "two processes alone", goal="reported", passed=None)


if __name__ == "__main__":
    require_namespaces()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the namespaces go all the same
    hosts = Network(HOSTS)
    try:
        for of_rate in RATES:
            for case_name, options in CASES.items():
                bench_case(hosts, case_name, options, of_rate)
    finally:
        hosts.close()
