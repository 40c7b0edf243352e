#!/usr/bin/env python3
"""Local users who mean no good, at an agent with the rights and the OOM score of its unit: two who take all that there is, some who
replace their shims, some who ask for what cannot be. Root and other users are served all the time.

Run by ctest; needs root, and is skipped without it.
"""
import json
import os
import pathlib
import pwd
import shutil
import subprocess
import sys
import threading
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from one_agent import BIN, IS_ROOT, PATIENCE, Agent, AgentTest, as_the_unit  # noqa: E402
from programs import SOURCE  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ANN, BOB, CAT = (pwd.getpwnam(name).pw_uid for name in ("daemon", "bin", "nobody"))
INVALID = 3  # grpc::StatusCode::INVALID_ARGUMENT


class HostileTest(AgentTest):
    ENV = {}

    def start_agent(self):
        return Agent(self.folder, config=self.CONFIG, env={name: value.format(self.folder) for name, value in self.ENV.items()},
                     before=as_the_unit())

    def assert_others_are_served(self):
        """A third user's job runs, and root gets its answer."""
        done = self.accel("run", "--", "/bin/sh", "-c", "echo served", user=CAT)
        self.assertEqual((done.returncode, done.stdout), (0, "served\n"), done.stderr)
        done = self.accel("status")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.accel("run", "--", "/bin/sh", "-c", "echo served")
        self.assertEqual((done.returncode, done.stdout), (0, "served\n"), done.stderr)

    def wait_for_end(self, name):
        for _ in range(PATIENCE * 20):
            job = self.job(name)
            if "ended" in job:
                return job
            threading.Event().wait(0.05)
        self.fail(f"{name} never ends: {job}")


class Floods(HostileTest):
    CONFIG = "allow_root: true\nmax_jobs: 16\nmax_jobs_each: 4\n"

    def setUp(self):
        super().setUp()
        for script in (HERE / "flooder.py", HERE.parent / "raw_grpc.py"):
            shutil.copy(script, self.folder)

    def flood(self, user):
        flooder = subprocess.Popen(["/usr/bin/python3", f"{self.folder}/flooder.py", self.agent.state / "run", BIN / "accel"],
                                   stdout=subprocess.PIPE, text=True, cwd="/", user=user, group=pwd.getpwuid(user).pw_gid, extra_groups=[])
        self.addCleanup(flooder.stdout.close)
        self.addCleanup(flooder.wait, PATIENCE)
        self.addCleanup(flooder.kill)
        return flooder

    def test_fault_64_two_users_who_take_all_that_they_get_keep_nobody_else_out(self):
        flooders = [self.flood(user) for user in (ANN, BOB)]
        for flooder in flooders:
            self.wait_for_line(flooder, "round 1")
        for _ in range(4):
            self.assert_others_are_served()
            for flooder in flooders:  # both are at it still
                self.wait_for_line(flooder, "round ")
        for user in (ANN, BOB):
            self.wait_for_text(f"refused a connection from uid {user}: ")
        # Its share of jobs is full again and again; a job of its own may have ended just now.
        for _ in range(PATIENCE):
            if self.accel("run", "--", "true", user=ANN).returncode != 0:
                return
        self.fail("its share of jobs was never full")


