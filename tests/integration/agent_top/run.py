#!/usr/bin/env python3
"""`accel top` before a real agent, in a terminal played by tmux: sort, filter, ranks, follow, stop after a yes, a lost agent, and a
terminal that has its settings back whatever ends it."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from one_agent import BIN, PATIENCE, AgentTest  # noqa: E402
from programs import BUILD  # noqa: E402


class Screen:
    """A terminal with a shell in it, of which the test sees what a person would."""

    def __init__(self, folder, columns=110, rows=30):
        self.tmux = ["tmux", "-S", str(pathlib.Path(folder) / "tmux"), "-f", "/dev/null"]
        environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        subprocess.run([*self.tmux, "new-session", "-d", "-x", str(columns), "-y", str(rows),
                        "ulimit -c 0; exec env PS1='shell> ' bash --norc --noprofile"], check=True, env=environment)

    def text(self, *options):
        return subprocess.run([*self.tmux, "capture-pane", "-p", *options], check=True, capture_output=True, text=True).stdout

    def says(self, format):
        return subprocess.run([*self.tmux, "display-message", "-p", format], check=True, capture_output=True, text=True).stdout.strip()

    def keys(self, *keys):
        subprocess.run([*self.tmux, "send-keys", *keys], check=True)

    def type(self, text):
        subprocess.run([*self.tmux, "send-keys", "-l", text], check=True)

    def resize(self, columns, rows):
        subprocess.run([*self.tmux, "resize-window", "-x", str(columns), "-y", str(rows)], check=True)

    def see(self, pattern, is_there=True):
        for _ in range(PATIENCE * 10):
            text = self.text()
            if bool(re.search(pattern, text, re.MULTILINE)) == is_there:
                return text
            time.sleep(0.1)
        raise AssertionError(f"{'never' if is_there else 'always'} saw {pattern!r}:\n{self.text()}")

    def end(self):
        subprocess.run([*self.tmux, "kill-server"], check=False, capture_output=True)


@unittest.skipUnless(shutil.which("tmux"), "tmux is not installed")
class Top(AgentTest):
    def setUp(self):
        super().setUp()
        self.screen = Screen(self.folder)
        self.addCleanup(self.screen.end)
        self.screen.see(r"^shell>")

    def start(self, name, *command, processes=1):
        done = self.accel("run", "--detach", "--name", name, "--nproc_per_node", processes, "--", *(command or ("/bin/sleep", "1000")))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.addCleanup(self.accel, "stop", "--kill", name)

    def top(self, *words, agent=None, before="env"):
        """Types a line that ends with top's status, and with "as before" if the terminal has its settings back."""
        settings = pathlib.Path(self.folder) / "before"
        command = [before, BIN / "accel", "top", "--agent", agent or self.agent.state / "run", "--interval", "0.2", *words]
        self.screen.type(f"stty -g >{settings}; {' '.join(map(str, command))}; echo status $?; stty -g | cmp - {settings} && echo as\\ before")
        self.screen.keys("Enter")

    def assert_screen_is_the_shells(self):
        self.screen.see(r"^as before$")
        self.assertEqual(self.screen.says("#{alternate_on} #{cursor_flag} #{wrap_flag}"), "0 1 1")

    def assert_is_over(self, status):
        self.screen.see(rf"^status {status}$")
        self.assert_screen_is_the_shells()
        self.screen.keys("C-l")
        self.screen.see(r"^as before$", is_there=False)

    def pid_of_top(self):
        shell = self.screen.says("#{pane_pid}")
        return int(pathlib.Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[-1])

    def test_jobs_are_shown_sorted_filtered_and_with_their_ranks(self):
        self.start("slow-train", processes=3)
        self.start("fast-eval")
        self.start("over", "/bin/sh", "-c", "exit 3")
        self.top()
        self.screen.see(r"^  over +failed .* 3$")
        text = self.screen.see(r"^> fast-eval +running +\S+ +1 +1 +- +- +[0-9.]+ [KM]iB +0 +\d")
        self.assertIn("3 jobs, 2 running", text)
        self.assertIn("sorted by state", text)
        self.screen.keys("s")
        self.screen.see(r"sorted by name")
        self.screen.type("/SLOW")
        self.screen.see(r"^filter: SLOW_")
        self.screen.see(r"fast-eval", is_there=False)
        self.screen.keys("Enter")
        self.screen.see(r"1 with 'SLOW'")
        self.screen.keys("Enter")
        text = self.screen.see(r"^ +2 +\d+ +- +- +[0-9.]+ [KM]iB +[0-9.]+  running$")
        self.assertRegex(text, r"(?m)^slow-train +running +0 restarts")
        self.screen.keys("Escape")
        self.screen.see(r"^> slow-train")
        self.screen.keys("Escape")
        self.screen.see(r"^  over ")
        self.screen.keys("?")
        self.screen.see(r"^  /      filter: ")
        self.screen.keys("q")  # any key goes back, and does nothing else
        self.screen.see(r"^> slow-train")
        self.screen.keys("q")
        self.assert_is_over(0)

    def test_steps_and_rates_are_those_that_workers_report(self):
        self.start("steps", BUILD / "tests/fault_worker", "beats", "0", processes=2)
        self.top("steps")  # begins with its ranks
        pattern = r"^ +1 +\d+ +(\d+) +([0-9.]+)/s +[0-9.]+ [KM]iB +[0-9.]+  running$"
        first = re.search(pattern, self.screen.see(pattern), re.M)
        later = int(first[1]) + 10
        for _ in range(PATIENCE * 10):
            now = re.search(pattern, self.screen.see(pattern), re.M)
            if int(now[1]) >= later:
                break
            time.sleep(0.1)
        self.assertGreaterEqual(int(now[1]), later)
        self.assertLessEqual(float(now[2]), 500.0)  # a step sleeps for 20 ms; a wrong unit would be 1000 times as much
        self.screen.keys("Escape")
        self.screen.see(r"^> steps +running +\S+ +1 +2 +\d+ +[0-9.]+/s ")
        self.screen.keys("q")
        self.assert_is_over(0)
        status = self.accel("status", "steps", "--json")
        self.assertEqual(status.stdout.count('"step_seconds"'), 2, status.stdout)  # top had the agent look

    def test_a_job_is_stopped_after_a_yes_alone_and_top_tells_what_became_of_it(self):
        self.start("a")
        self.start("b")
        self.top()
        self.screen.see(r"^> a +running")
        self.screen.keys("Down")
        self.screen.see(r"^> b +running")
        self.screen.keys("k")
        self.screen.see(r"^stop b\?  y: yes")
        self.screen.keys("n")
        self.screen.see(r"^not stopped")
        self.screen.keys("k")
        self.screen.see(r"^stop b\?")
        self.screen.keys("y")
        self.screen.see(r"^asked to stop: b, now ")
        self.screen.see(r"^[> ] b +cancelled")
        self.assertRegex(self.screen.text(), r"(?m)^[> ] a +running")
        self.screen.keys("Home")
        self.screen.see(r"^> a +running")
        self.screen.keys("k")
        self.screen.see(r"^stop a\?")
        self.screen.type("K")
        self.screen.see(r"^killed with SIGKILL: a, now ")
        self.screen.see(r"^[> ] a +cancelled")
        self.screen.keys("Home", "k")
        self.screen.see(r"^that job has ended")
        self.screen.keys("q")
        self.assert_is_over(0)

    def last_said(self, after=0):
        """The last number on the screen, once one above `after` is there; which ones are seen depends on the load."""
        for _ in range(PATIENCE * 10):
            said = [int(number) for number in re.findall(r"(?m)^said (\d+)$", self.screen.text())]
            if said and said[-1] > after:
                return said[-1]
            time.sleep(0.1)
        raise AssertionError(f"nothing was said after {after}:\n{self.screen.text()}")

    def test_the_log_of_a_job_is_followed_and_ctrl_c_comes_back(self):
        self.start("talker", "/bin/sh", "-c", "i=0; while :; do i=$((i + 1)); echo said $i; sleep 0.2; done")
        self.top()
        self.screen.see(r"^> talker +running")
        self.screen.keys("l")
        self.last_said()
        self.screen.keys("C-c")
        self.screen.see(r"^> talker +running")
        self.screen.keys("l")
        self.last_said(after=self.last_said())  # the lines of the first time are still there
        self.screen.keys("C-z")
        self.screen.see(r"^shell>$")
        before = self.last_said()
        self.screen.type("fg")
        self.screen.keys("Enter")
        self.last_said(after=before)
        self.screen.keys("C-c")
        self.screen.see(r"^> talker +running")
        self.accel("stop", "--kill", "talker")
        self.screen.see(r"^> talker +cancelled")
        self.screen.keys("l")
        self.screen.see(r"^-- the log is at its end")
        self.screen.keys("Enter")
        self.screen.see(r"^> talker +cancelled")
        self.screen.keys("q")
        self.screen.see(r"^shell>$")

    def test_a_sigterm_while_a_log_is_followed_ends_both(self):
        self.start("talker", "/bin/sh", "-c", "i=0; while :; do i=$((i + 1)); echo said $i; sleep 0.2; done")
        self.top()
        self.screen.see(r"^> talker +running")
        self.screen.keys("l")
        self.last_said()
        top = self.pid_of_top()
        (child,) = pathlib.Path(f"/proc/{top}/task/{top}/children").read_text().split()
        os.kill(top, signal.SIGTERM)
        self.assert_is_over(128 + signal.SIGTERM)
        self.assertFalse(pathlib.Path(f"/proc/{child}").exists())

    def test_signals_give_the_terminal_back_and_do_what_they_do_otherwise(self):
        self.start("a")
        self.top()
        self.screen.see(r"^> a +running")
        self.screen.keys("C-c")
        self.screen.see(r"^shell>$")  # bash leaves the rest of a line whose program died of SIGINT
        self.screen.type(f"echo status $?; stty -g | cmp - {self.folder}/before && echo as\\ before")
        self.screen.keys("Enter")
        self.assert_is_over(128 + signal.SIGINT)
        self.top()
        self.screen.see(r"^> a +running")
        self.screen.keys("C-\\")
        self.assert_is_over(128 + signal.SIGQUIT)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV, signal.SIGABRT):
            self.top()
            self.screen.see(r"^> a +running")
            os.kill(self.pid_of_top(), number)
            self.assert_is_over(128 + number)

    def test_a_stop_gives_the_terminal_to_the_shell_and_fg_goes_on(self):
        self.start("a")
        self.top()
        self.screen.see(r"^> a +running")
        self.screen.keys("C-z")
        self.screen.see(r"Stopped")
        self.screen.see(r"^> a", is_there=False)
        self.assert_screen_is_the_shells()
        self.screen.type("fg")
        self.screen.keys("Enter")
        self.screen.see(r"^> a +running")
        os.kill(self.pid_of_top(), signal.SIGSTOP)  # it cannot give anything back
        self.screen.see(r"Stopped")
        self.screen.type("fg")
        self.screen.keys("Enter")
        self.screen.see(r"^> a +running")
        self.screen.keys("Down", "?")
        self.screen.see(r"^any key goes back")
        top = self.pid_of_top()
        self.screen.keys("?", "C-z")
        self.screen.see(r"^shell>$")
        self.screen.type("kill %1")
        self.screen.keys("Enter")
        for _ in range(PATIENCE * 10):
            if not pathlib.Path(f"/proc/{top}").exists():
                break
            time.sleep(0.1)
        self.assertFalse(pathlib.Path(f"/proc/{top}").exists())  # although the terminal is the shell's
        self.assertEqual(self.screen.says("#{alternate_on} #{cursor_flag}"), "0 1")

    def test_the_window_may_change_and_be_narrow(self):
        self.start("a-job-with-a-name-of-some-length")
        self.top()
        self.screen.see(r"^> a-job-with-a-name-of-.* running +\S+ +1 +1 ")
        self.screen.resize(40, 10)
        text = self.screen.see(r"^> a-job-with-a-name~ running +\d:\d\d:\d\d$")
        self.assertRegex(text, r"(?m)^q quit   \? keys   Enter ranks   k stop$")
        self.screen.keys("k")
        self.screen.see(r"^stop a-job-wit~\? y: yes K: SIGKILL n: no$")
        self.screen.keys("n")
        self.screen.resize(140, 40)
        text = self.screen.see(r"^> a-job-with-a-name-of-some-length +running +\S+ +1 +1 ")
        self.assertEqual(text.splitlines()[39][:6], "not st")  # the last line of the new window
        self.screen.keys("q")
        self.assert_is_over(0)

    def test_styles_are_shown_unless_no_color_is_set(self):
        self.start("a")
        for before, has_styles in (("env", True), ("env NO_COLOR=1", False)):
            self.top(before=before)
            self.screen.see(r"^> a +running")
            self.assertEqual(bool(re.search(r"\x1b\[[0-9;]*7m.*> a", self.screen.text("-e"))), has_styles)
            self.screen.keys("q")
            self.assert_is_over(0)

    def test_an_agent_that_goes_and_comes_back_is_named_and_asked_again(self):
        self.start("over", "/bin/true")
        self.top()
        self.screen.see(r"^> over +succeeded")
        self.agent.end()
        self.screen.see(r"^! the agent does not answer, this is old: ")
        self.assertRegex(self.screen.text(), r"(?m)^> over +succeeded")
        self.agent = self.start_agent()
        self.addCleanup(self.agent.end)
        self.screen.see(r"does not answer", is_there=False)
        self.screen.see(r"^> over +succeeded")
        os.kill(self.agent.process.pid, signal.SIGSTOP)
        self.addCleanup(os.kill, self.agent.process.pid, signal.SIGCONT)
        self.screen.see(r"^! (no answer of the agent for \d+ seconds|the agent does not answer)")
        os.kill(self.agent.process.pid, signal.SIGCONT)
        self.screen.see(r"^! ", is_there=False)
        self.screen.keys("q")
        self.assert_is_over(0)

    def test_what_cannot_be_shown_is_an_error_and_no_screen(self):
        self.top(agent=pathlib.Path(self.folder) / "nothing")
        self.screen.see(r"^accel: ")
        self.assert_is_over(69)
        self.top("nobody")
        self.screen.see(r"there is no job 'nobody'")
        self.assert_is_over(66)
        self.top(before="env TERM=dumb")
        self.screen.see(r"TERM is 'dumb'")
        self.assert_is_over(2)
        piped = self.accel("top")
        self.assertIn("needs a terminal", piped.stderr)
        self.assertIn("accel top --once", piped.stderr)
        self.assertEqual(piped.returncode, 2)

    def test_two_hundred_jobs_scroll(self):
        for number in range(200):
            done = self.accel("run", "--detach", "--name", f"job-{number:03}", "--", "/bin/true")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.top()
        self.screen.see(r"200 jobs, ")
        self.screen.see(r"^> job-000 ")
        self.screen.keys("End")
        self.screen.see(r"^> job-199 ")
        self.screen.keys("PPage")
        self.screen.see(r"^> job-173 ")  # 26 of 30 rows are jobs
        self.screen.keys("q")
        self.assert_is_over(0)

    def test_one_frame_is_plain_text(self):
        self.start("a", processes=2)
        done = self.accel("top", "--once")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"(?m)^  a +running +\S+ +1 +2 +- +- +[0-9.]+ [KM]iB +0 ")
        self.assertNotIn("\x1b", done.stdout)
        ranks = self.accel("top", "--once", "a")
        self.assertEqual(len(re.findall(r"(?m)^ +[01] +\d+ +- +- +[0-9.]+ [KM]iB +[0-9.]+  running$", ranks.stdout)), 2, ranks.stdout)
        lost = self.accel("top", "--once", "b")
        self.assertIn("there is no job 'b'", lost.stderr)
        self.assertEqual(lost.returncode, 66)
        as_json = json.loads(self.accel("top", "--json").stdout)
        self.assertEqual([job["job_id"] for job in as_json["jobs"]], ["a"])


if __name__ == "__main__":
    unittest.main()
