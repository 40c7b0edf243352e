#!/usr/bin/env python3
"""The examples train: those of README and tutorials, and those of one task each (python.py has those with Python)."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["ACCEL_BUILD_DIR"])
SOURCE = pathlib.Path(os.environ["ACCEL_SOURCE_DIR"])
PEER = SOURCE / ".deps/peer/bin"  # Python with torch, safetensors and Accelerate


def losses(program, folder, processes):
    """Of each epoch, by its number."""
    command = [BUILD / "examples" / program]
    if processes:
        command = [BUILD / "bin/accel-launch", "--cpu", "--num_processes", str(processes), *command]
    done = subprocess.run(command, cwd=folder, env=dict(os.environ, HF_HOME=str(folder / "hf_home")), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {int(epoch): float(loss) for epoch, loss in re.findall(r"^epoch (\d+) loss ([\d.e-]+)$", done.stdout, re.M)}


class ExamplesTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def run_line(self, *line):
        """Its standard output."""
        # One thread, whatever the number of processes: the order of sums is the same, and none waits for a thread that does not run.
        environment = dict(os.environ, OMP_NUM_THREADS="1", HF_HOME=str(self.folder / "hf_home"),
                           PATH=f"{BUILD}/bin:{PEER}:{os.environ['PATH']}")
        done = subprocess.run([str(word) for word in line], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, f"{line}: {done.stdout}{done.stderr}")
        return done.stdout

    def train(self, name, *arguments, processes=2):
        return self.run_line("accel-launch", "--cpu", "--num_processes", processes, BUILD / "examples" / name, *arguments)

    def number(self, pattern, text):
        found = re.search(pattern + r" ([\d.e+-]+)", text)
        self.assertIsNotNone(found, text)
        return float(found[1])


class Examples(ExamplesTest):
    def expect_learned(self, found):
        self.assertEqual(list(found), list(range(20)))
        self.assertLess(found[19], 0.05)  # a sine's own mean square is 0.5

    def test_minimal_learns_alone_and_on_two_processes(self):
        for processes in (0, 2):
            folder = self.folder / str(processes)
            folder.mkdir()
            self.expect_learned(losses("minimal", folder, processes))

    def test_minimal_goes_on_from_its_newest_checkpoint(self):
        whole = losses("minimal", self.folder, 2)
        checkpoints = self.folder / "minimal_run/checkpoints"
        for checkpoint in checkpoints.iterdir():
            if int(checkpoint.name.split("_")[1]) > 14:
                subprocess.run(["rm", "-r", checkpoint], check=True)
        rest = losses("minimal", self.folder, 2)
        self.assertEqual(rest, {epoch: loss for epoch, loss in whole.items() if epoch > 14})

    def test_the_program_of_plain_libtorch_and_its_port_both_learn(self):
        self.expect_learned(losses("plain_sine", self.folder, 0))
        self.expect_learned(losses("accel_sine", self.folder, 2))
        self.assertEqual(losses("accel_sine", self.folder, 2), {})  # nothing is left to do


class Tasks(ExamplesTest):
    def test_the_numbers_of_the_gan_are_distributed_as_the_real_ones(self):
        out = self.train("gan")
        # 4,096 numbers of the right distribution have a mean within 0.08 and a deviation within 0.06 (four standard errors); a generator
        # that has learned nothing makes numbers near 0, one that knows the mean alone has no deviation.
        self.assertLess(abs(self.number("mean", out) - 4), 0.5, out)
        self.assertLess(abs(self.number("deviation", out) - 1.25), 0.5, out)

    def test_the_pole_stays_up(self):
        out = self.train("reinforce")
        steps = {int(update): float(number) for update, number in re.findall(r"update (\d+) steps ([\d.]+)", out)}
        self.assertLess(steps[1], 40, out)  # by chance: 20 or so
        self.assertGreater(steps[40], 100, out)

    def test_inference_answers_the_same_on_any_number_of_processes(self):
        outs = {processes: self.train("inference", processes=processes) for processes in (1, 2, 3)}
        answers = [[line for line in out.splitlines() if line.startswith("answer:")] for out in outs.values()]
        self.assertEqual(len(answers[0]), 5, outs[1])
        self.assertEqual(answers[0], answers[1])
        self.assertEqual(answers[0], answers[2])
        self.assertEqual(len(set(answers[0])), 5)
        self.assertEqual(re.findall(r"process (\d: \d prompts)", outs[3]), ["0: 2 prompts", "1: 2 prompts", "2: 1 prompts"])


if __name__ == "__main__":
    unittest.main()
