#!/usr/bin/env python3
"""Several accel-agents on this machine form jobs of many nodes: recruited, followed, scaled, stopped; nodes die and come.

Every agent has a state folder, a port and a certificate of its own; the first one hosts the coordinator. Run by ctest.
As root the jobs belong to the user nobody, else to whoever runs the tests.
"""
import contextlib
import importlib.util
import json
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from programs import PATIENCE, Program, free_port, issue_certificate  # noqa: E402

spec = importlib.util.spec_from_file_location("one_agent", HERE.parent / "agent/run.py")
one_agent = importlib.util.module_from_spec(spec)
spec.loader.exec_module(one_agent)

BIN = one_agent.BIN
IS_ROOT = one_agent.IS_ROOT
ANN = pwd.getpwnam("nobody").pw_uid if IS_ROOT else os.geteuid()
BOB = pwd.getpwnam("daemon").pw_uid


def identity_of(user):
    return {} if user is None or not IS_ROOT else {"user": user, "group": pwd.getpwuid(user).pw_gid, "extra_groups": []}


def can_divide_cgroups():
    mounts = [line.split() for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line]
    return IS_ROOT and any(os.access(mount[4], os.W_OK) for mount in mounts)


def children_of(pid):
    """Every process below `pid`."""
    parents = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found, todo = [], [pid]
    while todo:
        for child in parents.get(todo.pop(), []):
            found.append(child)
            todo.append(child)
    return found


class ClusterTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="accel-cluster-"))
        self.folder.chmod(0o755)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.coordinator = f"127.0.0.1:{free_port()}"
        self.agents = {}
        self.addCleanup(self.end_agents)
        self.followers = []
        self.addCleanup(lambda: [follower.close() for follower in self.followers])

    def end_agents(self):
        for agent in reversed(self.agents.values()):
            if agent.process.poll() is None:
                agent.process.send_signal(signal.SIGTERM)
        for name, agent in reversed(self.agents.items()):
            agent.end()

    def certificate(self, name, role="node", authority="ca"):
        return issue_certificate(self.folder / authority, role, name)

    def start(self, name, more="", authority="ca", certificate=None, wait=True, before=(), role="node"):
        """An agent; the first one hosts the coordinator."""
        tls = self.certificate(certificate or name, role, authority)
        listen = f"127.0.0.1:{free_port()}" if self.agents else self.coordinator
        config = (f"node_id: {name}\nlisten: {listen}\ncoordinator: {self.coordinator}\nslots: 2\n"
                  f"tls: {{authority: {tls}/ca.pem, certificate: {tls}/cert.pem, key: {tls}/key.pem}}\n{more}")
        folder = self.folder / name
        folder.mkdir()
        folder.chmod(0o755)
        agent = one_agent.Agent(folder, config=config, before=before)
        self.agents[name] = agent
        if wait:
            self.wait_for_line(agent, "has a session with the coordinator")
        return agent

    def wait_for_line(self, agent, part):
        for _ in range(PATIENCE * 20):
            if part in agent.text():
                return
            threading.Event().wait(0.05)
        self.fail(f"the agent never said {part!r}:\n{agent.text()}")

    def command(self, node, command, *arguments):
        return [BIN / "accel", command, "--agent", self.agents[node].state / "run", *map(str, arguments)]

    def accel(self, node, command, *arguments, user=ANN):
        return subprocess.run(self.command(node, command, *arguments), capture_output=True, text=True, timeout=PATIENCE, cwd="/",
                              **identity_of(user))

    def as_uid(self, uid, node, command, *arguments):
        """Of a user whom the agents alone know."""
        return subprocess.run(self.command(node, command, *arguments), capture_output=True, text=True, timeout=PATIENCE, cwd="/",
                              user=uid, group=pwd.getpwuid(ANN).pw_gid, extra_groups=[])

    def follow(self, node, command, *arguments, user=ANN):
        follower = Program(f"accel {command} at {node}", self.command(node, command, *arguments), cwd="/", **identity_of(user))
        self.followers.append(follower)
        return follower

    def job(self, node, name, user=ANN):
        done = self.accel(node, "status", name, "--json", user=user)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def wait_for_job(self, node, name):
        """Until the coordinator has heard of it."""
        for _ in range(PATIENCE * 20):
            if self.accel(node, "status", name).returncode == 0:
                return
            threading.Event().wait(0.05)
        self.fail(f"nobody knows of job {name}:\n" + "\n".join(agent.text() for agent in self.agents.values()))

    def nodes_of(self, job):
        return sorted(node["node_id"] for node in job["nodes"])

    @property
    def stop_file(self):
        return self.folder / "stop"

    HELLO = 'echo "rank $RANK of $WORLD_SIZE node $GROUP_RANK restart $TORCHELASTIC_RESTART_COUNT store $MASTER_PORT"; '

    def until_stopped(self):
        return self.HELLO + f"while [ ! -e {self.stop_file} ]; do sleep 0.05; done"


