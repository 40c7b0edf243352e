#!/usr/bin/env python3
"""Options of FSDP and its like become the same variables under accel-launch and under the peer.

Flags and configuration files are drawn at random from the peer's own parser. The peer's side is computed in this
process, by the functions that `accelerate launch` calls; accel-launch really starts a program that writes down its
environment. ACCEL_TEST_SEED draws other ones. What accel-launch does better on purpose is not drawn: it is in the unit
tests, and in docs/reference/parity.md.
"""
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import unittest
from unittest import mock

import peer_python  # runs this script under the peer's Python

SOURCE = pathlib.Path(peer_python.SOURCE)
BUILD = pathlib.Path(peer_python.BUILD)

import logging

import yaml
from accelerate.commands import launch
from accelerate.utils import launch as preparation

logging.disable(logging.WARNING)  # the peer's list of defaults, at each launch
LAUNCHER = BUILD / "bin/accel-launch"
VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "MLU_VISIBLE_DEVICES", "SDAA_VISIBLE_DEVICES",
                   "MUSA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES",
                   "NEURON_RT_VISIBLE_CORES")
PREFIXES = ("ACCELERATE_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_", "PYTHONPATH", *VISIBLE_DEVICES)
ROUNDS = 12
BOOLEAN = ("true", "false", "True", "False")
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD")
DEVICES = ("none", "cpu", "CPU")
# What an option may say where its type does not tell.
VALUES = {
    "fsdp_sharding_strategy": (*STRATEGIES, "1", "2"),
    "fsdp_auto_wrap_policy": ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"),
    "fsdp_transformer_layer_cls_to_wrap": ("BertLayer", "GptBlock,BertLayer"),
    "fsdp_backward_prefetch": ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
    "fsdp_state_dict_type": ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"),
    # The other way round both sides refuse it.
    "fsdp_sync_module_states": ("true",),
    "zero_stage": ("0", "1", "2", "3"),
    "offload_optimizer_device": DEVICES,
    "offload_param_device": DEVICES,
    "deepspeed_config_file": ("JSON",),
    "deepspeed_moe_layer_cls_names": ("Experts", "MixtralSparseMoeBlock,Experts"),
    "deepspeed_multinode_launcher": ("pdsh", "standard", "nossh"),
    # One process is neither divided by layers nor by stages.
    "megatron_lm_tp_degree": ("1",),
    "megatron_lm_pp_degree": ("1",),
    "megatron_lm_context_parallel_size": ("1",),
    "megatron_lm_recompute_granularity": ("full", "selective"),
    "megatron_lm_recompute_method": ("uniform", "block"),
    "megatron_lm_attention_backend": ("flash", "auto"),
    "parallelism_config_dp_shard_size": ("1", "2"),
    "parallelism_config_dp_replicate_size": ("1",),
    "parallelism_config_tp_size": ("1",),
    "parallelism_config_cp_size": ("1",),
    "parallelism_config_sp_size": ("1",),
    "parallelism_config_cp_comm_strategy": ("allgather", "alltoall"),
    "parallelism_config_sp_seq_length": ("512",),
    "parallelism_config_sp_attn_implementation": ("sdpa", "flash_attention_2"),
    "fp8_override_linear_precision": ("true,false,false", "false,true,true"),
}
IN_FILES = {
    "fp8_override_linear_precision": ([True, False, False], [False, False, True]),
    "fp8_backend": ("TE", "AO", "MSAMP", "te"),
    "gradient_clipping": ("auto", 1, 0.5),
    "gradient_accumulation_steps": ("auto", 4),
}
# An agent's; with use_cpu, which the peer leaves out of the variables; for two GPUs; in mpi_launch.py and sagemaker_request.py;
# for two machines of GPUs, and without a number of processes (integration/config_zoo starts these).
OTHER_CONFIGS = {"agent.yaml", "mpirun.yaml", "sagemaker.yaml", "fsdp1.yaml", "fsdp2.yaml", "multi_gpu.yaml", "multi_node.yaml",
                 "slurm.yaml"}
