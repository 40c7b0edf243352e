#!/usr/bin/env python3
"""`accel generate` against generate() of transformers: greedy tokens and draws, of models with a static cache and without one, with their
weights in memory and on disk; a model ten times as large as the memory that the process may take."""
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import unittest

from peer_python import BUILD as BUILD_FOLDER, SOURCE as SOURCE_FOLDER
import torch
import transformers
from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM, convert_and_export_with_cache

ACCEL = pathlib.Path(BUILD_FOLDER) / "bin/accel"
VOCABULARY, PLACES, NEW = 131, 40, 9
PROMPTS = [[5, 17, 80], [3], [9, 9, 1, 44, 100, 2], [7, 120, 3], [64, 8]]
MIB = 1 << 20

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()


def llama(**sizes):
    torch.manual_seed(1)
    values = {"vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
              "num_key_value_heads": 2, "max_position_embeddings": 64, "eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    # With the default of 0.02 random weights say the same token again and again.
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**values, "initializer_range": 0.2, **sizes})).eval()


def gpt2():
    torch.manual_seed(2)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=4, n_positions=64, initializer_range=0.2, eos_token_id=None, bos_token_id=None)).eval()


def caching(net, rows, places=PLACES):
    net.generation_config = transformers.GenerationConfig(
        use_cache=True, cache_implementation="static", cache_config={"batch_size": rows, "max_cache_len": places})
    return net


def one_token_at_a_time(net, places=PLACES):
    return convert_and_export_with_cache(caching(net, 1, places))


def any_tokens(net, rows, strict=True):
    sequence = torch.export.Dim("sequence", min=1, max=PLACES)
    module = TorchExportableModuleForDecoderOnlyLM(caching(net, rows), batch_size=rows, max_cache_len=PLACES)
    with torch.no_grad():
        return module.export(input_ids=torch.ones(rows, 3, dtype=torch.long), cache_position=torch.arange(3),
                             dynamic_shapes={"input_ids": {1: sequence}, "cache_position": {0: sequence}}, strict=strict)


def without_cache(net):
    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, input_ids):
            return self.net(input_ids=input_ids, use_cache=False).logits

    auto = torch.export.Dim.AUTO
    return torch.export.export(Logits(), (), {"input_ids": torch.ones(2, 3, dtype=torch.long)}, strict=False,
                               dynamic_shapes={"input_ids": {0: auto, 1: auto}})


def expected(net, **options):
    """The new tokens of each prompt alone; of prompt i drawn with the seed `seed` + i."""
    net.generation_config = transformers.GenerationConfig()
    seed = options.pop("seed", 0)
    rows = []
    for i, prompt in enumerate(PROMPTS):
        torch.manual_seed(seed + i)
        ids = torch.tensor([prompt])
        rows.append(net.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, **options)[0, len(prompt):].tolist())
    return rows


# Each thread more has a stack that counts as memory.
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(model, *words, prompts, new):
    return [str(ACCEL), "generate", str(model), "--max_new_tokens", str(new), *map(str, words),
            *(word for prompt in prompts for word in ("--prompt_ids", ",".join(map(str, prompt))))]


# A process begins with the peak of the one that it is forked from, so that has to be small.
MEASURED = """import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)"""


