#!/usr/bin/env python3
"""`accel plan`: what it tells of an exported model, as a table and as JSON; what fits, and what would; wrong input."""
import json
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

    def test_fit_names_the_strategy_that_moves_the_fewest_bytes(self):
        told = self.planned("--num_processes", 4, "--num_machines", 2, "--memory", "1GiB", "--fit")
        moved = {row["strategy"]: row["moved_bytes"] for row in told["strategies"]}
        self.assertTrue(all(row["fits"] for row in told["strategies"]))
        self.assertEqual(moved[told["fit"]["strategy"]], min(moved.values()))

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

    def test_where_nothing_fits_the_batch_that_is_named_is_the_largest_that_does(self):
        limit = self.planned("--batch_size", 20)["strategies"][0]["peak"]
        fit = self.planned("--batch_size", 64, "--memory", limit, "--fit")["fit"]
        self.assertIsNone(fit["strategy"])
        self.assertEqual(fit["batch_size"], 20)
        self.assertEqual(fit["missing"], self.planned("--batch_size", 64)["strategies"][0]["peak"] - limit)

    def test_where_no_batch_fits_that_is_said(self):
        done = plan(BLOCKS, "--memory", "1KB", "--fit")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("nothing fits", done.stdout)
        self.assertIn("neither smaller batches nor more processes help", done.stdout)

    def test_the_table_says_what_fits(self):
        done = plan(BLOCKS, "--num-processes", 2, "--memory", "1GiB", "--fit")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(lines[1].split(), ["strategy", "weights", "gradients", "optimizer", "activations", "shared", "peak", "fits"])
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
