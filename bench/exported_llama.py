"""The Llama of bench/exported_bench.py in plain PyTorch, and Python's side of it: eager, torch.compile, DDP, FSDP2.

    exported_llama.py SIZE eager|compile|ddp|fsdp2     one process, or one rank under torchrun; rank 0 prints what
                                                       bench/exported_step.cc prints
"""
import os
import sys
import time

import torch
from torch import nn
import torch.nn.functional as F

STEPS = 8
BATCH, LENGTH = 4, 64
# Width, layers, heads, heads of keys, vocabulary.
SIZES = {"20M": (384, 8, 6, 2, 8192), "120M": (768, 12, 12, 4, 16384)}


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attention(nn.Module):
    def __init__(self, width, heads, key_heads):
        super().__init__()
        self.size, self.repeats = width // heads, heads // key_heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, key_heads * self.size, bias=False)
        self.v_proj = nn.Linear(width, key_heads * self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape

        def heads(y):
            return y.view(batch, length, -1, self.size).transpose(1, 2)

        def turned(y):
            half = self.size // 2
            return y * cos + torch.cat((-y[..., half:], y[..., :half]), -1) * sin

        keys = turned(heads(self.k_proj(x))).repeat_interleave(self.repeats, 1)
        values = heads(self.v_proj(x)).repeat_interleave(self.repeats, 1)
        mixed = F.scaled_dot_product_attention(turned(heads(self.q_proj(x))), keys, values, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    def __init__(self, width, heads, key_heads):
        super().__init__()
        self.input_norm, self.post_norm = Norm(width), Norm(width)
        self.attention = Attention(width, heads, key_heads)
        self.gate, self.up = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.input_norm(x), cos, sin)
        y = self.post_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, width, layers, heads, key_heads, vocabulary):
        super().__init__()
        self.half = width // heads // 2
        self.embed = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(width, heads, key_heads) for _ in range(layers))
        self.norm = Norm(width)

    def forward(self, ids, labels):
        with torch.no_grad():
            rates = 10000.0 ** (-torch.arange(self.half).float() / self.half)
            angles = (torch.arange(ids.shape[1])[:, None] * rates).repeat(1, 2)
            cos, sin = angles.cos(), angles.sin()
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def model(size):
    torch.manual_seed(0)
    return Llama(*SIZES[size])


def example(size, rank=0):
    ids = ((torch.arange(BATCH * LENGTH) + 11 * rank).view(BATCH, LENGTH) * 37) % SIZES[size][-1]
    return {"ids": ids, "labels": ids.clone()}


def status_bytes(key):
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key))


def prepared(net, side):
    """As its documentation says, on the CPU."""
    if side == "compile":
        return torch.compile(net)
    if side == "ddp":
        return nn.parallel.DistributedDataParallel(net)
    if side == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for layer in net.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
    return net


def worker(size, side):
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    if side in ("ddp", "fsdp2"):
        torch.distributed.init_process_group("gloo")
    net = prepared(model(size), side)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    inputs = example(size, rank)
    losses, passes, whole = [], [], []
    before, peak, first = 0, 0, 0.0
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
        losses.append(loss.item())
        first = first or time.time()
    if rank == 0:
        for row in (losses, passes, whole, [peak - before], [first]):
            print(*(f"{value:.17g}" for value in row))
    if side in ("ddp", "fsdp2"):
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    worker(*sys.argv[1:])