class Forming(ClusterTest):
    def test_a_job_runs_on_the_nodes_and_all_output_and_the_exit_code_come_back(self):
        self.start("a")
        self.start("b")
        done = self.accel("b", "run", "--nnodes", 2, "-n", 4, "--", "/bin/sh", "-c", self.HELLO + "id -u")
        self.assertEqual(done.returncode, 0, done.stderr)
        ranks = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
        self.assertEqual([line.split(" store ")[0] for line in ranks], [f"rank {r} of 4 node {r // 2} restart 0" for r in range(4)])
        self.assertEqual(len({line.split(" store ")[1] for line in ranks}), 1, ranks)
        self.assertEqual(done.stdout.splitlines().count(str(ANN)), 4, done.stdout)

    def spec(self, **fields):
        """A file for `accel run --spec`."""
        path = self.folder / "job.json"
        path.write_text(json.dumps(fields))
        path.chmod(0o644)
        return path

    def test_fault_72_each_node_divides_the_cores_that_its_agent_may_use(self):
        granted = os.sched_getaffinity(0)
        cores = {"a": min(granted), "b": max(granted)}
        for name, core in cores.items():
            os.sched_setaffinity(0, {core})
            try:
                self.start(name)
            finally:
                os.sched_setaffinity(0, granted)
        path = self.spec(argv=["/bin/sh", "-c", 'echo "$ACCEL_NODE_ID has "$(sed -n "s/^Cpus_allowed_list:.//p" /proc/self/status)'],
                         min_nodes=2, affinity={"mode": "MODE_EXCLUSIVE", "set_omp": True})
        done = self.accel("a", "run", "--spec", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), [f"{name} has {core}" for name, core in cores.items()])

    def test_variables_are_those_of_each_nodes_own_agent_for_its_own_user_alone(self):
        self.start("a")
        os.environ["OF_THE_AGENT"] = "b's"
        try:
            self.start("b")
        finally:
            del os.environ["OF_THE_AGENT"]
        path = self.spec(argv=["/bin/sh", "-c", "echo $ACCEL_NODE_ID $OF_THE_AGENT"], min_nodes=2, env_pass=["OF_THE_AGENT"],
                         gather={"join_limit": "5s"})
        done = self.accel("a", "run", "--spec", path)
        if IS_ROOT:
            self.assertEqual(done.returncode, 110, done.stderr)
            self.assertIn("env_pass takes variables of the agent, and this job runs as another user", done.stderr)
        else:
            self.assertEqual(sorted(done.stdout.splitlines()), ["a", "b b's"])

    def test_fault_26_rotated_files_of_all_nodes_are_read_on(self):
        self.start("a"), self.start("b")
        run = self.accel("a", "run", "--nnodes", 2, "--log_rotate_bytes", "4K", "--log_keep", 1000, "--", "/bin/sh", "-c",
                         "[ $RANK = 0 ] || exec seq 20000")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stdout, "".join(f"{i}\n" for i in range(1, 20001)))
        self.assertNotIn("are gone", run.stderr)

    def test_a_node_whose_check_fails_is_left_out_and_another_takes_its_place(self):
        for name in "abc":
            self.start(name)
        check = "disk=test $ACCEL_NODE_ID != b || { echo no room; exit 3; }"
        done = self.accel("a", "run", "--nnodes", 2, "--name", "checked", "--preflight", check, "--", "/bin/sh", "-c", "echo $ACCEL_NODE_ID")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.split()), ["a", "c"])
        # Other jobs get the node.
        done = self.accel("a", "run", "--nnodes", 3, "--", "/bin/sh", "-c", "echo $ACCEL_NODE_ID")
        self.assertEqual(sorted(done.stdout.split()), ["a", "b", "c"], done.stderr)

    def test_a_job_whose_checks_fail_everywhere_fails_with_the_word_of_one(self):
        self.start("a")
        self.start("b")
        done = self.accel("b", "run", "--nnodes", 2, "--preflight", "disk=echo no room; exit 3", "--", "true")
        self.assertEqual(done.returncode, 75, done.stderr)
        self.assertIn("preflight check 'disk' ended with exit code 3; its last lines: no room", done.stderr)

    def test_accel_launch_gives_a_job_over_several_nodes_to_the_agents(self):
        self.start("a")
        self.start("b")
        command = [BIN / "accel-launch", "--agent", "--nnodes", "2", "--num_processes", "2", "--no_python", "/bin/sh", "-c", self.HELLO]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd="/",
                              env={**os.environ, "ACCEL_AGENT": str(self.agents["b"].state / "run")}, **identity_of(ANN))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(line.split(" store ")[0] for line in done.stdout.splitlines()),
                         ["rank 0 of 2 node 0 restart 0", "rank 1 of 2 node 1 restart 0"])

    def test_a_failing_rank_gives_its_exit_code_and_the_others_are_stopped(self):
        self.start("a")
        self.start("b")
        done = self.accel("a", "run", "--nnodes", 2, "--name", "f", "--", "/bin/sh", "-c", "[ $RANK = 1 ] && exit 9; exec sleep 1000")
        self.assertEqual(done.returncode, 9, done.stderr)
        self.assertIn("rank 1 on", done.stderr)
        job = self.job("b", "f")
        self.assertEqual((job["state"], job["exit_code"]), ("JOB_STATE_FAILED", 9))

    def test_a_failing_rank_restarts_all_nodes_within_the_budget(self):
        self.start("a")
        self.start("b")
        done = self.accel("a", "run", "--nnodes", 2, "--max_restarts", 1, "--name", "r", "--", "/bin/sh", "-c",
                          self.HELLO + "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 1 ] && exit 9; exec sleep 1000")
        self.assertEqual(done.returncode, 0, done.stderr)
        for rank in (0, 1):
            self.assertIn(f"rank {rank} of 2 node {rank} restart 1", done.stdout)
        self.assertEqual(self.job("a", "r")["restarts"], 1)

    @unittest.skipUnless(can_divide_cgroups(), "needs cgroups of version 2")
    def test_fault_27_a_generation_whose_shim_was_killed_is_gone_before_the_next_one_begins(self):
        self.start("a")
        self.start("b")
        left = self.folder / "left"
        script = (f"[ $TORCHELASTIC_RESTART_COUNT = 1 ] && {{ kill -0 $(cat {left}) 2>/dev/null && echo lives; exit 0; }}; [ $RANK = 1 ] && "
                  f"{{ (env -i setsid sleep 1000 >/dev/null 2>&1 & echo $! >{left}); kill -KILL $PPID; }}; exec sleep 1000")
        left.touch()
        left.chmod(0o666)
        done = self.accel("a", "run", "--nnodes", 2, "--max_restarts", 1, "--name", "g", "--", "/bin/sh", "-c", script)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        self.assertFalse(one_agent.is_alive(int(left.read_text())))

    def test_a_node_that_may_not_run_the_user_is_not_asked_again_and_another_takes_part(self):
        self.start("a")
        self.start("b", more="allow_users: [somebody-else]\n")
        runner = self.follow("a", "run", "--nnodes", 2, "--name", "d", "--", "/bin/sh", "-c", self.HELLO)
        self.wait_for_line(self.agents["b"], "is not in allow_users")
        self.start("c")
        self.assertEqual(runner.wait(), 0, runner.lines)
        self.assertEqual(self.nodes_of(self.job("a", "d")), ["a", "c"])
        self.assertEqual(self.agents["b"].text().count("does not take part in job d"), 1)

    def test_slots_are_counted_over_jobs(self):
        self.start("a")
        self.start("b")
        first = self.follow("a", "run", "--nnodes", 2, "-n", 4, "--name", "first", "--", "/bin/sh", "-c", self.until_stopped())
        first.wait_for(" of 4 ", 4)
        second = self.follow("a", "run", "--nnodes", 2, "--name", "second", "--", "/bin/sh", "-c", self.HELLO)
        self.wait_for_job("b", "second")
        self.assertEqual(self.job("b", "second")["state"], "JOB_STATE_GATHERING")
        self.stop_file.touch()
        self.assertEqual(first.wait(), 0, first.lines)
        self.assertEqual(second.wait(), 0, second.lines)
        second.wait_for(" of 2 ", 2)


    def test_jobs_of_one_node_take_slots_too(self):
        self.start("a")
        self.start("b")
        own = self.follow("b", "run", "--name", "own", "--", "/bin/sh", "-c", self.until_stopped())
        own.wait_for(" of 1 ")
        both = self.follow("a", "run", "--nnodes", 2, "-n", 4, "--name", "both", "--", "/bin/sh", "-c", self.HELLO)
        self.wait_for_line(self.agents["a"], "takes part in job both")
        self.assertEqual(self.job("a", "both")["state"], "JOB_STATE_GATHERING")
        self.assertNotIn("takes part in job both", self.agents["b"].text())
        self.stop_file.touch()
        self.assertEqual(own.wait(), 0, own.lines)
        self.assertEqual(both.wait(), 0, both.lines)
        both.wait_for(" of 4 ", 4)


