#!/usr/bin/env python3
"""Agents that are killed, restarted or upgraded while the workers of a job over two nodes train on.

Two real agents with certificates; `a` hosts the coordinator beside its own part of the job. Numbers are those of
docs/reference/faults.md. Run by ctest.
"""
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
spec = importlib.util.spec_from_file_location("agents", HERE.parent / "leadership/agents.py")
agents = importlib.util.module_from_spec(spec)
spec.loader.exec_module(agents)
cluster = agents.cluster
PATIENCE, BIN = cluster.PATIENCE, cluster.BIN
sys.path.append(str(HERE.parent))
from programs import is_alive  # noqa: E402

TAKEN_OVER = "goes on: the shim of its part was taken over"


class PartsTest(agents.AgentsTest):
    NAME = "held"
    # A node is lost 4.5 beats after it was heard last: long beats leave a slow machine the time to start an agent.
    CONFIG = "beat_every_ms: 10000\n"

    def setUp(self):
        super().setUp()
        self.start("a", more=self.CONFIG)
        self.start("b", more=self.CONFIG)
        self.addCleanup(self.end_workers)

    def end_workers(self):
        """Those of tests that fail: shims hold them for a minute."""
        for path in self.pids.iterdir():
            pid = int(path.read_text() or 0)
            if pid and is_alive(pid):
                os.kill(pid, signal.SIGKILL)

    def restart(self, name, number=signal.SIGKILL):
        agent = self.agents[name]
        agent.process.send_signal(number)
        self.assertEqual(agent.process.wait(PATIENCE), -number if number == signal.SIGKILL else 0, agent.text())
        self.start_again(name)

    def worker_on(self, node):
        seat = next(seat for seat in self.job("a", self.NAME)["nodes"] if seat["node_id"] == node)
        return self.running[f"{seat['first_rank']}.0"]

    def await_line(self, name, part, count=1):
        self.wait_until(lambda: self.agents[name].text().count(part) >= count, f"{name} says {part!r} {count} times")

    def await_end(self, state, node="a"):
        self.wait_until(lambda: self.job(node, self.NAME)["state"] == state, state)
        job = self.job(node, self.NAME)
        self.wait_until(lambda: not any(map(is_alive, self.running.values())), "the workers are gone")
        return job

    def await_no_trace(self, name):
        """Nothing is left on the disk for the agent after this one."""
        state = self.agents[name].state
        self.wait_until(lambda: not list((state / "parts").glob("*.job")), "no record is left")
        self.wait_until(lambda: not list((state / "run/parts").glob("*/*")), "no file of a shim is left")

    def assert_a_failure_of_meanwhile_is_the_jobs(self):
        self.submit("a", 2, end='[ $ACCEL_NODE_ID = b ] && exit 7; exec sleep 1000')
        own = self.worker_on("b")
        self.kill("b")
        self.stop_file.touch()
        self.wait_until(lambda: not is_alive(own), "the worker ends")
        self.start_again("b")
        self.assertEqual(self.await_end("JOB_STATE_FAILED")["exit_code"], 7)

    def assert_begun_anew(self):
        """One more generation on both nodes, without a worker of the one before, and it ends well."""
        self.wait_until(lambda: self.workers() == ["0.0", "0.1", "1.0", "1.1"], "the next generation runs")
        self.assertFalse(any(map(is_alive, self.running.values())))
        self.stop_file.touch()
        self.assertEqual(self.await_end("JOB_STATE_SUCCEEDED")["restarts"], 1)

    def assert_undisturbed_until_the_end(self):
        self.finish("a")
        self.assertEqual(self.job("a", self.NAME)["restarts"], 0)
        for name in self.agents:
            self.await_no_trace(name)

    def record_at(self, node):
        name = "held" if cluster.ANN == os.geteuid() else f"{cluster.ANN}@held"
        return self.agents[node].state / f"parts/{name}.job"


