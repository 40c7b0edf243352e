#!/usr/bin/env python3
"""P-T1: the step of a transformer on two ranks, libaccel against PyTorch DDP, one thread per rank.

Both sides start from the same weights, see the same tokens and use AdamW, plain or fused; the losses are compared before a
time is printed. The limit is the same program as two processes at once that do not talk to each other.
"""
import os
import sys
import tempfile
import time

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from measure import BUILD, emit, median, run_ranks, spread

RANKS = 2
LENGTH = 128
VOCABULARY = 256
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
CASES = {
    "0.86M": {"width": 128, "layers": 4, "heads": 4, "steps": 60, "goal": 1.5, "share": 0.93},
    "19.2M": {"width": 512, "layers": 6, "heads": 8, "steps": 16, "goal": 1.1, "share": 0.97},
}
WARMUP = 4
# Python's AdamW moves the mean of gradients with lerp, C++'s with mul and add: one rounding of 2^-24 in each
# update, which the division by sqrt(v) may magnify where v is near 0. Seen: below 1e-5 after 60 steps.
LOSS_TOLERANCE = 1e-3


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.projection = torch.nn.Linear(width, width)
        self.norm2 = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def attend(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(torch.nn.Module):
    def __init__(self, width, layers, heads):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, width)
        self.positions = torch.nn.Embedding(LENGTH, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, VOCABULARY)

    def forward(self, x):
        x = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def write_case(case, path):
    torch.manual_seed(0)
    model = Transformer(case["width"], case["layers"], case["heads"])
    tensors = {"model." + name: value for name, value in model.state_dict().items()}
    tensors["tokens"] = torch.randint(0, VOCABULARY, (8, RANKS, LENGTH + 1))
    save_file(tensors, path, {key: str(case[key]) for key in ("width", "layers", "heads")})
    return sum(parameter.numel() for parameter in model.parameters())


def peer_worker(path, steps, wrap):
    """One rank of the peer: wrap(net) makes the model of many ranks, whose parameters the optimizer gets."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        shape = {key: int(value) for key, value in file.metadata().items()}
    net = Transformer(**shape)
    net.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    model = wrap(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True if os.environ.get("BENCH_FUSED") else None)
    results = []
    for step in range(steps):
        started = time.perf_counter()
        sample = tensors["tokens"][step % 8][rank].unsqueeze(0)
        logits = model(sample[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), sample[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        results.append((value, time.perf_counter() - started))
    for value, seconds in results:
        print(f"{value:.9g} {seconds:.9g}")
    sys.stdout.flush()
    os._exit(0)  # threads of Gloo that outlive the interpreter end a process by terminate() now and then


# What steps the parameters, the same on both sides: title -> variables.
OPTIMIZERS = {"AdamW": {}, "fused AdamW": {"BENCH_FUSED": "1"}}


def run_pair(command, joined=True, more=None):
    """Runs two ranks with `more` variables; returns (losses by rank, median seconds of the slower)."""
    ranks = run_ranks(command, RANKS, more, joined)
    losses = [[row[0] for row in rows] for rows in ranks]
    return losses, max(median([row[1] for row in rows[WARMUP:]]) for rows in ranks)


def check_losses(name, accel, peer):
    for left, right in zip(accel, peer):
        worst = max(abs(a - b) for a, b in zip(left, right))
        if len(left) != len(right) or worst > LOSS_TOLERANCE:
            sys.exit(f"bench: {name}: losses differ by {worst}, no time is printed")


def bench_case(name, case, optimizer):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "case.safetensors")
        write_case(case, path)
        ours = [os.path.join(BUILD, "bench/ddp_step"), path, str(case["steps"])]
        theirs = [sys.executable, os.path.abspath(__file__), "--worker", path, str(case["steps"])]
        accel, peer, alone = [], [], []
        for _ in range(ROUNDS):
            accel_losses, seconds = run_pair(ours, more=OPTIMIZERS[optimizer])
            accel.append(seconds)
            peer_losses, seconds = run_pair(theirs, more=OPTIMIZERS[optimizer])
            peer.append(seconds)
            check_losses(name, accel_losses, peer_losses)
            alone.append(run_pair(ours, joined=False, more=OPTIMIZERS[optimizer])[1])
    ratio = median(peer) / median(accel)
    emit("ddp", f"transformer {name}, 2 ranks, {optimizer}", "step", "ms", 1e3 * median(accel), 1e3 * median(peer),
         "torch DDP on Gloo", goal=f">= {case['goal']}x faster (P-T1)", passed=ratio >= case["goal"],
         spread=[1e3 * value for value in spread(accel) + spread(peer)])
    share = median(alone) / median(accel)
    emit("ddp", f"transformer {name}, 2 ranks, {optimizer}", "part of two processes without communication", "1",
         share, None, "two processes alone", goal=f">= {case['share']} (P-T1)", passed=share >= case["share"])


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--worker":
        peer_worker(sys.argv[2], int(sys.argv[3]),
                    lambda net: torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True))
    else:
        for case_name, options in CASES.items():
            for kind in OPTIMIZERS:
                bench_case(case_name, options, kind)
