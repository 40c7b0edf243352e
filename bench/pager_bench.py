#!/usr/bin/env python3
"""P-T4: what the pager costs an operator that touches a parameter, and a step, when every parameter is in memory.

One process has the same parameter or model twice, one of them paged, and uses each in turn; losses must be equal. Times
are of the processor, and the least of many is taken: whatever else the machine does only adds.
"""
import os
import subprocess
import sys

from measure import BUILD, emit


def least(kind, rounds):
    core = str(min(os.sched_getaffinity(0)))
    command = ["taskset", "-c", core, os.path.join(BUILD, "bench/pager_step"), kind, str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"pager_bench: {command} ended with {done.returncode}")
    rows = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    return min(row[0] for row in rows), min(row[1] for row in rows)


if __name__ == "__main__":
    for kind, title in {"mm": "mm, a hook with its own types", "abs": "abs, the hook for all"}.items():
        plain, paged = least(kind, 500)
        emit("pager", title, "one call", "us", 1e6 * paged, 1e6 * plain, "the same without pager",
             goal="<= 0.3 us more (P-T4)", passed=1e6 * (paged - plain) <= 0.3)
    plain, paged = least("transformer", 63)
    emit("pager", "transformer 19.2M, SGD", "step", "ms", 1e3 * paged, 1e3 * plain, "the same without pager",
         goal="<= 2 % more (P-T4)", passed=paged <= 1.02 * plain)
