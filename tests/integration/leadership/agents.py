#!/usr/bin/env python3
"""The agent that hosts the coordinator is killed: it goes on from its journal, or another one that etcd elects.

Real agents with certificates, one of which hosts the coordinator and runs no worker (it is drained). Run by ctest.
"""
import importlib.util
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
from programs import ETCD, PATIENCE, Program, free_address, start_etcd  # noqa: E402

spec = importlib.util.spec_from_file_location("cluster", HERE.parent / "cluster/run.py")
cluster = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cluster)


class AgentsTest(cluster.ClusterTest):
    NAME = "led"

    def setUp(self):
        super().setUp()
        self.pids = self.folder / "pids"
        self.pids.mkdir()
        self.pids.chmod(0o777)

    def drain(self, node):
        done = self.accel(node, "drain", user=None)
        self.assertEqual(done.returncode, 0, done.stderr)

    def script(self, end="exit 0"):
        return (f"echo $$ > {self.pids}/$RANK.$TORCHELASTIC_RESTART_COUNT; "
                f"while [ ! -e {self.stop_file} ]; do sleep 0.05; done; {end}")

    def submit(self, node, nodes, *options, end="exit 0"):
        done = self.accel(node, "run", "--detach", "--nnodes", nodes, "--name", self.NAME, *options, "--", "/bin/sh", "-c", self.script(end))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.await_workers(nodes)

    def await_workers(self, nodes):
        self.wait_until(lambda: self.workers() == [f"{rank}.0" for rank in range(nodes)], "workers run")
        self.running = {name: int((self.pids / name).read_text() or 0) for name in self.workers()}

    def workers(self):
        return sorted(path.name for path in self.pids.iterdir() if path.read_text().strip())

    def wait_until(self, condition, what):
        for _ in range(PATIENCE * 20):
            if condition():
                return
            threading.Event().wait(0.05)
        self.fail(f"never: {what}\n" + "\n".join(f"--- {name}\n{agent.text()}" for name, agent in self.agents.items()))

    def assert_undisturbed(self):
        self.assertEqual(self.workers(), sorted(self.running))
        for pid in self.running.values():
            self.assertTrue(pathlib.Path(f"/proc/{pid}").exists())

    def finish(self, node):
        self.assert_undisturbed()
        self.stop_file.touch()
        self.wait_until(lambda: self.job(node, self.NAME)["state"] == "JOB_STATE_SUCCEEDED", "the job succeeds")
        self.assertEqual(self.workers(), sorted(self.running))

    def kill(self, name):
        agent = self.agents[name]
        agent.process.kill()
        agent.process.wait(PATIENCE)

    def start_again(self, name):
        """The agent of this name on what the one before left."""
        old = self.agents[name]
        agent = cluster.one_agent.Agent(self.folder / name, config=(self.folder / name / "agent.yaml").read_text())
        self.agents[name] = agent
        old.reader.join()
        old.process.stderr.close()
        old.log.close()
        return agent


class Journal(AgentsTest):
    def test_fault_35_the_hosting_agent_is_killed_and_goes_on_from_its_journal(self):
        host = self.start("host")
        self.drain("host")
        self.start("a")
        self.start("b")
        self.submit("a", 2)
        for _ in range(2):
            self.kill("host")
            host = self.start_again("host")
            self.wait_for_line(host, "with 1 jobs of before")
            self.wait_for_line(host, "node a: connected")
            self.wait_for_line(host, "node b: connected")
            self.assert_undisturbed()
        self.finish("b")


@unittest.skipIf(ETCD is None, "etcd is not installed (Debian's etcd-server)")
class Etcd(AgentsTest):
    def setUp(self):
        super().setUp()
        self.etcd_address = free_address()
        self.etcd = start_etcd(self.folder / "etcd", self.etcd_address)
        self.addCleanup(self.etcd.close)

    def test_fault_36_the_leading_agent_is_killed_and_another_one_goes_on_with_the_job(self):
        etcd = f"etcd: {{endpoints: ['{self.etcd_address}']}}\n"
        leader = self.start("leader", more=etcd)
        self.wait_for_line(leader, "leads with 0 jobs")
        self.drain("leader")
        # These two are asked by way of themselves; the third has no etcd and asks the second.
        self.coordinator = ""
        second = self.start("second", more=etcd)
        listen = next(line for line in (self.folder / "second/agent.yaml").read_text().splitlines() if line.startswith("listen: "))
        self.drain("second")
        self.coordinator = listen.removeprefix("listen: ")
        self.start("a")
        self.start("b")
        self.submit("a", 2)
        self.assertEqual(self.job("b", "led")["state"], "JOB_STATE_RUNNING")
        self.kill("leader")
        self.wait_for_line(second, "leads with 1 jobs of before")
        for node in "ab":
            self.wait_for_line(second, f"node {node}: connected")
        self.assertEqual(self.job("b", "led")["state"], "JOB_STATE_RUNNING")
        self.finish("b")

    def test_fault_36_a_submit_that_meets_the_end_of_a_leadership_waits_and_makes_one_job(self):
        leader = self.start("leader", more=f"etcd: {{endpoints: ['{self.etcd_address}']}}\n")
        self.wait_for_line(leader, "leads with 0 jobs")
        self.drain("leader")
        self.start("a")
        self.start("b")
        # While etcd stands still the job cannot be written down, until the leader leads no more.
        self.etcd.process.send_signal(signal.SIGSTOP)
        self.addCleanup(self.etcd.process.send_signal, signal.SIGCONT)
        submit = self.follow("a", "run", "--detach", "--nnodes", 2, "--wait", PATIENCE, "--", "/bin/sh", "-c", self.script())
        submit.wait_for("waits up to")
        # No name: were there two, both would be taken.
        looks = self.follow("b", "status", "another", "--wait", PATIENCE)
        looks.wait_for("waits up to")
        self.etcd.process.send_signal(signal.SIGCONT)
        self.assertEqual(submit.wait(), 0, submit.text() + leader.text())
        self.assertEqual(looks.wait(), 66, looks.text())
        self.await_workers(2)
        self.stop_file.touch()
        done = self.accel("b", "status", "--json")
        jobs = [job["job_id"] for job in json.loads(done.stdout)["jobs"]]
        self.assertEqual(jobs, [submit.lines[-1]], done.stdout)
        self.wait_until(lambda: self.job("b", jobs[0])["state"] == "JOB_STATE_SUCCEEDED", "the job succeeds")

    def test_without_waiting_a_cluster_without_a_leader_is_said_at_once(self):
        leader = self.start("leader", more=f"etcd: {{endpoints: ['{self.etcd_address}']}}\n")
        self.wait_for_line(leader, "leads with 0 jobs")
        self.start("a")
        self.etcd.close()
        self.wait_for_line(leader, "leads no more")
        done = self.accel("a", "run", "--nnodes", "1:2", "--wait", 0, "--", "/bin/true")
        self.assertEqual(done.returncode, 111, done.stderr)
        self.assertIn("[rendezvous.coordinator_lost]", done.stderr)
        self.assertNotIn("waits", done.stderr)

    def test_an_etcd_that_is_away_at_the_start_is_named(self):
        self.etcd.close()
        agent = self.start("alone", more=f"etcd: {{endpoints: ['{self.etcd_address}']}}\n", wait=False)
        self.assertEqual(agent.process.wait(PATIENCE), 69, agent.text())
        self.assertIn("[etcd.unreachable]", agent.text())
        self.assertIn(self.etcd_address, agent.text())


