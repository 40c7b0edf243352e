#!/usr/bin/env python3
"""`accel test`: its words, what it says without the self test, and that each check can fail.

Run by ctest. Exits with 1 and names what differs.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[3]))
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", SOURCE / "build"))
SELF_TEST = BUILD / "bin/accel-selftest"
SUCCESS = "Test is a success! You are ready for your distributed training!"
CHECKS = ("collectives", "objects", "data loaders", "random numbers", "training")
CONFIG = """compute_environment: LOCAL_MACHINE
distributed_type: MULTI_CPU
mixed_precision: '{precision}'
num_machines: 1
num_processes: {processes}
use_cpu: true
main_process_port: 0
"""
faults = []


def expect(condition, what):
    if not condition:
        faults.append(what)


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def without_the_self_test(folder):
    for name in ("accel", "accel-shim"):
        shutil.copy(BUILD / "bin" / name, folder / name)
    code, out, err = run(folder / "accel", "test")
    expect(code == 1 and "there is no accel-selftest" in err and "-DACCEL_WITH_TORCH=ON" in err and SUCCESS not in out,
           f"without the self test: {code} {out} {err}")


def accel_launches():
    """The commands of `accel` and the launch have a command line each, in one program."""
    code, out, err = run(BUILD / "bin/accel", "launch", "--cpu", "--num_processes", 1, "/bin/echo", "launched")
    expect(code == 0 and "launched" in out, f"accel launch: {code} {out} {err}")


def a_set_up_that_works(folder):
    for processes, precision in ((1, "no"), (2, "bf16")):
        config = folder / f"{processes}.yaml"
        config.write_text(CONFIG.format(processes=processes, precision=precision))
        code, out, err = run(BUILD / "bin/accel", "test", "--config_file", config)
        expect(code == 0 and out.rstrip().endswith(SUCCESS), f"{processes} processes: {code} {out} {err}")
        for check in CHECKS:
            expect(f"accel-selftest: {check}: " in out, f"{processes} processes: no word on {check}: {out}")


def each_check_can_fail():
    for number, check in enumerate(CHECKS):
        rank = number % 2
        code, out, err = run(BUILD / "bin/accel-launch", "--cpu", "--num_processes", 2, "--main_process_port", 0,
                             SELF_TEST, "--fault", f"{check}:{rank}")
        wanted = f'rank {rank} of 2: the check "{check}" failed: '
        expect(code == 1 and wanted in err, f"{check} does not fail: {code} {out} {err}")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        without_the_self_test(folder)
        accel_launches()
        if SELF_TEST.exists():
            a_set_up_that_works(folder)
            each_check_can_fail()
    for fault in faults:
        print("selftest:", fault)
    print(f"selftest: {len(faults)} faults" + ("" if SELF_TEST.exists() else "; without LibTorch nothing is launched"))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
