#!/usr/bin/env python3
"""Kills a worker of the main job at a random moment; the job goes on and ends as if nothing had happened.

    digits_restart.py [--seed N] [--budget SECONDS] [--runs N] [--long]

Each run starts the digits example with --max_restarts 1 and sends SIGKILL to one worker: before the first
checkpoint, or before the one that follows the n-th. The run without a fault shows how long that is on this
machine. Afterwards the losses and the accuracy are those of a run without a fault, no process of the job is
left, /dev/shm is as before, and the shim had as many open descriptors after the restart as before.
--long: 50 runs. Otherwise as many as fit into the budget, at least 2.
"""
import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

SOURCE = os.environ.get("ACCEL_SOURCE_DIR", os.getcwd())
BUILD = os.environ.get("ACCEL_BUILD_DIR", os.path.join(SOURCE, "build"))
LAUNCH = os.path.join(BUILD, "bin/accel-launch")
DIGITS = os.path.join(BUILD, "examples/digits")
EPOCHS = 5
RANKS = 2
PATIENCE = 180  # seconds that a step may take at most on a loaded machine


class Failure(Exception):
    pass


class TooLate(Exception):
    """The job was over, or as good as, when its worker was to be killed."""


def wait_until(what, condition, job):
    """Polls until condition() gives something true; None when the job ends first."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        if job.poll() is not None:
            return None
        time.sleep(0.005)
    raise Failure(f"waited {PATIENCE} s for {what}")


def processes_with(mark):
    """Process ids whose environment carries the mark, with the path of their program."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if mark.encode() in file.read():
                    found[int(entry)] = os.readlink(f"/proc/{entry}/exe")
        except OSError:
            pass  # ended meanwhile
    return found


def workers_of(mark):
    return [pid for pid, exe in processes_with(mark).items() if exe == os.path.realpath(DIGITS)]


def shim_descriptors(mark):
    for pid, exe in processes_with(mark).items():
        if os.path.basename(exe) == "accel-shim":
            try:
                return len(os.listdir(f"/proc/{pid}/fd"))
            except OSError:
                return None
    return None


def num_checkpoints(project):
    try:
        # The number of the newest: older ones are removed.
        folders = os.listdir(os.path.join(project, "checkpoints"))
    except OSError:
        return 0
    numbers = [int(name.split("_")[1]) for name in folders if re.fullmatch(r"checkpoint_\d+", name)]
    return max(numbers, default=-1) + 1


class Job:
    def __init__(self, folder, *launch_options):
        self.mark = f"ACCEL_TEST_MARK={uuid.uuid4().hex}"
        self.project = os.path.join(folder, "project")
        self.out = open(os.path.join(folder, "out"), "w+")
        self.err = open(os.path.join(folder, "err"), "w+")
        key, value = self.mark.split("=")
        self.process = subprocess.Popen(
            [LAUNCH, "--cpu", "--num_processes", str(RANKS), *launch_options, DIGITS, "--",
             "--epochs", str(EPOCHS), "--project_dir", self.project],
            stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err, env={**os.environ, key: value})

    def finish(self):
        try:
            return self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Failure(f"the job did not end within {PATIENCE} s") from None

    def text(self, file):
        file.seek(0)
        return file.read()

    def lines(self, start):
        return [line for line in self.text(self.out).splitlines() if line.startswith(start)]

    def result(self):
        """Loss of each epoch and the accuracy; the last ones, where a restart repeated something."""
        losses = {}
        for line in self.lines("epoch "):
            _, epoch, _, loss = line.split()
            losses[int(epoch)] = loss
        return losses, self.lines("test accuracy ")[-1:]


class Pace:
    """How long the job takes: seconds from its workers' start to the first checkpoint, and from one to the next.

    A machine that was busy at the reference run may be idle later: a job that was over too early shortens it.
    """

    def __init__(self, to_first, to_next):
        self.to_first = to_first
        self.to_next = to_next

    def __str__(self):
        return f"{self.to_first:.3f} s to the first checkpoint, {self.to_next:.3f} s to the next"

    def moment(self, pick, checkpoints):
        return pick.uniform(0, self.to_next if checkpoints else self.to_first)

    def shorten(self):
        self.to_first *= 0.8
        self.to_next *= 0.8


