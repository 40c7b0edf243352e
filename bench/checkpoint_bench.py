#!/usr/bin/env python3
"""P-K1 and P-K2: checkpoints of a fully sharded model and its AdamW on two ranks, libaccel against PyTorch's DCP with FSDP2.

Both sides hold the same weights and take one step with a learning rate of 0. Before a time is printed, what each wrote is
loaded by one process and compared: the weights to the bit, AdamW's averages to one rounding. Saves end when the data is on the
device on both sides, into a folder that is not there. Limits: one process that writes as many bytes past the page cache (O_DIRECT) and syncs, for saves; a copy
in memory of this rank's bytes, for the stall of asynchronous saves and for loads from the page cache. Where copies are made before the
update two times are reported: that of the call, and what the forward, the backward and the step behind it take longer than without a save.
"""
import mmap
import os
import shutil
import sys
import tempfile
import time

import torch
from safetensors.torch import load_file, save_file

from ddp_bench import RANKS, run_pair
from measure import BUILD, emit, median, spread

LAYERS, WIDTH = int(os.environ.get("BENCH_LAYERS", "16")), 2048
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
SHARDED = {"ACCELERATE_USE_FSDP": "true", "FSDP_SHARDING_STRATEGY": "FULL_SHARD"}
WARMUP_ROUNDS = 4  # run_pair() drops as many


