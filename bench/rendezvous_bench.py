"""P-R1 and P-R2: N simulated agents, with a TCP connection and mutual TLS each, and as state machine and serialised
bytes alone; what a coordinator sends and how many threads it has; and hosts whose link goes down.

10,000 agents are sessions of gRPC within the process: a coordinator has two open files for each connection, and the limit
is often 20,000. Their messages, streams and threads are those that sockets carry; TLS and TCP are not there.

The peer of 64 agents is torchrun's own rendezvous among 64 processes on the same machine: plain TCP, where ours has
TLS; ours are in one process, theirs in one each. That of 4,000 is a published figure (torchelastic after its fix,
about 10 s; pytorch#124982) for a real cluster, network included; it is named so and gives no ratio.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from measure import BUILD, PEER_BIN, SOURCE, emit, in_turn, median, spread

GOALS = {4000: 2.0, 10000: 5.0}
SOCKET_GOALS = {64: 0.15, 1000: 1.0}
ROUNDS = 5
NUM_HOSTS = 12
SPEC_BYTES = 2048  # as bench/rendezvous_sockets.cc makes it


def run(nodes):
    done = subprocess.run([os.path.join(BUILD, "bench/rendezvous_step"), str(nodes)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"rendezvous_bench: {done.stderr}")
    started, joined, size = done.stdout.split()
    return float(started), float(joined), int(size)


def run_json(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"rendezvous_bench: {done.stderr}")
    return json.loads(done.stdout)


def run_sockets(nodes, way="joined", carrier="sockets"):
    """The program itself checks that every agent got a place of its own in one world."""
    result = run_json(os.path.join(BUILD, "bench/rendezvous_sockets"), nodes, way, carrier)
    if carrier == "sockets" and result["connections"] != nodes:
        sys.exit(f"rendezvous_bench: {result['connections']} connections for {nodes} agents")
    return result


def run_peer(nodes):
    result = run_json(os.path.join(PEER_BIN, "python"), os.path.join(SOURCE, "bench/rendezvous_peer.py"), nodes)
    if result["ranks"] != list(range(nodes)) or result["world_sizes"] != [nodes]:
        sys.exit(f"rendezvous_bench: torchrun's agents did not get a place each: {result}")
    return result


def with_sockets():
    for nodes, goal in SOCKET_GOALS.items():
        peers, name = None, None
        if nodes == 64:
            runs, peers = in_turn(lambda: run_sockets(nodes), lambda: run_peer(nodes), ROUNDS)
            peers, name = median([peer["rendezvous_s"] for peer in peers]), "torchrun, c10d, 64 processes, no TLS"
        else:
            runs = [run_sockets(nodes) for _ in range(ROUNDS)]
        case = f"{nodes} simulated agents in one process, {nodes} TCP connections with mutual TLS over loopback"

        def tell(metric, field, goal=None, peer=None):
            values = [result[field] for result in runs]
            emit("rendezvous", case, metric, "s", median(values), peer, name if peer else None,
                 goal=f"<= {goal:g} s" if goal else "reported", passed=median(values) <= goal if goal else None, spread=spread(values))
        tell("first Join to last Start", "rendezvous_s", goal, peers)
        tell("connect, TLS and Hello of all", "connect_s")
        tell("an agent ends on a live host: seen by the coordinator", "loss_seen_s", 0.5)
        tell("from that to the Stop at the last survivor", "stop_s", 0.25)


def without_sockets():
    for nodes, goal in GOALS.items():
        runs = [run(nodes) for _ in range(ROUNDS)]
        times = [started for started, _, _ in runs]
        case = f"{nodes} simulated agents, no sockets, one core"
        published = "torchelastic, 4,000 hosts: about 10 s (published)" if nodes == 4000 else None
        emit("rendezvous", case, "last Join to last Start", "s", median(times), None, published,
             goal=f"<= {goal:g} s", passed=median(times) <= goal, spread=spread(times))
        emit("rendezvous", case, "Assign and Start, each node", "bytes", runs[0][2] / nodes, None, None,
             goal="does not grow with the number of nodes", passed=runs[0][2] / nodes <= 4096)


def traffic():
    """Of a job that agents are asked for: first Invite to last Start, and a restart after the failure of one worker."""
    for nodes, carrier in ((1000, "sockets"), (10000, "memory")):
        result = run_sockets(nodes, "invited", carrier)
        over = "TCP connections with mutual TLS" if carrier == "sockets" else "sessions in memory"
        case = f"{nodes} simulated agents in one process, {over}; a spec of {SPEC_BYTES} bytes"

        def tell(metric, unit, value, goal=None):
            emit("rendezvous", case, metric, unit, value, None, None, goal=f"<= {goal:g}" if goal else "reported",
                 passed=value <= goal if goal else None)
        tell("the coordinator sends, first Invite to last Start, each node", "bytes", result["first_sent"] / nodes, SPEC_BYTES + 1024)
        tell("it sends for a restart, each node", "bytes", result["restart_sent"] / nodes, 512)
        tell("it receives, first Invite to last Start, each node", "bytes", result["first_received"] / nodes)
        tell("it receives for a restart, each node", "bytes", result["restart_received"] / nodes)
        if carrier == "sockets":
            tell("its connections carry to a node in all, with handshakes", "bytes", result["tcp_sent"] / nodes)
            tell("its connections carry from a node in all", "bytes", result["tcp_received"] / nodes)
        tell("threads of coordinator and agents together", "threads", result["threads"], 32)
        # Each node beats once a second, beyond a thousand nodes once in as many seconds as there are thousands.
        steady = nodes * result["steady_s"]
        tell("steady: the coordinator sends, each node", "bytes/s", result["steady_sent"] / steady)
        tell("steady: it receives, each node", "bytes/s", result["steady_received"] / steady)
        if carrier == "sockets":
            tell("steady: its connections carry, both ways, each node", "bytes/s", (result["steady_tcp_sent"] + result["steady_tcp_received"]) / steady)
        tell("steady: the connection of an agent that follows the job carries, both ways", "bytes/s",
             result["following_steady"] / result["followers"] / result["steady_s"], 100)
        tell("the same for a restart", "bytes", result["following_restart"] / result["followers"], 8192)


def links_down():
    """Hosts are network namespaces at one switch; their ports go down one after the other, so that the moments are
    spread over the pace of the beats. One launcher each, the first one hosts the coordinator."""
    tests = pathlib.Path(SOURCE) / "tests/integration"
    sys.path += [str(tests), str(tests / "network")]
    from cluster import Network, require_namespaces
    from programs import issue_certificate, launch, write_token
    try:
        require_namespaces()
    except SystemExit:
        print("rendezvous_bench: links that go down are not measured here", file=sys.stderr)
        return
    names = [f"h{number}" for number in range(NUM_HOSTS + 1)]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="accel-bench-"))
    launchers = []
    network = Network(names)
    try:
        token = write_token(folder)
        for name in names:
            launchers.append(launch(name, [
                "--nnodes", f"1:{len(names)}", "--rdzv_endpoint", network.address("h0") + ":29400", "--node_id", name, "--rdzv_token_file", token,
                "--rdzv_tls_dir", issue_certificate(folder / "ca", "node", name), "--nproc_per_node", 1, "--max_restarts", 100, "--stop_grace", 1,
                "--no_python", "sleep", "1000"], prefix=network.command(name)))
        host = launchers[0]
        # Late ones wait for the next generation: connected is enough.
        for name in names[1:]:
            host.wait_for(f"node {name}: connected")
        time.sleep(2)
        cut = {}
        for name in names[1:]:
            cut[name] = time.monotonic()
            network.cut(name)
            time.sleep(1.0 / NUM_HOSTS)
        seen = sorted(host.wait_for(f"node {name}: no beat for") - when for name, when in cut.items())
        emit("rendezvous", f"{NUM_HOSTS} hosts whose link goes down (network namespaces)", "seen by the coordinator, the slowest", "s", seen[-1],
             None, None, goal="<= 5 s p99", passed=seen[-1] <= 5, spread=spread(seen))
    finally:
        for launcher in launchers:
            launcher.close()
        network.close()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    with_sockets()
    without_sockets()
    traffic()
    links_down()


if __name__ == "__main__":
    main()
