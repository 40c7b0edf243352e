"""P-R1, the part that is the coordinator: N simulated agents as state machine and serialised bytes, no sockets.

The peer's figure is a published one (torchelastic after its fix, 4,000 hosts, about 10 s; pytorch#124982) for a
real cluster, network included; it is named so and gives no ratio.
"""

import os
import subprocess
import sys

from measure import BUILD, emit, median, spread

GOALS = {4000: 2.0, 10000: 5.0}
ROUNDS = 5


def run(nodes):
    done = subprocess.run([os.path.join(BUILD, "bench/rendezvous_step"), str(nodes)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"rendezvous_bench: {done.stderr}")
    started, joined, size = done.stdout.split()
    return float(started), float(joined), int(size)


def main():
    for nodes, goal in GOALS.items():
        runs = [run(nodes) for _ in range(ROUNDS)]
        times = [started for started, _, _ in runs]
        case = f"{nodes} simulated agents, no sockets, one core"
        published = "torchelastic, 4,000 hosts: about 10 s (published)" if nodes == 4000 else None
        emit("rendezvous", case, "last Join to last Start", "s", median(times), None, published,
             goal=f"<= {goal:g} s", passed=median(times) <= goal, spread=spread(times))
        emit("rendezvous", case, "Assign and Start, each node", "bytes", runs[0][2] / nodes, None, None,
             goal="does not grow with the number of nodes", passed=runs[0][2] / nodes <= 4096)


if __name__ == "__main__":
    main()
