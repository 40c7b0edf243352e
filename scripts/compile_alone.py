#!/usr/bin/env python3
"""Compiles sources by themselves, with the commands of a configured build folder, and nothing that they are linked with.

    scripts/compile_alone.py BUILD_DIR [--one-in N] [--seed N] [--jobs N]

Of N sources one is compiled, another one for each seed. Ninja would first build the programs that a target is said to need.
"""

import argparse
import concurrent.futures
import json
import pathlib
import shlex
import subprocess
import sys


def generated_sources(build):
    """What protoc writes: each beside its header."""
    targets = subprocess.run(["ninja", "-C", build, "-t", "targets", "all"], capture_output=True, text=True, check=True).stdout
    return sorted({line.split(":")[0] for line in targets.splitlines() if line.split(":")[0].endswith(".pb.cc")})


def sources(build):
    """The entries of compile_commands.json that are of sources in the checkout."""
    entries = json.loads((pathlib.Path(build) / "compile_commands.json").read_text())
    folder = str(pathlib.Path(build).resolve())
    return sorted((entry for entry in entries if not entry["file"].startswith(folder)), key=lambda entry: entry["command"])


def compile_alone(entry):
    words = shlex.split(entry["command"])
    output = pathlib.Path(entry["directory"]) / words[words.index("-o") + 1]
    output.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(words, cwd=entry["directory"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return entry["file"], done


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--one-in", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()

    generated = generated_sources(options.build)
    if generated and subprocess.run(["ninja", "-C", options.build, *generated]).returncode != 0:
        sys.exit(1)
    all_sources = sources(options.build)
    chosen = [entry for number, entry in enumerate(all_sources) if (number + options.seed) % options.one_in == 0]
    failed = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for number, (source, done) in enumerate(pool.map(compile_alone, chosen), 1):
            print(f"[{number}/{len(chosen)}] {source}", done.stdout, sep="\n" if done.stdout else "", flush=True)
            if done.returncode != 0:
                failed.append(source)
    print(f"{len(chosen)} of {len(all_sources)} sources compiled alone, {len(failed)} failed", *failed, sep="\n  ")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