class Asking(ClusterTest):
    def setUp(self):
        super().setUp()
        self.start("a")
        self.start("b")

    def run_until_stopped(self, *more):
        runner = self.follow("a", "run", "--nnodes", 2, "--name", "j", *more, "--", "/bin/sh", "-c", self.until_stopped())
        runner.wait_for(" of 2 ", 2)
        return runner

    def test_stop_from_another_node_ends_the_job_everywhere(self):
        runner = self.run_until_stopped()
        done = self.accel("b", "stop", "j")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(runner.wait(), 143, runner.lines)
        self.assertEqual(self.job("b", "j")["state"], "JOB_STATE_CANCELLED")

    def test_a_stop_may_give_less_time_than_the_job_has(self):
        runner = self.follow("a", "run", "--nnodes", 2, "--name", "j", "--stop-grace", 3600, "--", "/bin/sh", "-c",
                             "trap 'echo told' TERM; echo ready; while :; do sleep 0.05; done")
        runner.wait_for("ready", 2)
        done = self.accel("b", "stop", "--grace", 0.5, "j")
        self.assertEqual(done.returncode, 0, done.stderr)
        runner.wait_for("told", 2)
        self.assertEqual(runner.wait(), 143, runner.lines)

    def test_an_interrupt_of_run_stops_the_job(self):
        runner = self.run_until_stopped()
        runner.process.send_signal(signal.SIGINT)
        self.assertEqual(runner.wait(), 143, runner.lines)

    def test_status_and_logs_show_every_node(self):
        runner = self.run_until_stopped()
        job = self.job("b", "j")
        self.assertEqual(job["state"], "JOB_STATE_RUNNING")
        self.assertEqual([(node["first_rank"], node["count"]) for node in job["nodes"]], [(0, 1), (1, 1)])
        self.assertEqual(self.nodes_of(job), ["a", "b"])
        self.assertIn("j ", self.accel("b", "status").stdout)
        logs = self.accel("b", "logs", "j")
        self.assertEqual(sorted(line[:6] for line in logs.stdout.splitlines()), ["rank 0", "rank 1"], logs.stderr)
        one = self.accel("b", "logs", "--rank", 1, "j")
        self.assertEqual([line[:6] for line in one.stdout.splitlines()], ["rank 1"], one.stderr)
        self.stop_file.touch()
        self.assertEqual(runner.wait(), 0, runner.lines)

    def test_diagnose_asks_the_agents_of_all_nodes(self):
        runner = self.run_until_stopped()
        done = self.accel("b", "diagnose", "j")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^== node [ab], rank 0, pid \d+$")
        self.assertRegex(done.stdout, r"(?m)^== node [ab], rank 1, pid \d+$")
        self.assertEqual(done.stdout.count("State:"), 2, done.stdout)
        self.stop_file.touch()
        self.assertEqual(runner.wait(), 0, runner.lines)
        self.assertIn("no worker runs there now", self.accel("b", "diagnose", "j").stdout)

    def test_watch_tells_the_changes_to_every_node(self):
        all_jobs = self.follow("b", "watch")
        runner = self.run_until_stopped()
        one = self.follow("b", "watch", "j")
        one.wait_for("j running, generation 1, 0 restarts")
        all_jobs.wait_for("j running, ")
        self.stop_file.touch()
        self.assertEqual(runner.wait(), 0, runner.lines)
        self.assertEqual(one.wait(), 0, one.lines)
        self.assertTrue(one.lines[-1].startswith("j succeeded, "), one.lines)
        all_jobs.wait_for("j succeeded, ")
        self.assertEqual(self.accel("b", "watch", "nix").returncode, 66)

    def test_ledger_is_told_by_every_node(self):
        runner = self.run_until_stopped()
        for node in ("a", "b"):
            ledger = json.loads(self.accel(node, "ledger", "j", "--json").stdout)
            self.assertEqual((ledger["job_id"], ledger["open"]), ("j", "init"), "its workers report no steps")
        self.stop_file.touch()
        self.assertEqual(runner.wait(), 0, runner.lines)
        done = self.accel("b", "ledger", "j")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^productive +\d+\.\d s")
        self.assertEqual(json.loads(self.accel("b", "ledger", "j", "--json").stdout)["open"], "")

    def test_a_signal_reaches_the_workers_of_all_nodes(self):
        runner = self.follow("a", "run", "--nnodes", 2, "--name", "s", "--", "/bin/sh", "-c",
                             "trap 'echo got $RANK; exit 0' USR2; echo ready; while :; do sleep 0.05; done")
        runner.wait_for("ready", 2)
        done = self.accel("b", "signal", "s", int(signal.SIGUSR2))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(runner.wait(), 0, runner.lines)
        runner.wait_for("got 0")
        runner.wait_for("got 1")

    def test_a_name_that_is_taken_and_bad_numbers_of_nodes_are_refused(self):
        runner = self.run_until_stopped()
        taken = self.accel("b", "run", "--nnodes", 2, "--name", "j", "--", "/bin/true")
        self.assertEqual(taken.returncode, 77, taken.stderr)
        self.assertIn("there is a job 'j' already", taken.stderr)
        for nodes in ("0", "3:2", "x", "2:"):
            done = self.accel("a", "scale", "j", nodes)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("MIN", done.stderr)
        self.assertEqual(self.accel("a", "scale", "nix", 2).returncode, 66)
        self.stop_file.touch()
        self.assertEqual(runner.wait(), 0, runner.lines)


