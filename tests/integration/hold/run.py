#!/usr/bin/env python3
"""An accel-agent that is killed, restarted or upgraded while the workers of its jobs train on.

Numbers are those of docs/reference/faults.md. Run by ctest.
"""
import importlib.util
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from programs import is_alive  # noqa: E402

_spec = importlib.util.spec_from_file_location("agent_run", pathlib.Path(__file__).resolve().parents[1] / "agent/run.py")
agent_run = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(agent_run)
Agent, BIN, BUILD, PATIENCE = agent_run.Agent, agent_run.BIN, agent_run.BUILD, agent_run.PATIENCE

# Counts on until its file "stop" is there, then ends with 5; each line is one step.
COUNTING = 'i=0; while [ ! -e "$0/stop" ]; do i=$((i+1)); echo step $i; sleep 0.02; done; echo end; exit 5'


def eventually(condition):
    """Waits for a condition; the limit is for tests that fail."""
    for _ in range(PATIENCE * 20):
        if condition():
            return True
        signal.sigtimedwait([], 0.05)
    return False


class HoldTest(unittest.TestCase):
    CONFIG = "allow_root: true\n"

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="accel-hold-")
        os.chmod(self.folder, 0o755)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.state = pathlib.Path(self.folder) / "state"
        self.agents = []
        self.addCleanup(self.end_all)
        self.start_agent()

    def start_agent(self, **more):
        # Several agents share this machine: each has a name of its own.
        config = f"{self.CONFIG}node_id: {pathlib.Path(self.folder).name}\n"
        self.agent = Agent(self.folder, config=config, **more)
        self.agents.append(self.agent)
        return self.agent

    def end_all(self):
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.process.send_signal(signal.SIGINT)
                agent.end(signal.SIGINT)

    def kill_agent(self):
        self.agent.end(signal.SIGKILL)

    def accel(self, *arguments):
        command, *rest = map(str, arguments)
        return subprocess.run([BIN / "accel", command, "--agent", self.state / "run", *rest], capture_output=True, text=True,
                              timeout=PATIENCE, cwd="/")

    def job(self, name):
        done = self.accel("status", name, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def pids(self, name):
        return [int(worker["pid"]) for worker in self.job(name)["workers"]]

    def start_job(self, name, *script, workers=1, options=()):
        done = self.accel("run", "--detach", "--name", name, "-n", workers, *options, "--", "/bin/sh", "-c", *script)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(eventually(lambda: len(self.pids(name)) == workers))
        return self.pids(name)

    def log_of(self, name, rank=0):
        return self.state / "logs" / str(os.geteuid()) / name / f"attempt_0/{rank}/stdout.log"

    def record_of(self, name):
        return self.state / "jobs" / f"{name}.job"

    def run_job(self, name, *script, workers=1):
        runner = subprocess.Popen([BIN / "accel", "run", "--agent", self.state / "run", "--name", name, "-n", str(workers), "--",
                                   "/bin/sh", "-c", *script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(runner.stdout.close)
        self.addCleanup(runner.stderr.close)
        self.addCleanup(runner.wait, PATIENCE)
        return runner

    def damage(self, path):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    def finish(self, runner):
        """Not communicate(): that passes by what a readline() has read ahead."""
        out, err = runner.stdout.read(), runner.stderr.read()
        runner.wait(PATIENCE)
        return out, err

    def taken_over(self, name):
        return eventually(lambda: f"job {name} goes on" in self.agent.text())


class Restart(HoldTest):
    def test_fault_27_a_killed_agent_is_replaced_and_the_workers_do_not_notice(self):
        pids = self.start_job("train", COUNTING, self.folder, workers=2)
        before = self.job("train")
        self.kill_agent()
        size = self.log_of("train").stat().st_size
        self.assertTrue(eventually(lambda: self.log_of("train").stat().st_size > size + 20), "the workers do not go on")
        self.start_agent()
        self.assertTrue(self.taken_over("train"), self.agent.text())

        job = self.job("train")

        self.assertEqual([int(worker["pid"]) for worker in job["workers"]], pids)
        self.assertEqual((job["state"], job["job_uuid"], job["restarts"], job["started"]),
                         ("JOB_STATE_RUNNING", before["job_uuid"], 0, before["started"]))
        self.assertIn("train ", self.accel("status").stdout)
        pathlib.Path(self.folder, "stop").write_text("")
        self.assertTrue(eventually(lambda: self.job("train")["state"] == "JOB_STATE_FAILED"))
        self.assertEqual(self.job("train")["exit_code"], 5)
        steps = [line for line in self.log_of("train").read_text().split("\n") if line.startswith("step")]
        self.assertEqual(steps, [f"step {i}" for i in range(1, len(steps) + 1)], "a step is missing")

    def test_fault_26_files_are_rotated_while_no_agent_is_there_and_a_follower_reads_on_over_them(self):
        # Long lines, so that a file of 4 KiB is full after 40 of them.
        counting = COUNTING.replace("echo step $i", 'printf "step %0100d\\n" $i')
        self.start_job("train", counting, self.folder, options=["--log_rotate_bytes", "4K", "--log_keep", 1000])
        follower = subprocess.Popen([BIN / "accel", "logs", "-f", "train", "--agent", self.state / "run"], stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True)
        self.addCleanup(follower.stdout.close)
        self.addCleanup(follower.stderr.close)
        self.addCleanup(follower.wait, PATIENCE)
        first = follower.stdout.readline()
        self.kill_agent()
        folder = self.log_of("train").parent
        before = len(list(folder.iterdir()))
        self.assertTrue(eventually(lambda: len(list(folder.iterdir())) >= before + 2), "nothing is rotated without an agent")
        self.start_agent()
        self.assertTrue(self.taken_over("train"), self.agent.text())
        pathlib.Path(self.folder, "stop").write_text("")

        lines = (first + follower.stdout.read()).split("\n")

        steps = [line for line in lines if line.startswith("step")]
        self.assertEqual(steps, [f"step {i:0100d}" for i in range(1, len(steps) + 1)], follower.stderr.read())
        self.assertEqual(lines[-2:], ["end", ""])

    def test_fault_27_it_is_restarted_again_and_again(self):
        pids = self.start_job("train", COUNTING, self.folder)
        for _ in range(4):
            self.kill_agent()
            self.start_agent()
            self.assertTrue(self.taken_over("train"), self.agent.text())
        self.assertEqual(self.pids("train"), pids)
        self.assertEqual(self.accel("stop", "train").returncode, 0)
        self.assertTrue(eventually(lambda: self.job("train")["state"] == "JOB_STATE_CANCELLED"))
        self.assertFalse(is_alive(pids[0]))

    def test_fault_27_a_client_waits_for_the_next_agent_and_misses_nothing(self):
        runner = self.run_job("train", COUNTING, self.folder, workers=2)
        follower = subprocess.Popen([BIN / "accel", "logs", "-f", "train", "--rank", "1", "--agent", self.state / "run"],
                                    stdout=subprocess.PIPE, text=True) if eventually(
                                        lambda: self.accel("status", "train").returncode == 0) else None
        self.addCleanup(follower.stdout.close)
        self.assertEqual(follower.stdout.readline(), "step 1\n")
        first = runner.stdout.readline()
        self.kill_agent()
        size = self.log_of("train").stat().st_size
        self.assertTrue(eventually(lambda: self.log_of("train").stat().st_size > size + 20))
        self.start_agent()
        self.assertTrue(self.taken_over("train"), self.agent.text())
        pathlib.Path(self.folder, "stop").write_text("")

        out, err = self.finish(runner)

        self.assertEqual(runner.returncode, 5, err)
        written = self.log_of("train", 0).read_text() + self.log_of("train", 1).read_text()
        self.assertEqual(sorted((first + out).splitlines()), sorted(written.splitlines()), "lines are missing, or came twice")
        rest = follower.stdout.read()
        self.assertEqual(follower.wait(PATIENCE), 0)
        self.assertEqual("step 1\n" + rest, self.log_of("train", 1).read_text())

    def test_fault_27_what_ended_meanwhile_is_known(self):
        runner = self.run_job("short", COUNTING, self.folder)
        self.assertEqual(runner.stdout.readline(), "step 1\n")
        self.kill_agent()
        pathlib.Path(self.folder, "stop").write_text("")
        self.assertTrue(eventually(lambda: self.log_of("short").read_text().endswith("end\n")))
        self.start_agent()

        out, err = self.finish(runner)

        self.assertEqual(runner.returncode, 5, err)
        self.assertTrue(out.endswith("end\n"))
        job = self.job("short")
        self.assertEqual((job["state"], job["workers"][0]["exit"]["cause"]), ("JOB_STATE_FAILED", "CAUSE_NONZERO"))

    def test_fault_27_an_outcome_that_the_killed_agent_had_not_read_is_not_lost(self):
        """The agent is stopped while the job ends: its shim tells an agent that never reads it, and goes."""
        self.start_job("short", COUNTING, self.folder)
        self.agent.process.send_signal(signal.SIGSTOP)
        shim = self.shim_of("short")
        pathlib.Path(self.folder, "stop").write_text("")
        self.assertTrue(eventually(lambda: not is_alive(shim)))
        self.kill_agent()
        self.start_agent()
        self.assertTrue(eventually(lambda: self.job("short")["state"] == "JOB_STATE_FAILED"))
        self.assertEqual(self.job("short")["exit_code"], 5)
        self.assertEqual(list((self.state / "run/shims").glob("*/*")), [], "the shim's files are left")

    def shim_of(self, name):
        return next(int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit() and self.is_shim(entry, name))

    @staticmethod
    def is_shim(entry, name):
        try:
            return (entry / "comm").read_text() == "accel-shim\n" and f"ACCEL_JOB_ID={name}\0" in (entry / "environ").read_text()
        except OSError:
            return False

    def test_fault_27_a_restart_of_the_workers_goes_on_without_an_agent(self):
        script = '[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && exec sleep 1000; while [ ! -e "$0/stop" ]; do sleep 0.02; done; exit 3'
        first = self.start_job("again", script, self.folder, options=("--max_restarts", 1))
        self.kill_agent()
        pathlib.Path(self.folder, "stop").write_text("")
        self.assertTrue(eventually(lambda: not is_alive(first[0])))
        self.start_agent()
        self.assertTrue(eventually(lambda: self.job("again")["restarts"] == 1))
        self.assertTrue(eventually(lambda: self.pids("again") != first and is_alive(self.pids("again")[0])))
        self.accel("stop", "--kill", "again")

    def test_fault_27_a_shim_that_is_killed_meanwhile_leaves_nothing(self):
        pids = self.start_job("gone", "sleep 1001 & exec sleep 1000")
        shim = self.shim_of("gone")
        self.kill_agent()
        os.kill(shim, signal.SIGKILL)
        self.start_agent()
        self.assertTrue(eventually(lambda: self.job("gone")["state"] == "JOB_STATE_FAILED"))
        self.assertIn("no longer runs", self.job("gone")["reason"])
        self.assertFalse(is_alive(pids[0]))

    def test_fault_27_what_is_left_of_a_job_is_killed_and_one_of_its_name_under_another_agent_is_not(self):
        pids = self.start_job("twin", "sleep 1001 & exec sleep 1000")
        shim = self.shim_of("twin")
        state = self.state
        other = pathlib.Path(self.folder, "other")
        other.mkdir()
        self.agents.append(Agent(str(other), config=f"{self.CONFIG}node_id: {pathlib.Path(self.folder).name}\n"))
        self.state = other / "state"
        others = self.start_job("twin", "sleep 1003 & exec sleep 1002")
        self.state = state
        self.kill_agent()
        os.kill(shim, signal.SIGKILL)
        self.start_agent()
        self.assertTrue(eventually(lambda: self.job("twin")["state"] == "JOB_STATE_FAILED"))
        self.assertFalse(is_alive(pids[0]))
        self.assertTrue(is_alive(others[0]))

    def test_the_ledger_goes_on_under_the_next_agent(self):
        def productive():
            ledger = json.loads(self.accel("ledger", "train", "--json").stdout)
            return float(ledger["productive"][:-1]) + float(ledger["init"][:-1])

        self.start_job("train", COUNTING, self.folder)
        self.kill_agent()
        size = self.log_of("train").stat().st_size
        self.assertTrue(eventually(lambda: self.log_of("train").stat().st_size > size + 200))
        self.start_agent()
        self.assertTrue(self.taken_over("train"), self.agent.text())
        steps = self.log_of("train").read_text().count("step")
        self.assertGreaterEqual(productive(), 0.02 * (steps - 1), "each step sleeps 0.02 s")
        self.accel("stop", "--kill", "train")

    def test_ended_jobs_are_still_shown_after_a_restart(self):
        self.assertEqual(self.accel("run", "--name", "old", "--", "/bin/sh", "-c", "exit 9").returncode, 9)
        self.kill_agent()
        self.start_agent()
        self.assertEqual((self.job("old")["exit_code"], self.job("old")["reason"]), (9, "failed"))
        self.assertEqual(self.record_of("old").stat().st_mode & 0o777, 0o600)

    def test_the_record_holds_no_environment(self):
        os.environ["MY_SECRET"] = "swordfish-of-the-day"
        self.addCleanup(os.environ.pop, "MY_SECRET")
        self.start_job("secret", "exec sleep 1000")
        self.assertNotIn(b"swordfish", self.record_of("secret").read_bytes())
        self.accel("stop", "--kill", "secret")


class Upgrade(HoldTest):
    def test_fault_30_another_binary_takes_the_jobs_over_after_sigusr2(self):
        pids = self.start_job("train", COUNTING, self.folder, workers=2)
        self.assertEqual(self.agent.end(signal.SIGUSR2), 0)
        self.assertIn("1 jobs go on without an agent", self.agent.text())
        self.assertTrue(all(map(is_alive, pids)))
        other = pathlib.Path(self.folder) / "accel-agent"
        shutil.copy(BIN / "accel-agent", other)
        self.start_agent(program=other, env={"ACCEL_SHIM": str(BIN / "accel-shim")})
        self.assertTrue(self.taken_over("train"), self.agent.text())
        self.assertEqual(self.pids("train"), pids)
        pathlib.Path(self.folder, "stop").write_text("")
        self.assertTrue(eventually(lambda: self.job("train")["exit_code"] == 5))

    def test_fault_30_a_client_lives_through_the_upgrade(self):
        runner = self.run_job("train", COUNTING, self.folder)
        self.assertEqual(runner.stdout.readline(), "step 1\n")
        self.assertEqual(self.agent.end(signal.SIGUSR2), 0)
        self.start_agent()
        pathlib.Path(self.folder, "stop").write_text("")
        out, err = self.finish(runner)
        self.assertEqual((runner.returncode, "step 1\n" + out), (5, self.log_of("train").read_text()), err)

    def test_sigterm_still_stops_what_was_taken_over(self):
        pids = self.start_job("train", COUNTING, self.folder)
        self.kill_agent()
        self.start_agent()
        self.assertTrue(self.taken_over("train"), self.agent.text())
        self.assertEqual(self.agent.end(signal.SIGTERM), 0)
        self.assertFalse(is_alive(pids[0]))


# Says that it was told to stop, and works on.
STUBBORN = 'trap "echo told" TERM; i=0; while :; do i=$((i+1)); echo step $i; sleep 0.02; done'


class Stops(HoldTest):
    """Of an agent that ends while a job is being stopped."""

    def told(self, name):
        return self.log_of(name).read_text().splitlines().count("told")

    def works_on(self, name):
        size = self.log_of(name).stat().st_size
        return eventually(lambda: self.log_of(name).stat().st_size > size + 200)

    def end_with_the_record(self, *command):
        """The agent writes the stop down, and ends before it has told the shim."""
        self.trigger.write_text("")
        self.assertNotEqual(self.accel(*command).returncode, 0)
        self.agent.process.wait(PATIENCE)
        self.agent.end()

    def start_agent(self, **more):
        if self.agents:
            return super().start_agent(**more)
        self.trigger = pathlib.Path(self.folder) / "trigger"
        return super().start_agent(env={"LD_PRELOAD": str(BUILD / "tests/libsudden_end.so"),
                                        "ACCEL_TEST_SUDDEN_END": str(self.trigger)})

    @unittest.skipIf(agent_run.is_sanitized(), "a sanitizer comes before any other preloaded library")
    def test_fault_27_a_stop_that_was_written_down_alone_is_carried_out_by_the_next_agent(self):
        self.start_job("train", "echo ready; exec sleep 1000")
        self.end_with_the_record("stop", "train")
        self.start_agent()
        self.assertTrue(self.taken_over("train"), self.agent.text())
        self.assertTrue(eventually(lambda: self.job("train")["state"] == "JOB_STATE_CANCELLED"), self.job("train"))

    @unittest.skipIf(agent_run.is_sanitized(), "a sanitizer comes before any other preloaded library")
    def test_fault_27_a_kill_that_was_written_down_alone_is_carried_out_by_the_next_agent(self):
        self.start_job("train", STUBBORN, options=("--stop-grace", 3600))
        self.end_with_the_record("stop", "--kill", "train")
        self.start_agent()
        self.assertTrue(self.taken_over("train"), self.agent.text())
        self.assertTrue(eventually(lambda: self.job("train")["state"] == "JOB_STATE_CANCELLED"), self.job("train"))
        self.assertEqual(self.told("train"), 0)

    def test_fault_27_a_stop_that_goes_on_is_no_harder_under_the_next_agent(self):
        self.start_job("train", STUBBORN, options=("--stop-grace", 3600))
        self.assertEqual(self.accel("stop", "train").returncode, 0)
        self.assertTrue(eventually(lambda: self.told("train") == 1))
        self.kill_agent()
        self.start_agent()
        self.assertTrue(self.taken_over("train"), self.agent.text())
        self.assertTrue(self.works_on("train"))
        self.assertEqual((self.job("train")["state"], self.told("train")), ("JOB_STATE_STOPPING", 1))
        self.assertEqual(self.accel("stop", "train").returncode, 0)
        self.assertTrue(eventually(lambda: self.job("train")["state"] == "JOB_STATE_CANCELLED"), self.job("train"))


class Systemd(HoldTest):
    """The agent under a manager that this test plays: what it is told, and what it keeps."""

    def start_agent(self, listen="", **more):
        if not hasattr(self, "manager"):
            self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.addCleanup(self.manager.close)
            self.manager.bind(self.folder + "/notify")
            self.manager.settimeout(PATIENCE)
            self.kept = {}
        env = {"NOTIFY_SOCKET": self.folder + "/notify", "WATCHDOG_USEC": "600000"}
        if not listen:
            return super().start_agent(env=env)
        # LISTEN_PID is the process that gets the descriptors, which begin at 3.
        starter = pathlib.Path(self.folder) / "starter"
        starter.write_text(f"#!/bin/sh\nexport LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES={listen}\n"
                           f"exec {BIN}/accel-agent \"$@\" 3<&{self.kept[listen]}\n")
        starter.chmod(0o755)
        return super().start_agent(env=env, program=starter, pass_fds=[self.kept[listen]])

    def wait_for(self, part):
        """The next message that holds it, with those before it."""
        seen = []
        while True:
            data, fds, _, _ = socket.recv_fds(self.manager, 4096, 4)
            message = data.decode()
            if "FDSTORE=1" in message:
                self.kept[re.search("FDNAME=(.*)", message)[1]] = fds[0]
                self.addCleanup(os.close, fds[0])
            seen.append(message)
            if part in message:
                return seen

    def test_fault_27_clients_that_come_between_two_agents_are_served_by_the_second(self):
        self.wait_for("FDSTORE=1")
        self.kill_agent()
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(client.close)
        client.settimeout(PATIENCE)
        client.connect(str(self.state / "run/tickets.sock"))
        self.start_agent(listen="tickets")
        self.assertEqual(len(client.recv(128)), 64)
        self.assertEqual(self.accel("status").returncode, 0)

    def test_fault_28_signs_of_life_come_only_while_everything_moves(self):
        """A socket that nobody can reach any more: loop and thread go on, and there is no sign."""
        self.wait_for("WATCHDOG=1")
        self.wait_for("WATCHDOG=1")
        sock = self.state / "run/agent.sock"
        sock.rename(self.folder + "/elsewhere")
        self.wait_for("no sign of life of its own RPC")
        os.rename(self.folder + "/elsewhere", sock)
        seen = self.wait_for("WATCHDOG=1")
        self.assertNotIn("READY=1", "".join(seen))

    def test_fault_28_an_agent_that_is_stopped_gives_no_sign(self):
        self.wait_for("WATCHDOG=1")
        self.agent.process.send_signal(signal.SIGSTOP)
        self.assertTrue(eventually(lambda: "T (stopped)" in pathlib.Path(f"/proc/{self.agent.process.pid}/status").read_text()))
        self.manager.setblocking(False)
        with self.assertRaises(BlockingIOError):
            while True:  # what it had said before
                self.manager.recv(4096)
        self.agent.process.send_signal(signal.SIGCONT)
        self.manager.settimeout(PATIENCE)
        self.wait_for("WATCHDOG=1")


class ShortHold(HoldTest):
    CONFIG = "allow_root: true\nhold_seconds: 1\n"

    def test_fault_27_an_agent_that_does_not_come_back_in_time_leaves_no_orphan(self):
        pids = self.start_job("family", "setsid sleep 1002 & sleep 1001 & exec sleep 1000", workers=2)
        tag = re.compile(rb"(^|\0)ACCEL_JOB_ID=family\0")

        def family():
            found = []
            for entry in pathlib.Path("/proc").iterdir():
                try:
                    if entry.name.isdigit() and tag.search((entry / "environ").read_bytes()) and is_alive(entry.name):
                        found.append(int(entry.name))
                except OSError:
                    pass
            return found

        self.assertTrue(eventually(lambda: len(family()) == 7), family())
        self.kill_agent()
        self.assertTrue(eventually(lambda: not family()), family())
        self.assertFalse(any(map(is_alive, pids)))
        self.start_agent()
        self.assertTrue(eventually(lambda: self.job("family")["state"] == "JOB_STATE_FAILED"))
        self.assertIn("no owner came back within 1 s", self.job("family")["report"])


class NoHold(HoldTest):
    CONFIG = "allow_root: true\nhold_seconds: 0\n"

    def test_jobs_end_with_an_agent_that_does_not_hold_them(self):
        pids = self.start_job("j", "exec sleep 1000")
        self.kill_agent()
        self.assertTrue(eventually(lambda: not is_alive(pids[0])))
        self.start_agent()
        self.assertTrue(eventually(lambda: self.job("j")["state"] == "JOB_STATE_FAILED"))
        self.assertEqual(self.job("j")["reason"], "the agent ended, and the job with it")

    def test_sigusr2_drains_when_nothing_is_held(self):
        pids = self.start_job("j", "exec sleep 1000")
        self.assertEqual(self.agent.end(signal.SIGUSR2), 0)
        self.assertFalse(is_alive(pids[0]))


class Damage(HoldTest):
    def test_fault_31_a_job_whose_record_is_damaged_is_taken_over_by_its_shim(self):
        pids = self.start_job("train", COUNTING, self.folder)
        self.kill_agent()
        self.damage(self.record_of("train"))
        self.start_agent()
        self.assertIn("is damaged: its checksum does not match", self.agent.text())
        self.assertTrue(self.taken_over("train"), self.agent.text())
        self.assertEqual(self.pids("train"), pids)
        self.assertIn("without its record", self.job("train")["report"])
        self.assertTrue((self.state / "jobs/train.damaged").exists())
        self.accel("stop", "--kill", "train")

    def test_fault_31_damaged_records_and_no_shim_to_be_found_end_the_job(self):
        pids = self.start_job("train", COUNTING, self.folder)
        self.kill_agent()
        self.damage(self.record_of("train"))
        for file in (self.state / "run/shims").glob("*/train.*"):
            file.unlink()
        self.start_agent()
        self.assertTrue(eventually(lambda: not is_alive(pids[0])))
        self.assertIn("of its processes were killed", self.agent.text())

    def test_fault_31_a_record_of_another_job_is_not_believed(self):
        self.assertEqual(self.accel("run", "--name", "a", "--", "/bin/true").returncode, 0)
        self.kill_agent()
        shutil.copy(self.record_of("a"), self.record_of("b"))
        self.start_agent()
        self.assertIn("b.job holds no record of its job", self.agent.text())
        self.assertEqual(self.accel("status", "b").returncode, 66)
        self.assertEqual(self.job("a")["state"], "JOB_STATE_SUCCEEDED")

    def test_fault_31_a_damaged_key_is_said_and_the_job_ends_with_its_hold(self):
        self.start_job("j", "exec sleep 1000")
        self.kill_agent()
        self.damage(self.state / "jobs/key")
        self.start_agent()
        self.assertIn("it is made anew", self.agent.text())
        self.assertTrue(eventually(lambda: "does not know the token" in self.agent.text()), self.agent.text())
        self.assertEqual(self.accel("run", "--", "/bin/true").returncode, 0)


class EndDamaged(HoldTest):
    CONFIG = "allow_root: true\ndamaged_jobs: end\n"

    def test_fault_31_a_job_whose_record_is_damaged_is_killed_when_the_policy_says_so(self):
        pids = self.start_job("train", COUNTING, self.folder)
        self.kill_agent()
        self.damage(self.record_of("train"))
        self.start_agent()
        self.assertFalse(is_alive(pids[0]))
        self.assertEqual(self.accel("status", "train").returncode, 66)


@unittest.skipUnless(os.geteuid() == 0, "takes root")
class OfAnotherUser(HoldTest):
    CONFIG = "allow_root: false\n"
    USER = pwd.getpwnam("daemon")

    def as_user(self, *arguments):
        command, *rest = map(str, arguments)
        return subprocess.run([BIN / "accel", command, "--agent", self.state / "run", *rest], capture_output=True, text=True,
                              timeout=PATIENCE, cwd="/", user=self.USER.pw_uid, group=self.USER.pw_gid, extra_groups=[])

    def test_fault_27_a_job_of_another_user_is_taken_over_and_stays_its_own(self):
        done = self.as_user("run", "--detach", "--name", "hers", "--", "/bin/sh", "-c", "exec sleep 1000")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(eventually(lambda: len(self.pids("hers")) == 1))
        pids = self.pids("hers")
        self.kill_agent()
        self.start_agent()
        self.assertTrue(self.taken_over("hers"), self.agent.text())
        self.assertEqual(self.pids("hers"), pids)
        job = json.loads(self.as_user("status", "hers", "--json").stdout)
        self.assertEqual((job["user"], job["uid"]), ("daemon", self.USER.pw_uid))
        self.assertEqual(os.stat(f"/proc/{pids[0]}").st_uid, self.USER.pw_uid)
        self.assertEqual(self.as_user("stop", "hers").returncode, 0)
        self.assertTrue(eventually(lambda: not is_alive(pids[0])))

    def test_fault_67_what_a_user_puts_in_place_of_its_shim_keeps_nobody_else_waiting(self):
        """A pipe instead of the state file: the job is lost to its user, and the other one is taken over."""
        for name in ("trick", "good"):
            self.assertEqual(self.as_user("run", "--detach", "--name", name, "--", "/bin/sh", "-c", "exec sleep 1000").returncode, 0)
        self.assertTrue(eventually(lambda: len(self.pids("trick")) == 1 and len(self.pids("good")) == 1))
        self.kill_agent()
        file = self.state / "run/shims" / str(self.USER.pw_uid) / "trick.shim"
        file.unlink()
        os.mkfifo(file)
        self.start_agent()
        self.assertTrue(self.taken_over("good"), self.agent.text())
        self.assertTrue(eventually(lambda: "it is no plain file" in self.agent.text()), self.agent.text())
        pids = self.pids("trick")
        for name in ("trick", "good"):
            self.accel("stop", "--kill", name)
            self.assertTrue(eventually(lambda: self.job(name)["state"] in ("JOB_STATE_FAILED", "JOB_STATE_CANCELLED")))
        self.assertFalse(is_alive(pids[0]), "a job that cannot be taken over is killed by its tags")


if __name__ == "__main__":
    unittest.main(verbosity=1)
