#!/usr/bin/env python3
"""accel-launch over several nodes: they meet, one dies, the others go on, a late one waits; and nobody takes part uninvited.

Every node is a launcher of its own on this machine, each with a node id. Run by ctest.
"""
import json
import os
import pathlib
import shutil
import signal
import socket
import sys
import tempfile
import threading
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from programs import BUILD, PATIENCE, Terminal, free_port, issue_certificate, launch, revoke_certificate, write_token  # noqa: E402


class Elastic(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="accel-elastic-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.token = write_token(self.folder)
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.nodes = []
        self.addCleanup(lambda: [node.close() for node in reversed(self.nodes)])

    def worker(self, text):
        path = self.folder / "worker.sh"
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return path

    def node(self, name, script, *more, nnodes="2:3", secure=("--rdzv_insecure",), token=None, arguments=()):
        node = launch(name, ["--nnodes", nnodes, "--rdzv_endpoint", self.endpoint, "--node_id", name, "--rdzv_token_file", token or self.token,
                             *secure, *more, "--stop_grace", 5, script, *arguments])
        self.nodes.append(node)
        return node

    def torchrun(self, name, script, job="night", number="2:3", **options):
        """A line of torchrun's, which shows nothing."""
        self.nodes.append(launch(name, ["--nnodes", number, "--rdzv_backend", "c10d", "--rdzv_endpoint", self.endpoint,
                                        "--rdzv_id", job, "--node_id", name, "--stop_grace", 5, script], **options))
        return self.nodes[-1]

    def wait_for_host(self, node):
        """Until `node` hosts the coordinator: the others find it there."""
        address, port = self.endpoint.split(":")
        for _ in range(PATIENCE * 20):
            with socket.socket() as probe:
                if probe.connect_ex((address, int(port))) == 0:
                    return
            threading.Event().wait(0.05)
        raise AssertionError("nobody listens:\n" + "\n".join(node.lines))

    HELLO = 'echo "rank $RANK of $WORLD_SIZE node $GROUP_RANK restart $TORCHELASTIC_RESTART_COUNT store $MASTER_PORT"\n'

    def test_nodes_meet_and_the_job_ends_when_all_ranks_have(self):
        script = self.worker(self.HELLO)
        a = self.node("a", script, "--num_processes", 4, nnodes="2")
        b = self.node("b", script, "--num_processes", 4, nnodes="2")
        self.assertEqual((a.wait(), b.wait()), (0, 0), a.lines + b.lines)
        a.close(), b.close()
        said = [line for line in a.lines + b.lines if line.startswith("rank ")]
        self.assertEqual(sorted(line.split(" store ")[0] for line in said),
                         [f"rank {r} of 4 node {r // 2} restart 0" for r in range(4)])
        self.assertEqual(len({line.split(" store ")[1] for line in said}), 1, said)

    def test_a_failing_rank_restarts_all_nodes_within_the_budget(self):
        script = self.worker(self.HELLO + '[ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 9\n'
                             '[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0\nexec sleep 1000\n')
        a = self.node("a", script, "--max_restarts", 1, nnodes="2")
        b = self.node("b", script, "--max_restarts", 1, nnodes="2")
        self.assertEqual((a.wait(), b.wait()), (0, 0), a.lines + b.lines)

    def test_a_failure_beyond_the_budget_ends_the_job_everywhere_and_names_the_cause(self):
        script = self.worker('[ $RANK = 1 ] && echo no luck >&2 && exit 9\nexec sleep 1000\n')
        a = self.node("a", script, nnodes="2")
        b = self.node("b", script, nnodes="2")
        self.assertNotEqual(a.wait(), 0)
        self.assertNotEqual(b.wait(), 0)
        self.assertIn(9, (a.process.returncode, b.process.returncode))

    def test_a_hang_names_the_rank_that_stopped_first_over_all_nodes_and_the_time_is_accounted_for(self):
        # Rank 1 makes a step less than rank 0; each node sees only its own.
        worker = BUILD / "tests/fault_worker"
        hang = ("--no_python", "--hang_timeout", "3s")
        a = self.node("a", worker, *hang, nnodes="2", arguments=("beats", 60, "token"))
        b = self.node("b", worker, *hang, nnodes="2", arguments=("beats", 60, "token"))
        self.assertIn(124, (a.wait(), b.wait()), a.lines + b.lines)
        lines = [line for node in (a, b) for line in node.lines if "the job failed: rank " in line]
        self.assertTrue(lines, a.lines + b.lines)
        for line in lines:
            self.assertIn("the job failed: rank 1 on ", line)
            self.assertIn("step 59", line)
        hosting = a if any("time of the job" in line for line in a.lines) else b
        hosting.wait_for("time of the job: ")

    def test_a_node_dies_and_the_others_go_on_and_a_late_one_waits(self):
        script = self.worker(self.HELLO + '[ -e "$0.stop" ] && exit 0\nwhile [ ! -e "$0.stop" ]; do sleep 0.05; done\n')
        a = self.node("a", script, "--max_restarts", 3, nnodes="1:2")
        self.wait_for_host(a)
        b = self.node("b", script, "--max_restarts", 3, nnodes="1:2")
        a.wait_for(" of 2 ")
        b.wait_for(" of 2 ")
        late = self.node("late", script, nnodes="1:2")
        late.wait_for("takes part from the next restart")
        b.process.kill()
        a.wait_for("restart 1")
        # The late node was there when the lost one had to be replaced: it has its place now.
        late.wait_for("of 2 ")
        (self.folder / "worker.sh.stop").touch()
        self.assertEqual((a.wait(), late.wait()), (0, 0), a.lines + late.lines)

    def test_a_node_that_is_told_to_end_leaves_and_the_others_go_on(self):
        script = self.worker(self.HELLO + 'while [ ! -e "$0.stop" ]; do sleep 0.05; done\n')
        a = self.node("a", script, "--max_restarts", 3, nnodes="1:2")
        self.wait_for_host(a)
        b = self.node("b", script, "--max_restarts", 3, nnodes="1:2")
        a.wait_for(" of 2 ")
        b.wait_for(" of 2 ")
        b.process.send_signal(signal.SIGTERM)
        self.assertEqual(b.wait(), 143, b.lines)
        a.wait_for(" of 1 ")
        (self.folder / "worker.sh.stop").touch()
        self.assertEqual(a.wait(), 0, a.lines)

    def test_a_node_whose_check_fails_is_left_out_and_one_that_waits_takes_its_place(self):
        script = self.worker(self.HELLO)
        begun, go = self.folder / "begun", self.folder / "go"
        check = (f"disk=test $ACCEL_NODE_ID != b && exit 0; touch {begun}; while [ ! -e {go} ]; do sleep 0.05; done; "
                 "echo no room; exit 3")
        a = self.node("a", script, "--preflight", check, nnodes="2")
        self.wait_for_host(a)
        b = self.node("b", script, "--preflight", check, nnodes="2")
        for _ in range(PATIENCE * 20):
            if begun.exists():
                break
            threading.Event().wait(0.05)
        c = self.node("c", script, "--preflight", check, nnodes="2")
        c.wait_for("takes part from the next restart")
        go.touch()
        b.wait_for("does not take part: preflight check 'disk' ended with exit code 3; its last lines: no room")
        self.assertEqual((a.wait(), c.wait()), (0, 0), a.lines + b.lines + c.lines)
        self.assertFalse([line for line in b.lines if line.startswith("rank ")])

    def test_a_job_that_its_checks_leave_too_few_nodes_fails_everywhere(self):
        script = self.worker(self.HELLO)
        nodes = [self.node(name, script, "--preflight", "disk=test $ACCEL_NODE_ID != b", nnodes="2") for name in "ab"]
        for node in nodes:
            self.assertEqual(node.wait(), 1, node.lines)
            self.assertTrue([line for line in node.lines if "preflight check 'disk' ended with exit code 1" in line], node.lines)

    def test_the_hosting_node_dies_and_the_others_end_with_a_word(self):
        script = self.worker(self.HELLO + "exec sleep 1000\n")
        a = self.node("a", script, nnodes="1:2")
        a.wait_for(" of 1 ")  # it is there, so it hosts
        a.process.kill()
        a.close()
        b = self.node("b", script, nnodes="1:2")
        b.wait_for(" of 1 ")  # the address is free again, and the job begins anew
        c = self.node("c", script, nnodes="1:2")
        c.wait_for("this node takes part from")
        b.process.kill()
        self.assertEqual(c.wait(), 111, c.lines)
        c.wait_for("[rendezvous.coordinator_lost]")

    def test_the_host_of_a_line_of_torchrun_dies_and_all_others_end_with_a_word(self):
        script = self.worker(self.HELLO + "exec sleep 1000\n")
        host = self.torchrun("host", script, number="3:4")
        self.wait_for_host(host)
        others = [self.torchrun(name, script, number="3:4") for name in ("b", "c")]
        for node in (host, *others):
            node.wait_for(" of 3 ")
        host.process.kill()
        for node in others:
            self.assertEqual(node.wait(), 111, node.lines)
            node.wait_for("[rendezvous.coordinator_lost]")

    # ---- at a terminal, and for who starts launchers ----

    def test_ctrl_c_at_a_terminal_ends_its_launcher_by_the_signal(self):
        terminal = Terminal()
        self.addCleanup(terminal.close)
        script = self.worker(self.HELLO + "exec sleep 1000\n")
        node = self.torchrun("a", script, number="1:2", **terminal.options)
        node.wait_for(" of 1 ")
        terminal.press_ctrl_c()
        self.assertEqual(node.wait(), -signal.SIGINT, node.lines)

    def test_an_error_file_of_the_launcher_has_the_failure_of_its_own_node(self):
        script = self.worker(self.HELLO + "exit 3\n")
        file = self.folder / "error.json"
        node = self.torchrun("a", script, number="1:2", env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(file)})
        self.assertEqual(node.wait(), 3, node.lines)
        self.assertEqual(json.loads(file.read_text())["message"]["errorCode"], 3)

    # ---- security ----

    def test_fault_61_a_wrong_token_takes_no_part(self):
        script = self.worker(self.HELLO + 'while [ ! -e "$0.stop" ]; do sleep 0.05; done\n')
        a = self.node("a", script, nnodes="1:2")
        a.wait_for(" of 1 ")
        wrong = self.folder / "wrong"
        wrong.touch(0o600)
        wrong.write_text("another token that is long enough\n")
        stranger = self.node("stranger", script, nnodes="1:2", token=wrong)
        self.assertEqual(stranger.wait(), 77, stranger.lines)
        stranger.wait_for("[auth.failed]: the coordinator did not prove the token of the job: it has another one")
        self.assertFalse([line for line in stranger.lines if line.startswith("rank")])
        a.wait_for("node 'stranger' went, and did not prove the token of the job")
        (self.folder / "worker.sh.stop").touch()
        self.assertEqual(a.wait(), 0, a.lines)
        self.assertNotIn("0123456789abcdef", "\n".join(a.lines + stranger.lines))

    def test_fault_66_a_token_that_others_may_read_is_refused(self):
        self.token.chmod(0o644)
        node = self.node("a", self.worker("true\n"))
        self.assertEqual(node.wait(), 77)
        node.wait_for("chmod 600")

    def test_a_line_of_torchrun_needs_no_keys(self):
        script = self.worker(self.HELLO)
        a = self.torchrun("a", script)
        self.wait_for_host(a)
        other = self.torchrun("other", script, job="day")
        self.assertEqual(other.wait(), 77, other.lines)
        other.wait_for("[auth.failed]: the coordinator did not prove the token of the job: it has another one")
        other.wait_for("give every node the same --rdzv_id")
        self.assertFalse([line for line in other.lines if line.startswith("rank")], other.lines)
        b = self.torchrun("b", script)
        a.wait_for(" of 2 "), b.wait_for(" of 2 ")
        self.assertEqual((a.wait(), b.wait()), (0, 0), a.lines + b.lines)
        self.assertFalse([line for line in a.lines if "no authentication" in line], a.lines)  # nobody else reaches loopback

    def test_insecure_is_refused_beyond_loopback(self):
        self.endpoint = "10.255.255.1:29400"
        node = self.node("a", self.worker("true\n"))
        self.assertEqual(node.wait(), 2)
        node.wait_for("loopback")

    def certificate(self, role, name, folder="ca", cluster="default"):
        return issue_certificate(self.folder / folder, role, name, cluster)

    def test_nodes_with_certificates_meet_over_tls(self):
        script = self.worker(self.HELLO)
        a = self.node("a", script, nnodes="2", secure=("--rdzv_tls_dir", self.certificate("node", "a", cluster="lab")))
        b = self.node("b", script, nnodes="2", secure=("--rdzv_tls_dir", self.certificate("node", "b", cluster="lab")))
        a.wait_for(" of 2 ")
        b.wait_for(" of 2 ")
        self.assertEqual((a.wait(), b.wait()), (0, 0), a.lines + b.lines)

    def test_certificates_of_launchers_do_and_one_of_a_node_does_beside_them(self):
        script = self.worker(self.HELLO)
        nodes = [self.node(name, script, nnodes="3", secure=("--rdzv_tls_dir", self.certificate(role, name)))
                 for name, role in (("a", "launcher"), ("b", "launcher"), ("c", "node"))]
        for node in nodes:
            node.wait_for(" of 3 ")
            self.assertEqual(node.wait(), 0, node.lines)

    def test_fault_60_other_roles_names_authorities_and_plain_text_take_no_part(self):
        script = self.worker(self.HELLO + 'while [ ! -e "$0.stop" ]; do sleep 0.05; done\n')
        a = self.node("a", script, nnodes="1:2", secure=("--rdzv_tls_dir", self.certificate("node", "a")))
        a.wait_for(" of 1 ")
        short = ("--rdzv_join_timeout", 3)
        strangers = [self.node("viewer", script, *short, nnodes="1:2", secure=("--rdzv_tls_dir", self.certificate("viewer", "viewer"))),
                     self.node("c", script, *short, nnodes="1:2", secure=("--rdzv_tls_dir", self.certificate("node", "somebody-else"))),
                     self.node("d", script, *short, nnodes="1:2", secure=("--rdzv_tls_dir", self.certificate("node", "d", "other-ca"))),
                     self.node("e", script, *short, nnodes="1:2"),
                     self.node("f", script, *short, nnodes="1:2", secure=("--rdzv_tls_dir", self.certificate("node", "f", cluster="lab"))),
                     self.node("g", script, *short, nnodes="1:2", secure=("--rdzv_tls_dir", self.certificate("launcher", "not-g")))]
        for stranger in strangers:
            self.assertIn(stranger.wait(), (77, 110), stranger.lines)
            self.assertFalse([line for line in stranger.lines if line.startswith("rank")], stranger.lines)
        a.wait_for("viewer has not the role launcher or node")
        a.wait_for("the certificate is not of node 'c'")
        a.wait_for("the certificate is not of node 'g'")
        (self.folder / "worker.sh.stop").touch()
        self.assertEqual(a.wait(), 0, a.lines)

    def test_fault_60_a_node_whose_certificate_is_revoked_loses_its_session(self):
        script = self.worker(self.HELLO + 'while [ ! -e "$0.stop" ]; do sleep 0.05; done\n')
        papers = {name: self.certificate("node", name) for name in "ab"}
        a = self.node("a", script, "--max_restarts", 1, nnodes="1:2", secure=("--rdzv_tls_dir", papers["a"]))
        self.wait_for_host(a)
        b = self.node("b", script, "--max_restarts", 1, nnodes="1:2", secure=("--rdzv_tls_dir", papers["b"]))
        a.wait_for(" of 2 ")
        revoked = "the certificate of accel://default/node/b was revoked"
        revoke_certificate(self.folder / "ca", "node", "b", papers["a"] + "/crl.pem")
        a.wait_for("ended a session: " + revoked)
        a.wait_for("refused ipv4:")  # it asks again on the connection that it has
        a.wait_for(" of 1 ")
        b.process.kill()
        again = self.node("b", script, "--rdzv_join_timeout", 3, nnodes="1:2", secure=("--rdzv_tls_dir", papers["b"]))
        a.wait_for("refused a connection: " + revoked)
        self.assertEqual(again.wait(), 110, again.lines)
        (self.folder / "worker.sh.stop").touch()
        self.assertEqual(a.wait(), 0, a.lines)

    def test_fault_60_a_host_whose_certificate_is_revoked_is_left(self):
        script = self.worker(self.HELLO + "exec sleep 1000\n")
        papers = {name: self.certificate("node", name) for name in "ab"}
        a = self.node("a", script, nnodes="2", secure=("--rdzv_tls_dir", papers["a"]))
        self.wait_for_host(a)
        b = self.node("b", script, nnodes="2", secure=("--rdzv_tls_dir", papers["b"]))
        b.wait_for(" of 2 ")
        revoke_certificate(self.folder / "ca", "node", "a", papers["b"] + "/crl.pem")
        b.wait_for("its certificate was revoked")
        b.wait_for("is gone: ")


if __name__ == "__main__":
    unittest.main(verbosity=1)
