"""Turns the JSON lines of bench/run into docs/reference/benchmarks.md: report.py LINES [OLD]. The rows of other benchmarks, and those of
other machines and conditions, are taken from OLD.

BENCH_CONDITION says what else the machine did; then rows also have the least and the most of their rounds."""

import json
import os
import platform
import subprocess
import sys

HEAD = """# How fast is accel beside its peers?

Written by `bench/run all` and `bench/run --write NAME...`; do not edit. Every row compares accel with the named peer in the same run, on the same
machine, in turn (A B A B ...), medians; both sides were checked to give the same result first. `ratio` is how many
times accel is better (peer / accel for times and sizes, accel / peer for rates). A missed goal is shown as missed.
There is a table for each machine, and one more where other programs ran beside the benchmark.
"""


HEADING = "| bench | case | metric | accel | peer | peer is | ratio | limit | goal | | commit |"


def machine():
    model = "unknown processor"
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    condition = os.environ.get("BENCH_CONDITION")
    return (f"Machine: {os.cpu_count()} cores ({model}), Linux {platform.release()}, no GPU" +
            (f"; {condition}" if condition else "") + ".")


def rendered(row, commit):
    show = lambda value: "-" if value is None else f"{value:g}"
    sides = [show(row["accel"]), show(row["peer"])]
    if os.environ.get("BENCH_CONDITION"):
        ends = row.get("spread") or []
        for side, (least, most) in enumerate(zip(ends[::2], ends[1::2])):
            sides[side] += f" ({least:g} to {most:g})"
    verdict = {True: "met", False: "**missed**", None: "reported"}[row["pass"]]
    limit = "-" if row["limit"] is None else f"{row['of_limit']:g} of {row['limit']:g}"
    return (f"| {row['bench']} | {row['case']} | {row['metric']} ({row['unit']}) | {sides[0]} | {sides[1]} "
            f"| {row['peer_name'] or '-'} | {show(row['ratio'])} | {limit} | {row['goal']} | {verdict} | {commit} |")


def tables_of(path):
    """{line that names the machine: rows}"""
    tables = {}
    rows = None
    for line in open(path).read().splitlines():
        if line.startswith("Machine: "):
            rows = tables.setdefault(line, [])
        elif line.startswith("| ") and not line.startswith("| bench |"):
            rows.append(line)
    return tables


def main():
    rows = [json.loads(line) for line in open(sys.argv[1]) if line.startswith("{")]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    tables = tables_of(sys.argv[2]) if len(sys.argv) > 2 else {}
    fresh = {row["bench"] for row in rows}
    own = tables.setdefault(machine(), [])
    own[:] = [line for line in own if line.split(" | ")[0].removeprefix("| ") not in fresh]
    own += [rendered(row, commit) for row in rows]
    print(HEAD)
    tables = {name: table for name, table in tables.items() if table}
    for number, (name, table) in enumerate(tables.items()):
        print(("\n" if number > 0 else "") + name + "\n")
        print(HEADING)
        print("|---" * HEADING.count(" |") + "|")
        # By benchmark; within one in its own order.
        print("\n".join(sorted(table, key=lambda line: line.split(" | ")[0])))


if __name__ == "__main__":
    main()
