"""Turns the JSON lines of bench/run into docs/benchmarks.md."""

import json
import os
import platform
import subprocess
import sys

HEAD = """# How fast is accel beside its peers?

Written by `bench/run all`; do not edit. Every row compares accel with the named peer in the same run, on the same
machine, in turn (A B A B ...), medians; both sides were checked to give the same result first. `ratio` is how many
times accel is better (peer / accel for times and sizes, accel / peer for rates). A missed goal is shown as missed.
"""


def machine():
    model = "unknown processor"
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return f"{os.cpu_count()} cores ({model}), Linux {platform.release()}, no GPU; commit {commit}"


def main():
    rows = [json.loads(line) for line in open(sys.argv[1]) if line.startswith("{")]
    print(HEAD)
    print(f"Machine: {machine()}.\n")
    print("| bench | case | metric | accel | peer | peer is | ratio | limit | goal | |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    show = lambda value: "-" if value is None else f"{value:g}"
    for row in rows:
        unit = row["unit"]
        verdict = {True: "met", False: "**missed**", None: "reported"}[row["pass"]]
        limit = "-" if row["limit"] is None else f"{row['of_limit']:g} of {row['limit']:g}"
        print(f"| {row['bench']} | {row['case']} | {row['metric']} ({unit}) | {show(row['accel'])} | {show(row['peer'])} "
              f"| {row['peer_name'] or '-'} | {show(row['ratio'])} | {limit} | {row['goal']} | {verdict} |")


if __name__ == "__main__":
    main()
