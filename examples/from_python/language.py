#!/usr/bin/env python3
"""Writes the weights that language.cc tunes, and reads what it made of them: `language.py write|read FOLDER`."""
import os
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from torch import nn

TEXT = (pathlib.Path(__file__).resolve().parents[1] / "data/kjv.txt").read_bytes()
WIDTH, LAYERS, HEADS, CONTEXT = 64, 2, 4, 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.widen = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        heads = [part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.attention(self.attention_norm(x)).chunk(3, 2)]
        x = x + self.projection(nn.functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.narrow(nn.functional.gelu(self.widen(self.mlp_norm(x))))


class Gpt(nn.Module):
    """char_gpt.h has the same."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0.0, 0.02)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(torch.arange(tokens.size(1))))))


def loss(net, first, last):
    """Of the windows of 64 bytes from the first up to the last."""
    text = torch.tensor(list(TEXT[64 * first:64 * last + 1]))
    return nn.functional.cross_entropy(net(text[:-1].reshape(-1, 64)).flatten(0, 1), text[1:])


if __name__ == "__main__":
    what, folder = sys.argv[1:]
    torch.manual_seed(0)
    net = Gpt()
    file = os.path.join(folder, "model.safetensors")
    if what == "write":
        adam = torch.optim.Adam(net.parameters(), 3e-3)
        for step in range(20):
            loss(net, 16 * step, 16 * (step + 1)).backward()
            adam.step()
            adam.zero_grad()
        os.makedirs(folder, exist_ok=True)
        save_file(net.state_dict(), file)
    else:
        net.load_state_dict(load_file(file))
    number = (len(TEXT) - 1) // 64
    with torch.no_grad():
        print("loss", loss(net, number - 64, number).item())
