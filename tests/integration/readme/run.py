#!/usr/bin/env python3
"""Runs every `accel-launch` line that README.md shows, in a folder with a small ./train and train.py."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ["ACCEL_SOURCE_DIR"])
BUILD = pathlib.Path(os.environ["ACCEL_BUILD_DIR"])

TRAIN_SH = "#!/bin/sh\necho \"shell rank ${RANK:-0} of ${WORLD_SIZE:-1}\"\n"
TRAIN_PY = "import os, sys\nprint('python rank', os.environ['RANK'], sys.argv[1:])\n"


def commands():
    for block in re.findall(r"```sh\n(.*?)```", (SOURCE / "README.md").read_text(), re.S):
        for line in block.splitlines():
            if "accel-launch" in line:
                yield line.split("#")[0].strip()


def main():
    lines = list(commands())
    if len(lines) < 4:
        print("README.md shows fewer commands than it did:", lines)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "build").symlink_to(BUILD)
        (root / "train").write_text(TRAIN_SH)
        (root / "train").chmod(0o755)
        (root / "train.py").write_text(TRAIN_PY)
        for line in lines:
            done = subprocess.run(["bash", "-c", line], cwd=root, capture_output=True, text=True, timeout=60)
            if done.returncode != 0 or "rank" not in done.stdout.lower():
                print(f"{line}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
                return 1
            print("ok:", line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
