#!/usr/bin/env python3
"""`accel plot` as a person runs it: on a terminal, in a pipe, on files that are being written, and its SVG in Chromium."""
import fcntl
import json
import math
import os
import pathlib
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import unittest
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from browser import CAN_BROWSE, PAGES_PYTHON  # noqa: E402
from programs import BIN, SOURCE  # noqa: E402

PEER = SOURCE / ".deps/peer/bin/python"
BRAILLE = {chr(0x2800 + dots) for dots in range(1, 256)}

# What the page says of itself once Chromium has drawn it, light and dark.
LOOK = """
import json, sys
sys.path.append(sys.argv[3])
from browser import open_browser, prefer_scheme
driver = open_browser(sys.argv[2])
try:
    seen = []
    for scheme in ("light", "dark"):
        prefer_scheme(driver, scheme)
        driver.get("file://" + sys.argv[1])
        seen.append(driver.execute_script('''
            const fill = (what) => getComputedStyle(document.querySelector(what)).fill;
            const line = document.querySelectorAll("polyline.c");
            return {page: fill("rect.b"), text: fill("text"), line: getComputedStyle(line[0]).stroke, lines: line.length,
                    scripts: document.querySelectorAll("script").length,
                    texts: [...document.querySelectorAll("text")].map((text) => text.textContent)}'''))
    print(json.dumps({"seen": seen, "errors": [e["message"] for e in driver.get_log("browser") if e["level"] == "SEVERE"]}))
finally:
    driver.quit()
"""


def plot(*words, locale="C.UTF-8", **more):
    environment = {**os.environ, "LC_ALL": locale}
    environment.pop("NO_COLOR", None)
    return subprocess.run([BIN / "accel", "plot", *map(str, words)], capture_output=True, text=True, env=environment | more, timeout=60)


def plot_on_terminal(*words, columns, **more):
    """What it writes to a terminal of that width."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    text = bytearray()

    def read():
        try:
            while part := os.read(master, 65536):
                text.extend(part)
        except OSError:
            pass  # the last writer has gone

    child = subprocess.Popen([BIN / "accel", "plot", *map(str, words)], stdout=slave, stderr=slave, env=environment | more)
    os.close(slave)
    reader = threading.Thread(target=read)
    reader.start()
    status = child.wait(60)
    reader.join(60)
    os.close(master)
    return status, text.decode()


class Plot(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def write_run(self, name, values, file="log.jsonl"):
        path = self.folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"step": step, "time": 1000 + step, "loss": value}) + "\n" for step, value in enumerate(values)))
        return path.parent

    def test_a_pipe_gets_braille_or_ascii_by_the_locale_and_no_escapes(self):
        run = self.write_run("a", [1 / (1 + step) for step in range(50)])
        wide, plain, asked = plot(run), plot(run, locale="C"), plot(run, "--ascii")
        self.assertEqual((wide.returncode, wide.stderr), (0, ""))
        self.assertTrue(BRAILLE & set(wide.stdout))
        self.assertNotIn("\x1b", wide.stdout)
        self.assertTrue(plain.stdout.isascii())
        self.assertEqual(plain.stdout, asked.stdout)
        self.assertEqual({len(line) for line in plain.stdout.splitlines() if "--" in line}, {80})

    def test_a_terminal_gets_its_width_and_colours_unless_they_are_not_wanted(self):
        runs = [self.write_run("a", [1, 2, 3]), self.write_run("b", [3, 2, 1])]
        status, text = plot_on_terminal(*runs, columns=60)
        self.assertEqual(status, 0)
        self.assertIn("\x1b[34m", text)
        self.assertIn("\x1b[31m", text)
        self.assertEqual({len(line) for line in text.splitlines() if "--" in line}, {60})
        self.assertNotIn("\x1b", plot_on_terminal(*runs, columns=60, NO_COLOR="1")[1])

    def test_a_file_that_grows_is_drawn_as_far_as_it_is_whole(self):
        run = self.write_run("a", [1, 2])
        with open(run / "log.jsonl", "a") as log:
            log.write('{"step":2,"time":1002,"loss":9')
        told = plot(run, "--ascii")
        self.assertEqual((told.returncode, told.stderr), (0, ""))
        self.assertIn(" 2 |", told.stdout)
        self.assertNotIn(" 9 |", told.stdout)

    def test_what_cannot_be_drawn_is_said(self):
        empty = self.write_run("empty", []) / "log.jsonl"
        run = self.write_run("a", [1])
        both = plot(empty, run)
        self.assertEqual(both.returncode, 0)
        self.assertIn("has no numbers yet", both.stderr)
        for words, message in (((empty,), "these runs have no numbers yet"), ((run, "--metric", "lost"), "did you mean --metric 'loss'?"),
                               ((self.folder / "nowhere",), "there is no run"), ((run, "--out", "x.png"), "does not end in .svg"),
                               ((run, "--smooth", "1"), "is not a number from 0 to below 1"),
                               ((run, "--out", "/nowhere/x.svg"), "cannot write /nowhere/x.svg"), ((), "run is required")):
            told = plot(*words)
            self.assertNotEqual(told.returncode, 0, words)
            self.assertIn(message, told.stderr)
            self.assertEqual(told.stdout, "")

    def test_hostile_names_reach_neither_the_terminal_nor_the_picture(self):
        path = self.folder / "log.jsonl"
        name = "a\x1b]0;title\x07<script>alert(1)</script>"
        path.write_text(json.dumps({"step": 1, name: 1}) + "\n")
        out = self.folder / "x.svg"
        self.assertNotIn("\x1b]", plot_on_terminal(path, columns=80)[1])
        self.assertEqual(plot(path, "--out", out).returncode, 0)
        tree = xml.etree.ElementTree.parse(out)
        self.assertFalse([node for node in tree.iter() if node.tag.endswith("script")])
        self.assertIn("a?]0;title?<script>alert(1)</script>", [node.text for node in tree.iter()])

    @unittest.skipUnless(PEER.exists(), "no Python with TensorBoard")
    def test_event_files_of_pytorch_are_drawn(self):
        events = self.folder / "events"
        subprocess.run([PEER, "-c", f"""
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter({str(events)!r}) as writer:
    for step in range(5):
        writer.add_scalar("train/loss", 8.0 - step, step)
    writer.add_text("note", "x")
    writer.add_histogram("weights", __import__("torch").ones(3), 1)
