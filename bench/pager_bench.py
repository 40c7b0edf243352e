#!/usr/bin/env python3
"""P-T4: what the pager costs an operator that touches a parameter, and a step, when every parameter is in memory.

One process has the same model twice, one of them paged, and takes a step of each in turn, with equal losses. What is
reported is the median of the differences of neighbouring steps: whatever else the machine does meets both.
"""
import os
import subprocess
import sys

from measure import BUILD, emit, median

CASES = {"tiny": ("200 linear layers 64x64", 203), "transformer": ("transformer 19.2M", 43)}


def rounds_of(case, rounds):
    core = str(min(os.sched_getaffinity(0)))
    command = ["taskset", "-c", core, os.path.join(BUILD, "bench/pager_step"), case, str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"pager_bench: {command} ended with {done.returncode}")
    return [tuple(map(float, line.split())) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    for case, (title, rounds) in CASES.items():
        rows = rounds_of(case, rounds)
        plain, paged = median([row[0] for row in rows]), median([row[1] for row in rows])
        extra = median([row[1] - row[0] for row in rows])
        hook = 1e6 * extra / rows[0][2]
        if case == "tiny":
            emit("pager", title, f"an operator on a parameter, of {rows[0][2]:.0f} a step", "us more", hook, None,
                 "the same without pager", goal="<= 0.3 us (P-T4)", passed=hook <= 0.3)
        share = 100 * extra / plain
        emit("pager", title, "step", "ms", 1e3 * paged, 1e3 * plain, "the same without pager",
             goal="<= 2 % more at 19 M (P-T4)" if case != "tiny" else "-",
             passed=share <= 2 if case != "tiny" else None)