# Lost by the peer, whose workers read them.
LEFT_OUT = {"offload_optimizer_nvme_path", "offload_param_nvme_path"}
# Group of the peer's parser -> flags that choose it, what a file says in their place, the section of the file.
GROUPS = {
    "FSDP Arguments": (["--use_fsdp"], {"distributed_type": "FSDP"}, "fsdp_config"),
    "DeepSpeed Arguments": (["--use_deepspeed"], {"distributed_type": "DEEPSPEED"}, "deepspeed_config"),
    "Megatron-LM Arguments": (["--use_megatron_lm"], {"distributed_type": "MEGATRON_LM"}, "megatron_lm_config"),
    "FP8 Arguments": (["--cpu", "--mixed_precision", "fp8"],
                      {"distributed_type": "NO", "use_cpu": True, "mixed_precision": "fp8"}, "fp8_config"),
    "ParallelismConfig Arguments": (["--use_fsdp", "--fsdp_version", "2", "--use_parallelism_config"],
                                    {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}},
                                    "parallelism_config"),
}


def values_of(action):
    if action.dest in VALUES:
        return VALUES[action.dest]
    if action.choices:
        return tuple(action.choices)
    if action.type is bool:  # the peer takes every other word for True too
        return ("True", "true")
    return {int: ("1", "7", "4096"), float: ("0.5", "1", "1e-5", "2.25")}.get(action.type, BOOLEAN)


def options_of(parser, group):
    (found,) = [one for one in parser._action_groups if one.title == group]
    return [action for action in found._group_actions if action.nargs != 0 and action.dest not in LEFT_OUT]


def in_file(dice, action):
    if action.type is bool:
        return dice.choice((True, False))
    if action.dest in IN_FILES:
        return dice.choice(IN_FILES[action.dest])
    text = dice.choice(values_of(action))
    if action.type is float:  # PyYAML takes 1e-5 for a text
        return float(text)
    return {"true": True, "True": True, "false": False, "False": False}.get(text, yaml.safe_load(text))


def environment(home):
    return {"PATH": os.environ["PATH"], "HOME": home, "HF_HOME": home, "OMP_NUM_THREADS": "2", "PYTHONPATH": "/modules"}


def of_options(variables):
    return {name: text for name, text in variables.items() if name.startswith(PREFIXES)}


def prepared(args, defaults, is_precision_of_file):
    """As launch_command() of the peer."""
    if args.use_deepspeed and not args.cpu:
        fields = list(defaults.deepspeed_config) if defaults else []
        args.deepspeed_fields_from_accelerate_config = ",".join(
            fields + ["mixed_precision"] * is_precision_of_file)
        return preparation.prepare_deepspeed_cmd_env(args)[1]
    if (args.use_fsdp or args.use_megatron_lm or args.multi_gpu) and not args.cpu:
        return preparation.prepare_multi_gpu_env(args)
    return preparation.prepare_simple_launcher_cmd_env(args)[1]


