#!/usr/bin/env python3
"""The dashboard in Chromium: a real job of 64 ranks, a cluster of 200 nodes, hostile output, and what it refuses.

Run by ctest. Without Chromium and selenium (.deps/pages) the tests that need them are skipped.
With --pictures FOLDER it writes the pictures of the documentation.
"""
import http.client
import importlib.util
import json
import math
import os
import pathlib
import pty
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from browser import CAN_BROWSE, open_browser, run_in_pages_python  # noqa: E402
from one_agent import AgentTest  # noqa: E402
from programs import BIN, BUILD, PATIENCE, eventually, launch  # noqa: E402

if CAN_BROWSE:
    run_in_pages_python()
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

spec = importlib.util.spec_from_file_location("cluster", HERE.parent / "cluster/run.py")
cluster = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cluster)

WORKER = BUILD / "tests/fault_worker"
ADDRESS = re.compile(r"http://\S+/#token=[0-9a-f]{32,}")
WAITS = "exec sleep 1000"
STUBBORN = "trap : TERM; echo ready; while :; do sleep 1; done"
HOSTILE = "<b id=evil>bold</b><script>document.title='owned'</script>"


def ask(host, token, path, method="GET", **headers):
    """The status and the body of the answer; without a token when that is empty."""
    connection = http.client.HTTPConnection(host, timeout=PATIENCE)
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


class DashboardTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def start(self, ranks, script="", *more):
        """A launcher whose workers run `script` and then report steps for ever."""
        token = str(self.folder)
        worker = f"{script}\nexec {WORKER} beats 0 {token}"
        launcher = launch("launcher", ["--num_processes", str(ranks), "--cpu", "--log_dir", self.folder / "logs", "--redirects", "3",
                                       "--dashboard", "--metrics_port", "0", *more, "--no_python", "/bin/sh", "-c", worker],
                          # A launcher that is killed cannot remove its operators' file.
                          env={**os.environ, "TMPDIR": str(self.folder)})
        self.addCleanup(launcher.close)
        launcher.wait_for("to stop the job from the dashboard, open the address in ")
        self.launcher = launcher
        self.url, = ADDRESS.findall(launcher.text())
        self.operators_file = pathlib.Path(re.search(r"open the address in (\S+)", launcher.text()).group(1))
        self.operator_url = self.operators_file.read_text().strip()
        self.token = self.url.split("=")[1]
        self.host = self.url.split("/")[2]
        return launcher

    def request(self, path, token=True, **headers):
        return ask(self.host, token and self.token, path, **headers)

    def act(self, path):
        """As the page in the hands of an operator."""
        return ask(self.host, self.operator_url.split("=")[1], path, "POST", Origin=f"http://{self.host}")

    def state(self):
        return json.loads(self.request("/api/state")[1])

    def metrics_page(self):
        url = re.search(r"serves metrics at (\S+)", self.launcher.text()).group(1)
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return answer.read().decode()

    def metrics(self):
        return dict(line.rsplit(" ", 1) for line in self.metrics_page().splitlines() if not line.startswith("#"))


