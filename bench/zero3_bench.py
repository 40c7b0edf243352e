#!/usr/bin/env python3
"""P-T2: the step of a fully sharded transformer on two ranks, libaccel against PyTorch FSDP2, one thread per rank.

The programs, weights and tokens are those of ddp_bench.py; ours is the same binary, told by the environment to shard.
Losses are compared before a time is printed. The second peer is our own DDP step: what sharding costs.
"""
import os
import sys
import tempfile
import time

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from ddp_bench import CASES, RANKS, ROUNDS, Transformer, check_losses, run_pair, write_case
from measure import BUILD, emit, median, spread

SHARDED = {"ACCELERATE_USE_FSDP": "true", "FSDP_SHARDING_STRATEGY": "FULL_SHARD"}
GOAL = 2.8
OWN_GOAL = 1.05


def peer_worker(path, steps):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    mesh = init_device_mesh("cpu", (RANKS,))
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        shape = {key: int(value) for key, value in file.metadata().items()}
    net = Transformer(**shape)
    net.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)
    results = []
    for step in range(steps):
        started = time.perf_counter()
        sample = tensors["tokens"][step % 8][rank].unsqueeze(0)
        logits = net(sample[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), sample[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        results.append((value, time.perf_counter() - started))
    for value, seconds in results:
        print(f"{value:.9g} {seconds:.9g}")
    torch.distributed.destroy_process_group()


def bench_case(name, case):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "case.safetensors")
        write_case(case, path)
        ours = [os.path.join(BUILD, "bench/ddp_step"), path, str(case["steps"])]
        theirs = [sys.executable, os.path.abspath(__file__), "--worker", path, str(case["steps"])]
        sharded, peer, copies = [], [], []
        for _ in range(ROUNDS):
            losses, seconds = run_pair(ours, more=SHARDED)
            sharded.append(seconds)
            peer_losses, seconds = run_pair(theirs)
            peer.append(seconds)
            check_losses(name, losses, peer_losses)
            own_losses, seconds = run_pair(ours)
            copies.append(seconds)
            if losses != own_losses:
                sys.exit(f"bench: {name}: sharded and copied models have other losses, no time is printed")
    title = f"transformer {name}, FULL_SHARD, 2 ranks, AdamW"
    ratio = median(peer) / median(sharded)
    emit("zero3", title, "step", "ms", 1e3 * median(sharded), 1e3 * median(peer), "FSDP2 on Gloo",
         goal=f">= {GOAL}x faster (P-T2)", passed=ratio >= GOAL,
         spread=[1e3 * value for value in spread(sharded) + spread(peer)])
    ratio = median(copies) / median(sharded)
    emit("zero3", title, "step", "ms", 1e3 * median(sharded), 1e3 * median(copies), "our DDP",
         goal=f"<= {OWN_GOAL}x our DDP (P-T2)", passed=ratio >= 1 / OWN_GOAL,
         spread=[1e3 * value for value in spread(sharded) + spread(copies)])


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--worker":
        peer_worker(sys.argv[2], int(sys.argv[3]))
    else:
        for case_name, options in CASES.items():
            bench_case(case_name, options)
