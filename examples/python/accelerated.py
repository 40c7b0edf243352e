#!/usr/bin/env python3
"""The same with HF Accelerate: `accel-launch` and `accelerate launch` start it alike, also alone."""
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    x = torch.linspace(-3, 3, 512).unsqueeze(1)
    points = DataLoader(TensorDataset(x, x.sin()), 512 // accelerator.num_processes)
    model, adam, loader = accelerator.prepare(net, torch.optim.Adam(net.parameters(), 1e-2), points)
    for epoch in range(200):
        for inputs, values in loader:
            loss = nn.functional.mse_loss(model(inputs), values)
            adam.zero_grad()
            accelerator.backward(loss)
            adam.step()
    # Without a collective: ddp.py says why.
    with torch.no_grad():
        x = x.to(accelerator.device)
        mean = nn.functional.mse_loss(accelerator.unwrap_model(model)(x), x.sin())
    accelerator.print(f"{accelerator.num_processes} processes, loss {mean:.4f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
