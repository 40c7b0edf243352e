#!/usr/bin/env python3
"""Optimizers of libaccel that LibTorch has not do what those of Python do, to the bit.

Muon is compared with torch.optim.Muon. The others are written here as their authors' packages have them, which the peer's
environment lacks: schedulefree 1.4.1 (foreach=False), lion_pytorch.py of google/automl, lomo-optim 0.1.1. One process
and one thread; the same ATen kernels in the same order on both sides.
"""
import os
import sys
import tempfile
import unittest

from train_peer import make_model, run_accel, run_peer, write_case

import torch
from safetensors.torch import load_file


class ScheduleFree:
    """y = p in train mode, x in eval mode."""

    def __init__(self, parameters, lr, averaging, weight_decay, warmup_steps, r=0.0, beta2=None, eps=1e-8):
        self.parameters = list(parameters)
        self.lr, self.averaging, self.weight_decay, self.warmup_steps = lr, averaging, weight_decay, warmup_steps
        self.r, self.beta2, self.eps = r, beta2, eps
        self.k, self.weight_sum, self.lr_max = 0, 0.0, -1.0
        self.z, self.squares = {}, {}

    @torch.no_grad()
    def train(self):
        for p in self.parameters:
            if p in self.z:
                p.lerp_(end=self.z[p], weight=1 - self.averaging)

    @torch.no_grad()
    def eval(self):
        for p in self.parameters:
            if p in self.z:
                p.lerp_(end=self.z[p], weight=1 - 1 / self.averaging)

    @torch.no_grad()
    def step(self):
        sched = (self.k + 1) / self.warmup_steps if self.k < self.warmup_steps else 1.0
        lr = self.lr * sched
        self.lr_max = max(lr, self.lr_max)
        weight = ((self.k + 1) ** self.r) * (self.lr_max ** 2.0)
        self.weight_sum += weight
        ckp1 = weight / self.weight_sum
        for y in self.parameters:
            grad = y.grad
            z = self.z.setdefault(y, y.detach().clone())
            if self.beta2 is not None:
                squares = self.squares.setdefault(y, torch.zeros_like(y))
                squares.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
                denom = squares.div(1 - self.beta2 ** (self.k + 1)).sqrt_().add_(self.eps)
                grad.div_(denom)
            if self.weight_decay != 0:
                grad.add_(y, alpha=self.weight_decay)
            y.lerp_(end=z, weight=ckp1)
            y.add_(grad, alpha=lr * (self.averaging * (1 - ckp1) - 1))
            z.sub_(grad, alpha=lr)
        self.k += 1


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr, betas, weight_decay):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                exp_avg = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                update = exp_avg * beta1 + p.grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                exp_avg.mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Lomo:
    """fused_backward(), without its hooks: which parameter is stepped first changes nothing."""

    def __init__(self, parameters, weight_decay=0.0, clip_grad_norm=None):
        self.parameters, self.weight_decay, self.clip_grad_norm = list(parameters), weight_decay, clip_grad_norm

    @torch.no_grad()
    def step(self):
        lr = LOMO_RATE
        coefficient = None
        if self.clip_grad_norm is not None:
            # In the order in which backward brings the gradients: the bias of a layer before its weight, the last layer first.
            norms = torch.stack([torch.norm(p.grad, 2.0) for p in reversed(self.parameters)])
            coefficient = torch.clamp(float(self.clip_grad_norm) / (torch.norm(norms, 2.0) + 1e-6), max=1.0)
        for p in self.parameters:
            grad = p.grad.clone()
            if coefficient is not None:
                grad.mul_(coefficient)
            if self.weight_decay > 0:
                p.data.mul_(1.0 - lr * self.weight_decay)
            p.data.add_(grad, alpha=-lr)


