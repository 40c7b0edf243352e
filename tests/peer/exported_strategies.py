#!/usr/bin/env python3
"""Exported models under DDP, ZeRO-1 and FULL_SHARD on one to three ranks, with accumulation and in bf16, train as one process of
PyTorch does on the whole batch; weights that Python saved are read here, and Python reads those that were saved here.

One architecture in each commit (ACCEL_TEST_SEED), all with ACCEL_TEST_LONG=1.
"""
import dataclasses
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

import exported_models  # runs this script under the peer's Python
from exported_models import LOSS, NORM, SETTINGS, TRAIN

import torch
import transformers
import transformers.integrations.sdpa_attention as sdpa_attention
from safetensors.torch import save_file

import export_model
from train_peer import run_ranks

NAMES = ("gpt2", "llama", "vit")
ROWS = 6  # for one, two and three ranks, and for two batches
# bf16 has 8 bits: one rounding is off by at most 2^-9 of the value. Gradients of the weights are sums over positions that each rank
# rounds by itself, and AdamW's steps of at most the rate 1e-3 carry that on: 2^-6 is half a unit of bf16 for a loss below 8.
BF16 = 2.0**-6
SGD_RATE = 0.01


def chosen():
    seed = int(os.environ.get("ACCEL_TEST_SEED") or 1)
    return NAMES if os.environ.get("ACCEL_TEST_LONG") == "1" else (NAMES[seed % len(NAMES)],)


def trained_here(ranks, path, inputs, *words):
    """As exported_models.train_in_python()."""
    return exported_models.rows_of(run_ranks([TRAIN, path, inputs, *SETTINGS, *words], ranks)[0])


class Strategies(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        keeper = tempfile.TemporaryDirectory()
        cls.addClassCleanup(keeper.cleanup)
        cls.folder = pathlib.Path(keeper.name)
        cls.requests = {}
        for name in chosen():
            request = exported_models.request_of(name, cls.folder)
            request.batch_size, request.dynamic, request.dropout = ROWS, ("batch",), False
            export_model.export(request)
            subject = export_model.find_subject(request)
            save_file({key: tensor.contiguous() for key, tensor in subject.inputs.items()}, f"{request.output}.inputs.safetensors")
            cls.requests[name] = request

    def each(self):
        """Request, a fresh module in Python and the file of its inputs, of each architecture."""
        for request in self.requests.values():
            yield request, export_model.find_subject(request), f"{request.output}.inputs.safetensors"

    def assert_near(self, expected, found, loss=LOSS, norm=NORM):
        losses, norms = exported_models.compare(expected, found)
        self.assertLessEqual(losses, loss, f"{expected}\n{found}")
        self.assertLessEqual(norms, norm, f"{expected}\n{found}")

    def test_every_strategy_on_one_two_and_three_ranks_trains_as_one_process(self):
        for request, subject, inputs in self.each():
            expected = exported_models.train_in_python(subject)
            for strategy in ("ddp", "zero1", "full_shard"):
                for ranks in (1, 2, 3):
                    with self.subTest(strategy, ranks=ranks):
                        self.assert_near(expected, trained_here(ranks, request.output, inputs, "--strategy", strategy))

    def test_batches_that_accumulate_train_as_one_batch(self):
        for request, subject, inputs in self.each():
            expected = exported_models.train_in_python(subject)
            for strategy, ranks in (("ddp", 1), ("full_shard", 1), ("ddp", 3)):
                with self.subTest(strategy, ranks=ranks):
                    self.assert_near(expected, trained_here(ranks, request.output, inputs, "--strategy", strategy, "--accumulate", "2"))

    def test_bf16_trains_as_autocast_does(self):
        for request, subject, inputs in self.each():
            expected = exported_models.train_in_python(subject, torch.autocast("cpu", dtype=torch.bfloat16))
            for strategy, ranks in (("ddp", 1), ("ddp", 2), ("full_shard", 2)):
                with self.subTest(strategy, ranks=ranks):
                    found = trained_here(ranks, request.output, inputs, "--strategy", strategy, "--mixed_precision", "bf16")
                    self.assert_near(expected, found, BF16, BF16)

    @unittest.mock.patch.object(sdpa_attention, "use_gqa_in_sdpa", lambda *_: False)
    def test_bf16_on_one_rank_with_sgd_is_as_near_as_fp32(self):
        """SGD rounds each weight as PyTorch does, so that no weight falls to another bf16 value, as after AdamW's steps. While
        transformers exports, it repeats keys and values for the heads that share them; else it leaves that to the kernel,
        which adds their gradients in fp32 and not in bf16: here Python takes the exported path too."""
        for request, subject, inputs in self.each():
            expected = exported_models.train_in_python(
                subject, torch.autocast("cpu", dtype=torch.bfloat16), lambda parameters: torch.optim.SGD(parameters, lr=SGD_RATE))
            found = trained_here(1, request.output, inputs, "--mixed_precision", "bf16", "--optimizer", "sgd", "--lr", str(SGD_RATE))
            self.assert_near(expected, found)

    def test_python_reads_the_weights_that_two_ranks_saved(self):
        for request, subject, inputs in self.each():
            saved = self.folder / f"{pathlib.Path(request.output).stem}-saved"
            trained_here(2, request.output, inputs, "--strategy", "full_shard", "--save", str(saved))
            subject.net.config.save_pretrained(saved)

            net, report = type(subject.net).from_pretrained(saved, output_loading_info=True)

            self.assertEqual([set(report[kind]) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")], [set()] * 3)
            again = trained_here(1, request.output, inputs, "--weights", str(saved / "model.safetensors"))
            subject.net = net
            self.assert_near(exported_models.train_in_python(subject), again)

    def test_weights_beside_the_file_are_read(self):
        for request, subject, inputs in self.each():
            folder = self.folder / f"{pathlib.Path(request.output).stem}-beside"
            folder.mkdir()
            beside = dataclasses.replace(request, output=str(folder / "model.pt2"), weights="beside")
            export_model.export(beside)

            self.assert_near(exported_models.train_in_python(subject), trained_here(1, beside.output, inputs))

    def test_the_weights_that_python_saved_are_read_here(self):
        for request, subject, inputs in self.each():
            saved = self.folder / f"{pathlib.Path(request.output).stem}-of-python"
            exported_models.train_in_python(subject)
            # Else transformers gives some architectures (ViT) the names that they had in older versions.
            subject.net.save_pretrained(saved, save_original_format=False)

            found = trained_here(2, request.output, inputs, "--strategy", "full_shard", "--weights", str(saved / "model.safetensors"))

            self.assert_near(exported_models.train_in_python(subject), found)


if __name__ == "__main__":
    if not TRAIN.exists():
        print(f"skipped: {TRAIN} is not in this build")
        sys.exit(77)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    unittest.main(verbosity=2)