def reference():
    """The result without a fault, and the job's pace."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder)
        wait_until("the workers", lambda: len(workers_of(job.mark)) == RANKS, job.process)
        started = time.monotonic()
        wait_until("the first checkpoint", lambda: num_checkpoints(job.project) >= 1, job.process)
        first = time.monotonic()
        wait_until("the last checkpoint", lambda: num_checkpoints(job.project) >= EPOCHS, job.process)
        last = time.monotonic()
        if job.finish() != 0:
            raise Failure(f"the run without a fault failed:\n{job.text(job.err)}")
        return job.result(), Pace(first - started, (last - first) / (EPOCHS - 1))


def run_with_fault(pick, expected, pace):
    folder = tempfile.mkdtemp()
    job = None
    try:
        shm_before = sorted(os.listdir("/dev/shm"))
        job = Job(folder, "--max_restarts", "1")
        checkpoints = pick.randint(0, EPOCHS - 2)
        wait_until("the workers", lambda: len(workers_of(job.mark)) == RANKS, job.process)
        wait_until("checkpoints", lambda: num_checkpoints(job.project) >= checkpoints, job.process)
        time.sleep(pace.moment(pick, checkpoints))
        workers = sorted(workers_of(job.mark))
        descriptors = shim_descriptors(job.mark)
        if len(workers) < RANKS:
            raise TooLate
        os.kill(pick.choice(workers), signal.SIGKILL)

        def is_restarted():
            now = workers_of(job.mark)
            return len(now) == RANKS and not set(now) & set(workers)

        if not wait_until("the restart", is_restarted, job.process):
            if job.finish() == 0 and "SIGKILL" not in job.text(job.err):
                raise TooLate
            raise Failure(f"the job was not restarted:\n{job.text(job.err)}")
        wait_until("the shim to have as many descriptors as before",
                   lambda: shim_descriptors(job.mark) == descriptors, job.process)
        status = job.finish()
        if status != 0:
            raise Failure(f"exit {status}\n{job.text(job.out)}\n{job.text(job.err)}")
        if job.result() != expected:
            raise Failure(f"another result: {job.result()}\nexpected {expected}\n{job.text(job.err)}")
        if left := processes_with(job.mark):
            raise Failure(f"processes were left: {left}")
        if sorted(os.listdir("/dev/shm")) != shm_before:
            raise Failure(f"/dev/shm holds {os.listdir('/dev/shm')}, before {shm_before}")
        went_on = job.lines("going on from ")
        return f"killed after checkpoint {checkpoints}: {went_on[0] if went_on else 'nothing was resumed'}"
    finally:
        if job and job.process.poll() is None:
            job.process.kill()
            job.process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("ACCEL_TEST_SEED") or 1))
    parser.add_argument("--budget", type=float, help="seconds",
                        default=float(os.environ.get("ACCEL_TEST_BUDGET") or 60))
    parser.add_argument("--runs", type=int, help="exactly so many")
    parser.add_argument("--long", action="store_true", help="50 runs",
                        default=os.environ.get("ACCEL_TEST_LONG") == "1")
    options = parser.parse_args()
    seed = options.seed
    wanted = 50 if options.long else options.runs
    print(f"seed {seed}", flush=True)
    started = time.monotonic()
    expected, pace = reference()
    print(f"without a fault: {expected[1]}, {pace}", flush=True)
    done = too_late = 0
    while done < wanted if wanted else done < 2 or time.monotonic() - started < options.budget:
        number = done + too_late
        try:
            # Each run has its own generator, so that the seed and its number repeat it.
            print(f"run {number}: {run_with_fault(random.Random(seed + number), expected, pace)}", flush=True)
            done += 1
        except TooLate:
            too_late += 1
            pace.shorten()
            if too_late > 20 + done:
                sys.exit(f"{too_late} of {number + 1} jobs were over before the fault")
        except Failure as failure:
            sys.exit(f"run {number} (repeat with --seed {seed + number} --runs 1): {failure}")
    print(f"{done} runs ended as without a fault; {too_late} were over before it")


if __name__ == "__main__":
    main()
