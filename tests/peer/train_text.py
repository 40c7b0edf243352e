#!/usr/bin/env python3
"""`accel train --tokenizer`: text becomes the tokens of Python's tokenizers, once; a training on it is that on the tokens; what is half is
never taken; wrong input is named. The tokenizer is a byte-level BPE, as GPT-2's, made here of this project's pages."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from peer_python import BUILD as BUILD_FOLDER, PEER, SOURCE as SOURCE_FOLDER
import numpy
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from train_command import LENGTH, Language, export

SOURCE, BUILD = pathlib.Path(SOURCE_FOLDER), pathlib.Path(BUILD_FOLDER)
END = "<|endoftext|>"
VOCABULARY = 600
MEGABYTE = 1 << 20


def make_tokenizer(texts, path):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[END], show_progress=False,
                                                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.save(str(path))
    return tokenizer


class TrainText(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.files = pathlib.Path(scratch.name)
        cls.pages = [page.read_text() for page in sorted((SOURCE / "docs").rglob("*.md"))]
        cls.tokenizer = make_tokenizer(cls.pages, cls.files / "tokenizer.json")
        cls.end = cls.tokenizer.token_to_id(END)
        ids = torch.zeros(2, LENGTH, dtype=torch.long)
        export(Language(VOCABULARY), (ids, ids.clone()), cls.files / "language.pt2")

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.environment = os.environ | {"HF_HOME": str(self.folder), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def command(self, *words, launch=(), python=PEER, tokens="tokens"):
        return [str(word) for word in [
            BUILD / "bin/accel", "train", *launch, self.files / "language.pt2", "--sequence_length", LENGTH, "--batch_size", 4, "--no_shuffle",
            "--log_steps", 1, "--max_steps", 6, "--lr", "1e-2", "--tokens_dir", self.folder / tokens, "--python", python, *words]]

    def run_train(self, *words, **options):
        return subprocess.run(self.command(*words, **options), env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=200)

    def trained(self, *words, project="run", **options):
        done = self.run_train(*words, "--project_dir", self.folder / project, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.said = done.stderr
        rows = [json.loads(line) for line in (self.folder / project / "metrics.jsonl").read_text().splitlines()]
        return [row["loss"] for row in rows if "loss" in row]

    def text(self, *words, **options):
        return self.trained("--tokenizer", self.files / "tokenizer.json", *words, **options)

    def tokens(self):
        """Of all files that were made, by their stems."""
        return {path.stem.rsplit("-", 1)[0]: numpy.load(path) for path in (self.folder / "tokens").glob("*.npy")}

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def test_a_long_text_has_the_tokens_of_python_and_trains_as_those(self):
        # Several pieces, of which each could change the tokens where it ends: lines with blanks at both ends, empty ones, and a
        # character of two bytes wherever a read of the file may end.
        lines = "\n".join(self.pages)
        text = (lines + " \n\n  \u00e9\u4e2d \n") * (5 * MEGABYTE // len(lines))
        self.assertGreater(len(text), 4 * MEGABYTE)
        expected = [*self.encode(text), self.end]

        losses = self.text("--data", self.write("long.txt", text))

        made = self.tokens()["long"]
        self.assertEqual(made.dtype, numpy.uint16)
        numpy.testing.assert_array_equal(made, expected)
        numpy.save(self.folder / "hand.npy", numpy.array(expected, numpy.int64))
        self.assertEqual(losses, self.trained("--data", self.folder / "hand.npy", project="hand"))
        self.assertEqual(len(losses), 6)

    def test_lines_of_json_are_documents_and_two_ranks_share_the_tokens(self):
        documents = ["one\ntwo", *self.pages[:5], "\u00e9nd"]
        lines = "".join(json.dumps({"body": text, "id": 1}) + "\n" for text in documents)
        self.text("--data", self.write("a.jsonl", lines), self.write("b.txt", self.pages[7]), "--eval_data", self.write("c.txt", self.pages[8]),
                  "--text_field", "body", launch=["--num_processes", "2"])
        made = self.tokens()
        numpy.testing.assert_array_equal(made["a"], [token for text in documents for token in [*self.encode(text), self.end]])
        numpy.testing.assert_array_equal(made["b"], [*self.encode(self.pages[7]), self.end])
        numpy.testing.assert_array_equal(made["c"], [*self.encode(self.pages[8]), self.end])

    def test_the_end_of_text_is_the_one_that_is_named_or_none(self):
        page = self.write("page.txt", self.pages[3])
        for word, tail in (("none", []), ("Z", [self.tokenizer.token_to_id("Z")])):
            self.text("--data", page, "--end_of_text", word, tokens=word, project=word)
            made, = (self.folder / word).glob("*.npy")
            numpy.testing.assert_array_equal(numpy.load(made), [*self.encode(self.pages[3]), *tail])

    def test_a_second_run_needs_no_python_until_text_tokenizer_or_settings_change(self):
        page = self.write("page.txt", self.pages[3])
        first = self.text("--data", page)
        self.assertIn("page.txt", self.said)
        made = {path: path.stat().st_mtime_ns for path in (self.folder / "tokens").glob("*.npy")}
        self.assertEqual(self.text("--data", page, project="again", python="/bin/false"), first)
        self.assertEqual({path: path.stat().st_mtime_ns for path in (self.folder / "tokens").glob("*.npy")}, made)
        other = make_tokenizer(self.pages[:3], self.folder / "other.json")
        self.assertIsNotNone(other)
        for words in (["--tokenizer", self.folder / "other.json"], ["--tokenizer", self.files / "tokenizer.json", "--end_of_text", "none"]):
            done = self.run_train(*words, "--data", page, "--project_dir", self.folder / "changed", python="/bin/false")
            self.assertIn("ended with 1 and no answer", done.stderr)
        page.write_text(self.pages[4])
        self.text("--data", page, project="changed")
        self.assertEqual(len(list((self.folder / "tokens").glob("*.npy"))), 2)

    def test_a_dry_run_makes_no_tokens(self):
        done = self.run_train("--tokenizer", self.files / "tokenizer.json", "--data", self.write("page.txt", self.pages[3]), launch=["--dry_run"],
                              python="/bin/false")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse((self.folder / "tokens").exists())

    def test_who_is_stopped_leaves_nothing_half(self):
        text = self.write("large.txt", "\n".join(self.pages) * 60)
        draft = lambda: list((self.folder / "tokens").glob(".large*.tmp"))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            # A signal to the launcher alone: a terminal's Ctrl-C comes to the script besides.
            run = subprocess.Popen(self.command("--tokenizer", self.files / "tokenizer.json", "--data", text), env=self.environment,
                                   cwd=self.folder, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.wait_until(draft)
            run.send_signal(number)
            self.assertEqual(run.wait(), -number)
            self.wait_until(lambda: not draft())
        self.assertEqual([path.name for path in (self.folder / "tokens").iterdir()], [".lock"])

    def wait_until(self, condition):
        end = time.monotonic() + 120
        while not condition():
            self.assertLess(time.monotonic(), end)

    def test_wrong_input_is_an_error_with_its_remedy(self):
        page = self.write("page.txt", self.pages[3])
        bare = self.write("python", f"#!/bin/sh\nexec {sys.executable} -I -S \"$@\"\n")
        bare.chmod(0o755)
        good = self.files / "tokenizer.json"
        broken = ("\u00e9" * MEGABYTE).encode() + b"\xff abc"
        cases = [
            (good, [page], [], self.folder / "none", "name a Python that has the library tokenizers"),
            (good, [page], [], bare, "-m pip install tokenizers"),
            (page, [page], [], PEER, "page.txt is no tokenizer"),
            (good, [self.write("empty.txt", "")], [], PEER, "empty.txt has no text"),
            (good, [self.write("latin.txt", broken)], [], PEER, f"latin.txt is not UTF-8 at byte {2 * MEGABYTE}"),
            (good, [self.write("cut.txt", "abc\u00e9".encode()[:-1])], [], PEER, "cut.txt is not UTF-8 at byte 3"),
            (good, [self.write("a.jsonl", '{"text": "a"}\n\n{"body": "b"}\n')], [], PEER, "a.jsonl:3: no text is called text"),
            (good, [self.write("b.jsonl", "a\n")], [], PEER, "b.jsonl:1: no JSON"),
            (good, [page], ["--end_of_text", "<none>"], PEER, "has no token <none>"),
            (good, [page], ["--task", "classification"], PEER, "--tokenizer is for --task causal-lm"),
        ]
        for tokenizer, files, words, python, part in cases:
            with self.subTest(part=part):
                done = self.run_train("--tokenizer", tokenizer, "--data", *files, *words, "--project_dir", self.folder / "refused", python=python)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(part, " ".join(done.stderr.split()))
                self.assertEqual(self.tokens() if (self.folder / "tokens").exists() else {}, {})
                self.assertFalse((self.folder / "refused").exists())

    def test_a_folder_that_cannot_be_made_is_named(self):
        page = self.write("page.txt", self.pages[3])
        done = self.run_train("--tokenizer", self.files / "tokenizer.json", "--data", page, tokens="page.txt/below")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("page.txt/below", done.stderr)
        self.assertIn("another folder with --tokens_dir", done.stderr)

    def test_of_two_launches_at_once_one_tokenizes(self):
        text = self.write("page.txt", "\n".join(self.pages))
        runs = [subprocess.Popen(self.command("--tokenizer", self.files / "tokenizer.json", "--data", text, "--project_dir", self.folder / name),
                                 env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True) for name in ("first", "second")]
        said = [run.communicate(timeout=200)[1] for run in runs]
        self.assertEqual([run.returncode for run in runs], [0, 0], said)
        self.assertEqual("".join(said).count(" tokens in "), 1)
        self.assertEqual((self.folder / "first/model/model.safetensors").read_bytes(), (self.folder / "second/model/model.safetensors").read_bytes())

    def test_a_token_that_the_model_does_not_know_is_named(self):
        large = make_tokenizer(self.pages, self.folder / "large.json")
        self.assertEqual(large.get_vocab_size(), VOCABULARY)
        large.add_tokens(["training"])  # behind the last one
        large.save(str(self.folder / "large.json"))
        done = self.run_train("--tokenizer", self.folder / "large.json", "--data", self.write("page.txt", "training " * 100))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(f"has the token {VOCABULARY}, and the model knows those from 0 to {VOCABULARY - 1}", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
