#!/usr/bin/env python3
"""Machine code that `accel export --compile` and torch._inductor write, in accel::ExportedModel and accel::CompiledModel: it computes
what the graph and Python compute, sees the weights that an optimizer has changed, and is refused where it cannot run.

One small network: a C++ compiler takes half a minute for each.
"""
import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
import zipfile

import peer_python  # runs this script under the peer's Python

SOURCE = pathlib.Path(peer_python.SOURCE)
BUILD = pathlib.Path(peer_python.BUILD)
sys.path.insert(0, str(SOURCE / "launcher/commands/export"))

import torch
from safetensors.torch import save_file

import export_model
from train_peer import run_ranks

EVAL = BUILD / "tests/compiled_eval"
ROWS = 4
# Losses and outputs below 8: kernels sum some ten numbers in another order and round some ten times more or less, each by at most
# half a unit of the last place, 2.4e-7.
NEAR = 5e-6

# A weight of 8 elements, which AOTInductor would bake into the code, and buffers: one is uniform, one is written in eval().
FACTORIES = """
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = torch.nn.Linear(4, 8)
            self.norm = torch.nn.LayerNorm(8)
            self.down = torch.nn.Linear(8, 4)
            self.dropout = torch.nn.Dropout(0.0)
            self.register_buffer("scale", torch.ones(4))
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x, y):
            if not self.training:
                self.calls.add_(1)
            found = self.down(self.dropout(self.norm(torch.tanh(self.up(x))))) * self.scale
            return {"loss": ((found - y) ** 2).mean(), "found": found, "calls": self.calls + 0}

    class Drops(Net):
        def __init__(self):
            super().__init__()
            self.dropout.p = 0.5

    def example_inputs():
        draws = torch.Generator().manual_seed(3)
        return {"x": torch.randn(4, 4, generator=draws), "y": torch.randn(4, 4, generator=draws)}
"""


def evaluate(*words, **environment):
    return subprocess.run([EVAL, *map(str, words)], env=dict(os.environ, **environment), capture_output=True, text=True, check=False)


def steps_of(lines):
    """[(loss of the code, loss of the graph, largest difference, calls of code, calls in the step before)], why there is no code in
    eval(), why in train()."""
    *steps, in_eval, in_train = lines
    return [tuple(map(float, line.split()[1:])) for line in steps], *(why.removeprefix("why").strip() for why in (in_eval, in_train))


