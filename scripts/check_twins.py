#!/usr/bin/env python3
"""Finds functions whose bodies are the same in two sources: they are written once, where both can include them.

Names in unnamed namespaces are told apart by check_names.py; this compares what the functions do, over all folders, whatever they
are called. Short bodies (under 28 tokens) may be alike by chance. Prints a line for each body and exits with 1 if there is one.
"""

import collections
import pathlib
import re
import subprocess
import sys

FOLDERS = ("runtime", "agent", "launcher", "checkpoint_tools", "safetensors", "libaccel", "examples")
SHORTEST = 28
TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|\w+|::|->|<<|>>|&&|\|\||\S')
COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
HEAD = re.compile(r"(\w+)\s*\([^;{}]*\)\s*(?:const|noexcept|override|final|->\s*[\w:<>]+|\s)*\{")
NO_FUNCTION = {"if", "for", "while", "switch", "catch"}


def functions(text: str):
    """Name, line and body of each; of a lambda the name of the function that takes it."""
    text = COMMENT.sub(lambda match: match[0] if match[0].startswith('"') else "\n" * match[0].count("\n"), text)
    for head in HEAD.finditer(text):
        if head[1] in NO_FUNCTION:
            continue
        end, depth = head.end(), 1
        while depth and end < len(text):
            depth += (text[end] == "{") - (text[end] == "}")
            end += 1
        yield head[1], text.count("\n", 0, head.start()) + 1, TOKEN.findall(text[head.end():end - 1])


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard",
                             *(f"{folder}/*.{ending}" for folder in FOLDERS for ending in ("cc", "h"))],
                            capture_output=True, text=True, check=True).stdout.split()
    places = collections.defaultdict(dict)
    for source in filter(pathlib.Path.exists, map(pathlib.Path, listed)):
        for name, line, body in functions(source.read_text()):
            if len(body) >= SHORTEST:
                places[" ".join(body)].setdefault(str(source), f"{source}:{line} ({name})")
    twins = [sorted(where.values()) for where in places.values() if len(where) > 1]
    for where in sorted(twins):
        print(f"the same body: {', '.join(where)}: write it once")
    return 1 if twins else 0


if __name__ == "__main__":
    sys.exit(main())
