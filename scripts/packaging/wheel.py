#!/usr/bin/env python3
"""Makes the wheel of the launcher of a folder with its programs.

    wheel.py --programs DIR --version V --sbom FILE --licenses DIR --output DIR [--command NAME]...

The programs are static, so they run with any C library; the tag names the oldest that pip knows to ask for and that accel is
tried with or below. What pip puts on PATH are the programs themselves: no Python starts before them. A NAME is a command of `accel`
that gets a program accel-NAME. Equal inputs and an equal SOURCE_DATE_EPOCH give equal bytes.
"""

import argparse
import base64
import datetime
import hashlib
import os
import pathlib
import platform
import sys
import zipfile

NAME = "accel_launch"
PROGRAMS = {"accel": "accel", "accel-launch": "accel-launch", "accel-shim": "accel-shim", "accel-torchrun": "accel-launch"}
COMMAND = '#!/bin/sh\nexec "$(dirname "$(readlink -f "$0")")/accel" {} "$@"\n'

METADATA = """Metadata-Version: 2.4
Name: accel-launch
Version: {version}
Summary: Starts, watches and restarts the processes of a training job: accelerate launch and torchrun in milliseconds
License-Expression: Apache-2.0
{license_files}Requires-Python: >=3.7
Classifier: Operating System :: POSIX :: Linux
Description-Content-Type: text/plain

accel-launch takes the flags and files of `accelerate launch`, accel-torchrun those of torchrun. A rank that fails ends the job with one
report that names it. Linux 5.7 or later. docs/admin/install.md of the sources says what this package holds and what it does not.
"""


class Wheel:
    """A zip archive whose entries have one time, in the order in which they are added."""

    def __init__(self, path):
        when = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
        self.time = when.timetuple()[:6]
        self.archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, content, mode=0o644):
        entry = zipfile.ZipInfo(name, self.time)
        entry.external_attr = (0o100000 | mode) << 16
        entry.create_system = 3  # Unix: the mode counts
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.archive.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}")

    def close(self, record):
        self.add(record, "\n".join([*self.record, f"{record},,", ""]).encode())
        self.archive.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("programs", "sbom", "licenses", "output"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--command", action="append", default=[])
    wanted = parser.parse_args()
    tag = f"py3-none-manylinux_2_28_{platform.machine()}"
    path = wanted.output / f"{NAME}-{wanted.version}-{tag}.whl"
    wheel = Wheel(path)
    scripts = f"{NAME}-{wanted.version}.data/scripts"
    for name, program in sorted(PROGRAMS.items()):
        wheel.add(f"{scripts}/{name}", (wanted.programs / program).read_bytes(), 0o755)
    for command in sorted(wanted.command):
        wheel.add(f"{scripts}/accel-{command}", COMMAND.format(command).encode(), 0o755)
    info = f"{NAME}-{wanted.version}.dist-info"
    licenses = sorted(wanted.licenses.iterdir())
    for license_file in licenses:
        wheel.add(f"{info}/licenses/{license_file.name}", license_file.read_bytes())
    wheel.add(f"{info}/sboms/{wanted.sbom.name}", wanted.sbom.read_bytes())
    license_lines = "".join(f"License-File: {license_file.name}\n" for license_file in licenses)
    wheel.add(f"{info}/METADATA", METADATA.format(version=wanted.version, license_files=license_lines).encode())
    wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: accel {wanted.version}\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
    wheel.close(f"{info}/RECORD")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
