#!/usr/bin/env python3
"""The documents hold: README's length, every relative link, and every file that a document names in `backticks`."""

import os
import pathlib
import re
import sys

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[3]))
NAMED = re.compile(r"`((?:agent|bench|checkpoint_tools|cmake|configs|deploy|docs|examples|launcher|libaccel|proto|runtime|safetensors|scripts|tests|train)/[\w./-]+)`")


def faults():
    lines = (SOURCE / "README.md").read_text().splitlines()
    if len(lines) > 150:
        yield f"README.md has {len(lines)} lines, at most 150 are allowed"
    for page in [*SOURCE.glob("*.md"), *(SOURCE / "docs").glob("*.md")]:
        text = page.read_text()
        name = page.relative_to(SOURCE)
        for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", text):
            if not (page.parent / target).exists():
                yield f"{name} links {target}, which is not there"
        for target in NAMED.findall(text):
            if not (SOURCE / target.rstrip(".")).exists():
                yield f"{name} names {target}, which is not there"


def main():
    found = list(faults())
    for fault in found:
        print("documents:", fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
