#!/usr/bin/env python3
"""`accel plan`: what it tells of an exported model, as a table and as JSON; what fits, and what would; wrong input."""
import json
import re
import subprocess
import sys
import pathlib
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from programs import BIN, PATIENCE, SOURCE  # noqa: E402

MODELS = SOURCE / "tests/unit/libaccel/exported/models"
BLOCKS = MODELS / "blocks.pt2"
FLOAT = 4


def plan(*words):
    command = [str(BIN / "accel"), "plan", *map(str, words)]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)


class Plan(unittest.TestCase):
    def planned(self, *words):
        done = plan(BLOCKS, "--sequence_length", 32, "--json", *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def strategies(self, *words):
        return {row["strategy"]: row for row in self.planned(*words)["strategies"]}

    def refused(self, *words):
        done = plan(*words)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertEqual(done.stdout, "")
        return done.stderr

    def test_one_process_has_whole_weights_gradients_and_states(self):
        told = self.planned()
        self.assertEqual([row["strategy"] for row in told["strategies"]], ["DDP"])
        row = told["strategies"][0]
        self.assertEqual(row["parameters"], FLOAT * told["parameters"])
        self.assertEqual(row["gradients"], FLOAT * told["parameters"])
        self.assertEqual(row["optimizer"], 2 * FLOAT * told["parameters"])
        self.assertLess(row["peak"], row["parameters"] + row["whole"] + row["gradients"] + row["optimizer"] + row["activations"] + 1)
        self.assertIsNone(row["fits"])

    def test_activations_grow_with_the_batch_and_states_do_not(self):
        small, large = (self.planned("--batch_size", size)["strategies"][0] for size in (8, 64))
        self.assertAlmostEqual(large["activations"] / small["activations"], 8, delta=0.4)
        self.assertEqual(large["optimizer"], small["optimizer"])

    def test_sgd_has_no_states(self):
        self.assertEqual(self.planned("--optimizer", "sgd")["strategies"][0]["optimizer"], 0)

    def test_mixed_precision_and_accumulation_change_the_plan(self):
        plain = self.planned("--batch_size", 64)["strategies"][0]["peak"]
        self.assertNotEqual(self.planned("--batch_size", 64, "--mixed_precision", "bf16")["strategies"][0]["peak"], plain)
        self.assertGreater(self.planned("--batch_size", 64, "--gradient_accumulation_steps", 2)["strategies"][0]["peak"], plain)

    def test_processes_divide_by_strategy(self):
        rows = self.strategies("--num_processes", 4)
        self.assertEqual(list(rows), ["DDP", "ZeRO-1", "SHARD_GRAD_OP", "FULL_SHARD"])
        self.assertEqual(rows["ZeRO-1"]["optimizer"] * 4, rows["DDP"]["optimizer"])
        self.assertEqual(rows["FULL_SHARD"]["gradients"] * 4, rows["DDP"]["gradients"])

    def test_fit_names_the_strategy_with_the_shortest_step(self):
        told = self.planned("--num_processes", 4, "--num_machines", 2, "--memory", "1GiB", "--fit")
        seconds = {row["strategy"]: row["seconds"] for row in told["strategies"]}
        self.assertTrue(all(row["fits"] for row in told["strategies"]))
        self.assertEqual(seconds[told["fit"]["strategy"]], min(seconds.values()))

    def test_a_slower_network_lengthens_the_steps_over_several_machines(self):
        words = ("--num_processes", 4, "--num_machines", 2, "--network_rate")
        fast, slow = (self.strategies(*words, rate) for rate in ("100GB", "1KB"))
        for name, row in fast.items():
            self.assertGreater(slow[name]["seconds"], 10 * row["seconds"], name)
        # What is left of the step is nothing beside the network: FULL_SHARD sends half as much again as the others.
        self.assertAlmostEqual(slow["FULL_SHARD"]["seconds"] / slow["DDP"]["seconds"], 1.5, delta=0.01)

    def test_a_class_of_layers_adds_rows_that_compute_them_again(self):
        words = ("--batch_size", 64, "--num_processes", 2, "--fsdp_transformer_layer_cls_to_wrap", "Block")
        rows = self.planned(*words)["strategies"]
        self.assertEqual([(row["strategy"], row["recomputation"]) for row in rows],
                         [(name, "none") for name in ("DDP", "ZeRO-1", "SHARD_GRAD_OP", "FULL_SHARD")] +
                         [(name, how) for how in ("selective", "full") for name in ("DDP", "SHARD_GRAD_OP", "FULL_SHARD")])
        of = {(row["strategy"], row["recomputation"]): row for row in rows}
        for name in ("DDP", "SHARD_GRAD_OP", "FULL_SHARD"):
            none, selective, full = (of[name, how] for how in ("none", "selective", "full"))
            self.assertLess(full["peak"], selective["peak"])
            self.assertLess(selective["peak"], none["peak"])
            self.assertEqual((none["extra_flops"], selective["extra_flops"]), (0, 0))
            self.assertGreater(full["extra_flops"], 0)

    def test_fit_computes_again_only_what_it_has_to(self):
        words = ("--batch_size", 64, "--fsdp_transformer_layer_cls_to_wrap", "Block", "--fit", "--memory")
        peaks = {row["recomputation"]: row["peak"] for row in self.planned(*words, "1GiB")["strategies"]}
        for how, peak in peaks.items():
            self.assertEqual(self.planned(*words, peak)["fit"]["recomputation"], how)
        self.assertIsNone(self.planned(*words, min(peaks.values()) - 1)["fit"]["strategy"])
        done = plan(BLOCKS, "--sequence_length", 32, *words, peaks["selective"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("fastest that fits: one process, selective recomputation (--fsdp NO_SHARD; FSDP_ACTIVATION_CHECKPOINTING=true",
                      done.stdout.splitlines()[-1])
        self.assertIn("NoSuch", self.refused(BLOCKS, "--fsdp_transformer_layer_cls_to_wrap", "NoSuch"))

    def test_fit_computes_as_few_layers_again_as_it_has_to(self):
        words = ("--batch_size", 64, "--fsdp_transformer_layer_cls_to_wrap", "Block", "--fit", "--memory")
        rows = {row["recomputation"]: row for row in self.planned(*words, "1GiB")["strategies"]}
        limit = rows["selective"]["peak"] - 1
        told = self.planned(*words, limit)["fit"]
        self.assertEqual((told["recomputation"], told["layers"]), ("full", ["blocks.0"]), "of two")
        done = plan(BLOCKS, "--sequence_length", 32, *words, limit)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("full recomputation of 1 layer (", done.stdout)
        self.assertIn("FSDP_TRANSFORMER_CLS_TO_WRAP=blocks.0)", done.stdout)

    def test_where_nothing_fits_the_batch_that_is_named_is_the_largest_that_does(self):
        limit = self.planned("--batch_size", 20)["strategies"][0]["peak"]
        fit = self.planned("--batch_size", 64, "--memory", limit, "--fit")["fit"]
        self.assertIsNone(fit["strategy"])
        self.assertEqual(fit["batch_size"], 20)
        self.assertEqual(fit["missing"], self.planned("--batch_size", 64)["strategies"][0]["peak"] - limit)

    def test_where_nothing_helps_that_is_said(self):
        done = plan(BLOCKS, "--memory", "1KB", "--fit")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("nothing fits", done.stdout)
        self.assertIn("neither smaller batches, more processes nor a disk for the optimizer help", done.stdout)

    def test_what_is_missing_is_said_to_the_byte_with_the_changes_that_help(self):
        # So that the largest batch below, another process and the disk are enough, each alone.
        words = ("--sequence_length", 32, "--batch_size", 2)
        row = self.planned("--batch_size", 2)["strategies"][0]
        limit = row["peak"] - 1
        done = plan(BLOCKS, *words, "--memory", limit, "--fit")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        begin = next(i for i, line in enumerate(lines) if line.startswith("nothing fits: "))
        self.assertIn("the least, one process, takes", lines[begin])
        self.assertIn("1 bytes (1 bytes) are missing", lines[begin])
        told = self.planned("--batch_size", 2, "--memory", limit, "--fit")["fit"]
        changes = [line for line in lines[begin + 1:] if line.startswith("  ")]
        self.assertEqual(any("--batch_size 1 in place of 2" in line for line in changes), told["batch_size"] == 1)
        self.assertEqual(any(f"--num_processes {told['num_processes']} in place of 1" in line for line in changes),
                         told["num_processes"] is not None)
        self.assertEqual(any("optimizer on disk" in line and f"({told['disk']} bytes)" in line for line in changes),
                         told["disk"] is not None)
        self.assertTrue(changes)

    def test_a_folder_adds_rows_with_the_optimizer_on_its_disk(self):
        with tempfile.TemporaryDirectory() as folder:
            told = self.planned("--num_processes", 4, "--offload_optimizer_nvme_path", folder)
        rows = {(row["strategy"], row["optimizer_on_disk"]): row for row in told["strategies"]}
        self.assertEqual([key for key in rows if key[1]],
                         [(name, True) for name in ("DDP", "ZeRO-1", "SHARD_GRAD_OP", "FULL_SHARD")])
        self.assertGreater(told["disk_free"], 0)
        for (name, on_disk), row in rows.items():
            self.assertEqual(row["disk"], rows[name, False]["optimizer"] if on_disk else 0)
            self.assertLessEqual(row["peak"], rows[name, False]["peak"])
        self.assertIn("folder", self.refused(BLOCKS, "--offload_optimizer_nvme_path", "/no/such/folder"))

    def test_the_optimizer_goes_to_a_disk_where_nothing_fits_into_memory_and_so_it_trains(self):
        with tempfile.TemporaryDirectory() as folder:
            words = ("--num_processes", 2, "--batch_size", 64, "--offload_optimizer_nvme_path", folder, "--fit", "--memory")
            rows = self.planned(*words, "1GiB")
            self.assertFalse(rows["fit"]["optimizer_on_disk"])
            least = {on_disk: min(row["peak"] for row in rows["strategies"] if row["optimizer_on_disk"] == on_disk)
                     for on_disk in (False, True)}
            self.assertLess(least[True], least[False])
            self.assertTrue(self.planned(*words, least[True])["fit"]["optimizer_on_disk"])
            done = plan(BLOCKS, "--sequence_length", 32, *words, least[True])
            told = re.search(r"fastest that fits: .*, optimizer on disk \((.*)\)", done.stdout)
            self.assertTrue(told, done.stdout)
            tokens = pathlib.Path(folder) / "tokens.bin"
            tokens.write_bytes(bytes(2 * 33 * 256))
            trained = subprocess.run(
                [str(BIN / "accel"), "train", "--num_processes", "2", *told[1].split(), str(BLOCKS), "--data", str(tokens),
                 "--sequence_length", "32", "--batch_size", "64", "--max_steps", "1", "--project_dir", folder + "/project"],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual(trained.returncode, 0, trained.stderr)

    def test_the_table_says_what_fits(self):
        done = plan(BLOCKS, "--num-processes", 2, "--memory", "1GiB", "--fit")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(lines[1].split(), ["strategy", "weights", "gradients", "optimizer", "activations", "shared", "peak", "step", "fits"])
        self.assertEqual([line.split()[0] for line in lines[2:6]], ["DDP", "ZeRO-1", "SHARD_GRAD_OP", "FULL_SHARD"])
        self.assertTrue(lines[-1].startswith("fastest that fits: "), lines[-1])

    def test_odd_input_is_refused(self):
        self.assertIn("nosuch.pt2", self.refused("nosuch.pt2"))
        self.assertIn("--memory", self.refused(BLOCKS, "--fit"))
        self.assertIn("16XB", self.refused(BLOCKS, "--memory", "16XB"))
        self.assertIn("3 processes on 2 machines", self.refused(BLOCKS, "--num_processes", 3, "--num_machines", 2))
        self.assertIn("--batch_size", self.refused(BLOCKS, "--batch_size", 0))
        with tempfile.NamedTemporaryFile(suffix=".pt2") as text:
            text.write(b"no archive")
            text.flush()
            self.assertIn(text.name, self.refused(text.name))


if __name__ == "__main__":
    unittest.main()
