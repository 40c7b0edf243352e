#!/usr/bin/env python3
"""Runs a command on a terminal and draws what it shows as an SVG.

    scripts/record_terminal.py OUT.svg [--columns N] [--shown TEXT] [--replace OLD=NEW] -- COMMAND...

--shown is the command line above the output, --replace changes the output, where they have paths of this machine. The pictures of docs/pictures/ are
made by scripts/record_pictures.sh. Needs `rich`, which is in .deps/peer.
"""

import argparse
import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

# The picture names no font of another host: it has to open without a network.
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def record(command, columns):
    """What the command writes to a terminal of that width, and its exit status."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        os.environ["TERM"] = "xterm-256color"
        os.execvp(command[0], command)
    output = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the last process has closed it
            break
        if not part:
            break
        output += part
    _, status = os.waitpid(pid, 0)
    return output.decode(errors="replace"), os.waitstatus_to_exitcode(status)


def final_lines(output):
    """The lines as they stand at last: a line that was drawn over is its last state."""
    text = output.replace("\r\n", "\n").replace("\x1b[K", "").replace("\x1b[2K", "")
    return "\n".join(line.rsplit("\r", 1)[-1] for line in text.split("\n")).rstrip("\n")


def draw(shown, output, columns):
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.assemble(("$ ", "bold green"), (shown, "bold")))
    console.print(Text.from_ansi(final_lines(output)))
    svg = console.export_svg(title="", theme=MONOKAI, unique_id="terminal")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.S)
    svg = svg.replace("Fira Code", "ui-monospace").replace("font-family: ui-monospace, monospace", f"font-family: {FONT}")
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


def main():
    parser = argparse.ArgumentParser(usage="record_terminal.py OUT.svg [--columns N] [--shown TEXT] [--replace OLD=NEW] -- COMMAND...")
    parser.add_argument("out")
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--shown")
    parser.add_argument("--replace", default="=")
    words = sys.argv[1:]
    if "--" not in words:
        parser.error("the command follows --")
    options = parser.parse_args(words[:words.index("--")])
    command = words[words.index("--") + 1:]
    if not command:
        parser.error("no command follows --")
    output, status = record(command, options.columns)
    old, new = options.replace.split("=", 1)
    if old:
        output = output.replace(old, new)
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(draw(options.shown or " ".join(command), output, options.columns))
    print(f"{options.out}: {len(final_lines(output).splitlines())} lines, exit status {status}")


if __name__ == "__main__":
    main()
