#!/usr/bin/env python3
"""`accel generate` without Python: prompts alone and together, with a cache and without one, weights on disk; how it ends; wrong input."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from programs import BIN, PATIENCE, SOURCE  # noqa: E402

MODELS = SOURCE / "tests/unit/libaccel/exported/models"
# The same weights with a cache for two rows, with one for one row and one token at a time, and without one.
CACHED, STEPWISE, PREFIX = (MODELS / f"{name}.pt2" for name in ("cached", "stepwise", "prefix"))
PLACES = 12
PROMPTS = ["3,1,4", "1,5", "9,2,6", "5", "3,5,8,9,7"]


def command(model, *words):
    return [str(BIN / "accel"), "generate", str(model), *map(str, words)]


def generate(model, *words, given=""):
    return subprocess.run(command(model, *words), input=given, capture_output=True, text=True, timeout=PATIENCE)


def prompts(texts=PROMPTS):
    return [word for text in texts for word in ("--prompt_ids", text)]


class Generate(unittest.TestCase):
    def lines(self, model, *words, given=""):
        done = generate(model, *words, given=given)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()

    def refused(self, model, *words, given=""):
        done = generate(model, *words, given=given)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertEqual(done.stdout, "")
        return done.stderr

    def alone(self):
        return [self.lines(PREFIX, "--prompt_ids", text, "--max_new_tokens", 5)[0] for text in PROMPTS]

    def test_prompts_together_give_what_each_gives_alone(self):
        alone = self.alone()
        self.assertTrue(all(len(line.split(",")) == 5 for line in alone), alone)
        for model in (CACHED, STEPWISE, PREFIX):
            for at_once in (1, 3, 8):
                with self.subTest(model=model.name, at_once=at_once):
                    self.assertEqual(self.lines(model, *prompts(), "--max_new_tokens", 5, "--batch_size", at_once), alone)

    def test_weights_on_disk_give_the_same_tokens(self):
        for model in (CACHED, STEPWISE, PREFIX):
            expected = self.lines(model, *prompts(), "--max_new_tokens", 5)
            for limit in ("0", "1KB"):
                self.assertEqual(self.lines(model, *prompts(), "--max_new_tokens", 5, "--max_memory", limit), expected)

    def test_prompts_come_from_files_and_standard_input(self):
        expected = self.lines(CACHED, *prompts(), "--max_new_tokens", 5)
        text = "\n".join(prompt.replace(",", " ") for prompt in PROMPTS) + "\n"
        self.assertEqual(self.lines(CACHED, "--prompt-file", "-", "--max-new-tokens", 5, given=text), expected)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(text)
            file.flush()
            self.assertEqual(self.lines(CACHED, "--prompt_file", file.name, "--max_new_tokens", 5), expected)

    def test_a_prompt_in_parts_gives_the_same_tokens(self):
        expected = self.lines(CACHED, *prompts(), "--max_new_tokens", 5)
        self.assertEqual(self.lines(CACHED, *prompts(), "--max_new_tokens", 5, "--prefill_chunk_size", 2), expected)

    def test_a_sequence_ends_behind_an_end_token(self):
        tokens = self.lines(CACHED, "--prompt_ids", PROMPTS[0], "--max_new_tokens", 5)[0].split(",")
        end = tokens.index(tokens[2]) + 1
        told = json.loads(self.lines(CACHED, "--prompt_ids", PROMPTS[0], "--max_new_tokens", 5, "--eos_token_id", f"15,{tokens[2]}", "--json")[0])
        self.assertEqual(told["generated_ids"], [int(token) for token in tokens[:end]])
        self.assertEqual(told["finish"], "eos")

    def test_json_has_the_prompt_and_why_it_ended(self):
        told = [json.loads(line) for line in self.lines(STEPWISE, *prompts(), "--max_new_tokens", 3, "--json")]
        self.assertEqual([row["prompt"] for row in told], [1, 2, 3, 4, 5])
        self.assertEqual([row["prompt_ids"] for row in told], [json.loads(f"[{text}]") for text in PROMPTS])
        self.assertEqual({row["finish"] for row in told}, {"length"})

    def test_a_full_cache_ends_a_sequence_and_is_told(self):
        done = generate(CACHED, "--prompt_ids", PROMPTS[4], "--max_new_tokens", 50, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        told = json.loads(done.stdout)
        self.assertEqual(told["finish"], "cache")
        self.assertEqual(len(told["prompt_ids"]) + len(told["generated_ids"]), PLACES)
        self.assertIn(f"{PLACES} places", done.stderr)

    def test_draws_depend_on_the_seed_alone(self):
        words = ["--do_sample", "--temperature", 1.5, "--top_k", 0, "--max_new_tokens", 6]
        together = self.lines(STEPWISE, *prompts(), *words, "--seed", 3)
        self.assertEqual(self.lines(STEPWISE, *prompts(), *words, "--seed", 3, "--batch_size", 2), together)
        self.assertEqual(self.lines(STEPWISE, "--prompt_ids", PROMPTS[1], *words, "--seed", 4)[0], together[1])
        self.assertNotEqual(self.lines(STEPWISE, *prompts(), *words, "--seed", 30), together)
        likeliest = self.lines(STEPWISE, *prompts(), "--max_new_tokens", 6)
        self.assertEqual(self.lines(STEPWISE, *prompts(), "--max_new_tokens", 6, "--do_sample", "--top_k", 1), likeliest)

    def test_without_a_cache_that_is_said_once(self):
        said = generate(PREFIX, *prompts(), "--max_new_tokens", 3).stderr
        self.assertEqual(said.count("no cache"), 1, said)
        self.assertEqual(generate(CACHED, *prompts(), "--max_new_tokens", 3).stderr, "")

    def test_an_interrupt_leaves_the_lines_that_are_finished(self):
        slow = command(PREFIX, "--prompt_file", "-", "--batch_size", 1, "--max_new_tokens", 5)
        with subprocess.Popen(slow, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            running.stdin.write("1,2\n" * 200000)
            running.stdin.close()
            first = running.stdout.readline()
            running.send_signal(signal.SIGINT)
            rest = running.stdout.read()
            self.assertIn(running.wait(PATIENCE), (-signal.SIGINT, 128 + signal.SIGINT))
            self.assertNotIn("error", running.stderr.read())
        self.assertEqual(first.count(","), 4)
        self.assertTrue(rest == "" or rest.endswith("\n"))

    def test_a_run_that_fails_leaves_the_tokens_that_it_has_made(self):
        expected = self.lines(PREFIX, *prompts(), "--max_new_tokens", 5)
        # The model takes up to 12 tokens, and the fifth prompt has 13 with the eighth that follows.
        done = generate(PREFIX, *prompts(), "--max_new_tokens", 10, "--json")
        self.assertNotEqual(done.returncode, 0)
        told = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([row["prompt"] for row in told], [1, 2, 3, 4, 5])
        self.assertEqual(",".join(map(str, told[4]["generated_ids"][:5])), expected[4])
        self.assertEqual({row["finish"] for row in told}, {"error"})
        self.assertEqual(len(told[4]["prompt_ids"]) + len(told[4]["generated_ids"]), PLACES + 1)
        self.assertIn("5 lines are not finished", done.stderr)
        self.assertIn(f"{PLACES + 1}", done.stderr)
        text = generate(PREFIX, *prompts(), "--max_new_tokens", 10)
        self.assertEqual([json.loads(f"[{line}]") for line in text.stdout.splitlines()], [row["generated_ids"] for row in told])

    def test_a_run_that_fails_leaves_no_lines_of_prompts_that_have_not_begun(self):
        words = ("--max_new_tokens", 10, "--batch_size", 1, "--json")
        finishes = {order: [json.loads(line)["finish"] for line in generate(PREFIX, *prompts(PROMPTS[::order]), *words).stdout.splitlines()]
                    for order in (1, -1)}
        self.assertEqual(finishes, {1: ["length"] * 4 + ["error"], -1: ["error"]})

    def test_prompts_that_wait_take_little_memory(self):
        peaks = []
        for count in (1, 200000):
            with subprocess.Popen(command(STEPWISE, "--prompt_file", "-", "--max_new_tokens", 2), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
                running.stdin.write("1,2\n" * count)
                running.stdin.close()
                self.assertNotEqual(running.stdout.readline(), "")
                running.kill()
                peaks.append(os.wait4(running.pid, 0)[2].ru_maxrss * 1024)
                running.returncode = -signal.SIGKILL
        self.assertLess(peaks[1] - peaks[0], 200 * 1000 * 1000)

    def test_the_help_names_the_flags(self):
        done = generate("--help")
        self.assertEqual(done.returncode, 0, done.stderr)
        for flag in ("--prompt_ids", "--max_new_tokens", "--do_sample", "--max_memory"):
            self.assertIn(flag, done.stdout)
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80)

    def test_odd_prompts_are_refused(self):
        self.assertIn("no prompt", self.refused(CACHED))
        self.assertIn("prompt 2 has no tokens", self.refused(CACHED, "--prompt_ids", "1", "--prompt_ids", ""))
        self.assertIn("line 2", self.refused(CACHED, "--prompt_file", "-", given="1\n\n2\n"))
        self.assertIn("x", self.refused(CACHED, "--prompt_ids", "1,x"))
        self.assertIn("from 0 to 15", self.refused(CACHED, "--prompt_ids", "3,16"))
        self.assertIn("12", self.refused(CACHED, "--prompt_ids", ",".join(["1"] * 12)))
        self.assertIn("nosuch.txt", self.refused(CACHED, "--prompt_file", "nosuch.txt"))

    def test_odd_models_are_refused(self):
        self.assertIn("ids, labels, expected input_ids", self.refused(MODELS / "blocks.pt2", "--prompt_ids", "1"))
        self.assertIn("nosuch.pt2", self.refused("nosuch.pt2", "--prompt_ids", "1"))
        with tempfile.NamedTemporaryFile(suffix=".pt2") as text:
            text.write(b"no archive")
            text.flush()
            self.assertIn(text.name, self.refused(text.name, "--prompt_ids", "1"))

    def test_odd_numbers_are_refused(self):
        for words in (("--temperature", 0), ("--temperature", "nan"), ("--temperature", "inf"), ("--top_p", 1.5), ("--top_p", "nan"), ("--max_new_tokens", 0), ("--max_memory", "2XB"), ("--batch_size", 0)):
            self.assertIn(str(words[1]), self.refused(CACHED, "--prompt_ids", "1", *words))

    def test_a_full_device_is_an_error(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run(command(CACHED, *prompts()), stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("file.io", done.stderr)


if __name__ == "__main__":
    unittest.main()
