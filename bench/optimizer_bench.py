#!/usr/bin/env python3
"""P-T5: one step of AdamW in fp32, one thread: fused kernels on the memory of a unit, against PyTorch and torch::optim.

Every side starts from the same values and gradients; sums and samples of each parameter after all steps are compared
before a time is printed. The limit is 28 bytes a parameter (four arrays read, three written) at the speed of a copy.
"""
import os
import subprocess
import sys
import tempfile
import time

import torch

from measure import BUILD, emit, median, spread

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
BYTES = 28
WARMUP = 2


def transformer(width, layers, vocabulary, length, has_head):
    block = [width, width, 3 * width * width, 3 * width, width * width, width, width, width,
             4 * width * width, 4 * width, 4 * width * width, width]
    head = [vocabulary * width, vocabulary] if has_head else []
    return [vocabulary * width, length * width] + block * layers + [width, width] + head


CASES = {
    "19.2M": {"sizes": transformer(512, 6, 256, 128, True), "steps": 12},
    "124M": {"sizes": transformer(768, 12, 50257, 1024, False), "steps": 7},
}
# One rounding of 2^-24 more or less in each of a few operations and steps, on values below 0.5; a sum has up to
# 38.6 M of them with independent errors.
SAMPLE_TOLERANCE = 1e-6
SUM_TOLERANCE = 1e-8  # of an element, on average


def values(numel, factor):
    return ((torch.arange(numel) * factor) % 1024).float().div_(1024).sub_(0.5)


def peer_worker(mode, path, steps):
    torch.set_num_threads(1)
    with open(path, encoding="ascii") as file:
        sizes = [int(line) for line in file]
    parameters = [torch.nn.Parameter(values(numel, 37)) for numel in sizes]
    for parameter, numel in zip(parameters, sizes):
        parameter.grad = values(numel, 101)
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, fused=True if mode == "fused" else None)
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
    with torch.no_grad():
        for parameter in parameters:
            print(parameter.double().sum().item(), parameter[parameter.numel() // 2].item(), end=" ")
    print()
    print(*seconds)


def run(command):
    core = max(os.sched_getaffinity(0))
    done = subprocess.run(["taskset", "-c", str(core)] + command, stdout=subprocess.PIPE, text=True, check=True,
                          env=dict(os.environ, OMP_NUM_THREADS="1"))
    rows = [[float(word) for word in line.split()] for line in done.stdout.splitlines()]
    return rows[0], median(rows[-1][WARMUP:])


def compare(name, sizes, results, expected):
    for i, numel in enumerate(sizes):
        (total, sample), (other_total, other_sample) = results[2 * i:2 * i + 2], expected[2 * i:2 * i + 2]
        if abs(sample - other_sample) > SAMPLE_TOLERANCE or abs(total - other_total) > SUM_TOLERANCE * numel:
            sys.exit(f"bench: {name}: parameter {i} is {total}, {sample} and not {other_total}, {other_sample}; "
                     "no time is printed")


def bench_case(name, case):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "sizes")
        with open(path, "w", encoding="ascii") as file:
            file.writelines(f"{numel}\n" for numel in case["sizes"])
        ours = os.path.join(BUILD, "bench/optimizer_step")
        steps = str(case["steps"])
        peer = [sys.executable, os.path.abspath(__file__), "--worker"]
        sides = {"unit": [ours, "unit"], "fused": peer + ["fused"], "apart": [ours, "apart"],
                 "foreach": peer + ["foreach"], "own": [ours, "own"], "copy": [ours, "copy"]}
        seconds = {side: [] for side in sides}
        for _ in range(ROUNDS):
            expected = None
            for side, command in sides.items():
                results, took = run(command + [path, steps])
                seconds[side].append(took)
                if side == "copy":
                    continue
                expected = expected or results
                compare(f"{name}, {side}", case["sizes"], results, expected)
    numel = sum(case["sizes"])
    title = f"AdamW, {numel / 1e6:.1f} M parameters, fp32, 1 thread"
    mine = median(seconds["unit"])
    for side, text, goal in (("fused", "PyTorch, fused=True", 1.0), ("foreach", "PyTorch, default", None),
                             ("own", "torch::optim::AdamW", None), ("apart", "ours, parameters apart", None)):
        theirs = median(seconds[side])
        emit("optimizer", title, "step", "ms", 1e3 * mine, 1e3 * theirs, text,
             goal=f">= {goal}x (P-T5)" if goal else "reported", passed=theirs / mine >= goal if goal else None,
             spread=[1e3 * value for value in spread(seconds["unit"]) + spread(seconds[side])])
    rate = BYTES * numel / mine / 1e9
    limit = 8 * numel / median(seconds["copy"]) / 1e9
    emit("optimizer", title, "memory moved", "GB/s", rate, None, "copying", limit=limit,
         goal=">= 0.8 of copying (P-T5)", passed=rate >= 0.8 * limit)


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] == "--worker":
        peer_worker(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        for case_name, options in CASES.items():
            bench_case(case_name, options)
