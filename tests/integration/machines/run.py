#!/usr/bin/env python3
"""accel-launch on several machines without a daemon: they meet on one port, and every end is everybody's.

Each "machine" is a launcher of its own on this one. Run by ctest.
"""
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from programs import BIN, BUILD, PATIENCE, Program, Terminal, cannot_mount, free_port, is_alive, write_token  # noqa: E402

HELLO = ('echo "rank $RANK of $WORLD_SIZE local $LOCAL_RANK of $LOCAL_WORLD_SIZE group $GROUP_RANK of $GROUP_WORLD_SIZE '
         'at $MASTER_ADDR:$MASTER_PORT run $TORCHELASTIC_RUN_ID agent $TORCHELASTIC_USE_AGENT_STORE"\n')
LOW_PORTS = pathlib.Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
WAIT = 'echo "up $$"\nexec sleep 60\n'
# Rank 1 fails when rank 0 has said its line.
FAILS_ONCE = ('echo "rank $RANK restart $TORCHELASTIC_RESTART_COUNT"\ntouch "$0.$RANK"\n[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && exit 0\n'
              'until [ -e "$0.0" ]; do sleep 0.02; done\n[ "$RANK" = 1 ] && exit 3\nexec sleep 60\n')


needs_agent = unittest.skipUnless((BIN / "libaccel_cluster.so").exists(), "a build without the agent knows no tokens")


def blob(value):
    return struct.pack("<Q", len(value)) + value


