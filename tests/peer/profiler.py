#!/usr/bin/env python3
"""What accel::Profiler counts is what Accelerate's profiler counts of the same model: names, calls, FLOPs, bytes and shapes.

Runs the same steps as build/tests/operations_peer and with the installed accelerate, and compares every number that is not a
time. Of the trace the structure is checked, and that its events are those of the table.
Run by ctest; exits with 77 (skipped) when the peer is not installed.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", SOURCE / "build"))
PYTHON = SOURCE / ".deps/peer/bin/python"


def peer(folder):
    """The Python half: what profile_steps() of operations_peer.cc does."""
    import torch
    from accelerate import Accelerator
    from accelerate.utils import ProfileKwargs

    weights = {"kernel": torch.full((8, 3, 3, 3), 0.1), "dense": torch.full((10, 288), 0.01), "bias": torch.zeros(10)}
    for weight in weights.values():
        weight.requires_grad_()
    images, labels = torch.ones(4, 3, 8, 8), torch.arange(4)
    # Plain numbers take other overloads in C++, and a backward without a gradient allocates it otherwise.
    scale, shift, root = torch.full((10,), 2.0), torch.ones(10), torch.ones(())

    def step():
        hidden = torch.relu(torch.conv2d(images, weights["kernel"]))
        out = torch.addmm(weights["bias"], hidden.reshape(4, 288), weights["dense"].t())
        loss = torch.nn.functional.cross_entropy(out * scale + shift, labels)
        loss.backward(root)

    step()  # gradients are made anew in the first backward, and added to in others
    kwargs = ProfileKwargs(activities=["cpu"], record_shapes=True, profile_memory=True, with_flops=True,
                           schedule_option={"wait": 1, "warmup": 1, "active": 2, "repeat": 1}, output_trace_dir=folder)
    with Accelerator(cpu=True).profile(kwargs) as profiler:
        for _ in range(5):
            step()
            profiler.step()

    def rows(averages):
        return [[row.key, row.count, row.flops, row.cpu_memory_usage, row.self_cpu_memory_usage,
                 str(row.input_shapes) if row.input_shapes else ""] for row in averages]

    print(json.dumps({
        "by name": rows(profiler.key_averages()), "by shape": rows(profiler.key_averages(group_by_input_shape=True)),
        "steps": profiler.step_num,
        "table": profiler.key_averages(group_by_input_shape=True).table(sort_by="flops", row_limit=5)}))


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def merged(rows):
    return sorted(map(tuple, rows))


def times_taken_out(table):
    """What is left of a table: names, numbers and places, with each time and share as one sign."""
    return re.sub(r" *\b[\d.]+(us|ms|s|%)", " T", table).splitlines()


def check_trace(path, rows):
    trace = json.loads(path.read_text())
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    assert events and all({"name", "pid", "tid", "ts", "dur"} <= event.keys() for event in events), path
    names = [event["name"] for event in events]
    for name, count, *_ in rows:
        if name.startswith("aten::"):
            assert names.count(name) == count, (name, count, names.count(name))
    return {name for name in names if name.startswith("aten::")}


def main():
    if not PYTHON.exists():
        print("skipped: the peer is not installed")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        theirs, _ = run([PYTHON, __file__, "peer", f"{folder}/peer"])
        ours, stderr = run([BUILD / "tests/operations_peer", "profile", f"{folder}/accel"])
        assert "ERROR" not in stderr and "Failed" not in stderr, stderr
        assert ours["steps"] == theirs["steps"] == 5
        for what in ("by name", "by shape"):
            assert merged(ours[what]) == merged(theirs[what]), "\n".join(
                f"{one}" for one in sorted(set(merged(ours[what])) ^ set(merged(theirs[what]))))
        assert times_taken_out(ours["table"]) == times_taken_out(theirs["table"]), ours["table"] + theirs["table"]
        names = [check_trace(pathlib.Path(folder) / half / "profile_0.json", table["by name"])
                 for half, table in (("accel", ours), ("peer", theirs))]
        assert names[0] == names[1], names[0] ^ names[1]
        flops = {row[0]: row[2] for row in ours["by name"]}
        # Two steps: 4 images, 8 kernels of 3 x 3 x 3 at 6 x 6 places; rows of 288; 40 numbers.
        assert flops["aten::conv2d"] == 2 * 2 * 4 * 8 * 27 * 36, flops
        assert flops["aten::addmm"] == 2 * 2 * 4 * 288 * 10, flops
        print(f"{len(ours['by name'])} names, {len(ours['by shape'])} with shapes: all numbers equal")
    return 0


if __name__ == "__main__":
    sys.exit(peer(sys.argv[2]) if sys.argv[1:2] == ["peer"] else main())
