#!/usr/bin/env python3
"""P-C1, P-C2: collectives of 2 and 4 ranks of one node: shared memory against Gloo from C++ and PyTorch on Gloo, in turn.

Then 4 ranks that are told to be on 2 nodes: two levels against Gloo alone. What goes between nodes goes over the loopback device
of this machine, by the same cores: a network is slower, and its share of the work larger.

Run it on a quiet machine: ranks that share a core with other programs wait for them at every hand-over, and then the times
say more about those.

All three bring the same numbers, and their results are compared before a time is printed. The time of a call is the median
over the calls of the slowest rank; of the rounds again the median.
"""
import os
import statistics
import subprocess
import sys
import time

from measure import BUILD, emit, held_port, median, spread

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
MIB = 1 << 20
GOALS = {  # (ranks, collective, bytes): how many times faster than Gloo
    (2, "all_reduce", 4096): 50, (2, "all_reduce", 4 * MIB): 5, (2, "all_reduce", 64 * MIB): 5,
    (2, "all_reduce_own", 4 * MIB): 5, (2, "all_reduce_own", 64 * MIB): 5,
    (4, "all_reduce", 4096): 20, (4, "all_reduce", 4 * MIB): 3, (4, "all_reduce", 64 * MIB): 3,
    **{(2, name, 4 * MIB): 5 for name in ("all_gather", "reduce_scatter", "broadcast", "all_to_all")},
    (2, "barrier", 0): 5,
}