OPENSSL = shutil.which("openssl")


def certify(folder, *names):
    """An authority, and a certificate for 127.0.0.1 of each name, by the openssl program: etcd's own papers, as an operator makes them."""
    def openssl(*arguments):
        subprocess.run([OPENSSL, *map(str, arguments)], cwd=folder, check=True, capture_output=True)
    folder.mkdir()
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", 2, "-subj", "/CN=etcd-ca", "-keyout", "ca.key", "-out", "ca.pem")
    (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    for name in names:
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", 2, "-extfile", "extensions", "-out", f"{name}.pem")
        (folder / f"{name}.key").chmod(0o600)


@unittest.skipIf(ETCD is None or OPENSSL is None, "etcd or openssl is not installed (Debian's etcd-server, openssl)")
class EtcdCluster(AgentsTest):
    """Three members that ask for certificates: what clusters have that shall outlive any one machine."""

    MEMBERS = ("m0", "m1", "m2")

    def setUp(self):
        super().setUp()
        self.papers = self.folder / "etcd-tls"
        certify(self.papers, *self.MEMBERS, "agent")
        self.clients = {name: free_address() for name in self.MEMBERS}
        self.peers = {name: free_address() for name in self.MEMBERS}
        self.members = {name: self.start_member(name) for name in self.MEMBERS}
        self.addCleanup(lambda: [member.close() for member in self.members.values()])
        for member in self.members.values():
            member.wait_for("ready to serve client requests")

    def start_member(self, name):
        urls = {"client": f"https://{self.clients[name]}", "peer": f"https://{self.peers[name]}"}
        files = [part for prefix in ("", "peer-") for part in (f"--{prefix}cert-file", self.papers / f"{name}.pem", f"--{prefix}key-file", self.papers / f"{name}.key",
                                                               f"--{prefix}trusted-ca-file", self.papers / "ca.pem", f"--{prefix}client-cert-auth")]
        return Program(name, [ETCD, "--name", name, "--data-dir", self.folder / f"etcd-{name}",
                              "--listen-client-urls", urls["client"], "--advertise-client-urls", urls["client"],
                              "--listen-peer-urls", urls["peer"], "--initial-advertise-peer-urls", urls["peer"],
                              "--initial-cluster", ",".join(f"{member}=https://{address}" for member, address in self.peers.items()), *files])

    def etcd(self, certificate="agent"):
        own = f", certificate: {self.papers}/{certificate}.pem, key: {self.papers}/{certificate}.key" if certificate else ""
        endpoints = ", ".join(f"'{address}'" for address in self.clients.values())
        return f"etcd: {{endpoints: [{endpoints}], authority: {self.papers}/ca.pem{own}}}\n"

    def test_fault_36_members_of_etcd_die_and_come_back_and_the_job_goes_on_under_a_leader(self):
        leader = self.start("leader", more=self.etcd())
        self.wait_for_line(leader, "leads with 0 jobs")
        self.drain("leader")
        self.start("a")
        self.start("b")
        self.submit("a", 2)
        # One at a time: whichever of them leads etcd or is asked first, two of three are always there.
        for name in self.MEMBERS:
            self.members[name].close()
            # A write that must be kept goes through the members that are left.
            done = self.accel("a", "run", "--nnodes", 2, "--name", f"while-{name}-is-away", "--", "/bin/true")
            self.assertEqual(done.returncode, 0, done.stderr + leader.text())
            self.members[name] = self.start_member(name)
            self.members[name].wait_for("ready to serve client requests")
        self.finish("b")

    def test_without_a_certificate_etcd_serves_nobody_and_that_is_said(self):
        agent = self.start("alone", more=self.etcd(certificate=None), wait=False)
        self.assertEqual(agent.process.wait(PATIENCE), 69, agent.text())
        self.assertIn("[etcd.unreachable]", agent.text())


if __name__ == "__main__":
    unittest.main(verbosity=1)