class Compiled(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        keeper = tempfile.TemporaryDirectory()
        cls.addClassCleanup(keeper.cleanup)
        cls.folder = pathlib.Path(keeper.name)
        (cls.folder / "factories.py").write_text(textwrap.dedent(FACTORIES))
        cls.addClassCleanup(os.chdir, os.getcwd())
        os.chdir(cls.folder)
        sys.path.insert(0, str(cls.folder))
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cls.folder / "cache")
        cls.model = cls.folder / "net.pt2"
        request = export_model.Request(model="factories:Net", output=str(cls.model), dynamic=("batch",), compile=("eval", "train"))
        with contextlib.redirect_stderr(io.StringIO()):
            cls.facts = export_model.export(request)
            cls.subject = export_model.find_subject(request)
        cls.inputs = cls.folder / "inputs.safetensors"
        save_file(cls.subject.inputs, cls.inputs)

    def changed(self, change):
        """A copy of the file whose entries change(name, bytes) has made others; None leaves one out."""
        path = self.folder / f"{self.id().rsplit('.', 1)[-1]}.pt2"
        with zipfile.ZipFile(self.model) as old, zipfile.ZipFile(path, "w") as new:
            for entry in old.infolist():
                data = change(entry.filename.split("/", 1)[1], old.read(entry))
                if data is not None:
                    new.writestr(entry, data)
        return path

    def run_graph(self, path=None, *words, **environment):
        done = evaluate("graph", path or self.model, self.inputs, *words, **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return *steps_of(done.stdout.splitlines()), done.stderr

    def expected(self, steps):
        """Losses in eval() before each step of SGD in Python and after the last."""
        net = export_model.find_subject(export_model.Request(model="factories:Net", output="")).net
        optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.1), []
        for _ in range(steps + 1):
            losses.append(net.eval()(**self.subject.inputs)["loss"].item())
            optimizer.zero_grad()
            net.train()(**self.subject.inputs)["loss"].backward()
            optimizer.step()
        return losses

    def test_the_code_computes_what_the_module_computes(self):
        self.assertEqual(self.facts["compiled"], ["eval", "train"])
        self.assertLess(self.facts["differences"]["compiled"], NEAR)

    def test_the_file_has_the_weights_once_and_none_in_the_code(self):
        with zipfile.ZipFile(self.model) as archive:
            weight = next(self.subject.net.parameters()).detach().numpy().tobytes()
            self.assertEqual(sum(weight in archive.read(name) for name in archive.namelist()), 1)

    def test_weights_that_an_optimizer_changes_are_those_of_the_code(self):
        steps, *why, _ = self.run_graph(None, "--compiled", "possible", "--steps", "5")

        self.assertEqual(why, ["", ""])
        self.assertEqual([step[4] for step in steps], [0, 1, 1, 1, 1, 1], "steps of code")
        for expected, (compiled, interpreted, difference, calls, _) in zip(self.expected(5), steps, strict=True):
            self.assertEqual(calls, 1)
            self.assertAlmostEqual(compiled, expected, delta=NEAR)
            self.assertAlmostEqual(interpreted, expected, delta=NEAR)
        self.assertLess(steps[-1][0], steps[0][0] - 0.01)

    def test_other_batch_sizes_are_computed(self):
        for rows in (1, 2, 3):
            steps, *why, _ = self.run_graph(None, "--compiled", "possible", "--steps", "1", "--rows", str(rows))
            self.assertEqual((why, [step[3:] for step in steps]), (["", ""], [(1, 0), (1, 1)]))
            self.assertTrue(all(abs(step[0] - step[1]) < NEAR for step in steps), steps)

    def test_shards_of_two_ranks_are_brought_in_for_the_code(self):
        lines = run_ranks([EVAL, "graph", str(self.model), str(self.inputs), "--compiled", "possible", "--strategy", "full_shard"], 2)[0]

        steps, *why = steps_of([line for line in lines if line])
        self.assertEqual((why, [step[3:] for step in steps]), (["", ""], [(1, 0)] + [(1, 1)] * 3))
        for expected, step in zip(self.expected(3), steps, strict=True):
            self.assertAlmostEqual(step[0], expected, delta=NEAR)

    def test_code_is_run_where_it_is_asked_for_alone(self):
        steps, why, _, _ = self.run_graph(None, "--compiled", "never")

        self.assertEqual([step[3:] for step in steps], [(0, 0)] * 4)
        self.assertIn("does not ask for it", why)

    def test_autocast_is_the_interpreters_and_said_once(self):
        steps, _, _, said = self.run_graph(None, "--compiled", "possible", "--mixed_precision", "bf16")

        self.assertEqual([step[3:] for step in steps], [(0, 0)] * 4)
        self.assertEqual(said.count("autocast is on"), 1)

    def test_code_for_another_machine_is_not_loaded(self):
        def change(name, data):
            if name.endswith("/accel.json") and "aotinductor" in name:
                table = json.loads(data)
                table["cpu"].append("avx9")
                return json.dumps(table)
            return b"" if name.endswith(".so") else data  # never looked at

        path = self.changed(change)
        done = evaluate("graph", path, self.inputs)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("compiled for a CPU with avx9, which this one has not", done.stderr)
        self.assertIn("accel export --compile", done.stderr)
        steps, why, _, said = self.run_graph(path, "--compiled", "possible")
        self.assertIn("avx9", why)
        self.assertEqual(said.count("avx9"), 1)
        self.assertEqual([step[3:] for step in steps], [(0, 0)] * 4)

    def test_code_that_computes_something_else_is_not_used(self):
        def change(name, data):
            # The interpreter takes 2 for the power of the loss, the code 2.
            return data if name != "models/eval.json" else data.replace(b'"as_int": 2}', b'"as_int": 3}')

        def with_mark(name, data):
            data = change(name, data)
            if name == "data/aotinductor/eval/accel.json":
                with zipfile.ZipFile(self.model) as archive:
                    graph = change("models/eval.json", archive.read("net/models/eval.json"))
                return json.dumps(json.loads(data) | {"graph": {"bytes": len(graph), "crc32": export_model.zlib.crc32(graph)}})
            return data

        done = evaluate("graph", self.changed(change), self.inputs)
        self.assertIn("was not made of its graph", done.stderr)
        steps, why, _, said = self.run_graph(self.changed(with_mark), "--compiled", "possible")
        self.assertIn("its output 'loss' differs by", why)
        self.assertEqual(said.count("its output 'loss' differs by"), 1)
        self.assertTrue(all(step[0] == step[1] for step in steps), steps)

    def test_wrong_gradients_are_found_in_the_first_step_and_named(self):
        def change(name, data):
            if name != "data/aotinductor/model/accel.json":
                return data
            swapped = {"up.bias": "norm.weight", "norm.weight": "up.bias"}
            table = json.loads(data)
            table["outputs"] = [[kind, swapped.get(target, target)] for kind, target in table["outputs"]]
            return json.dumps(table)

        steps, _, why, said = self.run_graph(self.changed(change), "--compiled", "possible")

        self.assertIn("its gradients of ", why)
        self.assertEqual({"up.bias", "norm.weight"}, set(why.removeprefix("its gradients of ").split(" are")[0].split(", ")))
        self.assertEqual(said.count("its gradients of"), 1)
        self.assertEqual([step[4] for step in steps], [0, 1, 0, 0], "the first step compares")
        for expected, step in zip(self.expected(3), steps, strict=True):
            self.assertAlmostEqual(step[0], expected, delta=NEAR)

    def test_training_with_dropout_is_not_compiled(self):
        with self.assertRaises(export_model.Refusal) as refused, contextlib.redirect_stderr(io.StringIO()):
            export_model.export(export_model.Request(model="factories:Drops", output=str(self.folder / "drops.pt2"), compile=("train",)))

        self.assertIn("draws random numbers", refused.exception.message)
        self.assertIn("--no_dropout", refused.exception.remedy)

    def test_damaged_code_is_an_error_and_leaves_no_folder(self):
        scratch = self.folder / "scratch"
        scratch.mkdir()
        for change, said in ((lambda name, data: data[:5000] if name.endswith(".so") else data, "is no whole shared library"),
                             (lambda name, data: None if name.endswith(".so") else data, "has no shared library"),
                             (lambda name, data: None if name.endswith("metadata.json") else data, "for which machine")):
            done = evaluate("graph", self.changed(change), self.inputs, TMPDIR=str(scratch))
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(said, done.stderr)
        done = evaluate("graph", self.model, self.inputs, TMPDIR=str(scratch))
        self.assertEqual((done.returncode, list(scratch.iterdir())), (0, []))
        done = evaluate("graph", self.model, self.inputs, TMPDIR="/nowhere")
        self.assertIn("name a folder that can be written in TMPDIR", done.stderr)

    def test_without_a_compiler_export_says_so(self):
        done = subprocess.run([BUILD / "bin/accel", "export", "factories:Net", "-o", "other.pt2", "--compile", "eval", "--python", sys.executable],
                              env=dict(os.environ, CXX="/no/compiler"), cwd=self.folder, capture_output=True, text=True, check=False)

        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("--compile needs a C++ compiler, and none of /no/compiler can be run", done.stderr)
        self.assertFalse((self.folder / "other.pt2").exists())


