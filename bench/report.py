"""Turns the JSON lines of bench/run into docs/benchmarks.md: report.py LINES [OLD]. The rows of other benchmarks are taken
from OLD, which must be of the same machine."""

import json
import os
import platform
import subprocess
import sys

HEAD = """# How fast is accel beside its peers?

Written by `bench/run all` and `bench/run --write NAME...`; do not edit. Every row compares accel with the named peer in the same run, on the same
machine, in turn (A B A B ...), medians; both sides were checked to give the same result first. `ratio` is how many
times accel is better (peer / accel for times and sizes, accel / peer for rates). A missed goal is shown as missed.
"""


HEADING = "| bench | case | metric | accel | peer | peer is | ratio | limit | goal | | commit |"


def machine():
    model = "unknown processor"
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"Machine: {os.cpu_count()} cores ({model}), Linux {platform.release()}, no GPU"


def rendered(row, commit):
    show = lambda value: "-" if value is None else f"{value:g}"
    verdict = {True: "met", False: "**missed**", None: "reported"}[row["pass"]]
    limit = "-" if row["limit"] is None else f"{row['of_limit']:g} of {row['limit']:g}"
    return (f"| {row['bench']} | {row['case']} | {row['metric']} ({row['unit']}) | {show(row['accel'])} | {show(row['peer'])} "
            f"| {row['peer_name'] or '-'} | {show(row['ratio'])} | {limit} | {row['goal']} | {verdict} | {commit} |")


def kept(path, fresh):
    """The rows of `path` but those of the benchmarks in `fresh`. Rows of before there was a commit for each have it from the head."""
    lines = open(path).read().splitlines()
    head = next(line for line in lines if line.startswith("Machine: "))
    if not head.startswith(machine()):
        sys.exit(f"report.py: {path} is of another machine ({head}): run all benchmarks")
    commit = head.partition("; commit ")[2].rstrip(".")
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| bench |")]
    rows = [line + f" {commit} |" if commit else line for line in rows]
    return [line for line in rows if line.split(" | ")[0].removeprefix("| ") not in fresh]


def main():
    rows = [json.loads(line) for line in open(sys.argv[1]) if line.startswith("{")]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    table = [rendered(row, commit) for row in rows]
    if len(sys.argv) > 2:
        table = kept(sys.argv[2], {row["bench"] for row in rows}) + table
    print(HEAD)
    print(machine() + ".\n")
    print(HEADING)
    print("|---" * HEADING.count(" |") + "|")
    # By benchmark; within one in its own order.
    print("\n".join(sorted(table, key=lambda line: line.split(" | ")[0])))


if __name__ == "__main__":
    main()
