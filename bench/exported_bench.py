#!/usr/bin/env python3
"""P-X1: exported models in fp32, one thread a process: a step beside PyTorch eager, torch.compile, DDP and FSDP2, the time from
the command to the first step, memory, and what a node costs.

The models are Llamas in plain PyTorch (exported_llama.py), exported in the run. The losses of all steps must be equal within
LOSS_TOLERANCE before a time is printed: the same kernels run in the same order, and the optimizers differ in the order of
their roundings.
"""
import os
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn
from safetensors.torch import save_file

from exported_llama import BATCH, LENGTH, SIZES, STEPS, example, model
from measure import BUILD, emit, median, run_ranks, spread

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
WARMUP = 2
# Of the loss: a rounding of 2^-24 for each of the steps. torch.compile also has an order of its own in sums over a row, whose
# roundings add up like a random walk over at most 1024 numbers.
LOSS_TOLERANCE = STEPS * 2.0 ** -24
COMPILED_TOLERANCE = 32 * LOSS_TOLERANCE
CHAIN = 1000
PEER = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "exported_llama.py")]
STEP = os.path.join(BUILD, "bench/exported_step")
SHARDED = {"ACCELERATE_USE_FSDP": "true", "FSDP_SHARDING_STRATEGY": "FULL_SHARD"}
# With them each tensor has pages of its own, which go when it goes: what is in memory is what lives. Times would suffer.
OWN_PAGES = {"MALLOC_MMAP_THRESHOLD_": "65536"}


class Chain(nn.Module):
    def forward(self, x):
        for _ in range(CHAIN):
            x = torch.neg(x)
        return x


class Case:
    """One size of the model: its files, and runs of both sides as ranks with a core each."""

    def __init__(self, size, folder):
        self.size, self.path = size, os.path.join(folder, f"{size}.pt2")
        inputs = os.path.join(folder, f"{size}.inputs")
        net = model(size)
        numel = sum(parameter.numel() for parameter in net.parameters())
        torch.export.save(torch.export.export(net, (), kwargs=example(size), strict=False), self.path)
        for rank in range(2):
            save_file(example(size, rank), f"{inputs}.{rank}")
        self.command = [STEP, "train", self.path, inputs, str(STEPS)]
        self.title = f"Llama, {numel / 1e6:.1f} M parameters, {BATCH} x {LENGTH} tokens a process, fp32, 1 thread"

    def ours(self, ranks=1, more=None):
        return run_ranks(self.command, ranks, more)[0]

    def theirs(self, side, ranks=1, more=None):
        return run_ranks(PEER + [self.size, side], ranks, more)[0]


def check_losses(ours, peers, tolerance):
    if len(ours) != STEPS or max(abs(a - b) / b for a, b in zip(ours, peers)) > tolerance:
        sys.exit(f"bench: the losses are {ours} and not {peers}; no time is printed")


def bench_steps(case, side, name, goal, ranks=1, more=None, tolerance=LOSS_TOLERANCE):
    ours, peers = [], []
    for _ in range(ROUNDS):
        ours.append(case.ours(ranks, more))
        peers.append(case.theirs(side, ranks))
        check_losses(ours[-1][0], peers[-1][0], tolerance)
    title = case.title if ranks == 1 else f"{case.title}, {ranks} processes"
    for metric, row in (("forward and backward", 1), ("step with AdamW", 2)):
        mine, peer = ([1e3 * median(rows[row][WARMUP:]) for rows in runs] for runs in (ours, peers))
        passed = None if goal is None else median(mine) <= goal * median(peer)
        emit("P-X1", title, metric, "ms", median(mine), median(peer), name,
             goal=None if goal is None else f"<= {goal} of its time", passed=passed, spread=spread(mine) + spread(peer))


def bench_memory(case):
    mine, peer = (rows[3][0] / 1e6 for rows in (case.ours(more=OWN_PAGES), case.theirs("eager", more=OWN_PAGES)))
    emit("P-X1", case.title, "peak of forward and backward, above the model", "MB", mine, peer, "PyTorch eager",
         goal="<= 1.02 of it", passed=mine <= 1.02 * peer)


def seconds_to_first_step(command):
    started = time.time()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
    return float(done.stdout.split()[-1]) - started


def bench_first_step(case):
    launched = [os.path.join(BUILD, "bin/accel-launch"), "--cpu", "--num_processes", "1"] + case.command
    mine, peer = [], []
    for _ in range(ROUNDS):
        mine.append(seconds_to_first_step(launched))
        peer.append(seconds_to_first_step(PEER + [case.size, "eager"]))
    emit("P-X1", case.title, "from the command to the end of the first step", "s", median(mine), median(peer),
         "python, without a launcher", goal="<= 0.5 s", passed=median(mine) <= 0.5, spread=spread(mine) + spread(peer))


def bench_nodes(folder):
    path = os.path.join(folder, "chain.pt2")
    torch.export.save(torch.export.export(Chain(), (torch.ones(1),), strict=False), path)
    rows = [run_ranks([STEP, "nodes", path, "300"], 1)[0][0] for _ in range(ROUNDS)]
    beyond = [graph - loop for _, graph, loop in rows]
    emit("P-X1", f"a chain of {int(rows[0][0])} aten::neg on one number", "a node, beyond its operator", "ns",
         median(beyond), None, "at::neg() in a loop", goal=1000, passed=median(beyond) <= 1000, spread=spread(beyond))


def main():
    with tempfile.TemporaryDirectory() as folder:
        bench_nodes(folder)
        for size in SIZES:
            case = Case(size, folder)
            bench_steps(case, "eager", "PyTorch eager", 0.95)
            bench_steps(case, "compile", "torch.compile", None, tolerance=COMPILED_TOLERANCE)
            bench_steps(case, "ddp", "PyTorch DDP", 0.6, ranks=2)
            bench_steps(case, "fsdp2", "PyTorch FSDP2", 0.4, ranks=2, more=SHARDED)
            bench_memory(case)
            if size == "20M":
                bench_first_step(case)


if __name__ == "__main__":
    main()
