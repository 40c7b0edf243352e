#!/usr/bin/env python3
"""P-X1: exported models, one process, fp32, one thread: a step beside Python eager, its memory, and what a node costs.

The model is a Llama in plain PyTorch, exported in the run. The losses of all steps must be equal within LOSS_TOLERANCE before
a time is printed: the same kernels run in the same order, and the optimizers differ in the order of their roundings.
"""
import os
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn
import torch.nn.functional as F

from measure import BUILD, emit, median, spread

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
STEPS = 8
WARMUP = 2
# Of the loss: a rounding of 2^-24 for each of the steps.
LOSS_TOLERANCE = STEPS * 2.0 ** -24
CHAIN = 1000
WIDTH, LAYERS, HEADS, KEY_HEADS, VOCABULARY = 384, 8, 6, 2, 8192
BATCH, LENGTH = 4, 64


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        size = WIDTH // HEADS
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj = nn.Linear(WIDTH, KEY_HEADS * size, bias=False)
        self.v_proj = nn.Linear(WIDTH, KEY_HEADS * size, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape

        def heads(y):
            return y.view(batch, length, -1, WIDTH // HEADS).transpose(1, 2)

        def turned(y):
            half = y.shape[-1] // 2
            return y * cos + torch.cat((-y[..., half:], y[..., :half]), -1) * sin

        keys = turned(heads(self.k_proj(x))).repeat_interleave(HEADS // KEY_HEADS, 1)
        values = heads(self.v_proj(x)).repeat_interleave(HEADS // KEY_HEADS, 1)
        mixed = F.scaled_dot_product_attention(turned(heads(self.q_proj(x))), keys, values, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_norm, self.post_norm = Norm(WIDTH), Norm(WIDTH)
        self.attention = Attention()
        self.gate, self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.input_norm(x), cos, sin)
        y = self.post_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm(WIDTH)

    def forward(self, ids, labels):
        with torch.no_grad():
            half = WIDTH // HEADS // 2
            rates = 10000.0 ** (-torch.arange(half).float() / half)
            angles = (torch.arange(ids.shape[1])[:, None] * rates).repeat(1, 2)
            cos, sin = angles.cos(), angles.sin()
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class Chain(nn.Module):
    def forward(self, x):
        for _ in range(CHAIN):
            x = torch.neg(x)
        return x


def example():
    ids = (torch.arange(BATCH * LENGTH).view(BATCH, LENGTH) * 37) % VOCABULARY
    return {"ids": ids, "labels": ids.clone()}


def model():
    torch.manual_seed(0)
    return Llama()


def status_bytes(key):
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key))


def peer_worker():
    torch.set_num_threads(1)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    inputs = example()
    before, peak, passes, whole = 0, 0, [], []
    for step in range(STEPS):
        if step == 1:  # code that is first read, and what the optimizer keeps, are of the step before
            before = status_bytes("VmRSS:")
            with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
                file.write("5")
        start = time.perf_counter()
        loss = net(**inputs)
        loss.backward()
        passes.append(time.perf_counter() - start)
        if step == 1:
            peak = status_bytes("VmHWM:")
        optimizer.step()
        optimizer.zero_grad()
        whole.append(time.perf_counter() - start)
        print("%.9g" % loss.item(), end=" ")
    print()
    print(*passes)
    print(*whole)
    print(peak - before)


# With them each tensor has pages of its own, which go when it goes: what is in memory is what lives. Times would suffer.
OWN_PAGES = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def run(command, **variables):
    core = max(os.sched_getaffinity(0))
    done = subprocess.run(["taskset", "-c", str(core)] + command, stdout=subprocess.PIPE, text=True, check=True,
                          env=dict(os.environ, OMP_NUM_THREADS="1", **variables))
    return [[float(word) for word in line.split()] for line in done.stdout.splitlines()]


def bench_steps(folder):
    from safetensors.torch import save_file
    path, inputs = os.path.join(folder, "llama.pt2"), os.path.join(folder, "inputs.safetensors")
    net = model()
    numel = sum(parameter.numel() for parameter in net.parameters())
    torch.export.save(torch.export.export(net, (), kwargs=example(), strict=False), path)
    save_file(example(), inputs)
    sides = {"accel": [os.path.join(BUILD, "bench/exported_step"), "train", path, inputs, str(STEPS)],
             "python": [sys.executable, os.path.abspath(__file__), "--worker"]}
    results = {side: [] for side in sides}
    for _ in range(ROUNDS):
        for side, command in sides.items():
            results[side].append(run(command))
    for ours, peers in zip(results["accel"], results["python"]):
        if max(abs(a - b) / b for a, b in zip(ours[0], peers[0])) > LOSS_TOLERANCE:
            sys.exit(f"bench: the losses are {ours[0]} and not {peers[0]}; no time is printed")
    case = f"Llama, {numel / 1e6:.1f} M parameters, {BATCH} x {LENGTH} tokens, fp32, 1 thread"
    for metric, row in (("forward and backward", 1), ("step with AdamW", 2)):
        times = {side: [1e3 * median(rows[row][WARMUP:]) for rows in all_rows] for side, all_rows in results.items()}
        mine, peer = median(times["accel"]), median(times["python"])
        emit("P-X1", case, metric, "ms", mine, peer, "PyTorch eager", goal=1.0, passed=mine <= peer,
             spread=spread(times["accel"]))
    memory = {side: run(command, **OWN_PAGES)[3][0] / 1e6 for side, command in sides.items()}
    emit("P-X1", case, "peak of forward and backward, above the model", "MB", memory["accel"], memory["python"],
         "PyTorch eager", goal=1.02, passed=memory["accel"] <= 1.02 * memory["python"])


def bench_nodes(folder):
    path = os.path.join(folder, "chain.pt2")
    torch.export.save(torch.export.export(Chain(), (torch.ones(1),), strict=False), path)
    rows = [run([os.path.join(BUILD, "bench/exported_step"), "nodes", path, "300"])[0] for _ in range(ROUNDS)]
    beyond = [graph - loop for _, graph, loop in rows]
    emit("P-X1", f"a chain of {int(rows[0][0])} aten::neg on one number", "a node, beyond its operator", "ns",
         median(beyond), None, "at::neg() in a loop", goal=1000, passed=median(beyond) <= 1000, spread=spread(beyond))


def main():
    if "--worker" in sys.argv:
        return peer_worker()
    with tempfile.TemporaryDirectory() as folder:
        bench_nodes(folder)
        bench_steps(folder)


if __name__ == "__main__":
    main()
