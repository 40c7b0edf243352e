#!/usr/bin/env python3
"""Runs the checks that scripts/gpu_check.sh packed, each in processes of its own, and writes report.json and report.md.

Exits with 0: all passed; 1: one failed; 77: there is no GPU, and nothing was run.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

SKIPPED = 77
LIMIT = 150  # seconds of a check
MOST_AFTER_KILL = 5.0  # seconds


def gpu_names():
    """Of the machine's GPUs; empty where there is no driver."""
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                             capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return out.stdout.strip().splitlines() if out.returncode == 0 else []


class Run:
    def __init__(self, options):
        self.folder = options.folder.resolve()
        self.cpu = options.cpu
        self.end = time.monotonic() + options.seconds
        self.environment = dict(os.environ)
        places = [str(self.folder / "lib"), str(options.torch / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
        self.environment["LD_LIBRARY_PATH"] = ":".join(place for place in places if place)
        if self.cpu:
            self.environment["ACCELERATE_USE_CPU"] = "1"

    def call(self, words, more=None):
        """(exit status, output, seconds); the status of a run without an end is 124."""
        left = min(LIMIT, self.end - time.monotonic())
        began = time.monotonic()
        if left <= 0:
            return 124, "no time was left", 0.0
        program = subprocess.Popen([str(self.folder / "bin" / words[0]), *words[1:]], env={**self.environment, **(more or {})},
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                   start_new_session=True)
        try:
            output, _ = program.communicate(timeout=left)
            status = program.returncode
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            output, _ = program.communicate()
            status = 124
            output += f"\nno end after {left:.0f} s"
        return status, output, time.monotonic() - began

    def two_ranks(self, check, more=None):
        # Not accel-launch: it refuses more processes than GPUs, and here two ranks are to share one.
        return self.call(["accel-torchrun", "--nproc-per-node", "2", str(self.folder / "bin/gpu_checks"), check], more)


def after_a_kill(outcome):
    """The job must have ended with an error soon after the signal."""
    status, output, seconds = outcome
    ended = time.time()
    said = re.search(r"killed at (\d+)", output)
    if said is None:
        return 1, output + "\nno rank said that it was killed", seconds
    late = ended - int(said.group(1)) / 1000
    holds = status not in (0, 124) and late <= MOST_AFTER_KILL
    return (0 if holds else 1), f"all ranks had ended {late:.1f} s after the kill (status {status})", seconds


def run_all(run, num_gpus):
    """A row for each check: name, what it is, outcome, seconds, detail."""
    alone = {"losses_fp32": "losses in fp32 beside LibTorch's own on the CPU, five kinds of models",
             "curve_bf16": "loss curves in bf16 beside fp32",
             "curve_fp16": "loss curves in fp16 with a loss scaler beside fp32",
             "checkpoint": "a checkpoint: the same losses and random numbers after the load",
             "leaks": "no memory is lost in 1,000 steps"}
    calls = [(name, what, lambda name=name: run.call(["gpu_checks", name])) for name, what in alone.items()]
    one_gpu = {"CUDA_VISIBLE_DEVICES": "0"} if num_gpus else {}
    calls.append(("ranks_on_one_gpu", "two ranks share a GPU: gradients through the memory of the host",
                  lambda: run.two_ranks("ranks", {"ACCEL_WANTED_BACKEND": "shm", **one_gpu})))
    divided = {"zero_1": "optimizer states divided over two ranks", "shard_grad_op": "gradients, too", "full_shard": "parameters, too"}
    for name, what in divided.items():
        calls.append((name, what + ", which share a GPU",
                      lambda name=name: run.two_ranks(name, {"ACCEL_WANTED_BACKEND": "shm", **one_gpu})))
    calls.append(("killed_rank", "a killed rank ends the other within 5 s",
                  lambda: after_a_kill(run.two_ranks("killed", one_gpu))))
    rows = []
    for name, what, call in calls:
        status, output, seconds = call()
        outcome = {0: "passed", SKIPPED: "not run"}.get(status, "FAILED")
        rows.append({"name": name, "what": what, "outcome": outcome, "seconds": round(seconds, 1),
                     "detail": output.strip()[-4000:]})
        print(f"{outcome:8} {name} ({seconds:.1f} s)", flush=True)
        if outcome == "FAILED":
            print(output.strip()[-4000:], flush=True)
    for check, what in {"ranks": "copies on two ranks", **divided}.items():
        name, what = f"{check}_nccl", what + ", with a GPU each: NCCL"
        if num_gpus < 2:
            rows.append({"name": name, "what": what, "outcome": "not run", "seconds": 0,
                         "detail": f"{num_gpus} GPUs, NCCL needs 2"})
            continue
        status, output, seconds = run.two_ranks(check, {"ACCEL_WANTED_BACKEND": "nccl"})
        rows.append({"name": name, "what": what, "outcome": "passed" if status == 0 else "FAILED",
                     "seconds": round(seconds, 1), "detail": output.strip()[-4000:]})
    return rows


def write_report(options, report):
    options.report.mkdir(parents=True, exist_ok=True)
    (options.report / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    lines = [f"# GPU check: {report['result']}", "", f"- device: {report['device']}", f"- commit: {report['commit']}",
             f"- seconds: {report['seconds']}"]
    if report["reason"]:
        lines.append(f"- reason: {report['reason']}")
    if report["checks"]:
        lines += ["", "| check | what | outcome | seconds |", "|---|---|---|---|"]
        lines += [f"| {row['name']} | {row['what']} | {row['outcome']} | {row['seconds']} |" for row in report["checks"]]
        for row in report["checks"]:
            lines += ["", f"## {row['name']}", "", "```", row["detail"], "```"]
    (options.report / "report.md").write_text("\n".join(lines) + "\n")
    print(f"{report['result']}: {options.report / 'report.md'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--torch", type=pathlib.Path, required=True)
    parser.add_argument("--report", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()
    run = Run(options)
    names = [] if options.cpu else gpu_names()
    report = {"result": "not run", "device": "; ".join(names) or "none", "commit": (run.folder / "commit").read_text().strip(),
              "seconds": 0, "reason": "", "checks": []}
    status, output, _ = (0, "", 0) if options.cpu else run.call(["gpu_checks", "device"])
    if options.cpu:
        report["device"] = "the CPU, compared with itself: no GPU was tried"
    if status == SKIPPED:
        report["reason"] = "no GPU is visible to libaccel"
    elif status != 0:
        report["result"] = "FAILED"
        report["reason"] = "libaccel cannot use the GPU: " + output.strip()
    else:
        report["checks"] = run_all(run, len(names))
        has_failed = any(row["outcome"] == "FAILED" for row in report["checks"])
        report["result"] = "FAILED" if has_failed else "passed on the CPU" if options.cpu else "passed"
    report["seconds"] = round(time.monotonic() - began)
    write_report(options, report)
    return {"not run": SKIPPED, "FAILED": 1}.get(report["result"], 0)


if __name__ == "__main__":
    sys.exit(main())
