#!/usr/bin/env python3
"""Each local command of accel is a program too, its help fits into 80 columns, and shells complete it."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[3]))
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", SOURCE / "build"))
BIN = BUILD / "bin"


def run(*words, **options):
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "ACCEL": str(BIN / "accel")}
    return subprocess.run([*map(str, words)], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, **options)


def local_commands():
    """Those of `accel --help` before the ones that speak to an agent, but for launch, a program of its own."""
    shown = run(BIN / "accel", "--help").stdout.split("With an agent:")[0]
    return [name for name in re.findall(r"^  ([a-z0-9-]+) ", shown, re.M) if name != "launch"]


class CommandNames(unittest.TestCase):
    def test_every_command_is_a_program(self):
        names = local_commands()
        self.assertIn("config", names)
        for name in names:
            link, command = run(BIN / f"accel-{name}", "--help"), run(BIN / "accel", name, "--help")
            self.assertEqual((link.returncode, command.returncode), (0, 0), link.stderr + command.stderr)
            self.assertEqual(link.stdout, command.stdout)
            self.assertTrue(link.stdout.startswith(f"Usage: accel {name}"), link.stdout)
            self.assertEqual(os.readlink(BIN / f"accel-{name}"), "accel", "a link that can be installed anywhere")

    def test_help_fits_into_80_columns(self):
        helps = [run(BIN / "accel", "--help"), run(BIN / "accel-launch", "--help"), run(BIN / "accel-torchrun", "-h"),
                 *(run(BIN / "accel", name, "--help") for name in local_commands()),
                 *(run(BIN / "accel", "config", word, "--help") for word in ("default", "update"))]
        for done in helps:
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual([line for line in done.stdout.splitlines() if len(line) > 80], [])

    def test_launch_shows_the_groups_of_the_choice(self):
        """As the peer: options of a paradigm that was not chosen are not shown beside another choice."""
        for chosen, shown, hidden in (("--multi_gpu", "--max_restarts", "--fsdp_version"),
                                      ("--use_fsdp", "--fsdp_version", "--megatron_lm_tp_degree"),
                                      ("--use-deepspeed", "--zero_stage", "--fsdp_version"),
                                      ("--use_megatron_lm", "--megatron_lm_tp_degree", "--zero_stage")):
            done = run(BIN / "accel-launch", chosen, "-h")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"  {shown}", done.stdout)
            self.assertNotIn(f"  {hidden}", done.stdout)

    def bash(self, *words):
        """What bash offers for the last word."""
        program = words[0].replace("accel-torchrun", "accel-launch").replace("-", "_")
        script = f'eval "$($ACCEL completion bash)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _{program}; ' \
                 'printf "%s\\n" "${COMPREPLY[@]}"'
        done = run("bash", "-c", script, "bash", *words)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_bash(self):
        self.assertEqual(self.bash("accel", "conf"), ["config"])
        self.assertEqual(self.bash("accel", "drai"), ["drain"])
        self.assertEqual(self.bash("accel", "config", "--config"), ["--config_file"])
        self.assertEqual(self.bash("accel", "config", "upd"), ["update"])
        self.assertEqual(self.bash("accel", "config", "default", "--mixed_precision", "b"), ["bf16"])
        self.assertEqual(self.bash("accel", "launch", "--mixed_precision", "fp8"), ["fp8"])
        self.assertEqual(self.bash("accel", "completion", "z"), ["zsh"])
        self.assertEqual(self.bash("accel-launch", "--fsdp_vers"), ["--fsdp_version"])
        self.assertEqual(self.bash("accel-torchrun", "--fsdp_version", ""), ["1", "2"])

    @unittest.skipUnless(shutil.which("fish"), "fish is not here")
    def test_fish(self):
        def offered(line):
            script = '$ACCEL completion fish | source; complete -C $argv[1]'
            done = run("fish", "--no-config", "-c", script, line, cwd="/proc/self/fdinfo")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            return [entry.split("\t")[0] for entry in done.stdout.splitlines()]

        self.assertEqual(offered("accel conf"), ["config"])
        self.assertEqual(offered("accel config --config"), ["--config_file"])
        self.assertEqual(offered("accel config default --mixed_precision b"), ["bf16"])
        self.assertEqual(offered("accel-launch --fsdp_version "), ["1", "2"])

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not here")
    def test_zsh(self):
        """The script is read, takes the programs over, and its lists of flags are such as _arguments takes."""
        script = 'autoload -Uz compinit; compinit -D -u; eval "$($ACCEL completion zsh)"; ' \
                 '_arguments() { print -l -- "$@" }; print $_comps[accel-launch]; ' \
                 'service=accel words=(accel config --m) CURRENT=3; _accel'
        done = run("zsh", "-f", "-c", script)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.splitlines()[:2], ["_accel", "-S"])
        self.assertIn("--mixed_precision[no, fp16 or bf16; no by default]:PRECISION:(no fp16 bf16)", done.stdout)


if __name__ == "__main__":
    unittest.main()