def state_of(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


class Static(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="accel-static-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.port = free_port()
        self.machines = []
        self.addCleanup(lambda: [machine.close() for machine in reversed(self.machines)])

    def worker(self, text):
        path = self.folder / "worker.sh"
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return path

    def start(self, name, *arguments, program="accel-launch", options=None, **variables):
        machine = Program(name, [BIN / program, *arguments], env={**os.environ, **variables}, **(options or {}))
        self.machines.append(machine)
        return machine

    def machine(self, rank, script, *more, machines=2, processes=2, **variables):
        return self.start(f"machine {rank}", "--cpu", "--num_machines", machines, "--machine_rank", rank, "--main_process_ip",
                          "127.0.0.1", "--main_process_port", self.port, "--num_processes", processes, "--stop_grace", 5,
                          *more, "--no_python", script, **variables)

    def node(self, *arguments):
        return self.start("node", *arguments, program="accel-torchrun")

    def test_ctrl_c_at_a_terminal_ends_its_launcher_by_the_signal(self):
        terminal = Terminal()
        self.addCleanup(terminal.close)
        script = self.worker(WAIT)
        here = self.machine(0, script, options=terminal.options)
        there = self.machine(1, script)
        here.wait_for("up "), there.wait_for("up ")
        terminal.press_ctrl_c()
        self.assertEqual((here.wait(), there.wait()), (-signal.SIGINT, 130), here.text() + there.text())

    def test_an_error_file_of_the_launcher_has_the_failure_of_its_own_machine(self):
        script = self.worker('[ "$RANK" = 1 ] && exit 3\nexec sleep 60\n')
        files = [self.folder / f"error-{rank}.json" for rank in range(2)]
        machines = [self.machine(rank, script, TORCHELASTIC_ERROR_FILE=str(file)) for rank, file in enumerate(files)]
        for machine in machines:
            self.assertEqual(machine.wait(), 3, machine.text())
        self.assertFalse(files[0].exists())
        self.assertEqual(json.loads(files[1].read_text())["message"]["errorCode"], 3)

    def close_all(self):
        for machine in self.machines:
            machine.close()

    def wait_until(self, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), end, self.text())
            time.sleep(0.01)

    def store(self):
        """A connection to the store of machine 0, once it listens."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                store = socket.create_connection(("127.0.0.1", self.port), timeout=30)
            except ConnectionRefusedError:
                self.assertLess(time.monotonic(), end, self.text())
                time.sleep(0.02)
                continue
            store.sendall(struct.pack("<BI", 0, 0x3C85F7CE))  # VALIDATE
            return store

    def board(self, key):
        """The value of a key in the store of machine 0, once it is there."""
        name = blob(key.encode())
        with self.store() as store, store.makefile("rb") as answers:
            store.sendall(struct.pack("<BQ", 6, 1) + name + b"\3" + name)  # WAIT, GET
            self.assertEqual(answers.read(1), b"\0")
            return answers.read(*struct.unpack("<Q", answers.read(8))).decode("latin-1")

    def forge(self, **values):
        """Writes keys below accel/ as anybody may who reaches the store."""
        with self.store() as store, store.makefile("rb") as answers:
            for key, value in values.items():
                store.sendall(b"\1" + blob(b"accel/" + key.replace("__", "/").encode()) + blob(value.encode("latin-1")))  # SET
            store.sendall(struct.pack("<BI", 13, 7))  # PING: the store has read what was before it
            self.assertEqual(answers.read(4), struct.pack("<I", 7))

    def shim_of(self, machine):
        return int(subprocess.check_output(["ps", "-o", "pid=", "--ppid", str(machine.process.pid)], text=True).split()[0])

    def said(self):
        return sorted(line for machine in self.machines for line in machine.lines if line.startswith("rank "))

    def text(self):
        return "\n".join(machine.text() for machine in self.machines)

    def assert_statuses(self, *wanted):
        self.assertEqual([machine.wait() for machine in self.machines], list(wanted), self.text())
        self.close_all()

    def test_three_machines_share_the_ranks(self):
        script = self.worker(HELLO)
        for rank in (2, 0, 1):
            self.machine(rank, script, machines=3, processes=6)
        self.assert_statuses(0, 0, 0)
        self.assertEqual(self.said(), [
            f"rank {rank} of 6 local {rank % 2} of 2 group {rank // 2} of 3 at 127.0.0.1:{self.port} run none agent True"
            for rank in range(6)])

    def test_a_configuration_file_says_the_same(self):
        script = self.worker(HELLO)
        for rank in (0, 1):
            config = self.folder / f"machine_{rank}.yaml"
            config.write_text(f"compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nuse_cpu: true\nnum_machines: 2\n"
                              f"machine_rank: {rank}\nmain_process_ip: localhost\nmain_process_port: {self.port}\n"
                              f"num_processes: 2\nrdzv_backend: static\nsame_network: true\n")
            self.start(f"machine {rank}", "--config_file", config, "--no_python", script)
        self.assert_statuses(0, 0)
        self.assertEqual([line.split(" local")[0] for line in self.said()], ["rank 0 of 2", "rank 1 of 2"])

    def test_torchrun_counts_on_each_node(self):
        script = self.worker(HELLO)
        for rank, number in ((0, 1), (1, 2)):
            self.node("--nnodes", 2, "--node-rank", rank, "--master-addr", "127.0.0.1", "--master-port", self.port,
                      "--nproc-per-node", number, "--rdzv-id", "night", "--no-python", script)
        self.assert_statuses(0, 0)
        self.assertEqual([line.split(" at")[0] for line in self.said()],
                         ["rank 0 of 3 local 0 of 1 group 0 of 2", "rank 1 of 3 local 0 of 2 group 1 of 2",
                          "rank 2 of 3 local 1 of 2 group 1 of 2"])
        self.assertIn("run night", self.said()[0])

    def test_c10d_gives_ranks_in_the_order_of_joins(self):
        script = self.worker(HELLO)
        for _ in range(3):
            self.node("--nnodes", 3, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--no-python", script)
        self.assert_statuses(0, 0, 0)
        self.assertEqual([line.split(" at")[0] for line in self.said()],
                         [f"rank {rank} of 3 local 0 of 1 group {rank} of 3" for rank in range(3)])

    def test_a_c10d_machine_that_was_stopped_comes_again(self):
        line = ("--nnodes", 3, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--no-python",
                self.worker(HELLO))
        self.node(*line)
        self.board("accel/host")
        once = self.node(*line)
        self.board("accel/claim/1")
        once.process.send_signal(signal.SIGINT)
        self.assertEqual(once.wait(), 130, once.text())
        for _ in range(2):
            self.node(*line)
        self.assert_statuses(0, 130, 0, 0)
        self.assertEqual([line.split(" local")[0] for line in self.said()], [f"rank {rank} of 3" for rank in range(3)])

    def test_machines_of_two_jobs_do_not_mix(self):
        for rank, run_id in ((0, "night"), (1, "day")):
            self.node("--nnodes", 2, "--node-rank", rank, "--master-addr", "127.0.0.1", "--master-port", self.port,
                      "--rdzv-id", run_id, "--no-python", self.worker(HELLO))
        a, b = self.machines
        b.wait()
        a.wait_for("has --rdzv-id 'day', but machine 0")
        a.process.send_signal(signal.SIGINT), a.process.send_signal(signal.SIGTERM)
        self.assert_statuses(2, 2)
        self.assertIn("has --rdzv-id 'day', but machine 0", b.text())
        self.assertEqual(self.said(), [])

    def test_a_failure_ends_the_job_on_all_and_is_named_on_all(self):
        script = self.worker('if [ "$RANK" = 1 ]; then until [ -e "$0.up" ]; do sleep 0.02; done; exit 7; fi\n'
                             'echo "up $$"\ntouch "$0.up"\nexec sleep 60\n')
        a, b = self.machine(0, script), self.machine(1, script)
        self.assert_statuses(7, 7)
        for machine in (a, b):
            self.assertIn("127.0.0.1): rank 1 ended with exit code 7", machine.text())
        self.assertIn("rank 1 of 2 ended with exit code 7", b.text())
        self.assert_gone(a)

    def assert_gone(self, machine):
        pids = [int(line.split()[1]) for line in machine.lines if line.startswith("up ")]
        self.assertTrue(pids, machine.text())
        self.assertFalse([pid for pid in pids if is_alive(pid)], machine.text())

    def test_all_begin_again_together(self):
        script = self.worker(FAILS_ONCE)
        for rank in (0, 1):
            self.machine(rank, script, "--max_restarts", 1)
        self.assert_statuses(0, 0)
        self.assertEqual(self.said(), ["rank 0 restart 0", "rank 0 restart 1", "rank 1 restart 0", "rank 1 restart 1"])

    def test_a_signal_on_one_ends_all(self):
        script = self.worker(WAIT)
        a, b = self.machine(0, script), self.machine(1, script)
        a.wait_for("up "), b.wait_for("up ")
        b.process.send_signal(signal.SIGINT)
        self.assert_statuses(130, 130)
        for machine in (a, b):
            self.assertIn("the job was stopped: machine 1", machine.text())
            self.assertIn("it got SIGINT", machine.text())
            self.assert_gone(machine)

    def test_a_launcher_that_is_killed_is_named_and_leaves_nothing(self):
        script = self.worker(WAIT)
        a, b = self.machine(0, script), self.machine(1, script)
        a.wait_for("up "), b.wait_for("up ")
        os.kill(b.process.pid, signal.SIGKILL)
        self.assertEqual(a.wait(), 71, a.text())
        self.close_all()
        self.assertIn("machine 1 (", a.text())
        self.assertIn("does not answer any more", a.text())
        self.assert_gone(a), self.assert_gone(b)

    def test_the_others_end_when_machine_0_is_killed(self):
        script = self.worker(WAIT)
        a, b = self.machine(0, script), self.machine(1, script)
        a.wait_for("up "), b.wait_for("up ")
        os.kill(a.process.pid, signal.SIGKILL)
        self.assertEqual(b.wait(), 111, b.text())
        self.close_all()
        self.assertIn(f"machine 0 at 127.0.0.1:{self.port} is gone", b.text())
        self.assert_gone(a), self.assert_gone(b)

    def test_a_machine_rank_that_is_given_twice(self):
        script = self.worker(HELLO)
        main = self.machine(0, script, machines=3, processes=3)
        for _ in range(2):
            self.machine(1, script, machines=3, processes=3)
        for machine in self.machines:
            machine.wait_for("machine rank 1 was given twice")
        main.process.send_signal(signal.SIGINT)  # it would stay 10 s for machines that come late
        main.process.send_signal(signal.SIGTERM)
        self.assertEqual([machine.wait() for machine in self.machines], [2, 2, 2], self.text())
        self.close_all()
        self.assertEqual([machine.count("machine rank 1 was given twice") for machine in self.machines], [1, 1, 1], self.text())
        self.assertEqual(self.said(), [])

    def test_machine_rank_0_twice_at_one_address(self):
        script = self.worker(HELLO)
        main = self.machine(0, script)
        self.board("accel/host")  # it has written who it is
        began = time.monotonic()
        other = self.machine(0, script)
        for machine in (main, other):
            machine.wait_for("machine rank 0 was given twice")
        self.assertLess(time.monotonic() - began, 10)
        main.process.send_signal(signal.SIGINT), main.process.send_signal(signal.SIGTERM)
        self.assert_statuses(2, 2)
        self.assertEqual([machine.count("machine rank 0 was given twice") for machine in self.machines], [1, 1], self.text())
        self.assertEqual(self.said(), [])

    def test_machine_rank_0_twice_where_the_first_one_is_slow(self):
        main = self.machine(0, self.worker(HELLO))
        self.board("accel/host")
        shim = self.shim_of(main)
        os.kill(shim, signal.SIGSTOP)
        self.addCleanup(lambda: is_alive(shim) and os.kill(shim, signal.SIGCONT))
        other = self.machine(0, self.worker(HELLO))
        time.sleep(2.5)  # a busy machine is that slow; the holder is a stranger only after 5 s
        os.kill(shim, signal.SIGCONT)
        self.assertEqual(other.wait(), 2, other.text())
        main.wait_for("machine rank 0 was given twice")
        main.process.send_signal(signal.SIGINT), main.process.send_signal(signal.SIGTERM)
        self.assert_statuses(2, 2)

    def test_the_port_of_another_job_is_no_rank_given_twice(self):
        script = self.worker(HELLO)
        self.machine(0, script, "--rdzv_id", "first")
        self.board("accel/host")
        other = self.machine(0, script, "--rdzv_id", "second")
        self.assertEqual(other.wait(), 98, other.text())
        other.wait_for("for the job with --rdzv_id 'first'")
        self.machine(1, script, "--rdzv_id", "first")
        self.assert_statuses(0, 98, 0)

    def test_counts_that_disagree_end_every_machine_and_two_signals_end_the_wait_for_others(self):
        script = self.worker(HELLO)
        for machines, processes, wanted in (((2, 2), (2, 4), "has --num_processes 4, but machine 0"),
                                            ((2, 3), (2, 2), "has --num_machines 3, but machine 0")):
            self.machines, self.port = [], free_port()
            for rank in (0, 1):
                self.machine(rank, script, machines=machines[rank], processes=processes[rank])
            self.machines[1].wait()
            self.machines[0].wait_for(wanted)  # for 10 s it stays, to tell machines that come late
            self.machines[0].process.send_signal(signal.SIGINT), self.machines[0].process.send_signal(signal.SIGTERM)
            self.assert_statuses(2, 2)
            for machine in self.machines:
                self.assertIn(wanted, machine.text())
            self.assertEqual(self.said(), [])

    def test_processes_that_do_not_divide_are_refused_on_each_machine(self):
        script = self.worker(HELLO)
        for rank in (0, 1):
            self.machine(rank, script, processes=3)
        self.assert_statuses(2, 2)
        for machine in self.machines:
            self.assertIn("3 processes do not divide over 2 machines", machine.text())
        self.assertEqual(self.said(), [])

    def test_one_machine_on_the_cpu_and_one_on_gpus(self):
        file = self.folder / "xpu.yaml"
        file.write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_XPU\n")
        script = self.worker(HELLO)
        main = self.start("machine 0", "--config_file", file, "--num_machines", 2, "--machine_rank", 0, "--main_process_ip", "127.0.0.1",
                          "--main_process_port", self.port, "--num_processes", 2, "--no_python", script)
        self.machine(1, script)
        for machine in self.machines:
            machine.wait_for("computes on the CPU, but machine 0")
        if main.process.poll() is None:  # it would stay 10 s for machines that come late
            main.process.send_signal(signal.SIGINT), main.process.send_signal(signal.SIGTERM)
        self.assert_statuses(2, 2)
        self.assertEqual(self.said(), [])

    def test_a_launcher_that_is_stopped_has_told_the_others(self):
        a, b = (self.machine(rank, self.worker(WAIT)) for rank in (0, 1))
        a.wait_for("up "), b.wait_for("up ")
        shim = self.shim_of(a)
        os.kill(shim, signal.SIGSTOP)  # the store answers nothing: an exchange is under way
        time.sleep(0.4)
        b.process.send_signal(signal.SIGTSTP)
        time.sleep(0.1)
        os.kill(shim, signal.SIGCONT)
        self.wait_until(lambda: state_of(b.process.pid) == "T")
        self.assertEqual(self.board("accel/beat/1"), "suspended")
        b.process.send_signal(signal.SIGCONT)
        b.process.send_signal(signal.SIGINT)
        self.assert_statuses(130, 130)

    def test_a_busy_port_names_who_holds_it(self):
        with socket.socket() as holder:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", self.port))
            holder.listen()
            machine = self.machine(0, self.worker(HELLO))
            self.assertEqual(machine.wait(), 98, machine.text())
        machine.close()
        self.assertIn(f"it is held by process {os.getpid()} (", machine.text())

    def test_a_c10d_port_that_another_server_has_is_told_at_once(self):
        for answer in (b"HTTP/1.0 400 Bad Request\r\n\r\n", b""):
            with self.subTest(answer=answer), socket.create_server(("127.0.0.1", 0)) as server:
                port = server.getsockname()[1]
                node = self.node("--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--no-python",
                                 "/bin/true")
                server.settimeout(30)
                for _ in range(1 if answer else 3):
                    client = server.accept()[0]
                    client.recv(4096)
                    client.sendall(answer)
                    client.close()
                self.assertEqual(node.wait(), 98, node.text())
                node.close()
                how = "speaks another protocol" if answer else "closes each connection without an answer"
                self.assertRegex(node.text(), rf"127.0.0.1:{port}: it is held by process {os.getpid()} \(.*\), but no launcher of "
                                              rf"this job: it {how}")

    def test_a_server_of_another_kind_at_the_address_of_machine_0(self):
        with socket.create_server(("127.0.0.1", self.port)) as server:
            machine = self.machine(1, "/bin/true")
            server.settimeout(30)
            with server.accept()[0] as client:
                client.recv(4096)
                client.sendall(b"220 mail.example.org ESMTP\r\n")
            self.assertEqual(machine.wait(), 111, machine.text())
        machine.close()
        self.assertIn(f"something listens at 127.0.0.1:{self.port}, but no launcher of this job: it speaks another protocol",
                      machine.text())

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    @unittest.skipUnless(int(LOW_PORTS.read_text()) > 1, "every port may be opened by everybody here")
    def test_a_port_that_needs_a_right(self):
        for line in (["accel-launch", "--cpu", "--num_machines", "2", "--machine_rank", "0", "--main_process_ip", "127.0.0.1",
                      "--main_process_port", "1", "--num_processes", "2", "--no_python", "/bin/true"],
                     ["accel-torchrun", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:1", "--no-python",
                      "/bin/true"]):
            machine = Program("machine 0", ["setpriv", "--bounding-set", "-net_bind_service", BIN / line[0], *line[1:]])
            self.machines.append(machine)
            self.assertEqual(machine.wait(), 1, machine.text())
            machine.close()
            self.assertRegex(machine.text(), r"cannot listen on 127.0.0.1:1: ports below \d+ need the right CAP_NET_BIND_SERVICE")
            flag = {"accel-launch": "--main_process_port", "accel-torchrun": "--rdzv-endpoint"}[line[0]]
            self.assertRegex(machine.text(), rf"give a port from \d+ on with {flag}\b")

    @needs_agent
    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    @unittest.skipUnless(int(LOW_PORTS.read_text()) > 1, "every port may be opened by everybody here")
    def test_a_port_of_an_elastic_line_that_needs_a_right_is_not_waited_for(self):
        machine = Program("machine 0", ["setpriv", "--bounding-set", "-net_bind_service", BIN / "accel-torchrun", "--nnodes", "1:2",
                                        "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:1", "--no-python", "/bin/true"])
        self.machines.append(machine)
        self.assertEqual(machine.wait(), 74, machine.text())
        machine.close()
        self.assertIn("cannot listen at 127.0.0.1 port 1: Permission denied", machine.text())

    @needs_agent
    def test_with_a_token_words_of_others_count_for_nothing(self):
        secret = "open-sesame-0123456789"
        path = write_token(self.folder)
        path.write_text(secret + "\n")
        script = self.worker('echo "token ${ACCEL_JOB_TOKEN-none}"\n'
                             f'until [ -e {self.folder}/go ]; do sleep 0.05; done\necho "rank $RANK"\n')
        a = self.machine(0, script, ACCEL_JOB_TOKEN=secret)
        failed = '{"kind":1,"code":2,"exit_code":9,"machine":1,"text":"forged","remedy":"forged"}'
        stop = '{"kind":0,"machine":1,"rank":1,"exit_code":9,"may_restart":false,"text":"forged"}'
        self.forge(claim__1="forged", fault=failed)
        b = self.machine(1, script, ACCEL_JOB_TOKEN_FILE=str(path))
        a.wait_for("token none"), b.wait_for("token none")
        self.assertTrue(self.board("accel/plan").startswith("accel-seal-2:"))
        self.forge(stop=stop, verdict=failed, end__1='{"success":false,"has_saved":false,"exit_code":9}')
        self.board("accel/verdict")
        seen = self.board("accel/beat/1")
        self.wait_until(lambda: self.board("accel/beat/1") != seen)  # it has looked since
        (self.folder / "go").touch()
        self.assert_statuses(0, 0)
        self.assertEqual(self.said(), ["rank 0", "rank 1"])
        self.assertNotIn("forged", self.text())
        self.assertNotIn(secret, self.text())

    @needs_agent
    def test_words_of_an_earlier_job_with_the_same_token_count_for_nothing(self):
        token = {"ACCEL_JOB_TOKEN": "open-sesame-0123456789"}
        script = self.worker('trap "" INT TERM\necho "up $$"\n'
                             f'until [ -e {self.folder}/$GO ]; do sleep 0.05; done\necho "rank $RANK"\n')
        a, b = (self.machine(rank, script, GO="first", **token) for rank in (0, 1))
        a.wait_for("up "), b.wait_for("up ")
        b.process.send_signal(signal.SIGINT)
        earlier = {key: self.board(f"accel/{key}") for key in ("stop", "host")}
        (self.folder / "first").touch()
        self.assert_statuses(130, 130)

        self.machines, self.port = [], free_port()
        a, b = (self.machine(rank, script, GO="second", **token) for rank in (0, 1))
        a.wait_for("up "), b.wait_for("up ")
        seen = set()

        def has_seen_it():  # machine 0 writes its card again with each exchange: machine 1 is to see the other one
            self.forge(**earlier)
            seen.add(self.board("accel/beat/1"))
            return len(seen) >= 5

        self.wait_until(has_seen_it)
        (self.folder / "second").touch()
        self.assert_statuses(0, 0)
        self.assertEqual(self.said(), ["rank 0", "rank 1"])

    @needs_agent
    def test_a_machine_without_the_token_is_told_so_and_machine_0_goes_on(self):
        script = self.worker(HELLO)
        a = self.machine(0, script, ACCEL_JOB_TOKEN="open-sesame-0123456789")
        self.board("accel/host")
        for variables, wanted in (({}, "machine 0 has a token of the job, and this machine has none"),
                                  ({"ACCEL_JOB_TOKEN": "another-sesame-0123456789"}, "machine 0 has another token of the job")):
            other = self.machine(1, script, **variables)
            self.assertEqual(other.wait(), 77, other.text())
            other.wait_for(f"error [auth.failed]: {wanted}")
        self.machine(1, script, ACCEL_JOB_TOKEN="open-sesame-0123456789")
        self.assert_statuses(0, 77, 77, 0)
        self.assertEqual(len(self.said()), 2)
        self.assertNotIn("machine 1", a.text())

    @needs_agent
    def test_a_token_that_cannot_be_used(self):
        (self.folder / "open").write_text("open-sesame-0123456789\n")
        (self.folder / "open").chmod(0o644)  # whatever the umask is
        for variables, wanted in (({"ACCEL_JOB_TOKEN": "sesame"}, "ACCEL_JOB_TOKEN has 6 characters, at least 16"),
                                  ({"ACCEL_JOB_TOKEN_FILE": str(self.folder / "open")}, "may be read by other users")):
            machine = self.machine(1, self.worker(HELLO), **variables)
            self.assertEqual(machine.wait(), 77, machine.text())
            machine.close()
            self.assertIn(wanted, machine.text())

    @needs_agent
    def test_with_a_token_all_begin_again_together(self):
        script = self.worker(FAILS_ONCE)
        for rank in (0, 1):
            self.machine(rank, script, "--max_restarts", 1, ACCEL_JOB_TOKEN="open-sesame-0123456789")
        self.assert_statuses(0, 0)
        self.assertEqual(self.said(), ["rank 0 restart 0", "rank 0 restart 1", "rank 1 restart 0", "rank 1 restart 1"])

    def test_an_unreachable_machine_0(self):
        machine = self.machine(1, self.worker(HELLO), "--rdzv_conf", "join_timeout=1")
        self.assertEqual(machine.wait(), 111, machine.text())
        machine.close()
        self.assertIn(f"machine 0 could not be reached at 127.0.0.1:{self.port} from 127.0.0.1 (lo): Connection refused (errno 111) "
                      "within 1 s", machine.text())

    def page(self, machine):
        """Asks the page of a machine, as whoever opens the address that its launcher keeps for operators."""
        machine.wait_for("open the address in ")
        address = pathlib.Path(re.search(r"open the address in (\S+)", machine.text()).group(1)).read_text().strip()
        host, token = address.removeprefix("http://").split("/#token=")

        def ask(path, method="GET"):
            connection = http.client.HTTPConnection(host, timeout=PATIENCE)
            connection.request(method, path, headers={"Authorization": f"Bearer {token}", "Origin": f"http://{host}"})
            body = connection.getresponse().read().decode()
            connection.close()
            return json.loads(body)
        return ask

    def watched_machines(self, script, *more):
        return [self.machine(rank, script, "--dashboard", "--metrics_port", 0, "--log_dir", self.folder / f"logs-{rank}", "--redirects", 3,
                             *more, processes=4, TMPDIR=str(self.folder)) for rank in range(2)]

    def test_each_machine_shows_its_own_workers_and_an_operator_of_either_stops_all(self):
        machines = self.watched_machines(self.worker(f'echo "rank $RANK writes"\nexec {BUILD}/tests/fault_worker beats 0 {self.folder}\n'))
        pages = [self.page(machine) for machine in machines]
        jobs = [{}, {}]

        def run():
            for rank, page in enumerate(pages):
                jobs[rank], = page("/api/state")["jobs"]
            return all(len(job["ranks"]) == 2 and all("step" in rank for rank in job["ranks"]) for job in jobs)
        self.wait_until(run)
        self.assertEqual([[rank["rank"] for rank in job["ranks"]] for job in jobs], [[0, 1], [2, 3]])
        self.assertEqual([rank["local_rank"] for rank in jobs[1]["ranks"]], [0, 1])
        self.assertIn("rank 3 writes", pages[1](f"/api/log?job={jobs[1]['id']}&rank=3")["text"])
        self.assertIn("another machine", pages[1](f"/api/log?job={jobs[1]['id']}&rank=0")["notice"])
        for machine, job in zip(machines, jobs):
            url = re.search(r"serves metrics at (\S+)", machine.text()).group(1)
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                metrics = answer.read().decode()
            self.assertRegex(metrics, r'accel_worker_state\{job="%s",node="[^"]+",state="running"\} 2' % re.escape(job["id"]))

        told = pages[1](f"/api/stop?job={jobs[1]['id']}", "POST")

        self.assertEqual(told["text"], "the job is asked to stop")
        self.assert_statuses(143, 143)
        self.assertIn("an operator of the dashboard at 127.0.0.1:", machines[1].text())

    def test_a_restart_is_on_the_pages_of_both_machines(self):
        script = self.worker(FAILS_ONCE.replace("exit 0", "exec sleep 60"))
        machines = self.watched_machines(script, "--max_restarts", 1)
        pages = [self.page(machine) for machine in machines]
        self.wait_until(lambda: all(page("/api/state")["jobs"][0]["generation"] == 1 for page in pages))
        jobs = [page("/api/state")["jobs"][0] for page in pages]
        kinds = [[event["kind"] for event in job["events"]] for job in jobs]
        self.assertEqual(kinds[0], ["started", "failed", "ended", "restarting", "started"])
        self.assertEqual(kinds[1][-2:], ["restarting", "started"])  # it need not have started what failed so soon
        self.assertIn("rank 1 of 4", jobs[0]["events"][1]["text"])
        machines[0].process.terminate()
        self.assert_statuses(143, 143)

    def test_a_machine_that_does_not_come(self):
        machine = self.machine(0, self.worker(HELLO), "--rdzv_conf", "join_timeout=1")
        self.assertEqual(machine.wait(), 110, machine.text())
        machine.close()
        self.assertIn("1 of 2 machines joined within 1 s; missing: machine 1", machine.text())

    @unittest.skipIf(cannot_mount(), cannot_mount())
    def test_a_name_of_machine_0_that_comes_late(self):
        hosts = self.folder / "hosts"
        hosts.write_text("127.0.0.1 localhost\n")
        machine = Program("machine 0", ["unshare", "--mount", "/bin/sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh",
                                        BIN / "accel-launch", "--cpu", "--num_machines", 2, "--machine_rank", 0, "--num_processes", 2,
                                        "--main_process_ip", "pod-0.invalid", "--main_process_port", self.port,
                                        "--rdzv_conf", "join_timeout=8", "--no_python", "/bin/true"])
        self.machines.append(machine)
        machine.wait_for("'pod-0.invalid' has no address")
        hosts.write_text("127.0.0.1 localhost pod-0.invalid\n")  # the pod runs
        said = machine.wait_for("1 of 2 machines joined; waiting for machine 1, for at most 8 s")
        ended = machine.wait_for("1 of 2 machines joined within 8 s; missing: machine 1")
        self.assertLess(ended - said, 6)  # not 8 s more
        self.assert_statuses(110)


if __name__ == "__main__":
    unittest.main(verbosity=2)
