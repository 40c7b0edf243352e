#!/usr/bin/env python3
"""P-D1: a shuffled loader over 100 M samples (its first batch, going on at 73 %), and small samples per second.

Peer: torch's DataLoader with two workers, and Accelerate's skip_first_batches. The order of the small samples is torch's on both
sides: a sum over every sample and its place is the same. accel's order of the 100 M samples is one of its own, computed sample by
sample (PermutationSampler); both batches are compared with that order.
"""
import os
import subprocess

from measure import BUILD, PEER_PYTHON, emit, in_turn, median, spread

SAMPLES = int(os.environ.get("BENCH_SAMPLES", "100000000"))
PEER_SAMPLES = int(os.environ.get("BENCH_PEER_SAMPLES", str(SAMPLES // 10)))
SMALL = 100_000
PEER = """
import sys, time, torch
from accelerate import skip_first_batches
mode, samples, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return samples

    def __getitem__(self, index):
        return index


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.table = torch.arange(samples * 16, dtype=torch.float32).view(samples, 16)

    def __len__(self):
        return samples

    def __getitem__(self, index):
        return self.table[index], index


def index():
    make = lambda: torch.utils.data.DataLoader(Numbers(), batch_size=batch, shuffle=True)
    begin = time.perf_counter()
    next(iter(make()))
    first = time.perf_counter() - begin
    loader, begin = make(), time.perf_counter()
    next(iter(skip_first_batches(loader, samples // 100 * 73 // batch)))
    print(first, time.perf_counter() - begin, 1)


def small():
    workers, seed = int(sys.argv[4]), int(sys.argv[5])
    generator = torch.Generator()
    generator.manual_seed(seed)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=batch, shuffle=True, num_workers=workers, generator=generator)
    total, place, begin = 0, 0, time.perf_counter()
    targets = []
    for _, target in loader:
        targets.append(target)
    seconds = time.perf_counter() - begin
    for number in torch.cat(targets).tolist():
        place += 1
        total = (total + number * place) % 1000000007
    print(seconds, total)


{"index": index, "small": small}[mode]()
"""


def numbers_of(command):
    def run():
        return [float(word) for word in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()]

    return run


def bench_index(rounds):
    step = os.path.join(BUILD, "bench/loader_step")
    ours, theirs = in_turn(numbers_of([step, "index", str(SAMPLES), "256"]),
                           numbers_of([PEER_PYTHON, "-c", PEER, "index", str(PEER_SAMPLES), "256"]), rounds)
    assert all(result[2] == 1 for result in ours), "a batch is not the one of the order"
    for at, metric, goal in ((0, "first batch", 10), (1, "first batch after a resume at 73 %", 1)):
        mine = [result[at] * 1e3 for result in ours]
        peer = [result[at] * 1e3 for result in theirs]
        emit("loader", f"{SAMPLES // 1000000} M samples, shuffled", metric, "ms", median(mine), median(peer),
             f"torch DataLoader of {PEER_SAMPLES / 1e6:g} M samples" + (" and skip_first_batches" if at else ""),
             goal=f"<= {goal} ms", passed=median(mine) <= goal, spread=spread(mine))


def bench_small(rounds):
    for workers in (0, 2):
        arguments = ["small", str(SMALL), "32", str(workers), "7"]
        ours, theirs = in_turn(numbers_of([os.path.join(BUILD, "bench/loader_step"), *arguments]),
                               numbers_of([PEER_PYTHON, "-c", PEER, *arguments]), rounds)
        assert len({result[1] for result in ours + theirs}) == 1, "the orders differ"
        mine, peer = ([SMALL / result[0] for result in results] for results in (ours, theirs))
        ratio = median(mine) / median(peer)
        emit("loader", f"samples of 16 floats, batches of 32, {workers} workers", "rate", "samples/s", median(mine), median(peer),
             f"torch DataLoader, {workers} workers", goal=">= 5x", passed=ratio >= 5, spread=spread(mine))


def main():
    rounds = int(os.environ.get("BENCH_ROUNDS", "5"))
    bench_index(rounds)
    bench_small(rounds)


if __name__ == "__main__":
    main()
