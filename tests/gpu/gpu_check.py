#!/usr/bin/env python3
"""scripts/gpu_check.sh where there is no GPU: what it packs runs from another folder, and it says what was not run."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ["ACCEL_SOURCE_DIR"])
BUILD = pathlib.Path(os.environ["ACCEL_BUILD_DIR"])
SCRIPT = SOURCE / "scripts/gpu_check.sh"


def call(*words, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)
    print(done.stdout, done.stderr, flush=True)
    return done


def expect(holds, what):
    if not holds:
        sys.exit(f"gpu_check: {what}")


def torch_package():
    cache = (BUILD / "CMakeCache.txt").read_text()
    named = [line.split("=", 1)[1] for line in cache.splitlines() if line.startswith("ACCEL_TORCH_ROOT:")]
    if named and named[0]:
        return pathlib.Path(named[0])
    return next(SOURCE.glob(".deps/torch/lib/python3*/site-packages/torch"))


def main():
    for needed in ("libaccel/libaccel_cuda.so", "static/accel-launch-static", "tests/gpu_checks"):
        if not (BUILD / needed).exists():
            print(f"{needed} is not built")
            sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="gpu_check.") as name:
        work = pathlib.Path(name)

        packed = call(SCRIPT, "--pack", work / "pack", "--no-build")
        expect(packed.returncode == 0, "--pack failed")
        names = {path.name for path in (work / "pack").rglob("*")}
        expect({"libaccel_cuda.so", "libaccel.so.0", "gpu_checks", "accel-torchrun"} <= names, f"--pack left out some of {names}")
        expect(not any("torch_c" in name or "libc10" in name for name in names), "--pack took LibTorch")

        large = call(SCRIPT, "--pack", work / "large", "--no-build", "--limit-mb", 1)
        expect(large.returncode == 1 and "more than 1" in large.stderr, "a size above the limit is an error")
        expect(not (work / "large").exists(), "what is too large is not delivered")

        shutil.move(work / "pack", work / "elsewhere")
        ran = call(work / "elsewhere/gpu_check.sh", "--cpu", "--torch", torch_package(), "--report", work / "cpu", cwd=work)
        expect(ran.returncode == 0, "the packed checks failed on the CPU")
        report = json.loads((work / "cpu/report.json").read_text())
        outcomes = {row["name"]: row["outcome"] for row in report["checks"]}
        for check in ("ranks", "zero_1", "shard_grad_op", "full_shard"):
            expect(outcomes.pop(f"{check}_nccl") == "not run", "NCCL cannot have been tried")
        expect(len(outcomes) == 10 and set(outcomes.values()) == {"passed"}, f"outcomes: {outcomes}")
        expect("no GPU was tried" in report["device"] and report["result"] == "passed on the CPU", "a report of the CPU says so")

        nothing = call(work / "elsewhere/gpu_check.sh", "--torch", torch_package(), "--report", work / "none", cwd=work,
                       env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
        expect(nothing.returncode == 77, f"without a GPU the status is {nothing.returncode}")
        report = json.loads((work / "none/report.json").read_text())
        expect(report["result"] == "not run" and report["checks"] == [], f"report: {report}")
        expect("not run" in (work / "none/report.md").read_text(), "report.md says it too")


main()
