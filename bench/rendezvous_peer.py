"""The rendezvous of torchrun (backend c10d) among N agents: python rendezvous_peer.py N.

Each agent is a process with torchrun's own handler, forked after `import torch`, so that N of them fit on one machine;
the first one hosts the store, as torchrun's first agent does. Prints seconds from the word to join to the last answer,
and the ranks and world size that were given.
"""

import json
import logging
import os
import pickle
import sys
import time

from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from measure import held_port

TIMEOUT = 120


def be_agent(number, nodes, port, ready, go, answers):
    handler = get_rendezvous_handler(RendezvousParameters(
        backend="c10d", endpoint=f"127.0.0.1:{port}", run_id="bench", min_nodes=nodes, max_nodes=nodes, is_host=number == 0,
        local_addr="127.0.0.1", join_timeout=TIMEOUT))
    os.write(ready, b"r")
    os.read(go, 1)
    info = handler.next_rendezvous()
    os.write(answers, pickle.dumps((info.rank, info.world_size, time.monotonic())).ljust(128))
    # The host's store must outlive the others' last words.
    os.read(go, 1)


def read_whole(fd, size):
    data = b""
    while len(data) < size:
        part = os.read(fd, size - len(data))
        if not part:
            sys.exit("rendezvous_peer: an agent ended early")
        data += part
    return data


def main(nodes, port):
    (ready_read, ready), (go, go_write), (answers_read, answers) = os.pipe(), os.pipe(), os.pipe()
    logging.disable(logging.CRITICAL)
    children = []
    for number in range(nodes):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(ready_read), os.close(go_write), os.close(answers_read)
                be_agent(number, nodes, port, ready, go, answers)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    os.close(ready), os.close(answers)
    read_whole(ready_read, nodes)
    began = time.monotonic()
    os.write(go_write, b"g" * nodes)
    given = [pickle.loads(read_whole(answers_read, 128)) for _ in range(nodes)]
    os.write(go_write, b"g" * nodes)
    for child in children:
        os.waitpid(child, 0)
    print(json.dumps({"rendezvous_s": max(at for _, _, at in given) - began, "ranks": sorted(rank for rank, _, _ in given),
                      "world_sizes": sorted({world for _, world, _ in given})}))


if __name__ == "__main__":
    with held_port() as held:
        main(int(sys.argv[1]), held)
