#!/usr/bin/env python3
"""Two shims in two network namespaces are two machines: torch.distributed over both, one store."""
import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest

SOURCE = os.environ.get("ACCEL_SOURCE_DIR", os.getcwd())
BUILD = os.environ.get("ACCEL_BUILD_DIR", os.path.join(SOURCE, "build"))
PEER = os.path.join(SOURCE, ".deps/peer/bin/python")
JOB = os.path.join(SOURCE, "tests/peer/scripts/distributed_job.py")
ADDRESSES = ["10.213.77.1", "10.213.77.2"]
STRANGER = "10.213.77.3"
PATIENCE = 120


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def ip(*words, check=True, within=()):
    return subprocess.run([*within, "ip", *words], check=check, capture_output=True, text=True)


def entering(name):
    """The command that enters a namespace. `ip netns exec` would mount a /sys first, which fails in a chroot."""
    return ["nsenter", f"--net=/run/netns/{name}"]


class Network:
    """Two namespaces joined by a pair of veth, both called veth0 inside."""

    def __init__(self):
        self.names = [f"accel-{os.getpid()}-{letter}" for letter in "ab"]
        for name in self.names:
            ip("netns", "add", name)
        ends = [f"acc{os.getpid() % 100000}{letter}" for letter in "ab"]
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(self.names, ends, ADDRESSES):
            ip("link", "set", end, "netns", name, "name", "veth0")
            ip("addr", "add", address + "/24", "dev", "veth0", within=entering(name))
            ip("link", "set", "veth0", "up", within=entering(name))
            ip("link", "set", "lo", "up", within=entering(name))

    def close(self):
        for name in self.names:
            ip("netns", "del", name, check=False)


class Node:
    """node_owner and its shim in one namespace."""

    def __init__(self, network, index, spec):
        self.lines, self.events = [], []
        self.heard = threading.Condition()
        self.file = tempfile.NamedTemporaryFile("w", suffix=".json")
        json.dump(spec, self.file)
        self.file.flush()
        self.process = subprocess.Popen(
            [*entering(network.names[index]), os.path.join(BUILD, "tests/node_owner"),
             "start", self.file.name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "ACCEL_SHIM": os.path.join(BUILD, "bin/accel-shim")})
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.heard:
                if line.startswith("event "):
                    self.events.append(json.loads(line[6:]))
                else:
                    self.lines.append(line)
                self.heard.notify_all()

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def wait_for(self, kind):
        def find():
            return next((event for event in self.events if event["type"] == kind), None)
        with self.heard:
            assert self.heard.wait_for(find, PATIENCE), f"no {kind} among {self.events}"
            event = find()
            self.events.remove(event)
            return event

    def close(self):
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.reader.join()
        self.process.stdout.close()
        self.file.close()


def job(node, workers, argv):
    return {
        "job_id": f"two-nodes-{os.getpid()}", "node_id": f"node-{node}", "control": 1,
        "env": {"PATH": os.environ["PATH"], "GLOO_SOCKET_IFNAME": "veth0", "OMP_NUM_THREADS": "1"},
        "env_mode": 1,
        "workers": [{"local_rank": rank, "global_rank": rank, "argv": argv, "env": {}, "cpus": [], "memory_nodes": [], "bind_memory": False,
                     "redirect": 0, "tee": 0, "is_starter": False, "has_virtual_local_rank": False} for rank in range(workers)],
    }


def prepare(node, generation, members, restart_count=0):
    return dict(type="prepare_generation", generation=generation, restart_count=restart_count,
                first_rank=2 * node, world_size=4, node_rank=node, num_nodes=2,
                hosts_store=node == 0, bind_address=ADDRESSES[0], port=0, is_exact_port=False,
                members=members)


