#!/usr/bin/env python3
"""P-E1: how long a plan takes, and how near it is to a run.

StepPlan plans a step of the GPT of the examples with AdamW, of 101 billion parameters, without memory for them: as it is, with all blocks
computed again, and with the blocks chosen that have to be computed again to take less. A GPT of 50 million parameters is planned and
trained; the bytes that LibTorch asks its allocator for are counted, and its steps timed.
"""
import os
import subprocess
import sys

from measure import BUILD, emit, median, spread

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
STEP = os.path.join(BUILD, "bench/plan_step")
LARGE = ["10240", "80", "2048"]  # width, layers, positions
SMALL = ["384", "6", "256"]
KINDS = {"plan": "a plan", "again": "a plan, all blocks computed again", "fit": "a choice of the blocks that are computed again"}


def run(mode, sizes, *more):
    done = subprocess.run([STEP, mode, *sizes, *more], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"bench: plan_step {mode} ended with {done.returncode}")
    return [[float(word) for word in line.split()] for line in done.stdout.splitlines()]


def main():
    for mode, title in KINDS.items():
        (parameters, _), *rows = run(mode, LARGE, str(ROUNDS))
        times = [1e3 * row[0] for row in rows]
        emit("plan", f"GPT, {parameters / 1e9:.0f} B parameters, AdamW, 1 thread", title, "ms", median(times), None, None,
             goal="<= 1000 ms (P-E1)", passed=median(times) <= 1000, limit=1000, spread=spread(times))
    (planned, measured), (told, took) = run("run", SMALL)
    title = "GPT, 50 M parameters, AdamW, a sample of 256 tokens, 1 thread"
    emit("plan", title, "planned peak", "MB", planned / 1e6, None, None,
         goal="within 2 % of the measured one (P-E1)", passed=abs(planned / measured - 1) <= 0.02, limit=measured / 1e6)
    emit("plan", title, "planned step", "ms", 1e3 * told, None, None, goal="reported, beside the measured one", passed=None,
         limit=1e3 * took)


if __name__ == "__main__":
    main()
