#!/usr/bin/env python3
"""Models of C++ that accel::export_model() wrote open, run and train in PyTorch as they do in C++.

For each model of cpp_export.cc: torch.export.load() reads it, in eval() it gives the same outputs, and ten steps of training from
one seed give the same losses, with dropout on. In C++ the file is trained as an ExportedModel, too: to the bit as the module.
Then what other tools do with a file: run_decompositions(), unflatten(), saving it again. With ACCEL_TEST_LONG=1 AOTInductor
compiles the eval graphs.
"""
import contextlib
import hashlib
import io
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings

import peer_python  # runs this script under the peer's Python

# Without it MKL's sums depend on where in memory operands lie.
os.environ["MKL_CBWR"] = "COMPATIBLE"
os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.export.pt2_archive._package
import torch.utils._sympy.numbers
from safetensors.torch import load_file

PROGRAM = pathlib.Path(peer_python.BUILD) / "tests/cpp_export"
SEED = 11
# One unit of the last place of a loss below 16, twice: the kernels of optimizers cut arrays in another way (exported_models.py).
LOSS = 2e-6
IS_LONG = os.environ.get("ACCEL_TEST_LONG") == "1"


def exported(name, folder):
    """What cpp_export prints, as words of lines."""
    done = subprocess.run([PROGRAM, name, folder], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"cpp_export {name} ended with {done.returncode}: {done.stderr.strip()[-3000:]}")
    return [line.split() for line in done.stdout.splitlines()]


