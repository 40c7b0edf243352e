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
    mean = loss.detach() / world_size
    dist.all_reduce(mean)
    if rank == 0:
        print(f"{world_size} processes, loss {mean.item():.4f}", flush=True)
    dist.destroy_process_group()


# A function, so that the model ends before the interpreter does: gloo's threads may not outlive it.
if __name__ == "__main__":
    main()
