#!/usr/bin/env python3
"""The examples with Python: weights and models that go to C++ and come back, and scripts under each launcher."""
import pathlib
import re
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "integration/examples"))
from run import PEER, SOURCE, ExamplesTest  # noqa: E402


class Python(ExamplesTest):
    def script(self, name, *arguments):
        return self.run_line(PEER / "python", SOURCE / "examples" / name, *arguments)

    def test_vision_is_better_when_it_comes_back_and_python_counts_the_same(self):
        written = self.number("accuracy", self.script("from_python/vision.py", "write", "digits"))
        out = self.train("vision", "digits", "tuned")
        self.assertAlmostEqual(self.number("accuracy before", out), written, places=5)
        tuned = self.number("accuracy after", out)
        self.assertGreater(tuned, max(0.9, written + 0.1))
        # One image of 359 may lie between two digits: kernels of different batch sizes round differently.
        self.assertLess(abs(self.number("accuracy", self.script("from_python/vision.py", "read", "tuned")) - tuned), 1.5 / 359)

    def test_language_is_better_when_it_comes_back_and_python_finds_the_same_loss(self):
        written = self.number("loss", self.script("from_python/language.py", "write", "gpt"))
        out = self.train("language", "gpt", "tuned")
        self.assertAlmostEqual(self.number("loss before", out), written, places=3)  # means of 4,096 floats, printed with six digits
        tuned = self.number("loss after", out)
        self.assertLess(tuned, written - 0.3)
        self.assertAlmostEqual(self.number("loss", self.script("from_python/language.py", "read", "tuned")), tuned, places=3)
        tuned_prompts = self.train("inference", "tuned/model.safetensors")
        self.assertNotEqual(re.findall("answer.*", tuned_prompts), re.findall("answer.*", self.train("inference")))

    def test_a_script_and_an_exported_program_go_back_to_python(self):
        untrained = self.number("loss", self.script("from_python/models.py", "write", "models"))
        self.assertGreater(untrained, 0.3)
        self.train("python_models", "script", "models/net.pt", "models/tuned.pt")
        self.train("python_models", "exported", "models/net.pt2", "models/tuned")
        out = self.script("from_python/models.py", "read", "models")
        self.assertLess(self.number("script loss", out), 0.01)  # a sine's own mean square is 0.5
        self.assertLess(self.number("exported loss", out), 0.01)

    def expect_loss(self, num_processes, out):
        """The mean of gradients of halves is that of the whole but for rounding, so 200 steps end at the same place, printed with four
        digits."""
        self.assertRegex(out, rf"^{num_processes} processes, loss 0\.00\d\d\n$")
        self.assertLessEqual(abs(self.number("loss", out) - 0.0085), 0.0002)

    def test_a_script_of_pytorch_runs_alike_under_each_launcher(self):
        script = SOURCE / "examples/python/ddp.py"
        for line in (["accel-launch", "--cpu", "--num_processes", 2], ["accel-torchrun", "--nproc-per-node", 2], ["torchrun", "--standalone", "--nproc-per-node", 2]):
            self.expect_loss(2, self.run_line(*line, script))

    def test_a_script_of_accelerate_runs_alike_under_both_launchers(self):
        script = SOURCE / "examples/python/accelerated.py"
        self.expect_loss(2, self.run_line("accel-launch", "--cpu", "--num_processes", 2, script))
        self.expect_loss(1, self.run_line("accelerate", "launch", "--cpu", script))


if __name__ == "__main__":
    unittest.main(verbosity=2)
