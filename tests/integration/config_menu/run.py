#!/usr/bin/env python3
"""`accel config` on a pseudo terminal: menus by keys, and a terminal that has its settings back whatever ends them.

A leader of the session starts accel in a process group of its own, as a shell would, and tells by a pipe when it stops or
ends and whether the terminal works by lines then.
"""
import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", pathlib.Path(__file__).resolve().parents[3] / "build"))
HINT = "arrows or digits, then Enter"
UP, DOWN, ENTER = "\x1b[A", "\x1b[B", "\r"
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


def works_by_lines():
    flags = termios.tcgetattr(0)[3]
    return bool(flags & termios.ICANON) and bool(flags & termios.ECHO)


def lead_session(words, report):
    """The leader: returns when accel has ended."""
    def take_terminal():
        os.setpgid(0, 0)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)

    child = subprocess.Popen(words, preexec_fn=take_terminal)
    os.write(report, (json.dumps({"pid": child.pid}) + "\n").encode())
    while True:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        event = {"stopped": os.WIFSTOPPED(status), "lines": works_by_lines(),
                 "status": None if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)}
        os.write(report, (json.dumps(event) + "\n").encode())
        if not os.WIFSTOPPED(status):
            return


class Terminal:
    def __init__(self, path, columns=80, **environment):
        reader, writer = os.pipe()
        self.leader, self.fd = pty.fork()
        if self.leader == 0:
            with contextlib.suppress(BaseException):
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
                os.environ.pop("NO_COLOR", None)
                os.environ |= {"TERM": "xterm"} | environment
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                lead_session([BUILD / "bin/accel", "config", "--config_file", path], writer)
            os._exit(0)
        os.close(writer)
        self.events, self.said, self.place = os.fdopen(reader), "", 0
        self.pid = self.event()["pid"]

    def wait_for(self, *texts):
        """Until one of the texts comes after what was waited for before. Returns it, and leaves what precedes it in `seen`."""
        deadline = time.monotonic() + 20
        while True:
            found = [(self.said.find(text, self.place), text) for text in texts if text in self.said[self.place:]]
            if found:
                start, text = min(found)
                self.seen, self.place = self.said[self.place:start], start + len(text)
                return text
            ready, _, _ = select.select([self.fd], [], [], max(0, deadline - time.monotonic()))
            try:
                more = os.read(self.fd, 4096) if ready else b""
            except OSError:
                more = b""
            if not more:
                raise AssertionError(f"none of {texts} came after {self.said[self.place:]!r}")
            self.said += more.decode()

    def wait_for_row(self, text):
        """Until this row is the marked one, all rows drawn."""
        self.wait_for(f"\x1b[32m> {text}\x1b[0m")

    def type(self, text):
        os.write(self.fd, text.encode())

    def event(self):
        return json.loads(self.events.readline())

    def close(self):
        os.close(self.fd)  # SIGHUP for whoever is left
        self.events.close()
        os.waitpid(self.leader, 0)


class Menus(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.path = pathlib.Path(scratch.name) / "answers.yaml"

    def open(self, **options):
        terminal = Terminal(self.path, **options)
        self.addCleanup(terminal.close)
        return terminal

    def test_keys_choose_and_the_file_has_what_was_chosen(self):
        terminal = self.open()
        terminal.wait_for(HIDE_CURSOR + HINT)
        terminal.wait_for_row("0  This machine")
        terminal.type(DOWN)
        terminal.wait_for_row("1  AWS (Amazon SageMaker)")
        terminal.type(UP + ENTER)
        terminal.wait_for(SHOW_CURSOR + "> This machine")
        terminal.wait_for_row(" 0  No distributed training")
        terminal.type("1j" + ENTER)  # TPU would be 10; multi-CPU, then one below
        terminal.wait_for("> multi-XPU")
        # Everything else by its fallback, the precision by its digit.
        while True:
            came = terminal.wait_for(HINT, "] > ", "configuration saved at")
            if came == "configuration saved at":
                break
            is_precision = came == HINT and "mixed precision" in terminal.seen.lower()
            terminal.type("2" + ENTER if is_precision else ENTER)
        event = terminal.event()
        self.assertEqual((event["status"], event["lines"]), (0, True), terminal.said)
        text = self.path.read_text()
        self.assertIn("distributed_type: MULTI_XPU", text)
        self.assertIn("mixed_precision: bf16", text)

    def test_what_is_typed_ahead_answers_the_questions_that_follow(self):
        terminal = self.open()
        terminal.wait_for(HINT)
        terminal.type(ENTER + "4" + ENTER + "3\n")
        terminal.wait_for("> multi-GPU")
        terminal.wait_for("How many machines")
        terminal.wait_for("rank of this machine")

    def test_signals_that_end_it_find_the_terminal_as_it_was(self):
        for number, end in ((signal.SIGINT, "\x03"), (signal.SIGQUIT, "\x1c"), (signal.SIGTERM, None)):
            terminal = self.open()
            terminal.wait_for_row("0  This machine")
            if end is not None:
                terminal.type(end)
            else:
                os.kill(terminal.pid, number)
            event = terminal.event()
            self.assertEqual((event["status"], event["lines"]), (-number, True))
            terminal.wait_for(SHOW_CURSOR)
            self.assertFalse(self.path.exists())

    def test_a_stopped_menu_gives_the_terminal_back_and_comes_again(self):
        terminal = self.open()
        terminal.wait_for_row("0  This machine")
        terminal.type(DOWN)
        terminal.wait_for_row("1  AWS (Amazon SageMaker)")
        terminal.type("\x1a")
        event = terminal.event()
        self.assertEqual((event["stopped"], event["lines"]), (True, True))
        terminal.wait_for(SHOW_CURSOR)

        os.kill(terminal.pid, signal.SIGCONT)
        terminal.wait_for(HIDE_CURSOR + HINT)
        terminal.wait_for_row("1  AWS (Amazon SageMaker)")
        terminal.type("\x03")
        event = terminal.event()
        self.assertEqual((event["status"], event["lines"]), (-signal.SIGINT, True))

    def test_the_end_of_the_input_is_an_error(self):
        terminal = self.open()
        terminal.wait_for_row("0  This machine")
        terminal.type("\x04")
        terminal.wait_for("the answers ended at")
        event = terminal.event()
        self.assertEqual((event["status"], event["lines"]), (2, True))

    def test_other_terminals_are_asked_by_lines(self):
        for options in ({"columns": 20}, {"TERM": "dumb"}, {"NO_COLOR": "1"}):
            terminal = self.open(**options)
            terminal.wait_for("[This machine] > ")
            self.assertIsNone(re.search("\x1b", terminal.said), options)
            terminal.type("\x03")
            self.assertEqual(terminal.event()["status"], -signal.SIGINT)


if __name__ == "__main__":
    unittest.main()