class Busy(ClusterTest):
    """Fault 34."""

    BEATS = 15  # a node is lost after 4.5
    BURN = "import os\nwhile True: sum(range(100_000))"
    WRITE = "import os, sys\nwhile True:\n with open(sys.argv[1], 'wb') as f: f.write(os.urandom(1 << 24)); f.flush(); os.fsync(f.fileno())"

    def test_fault_34_beats_go_on_while_every_core_and_the_disk_are_busy(self):
        self.start("a")
        self.start("b")
        run = self.follow("a", "run", "--nnodes", 2, "--name", "busy", "--max_restarts", 3, "--", "/bin/sh", "-c", self.until_stopped())
        run.wait_for(" of 2 ", 2)
        before = self.job("a", "busy")
        burners = [[sys.executable, "-c", self.BURN]] * 2 * os.cpu_count()
        burners += [[sys.executable, "-c", self.WRITE, str(self.folder / f"written-{i}")] for i in range(2)]
        running = [subprocess.Popen(command) for command in burners]
        try:
            threading.Event().wait(self.BEATS)
            self.assertEqual([burner.poll() for burner in running], [None] * len(running))
        finally:
            for burner in running:
                burner.kill()
                burner.wait()
        self.assertEqual(self.job("a", "busy"), before)
        self.stop_file.touch()
        self.assertEqual(run.wait(), 0)