"""], check=True, capture_output=True, timeout=300)
        told = plot(events, "--ascii")
        self.assertEqual((told.returncode, told.stderr), (0, ""))
        self.assertIn("train/loss", told.stdout)
        self.assertIn(" 8 |*", told.stdout)
        self.assertIn(" 4 |", told.stdout)

    @unittest.skipUnless(CAN_BROWSE, "no Chromium with selenium")
    def test_chromium_draws_the_picture_light_and_dark(self):
        values = [math.nan if step == 30 else math.exp(-step / 20) + 0.1 * math.sin(step) for step in range(100)]
        runs = [self.write_run("first", values), self.write_run("second <&>", values[::-1])]
        out = self.folder / "loss.svg"
        told = plot(*runs, "--smooth", "0.6", "--out", out)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertIn("1 metric of 2 runs", told.stderr)
        picture = out.read_bytes()
        plot(*runs, "--smooth", "0.6", "--out", out)
        self.assertEqual(picture, out.read_bytes())
        done = subprocess.run([PAGES_PYTHON, "-c", LOOK, out, self.folder / "profile", HERE.parent], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        looked = json.loads(done.stdout)
        light, dark = looked["seen"]
        self.assertEqual(looked["errors"], [])
        self.assertEqual((light["page"], light["text"]), ("rgb(255, 255, 255)", "rgb(34, 34, 34)"))
        self.assertEqual((dark["page"], dark["text"]), ("rgb(22, 22, 22)", "rgb(221, 221, 221)"))
        self.assertNotEqual(light["line"], dark["line"])
        self.assertEqual(light["lines"], 2 + 2 * 4)  # the legend; of each run two parts, raw and smooth
        self.assertEqual(light["scripts"], 0)
        self.assertTrue(any(text.endswith("second <&>") for text in light["texts"]), light["texts"])


if __name__ == "__main__":
    unittest.main()
