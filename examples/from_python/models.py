#!/usr/bin/env python3
"""Writes the models that python_models.cc trains, and reads what it made of them: `models.py write|read FOLDER`."""
import os
import sys

import torch
from safetensors.torch import load_file
from torch import nn


def evaluate(net):
    x = torch.linspace(-torch.pi, torch.pi, 512).unsqueeze(1)
    with torch.no_grad():
        return nn.functional.mse_loss(net(x), x.sin()).item()


if __name__ == "__main__":
    what, folder = sys.argv[1:]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
    if what == "write":
        os.makedirs(folder, exist_ok=True)
        torch.jit.script(net).save(os.path.join(folder, "net.pt"))
        batch = torch.export.Dim("batch")
        program = torch.export.export(net, (torch.zeros(16, 1),), dynamic_shapes=({0: batch},))
        torch.export.save(program, os.path.join(folder, "net.pt2"))
        print("loss", evaluate(net))
    else:
        print("script loss", evaluate(torch.jit.load(os.path.join(folder, "tuned.pt"))))
        net.load_state_dict(load_file(os.path.join(folder, "tuned/model.safetensors")))
        print("exported loss", evaluate(net))