class Launcher(DashboardTest):
    def test_its_figures_are_those_of_the_metrics(self):
        self.start(2)
        eventually(lambda: all("seconds_per_step" in rank for rank in self.state()["jobs"][0]["ranks"]), "step times")
        # The workers stand still, so both tell of one moment.
        ranks = self.state()["jobs"][0]["ranks"]
        for rank in ranks:
            os.kill(rank["pid"], signal.SIGSTOP)
        for rank in ranks:
            eventually(lambda pid=rank["pid"]: pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T", "the stop")
        job = self.state()["jobs"][0]
        metrics = self.metrics()
        for rank in job["ranks"]:
            labels = '{job="%s",node="%s",local_rank="%d"}' % (job["id"], rank["node"], rank["local_rank"])
            self.assertEqual(float(metrics["accel_worker_step" + labels]), rank["step"])
            self.assertIn("accel_worker_step_seconds" + labels, metrics)
        self.assertEqual(metrics['accel_worker_state{job="%s",node="%s",state="running"}' % (job["id"], ranks[0]["node"])], "2")
        self.assertEqual(metrics['accel_rendezvous_generation{job="%s"}' % job["id"]], str(job["generation"]))
        for phase in ("spawn", "init", "stop"):  # the open one grows between the two
            self.assertEqual(float(metrics['accel_job_time_seconds{job="%s",phase="%s"}' % (job["id"], phase)]), job["seconds"][phase])
        for rank in ranks:
            os.kill(rank["pid"], signal.SIGCONT)

    @unittest.skipUnless(shutil.which("promtool"), "needs Debian's package prometheus")
    def test_promtool_finds_nothing_to_criticise(self):
        self.start(2)
        eventually(lambda: any(name.startswith("accel_worker_step_seconds") for name in self.metrics()), "step times")
        done = subprocess.run(["promtool", "check", "metrics"], input=self.metrics_page(), capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_who_has_no_token_sees_nothing_and_is_counted(self):
        self.start(1, "echo secret")
        for path in ("/api/state", "/api/events", "/api/log?job=x&rank=0"):
            self.assertEqual(self.request(path, token=False)[0], 401)
        self.assertEqual(self.request("/api/state", Origin="http://evil.example")[0], 403)
        self.assertEqual(self.request("/", Host="evil.example")[0], 421)
        self.assertEqual(self.state()["refusals"], {"unauthenticated": 3, "cross_site": 1, "wrong_host": 1, "forbidden": 0, "dropped": 0})
        self.assertEqual(self.metrics()['accel_dashboard_refusals_total{cause="unauthenticated"}'], "3")

    def test_a_script_of_another_site_may_not_even_ask(self):
        self.start(1)
        with socket.create_connection(tuple(self.host.split(":")), timeout=PATIENCE) as caller:
            caller.sendall(f"OPTIONS /api/state HTTP/1.1\r\nHost: {self.host}\r\nOrigin: http://evil.example\r\n"
                           "Access-Control-Request-Headers: authorization\r\n\r\n".encode())
            answer = caller.makefile("rb").read()
        self.assertTrue(answer.startswith(b"HTTP/1.1 405"), answer)
        self.assertNotIn(b"Access-Control", answer)

    def test_a_stop_is_told_to_whoever_watches_and_the_launcher_ends(self):
        launcher = self.start(1)
        connection = http.client.HTTPConnection(self.host, timeout=PATIENCE)
        connection.request("GET", "/api/events", headers={"Authorization": f"Bearer {self.token}"})
        stream = connection.getresponse()
        self.assertTrue(stream.readline().startswith(b"data: {"))
        launcher.process.terminate()
        events = [json.loads(line[6:]) for line in stream if line.startswith(b"data: ")]
        connection.close()
        self.assertTrue(events[-1]["is_over"])
        self.assertEqual(events[-1]["jobs"][0]["state"], "cancelled")
        self.assertEqual(launcher.wait(), 143)

    def test_an_operator_stops_the_job_as_a_signal_would(self):
        launcher = self.start(1)
        job = self.state()["jobs"][0]["id"]
        self.assertEqual(ask(self.host, self.token, f"/api/stop?job={job}", "POST", Origin=f"http://{self.host}")[0], 403)
        self.assertIn("there is no such job here", self.act("/api/stop?job=other")[1])
        status, body = self.act(f"/api/stop?job={job}")
        self.assertEqual((status, json.loads(body)), (200, {"is_done": True, "text": "the job is asked to stop"}))
        self.assertEqual(launcher.wait(), 143)
        self.assertRegex(launcher.text(), r"an operator of the dashboard at 127\.0\.0\.1:\d+ stops the job")

    def test_a_job_that_is_stopping_is_killed_when_that_is_said_alone(self):
        launcher = self.start(1, "trap '' TERM; echo ready", "--stop_grace", "3600")
        job = self.state()["jobs"][0]["id"]
        eventually(lambda: "ready" in self.request(f"/api/log?job={job}&rank=0")[1], "the trap")
        stopped, again, killed = (json.loads(self.act(f"/api/stop?job={job}{how}")[1]) for how in ("", "", "&kill=1"))
        self.assertTrue(stopped["is_done"], stopped)
        self.assertEqual(again, {"is_done": False, "text": "the job is stopping already: nothing was done"})
        self.assertEqual(killed, {"is_done": True, "text": "the job is killed"})
        launcher.wait()

    def test_the_operators_address_is_in_a_file_of_the_user_until_the_end(self):
        launcher = self.start(1)
        self.assertEqual(self.operators_file.stat().st_mode & 0o777, 0o600)
        self.assertNotIn(self.operator_url.split("=")[1], launcher.text())
        launcher.process.terminate()
        self.assertEqual(launcher.wait(), 143)
        self.assertFalse(self.operators_file.exists())

    def test_the_operators_address_is_shown_on_a_terminal(self):
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        job = subprocess.Popen([BIN / "accel-launch", "--cpu", "--dashboard", "--no_python", "/bin/true"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=theirs, start_new_session=True)
        os.close(theirs)
        text = b""
        try:
            while part := os.read(ours, 65536):
                text += part
        except OSError:  # the end of a terminal without writers
            pass
        self.assertEqual(job.wait(PATIENCE), 0, text)
        self.assertEqual(len(ADDRESS.findall(text.decode())), 2, text)
        self.assertNotIn(b"open the address in", text)

    def test_one_large_file_and_a_pipe_hide_no_curve_and_do_not_keep_the_launcher(self):
        runs = self.folder / "runs"
        for name in ("good", "large", "pipe"):
            (runs / name).mkdir(parents=True)
        (runs / "good/log.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
        os.mkfifo(runs / "pipe/log.jsonl")
        with (runs / "large/log.jsonl").open("w") as large:
            large.truncate((64 << 20) + 1)
        launcher = self.start(1, "", "--tracking_dir", runs)
        curves = json.loads(self.request("/api/curves")[1])
        self.assertEqual([panel["metric"] for panel in curves["panels"]], ["loss"])
        self.assertIn("large/log.jsonl has more than 67108864 bytes", curves["notice"])
        launcher.process.terminate()
        self.assertEqual(launcher.wait(), 143)

    def test_an_operator_sees_what_a_rank_waits_for(self):
        self.start(2, WAITS)
        eventually(lambda: self.state()["jobs"][0]["state"] == "running", "the start")
        job = self.state()["jobs"][0]["id"]
        answer = json.loads(self.act(f"/api/stacks?job={job}&rank=1")[1])
        self.assertTrue(answer["is_done"], answer)
        self.assertRegex(answer["text"], r"^rank 1 \(pid \d+\): state [A-Z], ")
        self.assertEqual(json.loads(self.act(f"/api/stacks?job={job}&rank=9")[1]), {"is_done": False, "text": "rank 9 does not run"})

    def test_a_job_whose_shim_is_killed_is_shown_as_failed(self):
        launcher = self.start(1)
        connection = http.client.HTTPConnection(self.host, timeout=PATIENCE)
        connection.request("GET", "/api/events", headers={"Authorization": f"Bearer {self.token}"})
        stream = connection.getresponse()
        eventually(lambda: self.state()["jobs"][0]["state"] == "running", "the start")
        worker = self.state()["jobs"][0]["ranks"][0]["pid"]
        shim = int(pathlib.Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(shim, signal.SIGKILL)
        events = [json.loads(line[6:]) for line in stream if line.startswith(b"data: ")]
        connection.close()
        job = events[-1]["jobs"][0]
        self.assertEqual((events[-1]["is_over"], job["state"], job["ranks"][0]["end"]), (True, "failed", "lost"))
        self.assertNotEqual(launcher.wait(), 0)
        self.assertIn(job["reason"], launcher.text())

    def test_a_port_that_is_taken_ends_the_launch_before_anything_runs(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            done = subprocess.run([BIN / "accel-launch", "--cpu", "--dashboard_port", str(taken.getsockname()[1]), "--no_python",
                                   "/bin/touch", self.folder / "ran"], capture_output=True, text=True, timeout=PATIENCE)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("cannot listen at 127.0.0.1", done.stderr)
        self.assertFalse((self.folder / "ran").exists())


class AgentDashboardTest(AgentTest):
    CONFIG = "allow_root: true\nnode_id: here\nmetrics_listen: 127.0.0.1:0\ndashboard_listen: 127.0.0.1:0\n"

    def setUp(self):
        super().setUp()
        self.wait_for_text("serves the dashboard at port")
        self.path = self.agent.state / "run/dashboard.url"
        self.operator_path = self.agent.state / "run/dashboard-operator.url"
        self.url, self.operator_url = (path.read_text().strip() for path in (self.path, self.operator_path))
        self.host, self.token = self.url.removeprefix("http://").split("/#token=")

    def request(self, path, token=True, **headers):
        return ask(self.host, token and self.token, path, **headers)

    def act(self, path, **headers):
        """As the page in the hands of an operator."""
        status, body = ask(self.host, self.operator_url.split("=")[1], path, "POST", **{"Origin": f"http://{self.host}", **headers})
        return json.loads(body) if status == 200 else status

    def state(self):
        return json.loads(self.request("/api/state")[1])

    def shown(self, name):
        return next((job for job in self.state()["jobs"] if job["id"] == name), None)

    def metrics(self):
        port = re.search(r"serves metrics at port (\d+)", self.agent.text()).group(1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            return dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#"))

    def start(self, name, ranks, *command):
        done = self.accel("run", "--detach", "-n", ranks, "--name", name, "--", *command)
        self.assertEqual(done.returncode, 0, done.stderr)
        eventually(lambda: (self.shown(name) or {}).get("state") == "running", "the start")


class OfAnAgent(AgentDashboardTest):
    def test_a_job_that_has_ended_has_the_figures_of_control_and_of_the_metrics(self):
        done = self.accel("run", "-n", 2, "--name", "fails", "--max_restarts", 1, "--", "/bin/sh", "-c", "exit 3")
        self.assertEqual(done.returncode, 3, done.stderr)
        job = self.shown("fails")
        said = self.job("fails")
        self.assertEqual((job["state"], job["generation"], job["restarts"], job["reason"]),
                         ("failed", int(said["generation"]), said["restarts"], said["reason"]))
        self.assertEqual(job["uuid"], said["job_uuid"])
        self.assertEqual({rank["end"] for rank in job["ranks"]} - {"stopped_by_us"}, {"nonzero"})
        ledger = json.loads(self.accel("ledger", "fails", "--json").stdout)
        metrics = self.metrics()
        for phase, seconds in job["seconds"].items():
            self.assertEqual(float(metrics['accel_job_time_seconds{job="fails",phase="%s"}' % phase]), seconds)
            if phase != "waiting":
                self.assertAlmostEqual(float(ledger.get(phase, "0s")[:-1]), seconds, places=3)
        self.assertEqual([event["kind"] for event in job["events"]].count("started"), 2)

    def test_steps_of_a_running_job_are_those_of_the_metrics(self):
        self.start("steps", 2, WORKER, "beats", 20)
        eventually(lambda: [rank.get("step") for rank in self.shown("steps")["ranks"]] == [20, 19], "the last steps")
        metrics = self.metrics()
        for rank in self.shown("steps")["ranks"]:
            labels = '{job="steps",node="here",local_rank="%d"}' % rank["local_rank"]
            self.assertEqual(float(metrics["accel_worker_step" + labels]), rank["step"])
        said = self.job("steps")
        job = self.shown("steps")
        self.assertEqual(said["state"].removeprefix("JOB_STATE_").lower(), job["state"])
        self.assertEqual([int(worker["pid"]) for worker in said["workers"]], [rank["pid"] for rank in job["ranks"]])
        self.assertEqual(metrics['accel_worker_state{job="steps",node="here",state="running"}'], "2")
        uuid = job["uuid"]
        log = json.loads(self.request(f"/api/log?job={uuid}&rank=1")[1])
        self.assertIn("silent", log["text"])
        self.assertIn("ask its own agent", json.loads(self.request(f"/api/log?job={uuid}&rank=7")[1])["notice"])
        self.accel("stop", "--kill", "steps")

    def test_curves_of_a_job_are_those_of_its_tracking_folder(self):
        runs = pathlib.Path(self.folder) / "runs"
        done = self.accel("run", "--detach", "--name", "tracks", "--cwd", self.folder, "--tracking_dir", "runs", "--", "/bin/sleep", "1000")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.start("silent", 1, "/bin/sleep", "1000")
        job = self.shown("tracks")
        self.assertTrue(job["has_curves"])
        curves = lambda: json.loads(self.request(f"/api/curves?job={job['uuid']}")[1])
        self.assertIn("there is no run", curves()["notice"])
        runs.mkdir()
        (runs / "log.jsonl").write_text('{"step":1,"loss":0.5}\n{"step":2,"loss":0.25}\n')
        said = subprocess.run([BIN / "accel", "plot", "--json", runs], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(curves(), json.loads(said.stdout))
        self.assertEqual(curves()["panels"][0]["curves"][0]["points"], [[1, 0.5], [2, 0.25]])
        self.assertFalse(self.shown("silent")["has_curves"])
        none = json.loads(self.request(f"/api/curves?job={self.shown('silent')['uuid']}")[1])
        self.assertIn("nobody said where this job logs", none["notice"])

    def test_the_tokens_are_for_the_agent_alone_and_go_with_it(self):
        for path, url in ((self.path, self.url), (self.operator_path, self.operator_url)):
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
            self.assertNotIn(url.split("=")[1], self.agent.text())
        self.assertEqual(self.request("/api/state", token=False)[0], 401)
        self.assertEqual(self.metrics()['accel_dashboard_refusals_total{cause="unauthenticated"}'], "1")
        self.agent.end()
        self.assertFalse(self.path.exists() or self.operator_path.exists())

    def test_what_is_hostile_is_refused_and_counted(self):
        self.start("quiet", 1, "/bin/sh", "-c", WAITS)
        stop = f"/api/stop?job={self.shown('quiet')['uuid']}"
        operator = self.operator_url.split("=")[1]
        own = f"http://{self.host}"
        self.assertEqual(ask(self.host, "", stop, "POST", Origin=own)[0], 401)
        self.assertEqual(ask(self.host, self.token, stop, "POST", Origin=own)[0], 403)
        self.assertEqual(ask(self.host, operator, stop, "POST", Origin="http://evil.example")[0], 403)
        self.assertEqual(ask(self.host, operator, stop, "POST")[0], 403)
        self.assertEqual(ask(self.host, operator, stop, "POST", Host="evil.example", Origin="http://evil.example")[0], 421)
        self.assertEqual(ask(self.host, operator, stop)[0], 405)
        refusals = {"unauthenticated": 1, "cross_site": 2, "wrong_host": 1, "forbidden": 1, "dropped": 0}
        self.assertEqual(self.state()["refusals"], refusals)
        metrics = self.metrics()
        for cause, count in refusals.items():
            self.assertEqual(metrics['accel_dashboard_refusals_total{cause="%s"}' % cause], str(count))
        self.assertEqual(self.shown("quiet")["state"], "running")
        self.accel("stop", "--kill", "quiet")

    def test_a_client_that_never_reads_is_dropped_and_counted(self):
        # An event is larger than what the kernel holds for both sides: many jobs with many ranks that have ended.
        for number in range(12):
            done = self.accel("run", "-n", 64, "--name", f"j{number}", "--", "/bin/false")
            self.assertEqual(done.returncode, 1, done.stderr)
        with socket.socket() as caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            caller.connect((self.host.split(":")[0], int(self.host.split(":")[1])))
            caller.sendall(f"GET /api/events HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: Bearer {self.token}\r\n\r\n".encode())
            eventually(lambda: self.state()["refusals"]["dropped"] == 1, "the drop")

    def test_an_operator_stops_a_job_and_the_log_names_the_address(self):
        self.start("long", 2, "/bin/sh", "-c", WAITS)
        answer = self.act(f"/api/stop?job={self.shown('long')['uuid']}")
        self.assertTrue(answer["is_done"], answer)
        eventually(lambda: self.shown("long")["state"] == "cancelled", "the end")
        self.assertEqual(self.job("long")["state"], "JOB_STATE_CANCELLED")
        self.wait_for_text("audit: stop long for an operator of the dashboard at 127.0.0.1:")
        self.assertFalse(self.act("/api/stop?job=nobodys")["is_done"])

    def test_a_job_that_is_stopping_is_killed_when_that_is_said_alone(self):
        done = self.accel("run", "--detach", "--name", "stubborn", "--stop-grace", 3600, "--", "/bin/sh", "-c", STUBBORN)
        self.assertEqual(done.returncode, 0, done.stderr)
        uuid = eventually(lambda: self.shown("stubborn"), "the job")["uuid"]
        eventually(lambda: "ready" in self.request(f"/api/log?job={uuid}&rank=0")[1], "the trap")
        self.assertTrue(self.act(f"/api/stop?job={uuid}")["is_done"])
        again = self.act(f"/api/stop?job={uuid}")
        self.assertFalse(again["is_done"], again)
        self.assertIn("'stubborn' is stopping already: nothing was done", again["text"])
        self.assertEqual(self.shown("stubborn")["state"], "stopping")
        self.assertNotIn("audit: stop stubborn (kill)", self.agent.text())
        self.assertTrue(self.act(f"/api/stop?job={uuid}&kill=1")["is_done"])
        eventually(lambda: self.shown("stubborn")["state"] == "cancelled", "the end")
        self.wait_for_text("audit: stop stubborn (kill) for an operator of the dashboard at 127.0.0.1:")

    def test_no_job_is_named_as_the_uuid_of_another(self):
        self.start("first", 1, "/bin/sh", "-c", WAITS)
        uuid = self.shown("first")["uuid"]
        refused = self.accel("run", "--detach", "--name", uuid, "--", "/bin/true")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("has the form of a job's uuid", refused.stderr)
        self.accel("stop", "--kill", uuid)
        eventually(lambda: self.shown("first")["state"] == "cancelled", "the end")

    def test_an_operator_takes_the_stacks_of_one_rank(self):
        self.start("stuck", 2, "/bin/sh", "-c", WAITS)
        uuid = self.shown("stuck")["uuid"]
        answer = self.act(f"/api/stacks?job={uuid}&rank=1")
        self.assertTrue(answer["is_done"], answer)
        self.assertIn("== rank 1, pid %d\n" % self.shown("stuck")["ranks"][1]["pid"], answer["text"])
        self.assertIn("State:", answer["text"])
        self.assertNotIn("rank 0", answer["text"])
        self.assertEqual(self.act(f"/api/stacks?job={uuid}&rank=5"), {"is_done": False, "text": "rank 5 does not run"})
        self.wait_for_text("audit: diagnose stuck for an operator of the dashboard at 127.0.0.1:")
        self.accel("stop", "--kill", "stuck")

    def test_an_operator_drains_the_node(self):
        self.assertFalse(self.state()["is_drained"])
        self.assertTrue(self.act("/api/drain")["is_done"])
        self.assertTrue(self.state()["is_drained"])
        self.assertIn("(drained)", self.accel("status").stdout)
        self.assertNotEqual(self.accel("run", "--", "/bin/true").returncode, 0)
        self.wait_for_text("audit: drain for an operator of the dashboard at 127.0.0.1:")
        self.accel("undrain")
        self.assertFalse(self.state()["is_drained"])

    def test_an_open_address_must_be_asked_for(self):
        config = pathlib.Path(self.folder) / "open.yaml"
        check = [BIN / "accel-agent", "--check", "--config", config]
        config.write_text("dashboard_listen: 0.0.0.0:0\n")
        done = subprocess.run(check, capture_output=True, text=True)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("dashboard_listen is 0.0.0.0:0, which is not a loopback address", done.stderr)
        config.write_text("dashboard_listen: 0.0.0.0:0\ndashboard_beyond_loopback: true\n")
        self.assertEqual(subprocess.run(check, capture_output=True, text=True).returncode, 0)


class ClusterDashboardTest(cluster.ClusterTest):
    """Two agents; the first one hosts the coordinator and serves the page. A job of theirs reports steps for ever."""

    def setUp(self):
        super().setUp()
        served = "metrics_listen: 127.0.0.1:0\ndashboard_listen: 127.0.0.1:0\n"
        for name, more in (("first", served), ("second", "")):
            self.start(name, more)
        run = self.agents["first"].state / "run"
        self.operator_url = (run / "dashboard-operator.url").read_text().strip()
        self.host, self.operator = self.operator_url.removeprefix("http://").split("/#token=")
        worker = shutil.copy(WORKER, self.folder / "worker")
        os.chmod(worker, 0o755)
        done = self.accel("first", "run", "--detach", "--name", "wide", "--nnodes", 2, "-n", 4, "--", worker, "beats", 0)
        self.assertEqual(done.returncode, 0, done.stderr)

    def state(self):
        return json.loads(ask(self.host, self.operator, "/api/state")[1])

    def metrics(self):
        port = re.search(r"serves metrics at port (\d+)", self.agents["first"].text()).group(1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            return dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#"))

    def wide(self):
        """The job, once all of its ranks have told steps."""
        job = next((job for job in self.state()["jobs"] if job["id"] == "wide"), {"ranks": []})
        return job if len([rank for rank in job["ranks"] if "step" in rank]) == 4 else None


class OfACluster(ClusterDashboardTest):
    def test_all_nodes_and_all_ranks_are_shown_where_the_coordinator_is(self):
        job = eventually(self.wide, "steps of all ranks")
        said = self.job("first", "wide")
        self.assertEqual((job["uuid"], job["state"], job["generation"]), (said["job_uuid"], "running", int(said["generation"])))
        self.assertEqual(said["state"], "JOB_STATE_RUNNING")
        self.assertEqual(sorted({rank["node"] for rank in job["ranks"]}), self.nodes_of(said))
        self.assertEqual({node["id"]: node["state"] for node in self.state()["nodes"]}, {"first": "live", "second": "live"})
        self.assertEqual(self.metrics()['accel_rendezvous_nodes{state="live"}'], "2")

    def test_an_operator_stops_a_job_of_two_nodes_and_sees_its_stacks(self):
        uuid = eventually(self.wide, "steps of all ranks")["uuid"]

        def act(path):
            return json.loads(ask(self.host, self.operator, path, "POST", Origin=f"http://{self.host}")[1])

        stacks = act(f"/api/stacks?job={uuid}&rank=3")
        self.assertTrue(stacks["is_done"], stacks)
        self.assertRegex(stacks["text"], r"^== node \w+, rank 3, pid \d+\n")
        self.assertNotIn("rank 0", stacks["text"])
        stopped = act(f"/api/stop?job={uuid}")
        self.assertTrue(stopped["is_done"], stopped)
        eventually(lambda: self.job("first", "wide")["state"] == "JOB_STATE_CANCELLED", "the end")
        self.wait_for_line(self.agents["first"], "audit: stop wide for an operator of the dashboard at 127.0.0.1:")


class Browser:
    """What tests with a browser share, whoever serves the page."""

    def open(self, url, width=1280, height=1400):
        self.browser = open_browser(pathlib.Path(self.folder) / "profile", width, height)
        self.addCleanup(self.browser.quit)
        self.browser.get(url)
        return self.browser

    def wait(self, condition):
        return WebDriverWait(self.browser, PATIENCE, 0.05).until(condition)

    def texts(self, selector):
        return self.browser.execute_script("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)

    def click(self, name):
        self.wait(lambda _: self.browser.find_element(By.ID, name).is_displayed())
        self.browser.find_element(By.ID, name).click()

    def check_console(self):
        self.assertEqual(self.browser.get_log("browser"), [])


@unittest.skipUnless(os.geteuid() == 0, "needs root: jobs run as another user")
class OfAnAgentForAllUsers(AgentDashboardTest):
    CONFIG = AgentDashboardTest.CONFIG + 'socket_group: "*"\n'

    def test_the_agent_shows_no_user_what_only_another_one_may_read(self):
        nobody = pwd.getpwnam("nobody").pw_uid
        own, others = (tempfile.mkdtemp(prefix="accel-runs-") for _ in range(2))
        for folder in (own, others):
            self.addCleanup(shutil.rmtree, folder)
            pathlib.Path(folder, "log.csv").write_text("step,loss\n1,0.5\n2,0.25\n")
        shutil.chown(own, nobody)  # mkdtemp() let root alone in
        for name, folder in (("own", own), ("others", others)):
            done = self.accel("run", "--detach", "--name", name, "--cwd", "/", "--tracking_dir", folder, "--", "/bin/sleep", "1000", user=nobody)
            self.assertEqual(done.returncode, 0, done.stderr)
        read = {name: json.loads(self.request(f"/api/curves?job={self.shown(name)['uuid']}")[1]) for name in ("own", "others")}
        self.assertEqual([panel["metric"] for panel in read["own"]["panels"]], ["loss"])
        self.assertEqual(read["others"]["panels"], [])
        self.assertIn("Permission denied", read["others"]["notice"])


@unittest.skipUnless(CAN_BROWSE, "needs chromium, chromedriver and selenium (.deps/pages)")
class AgentInBrowser(Browser, AgentDashboardTest):
    def test_curves_are_those_of_the_chosen_job(self):
        for name, loss in (("first", 0.5), ("second", 0.125)):
            folder = pathlib.Path(self.folder) / name
            folder.mkdir()
            (folder / "log.jsonl").write_text('{"step":1,"loss":1}\n{"step":2,"loss":%s}\n' % loss)
            done = self.accel("run", "--detach", "--name", name, "--tracking_dir", folder, "--", "/bin/sleep", "1000")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.start("none", 1, "/bin/sleep", "1000")
        browser = self.open(self.url)
        for name, captions in (("first", ["loss0.5"]), ("second", ["loss0.125"]), ("none", []), ("first", ["loss0.5"])):
            self.wait(lambda _: len(self.texts("#jobs tr")) == 3)
            browser.find_element(By.XPATH, f"//*[@id='jobs']//button[text()='{name}']").click()
            self.wait(lambda _: self.texts("#curves figcaption") == captions)
            self.assertEqual(browser.find_element(By.ID, "curves-section").is_displayed(), bool(captions))
        self.check_console()

    def test_two_jobs_are_shown_as_control_and_metrics_have_them(self):
        self.start("beats", 4, WORKER, "beats", 40)
        self.start("waits", 2, "/bin/sh", "-c", f"printf '%s\\n' \"{HOSTILE}\"; printf '\\033]0;owned\\007\\n'; {WAITS}")
        eventually(lambda: [rank.get("step") for rank in self.shown("beats")["ranks"]] == [40, 39, 40, 40], "the last steps")
        browser = self.open(self.url)
        self.wait(lambda _: len(self.texts("#jobs tr")) == 2)
        for row in browser.find_elements(By.CSS_SELECTOR, "#jobs tr"):
            name, user, state, workers, generation, restarts, _ = (cell.text for cell in row.find_elements(By.TAG_NAME, "td"))
            said = self.job(name)
            self.assertEqual((user, state, workers, generation, restarts),
                             (said["user"], "running", f"{len(said['workers'])} of {len(said['workers'])}", "0", "0"))
        metrics = self.metrics()
        browser.find_element(By.XPATH, "//*[@id='jobs']//button[text()='beats']").click()
        self.wait(lambda _: len(self.texts("#ranks button")) == 4)
        titles = browser.execute_script("return [...document.querySelectorAll('#ranks button')].map(e => e.title)")
        for rank, title in enumerate(titles):
            self.assertIn("step %s," % metrics['accel_worker_step{job="beats",node="here",local_rank="%d"}' % rank], title)
        browser.find_element(By.XPATH, "//*[@id='jobs']//button[text()='waits']").click()
        self.wait(lambda _: HOSTILE in self.texts("#log")[0] and "?]0;owned?" in self.texts("#log")[0])
        self.assertEqual(browser.find_elements(By.ID, "evil"), [])
        for action in ("stop", "stacks", "drain"):
            self.assertFalse(browser.find_element(By.ID, action).is_displayed())
        self.check_console()

    def test_an_operator_who_stops_a_job_again_is_asked_whether_to_kill_it(self):
        done = self.accel("run", "--detach", "--name", "stubborn", "--stop-grace", 3600, "--", "/bin/sh", "-c", STUBBORN)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.open(self.operator_url)
        self.wait(lambda _: "ready" in self.texts("#log")[0])
        self.click("stop")
        self.assertIn("Its workers are asked to end", self.texts("#confirm-text")[0])
        self.click("confirm-yes")
        self.wait(lambda _: self.texts("#outcome-text") == ["job stubborn is stopping"])
        self.wait(lambda _: self.texts("#stop") == ["Kill stubborn"])
        self.click("stop")
        self.assertIn("Its workers get SIGKILL now", self.texts("#confirm-text")[0])
        self.click("confirm-yes")
        self.wait(lambda _: self.texts("#jobs td")[2] == "cancelled")
        self.wait_for_text("audit: stop stubborn (kill) for an operator of the dashboard at 127.0.0.1:")
        self.check_console()

    def test_an_operator_confirms_each_action_and_sees_its_outcome(self):
        self.start("waits", 2, "/bin/sh", "-c", WAITS)
        browser = self.open(self.operator_url)
        self.click("stacks")
        self.assertEqual(self.texts("#confirm-yes"), ["Stacks of rank 0"])
        self.click("confirm-yes")
        self.wait(lambda _: "State:" in self.texts("#outcome-text")[0])
        self.click("stop")
        self.click("confirm-no")
        self.assertEqual(self.shown("waits")["state"], "running")
        self.click("stop")
        self.click("confirm-yes")
        self.wait(lambda _: self.texts("#outcome-text") == ["job waits is stopping"])
        self.wait(lambda _: self.texts("#jobs td")[2] == "cancelled")
        self.assertFalse(browser.find_element(By.ID, "stop").is_displayed())
        self.click("drain")
        self.click("confirm-yes")
        self.wait(lambda _: browser.find_element(By.ID, "drained").is_displayed())
        self.assertFalse(browser.find_element(By.ID, "drain").is_displayed())
        self.check_console()


@unittest.skipUnless(CAN_BROWSE, "needs chromium, chromedriver and selenium (.deps/pages)")
class ClusterInBrowser(Browser, ClusterDashboardTest):
    def test_ranks_of_another_node_have_step_times_too(self):
        self.open(self.operator_url)
        self.wait(lambda _: len(self.texts("#ranks button.timed")) == 4)
        self.assertEqual(self.texts("#node-counts"), ["2 live"])
        self.assertEqual(self.texts("#jobs td")[3], "4 of 4")
        self.check_console()


@unittest.skipUnless(CAN_BROWSE, "needs chromium, chromedriver and selenium (.deps/pages)")
class InBrowser(Browser, DashboardTest):
    def test_64_ranks_are_a_heat_map_whose_steps_go_on(self):
        self.start(64)
        browser = self.open(self.url)
        self.wait(lambda _: len(self.texts("#ranks button.timed")) == 64)
        self.assertNotIn(self.token, browser.current_url)
        self.assertEqual(self.texts("#jobs td")[2], "running")
        steps = "return [...document.querySelectorAll('#ranks button')].map(e => Number(/step (\\d+)/.exec(e.title)[1]))"
        first = browser.execute_script(steps)
        self.wait(lambda _: all(now > then for now, then in zip(browser.execute_script(steps), first)))
        browser.find_element(By.CSS_SELECTOR, "#ranks button[tabindex='0']").send_keys("\ue014")  # the right arrow
        self.wait(lambda _: self.texts("#log-rank") == ["rank 1"])
        self.assertEqual(browser.switch_to.active_element.text, "1")
        self.check_console()

    def test_what_workers_write_is_shown_as_text(self):
        script = f'printf "%s\\n" "{HOSTILE}" needle; printf "\\033]0;owned\\007\\033[31mred\\n"; echo to-stderr >&2'
        self.start(2, script)
        browser = self.open(self.url)
        self.wait(lambda _: "needle" in self.texts("#log")[0])
        self.assertIn(HOSTILE, self.texts("#log")[0])
        self.assertIn("?]0;owned??[31mred", self.texts("#log")[0])
        self.assertEqual(browser.find_elements(By.ID, "evil"), [])
        self.assertNotEqual(browser.title, "owned")
        browser.find_element(By.ID, "log-search").send_keys("needle")
        self.wait(lambda _: self.texts("#log")[0] == "needle\n")
        self.assertEqual(self.texts("#log mark"), ["needle"])
        browser.find_element(By.ID, "log-search").clear()
        browser.execute_script("const s = document.getElementById('log-stream'); s.value = 'err'; s.dispatchEvent(new Event('change'))")
        self.wait(lambda _: "to-stderr" in self.texts("#log")[0])
        self.check_console()

    def test_a_failure_is_on_the_timeline_and_the_next_generation_goes_on(self):
        self.start(2, 'if [ "$TORCHELASTIC_RESTART_COUNT$RANK" = 01 ]; then exit 3; fi', "--max_restarts", "1")
        self.open(self.url)
        self.wait(lambda _: any("generation 1" in text and "2 workers run" in text for text in self.texts("#events li")))
        self.assertTrue(any("failed" in text and "rank 1" in text for text in self.texts("#events li")), self.texts("#events li"))
        self.wait(lambda _: len(self.texts("#ranks button.timed")) == 2)
        self.check_console()

    def test_200_nodes_change_while_one_looks(self):
        program = subprocess.Popen([BUILD / "tests/dashboard_program", "200"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(program.communicate)  # the end of its input ends it
        self.open(program.stdout.readline().strip())
        self.wait(lambda _: len(self.texts("#nodes li")) == 200)
        self.assertEqual(self.texts("#node-counts"), ["200 live"])
        self.assertEqual(self.texts("#jobs button"), ["<img src=x onerror=alert(1)>"])
        program.stdin.write("lost\n")
        program.stdin.flush()
        self.wait(lambda _: self.texts("#node-counts") == ["199 live, 1 lost"])
        self.browser.find_element(By.ID, "node-search").send_keys("lost")
        self.wait(lambda _: self.texts("#nodes b") == ["node-0199"])
        self.check_console()

    def test_curves_of_losses_are_drawn_and_grow(self):
        runs = self.folder / "runs"
        runs.mkdir()
        log = runs / "log.jsonl"
        log.write_text("".join(json.dumps({"step": step, "loss": 2 / (step + 1), "lr": 0.1}) + "\n" for step in range(10)))
        self.start(1, "", "--tracking_dir", runs)
        browser = self.open(self.url)
        self.wait(lambda _: len(self.texts("#curves figure")) == 2)
        self.assertEqual(self.texts("#curves figcaption"), ["loss0.2", "lr0.1"])
        points = "return document.querySelector('#curves polyline').getAttribute('points').split(' ').length"
        self.assertEqual(browser.execute_script(points), 10)
        with log.open("a") as more:
            more.write('{"step": 10, "loss": 0.125, "lr": 0.1}\n')
        self.wait(lambda _: self.texts("#curves figcaption") == ["loss0.125", "lr0.1"])
        browser.find_element(By.ID, "curve-search").send_keys("lo")
        self.wait(lambda _: len(self.texts("#curves figure")) == 1)
        self.assertEqual(self.texts("#curves-count"), ["1 of 2 metrics"])
        self.check_console()

    def test_without_a_token_it_asks_for_one(self):
        self.start(1)
        browser = self.open(self.url.split("#")[0])
        self.wait(lambda _: browser.find_element(By.ID, "ask").is_displayed())
        self.assertFalse(browser.find_element(By.ID, "main").is_displayed())
        browser.find_element(By.ID, "token").send_keys(self.token + "\n")
        self.wait(lambda _: browser.find_element(By.ID, "main").is_displayed())
        self.wait(lambda _: len(self.texts("#ranks button")) == 1)

    def test_it_fits_on_a_phone_and_is_dark_when_asked(self):
        self.start(8)
        browser = self.open(self.url, 500, 900)
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True})
        self.wait(lambda _: len(self.texts("#ranks button")) == 8)
        self.assertLessEqual(browser.execute_script("return document.documentElement.scrollWidth"), 390)
        ground = "return getComputedStyle(document.body).backgroundColor"
        light = browser.execute_script(ground)
        browser.find_element(By.TAG_NAME, "body").send_keys("t")
        self.wait(lambda _: browser.execute_script(ground) != light)
        self.check_console()


def take_launch_pictures(folder):
    test = InBrowser()
    test.setUp()
    try:
        runs = test.folder / "runs"
        runs.mkdir()
        (runs / "log.jsonl").write_text("".join(
            json.dumps({"step": step, "loss": 2.2 * 0.985 ** step + 0.3 + 0.05 * math.sin(step), "lr": 1e-3 * min(1, step / 40)}) + "\n"
            for step in range(200)))
        test.start(64, 'echo "rank $RANK reads its data"; echo "loss 1.93"', "--tracking_dir", runs)
        browser = test.open(test.url, 1200, 1500)
        test.wait(lambda _: len(test.texts("#ranks button.timed")) == 64 and len(test.texts("#curves figure")) == 2)
        browser.save_screenshot(str(folder / "dashboard.png"))
        browser.find_element(By.TAG_NAME, "body").send_keys("t")
        browser.save_screenshot(str(folder / "dashboard-dark.png"))
    finally:
        test.doCleanups()


def take_agent_picture(folder):
    test = AgentInBrowser()
    test.setUp()
    try:
        test.start("train", 8, WORKER, "beats", 0)
        test.start("evaluate", 2, "/bin/sh", "-c", f"echo 'waits for its checkpoint'; {WAITS}")
        browser = test.open(test.operator_url, 1200, 900)
        test.wait(lambda _: len(test.texts("#ranks button.timed")) == 8)
        test.click("stop")
        browser.save_screenshot(str(folder / "dashboard-agent.png"))
    finally:
        test.doCleanups()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--pictures"]:
        take_launch_pictures(pathlib.Path(sys.argv[2]))
        take_agent_picture(pathlib.Path(sys.argv[2]))
        sys.exit(0)
    unittest.main(verbosity=2)