@contextlib.contextmanager
def quiet():
    """PyTorch warns of tensors that it reads as they are."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def graphs_of(path):
    with quiet():
        return torch.export.pt2_archive._package.load_pt2(str(path)).exported_programs


def train(program, inputs, is_sgd):
    net = program.module()
    parameters = list(net.parameters())
    optimizer = (torch.optim.SGD(parameters, lr=0.05, momentum=0.9) if is_sgd
                 else torch.optim.AdamW(parameters, lr=1e-2, weight_decay=1e-2))
    torch.manual_seed(SEED)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = net(*inputs)["loss"]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Subject:
    """One model: its file, and what C++ made of it."""

    def __init__(self, name):
        self.folder = tempfile.TemporaryDirectory()
        self.lines = exported(name, self.folder.name)
        self.path = pathlib.Path(self.folder.name) / f"{name}.pt2"
        self.graphs = graphs_of(self.path)
        self.inputs, self.outputs = self.results("")
        steps = [line for line in self.lines if line[0] == "step"]
        self.losses = [float.fromhex(line[2]) for line in steps]
        self.losses_of_file = [float.fromhex(line[3]) for line in steps]

    def results(self, prefix):
        """Inputs in order, and the outputs of the module in eval() by name."""
        inputs, outputs = (load_file(f"{self.folder.name}/{prefix}{which}.safetensors") for which in ("inputs", "outputs"))
        return [inputs[name] for name in self.graphs["model"].graph_signature.user_inputs], outputs


class Models:
    """Tests of one model; the classes below name it."""

    name, is_sgd, is_dynamic = "", False, True
    least = 1  # the smallest batch
    can_unflatten = True

    @classmethod
    def setUpClass(cls):
        cls.subject = Subject(cls.name)

    @classmethod
    def tearDownClass(cls):
        cls.subject.folder.cleanup()

    def expect_outputs(self, inputs, outputs):
        with torch.no_grad():
            found = self.subject.graphs["eval"].module()(*inputs)
        for key, expected in outputs.items():
            self.assertTrue(torch.equal(found[key].contiguous(), expected), f"{key}: {(found[key] - expected).abs().max()}")

    def test_gives_the_outputs_of_the_module_in_eval(self):
        self.expect_outputs(self.subject.inputs, self.subject.outputs)

    def test_takes_batches_of_other_sizes(self):
        if not self.is_dynamic:
            self.skipTest("this one was exported with a batch of one size")
        self.expect_outputs(*self.subject.results("further_"))
        self.assertEqual([(range.lower, range.upper) for range in self.subject.graphs["eval"].range_constraints.values()],
                         [(self.least, torch.utils._sympy.numbers.int_oo)])

    def test_is_what_torch_export_load_opens(self):
        with quiet():
            program = torch.export.load(self.subject.path)
        self.assertEqual(list(program.state_dict), list(self.subject.graphs["model"].state_dict))

    def test_trains_as_the_module_does(self):
        losses = train(self.subject.graphs["model"], self.subject.inputs, self.is_sgd)
        self.assertLess(losses[-1], losses[0])
        for mine, theirs in zip(self.subject.losses, losses, strict=True):
            self.assertAlmostEqual(mine, theirs, delta=LOSS)

    def test_trains_as_an_exported_model_to_the_bit(self):
        self.assertEqual(self.subject.losses, self.subject.losses_of_file)

    def test_is_the_same_file_each_time(self):
        digest = hashlib.sha256(self.subject.path.read_bytes()).hexdigest()
        with tempfile.TemporaryDirectory() as folder:
            exported(self.name, folder)
            again = pathlib.Path(folder) / f"{self.name}.pt2"
            self.assertEqual(hashlib.sha256(again.read_bytes()).hexdigest(), digest)

    def test_survives_what_other_tools_do(self):
        program = self.subject.graphs["eval"]
        with quiet():
            decomposed = program.run_decompositions()
            written = io.BytesIO()
            torch.export.save(program, written)
            written.seek(0)
            again = torch.export.load(written)
            unflattened = [torch.export.unflatten(program)] if self.can_unflatten else []
        with torch.no_grad():
            expected = program.module()(*self.subject.inputs)["loss"]
            for other in (decomposed.module(), again.module(), *unflattened):
                # Decompositions compute the same in another order: some units of the last place of a sum of a hundred terms.
                torch.testing.assert_close(other(*self.subject.inputs)["loss"], expected, rtol=1e-5, atol=1e-6)

    @unittest.skipUnless(IS_LONG, "compiles with AOTInductor: minutes")
    def test_compiles_with_aot_inductor(self):
        package = f"{self.subject.folder.name}/compiled.pt2"
        torch._inductor.aoti_compile_and_package(self.subject.graphs["eval"], package_path=package)
        found = torch._inductor.aoti_load_package(package)(*self.subject.inputs)
        for key, expected in self.subject.outputs.items():
            torch.testing.assert_close(found[key], expected, rtol=1e-4, atol=1e-5)


class Mlp(Models, unittest.TestCase):
    name = "mlp"


class Conv(Models, unittest.TestCase):
    name, is_sgd = "conv", True

    def test_has_the_statistics_of_batch_norm_as_buffers(self):
        program = self.subject.graphs["model"]
        self.assertIn("1.running_mean", program.graph_signature.buffers)
        with quiet():
            written = program.run_decompositions().graph_signature.buffers_to_mutate
        self.assertEqual(set(written.values()), {f"{i}.{name}" for i in (1, 5)
                                                 for name in ("running_mean", "running_var", "num_batches_tracked")})

    def test_changes_them_as_the_module_does(self):
        net = graphs_of(self.subject.path)["model"].module()
        net(*self.subject.inputs)
        self.assertEqual(dict(net.named_buffers())["1.num_batches_tracked"].item(), 1)


class Transformer(Models, unittest.TestCase):
    name = "transformer"
    least = 2  # strides of tensors with one row are others
    can_unflatten = False  # the encoder seems to be called twice (below), and a layer of its second call has no place in Python

    def test_keeps_tied_weights_one(self):
        state = self.subject.graphs["model"].state_dict
        self.assertEqual(state["embed.weight"].data_ptr(), state["head.weight"].data_ptr())

    def test_lifts_a_tensor_that_is_registered_nowhere(self):
        self.assertIn(["constant", "lifted_tensor_0", "Float", "[7,", "1,", "16]"], self.subject.lines)
        self.assertEqual(self.subject.graphs["model"].constants["lifted_tensor_0"].shape, (7, 1, 16))

    def test_says_which_module_a_node_is_of(self):
        # The mask is a buffer of the model: where the attention takes it, the encoder seems to be left and called again ("encoder@1").
        calls = [[(path.split("@")[0], name) for path, name in node.meta.get("nn_module_stack", {}).values()] for node in self.subject.graphs["model"].graph.nodes
                 if "layer_norm" in node.name]
        self.assertIn([("", "Transformer"), ("encoder", "torch.nn.TransformerEncoder"),
                       ("encoder.layers.0", "torch.nn.TransformerEncoderLayer"),
                       ("encoder.layers.0.norm1", "torch.nn.LayerNorm")], calls)


class Decoder(Models, unittest.TestCase):
    name, is_dynamic = "decoder", False


class Recurrent(Models, unittest.TestCase):
    name = "recurrent"


if __name__ == "__main__":
    if not PROGRAM.exists():
        print(f"skipped: {PROGRAM} is not in this build")
        sys.exit(77)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    unittest.main()
