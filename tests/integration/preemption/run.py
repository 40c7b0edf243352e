#!/usr/bin/env python3
"""A job that has to make room saves on every rank at one step, ends with the requeue code, and goes on as if
it had never been interrupted."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

BUILD = os.environ["ACCEL_BUILD_DIR"]
EPOCHS = 4
PATIENCE = 120  # seconds that a step may take at most on a loaded machine


def command(project, *arguments):
    return [f"{BUILD}/bin/accel-launch", "--cpu", "--num_processes", "2", f"{BUILD}/examples/digits", "--",
            "--epochs", str(EPOCHS), "--project_dir", str(project), *arguments]


def run(*arguments):
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def checkpoints(project):
    """Step of each complete checkpoint, by number."""
    found = {}
    for manifest in (project / "checkpoints").glob("checkpoint_*/accel_checkpoint.json"):
        found[int(manifest.parent.name.split("_")[1])] = json.loads(manifest.read_text())["step"]
    return dict(sorted(found.items()))


def preempt(project, number):
    job = subprocess.Popen(command(project), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + PATIENCE
        while not checkpoints(project):
            assert job.poll() is None and time.monotonic() < deadline, "no checkpoint appeared"
            time.sleep(0.01)
        job.send_signal(number)
        out, err = job.communicate(timeout=PATIENCE)
    finally:
        job.kill()
    assert job.returncode == 85, (job.returncode, out, err)
    assert "every rank has saved" in err, err
    assert err.count("preempted: saved ") == 1, err
    return err


def results(out):
    losses = dict(re.findall(r"^epoch (\d+) loss (\S+)$", out, re.MULTILINE))
    return losses, out.splitlines()[-1]


def main():
    with tempfile.TemporaryDirectory() as folder:
        whole, accuracy = results(run(pathlib.Path(folder) / "whole"))
        project = pathlib.Path(folder) / "project"

        err = preempt(project, signal.SIGUSR1)

        saved = checkpoints(project)
        newest, step = list(saved.items())[-1]
        assert f"the newest checkpoint is {project}/checkpoints/checkpoint_{newest} (step {step})" in err, err
        assert step < EPOCHS * 45, f"the job was over at step {step}"
        resumed = run(project, "--resume")
        losses, resumed_accuracy = results(resumed)
        assert f"going on from {project}/checkpoints/checkpoint_{newest}\n" in resumed, resumed
        # The loss of the epoch that was cut is the mean over what was left of it; those after it are whole.
        for epoch in sorted(losses)[1:]:
            assert losses[epoch] == whole[epoch], (epoch, losses, whole)
        assert resumed_accuracy == accuracy, (resumed_accuracy, accuracy)
        print(f"preempted at step {step}, resumed epochs {sorted(losses)}: {accuracy}")


if __name__ == "__main__":
    sys.exit(main())