class TwoNodes(unittest.TestCase):
    def setUp(self):
        self.network = Network()
        self.addCleanup(self.network.close)

    def nodes(self, argv):
        nodes = [Node(self.network, index, job(index, 2, argv)) for index in range(2)]
        for node in nodes:
            self.addCleanup(node.close)
        return nodes

    def start(self, nodes, generation, restart_count=0):
        for index, node in enumerate(nodes):
            node.ask(**prepare(index, generation, ADDRESSES, restart_count))
        port = [node.wait_for("prepared")["store_port"] for node in nodes]
        self.assertGreater(port[0], 0)
        self.assertEqual(port[1], 0)
        for node in nodes:
            node.ask(type="start_generation", generation=generation, master_addr=ADDRESSES[0],
                     master_port=port[0])

    def finish(self, nodes):
        for node in nodes:
            node.ask(type="finish")
        return [node.wait_for("outcome")["outcome"] for node in nodes]

    def results(self, nodes):
        lines = [line for node in nodes for line in node.lines if line.startswith("{")]
        return sorted((json.loads(line) for line in lines), key=lambda result: result["rank"])

    def test_torch_distributed_over_two_nodes(self):
        nodes = self.nodes([PEER, JOB])
        self.start(nodes, 0)
        for node in nodes:
            ended = node.wait_for("generation_ended")
            self.assertTrue(ended["outcome"]["success"], ended)
        for outcome in self.finish(nodes):
            self.assertTrue(outcome["success"])
        for node in nodes:
            node.process.wait(PATIENCE)
            node.reader.join()
        results = self.results(nodes)
        self.assertEqual([result["rank"] for result in results], [0, 1, 2, 3])
        for result in results:
            self.assertEqual(result["world"], 4)
            self.assertEqual(result["sum"], 1.0 + 2.0 + 3.0 + 4.0)

    def test_a_failure_on_one_node_is_followed_by_a_generation_of_both(self):
        nodes = self.nodes([PEER, JOB, "--fail-first"])
        self.start(nodes, 0)
        self.assertEqual(nodes[1].wait_for("worker_exited")["exit"]["exit_code"], 7)
        for node in nodes:
            node.ask(type="stop_generation", generation=0, mode=2, grace=-1)
        for node in nodes:
            self.assertTrue(node.wait_for("generation_ended")["is_clean"])
        self.start(nodes, 1, restart_count=1)
        for node in nodes:
            self.assertTrue(node.wait_for("generation_ended")["outcome"]["success"])
        self.finish(nodes)

    def test_the_store_keeps_strangers_out(self):
        nodes = self.nodes(["/bin/true"])
        ip("addr", "add", STRANGER + "/24", "dev", "veth0", within=entering(self.network.names[1]))
        nodes[0].ask(**prepare(0, 0, ADDRESSES))
        port = nodes[0].wait_for("prepared")["store_port"]
        self.assertEqual(self.try_store(port, ADDRESSES[1]), "served")
        self.assertEqual(self.try_store(port, STRANGER), "refused")
        self.assertEqual(self.try_store(port, ADDRESSES[0], node=0), "served")
        self.assertEqual(self.try_store(port, ADDRESSES[0], node=0, uid=65534), "refused")
        notice = nodes[0].wait_for("notice")["text"]
        self.assertIn(STRANGER, notice)
        self.finish(nodes)

    def try_store(self, port, source, node=1, uid=0):
        """PING from an address; a client that is not wanted finds the connection closed."""
        program = (
            "import encodings.idna, os, socket, struct\n"
            f"os.setuid({uid})\n"
            f"s = socket.create_connection(('{ADDRESSES[0]}', {port}), 30, ('{source}', 0))\n"
            "s.settimeout(30)\n"
            "try:\n"
            "    s.sendall(struct.pack('<BIBI', 0, 0x3C85F7CE, 13, 7))\n"
            "    print('served' if s.recv(4) == struct.pack('<I', 7) else 'refused')\n"
            "except ConnectionError:\n"
            "    print('refused')\n")
        done = subprocess.run([*entering(self.network.names[node]), sys.executable, "-c",
                               program], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.stderr, "")
        return done.stdout.strip()


def require_namespaces():
    if os.geteuid() != 0:
        skip("network namespaces need root")
    if not os.path.exists(PEER):
        skip(f"{PEER} is missing; run scripts/setup.sh")
    probe = f"accel-probe-{os.getpid()}"
    try:
        made = ip("netns", "add", probe, check=False)
    except FileNotFoundError:
        skip("there is no `ip` (package iproute2)")
    if made.returncode != 0:
        skip("no network namespace can be made here: " + made.stderr.strip())
    ip("netns", "del", probe)


if __name__ == "__main__":
    require_namespaces()
    unittest.main()
