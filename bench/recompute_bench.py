#!/usr/bin/env python3
"""What it costs to compute activations again: the step of a transformer with it, against the same step without, and against
torch.utils.checkpoint of PyTorch around each block.

One process on one core; the seconds are those of the processor. Losses with and without are compared to the bit, and with the peer's
within the tolerance of ddp_bench.py, before a time is printed. What a step takes more is compared with its forward: blocks are computed
again, embedding, head and loss are not.
"""
import os
import sys
import tempfile
import time

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.utils.checkpoint import checkpoint

from ddp_bench import CASES, ROUNDS, WARMUP, Transformer, check_losses, write_case
from measure import BUILD, emit, median, run_ranks, spread

COMMON = {"BENCH_CPU_TIME": "1", "BENCH_FUSED": "1"}
UNITS = {
    "ACCELERATE_USE_FSDP": "true", "FSDP_SHARDING_STRATEGY": "NO_SHARD", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block", "FSDP_ACTIVATION_CHECKPOINTING": "true",
}
KINDS = {"full": {}, "selective": {"ACCEL_FSDP_RECOMPUTE_GRANULARITY": "selective"}}


class Recomputed(torch.nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


def peer(path, steps, recomputes):
    torch.set_num_threads(1)
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        net = Transformer(**{key: int(value) for key, value in file.metadata().items()})
    net.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    if recomputes:
        net.blocks = torch.nn.ModuleList(Recomputed(block) for block in net.blocks)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=True)
    for step in range(steps):
        started = time.process_time()
        sample = tensors["tokens"][step % 8][0].unsqueeze(0)
        logits = net(sample[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), sample[:, 1:].flatten())
        forward = time.process_time() - started
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        print(f"{value:.9g} {time.process_time() - started:.9g} {forward:.9g}")


def run(command, more):
    """Returns (losses, median seconds of a step, median seconds of a forward)."""
    rows = run_ranks(command, 1, {**COMMON, **more}, joined=False)[0]
    return [row[0] for row in rows], median([row[1] for row in rows[WARMUP:]]), median([row[2] for row in rows[WARMUP:]])


def bench_case(name, case):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "case.safetensors")
        write_case(case, path)
        ours = [os.path.join(BUILD, "bench/ddp_step"), path, str(case["steps"])]
        theirs = [sys.executable, os.path.abspath(__file__), "--peer", path, str(case["steps"])]
        plain, forwards, peers, peers_plain = [], [], [], []
        recomputed = {kind: [] for kind in KINDS}
        for _ in range(ROUNDS):
            expected, seconds, forward = run(ours, {})
            plain.append(seconds)
            forwards.append(forward)
            for kind, more in KINDS.items():
                losses, seconds, _ = run(ours, {**UNITS, **more})
                recomputed[kind].append(seconds)
                if losses != expected:
                    sys.exit(f"bench: recompute: {name}: the losses differ, no time is printed")
            losses, seconds, _ = run(theirs + ["1"], {})
            check_losses(name, [expected], [losses])
            peers.append(seconds)
            losses, seconds, _ = run(theirs + ["0"], {})
            check_losses(name, [expected], [losses])
            peers_plain.append(seconds)
    title = f"transformer {name}, 1 process, fused AdamW"
    emit("recompute", title, "processor time of a step", "ms", 1e3 * median(recomputed["full"]), 1e3 * median(peers),
         "torch.utils.checkpoint", goal="<= the peer's", passed=median(recomputed["full"]) <= median(peers),
         spread=[1e3 * value for value in spread(recomputed["full"]) + spread(peers)])
    forward = median(forwards)
    more = median([a - b for a, b in zip(recomputed["full"], plain)])
    theirs_more = median([a - b for a, b in zip(peers, peers_plain)])
    emit("recompute", title, "more than a step without", "ms", 1e3 * more, 1e3 * theirs_more, "torch.utils.checkpoint",
         goal="<= 1.05 forwards", passed=more <= 1.05 * forward, limit=1e3 * forward)
    kept = median([a - b for a, b in zip(recomputed["selective"], plain)])
    emit("recompute", title + ", selective", "more than a step without", "ms", 1e3 * kept, 1e3 * more, "full recomputation",
         goal="<= 0.5 of it", passed=kept <= 0.5 * more, limit=1e3 * forward)


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] == "--peer":
        peer(sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1")
    else:
        for case_name, options in CASES.items():
            bench_case(case_name, options)
