#!/usr/bin/env python3
"""`accel config`, `config default`, `config update` and `env` do what those of the peer do: random walks through both
questionnaires with the same answers give the same questions and files, and each reads what the other wrote."""
import builtins
import contextlib
import fcntl
import io
import os
import pathlib
import pty
import random
import re
import signal
import subprocess
import sys
import tempfile
import termios
import unittest
from unittest import mock

import peer_python  # runs this script under the peer's Python

SOURCE = pathlib.Path(peer_python.SOURCE)
BUILD = pathlib.Path(peer_python.BUILD)

import yaml
from accelerate.commands.config import cluster, config_args, config_utils, sagemaker
from accelerate.commands.config.config import get_user_input
from accelerate.commands.config.default import write_basic_config
from accelerate.commands.config.update import update_config
from accelerate.commands.env import env_command, env_command_parser
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

FIXTURES = SOURCE / "tests/unit/launcher/configs"
# Questions that `accel config` does not ask: a secret has no place there, and nothing would read it.
SECRETS = ("AWS Access Key ID", "AWS Secret Access Key")


class Walk:
    """Answers the peer's questions at random, and notes the same answers as `accel config` wants them."""

    def __init__(self, dice):
        self.dice, self.lines, self.machines, self.kind = dice, [], 1, ""

    def menu(self, prompt, options, convert=None, default=0):
        index = self.dice.randrange(len(options))
        if "compute environment" in prompt and self.dice.random() < 0.8:
            index = 0
        if "type of machine" in prompt:
            index = self.dice.choice([0, 1, 2, 4, 4, 4, 4, 9, 10])
            self.kind = options[index]
        if options[index] == "torhchxla_trace_once":  # in the peer's menu alone: it does not know it itself
            index = default
        # Choices that are numbers are answered by themselves; others by their place, or by an empty line.
        line = str(options[index]) if str(options[0]).isdigit() or "dynamo backend" in prompt else str(index)
        is_default = isinstance(default, int) and index == default and "EC2" not in prompt
        self.lines.append("" if is_default and self.dice.random() < 0.5 else line)
        return convert(index) if convert else index

    def field(self, prompt):
        answer = self.answer(prompt)
        if not prompt.startswith(SECRETS):
            self.lines.append(answer)
        return answer

    def answer(self, prompt):
        dice, low = self.dice, prompt.lower()
        if "[yes/no]" in low:
            is_refused = self.kind == "multi-NEURON" and ("DeepSpeed?" in prompt or "FullySharded" in prompt)
            return "no" if is_refused else dice.choice(["yes", "no", "", "YES", "No"])
        if "how many different machines" in low:
            self.machines = dice.choice([1, 1, 2, 3])
            return str(self.machines)
        if "should be used for distributed training" in low:
            return str(self.machines * dice.choice([2, 4]))
        if "port" in low and "main process" in low:
            return str(dice.randint(1, 65535))
        if "how many machines do you want" in low:
            return dice.choice(["", "2"])
        if "clipping value" in low:
            return dice.choice(["", "0.5", "2", "1e-3"])
        if "[1e8]" in low or "[1024]" in low or "margin" in low or "interval" in low:
            return dice.choice(["", str(dice.randint(1, 5000))])
        if prompt.rstrip(" :").endswith("[1]"):
            return dice.choice(["", str(dice.randint(1, 8))])
        if "docker image" in low or "tsv file" in low:
            return "lower-case"  # the peer makes paths and names small
        if "separated by a comma" in low:
            return dice.choice(["", "a", "A=1,B=2"]) if "If not" not in prompt else dice.choice(["vm-1", "vm-1,vm-2"])
        if re.search(r"\[[^]]+\][ :]*$", prompt) or "('static'" in prompt or "json DeepSpeed" in prompt or "Nvme Path" in prompt:
            return dice.choice(["", "none-such"])
        return dice.choice(["BertLayer", "no", "1:30", "a b", "x: y"])


