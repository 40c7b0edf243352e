#!/usr/bin/env python3
"""`accel train` against the same training in PyTorch: models that torch.export wrote, on files of tokens and rows; losses of every
step, with accumulation, clipping and a schedule, on one rank and on two; what an evaluation says; a run that goes on; wrong input."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from peer_python import BUILD as BUILD_FOLDER, SOURCE as SOURCE_FOLDER
import numpy
import torch
from torch import nn

SOURCE, BUILD = pathlib.Path(SOURCE_FOLDER), pathlib.Path(BUILD_FOLDER)
VOCABULARY, LENGTH = 61, 16
# Sums of other orders: of the batch over two ranks, of the norm over parameters. Ten steps of a loss of about 4 in float32.
CLOSE = 5e-6

torch.set_num_threads(1)


class Language(nn.Module):
    def __init__(self, vocabulary=VOCABULARY):
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(vocabulary, 32)
        self.hidden = nn.Linear(32, 64)
        self.head = nn.Linear(64, vocabulary)

    def forward(self, input_ids, labels):
        logits = self.head(torch.tanh(self.hidden(self.embedding(input_ids))))
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].reshape(-1))
        return {"loss": loss, "logits": logits}


class Logits(Language):
    """The loss is left to the program."""

    def forward(self, input_ids):
        return self.head(torch.tanh(self.hidden(self.embedding(input_ids))))


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))

    def forward(self, x):
        return self.net(x / 16)


class Colors(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))

    def forward(self, x):
        return self.net(x)


def export(model, inputs, path):
    batch = torch.export.Dim("batch", min=1, max=4096)
    program = torch.export.export(model.train(), inputs, strict=False, dynamic_shapes=tuple({0: batch} for _ in inputs))
    torch.export.save(program, path)


class TrainCommand(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.files = pathlib.Path(scratch.name)
        ids = torch.zeros(2, LENGTH, dtype=torch.long)
        export(Language(), (ids, ids.clone()), cls.files / "language.pt2")
        export(Logits(), (ids,), cls.files / "logits.pt2")
        export(Digits(), (torch.zeros(2, 1, 8, 8),), cls.files / "digits.pt2")
        export(Colors(), (torch.zeros(2, 3, 8, 8),), cls.files / "colors.pt2")
        tokens = numpy.random.default_rng(3).integers(0, VOCABULARY, 40 * LENGTH + 5)
        numpy.save(cls.files / "tokens.npy", tokens.astype(numpy.uint16))
        numpy.save(cls.files / "eval.npy", tokens[: 7 * LENGTH].astype(numpy.int64))
        cls.samples = torch.from_numpy(tokens[: 40 * LENGTH]).view(-1, LENGTH)

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def run_train(self, *words, launch=()):
        environment = os.environ | {"HF_HOME": str(self.folder), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        command = [BUILD / "bin/accel", "train", *launch, *words]
        return subprocess.run([str(word) for word in command], env=environment, cwd=self.folder, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=200)

    def trained(self, *words, launch=(), project="run"):
        done = self.run_train(*words, "--project_dir", self.folder / project, launch=launch)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in (self.folder / project / "metrics.jsonl").read_text().splitlines()]

    def expected(self, model, batch, steps, accumulate=1, lr=1e-3, loss_of=lambda out, _: out["loss"]):
        """The losses, rates and norms of AdamW with a linear schedule over `steps`."""
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, (steps - step) / steps))
        rows, position = [], 0
        for _ in range(steps):
            total = 0.0
            for _ in range(accumulate):
                ids = self.samples[position : position + batch]
                position += batch
                loss = loss_of(model(ids, ids) if not isinstance(model, Logits) else model(ids), ids)
                (loss / accumulate).backward()
                total += loss.item() / accumulate
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            rows.append((total, schedule.get_last_lr()[0], norm))
        return rows

    def assert_rows(self, rows, expected):
        rows = [row for row in rows if "loss" in row]
        self.assertEqual([row["step"] for row in rows], list(range(1, len(expected) + 1)))
        for row, (loss, lr, norm) in zip(rows, expected):
            self.assertAlmostEqual(row["loss"], loss, delta=CLOSE)
            self.assertAlmostEqual(row["lr"], lr, delta=1e-12)
            self.assertAlmostEqual(row["grad_norm"], norm, delta=CLOSE * max(1.0, norm))

    def common(self, model="language.pt2", lr="1e-3"):
        return [self.files / model, "--data", self.files / "tokens.npy", "--sequence_length", LENGTH, "--no_shuffle", "--lr", lr,
                "--log_steps", "1"]

    def test_losses_rates_and_norms_are_those_of_pytorch(self):
        rows = self.trained(*self.common(), "--batch_size", 4)
        self.assert_rows(rows, self.expected(Language(), batch=4, steps=10))

    def test_accumulation_is_that_of_pytorch(self):
        rows = self.trained(*self.common(), "--batch_size", 2, "--gradient_accumulation_steps", 2)
        self.assert_rows(rows, self.expected(Language(), batch=2, steps=10, accumulate=2))

    def test_two_ranks_train_as_one_with_the_batch_of_both(self):
        for strategy in ([], ["--fsdp", "FULL_SHARD"]):
            rows = self.trained(*self.common(), "--batch_size", 2, *strategy, launch=["--num_processes", "2"],
                                project="+".join(["two", *strategy]))
            self.assert_rows(rows, self.expected(Language(), batch=4, steps=10))

    def test_a_loss_that_the_model_lacks_is_that_of_the_next_token(self):
        rows = self.trained(*self.common("logits.pt2"), "--batch_size", 4)
        loss = lambda logits, ids: nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        self.assert_rows(rows, self.expected(Logits(), batch=4, steps=10, loss_of=loss))

    def test_an_evaluation_counts_each_sample_once(self):
        rows = self.trained(*self.common(lr="0"), "--batch_size", 2, "--eval_data", self.files / "eval.npy",
                            launch=["--num_processes", "2"])
        model, losses = Language(), []
        with torch.no_grad():
            for sample in self.samples[:7]:
                losses.append(model(sample[None], sample[None])["loss"].item())
        self.assertAlmostEqual([row for row in rows if "eval_loss" in row][0]["eval_loss"], sum(losses) / 7, delta=CLOSE)

    def test_what_was_trained_is_read_in_python(self):
        self.trained(*self.common(), "--batch_size", 4)
        from safetensors.torch import load_file
        model = Language()
        self.expected(model, batch=4, steps=10)
        weights = load_file(self.folder / "run/model/model.safetensors")
        self.assertEqual(sorted(weights), sorted(model.state_dict()))
        for name, value in model.state_dict().items():
            # A rate of 1e-3 times a direction that Adam's division makes of sums in another order.
            torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-4)

    def test_a_run_goes_on_as_if_it_had_not_stopped(self):
        words = [*self.common(), "--batch_size", 4, "--save_steps", 3]
        words.remove("--no_shuffle")
        whole = self.trained(*words, project="whole")
        self.trained(*words, "--config", self.settings("max_steps: 10\n"), project="parts")
        done = self.run_train(*words, "--project_dir", self.folder / "parts")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--overwrite", done.stderr + done.stdout)
        checkpoints = sorted((self.folder / "parts/checkpoints").iterdir())
        self.assertEqual(len(checkpoints), 2)
        for newest in checkpoints[1:]:
            subprocess.run(["rm", "-r", newest], check=True)
        resumed = self.trained(*words, "--resume", project="parts")
        again = [row for row in resumed if "loss" in row][10:]
        losses = {row["step"]: row["loss"] for row in whole if "loss" in row}
        self.assertGreater(len(again), 0)
        for row in again:
            self.assertEqual(row["loss"], losses[row["step"]])

    def settings(self, text):
        path = self.folder / "settings.yaml"
        path.write_text(text)
        return path

    def test_a_yaml_file_says_what_flags_say(self):
        config = self.settings(f"data: [{self.files}/tokens.npy]\nsequence_length: {LENGTH}\nbatch_size: 4\nlog_steps: 1\nlr: 0.5\n"
                               "no_shuffle: true\n")
        rows = self.trained(self.files / "language.pt2", "--config", config, "--lr", "1e-3")
        self.assert_rows(rows, self.expected(Language(), batch=4, steps=10))

    def test_digits_are_told_apart(self):
        table = (SOURCE / "examples/data/digits.csv").read_text().splitlines()
        heading = ",".join([*(f"p{i}" for i in range(64)), "label"])
        (self.folder / "train.csv").write_text("\n".join([heading, *table[:1500]]) + "\n")
        (self.folder / "test.csv").write_text("\n".join([heading, *table[1500:]]) + "\n")
        rows = self.trained(self.files / "digits.pt2", "--task", "classification", "--data", self.folder / "train.csv", "--eval_data",
                            self.folder / "test.csv", "--num_epochs", 12, "--lr", "5e-3", "--batch_size", 16,
                            launch=["--num_processes", "2"])
        self.assertGreater(rows[-1]["eval_accuracy"], 0.9)

    def digits(self):
        """Values and classes."""
        table = numpy.loadtxt(SOURCE / "examples/data/digits.csv", delimiter=",", dtype=numpy.int64)[:200]
        return table[:, :64], table[:, 64]

    def save(self, name, values):
        numpy.save(self.folder / name, values)
        return self.folder / name

    def classified(self, model, *words, launch=(), project="run"):
        rows = self.trained(self.files / model, "--task", "classification", "--batch_size", 8, "--no_shuffle", "--lr", "1e-3", "--log_steps", 1,
                            *words, launch=launch, project=project)
        return [row["loss"] for row in rows if "loss" in row], [row["eval_accuracy"] for row in rows if "eval_accuracy" in row]

    def losses_of(self, model, images, labels, batch=8, loss_of=None):
        """Those of the steps of PyTorch's AdamW with a linear schedule over one pass."""
        steps = len(images) // batch
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, (steps - step) / steps))
        losses = []
        for step in range(steps):
            rows = slice(step * batch, (step + 1) * batch)
            loss = loss_of(images[rows], labels[rows]) if loss_of else nn.functional.cross_entropy(model(images[rows]), labels[rows])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def assert_close(self, losses, expected):
        self.assertEqual(len(losses), len(expected))
        close = CLOSE * max(1.0, len(expected) / 10)  # which is of ten steps
        for found, wanted in zip(losses, expected):
            self.assertAlmostEqual(found, wanted, delta=close)

    def test_arrays_train_as_the_table_of_the_same_numbers(self):
        values, labels = self.digits()
        table = self.folder / "digits.csv"
        numpy.savetxt(table, numpy.column_stack([values, labels]), fmt="%d", delimiter=",", comments="",
                      header=",".join([*(f"p{i}" for i in range(64)), "label"]))
        classes = self.save("labels.npy", labels.astype(numpy.uint8))
        expected = self.classified("digits.pt2", "--data", table, "--eval_data", table, project="table")
        for kind in ("uint8", "float16", "float32", "float64", "int64"):
            array = self.save(f"{kind}.npy", values.astype(kind).reshape(-1, 8, 8))
            found = self.classified("digits.pt2", "--data", array, "--labels", classes, "--eval_data", array, "--eval_labels", classes, project=kind)
            self.assertEqual(found, expected, kind)
        parts = [self.save(f"{name}{i}.npy", part) for i in (0, 1)
                 for name, part in (("values", numpy.split(values, [80])[i]), ("labels", numpy.split(labels, [80])[i]))]
        found = self.classified("digits.pt2", "--data", parts[0], parts[2], "--labels", parts[1], parts[3], project="parts")
        self.assertEqual(found[0], expected[0])

    def test_images_are_scaled_and_normalized_by_channel(self):
        values, labels = self.digits()
        images = numpy.random.default_rng(5).integers(0, 256, (200, 8, 8, 3), dtype=numpy.uint8)
        mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
        classes = self.save("labels.npy", labels)
        losses, _ = self.classified("colors.pt2", "--data", self.save("images.npy", images), "--labels", classes, "--channels_last", "--scale",
                                    255, "--mean", *mean, "--std", *std)
        plain = (torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        self.assert_close(losses, self.losses_of(Colors(), plain, torch.from_numpy(labels)))
        self.assertEqual(losses, self.classified("colors.pt2", "--data", self.save("plain.npy", plain.contiguous().numpy()), "--labels", classes,
                                                 project="plain")[0])

    def test_an_image_model_of_transformers_trains_on_arrays(self):
        from exported_architectures import ARCHITECTURES
        _, kind, values = ARCHITECTURES["vit"]
        (self.folder / "config.json").write_text(json.dumps({"model_type": kind, **values}))
        model = self.folder / "vit.pt2"
        done = subprocess.run([BUILD / "bin/accel", "export", f"hf:{self.folder}/config.json", "-o", model, "--task", "image", "--dynamic", "batch",
                               "--random_weights", "--no_dropout", "--python", sys.executable], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        module = torch.export.load(model).module()
        size, channels = values["image_size"], values.get("num_channels", 3)
        random = numpy.random.default_rng(6)
        images = random.integers(0, 256, (40, channels, size, size), dtype=numpy.uint8)
        labels = random.integers(0, 2, 40)
        losses, _ = self.classified(model, "--data", self.save("images.npy", images), "--labels", self.save("labels.npy", labels), "--scale", 255,
                                    "--mean", 0.5, "--std", 0.5, launch=["--num_processes", 1])
        plain = (torch.from_numpy(images) / 255 - 0.5) / 0.5
        expected = self.losses_of(module, plain, torch.from_numpy(labels),
                                  loss_of=lambda pixels, classes: module(pixels, classes)["loss"])
        self.assert_close(losses, expected)

    def test_arrays_that_do_not_fit_are_named(self):
        values, labels = self.digits()
        array, classes = self.save("values.npy", values), self.save("labels.npy", labels)
        table = SOURCE / "examples/data/digits.csv"
        cases = [
            (["--data", array], "1 file of samples, and 0 files of classes"),
            (["--data", array, "--labels", self.save("few.npy", labels[:7])], "few.npy has 7 labels for 200 samples"),
            (["--data", array, "--labels", self.save("below.npy", labels - 1)], "has the class -1"),
            (["--data", array, "--labels", self.save("floats.npy", labels / 2)], "floats.npy holds <f8"),
            (["--data", self.save("wide.npy", values[:, :60]), "--labels", classes], "wide.npy has 60 numbers besides the class"),
            (["--data", self.save("turned.npy", values.reshape(-1, 8, 8, 1)), "--labels", classes], "samples of [8, 8, 1], and the model takes [1, 8, 8]"),
            (["--data", self.save("words.npy", numpy.array(["a", "b"])), "--labels", classes], "words.npy holds <U1"),
            (["--data", array, "--labels", classes, "--channels_last"], "--channels_last is for images"),
            (["--data", array, "--labels", classes, "--mean", 1, 2, 3], "--mean has 3 numbers, and the model's samples have 1 channel"),
            (["--data", table, "--label_column", "7", "--labels", classes], "--labels or --eval_labels is for .npy files"),
            (["--data", table, "--scale", 2], "--scale is for .npy files"),
        ]
        for words, part in cases:
            with self.subTest(part=part):
                done = self.run_train(self.files / "digits.pt2", "--task", "classification", *words, "--project_dir", self.folder / "refused")
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(part, done.stderr)

    def test_wrong_input_is_an_error_that_names_it(self):
        (self.folder / "short.npy").write_bytes((self.files / "tokens.npy").read_bytes()[:300])
        (self.folder / "text.txt").write_text("In the beginning")
        (self.folder / "none.pt2").write_text("no archive")
        language, tokens = self.files / "language.pt2", self.files / "tokens.npy"
        cases = [
            (["train.py"], "ends with .pt2"),
            ([language], "--data is required"),
            ([language, "--data", self.folder / "short.npy"], "says that it has"),
            ([language, "--data", self.folder / "text.txt"], "--tokenizer tokenizer.json"),
            ([language, "--data", tokens, "--sequence_length", 100000], "shorter --sequence_length"),
            ([language, "--data", tokens, "--sequence_length", LENGTH + 1], "input_ids"),
            ([language, "--data", tokens, "--lr", "nan"], "not a number: nan"),
            ([language, "--data", tokens, "--batch", "3"], "--batch"),
            ([language, "--data", tokens, "--config", self.settings("batchsize: 3\n")], "batchsize"),
            ([self.folder / "none.pt2", "--data", tokens], "none.pt2"),
            ([self.files / "digits.pt2", "--task", "classification", "--data", SOURCE / "examples/data/digits.csv"], "label"),
        ]
        for words, part in cases:
            with self.subTest(part=part):
                done = self.run_train(*words, "--project_dir", self.folder / "refused")
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(part, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
