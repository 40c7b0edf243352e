#!/usr/bin/env python3
"""What AcceleratorOptions::nan_watch costs: a step of a transformer with it, against the same step without.

The seconds are those of the processor: what the watch does is computing, and other programs of the machine do not count then. The
losses of both sides are compared to the bit before a time is printed. With two ranks the watch throws, which adds a message.
"""
import os
import sys
import tempfile

from ddp_bench import CASES, ROUNDS, WARMUP, write_case
from measure import BUILD, emit, median, run_ranks, spread

OFF, WARNS, THROWS = "0", "1", "2"


def run(command, ranks, watch):
    """Returns (losses, seconds of each step) of all ranks."""
    rows = run_ranks(command, ranks, {"BENCH_NAN_WATCH": watch, "BENCH_CPU_TIME": "1"}, joined=ranks > 1)
    return [[row[0] for row in of_rank] for of_rank in rows], [row[1] for of_rank in rows for row in of_rank[WARMUP:]]


def bench_case(name, case, ranks, watch):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "case.safetensors")
        write_case(case, path)
        command = [os.path.join(BUILD, "bench/ddp_step"), path, str(case["steps"])]
        watched, plain = [], []
        for _ in range(ROUNDS):
            losses, seconds = run(command, ranks, watch)
            watched.append(median(seconds))
            expected, seconds = run(command, ranks, OFF)
            plain.append(median(seconds))
            if losses != expected:
                sys.exit(f"bench: nan_watch: {name}: the losses differ, no time is printed")
    kind = "throws" if watch == THROWS else "warns"
    emit("nan_watch", f"transformer {name}, {ranks} rank{'s' * (ranks > 1)}, AdamW, {kind}", "processor time of a step", "ms",
         1e3 * median(watched), 1e3 * median(plain), "without nan_watch", goal="<= 1 % more",
         passed=median(watched) <= 1.01 * median(plain), spread=[1e3 * value for value in spread(watched) + spread(plain)])


if __name__ == "__main__":
    for case_name, options in CASES.items():
        bench_case(case_name, options, 1, WARNS)
        bench_case(case_name, options, 2, THROWS)