class Packages(unittest.TestCase):
    """What torch._inductor.aoti_compile_and_package() writes."""

    @classmethod
    def setUpClass(cls):
        keeper = tempfile.TemporaryDirectory()
        cls.addClassCleanup(keeper.cleanup)
        cls.folder = pathlib.Path(keeper.name)
        torch.manual_seed(5)
        cls.net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).eval()
        cls.x = torch.randn(3, 4)
        cls.inputs = cls.folder / "inputs.safetensors"
        save_file({"x": cls.x}, cls.inputs)
        save_file(cls.net.state_dict(), cls.folder / "weights.safetensors")

        class Named(torch.nn.Module):
            def __init__(self, net):
                super().__init__()
                self.net = net

            def forward(self, x):
                return {"logits": self.net(x), "sum": self.net(x).sum()}

        program = torch.export.export(Named(cls.net), (cls.x,), strict=False)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cls.folder / "cache")
        with contextlib.redirect_stderr(io.StringIO()):
            for name, inside in (("whole", True), ("without", False)):
                torch._inductor.aoti_compile_and_package(program, package_path=str(cls.folder / f"{name}.pt2"), inductor_configs={
                    "aot_inductor.package_constants_in_so": inside, "always_keep_tensor_constants": not inside})

    def assert_computes(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        found = {name: float(value) for name, value in map(str.split, done.stdout.splitlines())}
        expected = self.net(self.x).double().sum().item()
        self.assertEqual(set(found), {"logits", "sum"})
        for value in found.values():
            self.assertAlmostEqual(value, expected, delta=NEAR)

    def test_a_package_computes_what_the_module_computes(self):
        self.assert_computes(evaluate("package", self.folder / "whole.pt2", self.inputs))

    def test_constants_that_it_leaves_out_are_asked_for_and_read(self):
        done = evaluate("package", self.folder / "without.pt2", self.inputs)
        self.assertIn("was written without the values of net.0.bias, net.0.weight", done.stderr)

        weights = self.folder / "named.safetensors"
        save_file({f"net.{name}": value for name, value in self.net.state_dict().items()}, weights)
        self.assert_computes(evaluate("package", self.folder / "without.pt2", self.inputs, "--weights", weights))

    def test_inputs_that_it_was_not_compiled_for_are_refused(self):
        done = evaluate("package", self.folder / "whole.pt2", self.inputs, "--rows", "2")

        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("the compiled model whole.pt2 failed", done.stderr)


if __name__ == "__main__":
    if not EVAL.exists():
        print(f"skipped: {EVAL} is not in this build")
        sys.exit(77)
    if not shutil.which(os.environ.get("CXX") or "g++"):
        print("skipped: no C++ compiler")
        sys.exit(77)
    torch.set_num_threads(1)
    unittest.main(verbosity=2)
