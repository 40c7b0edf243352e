#!/usr/bin/env python3
"""P-O1: a forward of a model on disk, nothing of it in memory before, beside Accelerate's disk_offload and the disk.

Both sides read the same folder, in a process of their own, after its files have left the page cache, and have to compute
equal outputs. The limit is the slower of what the disk takes for the bytes (read in order, O_DIRECT) and what the forward takes with all weights in memory.
"""
import os
import subprocess
import sys
import tempfile
import time

import torch

from measure import BUILD, emit, median, spread

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
LAYERS, WIDTH = 24, 4096
BYTES = LAYERS * WIDTH * WIDTH * 4
# Sides that lay weights out at other addresses may sum in another order; these lie at the same multiple of 64.
TOLERANCE = 0.0


def peer_worker(folder, tokens):
    from accelerate import disk_offload, init_empty_weights
    torch.set_grad_enabled(False)
    with init_empty_weights():
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    disk_offload(model, folder, execution_device=torch.device("cpu"))
    count = tokens * WIDTH
    inputs = (torch.arange(count) * 37 % 1021).float().div_(1024).view(-1, WIDTH)
    inputs @ torch.ones(WIDTH, 16)
    started = time.perf_counter()
    flat = model(inputs).flatten()
    took = time.perf_counter() - started
    print(flat.double().sum().item(), *(flat[i * (count // 8)].item() for i in range(8)))
    print(took, took)


def files_of(folder):
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".dat"))


def forget(folder):
    for name in files_of(folder):
        with open(name, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_seconds(folder):
    """Reading all files in order past the page cache, 16 MiB at a time."""
    import mmap
    room = mmap.mmap(-1, 16 << 20)
    started = time.perf_counter()
    for name in files_of(folder):
        file = os.open(name, os.O_RDONLY | os.O_DIRECT)
        while os.readv(file, [room]) > 0:
            pass
        os.close(file)
    return time.perf_counter() - started


def run(folder, command):
    forget(folder)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    values, seconds = ([float(word) for word in line.split()] for line in done.stdout.splitlines()[-2:])
    return values, seconds


def bench_case(folder, tokens):
    ours = [os.path.join(BUILD, "bench/offload_step"), folder, str(LAYERS), str(WIDTH), str(tokens)]
    theirs = [sys.executable, os.path.abspath(__file__), "--worker", folder, str(tokens)]
    cold, warm, peer, disk = [], [], [], []
    for _ in range(ROUNDS):
        disk.append(disk_seconds(folder))
        values, (first, second) = run(folder, ours)
        expected, (took, _) = run(folder, theirs)
        if any(abs(a - b) > TOLERANCE * abs(b) for a, b in zip(values[1:], expected[1:])):
            sys.exit(f"bench: outputs differ, {values} and {expected}; no time is printed")
        cold.append(first)
        warm.append(second)
        peer.append(took)
    title = f"disk-offloaded forward, {LAYERS} layers of {WIDTH}x{WIDTH} fp32 ({BYTES / 1e9:.1f} GB), {tokens} tokens, cold cache"
    mine, limit = median(cold), max(median(warm), median(disk))
    emit("offload", title, "forward", "s", mine, median(peer), "accelerate.disk_offload", limit=limit,
         goal="<= 1.15x of the limit, >= 2.5x (P-O1)", passed=mine <= 1.15 * limit and median(peer) / mine >= 2.5,
         spread=spread(cold) + spread(peer))
    emit("offload", title, "rate", "MB/s", BYTES / mine / 1e6, None, "the disk, in order", limit=BYTES / median(disk) / 1e6,
         goal="reported", passed=None, spread=[BYTES / value / 1e6 for value in reversed(spread(disk))])


def main():
    from accelerate.utils import offload_state_dict
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as folder:
        torch.manual_seed(0)
        offload_state_dict(folder, {f"{i}.weight": torch.randn(WIDTH, WIDTH) / WIDTH**0.5 for i in range(LAYERS)})
        os.sync()
        for tokens in (8, 256):
            bench_case(folder, tokens)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--worker":
        peer_worker(sys.argv[2], int(sys.argv[3]))
    else:
        main()