def peer_config(walk):
    """The configuration that the peer makes of the walk; everything that can be missing counts as installed."""
    patches = [mock.patch.object(module, name, (lambda: True)) for module in (cluster,) for name in (
        "is_deepspeed_available", "is_transformers_available", "is_fp8_available", "is_msamp_available",
        "is_torchao_available", "is_transformer_engine_available")]
    for module in (cluster, sagemaker, sys.modules["accelerate.commands.config.config"]):
        patches.append(mock.patch.object(module, "_ask_options", walk.menu))
    patches.append(mock.patch.object(builtins, "input", walk.field))
    patches.append(mock.patch.object(sagemaker, "_create_iam_role_for_sagemaker", lambda role: None))
    patches.append(mock.patch.dict(os.environ))
    with contextlib.ExitStack() as stack, contextlib.redirect_stdout(io.StringIO()):
        for patch in patches:
            stack.enter_context(patch)
        return get_user_input()


def as_meant(config):
    """What the peer's file means: keys that its launch does not know, and answers that it leaves as they were typed."""
    meant = yaml.safe_load(yaml.safe_dump(config.to_dict()))
    renamed = {"amax_history_length": "amax_history_len", "amax_compute_algorithm": "amax_compute_algo",
               "optimization_level": "opt_level"}
    for old, new in renamed.items():
        if old in meant.get("fp8_config", {}):
            meant["fp8_config"][new] = meant["fp8_config"].pop(old)
    if isinstance(meant.get("tpu_use_sudo"), str):
        meant["tpu_use_sudo"] = meant["tpu_use_sudo"].lower() == "yes"
    for key in ("tpu_vm", "tpu_env"):
        if meant.get(key) == [""]:
            meant[key] = []
    return meant


def is_unreadable(config):
    """The peer adds num_processes to a file of SageMaker without distributed training, and then refuses that key."""
    return config["compute_environment"] == "AMAZON_SAGEMAKER" and config["distributed_type"] == "NO"