def peak_bytes(*words, **options):
    """Of the memory of a run."""
    return int(subprocess.run([sys.executable, "-c", MEASURED, *command(*words, **options)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              check=True, text=True, env=ONE_THREAD).stdout)


def generated(model, *words, prompts=PROMPTS, new=NEW, before=None):
    done = subprocess.run(command(model, *words, prompts=prompts, new=new), capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          preexec_fn=before, check=False, env=ONE_THREAD)
    if done.returncode != 0:
        raise AssertionError(f"accel generate ended with {done.returncode}: {done.stderr}")
    return [json.loads(f"[{line}]") for line in done.stdout.splitlines()]


class GenerateCommand(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.nets = {"llama": llama(), "gpt2": gpt2()}
        cls.models = {}
        for name, net in cls.nets.items():
            for kind, program in (("step", one_token_at_a_time(net)), ("rows", any_tokens(net, 3)), ("whole", without_cache(net))):
                cls.save(name, kind, program)
        cls.save("llama", "caches that are constants", any_tokens(cls.nets["llama"], 1, strict=False))

    @classmethod
    def save(cls, name, kind, program):
        cls.models[name, kind] = pathlib.Path(cls.folder.name) / f"{name}-{kind}.pt2"
        torch.export.save(program, cls.models[name, kind])

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_greedy_tokens_are_those_of_transformers(self):
        for (name, kind), model in self.models.items():
            with self.subTest(name=name, kind=kind):
                rows = expected(self.nets[name], do_sample=False)
                self.assertGreater(len(set(sum(rows, []))), 5, "the model says the same always")
                self.assertEqual(generated(model), rows)
                self.assertEqual(generated(model, "--max_memory", "20KB"), rows)
                self.assertEqual(generated(model, "--max_memory", "0", "--disk_cache", "0", "--batch_size", 2), rows)

    def test_draws_are_those_of_transformers(self):
        choices = ({"temperature": 0.8}, {"top_k": 7}, {"top_k": 0, "top_p": 0.6}, {"temperature": 1.7, "top_k": 20, "top_p": 0.9})
        for i, ((name, kind), model) in enumerate(self.models.items()):
            for options in (choices[i % 4], choices[(i + 1) % 4]):
                words = [word for option, value in options.items() for word in (f"--{option}", value)]
                with self.subTest(name=name, kind=kind, **options):
                    rows = expected(self.nets[name], do_sample=True, seed=11, **options)
                    self.assertEqual(generated(model, "--do_sample", "--seed", 11, *words), rows)

    def test_a_sequence_ends_as_in_transformers(self):
        rows = expected(self.nets["llama"], do_sample=False)
        end = rows[0][3]
        rows = expected(self.nets["llama"], do_sample=False, eos_token_id=end, pad_token_id=0)
        for kind in ("step", "rows", "whole"):
            self.assertEqual(generated(self.models["llama", kind], "--eos_token_id", end), rows)

    def test_what_accel_export_writes_generates(self):
        folder = pathlib.Path(self.folder.name) / "config"
        self.nets["gpt2"].save_pretrained(folder)
        for loss in ("inside", "logits"):
            model = pathlib.Path(self.folder.name) / f"{loss}.pt2"
            subprocess.run([ACCEL, "export", f"hf:{folder}", "--loss", loss, "--dynamic", "batch,sequence", "--sequence_length", "16", "--python",
                            sys.executable, "-o", model], check=True, capture_output=True)
            self.assertEqual(generated(model), expected(self.nets["gpt2"], do_sample=False))

    def test_accel_export_writes_a_static_cache(self):
        for count, (name, net) in enumerate(self.nets.items(), start=1):
            folder = pathlib.Path(self.folder.name) / name
            net.save_pretrained(folder)
            model = folder / "model.pt2"
            subprocess.run([ACCEL, "export", f"hf:{folder}", "--max_cache_len", str(PLACES), "--batch_size", str(count), "--python", sys.executable,
                            "-o", model], check=True, capture_output=True)
            rows = expected(net, do_sample=False)
            self.assertEqual(generated(model), rows)
            self.assertEqual(generated(model, "--weights", folder / "model.safetensors", "--max_memory", "30KB"), rows)

    def test_a_cache_has_no_more_places_than_the_model_has_learned_positions(self):
        tiny = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 12}
        learned = (transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=12),
                   transformers.OPTConfig(**tiny, ffn_dim=16, word_embed_proj_dim=16))
        rotary = (transformers.LlamaConfig(**tiny, intermediate_size=16),)
        for config, is_learned in [*((config, True) for config in learned), *((config, False) for config in rotary)]:
            folder = pathlib.Path(self.folder.name) / f"{config.model_type}-positions"
            config.save_pretrained(folder)
            for places in (12, 13):
                done = subprocess.run([ACCEL, "export", f"hf:{folder}", "--random_weights", "--max_cache_len", str(places), "--python", sys.executable,
                                       "-o", folder / "net.pt2"], capture_output=True, text=True, check=False)
                with self.subTest(model=config.model_type, places=places):
                    self.assertEqual(done.returncode == 0, places == 12 or not is_learned, done.stderr)
                    if done.returncode != 0:
                        self.assertIn("give --max_cache_len 12 at most", done.stderr)

    def test_a_model_that_predicts_no_next_token_has_no_cache(self):
        folder = pathlib.Path(self.folder.name) / "bert"
        transformers.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16).save_pretrained(folder)
        done = subprocess.run([ACCEL, "export", f"hf:{folder}", "--random_weights", "--max_cache_len", "8", "--python", sys.executable, "-o", folder / "net.pt2"],
                              capture_output=True, text=True, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("leave out --max_cache_len", done.stderr)

    def test_caches_of_finished_prompts_are_freed_before_the_next_ones_are_made(self):
        places = 1 << 16
        cache = 2 * 2 * 32 * places * 4  # keys and values of two heads
        net = llama(hidden_size=64, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=places)
        model = pathlib.Path(self.folder.name) / "places.pt2"
        torch.export.save(one_token_at_a_time(net, places), model)
        once, twice = (peak_bytes(model, "--batch_size", 4, prompts=[[5]] * count, new=2) for count in (4, 8))
        self.assertLess(twice - once, 2 * cache, f"a cache has {cache} bytes")

    def test_a_model_ten_times_the_memory_gives_the_tokens_of_the_resident_one(self):
        net = llama(hidden_size=1536, intermediate_size=6144, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4,
                    initializer_range=0.02)
        weights = sum(parameter.numel() * parameter.element_size() for parameter in net.parameters())
        model = pathlib.Path(self.folder.name) / "large.pt2"
        torch.export.save(one_token_at_a_time(net), model)
        del net
        resident = generated(model, prompts=PROMPTS[:2], new=2)

        def limit():
            resource.setrlimit(resource.RLIMIT_DATA, (weights // 10, weights // 10))

        self.assertEqual(generated(model, "--max_memory", "0", "--disk_cache", weights // 10, prompts=PROMPTS[:2], new=2, before=limit), resident)
        with self.assertRaisesRegex(AssertionError, "allocate"):  # the limit holds: the weights do not fit into it
            generated(model, "--max_memory", "100GiB", prompts=PROMPTS[:1], new=1, before=limit)


if __name__ == "__main__":
    unittest.main()
