#!/usr/bin/env python3
"""Configuration files mean to accel-launch what they mean to the peer: scalars, unknown keys, accepted files."""
import math
import os
import pathlib
import random
import subprocess
import unittest

import peer_python  # runs this script under the peer's Python

SOURCE = pathlib.Path(peer_python.SOURCE)
BUILD = pathlib.Path(peer_python.BUILD)

import yaml
from accelerate.commands.config.config_args import load_config_from_file

FIXTURES = SOURCE / "tests/unit/launcher/configs"
WORDS = ["yes", "No", "ON", "oFF", "true", "FALSE", "null", "Null", "~", "", "nan", ".nan", ".NaN", "-.nan", ".inf",
         "-.INF", "+.inf", ".InF", "<", "1:30", "01:30", "1:60", "1:2:3.5", "-1:30", "0:0", "1:", "0b10", "-0b1", "0x_f",
         "0o17", "017", "08", "1__0", "_1", "1_", "0_", "+", "-", ".", "..", "1..2", "1.2.3", "1e5", "1.e+5", "1.5e-3",
         ".5e+2", "-.5", "+1.", "12345678901234567890", "0xffffffffffffffffff", "bf16", "GPU-1", "0,1"]


def meaning(text):
    """What PyYAML makes of a plain scalar; None where it fails or calls it something that no configuration has."""
    resolver = yaml.SafeLoader("")
    tag = resolver.resolve(yaml.ScalarNode, text, (True, False)).rsplit(":", 1)[1]
    if tag not in ("null", "bool", "int", "float"):
        return "text"
    try:
        value = resolver.construct_object(yaml.ScalarNode(f"tag:yaml.org,2002:{tag}", text))
    except ValueError:
        return None
    if tag in ("null", "bool"):
        return {None: "null", True: "true", False: "false"}[value]
    if tag == "int" and -(2**63) < value < 2**63:
        return f"int {value}"
    return ("float", float(value))


class ConfigFiles(unittest.TestCase):
    def test_scalars_mean_the_same(self):
        dice = random.Random(int(os.environ.get("ACCEL_TEST_SEED", "1")))
        letters = "0123456789_.:+-exbfaInN"
        texts = WORDS + ["".join(dice.choices(letters, k=dice.randint(1, 7))) for _ in range(20_000)]
        done = subprocess.run([BUILD / "tests/yaml_scalar_dump"], input="\n".join(texts) + "\n", capture_output=True,
                              text=True, check=True)
        answers = done.stdout.splitlines()
        self.assertEqual(len(answers), len(texts))
        for text, answer in zip(texts, answers):
            expected = meaning(text)
            if expected is None:
                continue
            if isinstance(expected, tuple):
                kind, number = answer.split() if " " in answer else (answer, "nan")
                self.assertEqual(kind, "float", text)
                same = math.isclose(float(number), expected[1], rel_tol=1e-15) or (
                    math.isnan(float(number)) and math.isnan(expected[1]))
                self.assertTrue(same, f"{text!r}: {answer}, PyYAML {expected[1]!r}")
            else:
                self.assertEqual(answer, expected, repr(text))

    def test_files_of_all_versions_launch(self):
        """As the peer's own tests do: 0.11, 0.12, the latest ones, and a line whose flags beat the file."""
        for name in ("0_11_0", "0_12_0", "latest", "latest_fsdp", "validate_launch_cmd"):
            for flags in ([], ["--num-processes", "2", "--deepspeed_config_file", "path/to/be/accepted"]):
                with self.subTest(name, flags=flags):
                    done = subprocess.run([BUILD / "bin/accel-launch", *flags, "--config-file", FIXTURES / f"{name}.yaml",
                                           "/bin/sh", "-c", "echo rank ${RANK-none} of ${WORLD_SIZE-1}"],
                                          capture_output=True, text=True, timeout=60)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertEqual(len(done.stdout.splitlines()), 2 if flags else 1, done.stdout)

    def test_unknown_keys_have_the_peers_text(self):
        path = str(SOURCE / "tests/hostile/configs/unknown_keys.yaml")
        with self.assertRaises(ValueError) as refused:
            load_config_from_file(path)
        done = subprocess.run([BUILD / "bin/accel-launch", "--config_file", path, "/bin/true"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn(str(refused.exception), done.stderr)

    def test_the_peer_reads_the_fixtures(self):
        zoo = [path for path in sorted((SOURCE / "configs").glob("*.yaml")) if path.name != "agent.yaml"]
        for path in [*sorted(FIXTURES.iterdir()), *zoo]:
            with self.subTest(path.name):
                self.assertIsNotNone(load_config_from_file(str(path)))


if __name__ == "__main__":
    unittest.main()