class Changing(ClusterTest):
    def setUp(self):
        super().setUp()
        self.start("a")
        self.start("b")

    def run_on(self, nodes, *more):
        return self.follow("a", "run", "--nnodes", nodes, "--max_restarts", 3, "--name", "j", *more, "--", "/bin/sh", "-c",
                           self.until_stopped())

    def test_a_node_that_dies_with_its_shim_is_left_behind_and_the_others_go_on(self):
        runner = self.run_on("1:2")
        runner.wait_for(" of 2 ", 2)
        for pid in [self.agents["b"].process.pid, *children_of(self.agents["b"].process.pid)]:
            with contextlib.suppress(ProcessLookupError):  # it went with the one before it
                os.kill(pid, signal.SIGKILL)
        runner.wait_for("rank 0 of 1 node 0 restart 1")
        self.stop_file.touch()
        self.assertEqual(runner.wait(), 0, runner.lines)
        self.assertTrue([line for line in runner.lines if "no more output from node b" in line], runner.lines)

    def test_a_late_agent_takes_part_after_scale(self):
        runner = self.run_on("2")
        runner.wait_for(" of 2 ", 2)
        self.start("c")
        done = self.accel("b", "scale", "j", 3)
        self.assertEqual(done.returncode, 0, done.stderr)
        runner.wait_for(" of 3 ", 3)
        self.assertEqual(self.job("a", "j")["restarts"], 0)
        self.stop_file.touch()
        self.assertEqual(runner.wait(), 0, runner.lines)

    def test_drain_with_stop_takes_a_node_out_of_its_jobs_and_undrain_lets_it_come_back(self):
        runner = self.run_on("1:2")
        runner.wait_for(" of 2 ", 2)
        done = self.accel("b", "drain", "--stop", "--reason", "fan", user=None)
        self.assertEqual(done.returncode, 0, done.stderr)
        runner.wait_for("rank 0 of 1 node 0 restart 0")
        self.assertEqual(self.nodes_of(self.job("b", "j")), ["a"])
        self.assertEqual(self.accel("b", "undrain", user=None).returncode, 0)
        self.assertEqual(self.accel("a", "scale", "j", 2).returncode, 0)
        runner.wait_for(" of 2 ", 4)
        self.assertEqual(self.job("a", "j")["restarts"], 0)
        self.stop_file.touch()
        self.assertEqual(runner.wait(), 0, runner.lines)

    def test_an_agent_that_ends_leaves_and_the_others_go_on(self):
        self.start("c")
        runner = self.follow("a", "run", "--nnodes", "1:3", "--name", "j", "--", "/bin/sh", "-c", self.until_stopped())
        runner.wait_for(" of 3 ", 3)
        self.assertEqual(self.agents["c"].end(), 0)
        runner.wait_for(" of 2 node 1 restart 0")
        self.stop_file.touch()
        self.assertEqual(runner.wait(), 0, runner.lines)

    def test_an_agent_that_begins_anew_leaves_its_job_when_nothing_is_held(self):
        self.start("c", more="hold_seconds: 0\n")
        runner = self.follow("a", "run", "--nnodes", "1:3", "--name", "j", "--", "/bin/sh", "-c", self.until_stopped())
        runner.wait_for(" of 3 ", 3)
        self.assertEqual(self.agents["c"].end(signal.SIGUSR2), 0)
        runner.wait_for(" of 2 node 1 restart 0")
        self.stop_file.touch()
        self.assertEqual(runner.wait(), 0, runner.lines)

    def test_without_the_coordinator_one_node_jobs_go_on_and_the_rest_is_said(self):
        self.agents["a"].process.kill()
        self.agents["a"].process.wait()
        status = self.accel("b", "status")
        self.assertEqual(status.returncode, 0, status.stderr)
        self.assertIn("jobs of many nodes are missing", status.stderr)
        refused = self.accel("b", "run", "--nnodes", 2, "--", "/bin/true")
        self.assertEqual(refused.returncode, 111, refused.stderr)
        self.assertIn(self.coordinator, refused.stderr)
        self.assertEqual(self.accel("b", "run", "--", "/bin/true").returncode, 0)