class TakeOver(PartsTest):
    def test_fault_27_an_agent_is_killed_again_and_again_and_the_job_does_not_notice(self):
        self.submit("a", 2)
        for _ in range(3):
            self.restart("b")
            self.await_line("b", TAKEN_OVER)
            self.await_line("b", "has a session with the coordinator")
            self.assert_undisturbed()
        self.assert_undisturbed_until_the_end()

    def test_fault_36_the_agent_that_hosts_the_coordinator_is_killed(self):
        self.submit("b", 2)
        for _ in range(2):
            self.restart("a")
            self.await_line("a", "with 1 jobs of before")
            self.await_line("a", TAKEN_OVER)
            for node in "ab":
                self.await_line("a", f"node {node}: connected")
            self.assert_undisturbed()
        self.assert_undisturbed_until_the_end()

    def test_fault_36_all_agents_are_killed_at_once(self):
        self.submit("a", 2)
        for name in "ab":
            self.kill(name)
        for name in "ab":
            self.start_again(name)
            self.await_line(name, TAKEN_OVER)
        for node in "ab":
            self.await_line("a", f"node {node}: connected")
        self.assert_undisturbed_until_the_end()

    def test_fault_30_agents_are_upgraded_under_a_job(self):
        self.submit("a", 2)
        for name in "ba":
            self.restart(name, signal.SIGUSR2)
            self.await_line(name, TAKEN_OVER)
            self.await_line(name, "has a session with the coordinator")
        self.await_line("a", "node b: connected")
        self.assert_undisturbed_until_the_end()

    def test_a_stop_right_after_the_take_over_reaches_the_part(self):
        self.submit("a", 2)
        self.restart("b")
        self.await_line("b", "has a session with the coordinator")
        done = self.accel("b", "stop", self.NAME)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.await_end("JOB_STATE_CANCELLED")
        self.await_no_trace("b")

    def test_sigterm_still_stops_a_part_that_was_taken_over(self):
        self.submit("a", 2)
        self.restart("b")
        self.await_line("b", "has a session with the coordinator")
        own = self.worker_on("b")
        self.assertEqual(self.agents["b"].end(), 0)
        self.assertFalse(is_alive(own))
        self.await_no_trace("b")

    def test_what_a_part_wrote_is_shown_after_a_take_over(self):
        self.submit("a", 2, end='echo over')
        self.restart("b")
        self.await_line("b", "has a session with the coordinator")
        self.stop_file.touch()
        self.await_end("JOB_STATE_SUCCEEDED")
        logs = self.accel("a", "logs", self.NAME)
        self.assertEqual(logs.stdout.splitlines(), ["over", "over"], logs.stderr)

    def test_the_record_holds_no_environment_and_is_the_agents_alone(self):
        os.environ["MY_SECRET"] = "swordfish-of-the-day"
        self.addCleanup(os.environ.pop, "MY_SECRET")
        self.submit("a", 2)
        record = self.record_at("b")
        self.assertEqual(record.stat().st_mode & 0o777, 0o600)
        self.assertNotIn(b"swordfish", record.read_bytes())
        self.assert_undisturbed_until_the_end()


class Meanwhile(PartsTest):
    """What happens while no agent is there."""

    def test_fault_27_the_job_ends_well(self):
        self.submit("a", 2)
        self.kill("b")
        self.stop_file.touch()
        self.wait_until(lambda: not any(map(is_alive, self.running.values())), "the workers end")
        self.start_again("b")
        job = self.await_end("JOB_STATE_SUCCEEDED")
        self.assertEqual(job["restarts"], 0)
        self.await_no_trace("b")

    def test_fault_27_a_rank_fails_and_its_exit_code_is_the_jobs(self):
        self.assert_a_failure_of_meanwhile_is_the_jobs()

    def test_fault_27_the_shim_is_killed_too_and_the_job_begins_anew(self):
        self.submit("a", 2, "--max_restarts", 1)
        below = cluster.children_of(self.agents["b"].process.pid)
        self.kill("b")
        for pid in below:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.start_again("b")
        self.await_line("b", "its part is lost")
        self.assert_begun_anew()

    def test_fault_31_a_damaged_record_costs_a_restart_and_leaves_nothing(self):
        self.submit("a", 2, "--max_restarts", 1)
        self.kill("b")
        record = self.record_at("b")
        content = bytearray(record.read_bytes())
        content[len(content) // 2] ^= 1
        record.write_bytes(content)
        self.start_again("b")
        self.await_line("b", "of its processes were killed")
        self.assert_begun_anew()

    def test_a_job_that_the_coordinator_does_not_know_any_more_is_stopped(self):
        self.submit("b", 2)
        for name in "ab":
            self.kill(name)
        (self.agents["a"].state / "coordinator.journal").unlink()
        for name in "ab":
            self.start_again(name)
            self.await_line(name, TAKEN_OVER)
        self.wait_until(lambda: not any(map(is_alive, self.running.values())), "the workers are stopped")
        for name in "ab":
            self.await_no_trace(name)


class WithToken(PartsTest):
    """What happened meanwhile is believed once the job's token was proved again."""

    @property
    def CONFIG(self):
        token = self.folder / "token"
        token.touch(0o600)
        token.write_text("0123456789abcdef" * 4)
        return f"beat_every_ms: 4000\ntoken_file: {token}\n"

    def test_a_rank_fails_and_its_exit_code_is_the_jobs(self):
        self.assert_a_failure_of_meanwhile_is_the_jobs()


class TooLate(PartsTest):
    CONFIG = "beat_every_ms: 500\n"

    def test_fault_27_an_agent_that_comes_back_after_the_window_finds_the_next_generation(self):
        self.submit("a", 2, "--max_restarts", 1)
        self.kill("b")
        self.await_line("a", "it did not come back")
        self.start_again("b")
        self.await_line("b", TAKEN_OVER)
        self.assert_begun_anew()
        self.await_no_trace("b")

    def test_fault_38_a_lease_that_ends_while_no_agent_is_there_ends_the_workers(self):
        launch = subprocess.Popen([BIN / "accel-launch", "--agent", "--nnodes", "2", "--num_processes", "2", "--rdzv_id", self.NAME,
                                   "--fencing", "hard", "--lease", "4", "--no_python", "/bin/sh", "-c", self.script()],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
                                  env={**os.environ, "ACCEL_AGENT": str(self.agents["a"].state / "run")},
                                  **cluster.identity_of(cluster.ANN))
        self.addCleanup(launch.wait, PATIENCE)
        self.addCleanup(launch.kill)
        self.await_workers(2)
        own = self.worker_on("b")
        self.kill("b")
        self.wait_until(lambda: not is_alive(own), "the shim ends the worker")
        self.start_again("b")
        self.await_line("b", TAKEN_OVER)
        self.await_line("b", "the lease of generation 1 is over")
        self.await_end("JOB_STATE_FAILED")


if __name__ == "__main__":
    unittest.main(verbosity=1)
