#!/usr/bin/env python3
"""`accel export`: what it writes, and what it says when it cannot. tests/peer/exported_models.py trains what it writes."""
import contextlib
import io
import json
import os
import pathlib
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
import transformers

import export_model
from exported_architectures import ARCHITECTURES

FACTORIES = """
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.dropout = torch.nn.Dropout(0.5)

        def forward(self, x, y):
            return ((self.dropout(self.linear(x)) - y) ** 2).mean()

    class Decides(Net):
        def forward(self, x, y):
            if x.sum() > 0:
                return self.linear(x).sum()
            return self.linear(y).sum()

    class Fixed(Net):
        def forward(self, x, y):
            return (self.linear(x).view(2, 4) - y).sum()

    def nothing():
        return 3

    def example_inputs():
        return {"x": torch.ones(2, 4), "y": torch.zeros(2, 4)}
"""
NO_EXAMPLE = "import torch\ndef net():\n    return torch.nn.Linear(2, 2)\n"


def accel(*words, cwd, **environment):
    return subprocess.run([BUILD / "bin/accel", "export", *map(str, words)], cwd=cwd, env=dict(os.environ, **environment),
                          capture_output=True, text=True, check=False)


def records(path):
    """Of an archive: name without the archive's own -> bytes."""
    with zipfile.ZipFile(path) as archive:
        return {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}


class InFolder(unittest.TestCase):
    def setUp(self):
        keeper = tempfile.TemporaryDirectory()
        self.addCleanup(keeper.cleanup)
        self.folder = pathlib.Path(keeper.name)
        (self.folder / "factories.py").write_text(textwrap.dedent(FACTORIES))
        (self.folder / "no_example.py").write_text(NO_EXAMPLE)
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder)
        self.addCleanup(lambda path: sys.path.__setitem__(slice(None), path), list(sys.path))

    def export(self, model, **options):
        output = str(self.folder / "model.pt2")
        with contextlib.redirect_stderr(io.StringIO()):
            return export_model.export(export_model.Request(model=model, output=options.pop("output", output), **options))

    def refusal(self, model, **options):
        with self.assertRaises(export_model.Refusal) as refused:
            self.export(model, **options)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir() if path.suffix != ".py" and path.name != "__pycache__"),
                         [], "a refused export left something behind")
        self.assertTrue(refused.exception.remedy)
        return refused.exception

    def configuration(self, name):
        task, kind, values = ARCHITECTURES[name]
        folder = self.folder.parent / f"{self.folder.name}-{name}"
        folder.mkdir()
        self.addCleanup(lambda: [path.unlink() for path in folder.iterdir()] and None or folder.rmdir())
        (folder / "config.json").write_text(json.dumps({"model_type": kind, **values}))
        return folder


class Command(InFolder):
    def test_a_model_is_written_and_reported(self):
        done = accel("factories:Net", "-o", "net.pt2", "--python", sys.executable, cwd=self.folder)

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^net.pt2: Net with 20 parameters; its largest differences from the module: 0.0 in eval\(\)")
        self.assertEqual(done.stderr, "")
        self.assertIn("models/model.json", records(self.folder / "net.pt2"))

    def test_a_refusal_has_the_form_and_the_status_of_accels_errors(self):
        done = accel("factories:Net", "-o", "nowhere/net.pt2", "--python", sys.executable, cwd=self.folder)

        self.assertEqual(done.returncode, 74)
        self.assertIn("accel export: error [file.io]: nowhere/net.pt2 cannot be written", done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def test_packages_that_are_missing_are_named_with_how_to_install_them(self):
        for package, model in (("torch", "factories:Net"), ("transformers", "hf:folder")):
            hidden = self.folder / f"without_{package}" / package
            hidden.mkdir(parents=True)
            (hidden / "__init__.py").write_text(f"raise ModuleNotFoundError('no', name='{package}')\n")
            done = accel(model, "-o", "net.pt2", "--python", sys.executable, cwd=self.folder, PYTHONPATH=str(hidden.parent))
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"the Python package {package} is not installed for", done.stderr)
            self.assertIn(f"-m pip install {package}", done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_a_python_that_is_missing_is_an_error(self):
        done = accel("factories:Net", "-o", "net.pt2", "--python", "/no/python", cwd=self.folder)
        self.assertEqual(done.returncode, 126)
        self.assertIn("--python is /no/python, which cannot be executed", done.stderr)

        done = accel("factories:Net", "-o", "net.pt2", cwd=self.folder, PATH="/nowhere", VIRTUAL_ENV="", CONDA_PREFIX="", PYTHON_EXEC="")
        self.assertEqual(done.returncode, 127)
        self.assertIn("no Python was found", done.stderr)

    def test_words_that_make_no_sense_start_no_python(self):
        for words in (["--task", "cooking"], ["--loss", "outside"], ["--dynamic", "height"], ["--weights", "under"], ["--compile", "gpu"], ["--batch_size", "0"]):
            done = accel("factories:Net", "-o", "net.pt2", "--python", "/bin/false", *words, cwd=self.folder)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words[0], done.stderr)