def chain():
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def peer_worker(path, folder, mode, rounds):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    net = chain()
    net.load_state_dict(load_file(path))
    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.0)
    net(torch.ones(1, WIDTH)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    for _ in range(rounds):
        if mode != "load" and dist.get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
        dist.barrier()
        started = time.perf_counter()
        model_state, optimizer_state = get_state_dict(net, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        if mode == "load":
            dcp.load(state, checkpoint_id=folder)
            set_state_dict(net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            seconds = time.perf_counter() - started
        elif mode == "async":
            future = dcp.async_save(state, checkpoint_id=folder)
            seconds = time.perf_counter() - started
            future.result()
        else:
            dcp.save(state, checkpoint_id=folder)
            seconds = time.perf_counter() - started
        print(f"0 {seconds:.9g}", flush=True)
    dist.barrier()
    os._exit(0)  # threads of DCP may outlive the interpreter, which then aborts


def peer_tensors(folder):
    """What the peer wrote, by our names."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    plain = folder + ".pt"
    dcp_to_torch_save(folder, plain)
    saved = torch.load(plain)
    os.remove(plain)
    tensors = dict(saved["model"])
    for name, state in saved["optimizer"]["state"].items():
        tensors.update({f"{name}.{field}": state[field] for field in ("exp_avg", "exp_avg_sq")})
    return tensors


def check_same(weights, ours, theirs):
    own = {**load_file(os.path.join(ours, "model.safetensors")), **load_file(os.path.join(ours, "optimizer.safetensors"))}
    peer = peer_tensors(theirs)
    if sorted(own) != sorted(peer) or len(own) != 3 * len(weights):
        sys.exit(f"bench: the checkpoints hold other tensors: {sorted(set(own) ^ set(peer))}, no time is printed")
    for name, tensor in own.items():
        same = torch.equal(tensor, weights[name]) and torch.equal(tensor, peer[name]) if name in weights else \
            torch.allclose(tensor, peer[name], rtol=1e-5, atol=1e-12)
        if not same:
            sys.exit(f"bench: the checkpoints differ in {name}, no time is printed")


def direct_write_seconds(folder, total):
    """One process that writes `total` bytes past the page cache."""
    block = mmap.mmap(-1, 8 << 20)
    path = os.path.join(folder, "limit")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    started = time.perf_counter()
    for _ in range(total // len(block)):
        os.write(fd, block)
    os.fsync(fd)
    seconds = time.perf_counter() - started
    os.close(fd)
    os.remove(path)
    return seconds


def copy_seconds(total):
    source = torch.ones(total // 4)
    target = torch.ones_like(source)
    torch.set_num_threads(1)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - started)
    return median(times)


def bench(scratch):
    path, ours, theirs = (os.path.join(scratch, name) for name in ("weights.safetensors", "ours", "theirs"))
    torch.manual_seed(0)
    weights = {name: value.clone() for name, value in chain().state_dict().items()}
    save_file(weights, path)
    total = 3 * sum(value.nbytes for value in weights.values())
    rounds = str(WARMUP_ROUNDS + ROUNDS)

    def own(mode, folder=ours):
        return run_pair([os.path.join(BUILD, "bench/checkpoint_step"), path, folder, mode, rounds], more=SHARDED)[1]

    def peer(mode):
        return run_pair([sys.executable, os.path.abspath(__file__), "--worker", path, theirs, mode, rounds])[1]

    own("save"), peer("save")
    check_same(weights, os.path.join(ours, "state"), theirs)
    times = {mode: ([], []) for mode in ("save", "async", "load")}
    for mode, (left, right) in times.items():
        for _ in range(3):
            left.append(own(mode))
            right.append(peer(mode))
    check_same(weights, os.path.join(ours, "state"), theirs)
    early = [own("before_update") for _ in range(3)]
    check_same(weights, os.path.join(ours, "state"), theirs)
    trained = os.path.join(scratch, "trained")  # steps move AdamW's averages
    steps, steps_behind = [], []
    for _ in range(3):
        steps.append(own("train", trained))
        steps_behind.append(own("wait", trained))

    title = f"{total / 1e6:.0f} MB of a model and its AdamW, FULL_SHARD, {RANKS} ranks"
    disk = total / direct_write_seconds(scratch, total) / 1e6
    copy_time = copy_seconds(total // RANKS)
    copy = total / RANKS / copy_time / 1e6

    def report(mode, metric, amount, limit, goal, passes):
        left, right = times[mode]
        rate, peer_rate = amount / median(left) / 1e6, amount / median(right) / 1e6
        emit("checkpoint", title, metric, "MB/s", rate, peer_rate, f"DCP {mode}", goal=goal,
             passed=passes(rate / limit, rate / peer_rate), limit=limit,
             spread=[amount / value / 1e6 for value in reversed(spread(left) + spread(right))])

    report("save", "save to the device", total, disk, ">= 0.9 of O_DIRECT, >= 2x DCP (P-K1)",
           lambda of_limit, ratio: of_limit >= 0.9 and ratio >= 2)
    report("async", "stall of an asynchronous save, per rank", total / RANKS, copy, "<= 1.1x a copy in memory (P-K1)",
           lambda of_limit, ratio: of_limit >= 1 / 1.1)
    peer_stall = median(times["async"][1])
    emit("checkpoint", title, "stall of an asynchronous save, copied before the update: the call", "ms", 1e3 * median(early), 1e3 * peer_stall,
         "DCP async", goal="<= 5 ms at any size (P-K1)", passed=median(early) <= 5e-3, limit=1e3 * copy_time,
         spread=[1e3 * value for value in spread(early)])
    waits = [behind - alone for alone, behind in zip(steps, steps_behind)]
    emit("checkpoint", title, "the same: the next forward, backward and step take longer by", "ms", 1e3 * median(waits), 1e3 * peer_stall,
         "DCP async", goal="reported; a copy where a step is shorter than one", passed=None, limit=1e3 * copy_time,
         spread=[1e3 * value for value in spread(waits)])
    report("load", "load from the page cache, per rank", total / RANKS, copy, ">= 0.8 of a copy in memory (P-K2)",
           lambda of_limit, ratio: of_limit >= 0.8)


if __name__ == "__main__":
    if len(sys.argv) == 6 and sys.argv[1] == "--worker":
        peer_worker(*sys.argv[2:5], int(sys.argv[5]))
    else:
        with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DISK")) as folder:
            bench(folder)
