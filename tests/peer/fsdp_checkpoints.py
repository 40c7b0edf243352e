#!/usr/bin/env python3
"""Folders that HF Accelerate saves with FSDP are gone on from by libaccel, in any strategy and number of ranks, and back.

Six steps of two processes in Python are the reference: FSDP 1 and FSDP 2, with FULL_STATE_DICT and SHARDED_STATE_DICT. Three there
and three here, and the other way round. Sums are of two numbers, the mean is a half, and AdamW's fused steps go over whole vectors in
every division of these tensors, so all numbers must be equal to the bit.

Accelerate has FSDP on accelerators alone. Here it runs on the CPU: its state is told that the run is one of FSDP, on the device "cpu",
and FSDP 1 is kept from freeing or using again what it "moves" to the CPU.
"""
import contextlib
import os
import pathlib
import shutil
import sys
import tempfile
import unittest
from unittest import mock

from accelerate_checkpoints import Weights, hexadecimal, in_cpp, make_net, write_case
from peer_python import PEER
from train_peer import RANKS, leave_group, run_ranks

import torch
from safetensors.torch import load_file

FULL, SHARDED = "FULL_STATE_DICT", "SHARDED_STATE_DICT"


def run_fsdp_on_the_cpu():
    from torch.distributed.fsdp import _optim_utils
    from torch.distributed.fsdp._flat_param import FlatParamHandle

    FlatParamHandle.to_cpu = lambda handle: contextlib.nullcontext()
    unflatten = _optim_utils._unflatten_orig_param_states

    def unflatten_copies(info, states, name, *rest):
        for state in states.values():
            state[name] = state[name].clone()
        unflatten(info, states, name, *rest)

    _optim_utils._unflatten_orig_param_states = unflatten_copies


def fsdp_accelerator(version, kind):
    from accelerate import Accelerator, DistributedType
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import FullyShardedDataParallelPlugin

    run_fsdp_on_the_cpu()
    options = {"reshard_after_forward": True} if version == 2 else {"use_orig_params": True}
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=version, state_dict_type=kind, auto_wrap_policy="size_based_wrap", min_num_params=500,
        cpu_offload=False, **options)
    accelerator = Accelerator(cpu=True)
    for state in (PartialState._shared_state, AcceleratorState._shared_state):
        state.update(distributed_type=DistributedType.FSDP, device=torch.device("cpu"))
    AcceleratorState._shared_state["fsdp_plugin"] = plugin
    return accelerator


