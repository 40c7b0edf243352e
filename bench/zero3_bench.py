#!/usr/bin/env python3
"""P-T2: the step of a fully sharded transformer on two ranks, libaccel against PyTorch FSDP2, one thread per rank.

The programs, weights and tokens are those of ddp_bench.py; ours is the same binary, told by the environment to shard.
Losses are compared before a time is printed. The second peer is our own DDP step: what sharding costs.
"""
import os
import sys
import tempfile

from ddp_bench import CASES, OPTIMIZERS, RANKS, ROUNDS, check_losses, peer_worker, run_pair, write_case
from measure import BUILD, emit, median, spread

SHARDED = {"ACCELERATE_USE_FSDP": "true", "FSDP_SHARDING_STRATEGY": "FULL_SHARD"}
GOAL = 2.8
OWN_GOAL = 1.05


def fully_sharded(net):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def bench_case(name, case, optimizer):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "case.safetensors")
        write_case(case, path)
        ours = [os.path.join(BUILD, "bench/ddp_step"), path, str(case["steps"])]
        theirs = [sys.executable, os.path.abspath(__file__), "--worker", path, str(case["steps"])]
        sharded, peer, copies = [], [], []
        for _ in range(ROUNDS):
            losses, seconds = run_pair(ours, more={**SHARDED, **OPTIMIZERS[optimizer]})
            sharded.append(seconds)
            peer_losses, seconds = run_pair(theirs, more=OPTIMIZERS[optimizer])
            peer.append(seconds)
            check_losses(name, losses, peer_losses)
            own_losses, seconds = run_pair(ours, more=OPTIMIZERS[optimizer])
            copies.append(seconds)
            if losses != own_losses:
                sys.exit(f"bench: {name}: sharded and copied models have other losses, no time is printed")
    title = f"transformer {name}, FULL_SHARD, 2 ranks, {optimizer}"
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
        peer_worker(sys.argv[2], int(sys.argv[3]), fully_sharded)
    else:
        for case_name, options in CASES.items():
            for kind in OPTIMIZERS:
                bench_case(case_name, options, kind)
