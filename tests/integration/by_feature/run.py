#!/usr/bin/env python3
"""Each file of examples/by_feature does on two processes what its first lines say, has at most 80 lines, and is run here."""
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[3]))
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", SOURCE / "build"))
EXAMPLES = SOURCE / "examples/by_feature"


def num_records(path):
    """Of a file of TensorBoard's events."""
    data, count, at = path.read_bytes(), 0, 0
    while at < len(data):
        at += 8 + 4 + struct.unpack_from("<Q", data, at)[0] + 4
        count += 1
    assert at == len(data), f"{path} ends within a record"
    return count


class ByFeature(unittest.TestCase):
    tried = set()

    @classmethod
    def tearDownClass(cls):
        if len(sys.argv) == 1:
            assert cls.tried == {path.stem for path in EXAMPLES.glob("*.cc")}, f"only {sorted(cls.tried)} were run"

    def run_example(self, name, *arguments, processes=2):
        self.tried.add(name)
        done = subprocess.run(
            [BUILD / "bin/accel-launch", "--cpu", "--num_processes", str(processes), BUILD / "examples/by_feature" / name,
             *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, f"{name}: {done.stdout}{done.stderr}")
        return done.stdout

    def number(self, pattern, text):
        found = re.search(pattern, text)
        self.assertIsNotNone(found, text)
        return float(found[1])

    def test_each_has_at_most_80_lines(self):
        for path in EXAMPLES.glob("*.cc"):
            self.assertLessEqual(len(path.read_text().splitlines()), 80, path)

    def test_gradient_accumulation_steps_for_every_fourth_batch_and_the_last(self):
        out = self.run_example("gradient_accumulation")
        # 250 points in batches of 8 on 2 ranks are 16 batches in each of 10 epochs.
        self.assertIn("160 batches, 40 steps", out)
        self.assertLess(self.number(r"loss ([\d.]+)", out), 0.4)

    def test_weighted_accumulation_counts_tokens(self):
        out = self.run_example("weighted_accumulation")
        # 240 sequences; the lengths of 12 in a row are 1 to 12 tokens.
        self.assertIn("1560 tokens, 8 of 8 symbols", out)

    def test_reproducible_prints_the_same_bits_on_any_number_of_processes(self):
        lines = {self.run_example("reproducible", processes=processes) for processes in (1, 2, 3, 5)}
        self.assertEqual(len(lines), 1, lines)
        self.assertRegex(lines.pop(), r"^loss 0x1\.\w+p-?\+?\d+, sum of weights -?0x")

    def test_early_stopping_stops_all_ranks_in_one_step(self):
        steps = self.number(r"^stopped early after (\d+) steps$", self.run_example("early_stopping"))
        self.assertTrue(1 < steps < 1600, steps)

    def test_metrics_count_each_sample_once(self):
        for processes in (1, 2, 3):
            out = self.run_example("multi_process_metrics", processes=processes)
            self.assertEqual(re.findall(r"of (\d+)$", out, re.MULTILINE), ["250"] * 3)
            self.assertGreater(self.number(r"epoch 2 accuracy ([\d.]+)", out), 0.95)

    def test_a_second_run_goes_on_from_the_newest_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            first, second = (self.run_example("checkpointing", folder) for _ in range(2))
        self.assertEqual(re.findall(r"^epoch (\d+)$", first, re.MULTILINE), ["0", "1", "2"])
        self.assertIn("going on from checkpoint_2", second)
        self.assertEqual(re.findall(r"^epoch (\d+)$", second, re.MULTILINE), ["3", "4", "5"])

    def test_memory_finds_the_first_size_that_fits(self):
        self.assertIn("batches of 92 fit", self.run_example("memory"))  # 128, 115, 103, 92

    def test_local_sgd_ends_with_the_same_weights_on_all_ranks(self):
        self.assertIn("the ranks have the same weights", self.run_example("local_sgd"))

    def test_diloco_learns_and_ends_with_the_same_weights_on_all_ranks(self):
        for processes in (1, 2, 4):
            out = self.run_example("diloco", processes=processes)
            self.assertLess(self.number(r"^loss ([\d.]+)", out), 0.5)
            self.assertIn("the ranks have the same weights", out)

    def test_uneven_inputs_end_with_the_same_weights_on_all_ranks(self):
        out = self.run_example("uneven_inputs", processes=3)
        # 250 points are 28 batches of 9, the last one of 7.
        self.assertEqual(re.findall(r"^(\d+) batches$", out, re.MULTILINE), ["10", "9", "9"])
        self.assertIn("the ranks have the same weights", out)

    def test_dispatch_gives_each_rank_its_rows(self):
        out = self.run_example("dispatch")
        self.assertEqual(re.findall(r"^rows by rank: (.*)$", out, re.MULTILINE), ["0 2 1 3", "4 6 5 7", "8 9"])

    def test_schedule_free_learns_more_with_each_epoch(self):
        losses = [float(loss) for loss in re.findall(r"^epoch \d loss ([\d.]+)$", self.run_example("schedule_free"), re.M)]
        self.assertEqual(losses, sorted(losses, reverse=True))
        # 16 batches on each of 2 ranks.
        self.assertLess(losses[-1] / 32, 0.4)

    def test_profiler_prints_a_table_and_writes_a_trace_of_each_rank(self):
        with tempfile.TemporaryDirectory() as folder:
            out = self.run_example("profiler", folder)
            self.assertIn("Self CPU time total: ", out)
            # Four steps; y = x W + b of 8 points: 2 * 8 * 2 * 2 operations each.
            self.assertIn("addmm: 4 calls, 256 FLOPs", out)
            for rank in range(2):
                trace = json.loads((pathlib.Path(folder) / f"profile_{rank}.json").read_text())
                self.assertEqual(trace["distributedInfo"]["rank"], rank)
                names = [event.get("name", "") for event in trace["traceEvents"]]
                self.assertEqual(sum(name.startswith("ProfilerStep#") for name in names), 4)

    def test_ddp_comm_hook_learns(self):
        self.assertLess(self.number(r"loss ([\d.]+)", self.run_example("ddp_comm_hook")), 0.4)

    def test_cross_validation_tests_on_what_was_not_seen(self):
        self.assertGreater(self.number(r"mean accuracy ([\d.]+)", self.run_example("cross_validation")), 0.9)

    def test_tracking_writes_every_step_once(self):
        steps = 200
        with tempfile.TemporaryDirectory() as folder:
            out = self.run_example("tracking", folder)
            run = pathlib.Path(folder) / "curve"
            lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
            [events] = run.glob("events.*")
            self.assertEqual(num_records(events), 1 + 2 * steps + 1)  # the version, two scalars a step, a histogram
        self.assertEqual(lines[0]["config"], {"lr": 0.1, "optimizer": "SGD"})
        self.assertEqual([line["step"] for line in lines[1:]], list(range(steps)))
        losses = [line["loss"] for line in lines[1:]]
        self.assertLess(losses[-1], losses[0])
        self.assertEqual(out.count(f"best loss {min(losses):.4f} at step {losses.index(min(losses))}"), 1, out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
