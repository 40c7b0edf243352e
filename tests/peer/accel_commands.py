#!/usr/bin/env python3
"""Commands of `accel` that work on files give what those of the peer give: estimate-memory, to-fsdp2, tpu-config."""
import contextlib
import io
import os
import pathlib
import random
import subprocess
import tempfile
import unittest

import peer_python  # runs this script under the peer's Python

BUILD = pathlib.Path(peer_python.BUILD)

import logging

import torch
import yaml
from accelerate.commands.estimate import create_ascii_table, estimate_training_usage
from accelerate.commands.to_fsdp2 import convert_config_to_fsdp2
from accelerate.commands.tpu import tpu_command_launcher, tpu_command_parser
from accelerate.utils import calculate_maximum_sizes, convert_bytes
from safetensors.torch import save_file

DTYPES = {"float32": 1, "float16": 2, "int8": 4, "int4": 8}


def accel(*arguments):
    return subprocess.run([BUILD / "bin/accel", *map(str, arguments)], capture_output=True, text=True, check=False)


def cells(table):
    return [[cell.strip() for cell in line.split("│")] for line in table.splitlines() if "│" in line]


class EstimateMemory(unittest.TestCase):
    def test_the_table_is_the_peers(self):
        model = torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.BatchNorm1d(500, track_running_stats=False),
                                    torch.nn.Sequential(torch.nn.Conv2d(3, 64, 7), torch.nn.Linear(500, 700)))
        total, (largest, _) = calculate_maximum_sizes(model)
        rows = []
        for dtype, divisor in DTYPES.items():
            training = max(estimate_training_usage(total, dtype).values())
            rows.append([dtype, convert_bytes(largest / divisor), convert_bytes(total / divisor),
                         convert_bytes(training) if training != -1 else "N/A"])
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "gr\u00f6\u00dfer.safetensors"
            save_file({name: tensor.detach() for name, tensor in model.state_dict().items()}, path)
            headers = ["dtype", "Largest Layer", "Total Size", "Training using Adam"]
            expected = create_ascii_table(headers, rows, f"Memory Usage for loading `{path}`")
            done = accel("estimate-memory", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        # The peer makes the last column one wider than a long title needs.
        self.assertEqual(cells(done.stdout), cells(expected), f"\n{done.stdout}\n{expected}")
        self.assertEqual(len({len(line) for line in done.stdout.splitlines()}), 1, done.stdout)


class TpuConfig(unittest.TestCase):
    def test_the_line_is_the_peers(self):
        for words in (["--command", "ls"], ["--command", "ls", "pwd"], ["--command", "ls", "--command", 'echo "Hello World"', "--use_alpha"],
                      ["--command", "ls", "--install_accelerate", "--accelerate_version", "12.0.0"],
                      ["--command", "ls", "--install_accelerate", "--accelerate_version", "dev"]):
            words = ["--tpu_zone", "us-central1-a", "--tpu_name", "test-tpu", "--debug", *words]
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                tpu_command_launcher(tpu_command_parser().parse_args(words))
            done = accel("tpu-config", *words)
            self.assertEqual((done.returncode, done.stdout), (0, said.getvalue()), done.stderr)


class ToFsdp2(unittest.TestCase):
    KEYS = {
        "fsdp_auto_wrap_policy": ["TRANSFORMER_BASED_WRAP", "NO_WRAP"],
        "fsdp_backward_prefetch": ["BACKWARD_PRE"],
        "fsdp_forward_prefetch": [True, False],
        "fsdp_cpu_ram_efficient_loading": [True, False],
        "fsdp_offload_params": [True, False],
        "fsdp_sharding_strategy": ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"],
        "fsdp_reshard_after_forward": ["FULL_SHARD", "NO_SHARD", True],
        "fsdp_state_dict_type": ["SHARDED_STATE_DICT"],
        "fsdp_sync_module_states": [True],
        "fsdp_transformer_layer_cls_to_wrap": ["BertLayer", "no", "a: b"],
        "fsdp_min_num_params": [2000],
        "fsdp_use_orig_params": [True],
        "fsdp_activation_checkpointing": [False],
        "fsdp_version": [1, 2],
        "unknown": [5, "1:30", None, 0.5, "on"],
    }

    def test_files_become_those_of_the_peer(self):
        logging.disable(logging.CRITICAL)
        dice = random.Random(int(os.environ.get("ACCEL_TEST_SEED", "1")))
        for _ in range(60):
            keys = dice.sample(sorted(self.KEYS), dice.randint(0, len(self.KEYS)))
            config = {"distributed_type": "FSDP", "mixed_precision": "no", "commands": None, "tpu_env": [],
                      "fsdp_config": {key: dice.choice(self.KEYS[key]) for key in keys}}
            with tempfile.TemporaryDirectory() as folder:
                before, after = pathlib.Path(folder) / "a.yaml", pathlib.Path(folder) / "b.yaml"
                before.write_text(yaml.dump(config))
                done = accel("to-fsdp2", "--config_file", before, "--output_file", after)
                self.assertEqual(done.returncode, 0, done.stderr)
                found = yaml.safe_load(after.read_text())
                # The file says it in the order of its keys, which is that of yaml.dump().
                expected = convert_config_to_fsdp2(yaml.safe_load(before.read_text()))
            self.assertEqual(found, expected)


if __name__ == "__main__":
    unittest.main()
