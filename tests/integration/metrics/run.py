#!/usr/bin/env python3
"""The metrics of one accel-agent with real jobs: read as a person does, judged by promtool, scraped by a real Prometheus.

Run by ctest. Without Debian's package `prometheus` the tests that need it are skipped.
"""
import http.client
import importlib.util
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import unittest
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
spec = importlib.util.spec_from_file_location("one_agent", HERE.parent / "agent/run.py")
one_agent = importlib.util.module_from_spec(spec)
spec.loader.exec_module(one_agent)
PATIENCE = one_agent.PATIENCE
sys.path.append(str(HERE.parent))
from programs import eventually, free_port  # noqa: E402

SAMPLE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$")


class MetricsTest(one_agent.AgentTest):
    CONFIG = "allow_root: true\nnode_id: here\nkeep_finished: 1\nmetrics_listen: 127.0.0.1:0\n"

    def setUp(self):
        super().setUp()
        line = next(line for line in self.agent.lines if "serves metrics at port" in line)
        self.port = int(re.search(r"port (\d+)", line).group(1))

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE) as answer:
            return answer.read().decode()

    def samples(self):
        """{'name{labels}': value}"""
        samples = {}
        for line in self.get("/metrics").splitlines():
            if line.startswith("#"):
                continue
            name, labels, value = SAMPLE.match(line).groups()
            samples[name + ("{%s}" % labels if labels else "")] = float(value)
        return samples

    def wait_for(self, condition, what):
        return eventually(condition, what, PATIENCE)

    def start_prometheus(self, config):
        """A Prometheus with that prometheus.yml, which may name files beside it."""
        folder = pathlib.Path(self.folder)
        (folder / "prometheus.yml").write_text(config)
        self.prometheus_port = free_port()
        with open(folder / "prometheus.log", "w") as log:
            server = subprocess.Popen(["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
                                       f"--web.listen-address=127.0.0.1:{self.prometheus_port}"], stdout=log, stderr=log)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)

    def ask_prometheus(self, path):
        """The data of the answer; None while it does not answer, or refuses."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.prometheus_port}/api/v1/{path}", timeout=PATIENCE) as answer:
                return json.load(answer)["data"]
        except (OSError, http.client.HTTPException):
            return None

    def query(self, expression):
        """The series of the result; None when there is none."""
        data = self.ask_prometheus("query?" + urllib.parse.urlencode({"query": expression}))
        return None if data is None else data["result"]

    def start(self, name, *arguments):
        done = self.accel("run", "--detach", "--name", name, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)

    def start_with_steps(self, name):
        self.start(name, "-n", 2, "--", one_agent.BUILD / "tests/fault_worker", "beats", 1000000)


class Refusals(MetricsTest):
    CONFIG = MetricsTest.CONFIG + "listen: 127.0.0.1:0\ninsecure: true\nmax_connections: 8\nmax_connections_each: 8\n"

    def test_connections_beyond_the_limit_are_counted(self):
        self.assertEqual(self.samples()["accel_connections_refused_total"], 0)
        port = int(re.search(r"serves at .*\(port (\d+)\)", self.agent.text()).group(1))
        callers = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
        self.wait_for(lambda: self.samples()["accel_connections_refused_total"] >= 4, "the refusals")
        for caller in callers:
            caller.close()


class Page(MetricsTest):
    def test_a_job_is_counted_and_its_workers_are_shown(self):
        self.start_with_steps("steps")
        step = 'accel_worker_step{job="steps",node="here",local_rank="1"}'
        first = self.wait_for(lambda: self.samples().get(step, 0), "a step")
        self.wait_for(lambda: self.samples().get(step, 0) > first, "another step")
        samples = self.samples()
        self.assertEqual(samples['accel_worker_starts_total{job="steps",node="here"}'], 2)
        self.assertEqual(samples['accel_worker_state{job="steps",node="here",state="running"}'], 2)
        self.assertEqual(samples['accel_agent_jobs{state="running"}'], 1)
        self.assertEqual(samples["accel_worker_start_duration_seconds_count"], 1)
        self.assertIn('accel_worker_heartbeat_age_seconds{job="steps",node="here",local_rank="0"}', samples)
        self.wait_for(lambda: self.samples().get('accel_job_time_seconds{job="steps",phase="productive"}', 0), "productive time")
        self.accel("stop", "--kill", "steps")
        self.wait_for(lambda: "accel_stop_duration_seconds_count" in self.samples(), "the end of the stop")
        self.assertNotIn(step, self.samples())

    def test_failures_and_restarts_are_counted_by_cause(self):
        done = self.accel("run", "--name", "fails", "--max_restarts", 1, "--", "/bin/sh", "-c", "exit 3")
        self.assertEqual(done.returncode, 3, done.stderr)
        samples = self.samples()
        self.assertEqual(samples['accel_worker_exits_total{job="fails",node="here",cause="nonzero"}'], 2)
        self.assertEqual(samples['accel_job_restarts_total{job="fails",cause="nonzero"}'], 1)
        self.assertEqual(samples["accel_restart_duration_seconds_count"], 1)
        self.assertEqual(samples['accel_agent_jobs{state="failed"}'], 1)
        ledger = json.loads(self.accel("ledger", "fails", "--json").stdout)
        for phase in ("productive", "stop", "spawn"):
            self.assertAlmostEqual(samples['accel_job_time_seconds{job="fails",phase="%s"}' % phase], float(ledger[phase][:-1]), places=3)

    def test_a_job_is_forgotten_as_accel_status_forgets_it(self):
        for name in ("first", "second", "third"):
            self.assertEqual(self.accel("run", "--name", name, "--", "/bin/true").returncode, 0)
        shown = set(re.findall(r'job="(\w+)"', self.get("/metrics")))
        listed = {job["job_id"] for job in json.loads(self.accel("status", "--json").stdout)["jobs"]}
        self.assertEqual(shown, listed)
        self.assertNotIn("first", shown)

    def test_a_shim_that_is_stopped_keeps_nobody_waiting(self):
        self.start("stopped", "--", "/bin/sleep", "1000")
        pid = self.wait_for(lambda: [worker.get("pid") for worker in self.job("stopped").get("workers", [])], "the worker")[0]
        shim = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        one_agent.os.kill(shim, one_agent.signal.SIGSTOP)
        try:
            self.assertEqual(self.samples()['accel_agent_jobs{state="running"}'], 1)
        finally:
            one_agent.os.kill(shim, one_agent.signal.SIGCONT)
        self.accel("stop", "--kill", "stopped")

    def test_drained_is_shown_and_the_agent_is_healthy(self):
        self.assertEqual(self.samples()["accel_agent_draining"], 0)
        self.accel("drain")
        self.assertEqual(self.samples()["accel_agent_draining"], 1)
        self.assertEqual(self.get("/healthz"), "ok\n")

    def test_hostile_callers_are_answered_and_the_agent_lives(self):
        for request, status in ((b"POST /metrics HTTP/1.1\r\n\r\n", b"405"), (b"GET /secret HTTP/1.1\r\n\r\n", b"404"),
                                (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"400"), (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", b"431")):
            with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as caller:
                caller.sendall(request)
                self.assertEqual(caller.makefile("rb").readline().split()[1], status, request[:40])
        silent = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(50)]
        done = self.accel("run", "--", "/bin/echo", "alive")
        self.assertEqual(done.stdout, "alive\n", done.stderr)
        for caller in silent:
            caller.close()
        self.assertIn("accel_build_info", self.get("/metrics"))

    def test_an_open_address_must_be_asked_for(self):
        config = pathlib.Path(self.folder) / "open.yaml"
        config.write_text("metrics_listen: 0.0.0.0:0\n")
        check = [one_agent.BIN / "accel-agent", "--check", "--config", config]
        done = subprocess.run(check, capture_output=True, text=True)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("metrics_listen is 0.0.0.0:0, which is not a loopback address", done.stderr)
        config.write_text("metrics_listen: 0.0.0.0:0\nmetrics_beyond_loopback: true\n")
        self.assertEqual(subprocess.run(check, capture_output=True, text=True).returncode, 0)


class Events(MetricsTest):
    def events(self):
        return [json.loads(line) for line in (self.agent.state / "events.jsonl").read_text().splitlines()]

    def of(self, job):
        return [event for event in self.events() if event.get("job") == job]

    def test_everything_that_happens_to_a_job_is_a_line_with_the_key(self):
        script = '[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 9; exit 3'
        self.accel("run", "-n", 2, "--name", "twice", "--max_restarts", 1, "--", "/bin/sh", "-c", script)
        self.wait_for(lambda: any(event.get("exit_code") == 3 and event["event"] == "job" for event in self.of("twice")), "the end")
        events = self.of("twice")
        for event in events:
            self.assertEqual(list(event)[:7], ["seq", "wall", "mono_ns", "node", "event", "job", "job_uuid"])
            self.assertEqual((event["node"], event["job_uuid"]), ("here", self.job("twice")["job_uuid"]))
            self.assertRegex(event["wall"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
        self.assertEqual([e["seq"] for e in events], sorted({e["seq"] for e in events}))
        self.assertEqual([e["mono_ns"] for e in events], sorted(e["mono_ns"] for e in events))
        self.assertEqual([(e["event"], e["state"], e["generation"]) for e in events if e["event"] == "job"],
                         [("job", "pending", 0), ("job", "running", 0), ("job", "running", 1), ("job", "failed", 1)])
        self.assertEqual([(e["generation"], len(e["pids"])) for e in events if e["event"] == "workers_started"], [(0, 2), (1, 2)])
        ended = [e for e in events if e["event"] == "worker_ended"]
        self.assertEqual(sorted((e["generation"], e["rank"]) for e in ended), [(0, 0), (0, 1), (1, 0), (1, 1)])
        self.assertIn(("nonzero", 9), {(e["cause"], e["exit_code"]) for e in ended})
        self.assertEqual([e["cause"] for e in events if e["event"] == "restarting"], ["nonzero"])

    def test_the_file_is_for_the_agent_alone_and_goes_on_after_a_restart(self):
        self.accel("run", "--name", "before", "--", "true")
        self.wait_for(lambda: self.of("before"), "an event")
        self.assertEqual((self.agent.state / "events.jsonl").stat().st_mode & 0o777, 0o600)
        self.agent.end()
        self.agent = one_agent.Agent(self.folder, config=self.CONFIG)
        self.addCleanup(self.agent.end)
        self.accel("run", "--name", "after", "--", "true")
        self.wait_for(lambda: self.of("after"), "an event")
        self.assertTrue(self.of("before"))

    def test_it_can_be_told_to_write_none(self):
        self.agent.end()
        state = self.agent.state
        (state / "events.jsonl").unlink(missing_ok=True)
        self.agent = one_agent.Agent(self.folder, config=self.CONFIG + 'events_file: ""\n')
        self.addCleanup(self.agent.end)
        self.assertEqual(self.accel("run", "--", "true").returncode, 0)
        self.assertFalse((state / "events.jsonl").exists())


@unittest.skipUnless(shutil.which("promtool") and shutil.which("prometheus"), "needs Debian's package prometheus")
class Prometheus(MetricsTest):
    def test_promtool_finds_nothing_to_criticise(self):
        self.start_with_steps("steps")
        self.wait_for(lambda: "accel_worker_step" in self.get("/metrics"), "a step")
        self.accel("stop", "steps")
        done = subprocess.run(["promtool", "check", "metrics"], input=self.get("/metrics"), capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_a_real_prometheus_scrapes_and_answers(self):
        self.start_with_steps("scraped")
        self.start_prometheus(
            "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
            f"scrape_configs: [{{job_name: accel, honor_labels: true, static_configs: [{{targets: ['127.0.0.1:{self.port}']}}]}}]\n")

        def query(expression):
            result = self.query(expression)
            return float(result[0]["value"][1]) if result else None

        self.wait_for(lambda: query('max(accel_worker_step{job="scraped"})'), "a step by Prometheus")
        self.assertEqual(query('accel_worker_starts_total{job="scraped",node="here"}'), 2)
        self.assertEqual(query(f'up{{instance="127.0.0.1:{self.port}"}}'), 1)
        self.accel("stop", "--kill", "scraped")


if __name__ == "__main__":
    unittest.main(verbosity=2)
