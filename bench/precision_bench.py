#!/usr/bin/env python3
"""P-T6: the step of a transformer under bf16 autocast, libaccel against PyTorch, in one process and on two ranks.

The programs, weights and tokens are those of ddp_bench.py; both sides compute the forward under autocast and the loss in fp32, as
Accelerate does. The curves are compared before a time is printed. A processor without instructions for bf16 is slow on both
sides: the ratio to fp32 is reported.
"""
import os
import sys
import tempfile

import torch

from ddp_bench import CASES, RANKS, ROUNDS, WARMUP, peer_worker, write_case
from measure import BUILD, emit, median, run_ranks, spread

BF16 = {"ACCELERATE_MIXED_PRECISION": "bf16"}
STEPS = {"0.86M": 24, "19.2M": 10}
# A rounding to bf16 is off by 2^-9 of the value at most, 2^-9 / sqrt(3) on average. A block rounds the values of a token about 12
# times (norm, qkv, scores, mix, projection, sums, up, gelu, down), so L blocks 12 L times, and the two sides round at different
# places: C++'s Linear adds its bias to the rounded product, Python's before it rounds. With independent errors a logit of size 1
# differs by 2^-9 / sqrt(3) * sqrt(2 * 12 L): 0.011 for 4 blocks, 0.014 for 6. A loss is the mean over 128 tokens, which divides the
# part that is not common to them by 11, and the weights carry the error of each step into the next ones, 24 at most. Four
# times the error of a single token covers both.
LOSS_TOLERANCE = {"0.86M": 4 * 0.011, "19.2M": 4 * 0.014}


class Autocast(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self.model(x)
        return logits.float()


def run(command, ranks, more, joined=True):
    """(losses by rank, median seconds of the slower rank)"""
    rows = run_ranks(command, ranks, more, joined)
    return [[row[0] for row in of_rank] for of_rank in rows], max(median([row[1] for row in of_rank[WARMUP:]]) for of_rank in rows)


def check_curves(title, tolerance, accel, peer, exact):
    for left, right, reference in zip(accel, peer, exact):
        worst = max(abs(a - b) for a, b in zip(left, right))
        if len(left) != len(right) or worst > tolerance:
            sys.exit(f"bench: {title}: losses differ by {worst}, no time is printed")
        if left == reference:
            sys.exit(f"bench: {title}: the losses are those of fp32: nothing was computed in bf16")


def bench_case(name, case, ranks):
    steps = str(STEPS[name])
    title = f"transformer {name}, bf16 autocast, " + ("one process" if ranks == 1 else f"{ranks} ranks") + ", AdamW"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "case.safetensors")
        write_case(case, path)
        ours = [os.path.join(BUILD, "bench/ddp_step"), path, steps]
        theirs = [sys.executable, os.path.abspath(__file__), "--worker" if ranks > 1 else "--alone", path, steps]
        accel, peer, exact = [], [], []
        for _ in range(ROUNDS):
            exact_losses, seconds = run(ours, ranks, {}, joined=ranks > 1)
            exact.append(seconds)
            losses, seconds = run(ours, ranks, BF16, joined=ranks > 1)
            accel.append(seconds)
            peer_losses, seconds = run(theirs, ranks, {})
            peer.append(seconds)
            check_curves(title, LOSS_TOLERANCE[name], losses, peer_losses, exact_losses)
    emit("precision", title, "step", "ms", 1e3 * median(accel), 1e3 * median(peer),
         "torch.autocast" + (", DDP on Gloo" if ranks > 1 else ""), goal=">= 1x (P-T6)", passed=median(accel) <= median(peer),
         spread=[1e3 * value for value in spread(accel) + spread(peer)])
    emit("precision", title, "step", "ms", 1e3 * median(accel), 1e3 * median(exact), "ours in fp32", goal="reported", passed=None,
         spread=[1e3 * value for value in spread(accel) + spread(exact)])


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--alone":
        peer_worker(sys.argv[2], int(sys.argv[3]), Autocast)
    elif len(sys.argv) == 4 and sys.argv[1] == "--worker":
        peer_worker(sys.argv[2], int(sys.argv[3]),
                    lambda net: Autocast(torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)))
    else:
        for case_name, options in CASES.items():
            for num_ranks in (1, RANKS):
                bench_case(case_name, options, num_ranks)
