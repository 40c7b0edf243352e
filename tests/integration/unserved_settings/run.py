#!/usr/bin/env python3
"""A program of libaccel under flags that it does not act on: it stops where the training would be another one, and says it once where
the numbers stay the same. And libaccel's sources read what docs/reference/env_contract.md says that it reads."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[3]))
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", SOURCE / "build"))

REFUSED = [
    (["--use_megatron_lm", "--megatron_lm_tp_degree", "2"], "ACCELERATE_USE_MEGATRON_LM", "--use_megatron_lm"),
    (["--use_fsdp", "--fsdp_version", "2", "--use_parallelism_config", "--parallelism_config_tp_size", "2"],
     "PARALLELISM_CONFIG_TP_SIZE", "--parallelism_config_tp_size"),
    (["--use_fsdp", "--fsdp_version", "2", "--use_parallelism_config", "--parallelism_config_cp_size", "2"],
     "PARALLELISM_CONFIG_CP_SIZE", "--parallelism_config_cp_size"),
    (["--use_fsdp", "--fsdp_version", "2", "--use_parallelism_config", "--parallelism_config_dp_replicate_size", "2"],
     "dp_replicate_size 2", "set dp_shard_size above 1"),
    (["--use_fsdp", "--fsdp_version", "2", "--use_parallelism_config", "--parallelism_config_dp_shard_size", "3"],
     "hold 3 processes", "give --num_processes 3"),
    (["--mixed_precision", "fp8", "--fp8_backend", "ao"], "fp8", "bf16"),
    (["--use_deepspeed", "--zero_stage", "2", "--offload_param_device", "nvme", "--offload_param_nvme_path", "/tmp"],
     "offload_param_nvme_path", "zero_stage 3"),
]
SAID = [
    (["--dynamo_backend", "inductor"], "ACCELERATE_DYNAMO_BACKEND"),
    (["--use_deepspeed", "--zero_stage", "3", "--zero3_init_flag", "true"], "ACCELERATE_DEEPSPEED_ZERO3_INIT"),
    (["--use_deepspeed", "--zero_stage", "3", "--zero3_save_16bit_model", "true"], "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"),
    (["--use_deepspeed", "--zero_stage", "3", "--deepspeed_moe_layer_cls_names", "Expert"],
     "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"),
]
# To host memory, with the name that the notice says.
OFFLOADED = [
    (["--use_fsdp", "--fsdp_offload_params", "true"], ["--use_fsdp"], "cpu_offload (FSDP_OFFLOAD_PARAMS) true"),
    (["--use_deepspeed", "--zero_stage", "3", "--offload_optimizer_device", "cpu", "--offload_param_device", "cpu"],
     ["--use_deepspeed", "--zero_stage", "3"], "offload_optimizer_device, offload_param_device cpu"),
]


class UnservedSettings(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def train(self, flags):
        command = [BUILD / "bin/accel-launch", "--num_processes", "2", *flags, BUILD / "examples/digits", "--",
                   "--project_dir", self.folder / "project", "--epochs", "1", "--overwrite"]
        # A configuration file of the user's would decide, too.
        environment = os.environ | {"HF_HOME": str(self.folder), "CUDA_VISIBLE_DEVICES": ""}
        return subprocess.run(command, env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=300)

    def test_what_would_change_the_training_is_refused(self):
        for flags, variable, remedy in REFUSED:
            with self.subTest(flags=flags):
                done = self.train(flags)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(variable, done.stderr)
                self.assertIn(remedy, done.stderr)
                self.assertNotIn("test accuracy", done.stdout)

    def test_what_changes_no_number_is_said_once(self):
        for flags, variable in SAID:
            with self.subTest(flags=flags):
                done = self.train(flags)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual((done.stdout + done.stderr).count(f"{variable} is '"), 1, done.stderr)

    def test_offload_to_host_memory_trains_as_without_it_and_is_said_once(self):
        for flags, plain, name in OFFLOADED:
            with self.subTest(flags=flags):
                done = self.train(flags)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual((done.stdout + done.stderr).count(f"{name} changes nothing"), 1, done.stderr)
                accuracy = re.findall(r"test accuracy \S+", done.stdout)
                self.assertTrue(accuracy, done.stdout)
                self.assertEqual(accuracy, re.findall(r"test accuracy \S+", self.train(plain).stdout))

    def test_a_plain_launch_says_nothing(self):
        for flags in ([], ["--use_fsdp"], ["--use_deepspeed", "--zero_stage", "2"]):
            done = self.train(flags)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("has no effect", done.stdout + done.stderr)

    def test_fields_of_the_launchers_file_and_of_deepspeeds_are_refused(self):
        deepspeed = self.folder / "zero.json"
        deepspeed.write_text('{"zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}')
        config = self.folder / "config.yaml"
        config.write_text(f"distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: {deepspeed}\n"
                          "  zero_stage: 3\n  gradient_clipping: 0.5\n")
        done = self.train(["--config_file", config])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("zero_stage", done.stderr)
        self.assertIn("ACCELERATE_CONFIG_DS_FIELDS", done.stderr)

    def test_what_libaccel_is_said_to_read_stands_in_its_sources(self):
        text = "".join(path.read_text() for top in ("libaccel", "runtime") for path in (SOURCE / top).rglob("*.cc")
                       if path.name != "env_variables.cc")
        rows = re.findall(r"^\| (.+?) \| .+? \| (.+?) \|", (SOURCE / "docs/reference/env_contract.md").read_text(), re.M)
        names = [name.strip("` ") for cell, readers in rows if "libaccel" in readers for name in cell.split(",")]
        self.assertGreater(len(names), 40)
        for name in names:
            with self.subTest(name=name):
                self.assertIn(f'"{name}"', text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
