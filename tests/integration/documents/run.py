#!/usr/bin/env python3
"""The documents hold: README's length, every relative link, every file that a document names in `backticks`, every block of code below
a line that begins with the name of a file of ours and ends in a colon (it is a part of that file), and the C++ of the pages in COMPILED,
which is that of a test that compiles and runs it."""

import os
import pathlib
import re
import sys

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[3]))
NAMED = re.compile(r"`((?:agent|bench|checkpoint_tools|cmake|configs|deploy|docs|examples|launcher|libaccel|proto|runtime|safetensors|scripts|tests|train)/[\w./-]+)`")

EXCERPT = re.compile(r"^`([\w./-]+)`[^\n]*:\n\n```\w*\n(.*?)^```", re.S | re.M)


def pages():
    return [*SOURCE.glob("*.md"), *(SOURCE / "docs").rglob("*.md")]


def excerpt_faults(name, text):
    for path, block in EXCERPT.findall(text):
        if (SOURCE / path).is_file() and block not in (SOURCE / path).read_text():
            yield f"{name} shows a block of {path} that is not in it"


# A page, and the test that has its blocks of C++, but for includes, comments and the breaks of lines.
COMPILED = {
    "docs/safetensors.md": "tests/unit/safetensors/page_test.cc",
    "docs/exporting-models.md": "tests/unit/libaccel/exporting/page_test.cc",
}


def code_of(text):
    lines = [re.sub(r"//.*", "", line) for line in text.splitlines() if not line.startswith("#include")]
    return re.sub(r"\s", "", "".join(lines))


def code_faults():
    for page, test in COMPILED.items():
        blocks = re.findall(r"^```cpp\n(.*?)^```", (SOURCE / page).read_text(), re.MULTILINE | re.DOTALL)
        if not blocks:
            yield f"{page} has no C++ any more: take it out of COMPILED"
        compiled = code_of((SOURCE / test).read_text())
        for block in blocks:
            if code_of(block) not in compiled:
                yield f"{test} does not compile what {page} shows: {block.splitlines()[0]} ..."


def faults():
    yield from code_faults()
    lines = (SOURCE / "README.md").read_text().splitlines()
    if len(lines) > 150:
        yield f"README.md has {len(lines)} lines, at most 150 are allowed"
    index = (SOURCE / "docs/README.md").read_text()
    for page in (SOURCE / "docs").rglob("*.md"):
        name = page.relative_to(SOURCE / "docs")
        if f"({name})" not in index and name != pathlib.Path("README.md"):
            yield f"docs/README.md does not name {name}"
    for page in pages():
        text = page.read_text()
        name = page.relative_to(SOURCE)
        prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", prose):
            if not (page.parent / target).exists():
                yield f"{name} links {target}, which is not there"
        yield from excerpt_faults(name, text)
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
