#!/usr/bin/env python3
"""P-O2: a step of AdamW whose state is on disk, beside the same step in memory and the disk.

Each step reads and writes all of the state. The limit is the slower of the step in memory and of what the disk takes to read as many
bytes while it writes as many (O_DIRECT, 16 MiB at a time, a thread each way). Sums and samples of all parameters have to be equal, digit
by digit, before a time is printed. BENCH_FOLDER names a folder of the disk that is meant.
"""
import mmap
import os
import sys
import tempfile
import threading
import time

from measure import BUILD, emit, median, spread
from optimizer_bench import CASES, run

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
STEPS = 7
STATE_BYTES = 8  # of a parameter
BLOCK = 16 << 20


def whole_blocks(size):
    return (size + BLOCK - 1) // BLOCK * BLOCK


def pass_over(path, size, move):
    """Moves a file's bytes in order, past the page cache."""
    room = mmap.mmap(-1, BLOCK)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    try:
        for offset in range(0, size, BLOCK):
            if move(file, [room], offset) != BLOCK:
                sys.exit("bench: the disk moved less than it was asked for")
    finally:
        os.close(file)


def disk_seconds(folder, size):
    """Reading one file while another one, which is there, is written."""
    paths = [os.path.join(folder, name) for name in ("read", "written")]
    for path in paths:
        if not os.path.exists(path):
            pass_over(path, size, os.pwritev)
    threads = [threading.Thread(target=pass_over, args=(path, size, move))
               for path, move in zip(paths, (os.preadv, os.pwritev))]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def bench_case(folder, sizes):
    numel = sum(sizes)
    path = os.path.join(folder, "sizes")
    with open(path, "w", encoding="ascii") as file:
        file.writelines(f"{size}\n" for size in sizes)
    ours = os.path.join(BUILD, "bench/optimizer_step")
    on_disk, in_memory, disk = [], [], []
    for _ in range(ROUNDS):
        disk.append(disk_seconds(folder, whole_blocks(STATE_BYTES * numel)))
        results, took = run([ours, "disk", path, str(STEPS), folder])
        expected, computed = run([ours, "apart", path, str(STEPS)])
        if results != expected:
            sys.exit("bench: parameters differ from those of a step in memory; no time is printed")
        on_disk.append(took)
        in_memory.append(computed)
    title = f"AdamW, {numel / 1e6:.1f} M parameters, fp32, 1 thread, state on disk ({STATE_BYTES * numel / 1e9:.2f} GB)"
    mine, limit = median(on_disk), max(median(in_memory), median(disk))
    emit("optimizer_disk", title, "step", "ms", 1e3 * mine, 1e3 * median(in_memory), "the same, state in memory", limit=1e3 * limit,
         goal="reported", passed=None, spread=[1e3 * value for value in spread(on_disk) + spread(in_memory)])
    rate = 2 * STATE_BYTES * numel / 1e6
    emit("optimizer_disk", title, "read and written", "MB/s", rate / mine, None, "the disk, in order", limit=rate / limit,
         goal=">= 0.9 of the limit (P-O2)", passed=limit / mine >= 0.9, spread=[rate / value for value in reversed(spread(on_disk))])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as scratch:
        bench_case(scratch, CASES["124M"]["sizes"])
