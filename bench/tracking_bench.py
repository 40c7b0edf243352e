#!/usr/bin/env python3
"""B18: what one log() of three numbers takes in a step of 20 ms, TensorBoard, against Accelerate's tracker.

The files of both sides are read back first: each has every step's loss.
"""
import os
import subprocess
import sys
import tempfile

from measure import BUILD, emit, in_turn, median, spread

STEPS = 300
PEER_PYTHON = os.environ.get("ACCEL_TRACKER_PYTHON", sys.executable)
PEER = """
import sys, time
from accelerate import Accelerator
accelerator = Accelerator(log_with="tensorboard", project_dir=sys.argv[1], cpu=True)
accelerator.init_trackers("bench", {"lr": 0.1})
for step in range(int(sys.argv[2])):
    end, total = time.perf_counter() + 0.02, 0.0
    while time.perf_counter() < end:
        for i in range(1, 100):
            total += 1.0 / i
    begin = time.perf_counter()
    accelerator.log({"loss": 1.0 / (step + 1), "lr": 0.1, "epoch": step // 100}, step)
    print((time.perf_counter() - begin) * 1e6)
accelerator.end_training()
"""
READ = """
import glob, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
reader = EventAccumulator(max(glob.glob(sys.argv[1] + "/bench/events*")), size_guidance={"scalars": 0})
reader.Reload()
print([each.step for each in reader.Scalars("loss")] == list(range(int(sys.argv[2]))))
"""


def times_of(command):
    def run():
        with tempfile.TemporaryDirectory() as folder:
            out = subprocess.run([*command[:-1], folder, *command[-1]], check=True, capture_output=True, text=True).stdout
            read = subprocess.run([PEER_PYTHON, "-c", READ, folder, str(STEPS)], check=True, capture_output=True, text=True)
            assert read.stdout.strip() == "True", read.stdout
            return median([float(line) for line in out.split()])

    return run


def main():
    ours, theirs = in_turn(times_of([os.path.join(BUILD, "bench/tracking_step"), ["tensorboard", str(STEPS)]]),
                           times_of([PEER_PYTHON, "-c", PEER, [str(STEPS)]]), int(os.environ.get("BENCH_ROUNDS", "3")))
    emit("tracking", "log() of three numbers, TensorBoard, once in 20 ms", "time of a call", "us", median(ours), median(theirs),
         "Accelerate's TensorBoardTracker", goal="<= 1 % of the step (200 us)", passed=median(ours) <= 200, spread=spread(ours))


if __name__ == "__main__":
    main()