class LaunchOptions(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)
        self.dice = random.Random(int(os.environ.get("ACCEL_TEST_SEED", "1")))
        self.parser = launch.launch_command_parser()
        self.json = self.scratch / "deepspeed.json"
        self.json.write_text('{"train_batch_size": "auto"}')

    def peer(self, flags):
        """The variables that launch_command() would start the workers with."""
        with mock.patch.dict(os.environ, environment(str(self.scratch)), clear=True), \
                mock.patch.object(preparation, "is_fp8_available", lambda: True), \
                mock.patch.object(preparation, "is_port_in_use", lambda port: False):
            os.chdir(SOURCE)
            return of_options(prepared(*launch._validate_launch_command(self.parser.parse_args([*flags, "script"]))))

    def ours(self, flags):
        """What accel-launch really starts them with; of several ranks, what they all have."""
        dumps = self.scratch / "dumps"
        dumps.mkdir()
        done = subprocess.run([LAUNCHER, *flags, "/bin/sh", "-c", 'env -0 > "$0/${RANK-0}"', str(dumps)],
                              env=environment(str(self.scratch)), capture_output=True, text=True, timeout=60, cwd=SOURCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        ranks = [of_options(dict(entry.split("=", 1) for entry in path.read_text().split("\0") if "=" in entry))
                 for path in sorted(dumps.iterdir())]
        shutil.rmtree(dumps)
        for other in ranks:
            self.assertEqual(other, ranks[0])
        return ranks[0]

    def compare(self, flags):
        flags = [str(self.json) if flag == "JSON" else flag for flag in flags]
        ours, peer = self.ours(flags), self.peer(flags)
        if "ACCELERATE_USE_CPU" not in peer:  # "Environment" of docs/reference/parity.md: several workers, and no device
            self.assertEqual(ours.pop("ACCELERATE_USE_CPU", "True"), "True")
        self.assertEqual(ours, peer)

    def drawn(self, group, chosen):
        """Flags that the number of processes fits."""
        flags = [word for action in chosen for word in (action.option_strings[0], self.dice.choice(values_of(action)))]
        shards = any(one.endswith("_dp_shard_size") and two == "2" for one, two in zip(flags, flags[1:]))
        return [*GROUPS[group][0], "--num_processes", "2" if shards else "1", *flags]

    def test_defaults(self):
        for chooser, _, _ in GROUPS.values():
            with self.subTest(chooser):
                self.compare([*chooser, "--num_processes", "1"])

    def test_flags(self):
        for group in GROUPS:
            options = options_of(self.parser, group)
            for _ in range(ROUNDS):
                flags = self.drawn(group, self.dice.sample(options, self.dice.randint(1, len(options))))
                with self.subTest(flags):
                    self.compare(flags)

    def test_devices_of_other_makers(self):
        """The peer sees which runtime is installed, accel-launch what the file says."""
        for device in ("xpu", "mlu", "sdaa", "musa", "npu", "hpu", "neuron"):
            config = self.scratch / f"{device}.yaml"
            config.write_text(f"distributed_type: MULTI_{device.upper()}\nnum_processes: 2\ngpu_ids: '0,1'\n")
            with mock.patch.object(preparation, f"is_{device}_available", lambda: True), self.subTest(device):
                ours = self.ours(["--config_file", str(config)])
                self.assertEqual(ours, self.peer(["--config_file", str(config)]))
                self.assertIn("0,1", ours.values())

    def test_files_and_a_flag_that_beats_them(self):
        for group, (_, content, section) in GROUPS.items():
            options = [option for option in options_of(self.parser, group) if not option.dest.endswith("_size")]
            for number in range(ROUNDS):
                chosen = self.dice.sample(options, self.dice.randint(1, len(options)))
                said = {action.dest: in_file(self.dice, action) for action in chosen}
                said = {key: str(self.json) if value == "JSON" else value for key, value in said.items()}
                path = self.scratch / f"{section}{number}.yaml"
                path.write_text(yaml.safe_dump({"num_processes": 1, "num_machines": 1, **content, section: said}))
                action = self.dice.choice(options)
                flags = ["--config_file", str(path), action.option_strings[0], self.dice.choice(values_of(action))]
                with self.subTest(said, flags=flags):
                    self.compare(flags)

    def test_the_files_of_configs(self):
        """Each really launches; environments are the peer's."""
        paths = sorted(path for path in (SOURCE / "configs").glob("*.yaml") if path.name not in OTHER_CONFIGS)
        self.assertGreater(len(paths), 7)
        for path in paths:
            with self.subTest(path.name):
                self.compare(["--config_file", str(path)])

    def test_axes_that_divide_sequences(self):
        chooser = GROUPS["ParallelismConfig Arguments"][0]
        for axis in ("cp", "sp"):
            with self.subTest(axis):
                self.compare([*chooser, "--num_processes", "2", f"--parallelism_config_{axis}_size", "2"])

    def test_other_keys_of_fp8_are_handed_on(self):
        path = self.scratch / "fp8.yaml"
        path.write_text("distributed_type: 'NO'\nuse_cpu: true\nnum_processes: 1\nnum_machines: 1\nmixed_precision: fp8\n"
                        "fp8_config:\n  backend: TE\n  new_option: 3\n  fp8_other: true\n")
        self.compare(["--config_file", str(path)])

    def test_fields_of_deepspeed_name_the_precision_of_the_file(self):
        path = self.scratch / "deepspeed.yaml"
        path.write_text("distributed_type: DEEPSPEED\nnum_processes: 1\nnum_machines: 1\nmixed_precision: bf16\n"
                        "deepspeed_config:\n  zero_stage: 3\n  Zero3_Init_Flag: true\n")
        self.compare(["--config_file", str(path)])
        self.compare(["--config_file", str(path), "--mixed_precision", "fp16"])


if __name__ == "__main__":
    unittest.main()
