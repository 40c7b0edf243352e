"""A worker in Python that tells the benchmarks what they measure: python_worker.py MODE [ARGUMENT ...]

nothing             ends at once
touch FOLDER        leaves the file FOLDER/RANK-of-WORLD_SIZE
fail                ends with status 5
memory FILE LEVELS  rank 0 writes to FILE what its parents, LEVELS of them, had in memory at most, in KB
probe               as bench/restart_probe.cc
flood ...           as bench/flooder.cc, with its flags
"""

import time

STARTED = time.clock_gettime_ns(time.CLOCK_MONOTONIC)  # the first statement: what `probe` tells

import os
import sys

LINE = 128
BLOCK = 1 << 20


def touch(folder):
    open(f"{folder}/{os.environ['RANK']}-of-{os.environ['WORLD_SIZE']}", "w").close()


def status_of(pid):
    with open(f"/proc/{pid}/status") as file:
        return {name: value.strip() for name, value in (line.split(":", 1) for line in file)}


def memory(file, levels):
    pid, total = os.getppid(), 0
    for _ in range(int(levels)):
        status = status_of(pid)
        total, pid = total + int(status["VmHWM"].split()[0]), status["PPid"]
    if os.environ["RANK"] == "0":
        with open(file, "w") as out:
            out.write(str(total))


def probe():
    import signal
    import socket

    generation = os.environ["TORCHELASTIC_RESTART_COUNT"]
    text = f"{os.environ['RANK']} {generation} {os.getpid()} {STARTED}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(text.encode(), os.environ["PROBE_SOCKET"])
    while generation == "0":
        signal.pause()


def block_of(rank):
    """1 MiB of lines that name the rank and their number in the block."""
    lines = []
    for number in range(BLOCK // LINE):
        text = f"rank {rank} line {number} ".encode()
        lines.append(text.ljust(LINE - 1, bytes([ord("a") + number % 26])) + b"\n")
    return b"".join(lines)


def flood(*words):
    options = {"--bytes": "0", "--write": str(64 * 1024), "--seconds": "0", "--times": ""}
    options |= dict(zip(words[::2], words[1::2]))
    rank, wanted, seconds = os.environ["RANK"], int(options["--bytes"]), float(options["--seconds"])
    size, block = int(options["--write"]), memoryview(block_of(rank))
    took, done = [], 0
    began = now = time.monotonic_ns()
    while done < wanted if wanted else now - began < seconds * 1e9:
        at = done % BLOCK
        end = min(at + size, BLOCK, at + wanted - done if wanted else BLOCK)
        before = now
        done += os.write(1, block[at:end])
        now = time.monotonic_ns()
        took.append(now - before)
    if options["--times"]:
        took.sort()
        p50, p99 = took[len(took) // 2] / 1e3, took[int(0.99 * (len(took) - 1))] / 1e3
        with open(f"{options['--times']}/{rank}.json", "w") as out:
            out.write(f'{{"began": {began}, "ended": {now}, "writes": {len(took)}, "p50_us": {p50}, "p99_us": {p99}}}\n')


MODES = {"nothing": lambda: None, "touch": touch, "fail": lambda: sys.exit(5), "memory": memory, "probe": probe,
         "flood": flood}

if __name__ == "__main__":
    MODES[sys.argv[1]](*sys.argv[2:])