class Refusals(InFolder):
    def test_what_is_no_model_is_said(self):
        for model, said in (("gpt2", "says no source"), ("hf:", "says no source"), ("hf:./nowhere", "there is no ./nowhere"),
                            ("hf:nowhere.json", "there is no nowhere.json"), ("absent:net", "there is no Python module absent"),
                            ("factories:absent", "has no function absent"), ("factories:nothing", "which is no torch.nn.Module"),
                            ("no_example:net", "neither Linear nor no_example has example_inputs()"),
                            ("diffusers:nowhere", "no configuration of diffusers"), ("torchvision:absent", "torchvision cannot make absent"),
                            ("timm:absent", "timm cannot make absent")):
            with self.subTest(model):
                refused = self.refusal(model)
                self.assertEqual(refused.code, "usage")
                self.assertIn(said, refused.message)

    def test_a_configuration_without_weights_needs_random_ones(self):
        folder = self.configuration("bert")

        for model in (folder, folder / "config.json"):
            refused = self.refusal(f"hf:{model}")
            self.assertEqual(refused.code, "usage")
            self.assertIn("--random_weights", refused.remedy)

    def test_a_task_that_a_model_has_not_is_said(self):
        refused = self.refusal(f"hf:{self.configuration('bert')}", random_weights=True, task="image")

        self.assertEqual(refused.code, "unsupported")
        self.assertIn("no class for bert and the task image", refused.message)

    def test_a_decision_by_values_is_named_with_its_line(self):
        refused = self.refusal("factories:Decides")

        self.assertEqual(refused.code, "unsupported")
        self.assertRegex(refused.message, r"factories.py:15, `if x.sum\(\) > 0:`")
        self.assertIn("torch.where", refused.remedy)

    def test_a_size_that_the_model_fixes_is_named(self):
        refused = self.refusal("factories:Fixed", dynamic=("batch",))

        self.assertEqual(refused.code, "unsupported")
        self.assertIn("x[0] (batch), y[0] (batch)", refused.message)


class Files(InFolder):
    def test_both_graphs_are_there_and_the_weights_once(self):
        facts = self.export(f"hf:{self.configuration('llama')}", random_weights=True, sequence_length=16, dynamic=("batch", "sequence"))

        kept = records(self.folder / "model.pt2")
        self.assertEqual({name for name in kept if name.startswith("models/")}, {"models/model.json", "models/eval.json"})
        tables = [json.loads(kept[f"data/weights/{graph}_weights_config.json"])["config"] for graph in ("model", "eval")]
        self.assertEqual(tables[0], tables[1])
        self.assertEqual(tables[0]["lm_head.weight"]["path_name"], tables[0]["model.embed_tokens.weight"]["path_name"])
        weights = sum(len(value) for name, value in kept.items() if name.startswith("data/weights/weight_"))
        self.assertEqual(weights, 4 * facts["parameters"])
        self.assertEqual(facts["differences"]["eval"], 0.0)
        self.assertEqual(facts | {"differences": None}, json.loads(kept["extra/accel.json"]) | {"differences": None})
        self.assertEqual([(entry["name"], entry["dynamic"]) for entry in facts["inputs"]],
                         [("input_ids", {"0": "batch", "1": "sequence"}), ("labels", {"0": "batch", "1": "sequence"})])
        self.assertEqual((facts["class"], facts["blocks"], facts["task"]), ("LlamaForCausalLM", ["LlamaDecoderLayer"], "causal-lm"))

    def test_weights_beside_are_what_from_pretrained_reads(self):
        facts = self.export(f"hf:{self.configuration('llama')}", random_weights=True, sequence_length=16, weights="beside")

        kept = records(self.folder / "model.pt2")
        self.assertEqual({len(value) for name, value in kept.items() if name.startswith("data/weights/weight_")}, {0})
        self.assertEqual(facts["weights"], "model.safetensors")
        net, report = transformers.LlamaForCausalLM.from_pretrained(self.folder, output_loading_info=True)
        self.assertEqual([set(report[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")], [set(), set(), set()])
        self.assertEqual(sum(parameter.numel() for parameter in net.parameters()), facts["parameters"])

    def test_dropout_can_be_left_out(self):
        config = self.configuration("bert")
        for dropout in (True, False):
            self.export(f"hf:{config}", random_weights=True, sequence_length=16, dropout=dropout)
            graph = torch.export.load(self.folder / "model.pt2").graph
            rates = {node.args[1] for node in graph.nodes if node.target is torch.ops.aten.dropout.default}
            self.assertEqual(rates - {0.0}, {0.1} if dropout else set())

    def test_logits_need_no_labels(self):
        facts = self.export(f"hf:{self.configuration('vit')}", random_weights=True, loss="logits")

        self.assertEqual([entry["name"] for entry in facts["inputs"]], ["pixel_values"])
        self.assertEqual((facts["outputs"], facts["loss"]), (["logits"], False))


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    unittest.main(verbosity=2)
