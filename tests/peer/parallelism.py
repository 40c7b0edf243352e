#!/usr/bin/env python3
"""ParallelismConfig, what an Accelerator says of it, and loaders on a mesh are those of Accelerate; Accelerate reads our settings of
fp8 and of torch.compile.

Accelerate lays out processes with GPUs alone: on CPUs its Accelerator takes no configuration above 1. So its own tests for devices
are answered as on GPUs here (`as_on_gpus`), and everything else is its own.
"""
import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import unittest
from unittest import mock

from peer_python import BUILD, PEER

import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.parallelism_config import ParallelismConfig
from accelerate.state import AcceleratorState, PartialState, is_initialized
from accelerate.utils import (
    AORecipeKwargs, FP8RecipeKwargs, MSAMPRecipeKwargs, TERecipeKwargs, TorchDynamoPlugin, dataclasses)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader

from train_peer import free_port, run_ranks

TOOL = os.path.join(BUILD, "tests/parallelism_peer")
SIZES = ["dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size"]
JOINT = ["dp", "dp_shard_cp", "dp_cp"]
RANKS = ["data_parallel_rank", "data_parallel_shard_rank", "tensor_parallel_rank", "pipeline_parallel_rank",
         "context_parallel_rank"]


def ask(**cases):
    asked = {"configs": [], "loaders": [], "fp8": [], "dynamo": []} | cases
    done = subprocess.run([TOOL], input=json.dumps(asked), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@contextlib.contextmanager
def environment(variables):
    """These variables, and no others that Accelerate or torch read here."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("ACCELERATE_", "PARALLELISM_CONFIG_", "FSDP_"))}
    with mock.patch.dict(os.environ, kept | variables, clear=True):
        yield


def peer_config(given):
    # It asks for a version of Transformers, which nothing here uses.
    with mock.patch.object(dataclasses.TorchTensorParallelConfig, "__post_init__", lambda self: None):
        return ParallelismConfig(**given)


def described(config):
    return {"json": {name: getattr(config, name) for name in [*SIZES, "cp_backend", "sp_backend"]},
            "total_size": config.total_size, "data_parallel_size": config.data_parallel_size,
            "non_data_parallel_size": config.non_data_parallel_size,
            **{name: getattr(config, name)
               for name in ("dp_dim_names", "non_dp_dim_names", "dp_shard_cp_dim_names", "dp_cp_dim_names", "fsdp_dim_names",
                            "active_mesh_dims")},
            "enabled": [config.dp_replicate_enabled, config.dp_shard_enabled, config.tp_enabled, config.cp_enabled,
                        config.sp_enabled]}


def described_mesh(mesh):
    if mesh is None:
        return None
    names = list(mesh.mesh_dim_names)
    ranks = {name: mesh.get_local_rank(name) for name in names}
    for joint in JOINT:
        with contextlib.suppress(KeyError):
            ranks[joint] = mesh[joint].get_local_rank()
    return {"mesh_dim_names": names, "shape": list(mesh.shape), "ranks": ranks}


@contextlib.contextmanager
def process_of(rank, size):
    """This process as one of many that do not talk."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@contextlib.contextmanager
def as_on_gpus():
    with contextlib.ExitStack() as stack:
        wants_fsdp = os.environ.get("ACCELERATE_USE_FSDP") == "true"
        version = os.environ.get("FSDP_VERSION", "1")
        for name, value in (("multi_device", lambda self: self.use_distributed and not wants_fsdp),
                            ("is_fsdp2", lambda self: self.use_distributed and wants_fsdp and version == "2")):
            stack.enter_context(mock.patch.object(Accelerator, name, property(value)))
        yield


def value_or_error(act):
    try:
        return act()
    except (RuntimeError, NotImplementedError) as error:
        return str(error).replace(" in Accelerate", "")


def own_attributes():
    try:
        accelerator = Accelerator(cpu=True)
    except (ValueError, RuntimeError) as error:  # torch's, where the mesh is larger than the job
        return {"refused": str(error)}
    config = accelerator.parallelism_config
    return {"torch_device_mesh": described_mesh(accelerator.torch_device_mesh), "is_fsdp2": accelerator.is_fsdp2,
            "is_composable_parallelism_enabled": accelerator.is_composable_parallelism_enabled,
            "should_save_model": accelerator.should_save_model, "fp8_backend": accelerator.fp8_backend.value,
            "initialized": is_initialized(), "parallelism_config": described(config) if config else None,
            **{name: value_or_error(lambda name=name: getattr(accelerator, name))
               for name in RANKS if accelerator.torch_device_mesh or not config or config.total_size == 1}}


class Configs(unittest.TestCase):
    def test_fields_variables_and_properties_are_those_of_accelerate(self):
        pick = random.Random(int(os.environ.get("ACCEL_TEST_SEED") or 1))
        cases = []
        for _ in range(400):
            given = {name: pick.choice([1, 1, 2, 3, 0, -1]) for name in SIZES if pick.random() < 0.3}
            if pick.random() < 0.1:
                given["cp_backend"] = pick.choice(["torch", "ring"])
            env = {f"PARALLELISM_CONFIG_{name.upper()}": pick.choice(["1", "2", "4", "1", "x", "2.5", "0"])
                   for name in SIZES if pick.random() < 0.3}
            if pick.random() < 0.1:
                env["PARALLELISM_CONFIG_SP_BACKEND"] = pick.choice(["deepspeed", "torch"])
            cases.append({"given": given, "env": env})
        refused = 0
        for case, ours in zip(cases, ask(configs=cases)["configs"], strict=True):
            with self.subTest(case=case), environment(case["env"]):
                try:
                    theirs = described(peer_config(case["given"]))
                except ValueError as error:
                    theirs = {"refused": str(error)}
                if "refused" not in theirs:
                    self.assertEqual(ours, theirs)
                    continue
                refused += 1
                self.assertIn("refused", ours, theirs)
                if "must be at least 1" in theirs["refused"] and "PARALLELISM" not in ours["refused"]:
                    self.assertRegex(ours["refused"], r"^\w+_size must be at least 1, but got -?\d$")
        self.assertGreater(refused, 50)
        self.assertLess(refused, 350)


class Loaders(unittest.TestCase):
    def test_ranks_of_one_group_get_the_batches_that_accelerate_gives_them(self):
        meshes = [sizes for sizes in itertools.product([1, 2, 3], [1, 2], [1, 2], [1, 2]) if sum(sizes) > 4]
        cases = [{"given": dict(zip(SIZES, sizes)), "size": size, "batch_size": batch, "drop_last": drop, "even_batches": even}
                 for sizes in meshes for size, batch, drop, even in [(29, 2, False, True), (17, 3, True, True), (23, 2, False, False)]]
        AcceleratorState._reset_state(True)
        answers = ask(loaders=cases)["loaders"]
        PartialState(cpu=True)
        for case, ours in zip(cases, answers, strict=True):
            with environment({}):
                config = None if self.is_refused(case["given"]) else peer_config(case["given"])
            if config is None:
                continue
            for rank, answer in enumerate(ours):
                with self.subTest(case=case, rank=rank), process_of(rank, config.total_size):
                    mesh = config.build_device_mesh("cpu")
                    self.assertEqual(answer["mesh"], described_mesh(mesh))
                    loader = prepare_data_loader(
                        DataLoader(range(case["size"]), batch_size=case["batch_size"], drop_last=case["drop_last"]),
                        num_processes=config.total_size, process_index=rank, even_batches=case["even_batches"],
                        torch_device_mesh=mesh)
                    self.assertEqual(answer["batches"], [batch.tolist() for batch in loader])
                    self.assertEqual(answer["total_batch_size"], loader.total_batch_size)

    @staticmethod
    def is_refused(given):
        """As Accelerate's: copies of what is not divided."""
        return given["dp_replicate_size"] > 1 and given["dp_shard_size"] == 1 and (given["tp_size"] > 1 or given["cp_size"] > 1)


def layout(replicate, shard, **fsdp):
    return {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": str(replicate),
            "PARALLELISM_CONFIG_DP_SHARD_SIZE": str(shard), **fsdp}


def fsdp(version):
    return {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": str(version)}


# By the number of processes.
ENVIRONMENTS = {
    1: [{}, layout(1, 1), layout(1, 2)],
    2: [{}, {"ACCELERATE_FP8_BACKEND": "TE", "PARALLELISM_CONFIG_DP_SHARD_SIZE": "7"}, layout(1, 1), layout(2, 1), layout(1, 2),
        layout(2, 2), layout(1, 2, **fsdp(2)), layout(2, 1, **fsdp(2)), layout(1, 1, **fsdp(2)), layout(1, 2, **fsdp(1))],
    4: [layout(2, 2), layout(4, 1), layout(1, 4), layout(2, 2, **fsdp(2)), layout(1, 3)],
}


def print_attributes(ports):
    """One after another, for most of the time of a process goes into loading Accelerate: each at a port of its own, where no rank
    meets the store of the one before."""
    for variables, port in zip(ENVIRONMENTS[int(os.environ["WORLD_SIZE"])], ports, strict=True):
        with environment(variables), mock.patch.dict(os.environ, {"ACCELERATE_USE_CPU": "true", "MASTER_PORT": port}), as_on_gpus():
            print(json.dumps(own_attributes()), flush=True)
            AcceleratorState._reset_state(True)
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()


class Accelerators(unittest.TestCase):
    def test_tell_the_same_of_every_layout(self):
        for ranks, environments in ENVIRONMENTS.items():
            ports = [str(free_port()) for _ in environments]
            theirs = run_ranks([PEER, os.path.abspath(__file__), "accelerator", *ports], ranks)
            for number, variables in enumerate(environments):
                with environment(variables):
                    ours = run_ranks([TOOL, "accelerator"], ranks)
                for rank in range(ranks):
                    with self.subTest(ranks=ranks, rank=rank, variables=variables):
                        self.compare(json.loads(ours[rank][-1]), json.loads(theirs[rank][number]), rank, variables)

    def compare(self, ours, theirs, rank, variables):
        self.assertEqual("refused" in ours, "refused" in theirs, (ours, theirs))
        if "refused" in theirs:
            return
        for name, value in theirs.items():
            # Differences that docs/reference/parity.md has: sizes that divide make FSDP here, and copies that nobody laid out a mesh.
            if name in ("is_fsdp2", "is_composable_parallelism_enabled") and "ACCELERATE_USE_FSDP" not in variables:
                continue
            if name == "torch_device_mesh" and value is None and ours[name]:
                self.assertEqual(ours[name]["mesh_dim_names"], ["dp_replicate"])
                self.assertEqual(ours["data_parallel_rank"], rank)
                continue
            self.assertEqual(ours[name], value, name)


class Settings(unittest.TestCase):
    def test_accelerate_reads_the_recipes_of_fp8(self):
        classes = {"te": TERecipeKwargs, "msamp": MSAMPRecipeKwargs, "fp8": FP8RecipeKwargs}
        cases = [{"kind": "te"}, {"kind": "msamp"}, {"kind": "msamp", "opt_level": "O1"}, {"kind": "fp8"},
                 {"kind": "fp8", "backend": "msamp", "opt_level": "O1", "margin": 3},
                 {"kind": "te", "use_autocast_during_eval": True, "margin": 2, "interval": 5, "fp8_format": "e4m3",
                  "amax_history_len": 16, "amax_compute_algo": "MAX", "override_linear_precision": [True, False, True],
                  "use_mxfp8_block_scaling": True},
                 {"kind": "te", "fp8_format": "E8M0"}, {"kind": "te", "amax_compute_algo": "least"},
                 {"kind": "msamp", "opt_level": "O3"}, {"kind": "fp8", "backend": "ao"}]
        available = mock.patch.multiple(dataclasses, is_transformer_engine_available=lambda: True,
                                        is_msamp_available=lambda: False)
        for case, ours in zip(cases, ask(fp8=cases)["fp8"], strict=True):
            fields = {name: tuple(value) if isinstance(value, list) else value for name, value in case.items() if name != "kind"}
            with self.subTest(case=case), available:
                try:
                    with environment({}):
                        theirs = classes[case["kind"]](**fields).to_dict()
                except ValueError:
                    self.assertIn("refused", ours)
                    continue
                with environment(ours):
                    read = classes[case["kind"]]().to_dict()
                    if case["kind"] == "fp8":  # the deprecated class reads no variable for this field
                        read["opt_level"] = theirs["opt_level"] and MSAMPRecipeKwargs().opt_level
                    self.assertEqual(read, theirs)
                self.assertEqual(ours["ACCELERATE_MIXED_PRECISION"], "fp8")

    def test_accelerate_reads_the_recipe_of_torchao(self):
        class Config(dict):
            pass

        case = {"kind": "ao", "pad_inner_dim": False}
        ours = ask(fp8=[case])["fp8"][0]
        torchao = mock.Mock(Float8LinearConfig=lambda **fields: Config(fields))
        with environment(ours), mock.patch.object(dataclasses, "is_torchao_available", lambda: True), \
                mock.patch.dict(sys.modules, {"torchao": mock.Mock(), "torchao.float8": torchao}):
            self.assertEqual(AORecipeKwargs().config, {"pad_inner_dim": False, "enable_fsdp_float8_all_gather": True})

    def test_accelerate_reads_the_plugin_of_torch_compile(self):
        cases = [{}, {"backend": "inductor"}, {"backend": "AOT_EAGER", "mode": "max-autotune", "fullgraph": True, "dynamic": False},
                 {"backend": "eager", "dynamic": True, "use_regional_compilation": True}]
        for case, ours in zip(cases, ask(dynamo=cases)["dynamo"], strict=True):
            with self.subTest(case=case):
                with environment({}):
                    theirs = TorchDynamoPlugin(**case).to_dict()
                with environment(ours):
                    self.assertEqual(TorchDynamoPlugin().to_dict(), theirs)


if __name__ == "__main__":
    if sys.argv[1:2] == ["accelerator"]:
        print_attributes(sys.argv[2:])
    else:
        unittest.main(verbosity=2)