class Security(ClusterTest):
    @unittest.skipUnless(IS_ROOT, "two users need root")
    def test_fault_68_another_user_neither_sees_nor_changes_a_job_and_root_may(self):
        self.start("a")
        self.start("b")
        runner = self.follow("a", "run", "--nnodes", 2, "--name", "anns", "--", "/bin/sh", "-c", self.until_stopped())
        runner.wait_for(" of 2 ", 2)
        for node in ("a", "b"):
            for arguments in (["status", "anns"], ["stop", "anns"], ["stop", "--kill", "anns"], ["signal", "anns", 9],
                              ["scale", "anns", 1], ["logs", "anns"], ["ledger", "anns"], ["diagnose", "anns"], ["watch", "anns"]):
                done = self.accel(node, *arguments, user=BOB)
                self.assertEqual(done.returncode, 66, (arguments, done.stdout, done.stderr))
            self.assertNotIn("anns", self.accel(node, "status", user=BOB).stdout)
        self.assertIn("anns", self.accel("b", "status", user=0).stdout)
        self.assertEqual(self.accel("b", "stop", "anns", user=0).returncode, 0)
        self.assertEqual(runner.wait(), 143, runner.lines)

    def with_another_user(self, uid):
        """What an agent is started with that finds `uid` in its user database."""
        users = self.folder / "passwd"
        users.write_text(pathlib.Path("/etc/passwd").read_text() + f"cid:x:{uid}:{pwd.getpwuid(ANN).pw_gid}::/:/bin/sh\n")
        users.chmod(0o644)
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'mount --bind {users} /etc/passwd && exec "$@"', "sh"]

    @unittest.skipUnless(IS_ROOT, "two users need root")
    def test_fault_68_two_users_have_jobs_of_the_same_name(self):
        cid = 61_234
        for name in ("a", "b"):
            self.start(name, before=self.with_another_user(cid))
        anns = self.follow("a", "run", "--nnodes", 2, "--name", "j", "--", "/bin/sh", "-c", self.until_stopped())
        anns.wait_for(" of 2 ", 2)
        self.assertEqual(self.as_uid(cid, "b", "status", "j").returncode, 66)
        done = self.as_uid(cid, "b", "run", "--nnodes", 2, "--name", "j", "--", "/bin/sh", "-c", self.HELLO)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(line.split()[1] for line in done.stdout.splitlines()), ["0", "1"])
        self.assertIn("state     succeeded", self.as_uid(cid, "a", "status", "j").stdout)
        self.assertEqual(self.as_uid(cid, "a", "watch", "j").returncode, 0)
        self.assertEqual(self.job("b", "j")["state"], "JOB_STATE_RUNNING")
        both = self.accel("b", "status", "j", user=0)
        self.assertIn("2 jobs are named 'j': ", both.stderr)
        self.assertEqual(self.accel("b", "stop", self.job("a", "j")["job_uuid"], user=0).returncode, 0)
        self.assertEqual(anns.wait(), 143, anns.lines)

    @unittest.skipUnless(IS_ROOT, "two users need root")
    def test_fault_64_a_user_with_many_jobs_leaves_room_to_others_also_after_a_restart_of_the_coordinator(self):
        cid = 61_234
        limits = "max_cluster_jobs: 8\nmax_cluster_jobs_each: 1\n"
        before = self.with_another_user(cid)
        a = self.start("a", more=limits, before=before)
        self.start("b", before=before)
        anns = self.follow("b", "run", "--nnodes", 2, "--name", "j", "--", "/bin/sh", "-c", self.until_stopped())
        anns.wait_for(" of 2 ", 2)
        for is_anew in (False, True):
            if is_anew:
                self.assertEqual(a.end(signal.SIGUSR2), 0)
                self.agents["a"] = one_agent.Agent(self.folder / "a", config=(self.folder / "a/agent.yaml").read_text(), before=before)
                self.wait_for_job("b", "j")
            full = self.accel("b", "run", "--nnodes", 2, "--", "/bin/true")
            self.assertEqual(full.returncode, 77, full.stderr)
            self.assertIn("it has 1 jobs, as many as one caller may", full.stderr)
            done = self.as_uid(cid, "b", "run", "--nnodes", 2, "--", "/bin/true")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.stop_file.touch()
        self.assertEqual(anns.wait(), 0, anns.lines)

    @unittest.skipUnless(IS_ROOT, "needs root")
    def test_neither_root_nor_system_users_run_over_nodes(self):
        self.start("a", more="allow_root: true\n")
        for user in (0, BOB):
            refused = self.accel("a", "run", "--nnodes", 2, "--", "/bin/true", user=user)
            self.assertEqual(refused.returncode, 77, refused.stderr)
            self.assertIn("system user", refused.stderr)

    def test_agents_of_another_authority_or_name_take_no_part(self):
        a = self.start("a")
        self.start("b", authority="other", wait=False)
        self.start("c", certificate="somebody-else", wait=False)
        runner = self.follow("a", "run", "--nnodes", 2, "--name", "j", "--", "/bin/sh", "-c", self.HELLO)
        self.wait_for_line(a, "the certificate is not of node 'c'")
        self.wait_for_line(self.agents["b"], "no session with the coordinator")
        self.start("d")
        self.assertEqual(runner.wait(), 0, runner.lines)
        self.assertEqual(self.nodes_of(self.job("a", "j")), ["a", "d"])

    def test_fault_60_who_has_the_certificate_of_a_launcher_is_no_agent(self):
        a = self.start("a")
        self.start("b", role="launcher", wait=False)
        self.wait_for_line(a, "accel://default/launcher/b has not the role node")
        asked = self.accel("b", "run", "--nnodes", 2, "--", "/bin/true")
        self.assertEqual(asked.returncode, 77, asked.stderr)
        self.assertIn("accel://default/launcher/b has not the role node", asked.stderr)

    def test_operators_and_viewers_are_no_nodes(self):
        self.start("a")
        self.start("b")
        runner = self.follow("a", "run", "--nnodes", 2, "--name", "j", "--", "/bin/sh", "-c", self.until_stopped())
        runner.wait_for(" of 2 ", 2)

        def remote(role, command, *arguments):
            return subprocess.run([BIN / "accel", command, "--agent", self.coordinator, "--tls-dir", self.certificate("p-" + role, role),
                                   *arguments], capture_output=True, text=True, timeout=PATIENCE)
        self.assertIn("j ", remote("viewer", "status").stdout)
        self.assertIn("rank 1 of 2", remote("viewer", "logs", "j").stdout)
        self.assertEqual(remote("viewer", "stop", "j").returncode, 77)
        self.assertEqual(remote("viewer", "scale", "j", "3").returncode, 77)
        self.assertEqual(remote("operator", "run", "--nnodes", "2", "--", "/bin/true").returncode, 77)
        self.assertEqual(remote("operator", "stop", "j").returncode, 0)
        self.assertEqual(runner.wait(), 143, runner.lines)

    def test_an_agent_without_a_coordinator_says_so(self):
        folder = self.folder / "alone"
        folder.mkdir()
        agent = one_agent.Agent(folder, config="node_id: alone\n")
        self.agents["alone"] = agent
        folder.chmod(0o755)
        refused = self.accel("alone", "run", "--nnodes", 2, "--", "/bin/true")
        self.assertEqual(refused.returncode, 77, refused.stderr)
        self.assertIn("set `coordinator`", refused.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)
