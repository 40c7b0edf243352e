#!/usr/bin/env python3
"""Ranks of a job with in-memory checkpoints are killed; the job goes on from memory and ends with the very bits of a run
without a fault, and no checkpoint was on disk meanwhile.

    run.py [--seed N] [--long]
"""

import argparse
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid

BUILD = os.environ["ACCEL_BUILD_DIR"]
CHAR_GPT = f"{BUILD}/examples/char_gpt"
STEPS = 80
ZERO_1 = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "1"}
PATIENCE = 120  # seconds that a step may take at most on a loaded machine


class Job:
    def __init__(self, folder, every, *arguments, restarts=0, save_steps=1_000_000, variables=None, steps=STEPS, project=None):
        self.mark = uuid.uuid4().hex
        self.project = project or folder / "project"
        folder.mkdir()
        self.out = open(folder / "out", "w+")
        self.err = open(folder / "err", "w+")
        self.process = subprocess.Popen(
            [f"{BUILD}/bin/accel-launch", "--cpu", "--num_processes", "2", "--max_restarts", str(restarts), CHAR_GPT, "--",
             "--batch_size", "2", "--max_steps", str(steps), "--log_steps", "1", "--save_steps", str(save_steps),
             "--memory_checkpoint_every", str(every), "--project_dir", str(self.project), *arguments],
            stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err,
            env={**os.environ, "ACCEL_TEST_MARK": self.mark, **(variables or {})})

    def text(self, file):
        with open(file.name, errors="replace") as reader:
            return reader.read()

    def explain(self):
        return f"\n--- stdout\n{self.text(self.out)}\n--- stderr\n{self.text(self.err)}"

    def wait_for(self, what, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, f"{what} did not come{self.explain()}"
            time.sleep(0.002)

    def losses(self):
        """By step; of steps that were repeated, all values."""
        found = {}
        for step, loss in re.findall(r"^step (\d+) loss (\S+)$", self.text(self.out), re.MULTILINE):
            found.setdefault(int(step), set()).add(loss)
        return found

    def resumed_at(self):
        return [int(step) for step in re.findall(r"^going on from memory at step (\d+)$", self.text(self.out), re.MULTILINE)]

    def processes(self):
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                if self.mark.encode() in pathlib.Path(f"/proc/{entry}/environ").read_bytes():
                    found[int(entry)] = os.readlink(f"/proc/{entry}/exe")
            except OSError:
                pass  # ended meanwhile
        return found

    def workers(self):
        return sorted(pid for pid, exe in self.processes().items() if exe == os.path.realpath(CHAR_GPT))

    def finish(self):
        status = self.process.wait(timeout=PATIENCE)
        assert status == 0, f"exit {status}{self.explain()}"
        assert not self.processes(), f"left: {self.processes()}"

    def state(self):
        """What the run has come to, by file; the manifest tells of restarts."""
        saved = self.project / "checkpoints" / "checkpoint_0"
        return {path.name: path.read_bytes() for path in saved.iterdir() if path.name != "accel_checkpoint.json"}

    def stop(self):
        self.process.kill()
        self.process.wait()


def written_by(pid):
    """Bytes of the in-memory checkpoints, the largest memory that is shared by name, that this rank has touched."""
    written, begin = {}, None
    with open(f"/proc/{pid}/smaps") as maps:
        for line in maps:
            if "/memfd:accel-shared" in line:
                begin, end = (int(address, 16) for address in line.split()[0].split("-"))
            elif line.startswith("Rss:") and begin is not None:
                written[end - begin] = int(line.split()[1]) << 10
                begin = None
            elif "-" in line.split()[0]:
                begin = None
    return written[max(written)]


def check_shares(job):
    """What is the same on all ranks is copied by all of them, each its share."""
    first, second = (written_by(pid) for pid in job.workers())
    assert 0.8 < first / second < 1.25, f"ranks of a node have written {first} and {second} bytes{job.explain()}"


def kill_one(job, pick, step):
    """Kills a rank once `step` is under way; the job then goes on from memory."""
    job.wait_for(f"step {step}", lambda: step in job.losses())
    if not job.resumed_at():
        check_shares(job)
    time.sleep(pick.uniform(0, 0.03))
    before = len(job.resumed_at())
    workers = job.workers()
    assert len(workers) == 2, f"workers {workers}{job.explain()}"
    os.kill(pick.choice(workers), signal.SIGKILL)
    job.wait_for("the restart", lambda: len(job.resumed_at()) > before)
    assert not (job.project / "checkpoints").exists(), "something was saved on disk"
    return job.resumed_at()[-1]


def kills(folder, kind, pick, every, *arguments, variables=None):
    whole = Job(folder / "whole", every, *arguments, variables=variables)
    try:
        whole.finish()
    finally:
        whole.stop()
    assert "in-memory checkpoints take 2 x " in whole.text(whole.err), whole.explain()

    job = Job(folder / "killed", every, *arguments, restarts=2, variables=variables)
    try:
        resumed = []
        # So early that the job is far from its end when the signal comes.
        for low, high in ((every + 1, STEPS // 8), (STEPS // 8 + 2, STEPS // 3)):
            step = pick.randint(low, high)
            resumed.append(kill_one(job, pick, step))
            # The line of a step comes before its checkpoint, and behind that of the step before on all ranks.
            assert resumed[-1] >= (step - 1) // every * every and resumed[-1] % every == 0, (step, resumed, job.explain())
        job.finish()
    finally:
        job.stop()

    assert job.text(job.err).count("in-memory checkpoints take 2 x ") == 1, job.explain()
    assert job.losses() == whole.losses(), f"{job.losses()}\n{whole.losses()}"
    ours, theirs = job.state(), whole.state()
    assert ours.keys() == theirs.keys()
    differing = [name for name in ours if ours[name] != theirs[name]]
    assert not differing, f"{differing} differ after going on at {resumed}"
    print(f"{kind}, every {every}: went on at steps {resumed}", flush=True)


def newest_of_both(folder, step, every, save_steps):
    """Each step is saved in memory, on disk or both: a restart goes on from the later one, wherever it is."""
    job = Job(folder, every, restarts=1, save_steps=save_steps)
    try:
        job.wait_for(f"step {step}", lambda: step in job.losses())
        os.kill(job.workers()[0], signal.SIGKILL)
        job.finish()
    finally:
        job.stop()
    before, source, resumed = re.search(r"\A(.*?)^going on from (\S+) at step (\d+)$", job.text(job.out),
                                        re.MULTILINE | re.DOTALL).groups()
    last = max(int(number) for number in re.findall(r"^step (\d+) ", before, re.MULTILINE))
    is_memory = source == "memory"
    assert last - 1 <= int(resumed) <= last, (last, source, resumed, job.explain())
    assert int(resumed) % (every if is_memory else save_steps) == 0, (source, resumed, job.explain())
    print(f"memory every {every}, disk every {save_steps}: went on from {'memory' if is_memory else 'disk'} at step {resumed}",
          flush=True)


def memory_after_a_resume(folder):
    """A job that goes on from an earlier one's disk counts generations of its own there; memory is the newer one all the same."""
    folder.mkdir()
    first = Job(folder / "first", 0, steps=6, save_steps=3)
    try:
        first.finish()
    finally:
        first.stop()
    job = Job(folder / "second", 1, "--resume", restarts=1, save_steps=30, steps=59, project=first.project)
    try:
        job.wait_for("step 33", lambda: 33 in job.losses())
        os.kill(job.workers()[0], signal.SIGKILL)
        job.finish()
    finally:
        job.stop()
    assert job.resumed_at() and job.resumed_at()[0] >= 32, job.explain()
    print(f"memory after a resume: went on at step {job.resumed_at()[0]}", flush=True)


def killed_in_the_copy():
    """Rank 0 dies half way through its copy of a step that rank 1 has whole: both go on from the one before."""

    def run(kill_at, restarts):
        done = subprocess.run([f"{BUILD}/bin/accel-launch", "--cpu", "--num_processes", "2", "--max_restarts", str(restarts),
                               f"{BUILD}/tests/memory_worker", "--", str(kill_at)],
                              capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stdout + done.stderr
        return re.findall(r"^went on at step (\d+)$", done.stdout, re.MULTILINE), done.stdout.splitlines()[-1]

    begun, whole = run(0, 0)
    assert not begun and whole.startswith("weights "), (begun, whole)
    assert run(7, 1) == (["6"], whole)
    # In the first copy of all there is nothing to go on from.
    assert run(1, 1) == ([], whole)
    print("killed in the copy of step 7: went on at step 6", flush=True)


def memory_after_a_save_in_the_background(folder):
    """What was copied while a save in the background had begun is newer than that, whatever generation the disk counts."""
    done = subprocess.run([f"{BUILD}/bin/accel-launch", "--cpu", "--num_processes", "2", "--max_restarts", "1",
                           f"{BUILD}/tests/memory_worker", "--", "async", str(folder)],
                          capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["went on from memory at step 3"], done.stdout + done.stderr
    print("memory after a save in the background: went on at step 3", flush=True)


def numbers_go_on_without_a_counted_restart(folder):
    """The first generation leaves checkpoint_0 and memory; the second goes on from memory."""
    done = subprocess.run([f"{BUILD}/bin/accel-launch", "--cpu", "--num_processes", "2", "--max_restarts", "1",
                           f"{BUILD}/tests/memory_worker", "--", "uncounted", str(folder)],
                          capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["went on from memory and saved checkpoint_1"], done.stdout + done.stderr
    print("numbers go on without a counted restart", flush=True)


def ranks_that_differed():
    """A half of each rank's copy would be a model that nobody had."""
    done = subprocess.run([f"{BUILD}/bin/accel-launch", "--cpu", "--num_processes", "2", "--max_restarts", "1",
                           f"{BUILD}/tests/memory_worker", "--", "apart"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["went on from the copy of rank 0"], done.stdout + done.stderr
    print("ranks that differed: went on from the copy of rank 0", flush=True)


def saved_halfway_through_an_accumulation():
    """As on disk, gradients are no part of it, and a line says so."""
    done = subprocess.run([f"{BUILD}/bin/accel-launch", "--cpu", "--num_processes", "2", f"{BUILD}/tests/memory_worker", "--",
                           "halfway"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("in the middle of an accumulation") == 1, done.stderr


def without_launcher(folder):
    done = subprocess.run([CHAR_GPT, "--batch_size", "2", "--max_steps", "4", "--memory_checkpoint_every", "1",
                           "--project_dir", str(folder / "alone")], capture_output=True, text=True, errors="replace",
                          timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("there are no in-memory checkpoints") == 1, done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("ACCEL_TEST_SEED") or 1))
    parser.add_argument("--long", action="store_true", default=os.environ.get("ACCEL_TEST_LONG") == "1")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    for number in range(10 if options.long else 1):
        pick = random.Random(options.seed + number)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for kind, every, arguments, variables in (("copies", 1, (), None), ("shards", 2, ("--fsdp", "FULL_SHARD"), None),
                                                      ("zero", 1, (), ZERO_1)):
                (folder / kind).mkdir()
                kills(folder / kind, kind, pick, every, *arguments, variables=variables)
            newest_of_both(folder / "memory_first", pick.randint(6, 15), 1, 3)
            newest_of_both(folder / "disk_first", pick.choice((8, 11, 14)), 3, 1)  # two steps after memory, as a rule
            memory_after_a_resume(folder / "resume")
            memory_after_a_save_in_the_background(folder / "background")
            numbers_go_on_without_a_counted_restart(folder / "uncounted")
            killed_in_the_copy()
            ranks_that_differed()
            saved_halfway_through_an_accumulation()
            without_launcher(folder)


if __name__ == "__main__":
    sys.exit(main())
