#!/usr/bin/env python3
"""FULL_SHARD trains as PyTorch's FSDP2 and DDP do: losses, weights, momenta and averages of BatchNorm.

Two Python processes train with fully_shard() and with DistributedDataParallel on Gloo, two C++ processes with libaccel's
FULL_SHARD and NO_SHARD, from the same weights on the same batches with one thread each. Both call the same ATen kernels;
the sum of two ranks' gradients is the same in either order, and a division by 2 is exact before or after it. SGD with
momentum is made of the same multiplications and additions on both sides. So everything must be equal to the bit: also where
gradients are added up over two batches, reduced each by itself or together, where the parameters that compute are bf16 and
gradients are reduced in fp32, in TorchScript, and where blocks are computed again in the backward, by torch.utils.checkpoint there.

Experts: which one a batch uses is in the batch. FSDP2 needs all ranks to use the same parameters; so they do in its test.
In that of DDP they do not, and there FULL_SHARD has to be DDP to the bit too.

Python's safetensors opens the files of accel's checkpoints, those that two ranks wrote into by parts and those that one
wrote: they hold the peer's weights and momenta, to the bit.
"""
import contextlib
import functools
import os
import sys
import tempfile
import unittest

from peer_python import BUILD, PEER

import torch
import torch.utils.checkpoint
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from train_peer import leave_group, run_ranks

TOOL = os.path.join(BUILD, "tests/sharding_peer")
RANKS = 2
STEPS = 8
SAMPLES = 6
nn = torch.nn


# The models of tests/support/model_zoo.cc, with the same names of parameters.

class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x):
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 24, num_layers=2, bidirectional=True)

    def forward(self, x):
        return self.lstm(x.unsqueeze(0).expand(5, *x.shape))[0]


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        return torch.relu(x + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.block1, self.block2, self.head = ResidualBlock(6), ResidualBlock(6), nn.Linear(6, 5)

    def forward(self, x):
        image = torch.relu(self.norm(self.stem(x.view(-1, 1, 4, 4))))
        return self.head(self.block2(self.block1(image)).mean((2, 3)))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        parts = self.attention(self.attention_norm(x)).chunk(3, 2)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(torch.nn.functional.gelu(self.widen(self.mlp_norm(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(32, 16), nn.Embedding(16, 16)
        self.blocks = nn.Sequential(GptBlock(16, 2), GptBlock(16, 2))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 32, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1])))))


class CharGpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.gpt = Gpt()

    def forward(self, x):
        return self.gpt((x.abs() * 7).long().clamp_max(31))


class TiedEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.mix, self.head = nn.Embedding(32, 16), nn.Linear(16, 16), nn.Linear(16, 32, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(self.mix(self.table((x.abs() * 7).long().clamp_max(31))))


def chosen_expert(x):
    return int(x.abs().sum().item() * 8) % 3


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(16, 1)
        for i in range(4):
            setattr(self, f"expert{i}", nn.Linear(16, 16))

    def forward(self, x):
        return getattr(self, f"expert{chosen_expert(x)}")(x) * torch.sigmoid(self.gate(x))


@torch.jit.script
def script_forward(x, weight, bias, inner_weight, scale):
    for i in range(2):
        h = torch.tanh(torch.add(torch.matmul(x, weight), bias)) * 2.0 + 1.0
        x = x + torch.sigmoid(torch.matmul(h, inner_weight)) * scale
    return x


class Script(nn.Module):
    """fully_shard() takes no ScriptModule: the parameters are a module's, the computation is TorchScript's."""
    def __init__(self):
        super().__init__()
        self.script, self.script.inner = nn.Module(), nn.Module()
        self.script.weight = nn.Parameter(torch.randn(16, 32) / 4)
        self.script.bias = nn.Parameter(torch.randn(32))
        self.script.register_buffer("scale", torch.full((16,), 0.5))
        self.script.inner.weight = nn.Parameter(torch.randn(32, 16) / 4)

    def forward(self, x):
        script = self.script
        return script_forward(x, script.weight, script.bias, script.inner.weight, script.scale)


MODELS = {"Mlp": Mlp, "CharGpt": CharGpt, "ResNet": ResNet, "Lstm": Lstm, "TiedEmbedding": TiedEmbedding,
          "Experts": Experts, "Script": Script}
CASES = [*MODELS, "Mlp+unreduced", "Mlp+reduced", "CharGpt+unreduced", "CharGpt+recomputed", "Mlp+bf16"]
SECOND_NAMES = {("TiedEmbedding", "head.weight")}
INNER = (GptBlock, ResidualBlock, nn.LSTM)  # units of their own, as users of FSDP2 wrap


def split_case(case):
    model, _, way = case.partition("+")
    return model, way


def make_inputs(case, kind):
    if case != "Experts":
        return torch.randn(STEPS, RANKS, SAMPLES, 16)
    steps = []
    while len(steps) < STEPS:
        step = torch.randn(RANKS, SAMPLES, 16)
        experts = {chosen_expert(batch) for batch in step}
        if (len(experts) == 1) == (kind == "FULL_SHARD" or len(steps) % 2 == 1):
            steps.append(step)
    return torch.stack(steps)


def write_case(case, kind, folder):
    torch.manual_seed(5)
    model, _ = split_case(case)
    tensors = {"model." + key: value.clone() for key, value in MODELS[model]().state_dict().items()}
    tensors["inputs"] = make_inputs(case, kind)
    save_file(tensors, f"{folder}/{case}.safetensors")


def recompute_blocks(net):
    for module in net.modules():
        if isinstance(module, GptBlock):
            module.forward = functools.partial(torch.utils.checkpoint.checkpoint, module.forward, use_reentrant=False)


def fully_sharded(net, way):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    options = {"mesh": init_device_mesh("cpu", (RANKS,))}
    if way == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in net.modules():
        if isinstance(module, INNER):
            fully_shard(module, **options)
    return fully_shard(net, **options)


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def unreduced(model, is_sharded, is_last):
    """Gradients of this batch are reduced with those of the last one."""
    if is_sharded:
        model.set_requires_gradient_sync(is_last)
    return contextlib.nullcontext() if is_sharded or is_last else model.no_sync()


def train(case, folder, kind, rank):
    tensors = load_file(f"{folder}/{case}.safetensors")
    name, way = split_case(case)
    net = MODELS[name]()
    net.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    if way == "recomputed":
        recompute_blocks(net)
    is_sharded = kind == "FULL_SHARD"
    model = (fully_sharded(net, way) if is_sharded
             else nn.parallel.DistributedDataParallel(net, find_unused_parameters=name == "Experts"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    accumulated = 2 if way in ("unreduced", "reduced") else 1
    for step, inputs in enumerate(tensors["inputs"]):
        is_last = (step + 1) % accumulated == 0
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=way == "bf16" and not is_sharded)
        with unreduced(model, is_sharded, is_last) if way == "unreduced" else contextlib.nullcontext():
            with autocast:
                output = model(inputs[rank])
            loss = output.float().square().mean()
            (loss / accumulated).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
        print(float(loss.item()).hex())
    state = {key: whole(value) for key, value in net.state_dict().items()}  # every rank: it gathers
    momenta = {f"{key}.momentum_buffer": whole(optimizer.state[parameter]["momentum_buffer"])
               for key, parameter in net.named_parameters() if parameter in optimizer.state}
    if rank == 0:
        save_file(momenta, f"{folder}/{case}.{kind}.peer_momenta.safetensors")
        save_file(state, f"{folder}/{case}.{kind}.peer.safetensors")


def worker(kind, folder, cases):
    torch.distributed.init_process_group("gloo")
    for case in cases:
        train(case, folder, kind, torch.distributed.get_rank())
    leave_group()


def opened(path):
    with safe_open(path, framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}


class Sharding(unittest.TestCase):
    def assert_equal(self, found, expected, what):
        self.assertEqual(sorted(found), sorted(expected), what)
        for key, value in expected.items():
            self.assertTrue(torch.equal(found[key], value),
                            f"{what}, {key}: off by {(found[key].double() - value.double()).abs().max()}")

    def compare(self, kind):
        with tempfile.TemporaryDirectory() as folder:
            for case in CASES:
                write_case(case, kind, folder)
            peer = run_ranks([PEER, os.path.abspath(__file__), "--worker", kind, folder, *CASES], RANKS)
            self.compare_runs(kind, kind, CASES, folder, peer)
            if kind == "NO_SHARD":
                at = CASES.index("Experts") * STEPS
                self.compare_runs("FULL_SHARD", kind, ["Experts"], folder,
                                  [lines[at:at + STEPS] for lines in peer])

    def compare_runs(self, strategy, kind, cases, folder, peer):
        accel = run_ranks([TOOL, strategy, folder, *cases], RANKS)
        for rank in range(RANKS):
            expected = [float.fromhex(line) for line in peer[rank]]
            found = [float.fromhex(line) for line in accel[rank]]
            self.assertEqual(len(expected), len(cases) * STEPS)
            for index, case in enumerate(cases):
                part = slice(index * STEPS, (index + 1) * STEPS)
                self.assertLess(min(expected[part]), expected[part][0], f"the peer's {case} learned nothing")
                self.assertEqual(found[part], expected[part], f"losses of {case}, rank {rank}")
        for case in cases:
            expected = load_file(f"{folder}/{case}.{kind}.peer.safetensors")
            # With a policy the module's own parameters are those that compute; checkpoints have what the peer has.
            rounds = case.endswith("+bf16") and strategy == "FULL_SHARD"
            seen = {key: value.bfloat16() for key, value in expected.items()} if rounds else expected
            self.assert_equal(load_file(f"{folder}/{case}.{strategy}.safetensors"), seen, case)
            momenta = load_file(f"{folder}/{case}.{kind}.peer_momenta.safetensors")
            for written in ("SHARDED_STATE_DICT", "FULL_STATE_DICT"):
                checkpoint = f"{folder}/{case}.{strategy}.{written}"
                # A tied weight is in the file once, under its first name.
                once = {key: value for key, value in expected.items() if (case, key) not in SECOND_NAMES}
                self.assert_equal(opened(f"{checkpoint}/model.safetensors"), once, checkpoint)
                self.assert_equal(opened(f"{checkpoint}/optimizer.safetensors"), momenta, checkpoint)

    def test_full_shard_is_fsdp2_to_the_bit(self):
        self.compare("FULL_SHARD")

    def test_no_shard_is_ddp_to_the_bit(self):
        self.compare("NO_SHARD")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 4 and sys.argv[1] == "--worker":
        worker(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        unittest.main(verbosity=2)
