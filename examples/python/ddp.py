#!/usr/bin/env python3
"""Plain PyTorch: DistributedDataParallel. `accel-launch`, `accel-torchrun` and `torchrun` start it alike."""
import os

import torch
import torch.distributed as dist
from torch import nn


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    model = nn.parallel.DistributedDataParallel(net)
    adam = torch.optim.Adam(model.parameters(), 1e-2)
    x = torch.linspace(-3, 3, 512, device=device).unsqueeze(1)[rank::world_size]
    for step in range(200):
        loss = nn.functional.mse_loss(model(x), x.sin())
        adam.zero_grad()
        loss.backward()
        adam.step()
    # On one rank alone: a collective with a tensor of Python's as the last thing races with the end of the interpreter
    # (pytorch/pytorch#179291), and now and then aborts it.
    if rank == 0:
        with torch.no_grad():
            x = torch.linspace(-3, 3, 512, device=device).unsqueeze(1)
            print(f"{world_size} processes, loss {nn.functional.mse_loss(net(x), x.sin()):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
