#!/usr/bin/env python3
"""The documents hold: README's length, the folder and the entry of each page, every relative link and the heading that it names, every page that any file of the
sources names, every file that a document names in `backticks`, every block of code below a line that begins with the name of a file of
ours and ends in a colon (it is a part of that file), and the C++ of the pages in COMPILED, which is that of a test that compiles and
runs it."""

import os
import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[3]))
NAMED = re.compile(r"`((?:agent|bench|checkpoint_tools|cmake|configs|deploy|docs|examples|launcher|libaccel|proto|runtime|safetensors|scripts|tests|train)/[\w./-]+)`")

PAGE = re.compile(r"\bdocs/[\w/-]+\.md\b")

KINDS = ("tutorials", "guides", "admin", "reference", "internals")

EXCERPT = re.compile(r"^`([\w./-]+)`[^\n]*:\n\n```\w*\n(.*?)^```", re.S | re.M)


def pages():
    return [*SOURCE.glob("*.md"), *(SOURCE / "docs").rglob("*.md")]


def excerpt_faults(name, text):
    for path, block in EXCERPT.findall(text):
        if (SOURCE / path).is_file() and block not in (SOURCE / path).read_text():
            yield f"{name} shows a block of {path} that is not in it"


# A page, and the test that has its blocks of C++, but for includes, comments and the breaks of lines.
COMPILED = {
    "docs/guides/activations.md": "tests/unit/libaccel/recompute/activation_checkpoint_test.cc",
    "docs/guides/safetensors.md": "tests/unit/safetensors/page_test.cc",
    "docs/guides/exporting-models.md": "tests/unit/libaccel/exporting/page_test.cc",
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


def place_faults():
    index = (SOURCE / "docs/README.md").read_text()
    for page in (SOURCE / "docs").rglob("*.md"):
        name = page.relative_to(SOURCE / "docs")
        if name == pathlib.Path("README.md"):
            continue
        if name.parts[0] not in KINDS:
            yield f"docs/{name} lies in none of the folders {', '.join(KINDS)}"
        if f"({name})" not in index:
            yield f"docs/README.md does not name {name}"


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors_of(text):
    """As GitHub makes them of headings, and those that a page gives itself."""
    prose = without_code(text)
    headings = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings} | set(re.findall(r'<a id="([^"]+)">', prose))


def link_faults(page):
    name = page.relative_to(SOURCE)
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", without_code(page.read_text())):
        target = page.parent / path if path else page
        if not target.exists():
            yield f"{name} links {path}, which is not there"
        elif anchor and target.suffix == ".md" and anchor not in anchors_of(target.read_text()):
            yield f"{name} links {path}#{anchor}: that page has no such heading"


def tracked_files():
    listed = subprocess.run(["git", "-C", SOURCE, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            capture_output=True, text=True, check=True)
    return [SOURCE / name for name in listed.stdout.split("\0") if name]


def mention_faults():
    """Comments and messages name pages by their path from the root."""
    for path in tracked_files():
        if not path.is_file():
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            for page in PAGE.findall(line):
                if not (SOURCE / page).exists():
                    yield f"{path.relative_to(SOURCE)}:{number} names {page}, which is not there"


def faults():
    yield from code_faults()
    yield from place_faults()
    yield from mention_faults()
    lines = (SOURCE / "README.md").read_text().splitlines()
    if len(lines) > 150:
        yield f"README.md has {len(lines)} lines, at most 150 are allowed"
    for page in pages():
        text = page.read_text()
        name = page.relative_to(SOURCE)
        yield from link_faults(page)
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