class MaliciousShims(HostileTest):
    ENV = {"ACCEL_SHIM": "{}/hostile_shim.py"}
    # How it ends, and what its job is told.
    KILLED = {"too_big_frame": "a payload is not as it was announced",
              "many_values": "a frame of the shim has more values than any event",
              "nonsense": "a frame of the shim",
              "many_workers": "spoke of workers that the job does not have, and was killed",
              "other_rank": "spoke of workers that the job does not have, and was killed",
              "closed": "before the job was done",
              "forged_line": "audit: forged",
              "other_protocol": "accel-shim speaks protocol 99 (build hostile)"}
    # Until somebody stops its job.
    STAY = ("silent", "notices", "big_frames", "ends", "starts", "foreign_process")

    def start_agent(self):
        shutil.copy(HERE / "hostile_shim.py", self.folder)
        os.symlink(BIN / "accel-shim", f"{self.folder}/hostile_shim.py.real")
        return super().start_agent()

    def hostile_processes(self):
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if f"{self.folder}/hostile_shim.py".encode() in (folder / "cmdline").read_bytes():
                    found.append(folder.name)
            except OSError:
                pass
        return found

    def start_hostile(self, way, *arguments):
        done = self.accel("run", "--detach", "--name", way, "--", "hostile", way, *arguments, user=ANN)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_fault_67_shims_that_were_replaced_cost_their_own_jobs_alone(self):
        roots = subprocess.Popen(["sleep", "1000"])
        self.addCleanup(roots.wait)
        self.addCleanup(roots.kill)
        for way in (*self.STAY, *self.KILLED, "stays"):
            self.start_hostile(way, *([roots.pid] if way == "foreign_process" else []))
        self.assert_others_are_served()
        for way, reason in self.KILLED.items():
            job = self.wait_for_end(way)
            self.assertEqual(job["state"], "JOB_STATE_FAILED", job)
            self.assertIn(reason, job["reason"])
        self.assertEqual(self.wait_for_end("stays")["state"], "JOB_STATE_SUCCEEDED")

        for _ in range(PATIENCE * 20):
            if self.job("foreign_process").get("workers"):
                break
            threading.Event().wait(0.05)
        self.accel("signal", "foreign_process", 9, user=ANN)
        self.assertIn("is no process of the job's user", self.accel("diagnose", "foreign_process", user=ANN).stdout)
        self.assertIsNone(roots.poll())

        for way in self.STAY:
            self.accel("stop", "--kill", way, user=ANN)
        self.assert_others_are_served()
        for way in self.STAY:
            job = self.wait_for_end(way)
            self.assertEqual(job["state"], "JOB_STATE_FAILED", job)
            self.assertIn("accel-shim did not do in time what it was told, and was killed", job["reason"])
        self.assertEqual(self.hostile_processes(), [])
        self.assertIsNone(roots.poll())
        self.assertFalse([line for line in self.agent.lines if line.startswith("accel-agent: audit: forged")])