class AdaLomo:
    def __init__(self, parameters, weight_decay, clip_grad_value):
        self.parameters, self.weight_decay, self.clip_grad_value = list(parameters), weight_decay, clip_grad_value
        self.step_num, self.state = 0, {}

    @torch.no_grad()
    def step(self):
        self.step_num += 1
        beta2t = 1.0 - self.step_num ** -0.8
        for p in self.parameters:
            grad = p.grad.clone().clamp_(min=-self.clip_grad_value, max=self.clip_grad_value)
            update = grad ** 2 + 1e-30
            if p.dim() > 1:
                row, column = self.state.setdefault(p, (torch.zeros(p.shape[0]), torch.zeros(p.shape[1])))
                row.mul_(beta2t).add_(update.mean(dim=-1), alpha=1.0 - beta2t)
                column.mul_(beta2t).add_(update.mean(dim=-2), alpha=1.0 - beta2t)
                update = torch.mul((row / row.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1),
                                   column.unsqueeze(-2).rsqrt())
                update.mul_(grad)
            else:
                squares = self.state.setdefault(p, torch.zeros(p.shape[0]))
                squares.mul_(beta2t).add_(update, alpha=1.0 - beta2t)
                update = squares.rsqrt().mul_(grad)
            update.div_((update.norm(2) / (update.numel() ** 0.5)).clamp_(min=1.0))
            rms = torch.norm(p.data, 2.0) / p.numel() ** 0.5
            lr = LOMO_RATE * max(1e-3, rms)
            p.data.mul_(1.0 - lr * self.weight_decay)
            p.data.add_(update, alpha=-lr)


LOMO_RATE = 0.05
MAKE = {
    "adamw_schedule_free": lambda p: ScheduleFree(p, 0.01, 0.9, 0.1, 4, r=0.5, beta2=0.999),
    "sgd_schedule_free": lambda p: ScheduleFree(p, 0.5, 0.9, 0.01, 3),
    "lion": lambda p: Lion(p, 0.01, (0.9, 0.99), 0.1),
    "lomo": lambda p: Lomo(p, weight_decay=0.1),
    "lomo_clipped": lambda p: Lomo(p, clip_grad_norm=0.1),
    "adalomo": lambda p: AdaLomo(p, 0.1, 0.01),
    "muon": lambda p: torch.optim.Muon([each for each in p if each.dim() == 2], lr=0.02),
    "muon_matched": lambda p: torch.optim.Muon(
        [each for each in p if each.dim() == 2], lr=0.02, adjust_lr_fn="match_rms_adamw", nesterov=False),
}


def worker(name, path):
    tensors = load_file(path)
    net = make_model("mlp")
    net.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    optimizer = MAKE[name](list(net.parameters()))

    def loss_of(index):
        return torch.nn.functional.cross_entropy(net(tensors["inputs"][index][0]), tensors["labels"][index][0])

    for batch in range(len(tensors["inputs"])):
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        net.zero_grad()
        print(float(loss.item()).hex())
        if batch == 5:
            if hasattr(optimizer, "eval"):
                optimizer.eval()
            print(float(loss_of(0).item()).hex())
            if hasattr(optimizer, "train"):
                optimizer.train()
    if hasattr(optimizer, "eval"):
        optimizer.eval()
    for parameter in net.parameters():
        print(parameter.detach().numpy().tobytes().hex())
    sys.stdout.flush()


class Optimizers(unittest.TestCase):
    def test_losses_and_weights_equal_pythons_to_the_bit(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "case.safetensors")
            write_case("mlp", path)
            for name in MAKE:
                with self.subTest(name):
                    expected = run_peer(1, name, path, script=os.path.abspath(__file__))[0]
                    found = run_accel(1, "optimizer", name, path)[0]
                    losses = [float.fromhex(line) for line in expected[:13]]
                    self.assertLess(min(losses[1:]), losses[0], "the peer did not learn anything")
                    self.assertEqual([float.fromhex(line) for line in found[:13]], losses)
                    self.assertEqual(len(expected), 19)
                    self.assertEqual(found[13:], expected[13:])


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 1 and sys.argv[1] == "--worker":
        worker(*sys.argv[2:])
    else:
        unittest.main(verbosity=2)
