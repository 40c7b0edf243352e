#!/usr/bin/env python3
"""Finds names that several sources of one target keep to themselves.

A unity build compiles sources together, so a name in an unnamed namespace belongs to one source of a target: a function that
two sources need is written once, and two functions that differ have names that say so. Sources belong together when the
nearest CMakeLists.txt is the same. Prints a line for each name and exits with 1 if there is one.
"""

import collections
import pathlib
import re
import subprocess
import sys

TARGETS = ("runtime", "agent", "launcher", "checkpoint_tools", "safetensors", "libaccel")
DECLARATIONS = (
    re.compile(r"(?:struct|class|union|enum class|enum) (\w+)(?= [:{]|;|$)"),
    re.compile(r"using (\w+) ="),
    re.compile(r"(?:\w[\w:<>,&*\[\]() ]*?[ &*])?(\w+)(?:\(| = | =$|\[|\{|;)"),
)


def private_names(source: pathlib.Path) -> set[str]:
    """What the unnamed namespaces of a source define; clang-format puts each definition at the beginning of a line."""
    names, inside = set(), False
    for line in source.read_text().splitlines():
        if line == "namespace {":
            inside = True
        elif line == "}  // namespace":
            inside = False
        line = re.sub(r"^(\[\[.*?\]\] )+", "", line)
        if inside and re.match(r"\w", line) and not line.startswith(("using namespace", "using ::", "namespace ", "static_assert", "template")):
            found = next((match for match in (kind.match(line) for kind in DECLARATIONS) if match), None)
            if found:
                names.add(found[1])
    return names


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *(f"{name}/*.cc" for name in TARGETS)],
                            capture_output=True, text=True, check=True).stdout.split()
    owners = collections.defaultdict(list)
    for source in map(pathlib.Path, listed):
        if not source.exists():
            continue
        folder = next(parent for parent in source.parents if (parent / "CMakeLists.txt").exists())
        for name in private_names(source):
            owners[folder, name].append(str(source))
    shared = {key: sources for key, sources in owners.items() if len(sources) > 1}
    for (folder, name), sources in sorted(shared.items()):
        print(f"{folder}: '{name}' stands in {', '.join(sorted(sources))}: write it once, or say in the name what differs")
    return 1 if shared else 0


if __name__ == "__main__":
    sys.exit(main())