def accel(*arguments, home, answers=None):
    environment = os.environ | {"HF_HOME": str(home), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([BUILD / "bin/accel", *map(str, arguments)], env=environment, cwd=home, input=answers,
                          stdin=subprocess.DEVNULL if answers is None else None, capture_output=True, text=True)


class ConfigCommand(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def walk(self, seed, path):
        walk = Walk(random.Random(seed))
        with contextlib.chdir(self.folder):
            config = peer_config(walk)
        done = accel("config", "--config_file", path, home=self.folder, answers="\n".join(walk.lines) + "\n")
        told = f"seed {seed}, answers {walk.lines}\n{done.stdout}{done.stderr}"
        self.assertEqual(done.returncode, 0, told)
        self.assertEqual(done.stdout.count("> "), len(walk.lines), f"as many questions: {told}")
        self.assertNotIn("cannot be used", done.stdout, told)
        return config, told

    def test_random_walks_write_what_the_peer_writes(self):
        first = int(os.environ.get("ACCEL_TEST_SEED", "1")) * 1000
        types = set()
        for seed in range(first, first + 150):
            path = self.folder / "walk.yaml"
            config, told = self.walk(seed, path)
            text = path.read_text()
            expected = as_meant(config)
            types.add(expected["distributed_type"])
            self.assertEqual(yaml.safe_load(text), expected, told)
            self.assertEqual(list(yaml.safe_load(text)), sorted(expected), "keys in the peer's order")
            if not is_unreadable(expected):
                self.assertIsNotNone(config_args.load_config_from_file(str(path)))
        self.assertGreaterEqual(types, {"NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA",
                                        "DATA_PARALLEL"})

    def test_what_the_peer_wrote_is_read_and_stays(self):
        first = int(os.environ.get("ACCEL_TEST_SEED", "1")) * 7000
        for seed in range(first, first + 40):
            walk = Walk(random.Random(seed))
            config, path = peer_config(walk), self.folder / "theirs.yaml"
            config.to_yaml_file(path)
            before = yaml.safe_load(path.read_text())
            done = accel("config", "update", "--config_file", path, home=self.folder)
            self.assertEqual(done.returncode, 0, f"{before}\n{done.stderr}")
            self.assertEqual(yaml.safe_load(path.read_text()), before)

    def test_json_by_the_name(self):
        config, told = self.walk(3, self.folder / "walk.json")
        loaded = config_args.load_config_from_file(str(self.folder / "walk.json"))
        self.assertEqual(as_meant(loaded), as_meant(config), told)

    def test_the_peer_launches_by_our_file(self):
        """Of a cluster of GPUs with FSDP: every value that was answered arrives in the peer's arguments."""
        answers = ["0", "multi-gpu", "1", "no", "no", "no", "yes", "1", "SHARD_GRAD_OP", "yes", "SIZE_BASED_WRAP", "4711",
                   "", "", "", "", "", "", "4", "bf16"]
        path = self.folder / "ours.yaml"
        done = accel("config", "--config_file", path, home=self.folder, answers="\n".join(answers) + "\n")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        parsed = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
        args, _, from_file = _validate_launch_command(parsed)
        self.assertTrue(args.use_fsdp)
        self.assertTrue(from_file, "mixed precision")
        self.assertEqual((args.num_processes, args.mixed_precision, args.fsdp_min_num_params), (4, "bf16", 4711))
        self.assertEqual((args.fsdp_version, args.fsdp_reshard_after_forward), (1, "SHARD_GRAD_OP"))

    def test_default_is_the_peers(self):
        for precision in ("no", "fp16", "bf16"):
            ours, theirs = self.folder / f"ours-{precision}.yaml", self.folder / f"theirs-{precision}.yaml"
            done = accel("config", "default", "--config_file", ours, "--mixed-precision", precision, home=self.folder)
            self.assertEqual((done.returncode, done.stdout), (0, f"accelerate configuration saved at {ours}\n"), done.stderr)
            with mock.patch("torch.cuda.is_available", lambda: False):
                write_basic_config(precision, theirs)
            self.assertEqual(yaml.safe_load(ours.read_text()), yaml.safe_load(theirs.read_text()))
        before = ours.read_text()
        again = accel("config", "default", "--config_file", ours, home=self.folder)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn(f"Configuration already exists at {ours}, will not override.", again.stdout)
        self.assertEqual(ours.read_text(), before)

    def test_a_file_named_before_the_subcommand_is_no_more_its_file_than_the_peers(self):
        places = {}
        for name, command in (("ours", [BUILD / "bin/accel"]), ("theirs", [sys.executable, "-m", "accelerate.commands.accelerate_cli"])):
            home = self.folder / name
            home.mkdir()
            done = subprocess.run([*command, "config", "--config_file", "mine.yaml", "default"], cwd=home, capture_output=True, text=True,
                                  env=os.environ | {"HF_HOME": str(home), "CUDA_VISIBLE_DEVICES": ""})
            self.assertEqual(done.returncode, 0, done.stderr)
            places[name] = sorted(str(path.relative_to(home)) for path in home.rglob("*.yaml")), done.stdout.replace(str(home), "")
        self.assertEqual(places["ours"], places["theirs"])
        told = accel("config", "--config_file=mine.yaml", "default", home=self.folder / "ours")
        self.assertIn("--config_file has no effect before `default`", told.stderr)

    def test_update_is_the_peers(self):
        for fixture in sorted(FIXTURES.iterdir()):
            with self.subTest(fixture.name):
                ours, theirs = self.folder / f"ours{fixture.suffix}", self.folder / f"theirs{fixture.suffix}"
                for path in (ours, theirs):
                    path.write_text(fixture.read_text())
                done = accel("config", "update", "--config_file", ours, home=self.folder)
                self.assertEqual(done.returncode, 0, done.stderr)
                update_config(mock.Mock(config_file=str(theirs)))
                expected = yaml.safe_load(theirs.read_text())
                if expected["distributed_type"] is False:
                    expected["distributed_type"] = "NO"  # it was not quoted, and the peer leaves it a boolean
                self.assertEqual(yaml.safe_load(ours.read_text()), expected)
                self.assertEqual(list(yaml.safe_load(ours.read_text())), sorted(expected))

    def test_env_says_what_the_peers_says(self):
        """But for lines of our own and the place of the program. The peer's runs in this process: torch is imported."""
        home = {"HF_HOME": str(self.folder), "PYTHON_EXEC": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
        for flags in ([], ["--config_file", SOURCE / "configs/fsdp2.yaml"], ["--config_file", FIXTURES / "latest.yaml"]):
            said = io.StringIO()
            with contextlib.redirect_stdout(said), mock.patch("torch.cuda.is_available", lambda: False):
                env_command(env_command_parser().parse_args([str(flag) for flag in flags]))
            done = subprocess.run([BUILD / "bin/accel", "env", *map(str, flags)], env=os.environ | home, capture_output=True,
                                  text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            ours, theirs = done.stdout.splitlines(), said.getvalue().splitlines()
            missing = [line for line in theirs if line not in ours and "bash location" not in line]
            self.assertEqual(missing, [], done.stdout)
            place = theirs.index(next(line for line in theirs if line.endswith((" default config:", " config passed:"))))
            self.assertEqual(ours[ours.index(theirs[place]):], theirs[place:])

    def test_env_reports_a_configuration_that_cannot_be_used_with_all_else(self):
        (self.folder / "accelerate").mkdir()
        (self.folder / "accelerate/default_config.yaml").write_text("distributed_type: [\n")
        done = accel("env", home=self.folder)
        self.assertEqual(done.returncode, 2)
        self.assertIn("- Python version: ", done.stdout)
        self.assertIn("Not usable: ", done.stdout)
        self.assertIn("[config.syntax]", done.stderr)

    def test_update_without_a_file_is_an_error(self):
        done = accel("config", "update", home=self.folder)
        self.assertEqual(done.returncode, 2)
        self.assertIn("doesn't exist", done.stderr)

    def test_an_end_in_the_middle_leaves_nothing(self):
        path = self.folder / "half.yaml"
        path.write_text("distributed_type: 'NO'\n")
        for answers in ("", "0\n", "0\nmulti-gpu\n2\n0\n"):
            done = accel("config", "--config_file", path, home=self.folder, answers=answers)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("the answers ended at", done.stderr)
        self.assertEqual(path.read_text(), "distributed_type: 'NO'\n")
        self.assertEqual([entry.name for entry in self.folder.iterdir()], ["half.yaml"])

    def test_a_place_that_cannot_be_written_is_told_before_the_first_question(self):
        (self.folder / "file").touch()
        for place in (self.folder, self.folder / "file/below.yaml"):
            done = accel("config", "--config_file", place, home=self.folder, answers="\n" * 99)
            self.assertEqual((done.returncode, done.stdout), (74, ""))
            self.assertIn(f"cannot write {place}", done.stderr)

    def test_answers_that_a_full_disk_does_not_take_are_shown(self):
        done = accel("config", "--config_file", "/dev/full", home=self.folder, answers="\n" * 99)
        self.assertEqual(done.returncode, 28, done.stderr)
        self.assertEqual(yaml.safe_load("compute_environment" + done.stdout.rpartition("compute_environment")[2])["distributed_type"],
                         "NO")

    def test_ctrl_c_in_a_terminal_leaves_nothing(self):
        path = self.folder / "none.yaml"
        ours, theirs = pty.openpty()
        # Where menus are drawn, tests/integration/config_menu does the same.
        with subprocess.Popen([BUILD / "bin/accel", "config", "--config_file", path], stdin=theirs, stdout=theirs,
                              stderr=theirs, start_new_session=True, env=os.environ | {"TERM": "dumb"},
                              preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) as child:
            os.close(theirs)
            said = b""
            for answer in (b"0\n", b"multi-gpu\n", b"\x03"):
                while not said.endswith(b"> "):
                    said += os.read(ours, 4096)
                said = b""
                os.write(ours, answer)
            self.assertEqual(child.wait(timeout=60), -signal.SIGINT)
        os.close(ours)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_wrong_answers_are_asked_again(self):
        answers = ["7", "cloud", "this machine", "multi-gpu", "0", "two", "2", "2", "1", "\t", "node-0", "70000", "29500",
                   "maybe", "y", "n", "no", "no", "no", "no", "3", "1", "4", "", "", "bf16"]
        path = self.folder / "answers.yaml"
        done = accel("config", "--config_file", path, home=self.folder, answers="\n".join(answers) + "\n")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        config = yaml.safe_load(path.read_text())
        self.assertEqual((config["machine_rank"], config["num_machines"], config["num_processes"]), (1, 2, 4))
        for said in ("expected a number from 0 to 1", "'two' cannot be used: expected a whole number from 1", "ranks begin",
                     "expected a text", "from 1 to 65535", "expected yes or no", "the same on each of them"):
            self.assertIn(said, done.stdout)


if __name__ == "__main__":
    unittest.main()
