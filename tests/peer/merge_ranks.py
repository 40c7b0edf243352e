#!/usr/bin/env python3
"""What the ranks of a real training have saved, merged: to the bit what one process and a FULL_STATE_DICT have."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from peer_python import BUILD

import torch
from safetensors.torch import load_file

MODEL = "model.safetensors"


def train(project, *arguments, flags=("--num_processes", "2")):
    """The example, for one step; its last checkpoint."""
    done = subprocess.run([os.path.join(BUILD, "bin/accel-launch"), *flags, os.path.join(BUILD, "examples/char_gpt"), "--",
                           "--batch_size", "1", "--max_steps", "1", "--project_dir", str(project), *arguments],
                          capture_output=True, text=True, errors="replace", timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return max((project / "checkpoints").iterdir())


def ranges_of(checkpoint, name=MODEL):
    """(begin, bytes, rank, hash) of what ranks have written of a file; none for a file that one has written."""
    manifest = json.loads((checkpoint / "accel_checkpoint.json").read_text())
    return manifest["files"][name].get("ranges", [])


def merge(*arguments):
    return subprocess.run([os.path.join(BUILD, "bin/accel"), "merge-weights", *map(str, arguments)],
                          capture_output=True, text=True, check=False)


class MergeRanks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = pathlib.Path(scratch.name)
        cls.sharded = train(cls.folder / "run", flags=("--use_fsdp", "--num_processes", "2", "--fsdp_state_dict_type",
                                                       "SHARDED_STATE_DICT"))

    def weights_of(self, checkpoint):
        """Of a merge, as Python's safetensors reads them."""
        out = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        done = merge(checkpoint, out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(os.listdir(out), [MODEL])
        return load_file(out / MODEL)

    def assert_same(self, weights, expected):
        self.assertEqual(sorted(weights), sorted(expected))
        for name, tensor in weights.items():
            self.assertEqual(tensor.dtype, expected[name].dtype, name)
            self.assertTrue(torch.equal(tensor, expected[name]), name)

    def copy(self, name):
        copy = self.folder / name
        shutil.copytree(self.sharded, copy)
        return copy

    def test_the_ranks_wrote_their_own_parts_and_all_kinds_of_state(self):
        names = os.listdir(self.sharded)
        for name in ("optimizer.safetensors", "scheduler.json", "loader.json", "custom_checkpoint_0.json", "random_states_1.json"):
            self.assertIn(name, names)
        self.assertEqual({rank for _, _, rank, _ in ranges_of(self.sharded)}, {0, 1})

    def test_a_full_state_dict_has_the_same_weights(self):
        full = train(self.folder / "full", flags=("--use_fsdp", "--num_processes", "2", "--fsdp_state_dict_type",
                                                  "FULL_STATE_DICT"))
        self.assertEqual(ranges_of(full), [])
        weights = self.weights_of(self.sharded)
        self.assertGreater(len(weights), 20)
        self.assert_same(weights, load_file(full / MODEL))
        self.assert_same(self.weights_of(full), weights)

    def test_one_process_that_loads_what_zero_saved_has_the_same_weights(self):
        project = self.folder / "zero"
        saved = train(project, flags=("--use_deepspeed", "--zero_stage", "1", "--num_processes", "2"))
        self.assertEqual({rank for _, _, rank, _ in ranges_of(saved, "optimizer.safetensors")}, {0, 1})
        alone = train(project, "--resume", flags=("--cpu", "--num_processes", "1"))
        self.assertNotEqual(alone, saved)
        self.assert_same(self.weights_of(saved), load_file(alone / MODEL))

    def test_the_pickle_has_the_same_weights(self):
        out = self.folder / "pickle"
        done = merge(self.sharded, out, "--unsafe_serialization")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_same(torch.load(out / "pytorch_model.bin", weights_only=True), load_file(self.sharded / MODEL))

    def test_damage_names_the_rank_that_wrote_it(self):
        copy = self.copy("damaged")
        with open(copy / MODEL, "r+b") as file:
            place = next(begin for begin, _, rank, _ in ranges_of(copy) if rank == 1)
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1]))
        done = merge(copy, self.folder / "out")
        self.assertEqual(done.returncode, 1)
        self.assertIn("the part of rank 1", done.stderr)
        self.assertFalse((self.folder / "out").exists(), "the folder was made for the result")

    def test_a_save_that_did_not_end_is_refused(self):
        for name, manifest in (("no_manifest", False), (".tmp-checkpoint_1", True)):
            copy = self.copy(name)
            if not manifest:
                (copy / "accel_checkpoint.json").unlink()
            done = merge(copy, self.folder / "unfinished")
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("did not end", done.stderr)
            self.assertFalse((self.folder / "unfinished").exists())

    def test_the_folder_above_names_its_checkpoints(self):
        done = merge(self.sharded.parent, self.folder / "above")
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"merge {self.sharded} instead", done.stderr)

    def test_it_is_not_removed_for_its_weights(self):
        done = merge(self.sharded, self.folder / "removed", "--remove_checkpoint_dir")
        self.assertEqual(done.returncode, 1)
        self.assertIn("holds more than models", done.stderr)
        self.assertTrue((self.sharded / "optimizer.safetensors").exists())
        self.assertFalse((self.folder / "removed").exists())


if __name__ == "__main__":
    unittest.main()
