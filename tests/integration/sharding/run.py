#!/usr/bin/env python3
"""The example of sharding as a user runs it: the losses of copies, by flag and by environment, and on from a checkpoint."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["ACCEL_BUILD_DIR"])
SOURCE = pathlib.Path(os.environ["ACCEL_SOURCE_DIR"])
# Clipping sums the squares of a sharded gradient in another order: a relative error of 2^-24 times some thousand terms, which
# 8 steps of AdamW at a learning rate of at most 1e-3 pass on.
TOLERANCE = 1e-3


class Sharding(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)

    def run_example(self, *arguments, name, flags=("--cpu", "--num_processes", "2"), **env):
        done = subprocess.run([BUILD / "bin/accel-launch", *flags, BUILD / "examples/char_gpt", "--",
                               "--batch_size", "4", "--save_steps", "2", "--project_dir", pathlib.Path(self.scratch.name) / name,
                               *arguments], env={**os.environ, **env}, capture_output=True, text=True, errors="replace", timeout=240)
        return done

    def losses(self, *arguments, name, **more):
        done = self.run_example(*arguments, name=name, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+) loss (\S+)$", done.stdout, re.M)}

    def assert_close(self, losses, expected):
        self.assertEqual(sorted(losses), sorted(expected))
        for step, loss in losses.items():
            self.assertAlmostEqual(loss, expected[step], delta=TOLERANCE, msg=f"step {step}")

    def test_losses_are_those_of_copies_and_a_run_goes_on_as_either(self):
        copies = self.losses("--max_steps", "8", name="copies")
        self.assertEqual(sorted(copies), [2, 4, 6, 8])
        self.assert_close(self.losses("--fsdp", "FULL_SHARD", "--max_steps", "8", name="flag"), copies)
        by_environment = self.losses("--max_steps", "4", name="resumed", ACCELERATE_USE_FSDP="true",
                                     FSDP_SHARDING_STRATEGY="SHARD_GRAD_OP", FSDP_AUTO_WRAP_POLICY="TRANSFORMER_BASED_WRAP",
                                     FSDP_TRANSFORMER_CLS_TO_WRAP="GptBlock")
        self.assert_close(by_environment, {step: copies[step] for step in (2, 4)})
        on = self.losses("--resume", "--max_steps", "8", name="resumed")
        self.assert_close(on, {step: copies[step] for step in (6, 8)})

    def test_a_learning_rate_that_is_no_number_is_refused_by_name(self):
        done = subprocess.run([BUILD / "examples/char_gpt", "--lr", "nan", "--max_steps", "1", "--project_dir", self.scratch.name],
                              capture_output=True, text=True, timeout=120)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--lr: not a number: nan", done.stderr)

    def test_the_configuration_files_shard_and_losses_are_those_of_copies(self):
        for version, precision in ((1, "no"), (2, "bf16")):
            copies = self.losses("--mixed_precision", precision, "--max_steps", "4", name=f"copies{version}")
            config = str(SOURCE / f"configs/fsdp{version}.yaml")
            done = self.run_example("--max_steps", "4", name=f"config{version}", flags=("--config_file", config),
                                    FSDP_SHARDING_STRATEGY="NO_SHARD")  # what the file says beats what is inherited
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assert_close(dict((int(step), float(loss)) for step, loss in
                                   re.findall(r"^step (\d+) loss (\S+)$", done.stdout, re.M)), copies)

    def test_the_flags_shard_and_losses_are_those_of_copies(self):
        copies = self.losses("--max_steps", "4", name="copies")
        flags = ("--use_fsdp", "--num_processes", "2", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP",
                 "--fsdp_transformer_layer_cls_to_wrap")
        divided = self.losses("--max_steps", "4", name="divided", flags=(*flags, "GptBlock"))
        self.assert_close(divided, copies)
        # docs/guides/activations.md
        recomputed = self.losses("--max_steps", "4", name="recomputed",
                                 flags=(*flags, "GptBlock", "--fsdp_activation_checkpointing", "true"))
        self.assertEqual(recomputed, divided)
        selective = self.losses("--max_steps", "4", name="selective",
                                flags=(*flags, "GptBlock", "--fsdp_activation_checkpointing", "true",
                                       "--fsdp_recompute_granularity", "selective"))
        self.assertEqual(selective, divided)
        done = self.run_example(name="no_units", flags=(*flags[:3], "--fsdp_activation_checkpointing", "true"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("without an auto_wrap_policy", done.stderr)
        done = self.run_example(name="wrong_class", flags=(*flags, "BertLayer"))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("could not find the transformer layer class BertLayer", done.stderr)

    def test_a_class_that_no_module_has_is_named_with_those_that_there_are(self):
        config = pathlib.Path(self.scratch.name) / "fsdp.yaml"
        text = (SOURCE / "configs/fsdp1.yaml").read_text()
        self.assertIn("GptBlock", text)
        config.write_text(text.replace("GptBlock", "BertLayer"))
        done = self.run_example(name="wrong_class", flags=("--config_file", str(config)))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("could not find the transformer layer class BertLayer", done.stderr)

    def test_a_strategy_that_is_none_is_named_with_those_that_are(self):
        done = self.run_example("--fsdp", "EVERYTHING", name="wrong")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("'EVERYTHING' is no sharding strategy; expected one of FULL_SHARD, SHARD_GRAD_OP", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=1)
