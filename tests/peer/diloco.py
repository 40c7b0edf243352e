#!/usr/bin/env python3
"""DiLoCo and Streaming DiLoCo train as their papers' algorithms say, written out here in PyTorch.

One Python process holds the copies of all ranks, the C++ side is as many processes. The inner optimizer is AdamW by LibTorch's
fused kernel on both sides. A mean is the sum in the order of ranks, divided by their number: the same bits through shared memory on
1, 2 and 4 ranks, and on Gloo for 2, whose sum is the same in either order. Four ranks on Gloo: see FOUR_RANKS_TOLERANCE.
"""
import os
import tempfile
import unittest

# As run_ranks() has it for the C++ side; MKL reads it when it is loaded.
os.environ["MKL_CBWR"], os.environ["OMP_NUM_THREADS"] = "COMPATIBLE", "1"

from train_peer import make_model, run_accel, write_case

import torch
from safetensors.torch import load_file

STEPS = 14
OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9
# Another order of a sum of four numbers below 1 rounds each of three sums by at most 2^-24. The outer step multiplies it by at most
# 0.7 * (1 + 0.9) and the sum of momentum, 10; two exchanges of each fragment add up. AdamW divides by the root of its second moment, and carries a
# difference of gradients on by the rate, 0.01, over the least gradient that matters, 1e-3: tenfold.
FOUR_RANKS_TOLERANCE = 3 * 2.0 ** -24 * 0.7 * 1.9 * 10 * 2 * 10


def mean(tensors):
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total / len(tensors) if len(tensors) > 1 else total


class Fragment:
    """A part of the global parameters and the outer optimizer: SGD with Nesterov momentum on the outer gradients."""

    def __init__(self, copies):
        self.copies = copies  # by rank, a list of parameters
        self.globals = [parameter.detach().clone() for parameter in copies[0]]
        self.momentum = None
        self.outer_gradients = None

    @torch.no_grad()
    def begin(self):
        """arXiv:2501.18512, algorithm 2, lines 5 to 8: the difference goes out."""
        self.outer_gradients = [
            mean([start - copy[i] for copy in self.copies]) for i, start in enumerate(self.globals)]

    @torch.no_grad()
    def merge(self, alpha):
        """Lines 9 to 13: the outer step, and alpha of what each worker has by now."""
        gradients, self.outer_gradients = self.outer_gradients, None
        if self.momentum is None:
            self.momentum = [gradient.clone() for gradient in gradients]
        else:
            for momentum, gradient in zip(self.momentum, gradients):
                momentum.mul_(OUTER_MOMENTUM).add_(gradient)
        for parameter, momentum, gradient in zip(self.globals, self.momentum, gradients):
            parameter.add_(gradient.add(momentum, alpha=OUTER_MOMENTUM), alpha=-OUTER_LR)
        for copy in self.copies:
            for parameter, start in zip(copy, self.globals):
                parameter.copy_(torch.lerp(start, parameter, alpha))


def reference(path, ranks, sync_every, num_fragments, delay, alpha):
    """Losses by rank, and the weights of each rank before and after the end."""
    tensors = load_file(path)
    nets = [make_model("mlp") for _ in range(ranks)]
    for net in nets:
        net.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    optimizers = [torch.optim.AdamW(net.parameters(), lr=0.01, fused=True) for net in nets]
    layers = [i for i in range(len(nets[0])) if list(nets[0][i].parameters())]
    fragments = [
        Fragment([[p for layer in layers[f::num_fragments] for p in net[layer].parameters()] for net in nets])
        for f in range(num_fragments)]
    losses = [[] for _ in range(ranks)]
    every = sync_every // num_fragments
    for step in range(1, STEPS + 1):
        for rank, net in enumerate(nets):
            optimizers[rank].zero_grad()
            loss = torch.nn.functional.cross_entropy(
                net(tensors["inputs"][step - 1][rank]), tensors["labels"][step - 1][rank])
            loss.backward()
            optimizers[rank].step()
            losses[rank].append(loss.item())
        if (step + delay) % every == 0:
            fragments[((step + delay) // every - 1) % num_fragments].begin()
        if step % every == 0:
            fragments[(step // every - 1) % num_fragments].merge(alpha)
    before = weights_of(nets)
    for fragment in fragments:
        if fragment.outer_gradients is not None:
            fragment.merge(alpha)
    with torch.no_grad():
        for copies in zip(*(net.parameters() for net in nets)):
            if ranks > 1:
                average = mean(copies)
                for copy in copies:
                    copy.copy_(average)
    return losses, before, weights_of(nets)


def weights_of(nets):
    return [torch.cat([p.detach().flatten() for p in net.parameters()]).clone() for net in nets]


def numbers_of(lines):
    return torch.frombuffer(bytearray(b"".join(bytes.fromhex(line) for line in lines)), dtype=torch.float32)


class DiLoCo(unittest.TestCase):
    def compare(self, ranks, backend, *options, tolerance=0.0):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "case.safetensors")
            write_case("mlp", path, batches=STEPS, ranks=ranks)
            losses, before, after = reference(path, ranks, *options)
            found = run_accel(ranks, "diloco", path, backend, *options)
        for rank in range(ranks):
            what = f"{ranks} ranks on {backend}, {options}, rank {rank}"
            own = torch.tensor([float.fromhex(line) for line in found[rank][:STEPS]], dtype=torch.float64)
            expected = torch.tensor(losses[rank], dtype=torch.float64)
            half = (len(found[rank]) - STEPS) // 2
            pairs = [(own, expected), (numbers_of(found[rank][STEPS:STEPS + half]), before[rank]),
                     (numbers_of(found[rank][STEPS + half:]), after[rank])]
            for left, right in pairs:
                self.assertEqual(left.numel(), right.numel(), what)
                self.assertLessEqual((left - right).abs().max().item(), tolerance, what)
        if ranks > 1:
            self.assertGreater((before[0] - before[1]).abs().max().item(), 0, "the ranks had the same all along")

    def test_one_fragment_is_diloco_to_the_bit(self):
        for ranks, backend in ((1, "shm"), (2, "shm"), (2, "gloo"), (4, "shm")):
            self.compare(ranks, backend, 4, 1, 0, 0.0)

    def test_one_fragment_keeps_some_of_a_ranks_own_to_the_bit(self):
        self.compare(2, "shm", 4, 1, 0, 0.25)

    def test_two_fragments_stream_beside_the_steps_to_the_bit(self):
        for ranks, backend in ((1, "shm"), (2, "shm"), (2, "gloo"), (4, "shm")):
            self.compare(ranks, backend, 6, 2, 1, 0.5)

    def test_an_exchange_that_has_begun_is_merged_at_the_end_to_the_bit(self):
        # 14 steps: the exchange of the third fragment has begun after step 14 and would be merged after step 15.
        self.compare(2, "shm", 9, 3, 1, 0.5)
        self.compare(2, "gloo", 9, 3, 2, 0.0)

    def test_four_ranks_on_gloo_differ_by_the_order_of_sums(self):
        self.compare(4, "gloo", 6, 2, 1, 0.5, tolerance=FOUR_RANKS_TOLERANCE)


if __name__ == "__main__":
    unittest.main()
