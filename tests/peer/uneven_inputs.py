#!/usr/bin/env python3
"""Ranks with batches of different numbers train as under PyTorch's Join, which HF Accelerate's join_uneven_inputs calls.

Python processes train with DistributedDataParallel on Gloo within Join([model]), C++ processes with libaccel within
join_uneven_inputs(model), from the same weights on the same batches. Two ranks: the sum of two gradients is the same in either
order, and dividing by 2 is exact, so losses and final weights are equal to the bit, on Gloo and through shared memory, for copies
and for models divided by ZeRO. Four ranks: equal to the bit on Gloo, whose order of sums is that of the peer; through shared
memory sums have an order of their own, see FOUR_RANKS_TOLERANCE.
"""
import os
import sys
import tempfile
import unittest

from peer_python import PEER

import torch
from safetensors.torch import load_file
from torch.distributed.algorithms.join import Join

from train_peer import leave_group, make_model, run_accel, run_ranks, write_case

BATCHES = 8
# A gradient is a sum of four numbers below 1; another order rounds each of three sums by at most 2^-24. A step multiplies it by the
# rate and the momentum's sum, 0.1 * 10; eight steps add up, and carry earlier differences on at most twofold each.
FOUR_RANKS_TOLERANCE = 3 * 2.0 ** -24 * 2.0 ** 8


def worker(name, path, counts):
    """One rank of the peer: as the page of Join shows it."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    tensors = load_file(path)
    net = make_model(name)
    net.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    model = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def loss_of(index):
        return torch.nn.functional.cross_entropy(
            model(tensors["inputs"][index][rank]), tensors["labels"][index][rank])

    with Join([model], throw_on_early_termination=False):
        for batch in range(int(counts.split(",")[rank])):
            loss = loss_of(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(float(loss.item()).hex())
    model.eval()
    with torch.no_grad():
        print(float(loss_of(0).item()).hex())
    for parameter in net.parameters():
        print(parameter.detach().numpy().tobytes().hex())
    leave_group()


def numbers_of(lines, batches):
    """Losses, and all weights."""
    losses = [float.fromhex(line) for line in lines[:batches + 1]]
    weights = bytearray(b"".join(bytes.fromhex(line) for line in lines[batches + 1:]))
    return losses, torch.frombuffer(weights, dtype=torch.float32)


class UnevenInputs(unittest.TestCase):
    def compare(self, model, counts, runs, tolerance=0.0):
        """runs: backend and stage of ZeRO of each run of accel."""
        ranks = len(counts.split(","))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "case.safetensors")
            write_case(model, path, BATCHES, ranks)
            peer = run_ranks([PEER, os.path.abspath(__file__), "--worker", model, path, counts], ranks)
            for backend, stage in runs:
                accel = run_accel(ranks, "uneven", model, path, backend, stage, counts)
                for rank, count in enumerate(map(int, counts.split(","))):
                    expected, weights = numbers_of(peer[rank], count)
                    found, own_weights = numbers_of(accel[rank], count)
                    where = f"{model}, {counts}, {backend}, stage {stage}, rank {rank}"
                    self.assertEqual(len(found), count + 1, where)
                    for step, (left, right) in enumerate(zip(expected, found)):
                        self.assertLessEqual(abs(left - right), tolerance, f"{where}, step {step}: {left}, {right}")
                    self.assertGreater(weights.numel(), 0)
                    self.assertLessEqual(float((weights - own_weights).abs().max()), tolerance, where)

    def test_the_second_of_two_ranks_has_more(self):
        self.compare("mlp", "3,7", [("shm", 0), ("gloo", 0), ("shm", 1), ("shm", 2), ("gloo", 2), ("shm", 3)])

    def test_the_first_of_two_ranks_has_more(self):
        self.compare("mlp", "6,2", [("shm", 0), ("gloo", 0), ("gloo", 1), ("shm", 2), ("shm", 3)])

    def test_buffers_are_those_of_the_last_rank_that_trains(self):
        self.compare("conv", "5,2", [("shm", 0), ("gloo", 0)])

    def test_a_rank_without_any_batch(self):
        self.compare("mlp", "0,3", [("shm", 0), ("gloo", 0), ("shm", 2)])

    def test_four_ranks_on_gloo(self):
        self.compare("mlp", "3,7,1,5", [("gloo", 0)])

    def test_four_ranks_through_shared_memory(self):
        self.compare("mlp", "3,7,1,5", [("shm", 0), ("shm", 1), ("shm", 2), ("shm", 3)], FOUR_RANKS_TOLERANCE)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:])
    unittest.main(verbosity=2)
