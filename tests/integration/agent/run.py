#!/usr/bin/env python3
"""One accel-agent with real jobs: submitted, followed, stopped, drained, and kept apart by user.

Run by ctest. The tests with two users need root and are skipped without it.
"""
import grp
import json
import os
import pathlib
import pwd
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import raw_grpc  # noqa: E402
from one_agent import BIN, CAN_BE_PROTECTED, IS_ROOT, PATIENCE, UNIT_RIGHTS, Agent, AgentTest, as_the_unit  # noqa: E402
from programs import BUILD, SOURCE, Program, eventually, free_address, is_alive, is_sanitized, revoke_certificate  # noqa: E402


def expand(listed):
    """The numbers of "0-3,8"."""
    ends = [(part.split("-") * 2)[:2] for part in listed.split(",")]
    return [number for first, last in ends for number in range(int(first), int(last) + 1)]


class NarrowedAgent(AgentTest):
    """An agent that may use one core alone."""

    def setUp(self):
        before = os.sched_getaffinity(0)
        if len(before) < 2:
            self.skipTest("one core is all that there is")
        self.core = max(before)
        os.sched_setaffinity(0, {self.core})
        self.addCleanup(os.sched_setaffinity, 0, before)
        super().setUp()
        os.sched_setaffinity(0, before)

    def test_fault_72_workers_use_what_is_granted_to_the_agent_alone(self):
        for mode in ("NONE", "NODE", "SOCKET", "EXCLUSIVE", "L3"):
            path = pathlib.Path(self.folder) / "job.json"
            path.write_text(json.dumps({"argv": Jobs.CORES, "procs_per_node": 2, "affinity": {"mode": f"MODE_{mode}", "set_omp": True}}))
            done = self.accel("run", "--spec", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            cores = [line for line in done.stdout.splitlines() if not line.startswith("threads")]
            self.assertEqual(cores, [str(self.core)] * 2)


class Jobs(AgentTest):
    def test_a_job_runs_and_its_output_and_exit_code_come_back(self):
        done = self.accel("run", "--", "/bin/sh", "-c", "echo out; echo err >&2; exit 3")
        self.assertEqual((done.returncode, done.stdout), (3, "out\n"))
        self.assertTrue(done.stderr.startswith("err\n"), done.stderr)
        self.assertIn("failed with exit code 3", done.stderr)

    def test_output_comes_back_unchanged_however_long(self):
        done = self.accel("run", "--", "/usr/bin/seq", "200000")
        self.assertEqual(done.stdout, "".join(f"{i}\n" for i in range(1, 200001)))
        self.assertEqual(done.returncode, 0)

    def test_fault_26_a_follower_reads_on_over_rotated_files(self):
        done = self.accel("run", "--name", "r", "--log_rotate_bytes", "4K", "--log_keep", 1000, "--", "/usr/bin/seq", 200000)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "".join(f"{i}\n" for i in range(1, 200001)))
        again = self.accel("logs", "r")
        self.assertEqual(again.stdout, done.stdout)
        self.assertNotIn("are gone", done.stderr + again.stderr)

    def test_fault_26_bytes_that_were_rotated_away_are_counted(self):
        whole = "".join(f"{i}\n" for i in range(1, 200001))
        done = self.accel("run", "--detach", "--name", "r", "--log_rotate_bytes", "64K", "--log_keep", 2, "--", "/usr/bin/seq", 200000)
        self.assertEqual(done.returncode, 0, done.stderr)
        follower = self.follow("r")
        follower.stdout.read()
        self.assertEqual(follower.wait(PATIENCE), 0)
        left = self.accel("logs", "r")
        self.assertTrue(left.stdout)
        self.assertTrue(whole.endswith(left.stdout))
        gone = len(whole) - len(left.stdout)
        self.assertEqual(gone % 65536, 0)
        self.assertIn(f"accel: {gone} bytes of rank 0's stdout are gone: its log files were rotated\n", left.stderr)
        refused = self.accel("run", "--log_rotate_bytes", 100, "--", "true")
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("log.rotate_bytes is 100, below 4096", refused.stderr)

    def test_logs_of_a_rank_that_is_not_there_name_those_that_are(self):
        done = self.accel("run", "-n", 2, "--name", "two", "--", "/bin/sh", "-c", "echo $RANK")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.accel("logs", "--rank", 1, "two").stdout, "1\n")
        missing = self.accel("logs", "--rank", 9, "two")
        self.assertEqual(missing.returncode, 2, missing.stderr)
        self.assertIn("job two has no rank 9, but ranks 0 and 1", missing.stderr)

    def test_a_folder_that_is_not_there_is_named(self):
        done = self.accel("run", "--cwd", "/nope", "--", "true")
        self.assertEqual(done.returncode, 127, done.stderr)
        self.assertIn("rank 0 could not be started: chdir to /nope: No such file", done.stderr)
        checked = self.accel("run", "--cwd", "/nope", "--preflight", "look=true", "--", "true")
        self.assertIn("chdir to /nope: No such file", checked.stderr)

    def test_fault_26_accel_launch_asks_the_agent_to_rotate(self):
        launch = self.launch("--cpu", "--rdzv_id", "lr", "--log_rotate_bytes", "4K", "--log_keep", 1, "--no_python", "seq", 20000)
        _, err = launch.communicate(timeout=PATIENCE)
        self.assertEqual(launch.returncode, 0, err)
        self.assertIn("bytes of rank 0's stdout are gone", self.accel("logs", "lr").stderr)

    def test_merged_streams_keep_their_order_and_failures_show_them(self):
        done = self.accel("run", "--log_merge_stderr", "--log_overflow", "sample", "--", "/bin/sh", "-c",
                          "for i in 1 2 3; do echo out $i; echo err $i >&2; done; exit 4")
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertEqual(done.stdout, "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n")
        refused = self.accel("run", "--log_overflow", "lose", "--", "true")
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("block", refused.stderr)

    def test_workers_know_their_ranks_and_restart(self):
        script = 'echo $RANK/$WORLD_SIZE/$TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 1'
        done = self.accel("run", "-n", 2, "--max_restarts", 1, "--name", "twice", "--", "/bin/sh", "-c", script)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLessEqual({"0/2/1", "1/2/1"}, set(done.stdout.split()))
        self.assertEqual(self.job("twice")["restarts"], 1)

    def test_the_environment_is_the_callers_and_nothing_of_the_agents(self):
        done = self.accel("run", "--env", "MINE=2", "--", "/usr/bin/env", env={"FROM_CALLER": "1"})
        self.assertIn("FROM_CALLER=1\n", done.stdout)
        self.assertIn("MINE=2\n", done.stdout)

    def test_status_lists_jobs_and_stop_ends_one(self):
        done = self.accel("run", "--detach", "--name", "sleeper", "--", "/bin/sh", "-c", "echo ready; exec sleep 1000")
        self.assertEqual(done.stdout, "sleeper\n", done.stderr)
        follower = self.follow("sleeper")
        self.wait_for_line(follower, "ready")
        self.assertEqual(self.job("sleeper")["state"], "JOB_STATE_RUNNING")
        self.assertIn("sleeper", self.accel("status").stdout)
        self.assertEqual(self.accel("stop", "sleeper").returncode, 0)
        self.assertEqual(follower.wait(PATIENCE), 0)
        job = self.job("sleeper")
        self.assertEqual((job["state"], job["exit_code"]), ("JOB_STATE_CANCELLED", 143))

    def test_a_stop_may_give_less_time_than_the_job_has(self):
        self.accel("run", "--detach", "--name", "saver", "--stop-grace", 3600, "--", "/bin/sh", "-c",
                   "trap 'echo told' TERM; echo ready; while :; do sleep 0.05; done")
        follower = self.follow("saver")
        self.wait_for_line(follower, "ready")
        self.assertEqual(self.accel("stop", "--grace", 0.5, "saver").returncode, 0)
        self.wait_for_line(follower, "told")
        self.assertEqual(follower.wait(PATIENCE), 0)
        self.assertEqual(self.job("saver")["state"], "JOB_STATE_CANCELLED")
        done = self.accel("stop", "--grace", -1, "saver")
        self.assertEqual(done.returncode, 2, done.stderr)

    def test_status_lists_more_than_a_message_holds(self):
        names = [f"long-{i}" for i in range(12)]
        for name in names:
            self.accel("run", "--name", name, "--", "true", "x" * 100_000)
        done = self.accel("status", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([job["job_id"] for job in json.loads(done.stdout)["jobs"]], names)

    def test_status_has_the_steps_that_workers_report(self):
        self.accel("run", "--detach", "--name", "steps", "-n", 2, "--", BUILD / "tests/fault_worker", "beats", 1000000)

        def steps_of(job):
            return [worker.get("step_seconds", 0) > 0 and int(worker["step"]) for worker in job["workers"]]
        eventually(lambda: len(steps_of(self.job("steps"))) == 2 and all(steps_of(self.job("steps"))), "the steps of a job")
        listed, = json.loads(self.accel("status", "--json").stdout)["jobs"]
        self.assertTrue(all(steps_of(listed)), listed)
        self.assertRegex(self.accel("status", "steps").stdout, r"rank 1 +pid \d+, step \d+ \([0-9.e-]+ s each\)\n")
        self.accel("stop", "steps")
        eventually(lambda: self.job("steps")["state"] == "JOB_STATE_CANCELLED", "the end")
        self.assertNotIn("step_seconds", self.accel("status", "steps", "--json").stdout)

    def test_watch_begins_with_more_than_a_stream_may_hold(self):
        names = [f"long-{i}" for i in range(42)]
        for name in names:
            self.accel("run", "--name", name, "--", "true", *["x" * 120_000] * 7)
        watcher = subprocess.Popen([BIN / "accel", "watch", "--agent", self.agent.state / "run"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(watcher.stdout.close)
        self.addCleanup(watcher.wait, PATIENCE)
        self.addCleanup(watcher.terminate)
        self.assertEqual([watcher.stdout.readline().split()[0] for _ in names], names)

    def test_an_interrupt_of_run_stops_the_job(self):
        runner = subprocess.Popen([BIN / "accel", "run", "--agent", self.agent.state / "run", "--name", "i", "--", "/bin/sh", "-c",
                                   "echo ready; exec sleep 1000"], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
        self.addCleanup(runner.stdout.close)
        self.wait_for_line(runner, "ready")
        runner.send_signal(signal.SIGINT)
        self.assertEqual(runner.wait(PATIENCE), 143)
        self.assertEqual(self.job("i")["state"], "JOB_STATE_CANCELLED")

    def launch(self, *arguments, **more):
        return subprocess.Popen([BIN / "accel-launch", "--agent", *map(str, arguments)], text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env={**os.environ, "ACCEL_AGENT": str(self.agent.state / "run"), **more})

    def test_accel_launch_gives_a_job_to_the_agent(self):
        launch = self.launch("--num_processes", 2, "--max_restarts", 1, "--rdzv_id", "given", "--no_python", "/bin/sh", "-c",
                             '[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 9; echo $RANK/$WORLD_SIZE $MINE; exit 3', MINE="yes")
        out, err = launch.communicate(timeout=PATIENCE)
        self.assertEqual(launch.returncode, 3, err)
        self.assertEqual(set(out.splitlines()), {"0/2 yes", "1/2 yes"} & set(out.splitlines()))
        self.assertTrue(out, err)
        self.assertIn("accel-launch: job given was given to the agent\n", err)
        self.assertIn("accel-launch: job given failed: ", err)
        job = self.job("given")
        self.assertEqual((job["restarts"], job["exit_code"]), (1, 3))

    def test_an_interrupt_of_accel_launch_stops_the_job_of_the_agent(self):
        launch = self.launch("--cpu", "--quiet", "--no_python", "/bin/sh", "-c", "echo ready; exec sleep 1000")
        self.addCleanup(launch.stdout.close)
        self.addCleanup(launch.stderr.close)
        self.wait_for_line(launch, "ready")
        launch.send_signal(signal.SIGINT)
        self.assertEqual(launch.wait(PATIENCE), 143)
        self.assertEqual(launch.stderr.read(), "")

    def test_accel_launch_says_when_there_is_no_agent(self):
        launch = self.launch("--cpu", "--no_python", "/bin/true", ACCEL_AGENT=self.folder)
        out, err = launch.communicate(timeout=PATIENCE)
        self.assertEqual(launch.returncode, 69)
        self.assertIn("accel-launch: error [agent.unreachable]", err)

    def test_a_signal_reaches_the_workers(self):
        self.accel("run", "--detach", "--name", "s", "--", "/bin/sh", "-c", "trap 'echo got; exit 7' USR2; echo ready; while :; do sleep 0.05; done")
        follower = self.follow("s")
        self.wait_for_line(follower, "ready")
        self.assertEqual(self.accel("signal", "s", int(signal.SIGUSR2)).returncode, 0)
        self.wait_for_line(follower, "got")
        self.assertEqual(follower.wait(PATIENCE), 0)
        self.assertEqual(self.job("s")["exit_code"], 7)

    def test_fault_6_a_worker_that_hangs_is_named_with_its_cause(self):
        worker = BUILD / "tests/fault_worker"
        done = self.accel("run", "--name", "hung", "--hang_timeout", "1", "--", worker, "beats", "6")
        self.assertEqual(done.returncode, 124, done.stderr)
        self.assertIn("rank 0 made no progress: no progress for", done.stderr)
        self.assertIn("limit 1 s", done.stderr)
        self.assertEqual(self.job("hung")["workers"][0]["exit"]["cause"], "CAUSE_HANG")
        bad = self.accel("run", "--hang_timeout", "soon", "--", "true")
        self.assertEqual(bad.returncode, 2)
        self.assertIn("'soon' is not auto, off or a number of seconds above 0", bad.stderr)

    def spec(self, **fields):
        """A file for `accel run --spec`."""
        path = pathlib.Path(self.folder) / "job.json"
        path.write_text(json.dumps(fields))
        path.chmod(0o644)
        return path

    CORES = ["/bin/sh", "-c", "sed -n 's/^Cpus_allowed_list:.//p' /proc/self/status; echo threads $OMP_NUM_THREADS"]

    def test_a_file_says_what_a_job_asks_for_and_flags_go_before_it(self):
        path = self.spec(job_id="filed", argv=["/bin/sh", "-c", "echo $MINE $HERE; exit 4"], env={"MINE": "file"}, procs_per_node=2)
        done = self.accel("run", "--spec", path, "--name", "flagged", "--env", "HERE=flag", env={"MINE": "caller"})
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertTrue(done.stdout.startswith("file flag\n"), done.stdout)
        self.assertEqual(len(self.job("flagged")["workers"]), 2)
        path = self.spec(argv=["true"], affinity={"mode": "MODE_MOON"})
        done = self.accel("run", "--spec", path)
        self.assertEqual(done.returncode, 2)
        self.assertIn("error [config.invalid_value]", done.stderr)
        self.assertIn("MODE_MOON", done.stderr)
        self.assertIn("error [config.unreadable]", self.accel("run", "--spec", "/no/such/file").stderr)

    def test_workers_get_cores_threads_and_memory_by_their_affinity(self):
        cores = sorted(os.sched_getaffinity(0))
        for mode in ("NODE", "SOCKET", "L3"):
            path = self.spec(argv=self.CORES, affinity={"mode": f"MODE_{mode}", "bind_memory": True, "set_omp": True})
            done = self.accel("run", "--spec", path)
            if "set_mempolicy" in done.stderr:
                self.skipTest("this kernel or container lets nobody choose memory")
            self.assertEqual(done.returncode, 0, done.stderr)
            listed, threads = done.stdout.splitlines()
            self.assertLessEqual(set(expand(listed)), set(cores))
            self.assertRegex(threads, "threads [1-9]")
        done = self.accel("run", "--spec", self.spec(argv=["true"], affinity={"reserve_cores": 100_000}))
        self.assertIn("error [argument.invalid]", done.stderr)
        self.assertIn("affinity.reserve_cores is 100000", done.stderr)

    def test_a_failed_check_is_named_and_no_worker_starts(self):
        done = self.accel("run", "--name", "checked", "--preflight", "good=true", "--preflight", "disk=echo no room; exit 3", "--",
                          "/bin/echo", "ran")
        self.assertEqual((done.returncode, done.stdout), (75, ""), done.stderr)
        self.assertIn("preflight check 'disk' ended with exit code 3; its last lines: no room", done.stderr)
        self.assertEqual(self.job("checked")["state"], "JOB_STATE_FAILED")
        path = self.spec(argv=["/bin/echo", "ran"], preflight=[{"name": "slow", "argv": ["sleep", "1000"], "timeout": "0.2s"}])
        self.assertIn("'slow' took longer than its limit of 0.2 s", self.accel("run", "--spec", path).stderr)
        done = self.accel("run", "--preflight", "good=test $MINE = 1", "--env", "MINE=1", "--", "/bin/echo", "ran")
        self.assertEqual((done.returncode, done.stdout), (0, "ran\n"), done.stderr)
        self.assertIn("expected NAME=COMMAND", self.accel("run", "--preflight", "good", "--", "true").stderr)

    def test_a_job_that_is_checked_can_be_stopped(self):
        begun = pathlib.Path(self.folder) / "begun"
        self.accel("run", "--detach", "--name", "c", "--preflight", f"slow=touch {begun}; sleep 1000", "--", "true")
        for _ in range(PATIENCE * 20):
            if begun.exists():
                break
            threading.Event().wait(0.05)
        self.assertEqual(self.accel("stop", "c").returncode, 0)
        self.follow("c").wait(PATIENCE)
        self.assertEqual(self.job("c")["state"], "JOB_STATE_CANCELLED")

    def test_fault_67_a_worker_that_stops_its_shim_costs_its_own_job_alone(self):
        """Issue 19: the stop was never obeyed, and the job held its place for ever."""
        folder = pathlib.Path(self.folder)
        self.accel("run", "--detach", "--name", "neighbour", "--", "/bin/sh", "-c", "echo ready; exec sleep 1000")
        self.wait_for_line(self.follow("neighbour"), "ready")
        script = f"while [ ! -e {folder}/go ]; do sleep 0.05; done; kill -STOP $PPID; touch {folder}/stopped; exec sleep 1000"
        self.accel("run", "--detach", "--name", "stopper", "--", "/bin/sh", "-c", f"echo ready; {script}")
        self.wait_for_line(self.follow("stopper"), "ready")
        worker = self.job("stopper")["workers"][0]["pid"]
        (folder / "go").touch()
        for _ in range(PATIENCE * 20):
            if (folder / "stopped").exists():
                break
            threading.Event().wait(0.05)
        self.accel("stop", "--kill", "stopper")
        for _ in range(PATIENCE * 20):
            job = self.job("stopper")
            if job["state"] == "JOB_STATE_FAILED":
                break
            threading.Event().wait(0.05)
        self.assertIn("accel-shim did not do in time what it was told, and was killed", job["reason"])
        self.assertFalse(pathlib.Path(f"/proc/{worker}").exists())
        self.assertEqual(self.job("neighbour")["state"], "JOB_STATE_RUNNING")
        self.accel("stop", "--kill", "neighbour")

    def test_rules_of_a_job_for_stops_and_restarts_are_followed(self):
        path = self.spec(job_id="same", argv=["/bin/sh", "-c", "exit 3"],
                         restart={"max_restarts": 100, "max_same_cause": 2, "backoff_initial": "0.001s", "jitter": 1})
        done = self.accel("run", "--spec", path)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(self.job("same")["restarts"], 1)
        path = self.spec(job_id="never", argv=["/bin/sh", "-c", "exit 3"],
                         restart={"max_restarts": 100, "on_cause": {"NONZERO": "ACTION_FAIL"}})
        self.assertEqual(self.accel("run", "--spec", path).returncode, 3)
        self.assertEqual(self.job("never")["restarts"], 0)
        path = self.spec(job_id="noticed", stop={"preempt_signal": int(signal.SIGUSR2)}, argv=[
            "/bin/sh", "-c", "trap 'echo noticed; exit 0' USR2; trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"])
        self.accel("run", "--detach", "--spec", path)
        follower = self.follow("noticed")
        self.wait_for_line(follower, "ready")
        self.accel("stop", "noticed")
        self.wait_for_line(follower, "noticed")

    def test_diagnose_names_what_each_worker_waits_for(self):
        self.accel("run", "--detach", "--name", "d", "--", "/bin/sh", "-c", "echo ready; exec sleep 1000")
        self.wait_for_line(self.follow("d"), "ready")
        done = self.accel("diagnose", "d")
        self.assertIn("== rank 0, pid ", done.stdout)
        self.assertIn("State:", done.stdout)
        self.accel("stop", "--kill", "d")

    def test_watch_tells_each_change_of_a_job_until_it_ends(self):
        self.accel("run", "--detach", "--name", "w", "--", "/bin/sh", "-c", "echo ready; exec sleep 1000")
        self.wait_for_line(self.follow("w"), "ready")
        watcher = subprocess.Popen([BIN / "accel", "watch", "w", "--agent", self.agent.state / "run"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(watcher.stdout.close)
        self.assertEqual(self.wait_for_line(watcher, "w "), "w running, generation 0, 0 restarts")
        self.accel("stop", "--kill", "w")
        rest = watcher.stdout.read().splitlines()
        self.assertEqual(watcher.wait(PATIENCE), 0)
        self.assertTrue(rest[-1].startswith("w cancelled, "), rest)
        self.assertEqual(self.accel("watch", "nix").returncode, 66)

    def ledger(self, name):
        done = self.accel("ledger", name, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        ledger = json.loads(done.stdout)
        return ledger, {name: float(time[:-1]) for name, time in ledger.items() if time.endswith("s") and time[0].isdigit()}

    def test_ledger_tells_where_the_time_of_a_job_went(self):
        done = self.accel("run", "--name", "short", "--", "/bin/sh", "-c", "sleep 0.3")
        self.assertEqual(done.returncode, 0, done.stderr)
        ledger, accounts = self.ledger("short")
        self.assertEqual((ledger["job_id"], ledger["open"]), ("short", ""))
        # The agent counts from when it hears that the worker runs: what it slept until then is in "spawn".
        self.assertGreaterEqual(accounts["spawn"] + accounts["productive"], 0.3)
        self.assertGreater(accounts["productive"], 0)
        self.assertGreater(accounts["spawn"], 0)
        self.assertEqual(accounts["replay"], 0)
        text = self.accel("ledger", "short").stdout
        self.assertRegex(text, r"(?m)^productive +\d+\.\d s +\d+\.\d %$")
        self.assertEqual(self.accel("ledger", "nix").returncode, 66)

    def test_ledger_counts_steps_that_a_restart_makes_again(self):
        worker = BUILD / "tests/fault_worker"
        self.accel("run", "--detach", "--name", "again", "--max_restarts", 1, "--", worker, "beats", "1000000")
        self.wait_for_account("again", "productive", 3)
        os.kill(int(self.job("again")["workers"][0]["pid"]), signal.SIGKILL)
        self.wait_for_account("again", "replay", 0.001)
        accounts = self.ledger("again")[1]
        self.assertGreater(accounts["productive"], 0)
        self.assertGreater(accounts["stop"], 0)
        self.accel("stop", "--kill", "again")

    def wait_for_account(self, name, account, least):
        for _ in range(PATIENCE * 20):
            if self.ledger(name)[1][account] >= least:
                return
            threading.Event().wait(0.05)
        self.fail(f"never {least} s of {account}: {self.ledger(name)}")

    def test_a_drained_node_starts_nothing_until_it_is_undrained(self):
        self.assertEqual(self.accel("drain").returncode, 0)
        refused = self.accel("run", "--", "/bin/true")
        self.assertEqual(refused.returncode, 77, refused.stderr)
        self.assertIn("drained", refused.stderr)
        self.assertEqual(self.accel("undrain").returncode, 0)
        self.assertEqual(self.accel("run", "--", "/bin/true").returncode, 0)

    def restart(self):
        self.agent.end()
        self.agent = Agent(self.folder, config=self.CONFIG)
        self.addCleanup(self.agent.end)

    def test_a_drained_node_stays_drained_over_a_restart_of_its_agent(self):
        self.assertEqual(self.accel("drain", "--reason", "fan").returncode, 0)
        self.restart()
        self.agent.wait_for_text("this node is drained: fan; `accel undrain` lets it start jobs again")
        self.assertEqual(self.accel("run", "--", "true").returncode, 77)
        self.assertEqual(self.accel("undrain").returncode, 0)
        self.assertEqual(self.accel("run", "--", "true").returncode, 0)
        self.restart()
        self.assertEqual(self.accel("run", "--", "true").returncode, 0)

    def test_a_damaged_mark_of_a_drained_node_is_said_and_the_node_is_drained(self):
        self.agent.end()
        (self.agent.state / "drained").write_text("nonsense")
        self.restart()
        self.agent.wait_for_text("the mark of a drained node: ")
        self.assertEqual(self.accel("run", "--", "true").returncode, 77)
        self.assertEqual(self.accel("undrain").returncode, 0)
        self.assertEqual(self.accel("run", "--", "true").returncode, 0)

    def test_wrong_requests_get_an_error_with_a_remedy(self):
        for status, part, arguments in [(66, "no job 'nix'", ["status", "nix"]), (66, "no job", ["stop", "nix"]),
                                        (2, "job_id", ["run", "--name", "../x", "--", "true"]),
                                        (2, "'STOPP' is no signal", ["signal", "nix", "STOPP"])]:
            done = self.accel(*arguments)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn(part, done.stderr)
            self.assertIn("\n  try       ", done.stderr)
        missing = self.accel("run", "--", "/no/such/program")
        self.assertEqual(missing.returncode, 127, missing.stderr)
        self.assertIn("No such file", missing.stderr)

    def test_without_an_agent_the_error_says_so(self):
        done = subprocess.run([BIN / "accel", "status", "--agent", self.folder], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 69)
        self.assertIn("[agent.unreachable]", done.stderr)

    def status_at(self, address, *flags):
        return subprocess.run([BIN / "accel", "status", "--agent", address, *flags], capture_output=True, text=True, timeout=PATIENCE,
                              cwd=self.agent.state)

    def test_an_agent_is_named_by_its_folder_or_a_socket_in_it(self):
        run = self.agent.state / "run"
        for address in (run, run / "agent.sock", run / "tickets.sock", "./run", "run/tickets.sock"):
            done = self.status_at(address)
            self.assertEqual(done.returncode, 0, f"{address}: {done.stderr}")

    def test_an_address_that_lacks_something_says_what(self):
        for address, part, remedy in (("localhost:1", "is reached by TLS", "give --tls-dir DIR, or --insecure"),
                                      ("gpu-01", "'gpu-01' is no address of an agent", "give ADDR:PORT")):
            done = self.status_at(address)
            self.assertIn(part, done.stderr)
            self.assertIn(remedy, done.stderr)

    def test_fault_32_a_second_agent_of_the_same_folder_is_refused(self):
        second = subprocess.run([BIN / "accel-agent", "--state-dir", self.agent.state], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(second.returncode, 71)
        self.assertIn(f"pid {self.agent.process.pid}", second.stderr)

    def test_fault_33_a_reload_with_a_fault_keeps_what_was(self):
        config = pathlib.Path(self.folder) / "agent.yaml"
        config.write_text("allow_root: true\nallow_users: [no-such-user]\nmax_jobs: none\n")
        self.agent.process.send_signal(signal.SIGHUP)
        self.wait_for_text("the configuration is kept, the new one cannot be used:")
        self.agent.wait_for_text("agent.yaml:3: max_jobs must be a whole number")
        self.assertEqual(self.accel("run", "--", "true").returncode, 0)
        config.write_text("allow_root: true\nallow_users: [no-such-user]\n")
        self.agent.process.send_signal(signal.SIGHUP)
        self.wait_for_text("the configuration was read again")
        self.assertEqual(self.accel("run", "--", "true").returncode, 77)

    def test_fault_33_a_bad_configuration_is_refused_and_named(self):
        bad = pathlib.Path(self.folder) / "bad.yaml"
        bad.write_text("max_jobs: -1\nfoo: 1\n")
        done = subprocess.run([BIN / "accel-agent", "--check", "--config", bad], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("bad.yaml:2: foo", done.stderr)
        self.assertIn("bad.yaml:1: max_jobs", done.stderr)
        good = subprocess.run([BIN / "accel-agent", "--check", "--config", SOURCE / "configs/agent.yaml"], capture_output=True, text=True)
        self.assertEqual(good.returncode, 0, good.stderr)

    def test_fault_60_a_call_without_a_ticket_is_refused(self):
        """The gRPC socket alone proves nothing: a ticket that was closed is worth nothing any more."""
        tickets = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        tickets.connect(str(self.agent.state / "run/tickets.sock"))
        ticket = tickets.recv(128)
        self.assertEqual(len(ticket), 64)
        tickets.close()
        refusal = "audit: refused unix:: the call carries no valid ticket of this agent"
        for _ in range(1000):  # a call may come before the agent has seen the end of the ticket
            with self.call("ListJobs", ticket) as caller:
                status = raw_grpc.status_of(caller)
            if status != 0:
                break
        self.assertEqual(status, 16, "UNAUTHENTICATED is expected")
        self.wait_for_text(refusal)


class OpenFiles(AgentTest):
    """Fault 29: an agent at its limit of open files."""

    def open_files(self):
        return len(os.listdir(f"/proc/{self.agent.process.pid}/fd"))

    def limit(self, number):
        _, hard = resource.prlimit(self.agent.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.agent.process.pid, resource.RLIMIT_NOFILE, (number, hard))

    def test_fault_29_new_jobs_are_refused_and_those_that_run_are_supervised(self):
        self.accel("run", "--detach", "--name", "first", "--", "/bin/sleep", "1000")
        self.accel("run", "--detach", "--name", "second", "--", "/bin/sleep", "1000")
        before = resource.prlimit(self.agent.process.pid, resource.RLIMIT_NOFILE)[0]
        self.limit(self.open_files() + 40)
        refused = self.accel("run", "--", "true")
        self.assertEqual(refused.returncode, 77, refused.stderr)
        self.assertRegex(refused.stderr, r"this agent may open only \d+ more files, and keeps 64 for what runs")
        self.assertEqual(self.accel("signal", "first", "SIGKILL").returncode, 0)
        follower = self.follow("first")
        follower.stdout.read()
        self.assertEqual(self.job("first")["exit_code"], 137)
        self.assertEqual(self.accel("stop", "second").returncode, 0)
        self.limit(before)
        self.assertEqual(self.accel("run", "--", "true").returncode, 0)

    @unittest.skipIf(is_sanitized(), "a sanitizer needs descriptors")
    def test_fault_29_without_a_descriptor_callers_are_turned_away_until_there_is_one(self):
        before = resource.prlimit(self.agent.process.pid, resource.RLIMIT_NOFILE)[0]
        taken = {int(name) for name in os.listdir(f"/proc/{self.agent.process.pid}/fd")}
        self.limit(min(set(range(len(taken) + 1)) - taken))
        for _ in range(3):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
                caller.settimeout(PATIENCE)
                caller.connect(str(self.agent.state / "run/tickets.sock"))
                self.assertEqual(caller.recv(128), b"")
        self.limit(before)
        self.assertEqual(self.accel("run", "--", "true").returncode, 0)

    def flood(self, path, number, kind=socket.SOCK_STREAM):
        callers = []
        for _ in range(number):
            caller = socket.socket(socket.AF_UNIX, kind)
            self.addCleanup(caller.close)
            caller.connect(str(self.agent.state / "run" / path))
            callers.append(caller)
        return callers

    @unittest.skipUnless(IS_ROOT, "needs two users")
    def test_fault_64_a_local_user_with_hundreds_of_connections_keeps_nobody_else_out(self):
        self.agent.end()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        self.agent = Agent(self.folder, config=self.CONFIG)
        self.addCleanup(self.agent.end)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        callers = self.flood("agent.sock", 400)
        self.assertLess(self.open_files(), 128)
        nobody = pwd.getpwnam("nobody").pw_uid
        done = self.accel("status", user=nobody)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.wait_for_text("refused a connection from uid 0: ")
        for caller in callers:
            caller.close()
        self.assertEqual(self.accel("run", "--", "true").returncode, 0)

    @unittest.skipUnless(IS_ROOT, "needs two users")
    def test_fault_64_a_local_user_gets_no_more_than_its_share_of_tickets(self):
        callers = self.flood("tickets.sock", 300, socket.SOCK_SEQPACKET)
        num_given = 0
        for caller in callers:
            caller.settimeout(PATIENCE)
            num_given += len(caller.recv(128)) == 64
        self.assertEqual(num_given, 128)
        self.assertEqual(self.accel("status", user=pwd.getpwnam("nobody").pw_uid).returncode, 0)


@unittest.skipUnless(IS_ROOT, "needs several users")
class Quotas(AgentTest):
    CONFIG = "allow_root: true\nmax_jobs: 8\nmax_jobs_each: 3\nkeep_finished: 2\n"

    def start(self, user, count=1):
        for _ in range(count):
            done = self.accel("run", "--detach", "--", "/bin/sleep", "1000", user=pwd.getpwnam(user).pw_uid)
        return done

    def test_fault_64_a_user_with_many_jobs_leaves_room_for_others_and_all_leave_some_for_root(self):
        self.assertEqual(self.start("nobody", 3).returncode, 0)
        refused = self.start("nobody")
        self.assertEqual(refused.returncode, 77, refused.stderr)
        self.assertIn("no more jobs here for nobody: it has 3 jobs, as many as one caller may", refused.stderr)
        self.assertEqual(self.start("daemon", 3).returncode, 0)
        self.assertEqual(self.start("bin").returncode, 0)
        refused = self.start("bin")
        self.assertIn("7 jobs in all are as many as there may be of users other than root", refused.stderr)
        self.assertEqual(self.start("root").returncode, 0)
        self.assertIn("8 jobs in all are as many as there may be", self.start("root").stderr)

    def test_fault_64_ended_jobs_of_one_user_do_not_displace_those_of_others(self):
        nobody = pwd.getpwnam("nobody").pw_uid
        self.accel("run", "--name", "kept", "--", "true", user=nobody)
        for i in range(4):
            self.accel("run", "--name", f"other-{i}", "--", "true")
        self.assertEqual(self.job("kept", user=nobody)["job_id"], "kept")
        self.assertEqual(self.job("other-3")["job_id"], "other-3")
        self.assertNotEqual(self.accel("status", "other-1").returncode, 0)


class Streams(AgentTest):
    @unittest.skipUnless(IS_ROOT, "needs two users")
    def test_fault_64_a_user_with_many_streams_keeps_nobody_else_out(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as tickets:
            tickets.connect(str(self.agent.state / "run/tickets.sock"))
            ticket = tickets.recv(128)
            self.accel("run", "--name", "ended", "--", "true")
            callers = [self.call("Watch", ticket, count=30) for _ in range(3)]
            for _ in range(PATIENCE * 5):  # the calls may still be on their way
                done = self.accel("watch", "ended")
                if done.returncode != 0:
                    break
            self.assertIn("no more streams for uid 0: it has 64 streams, as many as one caller may", done.stderr)
            self.assertIn("end some of its `accel watch`", done.stderr)
            self.assertEqual(self.accel("run", "--", "true", user=pwd.getpwnam("nobody").pw_uid).returncode, 0)
            for caller in callers:
                caller.close()
        # It waits until one of its user's streams has ended.
        self.assertEqual(self.accel("run", "--", "true").returncode, 0)


@unittest.skipUnless(IS_ROOT, "needs two users")
@unittest.skipIf(is_sanitized(), "a sanitizer comes before any other preloaded library")
class SilentDirectory(unittest.TestCase):
    """The user database has no answer for one user."""
    accel = AgentTest.accel

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="accel-agent-")
        os.chmod(self.folder, 0o755)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.nobody = pwd.getpwnam("nobody").pw_uid
        self.agent = Agent(self.folder, config=AgentTest.CONFIG, env={
            "LD_PRELOAD": str(BUILD / "tests/libsilent_directory.so"), "ACCEL_TEST_SILENT_UID": str(self.nobody)})
        self.addCleanup(self.agent.end)

    def test_fault_28_a_user_whom_the_user_database_does_not_know_yet_waits_alone(self):
        refused = []
        caller = threading.Thread(target=lambda: refused.append(self.accel("run", "--", "true", user=self.nobody)))
        caller.start()
        self.addCleanup(caller.join)
        while caller.is_alive():
            done = self.accel("run", "--", "true")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(refused[0].returncode, 77, refused[0].stderr)
        self.assertIn(f"the user database has no answer yet for uid {self.nobody}", refused[0].stderr)
        self.assertIn("`getent passwd`", refused[0].stderr)


class Ending(AgentTest):
    CONFIG = "allow_root: true\ndrain_grace_seconds: 30\n"

    def test_sigterm_stops_the_jobs_and_then_the_agent(self):
        self.accel("run", "--detach", "--name", "e", "--", "/bin/sh", "-c", "echo ready; exec sleep 1000")
        self.wait_for_line(self.follow("e"), "ready")
        pid = int(self.job("e")["workers"][0]["pid"])
        self.assertEqual(self.agent.end(), 0)
        self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())
        self.agent.wait_for_text("job e ended")

    def test_a_second_sigterm_kills_stubborn_jobs(self):
        self.accel("run", "--detach", "--name", "e", "--", "/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
        self.wait_for_line(self.follow("e"), "ready")
        self.agent.process.send_signal(signal.SIGTERM)
        while "1 jobs to stop" not in self.agent.text():
            signal.sigtimedwait([], 0.02)
        self.assertEqual(self.agent.end(), 0)


class Supervised(unittest.TestCase):
    def test_the_service_manager_hears_of_every_change(self):
        folder = tempfile.mkdtemp(prefix="accel-agent-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(manager.close)
        manager.bind(folder + "/notify")
        manager.settimeout(PATIENCE)
        agent = Agent(folder, env={"NOTIFY_SOCKET": folder + "/notify", "WATCHDOG_USEC": "300000"})

        def wait_for(part):
            while True:
                message = manager.recv(4096).decode()
                if part in message:
                    return message

        try:
            wait_for("READY=1")
            wait_for("WATCHDOG=1")
            agent.process.send_signal(signal.SIGHUP)
            self.assertIn("MONOTONIC_USEC=", wait_for("RELOADING=1"))
            wait_for("READY=1")
        finally:
            agent.process.send_signal(signal.SIGTERM)
            wait_for("STOPPING=1")
            self.assertEqual(agent.end(), 0)


class OverTcp(unittest.TestCase):
    """An agent that listens with certificates, and people who have some."""
    CRL = ""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="accel-agent-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.address = free_address()
        node = self.certificate("node", "n1")
        config = (f"node_id: n1\nlisten: {self.address}\nallow_root: true\n"
                  f"tls: {{authority: {node}/ca.pem, certificate: {node}/cert.pem, key: {node}/key.pem{self.CRL.format(node)}}}\n")
        self.agent = Agent(self.folder, config=config)
        self.addCleanup(self.agent.end)

    def certificate(self, role, name, *more, folder="ca"):
        done = subprocess.run([BIN / "accel-agent", "init-tls", "--dir", f"{self.folder}/{folder}", "--role", role, "--name", name, *more],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def accel(self, tls_dir, command, *arguments, address=None):
        secure = ["--insecure"] if tls_dir is None else ["--tls-dir", tls_dir]
        return subprocess.run([BIN / "accel", command, "--agent", address or self.address, *secure, *arguments], capture_output=True,
                              text=True, timeout=PATIENCE)

    def local(self, command, *arguments):
        return subprocess.run([BIN / "accel", command, "--agent", self.agent.state / "run", *arguments], capture_output=True, text=True,
                              timeout=PATIENCE)


class Remote(OverTcp):
    """What a certificate's role allows, and what nobody without one gets."""

    def test_a_viewer_looks_and_an_operator_acts(self):
        self.assertEqual(self.local("run", "--detach", "--name", "j", "--", "/bin/sleep", "1000").returncode, 0)
        viewer, operator = self.certificate("viewer", "vic"), self.certificate("operator", "ann")
        self.assertIn("j ", self.accel(viewer, "status").stdout)
        for arguments in (["stop", "j"], ["drain"], ["diagnose", "j"], ["run", "--", "true"]):
            refused = self.accel(viewer, *arguments)
            self.assertEqual(refused.returncode, 77, (arguments, refused.stderr))
        self.assertEqual(self.accel(operator, "run", "--", "true").returncode, 77)
        self.assertEqual(self.accel(operator, "stop", "--kill", "j").returncode, 0)
        self.agent.wait_for_text("audit: stop j (kill) for accel://default/operator/ann")

    def test_a_node_certificate_neither_sees_nor_acts(self):
        node = self.certificate("node", "n2")
        self.local("run", "--detach", "--name", "j", "--", "/bin/sleep", "1000")
        self.assertNotIn("j ", self.accel(node, "status").stdout)
        self.assertEqual(self.accel(node, "stop", "j").returncode, 66)
        self.local("stop", "--kill", "j")

    def test_fault_60_without_a_certificate_of_the_authority_nothing_is_answered(self):
        self.assertEqual(self.accel(None, "status").returncode, 69)
        self.assertEqual(self.accel(self.certificate("operator", "eve", folder="other"), "status").returncode, 69)
        other_cluster = self.certificate("operator", "bob", "--cluster", "elsewhere")
        refused = self.accel(other_cluster, "status")
        self.assertEqual(refused.returncode, 69, refused.stderr)

    def test_fault_60_an_agent_of_another_cluster_is_not_believed(self):
        node = self.certificate("node", "n2", "--cluster", "elsewhere")
        folder = pathlib.Path(self.folder) / "second"
        folder.mkdir()
        address = free_address()
        agent = Agent(folder, config=f"node_id: n2\ncluster: elsewhere\nlisten: {address}\nallow_root: true\n"
                                     f"tls: {{authority: {node}/ca.pem, certificate: {node}/cert.pem, key: {node}/key.pem}}\n")
        self.addCleanup(agent.end)
        refused = self.accel(self.certificate("operator", "ann"), "status", address=address)
        self.assertEqual(refused.returncode, 69, refused.stderr)
        self.assertIn("the server's certificate has not the role node in cluster 'default'", refused.stderr)
        believed = self.accel(self.certificate("operator", "eve", "--cluster", "elsewhere"), "status", address=address)
        self.assertEqual(believed.returncode, 0, believed.stderr)

    def test_fault_60_a_launcher_is_no_agent_and_sees_nothing(self):
        launcher = self.certificate("launcher", "n1")
        self.local("run", "--detach", "--name", "j", "--", "/bin/sleep", "1000")
        self.assertNotIn("j ", self.accel(launcher, "status").stdout)
        self.assertEqual(self.accel(launcher, "stop", "j").returncode, 66)
        self.assertEqual(self.accel(launcher, "drain").returncode, 77)
        self.local("stop", "--kill", "j")
        folder = pathlib.Path(self.folder) / "second"
        folder.mkdir()
        address = free_address()
        agent = Agent(folder, config=f"node_id: n1\nlisten: {address}\nallow_root: true\ntls: {{authority: {launcher}/ca.pem, "
                                     f"certificate: {launcher}/cert.pem, key: {launcher}/key.pem}}\n")
        self.addCleanup(agent.end)
        refused = self.accel(self.certificate("operator", "ann"), "status", address=address)
        self.assertEqual(refused.returncode, 69, refused.stderr)
        self.assertIn("the server's certificate has not the role node in cluster 'default'", refused.stderr)

    def test_fault_63_a_message_above_the_limit_is_refused_and_the_agent_lives(self):
        much = [text for i in range(10) for text in ("--env", f"BIG{i}=" + "x" * 120_000)]
        refused = self.local("run", *much, "--", "true")
        self.assertNotEqual(refused.returncode, 0)
        self.assertEqual(self.local("status").returncode, 0)

    def test_fault_66_keys_that_others_may_read_are_refused(self):
        operator = pathlib.Path(self.certificate("operator", "ann"))
        (operator / "key.pem").chmod(0o644)
        refused = self.accel(operator, "status")
        self.assertEqual(refused.returncode, 78, refused.stderr)
        self.assertIn("chmod 600", refused.stderr)

    def test_fault_62_a_certificate_that_ends_soon_is_told(self):
        self.assertNotIn("warning", self.agent.text())
        node = self.certificate("node", "n1", "--days", "1", folder="short")
        folder = pathlib.Path(self.folder) / "second"
        folder.mkdir()
        agent = Agent(folder, config=f"node_id: n1\nlisten: 127.0.0.1:0\ntls: {{authority: {node}/ca.pem, "
                                     f"certificate: {node}/cert.pem, key: {node}/key.pem}}\n")
        self.addCleanup(agent.end)
        agent.wait_for_text(f"warning: {node}/cert.pem ends within a day (")

    def test_fault_62_a_new_certificate_serves_without_a_restart(self):
        """The files are replaced by those of another authority: after a while only its people get in."""
        fresh = pathlib.Path(self.certificate("node", "n1", folder="fresh"))
        operator = self.certificate("operator", "ann", folder="fresh")
        self.assertNotEqual(self.accel(operator, "status").returncode, 0)
        current = pathlib.Path(self.folder) / "ca/node-n1"
        for name in ("key.pem", "cert.pem", "ca.pem"):
            shutil.copy(fresh / name, current / (name + ".new"))
            os.rename(current / (name + ".new"), current / name)
        for _ in range(60):  # they are looked at every ten seconds
            if self.accel(operator, "status").returncode == 0:
                return
            signal.sigtimedwait([], 0.5)
        self.fail("the new certificate never served")


class Revoked(OverTcp):
    """Certificates that are taken back."""
    CRL = ", crl: {}/crl.pem"

    def revoke(self, role, name, *folders):
        revoke_certificate(f"{self.folder}/ca", role, name, *[f"{folder}/crl.pem" for folder in folders])

    def test_fault_60_who_is_revoked_is_refused_and_its_streams_end(self):
        ann, bob = self.certificate("operator", "ann"), self.certificate("operator", "bob")
        self.assertEqual(self.accel(ann, "status").returncode, 0)
        watching = {name: Program(name, [BIN / "accel", "watch", "--agent", self.address, "--tls-dir", folder])
                    for name, folder in (("ann", ann), ("bob", bob))}
        for program in watching.values():
            self.addCleanup(program.close)
        self.assertEqual(self.local("run", "--detach", "--name", "j", "--", "/bin/sleep", "1000").returncode, 0)
        for program in watching.values():
            program.wait_for("j")
        self.revoke("operator", "ann", f"{self.folder}/ca/node-n1")
        self.agent.wait_for_text("crl.pem: 1")  # it is looked at every ten seconds
        self.assertNotEqual(watching["ann"].wait(), 0)
        watching["ann"].wait_for("the certificate of accel://default/operator/ann was revoked")
        self.assertEqual(self.accel(ann, "status").returncode, 69)
        self.agent.wait_for_text("refused a connection: the certificate of accel://default/operator/ann was revoked")
        self.assertEqual(self.accel(bob, "stop", "--kill", "j").returncode, 0)
        self.assertIsNone(watching["bob"].process.poll(), watching["bob"].text())
        self.assertEqual(self.accel(self.certificate("operator", "ann"), "status").returncode, 0)

    def test_fault_60_an_agent_that_is_revoked_is_not_believed(self):
        ann = self.certificate("operator", "ann")
        self.revoke("node", "n1", ann)
        refused = self.accel(ann, "status")
        self.assertEqual(refused.returncode, 69, refused.stderr)
        self.assertIn("the certificate of accel://default/node/n1 was revoked", refused.stderr)

    def test_fault_60_a_list_that_cannot_be_used_is_an_error_at_the_start_and_a_warning_later(self):
        ann, bob = self.certificate("operator", "ann"), self.certificate("operator", "bob")
        crl = pathlib.Path(self.folder) / "ca/node-n1/crl.pem"
        self.revoke("operator", "ann", crl.parent)
        self.agent.wait_for_text("crl.pem: 1")
        crl.write_text("no list")
        self.agent.wait_for_text("crl.pem holds none that can be read; the one of before is kept")
        self.assertEqual(self.accel(ann, "status").returncode, 69)
        self.assertEqual(self.accel(bob, "status").returncode, 0)
        config = pathlib.Path(self.folder) / "agent.yaml"
        for arguments in (["--check"], []):
            begun = subprocess.run([BIN / "accel-agent", "--config", config, "--state-dir", f"{self.folder}/other", *arguments],
                                   capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual(begun.returncode, 78, begun.stderr)
            self.assertIn("crl.pem holds none that can be read", begun.stderr)


@unittest.skipUnless(IS_ROOT, "two users need root")
class TwoUsers(AgentTest):
    CONFIG = ""
    ANN = pwd.getpwnam("daemon").pw_uid
    BOB = pwd.getpwnam("nobody").pw_uid

    def start_for_ann(self):
        done = self.accel("run", "--detach", "--name", "anns", "--", "/bin/sh", "-c", "echo ready; exec sleep 1000", user=self.ANN)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.wait_for_line(self.follow("anns", user=self.ANN), "ready")
        return self.job("anns", user=self.ANN)

    def test_a_job_runs_as_its_caller_with_its_groups_alone(self):
        done = self.accel("run", "--", "/bin/sh", "-c", "id -u; id -g; id -G; echo $HOME; grep -c . /proc/self/environ", user=self.ANN)
        entry = pwd.getpwuid(self.ANN)
        self.assertEqual(done.stdout.split()[:2], [str(self.ANN), str(entry.pw_gid)], done.stderr)
        self.assertNotIn("0", done.stdout.split("\n")[2].split())

    def test_an_agent_whose_configuration_opens_its_sockets_to_nobody_refuses_other_users(self):
        self.agent.end()
        self.agent = Agent(self.folder, config='socket_group: ""\nallow_root: true\n')
        self.addCleanup(self.agent.end)
        if "accel" not in (group.gr_name for group in grp.getgrall()):
            self.agent.wait_for_text("only root may connect to the sockets: there is no group accel")
        refused = self.accel("status", user=self.ANN)
        self.assertEqual(refused.returncode, 77, refused.stderr)
        self.assertIn("ask for a place in the group that the socket is for", refused.stderr)
        self.assertEqual(self.accel("status").returncode, 0)

    def test_the_members_of_the_group_of_the_sockets_may_connect(self):
        self.agent.end()
        self.agent = Agent(self.folder, config=f"socket_group: {grp.getgrgid(pwd.getpwuid(self.ANN).pw_gid).gr_name}\n")
        self.addCleanup(self.agent.end)
        self.assertEqual(self.accel("run", "--", "true", user=self.ANN).returncode, 0)
        self.assertEqual(self.accel("status", user=self.BOB).returncode, 77)

    def test_root_is_refused(self):
        done = self.accel("run", "--", "/bin/true")
        self.assertEqual(done.returncode, 77)
        self.assertIn("allow_root", done.stderr)

    def test_fault_68_two_users_have_jobs_of_the_same_name(self):
        anns = self.start_for_ann()
        bobs = self.accel("run", "--name", "anns", "--", "/bin/sh", "-c", "echo of bob", user=self.BOB)
        self.assertEqual((bobs.returncode, bobs.stdout), (0, "of bob\n"), bobs.stderr)
        for is_anew in (False, True):
            if is_anew:
                self.assertEqual(self.agent.end(signal.SIGUSR2), 0)
                self.agent = Agent(self.folder, config=self.CONFIG)
                self.addCleanup(self.agent.end)
            self.assertEqual(self.job("anns", user=self.BOB)["user"], pwd.getpwuid(self.BOB).pw_name)
            self.assertEqual(self.job("anns", user=self.ANN)["job_uuid"], anns["job_uuid"])
            self.assertEqual(self.accel("logs", "anns", user=self.BOB).stdout, "of bob\n")
            both = self.accel("status", "anns", user=0)
            self.assertIn("2 jobs are named 'anns'", both.stderr)
            self.assertIn(anns["job_uuid"], both.stderr)
        twin = self.accel("run", "--name", "anns", "--", "/bin/true", user=self.ANN)
        self.assertIn("there is a job 'anns' already", twin.stderr)
        self.assertEqual(self.accel("stop", "--kill", anns["job_uuid"], user=0).returncode, 0)
        self.assertEqual(self.accel("logs", "--follow", "anns", user=self.ANN).returncode, 0)

    def test_fault_68_another_user_neither_sees_nor_stops_nor_signals_nor_reads_a_job(self):
        job = self.start_for_ann()
        for arguments in (["status", "anns"], ["stop", "anns"], ["stop", "--kill", job["job_uuid"]], ["signal", "anns", 9],
                          ["logs", "anns"], ["diagnose", "anns"]):
            done = self.accel(*arguments, user=self.BOB)
            self.assertEqual(done.returncode, 66, (arguments, done.stdout, done.stderr))
        self.assertNotIn("anns", self.accel("status", user=self.BOB).stdout)
        self.assertEqual(self.accel("drain", user=self.BOB).returncode, 77)
        worker = int(job["workers"][0]["pid"])
        self.assertEqual(subprocess.run(["kill", "-9", str(worker)], user=self.BOB, capture_output=True).returncode, 1)
        logs = self.agent.state / "logs" / str(self.ANN)
        self.assertNotEqual(subprocess.run(["ls", logs], user=self.BOB, group=self.BOB, extra_groups=[], capture_output=True).returncode, 0)
        self.assertEqual(self.job("anns", user=self.ANN)["state"], "JOB_STATE_RUNNING")
        self.assertEqual(self.accel("stop", "anns", user=self.ANN).returncode, 0)

    def test_the_user_of_a_request_is_the_kernels_word(self):
        """A caller may write any user into its JobSpec: it still runs as itself."""
        done = self.accel("run", "--", "/usr/bin/id", "-u", user=self.BOB)
        self.assertEqual(done.stdout.strip(), str(self.BOB))

    def test_fault_65_loader_variables_do_not_reach_the_program(self):
        done = self.accel("run", "--env", "LD_PRELOAD=/nonexistent.so", "--", "/bin/sh", "-c", "echo [$LD_PRELOAD]", user=self.ANN)
        self.assertEqual(done.stdout, "[]\n", done.stderr)

    def test_fault_65_a_log_that_was_made_a_link_is_not_read_for_anybody(self):
        self.start_for_ann()
        log = self.agent.state / "logs" / str(self.ANN) / "anns/attempt_0/0/stdout.log"
        secret = pathlib.Path(self.folder) / "secret"
        secret.write_text("secret of root\n")
        secret.chmod(0o600)
        swap = f"mv {log} {log}.old && ln -s {secret} {log}"
        done = subprocess.run(["/bin/sh", "-c", swap], user=self.ANN, group=pwd.getpwuid(self.ANN).pw_gid, extra_groups=[], capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        read = self.accel("logs", "anns", user=self.ANN)
        self.assertNotIn("secret", read.stdout)
        self.accel("stop", "--kill", "anns", user=self.ANN)


@unittest.skipUnless(IS_ROOT, "two users need root")
class UnderTheUnit(AgentTest):
    """With the rights and the OOM score that the shipped unit gives."""
    ANN = TwoUsers.ANN

    def restart(self, rights=UNIT_RIGHTS, before=()):
        self.agent.end()
        self.agent = Agent(self.folder, before=[*before, *as_the_unit(rights)])
        self.addCleanup(self.agent.end)

    def test_workers_of_another_user_run_without_the_rights_and_the_protection_of_the_agent(self):
        self.restart()
        done = self.accel("run", "--", "/bin/sh", "-c", "cat /proc/self/oom_score_adj; grep CapEff /proc/self/status", user=self.ANN)
        own = pathlib.Path("/proc/self/oom_score_adj").read_text().strip()
        self.assertEqual(done.stdout.split(), ["0" if CAN_BE_PROTECTED else own, "CapEff:", "0000000000000000"], done.stderr)
        score = pathlib.Path(f"/proc/{self.agent.process.pid}/oom_score_adj").read_text().strip()
        self.assertEqual(score, "-900" if CAN_BE_PROTECTED else own)

    def test_fault_27_what_a_users_killed_shim_left_is_found_and_killed(self):
        self.restart()
        self.accel("run", "--detach", "--name", "left", "--", "/bin/sh", "-c",
                   "setsid sleep 1000 & echo left $!; exec sleep 1000", user=self.ANN)
        left = int(self.wait_for_line(self.follow("left", user=self.ANN), "left ").split()[1])
        worker = self.job("left")["workers"][0]["pid"]
        shim = int(pathlib.Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(shim, signal.SIGKILL)
        for _ in range(PATIENCE * 20):
            if self.job("left")["state"] not in ("JOB_STATE_RUNNING", "JOB_STATE_STOPPING"):
                break
            threading.Event().wait(0.05)
        self.assertFalse(is_alive(left), f"process {left} lives on")

    def test_an_agent_that_cannot_see_what_users_leave_says_so(self):
        without_cgroups = ["unshare", "--mount", "sh", "-c", 'umount --all --types cgroup2 --lazy; exec "$@"', "sh"]
        self.restart([right for right in UNIT_RIGHTS if right != "CAP_SYS_PTRACE"], before=without_cgroups)
        self.agent.wait_for_text("warning: without cgroups (version 2) and without CAP_SYS_PTRACE")


@unittest.skipUnless(IS_ROOT, "cgroups of other users need root")
class Cgroups(AgentTest):
    """In the cgroup that DelegateSubgroup= of the unit gives, with the rights of the unit: a job has one of its own."""
    ANN = TwoUsers.ANN
    # Without its tags, its session and its parents.
    LEAVE = "(env -i setsid sleep 1000 >/dev/null 2>&1 & echo left $!); exec sleep 1000"

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="accel-agent-")
        os.chmod(self.folder, 0o755)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.hierarchy = tempfile.mkdtemp(prefix="cgroup2-", dir=self.folder)
        self.place = "accel-test-" + pathlib.Path(self.folder).name
        if self.in_hierarchy("true").returncode != 0:
            self.skipTest("no cgroup2 can be mounted")
        self.addCleanup(self.in_hierarchy, f'find "$0/{self.place}" -depth -type d -exec rmdir {{}} ";"')

    def in_hierarchy(self, command, *more, **options):
        return subprocess.run(["unshare", "--mount", "sh", "-c", 'mount -t cgroup2 none "$0" || exit 1; ' + command, self.hierarchy, *more],
                              **options)

    def start(self, rights=UNIT_RIGHTS, config=AgentTest.CONFIG):
        enter = 'mount -t cgroup2 none "$0" && mkdir -p "$0/$1" && echo $$ >"$0/$1/cgroup.procs" && shift && exec "$@"'
        self.agent = Agent(self.folder, config=config, before=["unshare", "--mount", "sh", "-c", enter, self.hierarchy,
                                                               self.place + "/accel-main", *as_the_unit(rights)])
        self.addCleanup(self.agent.end)

    def cgroups(self):
        """The folders of jobs, as the agent sees them."""
        place = pathlib.Path(f"/proc/{self.agent.process.pid}/root{self.hierarchy}/{self.place}")
        return sorted(folder.name for folder in place.glob("accel-agent-*"))

    def start_job_that_leaves(self, name):
        """The process that it will leave, and its shim."""
        self.accel("run", "--detach", "--name", name, "--", "/bin/sh", "-c", self.LEAVE, user=self.ANN)
        follower = self.follow(name, user=self.ANN)
        left = int(self.wait_for_line(follower, "left ").split()[1])
        follower.kill()  # it would wait for an agent that may be there no more
        worker = self.job(name)["workers"][0]["pid"]
        shim = int(pathlib.Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[1])
        return left, shim

    def wait_for_end(self, name):
        for _ in range(PATIENCE * 20):
            job = self.job(name)
            if job["state"] not in ("JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_STOPPING"):
                return job
            threading.Event().wait(0.05)
        self.fail(f"{name} does not end")

    def test_fault_27_what_a_killed_shim_left_without_tags_session_and_parents_is_killed(self):
        for rights in (UNIT_RIGHTS, [right for right in UNIT_RIGHTS if right != "CAP_SYS_PTRACE"]):
            with self.subTest(rights=rights):
                self.start(rights)
                left, shim = self.start_job_that_leaves("left")
                self.assertEqual(len(self.cgroups()), 1)
                os.kill(shim, signal.SIGKILL)
                job = self.wait_for_end("left")
                self.assertFalse(is_alive(left), f"process {left} lives on")
                self.assertEqual(job["exit_code"], 71, job)
                self.assertIn(f"{left} sleep 1000", job["report"])
                self.assertEqual(self.cgroups(), [])
                self.agent.end()
                shutil.rmtree(self.agent.state)

    def test_the_cgroup_goes_with_the_job(self):
        self.start()
        done = self.accel("run", "--", "/bin/sh", "-c", "grep ^0:: /proc/self/cgroup", user=self.ANN)
        self.assertRegex(done.stdout, r"/accel-agent-[0-9-]+-[0-9]+@sh-.*\.[0-9a-f]{8}/accel-job-.*/rank-0$", done.stderr)
        self.assertEqual(self.cgroups(), [])

    def test_the_user_may_divide_the_cgroup_and_gets_neither_its_limits_nor_out_of_it(self):
        self.start()
        attempt = """cd "$1"/$(sed -n 's|^0::/||p' /proc/self/cgroup)/../.. || exit 1
            mkdir mine && rmdir mine && echo divided
            for file in *; do [ -f "$file" ] && [ -O "$file" ] && echo "owns $file"; done
            mkdir ../beside 2>/dev/null && echo made one beside
            (echo 0 >../accel-main/cgroup.procs) 2>/dev/null && echo got out
            (echo 0 >accel-main/cgroup.procs) 2>/dev/null && echo took the seat; exit 0"""
        done = self.accel("run", "--", "/bin/sh", "-c", attempt, "sh", self.hierarchy, user=self.ANN)
        self.assertEqual(done.stdout.split("\n"), ["divided", "owns cgroup.procs", "owns cgroup.subtree_control", "owns cgroup.threads", ""],
                         done.stderr)

    def test_fault_27_the_next_agent_has_the_cgroup_of_a_job_that_goes_on(self):
        self.start()
        left, shim = self.start_job_that_leaves("held")
        before = self.cgroups()
        self.agent.end(signal.SIGUSR2)
        self.start()
        self.agent.wait_for_text("job held goes on")
        self.assertEqual(self.cgroups(), before)
        os.kill(shim, signal.SIGKILL)
        self.wait_for_end("held")
        self.assertFalse(is_alive(left), f"process {left} lives on")
        self.assertEqual(self.cgroups(), [])

    def test_fault_27_what_agent_and_shim_left_when_both_were_killed_is_killed_by_the_next_agent(self):
        self.start()
        left, shim = self.start_job_that_leaves("both")
        self.agent.end(signal.SIGKILL)
        os.kill(shim, signal.SIGKILL)
        self.start()
        self.assertEqual(self.wait_for_end("both")["exit_code"], 71)
        self.assertFalse(is_alive(left), f"process {left} lives on")
        self.assertEqual(self.cgroups(), [])

    def test_a_cgroup_of_no_job_is_removed_at_the_start(self):
        self.start()
        state = self.agent.state.stat()
        self.agent.end()
        name = f"{self.place}/accel-agent-{state.st_dev}-{state.st_ino}-gone.01234567"
        left = int(self.in_hierarchy(f'mkdir "$0/{name}"; sleep 1000 >/dev/null & echo $! >"$0/{name}/cgroup.procs"; echo $!', stdout=subprocess.PIPE,
                                     check=True).stdout)
        self.start()
        self.agent.wait_for_text("removed 1 cgroups")
        self.assertFalse(is_alive(left), f"process {left} lives on")
        self.assertEqual(self.cgroups(), [])

    def test_a_limit_of_the_administrator_holds_or_no_job_is_started(self):
        self.start(config=AgentTest.CONFIG + "job_pids: 40\n")
        script = """for i in $(seq 100); do sleep 1000 & done; jobs | wc -l; exit 0"""
        done = self.accel("run", "--", "/bin/bash", "-c", script, user=self.ANN)
        if "pids" in (pathlib.Path(f"/proc/{self.agent.process.pid}/root{self.hierarchy}") / "cgroup.controllers").read_text().split():
            self.assertIn("fork", done.stderr)
        else:
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("job_pids is 40, and the limit pids.max = 40 cannot be set", done.stderr)
            self.agent.wait_for_text("warning: no job can be started")
        self.assertEqual(self.cgroups(), [])


if __name__ == "__main__":
    unittest.main(verbosity=1)