class AbsurdRequests(HostileTest):
    """StartJob with what `accel run` never says."""
    REFUSED = [
        "",
        'argv: ""',
        r'argv: "/bin/true\000x"',
        r'argv: ["/bin/true", "a\000b"]',
        'argv: "true" cwd: "relative/../path"',
        r'argv: "true" cwd: "/tmp\000/x"',
        'job_id: "../../etc/passwd" argv: "true"',
        'job_id: ".." argv: "true"',
        r'job_id: "a\000b" argv: "true"',
        f'job_id: "{"x" * 65}" argv: "true"',
        'argv: "true" procs_per_node: 4294967295',
        'argv: "true" procs_per_node: 1025',
        'argv: "true" min_nodes: 4294967295 max_nodes: 1',
        'argv: "true" env: {key: "" value: "x"}',
        'argv: "true" env: {key: "A=B" value: "x"}',
        r'argv: "true" env: {key: "A\000B" value: "x"}',
        r'argv: "true" env: {key: "A" value: "x\000"}',
        'argv: "true" stop: {signal: 2147483647}',
        'argv: "true" stop: {signal: -1}',
        'argv: "true" stop: {preempt_signal: -2147483648}',
        'argv: "true" stop: {grace: {seconds: -1}}',
        'argv: "true" stop: {grace: {seconds: 9223372036854775807}}',
        'argv: "true" stop: {grace: {seconds: -9223372036854775808 nanos: -2147483648}}',
        'argv: "true" stop: {grace: {nanos: 2147483647}}',
        'argv: "true" restart: {backoff_initial: {seconds: 9223372036854775807}}',
        'argv: "true" restart: {max_restarts: 4294967295}',
        'argv: "true" restart: {jitter: nan}',
        'argv: "true" restart: {jitter: -inf}',
        'argv: "true" restart: {on_cause: {key: "MOON" value: ACTION_FAIL}}',
        'argv: "true" restart: {on_cause: {key: "OOM" value: 99}}',
        'argv: "true" hang: {enabled: true beat: {seconds: 0}}',
        'argv: "true" hang: {enabled: true beat: {seconds: 9223372036854775807}}',
        'argv: "true" hang: {enabled: true safety: inf}',
        'argv: "true" affinity: {mode: 99}',
        'argv: "true" affinity: {reserve_cores: 4294967295}',
        'argv: "true" log: {overflow: 77}',
        'argv: "true" log: {rotate_bytes: 1}',
        'argv: "true" log: {rotate_bytes: 18446744073709551615 keep: 4294967295}',
        'argv: "true" fence: {hard: true lease: {seconds: -5}}',
        'argv: "true" gather: {join_limit: {seconds: 9223372036854775807}}',
        'argv: "true" preflight: {name: "../x" argv: "true"}',
        'argv: "true" preflight: {name: "x" argv: "true" timeout: {seconds: -1}}',
        'argv: "true" ' + 'preflight: {name: "x" argv: "true"} ' * 17,
        'argv: "true" env_pass: "A=B"',
    ]
    # Answered, whatever becomes of the job: the machine decides, or the kernel.
    TAKEN = [
        'argv: "true" limits: {mem_bytes: 1 pids: 1 nofile: 1 core_bytes: 1 memlock: 1}',
        'argv: "true" limits: {mem_bytes: 9223372036854775808 pids: 4294967295 nofile: 9223372036854775808}',
        'argv: "true" limits: {mem_bytes: 18446744073709551615 core_bytes: 18446744073709551615 memlock: 18446744073709551615}',
        'argv: "sleep" argv: "1000" stop: {grace: {nanos: 1}} hang: {enabled: true beat: {nanos: 1000000}}',
        'argv: "true" preflight: {name: "x" argv: "true" timeout: {nanos: 1000000}}',
        'argv: "true" log: {dir: "/etc/../etc"}',
        'argv: "true" user: "root" job_uuid: "../../x"',
        'argv: "true" cwd: "/../../../../root"',
        'argv: "true" preflight: {name: "x" argv: "true"} preflight: {name: "x" argv: "true"}',
    ]

    def encode(self, spec):
        done = subprocess.run(["protoc", f"--proto_path={SOURCE}/proto", "--encode=accel.v1.StartReq", "accel/v1/control.proto"],
                              input=f"spec: {{{spec}}}".encode(), capture_output=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, (spec[:200], done.stderr.decode()))
        return done.stdout

    def start(self, message):
        """The status of the answer to that StartJob of ann's, who connects and calls with the rights of her own."""
        done = subprocess.run(["/usr/bin/python3", "-c",
                               "import sys; sys.path.append(sys.argv[1]); import raw_grpc\n"
                               "ticket, kept = raw_grpc.take_ticket(sys.argv[2])\n"
                               "caller = raw_grpc.call(sys.argv[2], 'StartJob', ticket, message=sys.stdin.buffer.read())\n"
                               "print(raw_grpc.status_of(caller))", self.folder, self.agent.state / "run"], input=message,
                              capture_output=True, timeout=PATIENCE, cwd="/", user=ANN, group=pwd.getpwuid(ANN).pw_gid, extra_groups=[])
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done.stdout.decode().strip()

    def setUp(self):
        super().setUp()
        shutil.copy(HERE.parent / "raw_grpc.py", self.folder)

    def test_fault_63_what_cannot_be_is_refused_and_the_agent_serves_on(self):
        for spec in self.REFUSED:
            with self.subTest(spec=spec[:100]):
                self.assertEqual(self.start(self.encode(spec)), str(INVALID))
        self.assertEqual(self.accel("status", user=ANN).stdout.count("\n"), self.accel("status", user=CAT).stdout.count("\n"))
        much = [word for number in range(6) for word in ("--env", f"BIG{number}=" + "x" * 100_000)]
        self.assertIn("bytes; at most 524288 are possible", self.accel("run", *much, "--", "true", user=ANN).stderr)
        self.assertNotEqual(self.start(b"\xff" * 4096), "0")
        self.assertEqual(self.start(self.encode('job_id: "twice" argv: "sleep" argv: "1000"')), "0")
        self.assertEqual(self.start(self.encode('job_id: "twice" argv: "true"')), str(INVALID))
        for spec in self.TAKEN:
            with self.subTest(spec=spec[:100]):
                self.assertNotEqual(self.start(self.encode(spec)), "None")
        self.assert_others_are_served()
        self.assertEqual(self.job("twice", user=ANN)["state"], "JOB_STATE_RUNNING")
        jobs = json.loads(self.accel("status", "--json").stdout)["jobs"]
        # Nobody has become another user by what it wrote.
        self.assertEqual({job["user"] for job in jobs if job["argv"][-1] != "echo served"}, {"daemon"})


if __name__ == "__main__":
    if not IS_ROOT:
        print("needs root: other users start jobs")
        sys.exit(77)
    unittest.main(verbosity=1)