def worker(version, kind, path, source, target, first, steps):
    """One rank of HF Accelerate under FSDP, as train_peer.cc trains; rank 0 prints."""
    torch.set_num_threads(1)
    accelerator = fsdp_accelerator(int(version), kind)
    tensors = load_file(path)
    net = make_net()
    net.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    own = torch.optim.AdamW(net.parameters(), lr=0.05, amsgrad=True, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(own, lambda step: 1.0 / (1.0 + step))
    model, optimizer, scheduler = accelerator.prepare(net, own, schedule)
    weights = Weights()
    accelerator.register_for_checkpointing(weights)
    rank = accelerator.process_index
    torch.manual_seed(7 + rank)
    if source != "-":
        accelerator.load_state(source)
        for group in own.param_groups:
            group["fused"] = True  # no option of LibTorch's
    for batch in range(int(first), int(first) + int(steps)):
        loss = torch.nn.functional.cross_entropy(model(tensors["inputs"][batch][rank]), tensors["labels"][batch][rank])
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        whole = accelerator.get_state_dict(model)  # on rank 0, which saves what is registered
        weights.values.append(float(whole["0.weight"][0, 0].item()) if rank == 0 else 0.0)
    if target != "-":
        accelerator.save_state(target)
    if rank == 0:
        print(float(scheduler.get_last_lr()[0]).hex(), len(weights.values))
        for value in weights.values:
            print(value.hex())
        for name, _ in make_net().named_parameters():
            print(whole[name].numpy().tobytes().hex())
    sys.stdout.flush()
    leave_group()


def in_python(*arguments):
    return hexadecimal(run_ranks([PEER, __file__, "worker", *map(str, arguments)], RANKS)[0])


def strategy(**variables):
    return mock.patch.dict(os.environ, {"ACCELERATE_USE_FSDP": "true", **variables} if variables else {})


FSDP_HERE = {
    "FULL_SHARD": {"FSDP_SHARDING_STRATEGY": "FULL_SHARD"},
    "SHARD_GRAD_OP": {"FSDP_SHARDING_STRATEGY": "SHARD_GRAD_OP"},
    "version 2": {"FSDP_VERSION": "2"},
    "copies": {},
}


class FsdpCheckpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.case = cls.folder / "case.safetensors"
        write_case(cls.case)
        cls.whole = in_python(1, FULL, cls.case, "-", "-", 0, 6)

    def saved_in_python(self, version, kind):
        folder = self.folder / f"python-{version}-{kind}"
        if not folder.exists():
            in_python(version, kind, self.case, "-", folder, 0, 3)
        return folder

    def test_both_versions_of_fsdp_train_as_libaccel_does(self):
        self.assertEqual(in_python(2, FULL, self.case, "-", "-", 0, 6), self.whole)
        with strategy(**FSDP_HERE["FULL_SHARD"]):
            self.assertEqual(in_cpp("adamw", self.case, "-", "-", 0, 6, "safe", ranks=RANKS)[0], self.whole)

    def test_a_run_of_fsdp_goes_on_here_in_every_strategy(self):
        for version in (1, 2):
            for kind in (FULL, SHARDED):
                folder = self.saved_in_python(version, kind)
                names = set(os.listdir(folder))
                expected = {"pytorch_model_fsdp.bin", "optimizer.bin"} if kind == FULL else {"pytorch_model_fsdp_0", "optimizer_0"}
                self.assertLessEqual(expected, names)
                for name, variables in FSDP_HERE.items():
                    with self.subTest(version=version, kind=kind, here=name), strategy(**variables):
                        found = in_cpp("adamw", self.case, folder, "-", 3, 3, "safe", ranks=RANKS)
                        self.assertEqual(found[0], self.whole)

    def test_a_run_of_libaccel_goes_on_in_both_versions_of_fsdp(self):
        folder = self.folder / "cpp"
        with strategy(**FSDP_HERE["FULL_SHARD"]):
            in_cpp("adamw", self.case, "-", folder, 0, 3, "safe", ranks=RANKS)
        self.assertLessEqual({"pytorch_model_fsdp.bin", "optimizer.bin"}, set(os.listdir(folder)))
        for version in (1, 2):
            with self.subTest(version=version):
                self.assertEqual(in_python(version, FULL, self.case, folder, "-", 3, 3), self.whole)

    def test_other_numbers_of_ranks_read_the_same_state(self):
        """One process and four save what they read; the tensors are those that two processes had."""
        for kind in (FULL, SHARDED):
            source = self.saved_in_python(2, kind)
            for ranks in (1, 4):
                target = self.folder / f"{kind}-{ranks}"
                variables = FSDP_HERE["FULL_SHARD"] if ranks > 1 else {}
                with self.subTest(kind=kind, ranks=ranks), strategy(**variables):
                    in_cpp("adamw", self.case, source, target, 3, 0, "safe", ranks=ranks)
                    self.compare_states(target, self.saved_in_python(2, FULL))

    def compare_states(self, found, expected):
        saved = torch.load(expected / "optimizer.bin", weights_only=True)
        read = torch.load(found / "optimizer.bin", weights_only=True)
        names = saved["param_groups"][0]["params"]
        for number, (name, key) in enumerate(zip(names, read["param_groups"][0]["params"])):
            self.assertIn(key, (name, number))
            for field, value in saved["state"][name].items():
                self.assertTrue(torch.equal(read["state"][key][field], value), (name, field))
        weights = torch.load(expected / "pytorch_model_fsdp.bin", weights_only=True)
        file = found / "pytorch_model_fsdp.bin"
        mine = torch.load(file, weights_only=True) if file.exists() else load_file(found / "model.safetensors")
        self.assertEqual(sorted(mine), sorted(weights))
        for name, value in weights.items():
            self.assertTrue(torch.equal(mine[name], value), name)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(*sys.argv[2:])
    else:
        unittest.main()