def peer_cases(dist, torch, rank, size):
    def values_of(count):
        return (torch.arange(count) % 64 + rank).float()

    cases = [("all_reduce", count) for count in (4096, 65536, 4 * MIB, 64 * MIB)]
    cases += [("all_reduce_own", count) for count in (4 * MIB, 64 * MIB)]
    for name, count in cases:
        source = values_of(count // 4)
        values = torch.empty_like(source)
        yield (name, count, lambda: values.copy_(source), lambda: dist.all_reduce(values), lambda: values)
    source = values_of(MIB)
    nothing = lambda: None
    gathered, part = torch.zeros(size * MIB), torch.zeros(MIB // size)
    exchanged, sent = torch.zeros(MIB), source.clone()
    yield "all_gather", 4 * MIB, nothing, lambda: dist.all_gather_into_tensor(gathered, source), lambda: gathered
    yield "reduce_scatter", 4 * MIB, nothing, lambda: dist.reduce_scatter_tensor(part, source), lambda: part
    yield "broadcast", 4 * MIB, nothing, lambda: dist.broadcast(sent, 0), lambda: sent
    yield "all_to_all", 4 * MIB, nothing, lambda: dist.all_to_all_single(exchanged, source), lambda: exchanged
    yield "barrier", 0, nothing, lambda: dist.barrier(), lambda: torch.zeros(1)


def peer_worker():
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name, size, prepare, call, result in peer_cases(dist, torch, dist.get_rank(), dist.get_world_size()):
        times, checksum, seconds = [], 0.0, -1.0
        try:
            prepare()
            call()
            checksum = result().double().sum().item()
            for index in range((300 if size <= 65536 else 30 if size <= 4 * MIB else 6) + 2):
                prepare()
                dist.barrier()
                started = time.perf_counter()
                call()
                if index >= 2:
                    times.append(time.perf_counter() - started)
            seconds = statistics.median(times)
        except (RuntimeError, ValueError):  # Gloo has no such collective
            pass
        print(f"{name} {size} {checksum:.17g} {seconds:.9g}", flush=True)
    dist.barrier()
    os._exit(0)  # as the worker of ddp_bench does


def core_of(rank, each, nodes, cores):
    """One for each rank; where the machine stands for several nodes, one for each node: its ranks share it, as on a small node,
    and take none from the others."""
    if nodes == 1:
        return cores[rank]
    return cores[rank // each] if nodes <= len(cores) else None


def run_ranks(command, ranks, nodes=1):
    """{(collective, bytes): (checksums by rank, seconds of the slowest rank)}"""
    with held_port() as port:
        cores = sorted(os.sched_getaffinity(0))
        workers = []
        each = ranks // nodes
        for rank in range(ranks):
            environment = dict(
                os.environ, OMP_NUM_THREADS="1", RANK=str(rank), LOCAL_RANK=str(rank % each), WORLD_SIZE=str(ranks),
                LOCAL_WORLD_SIZE=str(each), GROUP_RANK=str(rank // each), GROUP_WORLD_SIZE=str(nodes),
                MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE="False")
            if nodes > 1:
                environment["GLOO_SOCKET_IFNAME"] = "lo"
            pin = core_of(rank, each, nodes, cores) if ranks <= len(cores) or nodes > 1 else None
            pin = ["taskset", "-c", str(pin)] if pin is not None else []
            workers.append(subprocess.Popen(pin + command, env=environment, stdout=subprocess.PIPE, text=True))
        results = {}
        for worker in workers:
            output, _ = worker.communicate()
            if worker.returncode != 0:
                sys.exit(f"collectives_bench: {command} ended with {worker.returncode}")
            for line in output.splitlines():
                name, size, checksum, seconds = line.split()
                sums, slowest = results.get((name, int(size)), ((), 0.0))
                slowest = -1.0 if float(seconds) < 0 else max(slowest, float(seconds))
                results[name, int(size)] = ((*sums, float(checksum)), slowest)
        return results


def check_results(case, runs):
    if runs[0][case][1] < 0:
        sys.exit(f"collectives_bench: {case} failed in ours")
    sums = {result[case][0] for result in runs if case in result and result[case][1] > 0}
    if len(sums) != 1:
        sys.exit(f"collectives_bench: {case}: results differ, no time is printed: {sums}")


def text_of(case):
    name, size = case
    text = name.removesuffix("_own") + (f", {size // MIB} MiB" if size >= MIB else f", {size // 1024} KiB" if size else "")
    return text + (", tensors of the backend" if name.endswith("_own") else "")


def report(ranks, case, accel, gloo, torch):
    name = case[0]
    goal = GOALS.get((ranks, *case))
    text = f"{ranks} ranks, {text_of(case)}"
    ours = 1e6 * median(accel)
    for peer, seconds in (("Gloo", gloo), ("PyTorch on Gloo", torch)):
        theirs = 1e6 * median(seconds) if min(seconds) > 0 else None
        is_judged = goal is not None and peer == "Gloo" and theirs is not None
        emit("collectives", text, "time of a call", "us", ours, theirs, peer,
             goal=f">= {goal}x Gloo (P-C{1 if name.startswith('all_reduce') else 2})" if is_judged else "reported",
             passed=theirs / ours >= goal if is_judged else None,
             spread=[1e6 * value for value in spread(accel) + spread(seconds)])


def bench_nodes():
    program = os.path.join(BUILD, "bench/collectives_step")
    runs = {"two_level": [], "gloo": []}
    for _ in range(ROUNDS):
        for name, of_name in runs.items():
            of_name.append(run_ranks([program, name], 4, nodes=2))
    for case in runs["two_level"][0]:
        if case[0] == "copy":
            continue
        check_results(case, runs["two_level"] + runs["gloo"])
        ours, theirs = ([run[case][1] for run in of_name] for of_name in runs.values())
        if case[0] == "all_reduce_own":  # nothing is shared over nodes
            continue
        emit("collectives", f"2 nodes x 2 ranks, {text_of(case)}", "time of a call", "us", 1e6 * median(ours), 1e6 * median(theirs) if min(theirs) > 0 else None,
             "Gloo alone", goal="reported", passed=None, spread=[1e6 * value for value in spread(ours) + spread(theirs)])


def bench(ranks):
    program = os.path.join(BUILD, "bench/collectives_step")
    commands = {"shm": [program, "shm"], "gloo": [program, "gloo"],
                "torch": [sys.executable, os.path.abspath(__file__), "--worker"]}
    runs = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            runs[name].append(run_ranks(command, ranks))
    for case in runs["shm"][0]:
        if case[0] == "copy":
            continue
        check_results(case, [run for of_name in runs.values() for run in of_name])
        report(ranks, case, *([run[case][1] for run in runs[name]] for name in ("shm", "gloo", "torch")))
    if ranks != 2:
        return
    # Of both ranks together: a copy of n bytes each moves 4 n. An all-reduce of private tensors moves 8 n: own tensor read, slot
    # written, the other's slot read, result written; of tensors that both ranks map 4 n: each reads and writes a half of both.
    copy = {size: median([2 * size / run["copy", size][1] for run in runs["shm"]]) for size in (4 * MIB, 64 * MIB)}
    for size in (4 * MIB, 64 * MIB):
        for name, moves, what in (("all_reduce", 8, "private tensors"), ("all_reduce_own", 4, "tensors of the backend")):
            moved = median([moves * size / run[name, size][1] for run in runs["shm"]])
            limit = 2 * copy[64 * MIB]
            emit("collectives", f"2 ranks, all_reduce, {size // MIB} MiB, {what}", f"bytes moved ({moves} n)", "GB/s",
                 moved / 1e9, None, "both ranks copying 64 MiB", limit=limit / 1e9, goal=">= 0.6 of copying (P-C1)",
                 passed=moved >= 0.6 * limit)
    # Whatever the way, each rank that gets n bytes writes them with its own core: no faster than it copies them.
    for name in ("broadcast", "all_to_all"):
        moved = median([2 * 4 * MIB / run[name, 4 * MIB][1] for run in runs["shm"]])
        emit("collectives", f"2 ranks, {name}, 4 MiB", "bytes read and written by a rank that gets 4 MiB", "GB/s", moved / 1e9,
             None, "both ranks copying 4 MiB", limit=copy[4 * MIB] / 1e9, goal="reported", passed=None)


if __name__ == "__main__":
    if sys.argv[1:] == ["--worker"]:
        peer_worker()
    else:
        for num_ranks in (2, 4):
            bench(num_ranks)
        bench_nodes()
