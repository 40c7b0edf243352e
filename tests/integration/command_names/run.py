#!/usr/bin/env python3
"""Each local command of accel is a program too, its help fits into 80 columns, and shells complete it."""
import fcntl
import os
import pathlib
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[3]))
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", SOURCE / "build"))
BIN = BUILD / "bin"


def run(*words, **options):
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "ACCEL": str(BIN / "accel"), "MANWIDTH": "120",
                                "LC_ALL": "C.UTF-8"}
    return subprocess.run([*map(str, words)], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, **options)


def flags_in(text):
    return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", text))


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
        if (BIN / "libaccel_cluster.so").exists():
            helps += [run(BIN / "accel", word, "--help") for word in ("run", "status", "logs", "drain")]
        for done in helps:
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual([line for line in done.stdout.splitlines() if len(line) > 80], [])

    @unittest.skipUnless(shutil.which("man"), "man is not installed")
    def test_man_pages_have_every_flag_of_the_help(self):
        pages = {f"accel-{name}.1": [[f"accel-{name}"]] for name in local_commands()} | {"accel-launch.1": [["accel-launch"]]}
        if (BIN / "libaccel_cluster.so").exists():
            commands = re.findall(r"^  ([a-z]+) ", run(BIN / "accel", "--help").stdout.split("With an agent:")[1], re.M)
            self.assertIn("run", commands)
            pages |= {f"accel-{name}.1": [["accel", name]] for name in commands}
        if (BIN / "accel-agent").exists():
            pages["accel-agent.8"] = [["accel-agent"], ["accel-agent", "init-tls"]]
        for page, programs in pages.items():
            shown = run("man", "--warnings", "-l", SOURCE / "docs/man" / page)
            self.assertEqual((shown.returncode, shown.stderr), (0, ""), page)
            known = flags_in(re.sub(".\x08", "", shown.stdout))
            for program in programs:
                missing = flags_in(run(BIN / program[0], *program[1:], "--help").stdout.split("\nExamples:")[0]) - known
                self.assertEqual(missing - {"-h", "--help"}, set(), f"{program}, {page}")

    def test_who_asks_for_help_gets_it(self):
        shown = run(BIN / "accel", "--help").stdout
        self.assertEqual(run(BIN / "accel", "help").stdout, shown)
        version = run(BIN / "accel-launch", "--version").stdout
        self.assertIn("accel", version)
        for word in ("--version", "-V", "version"):
            self.assertEqual(run(BIN / "accel", word).stdout, version)
        for program in ("accel-launch", "accel-torchrun"):
            done = run(BIN / program, "--no-such-flag", "--help")
            self.assertEqual((done.returncode, done.stdout), (0, run(BIN / program, "--help").stdout), done.stderr)

    def test_output_that_a_full_disk_does_not_take_is_an_error(self):
        lines = [["accel", "--help"], ["accel", "env"], ["accel", "completion", "bash"], ["accel-launch", "--help"],
                 ["accel-launch", "--cpu", "--dry_run", "--no_python", "true"], ["accel-torchrun", "--help"]]
        for line in lines:
            with open("/dev/full", "w", encoding="ascii") as full:
                done = subprocess.run([BIN / line[0], *line[1:]], stdin=subprocess.DEVNULL, stdout=full,
                                      stderr=subprocess.PIPE, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 74, line)
            self.assertIn("the output cannot be written", done.stderr, line)

    def test_a_line_that_cannot_be_read_names_the_help_of_its_command(self):
        lines = {"accel": ["--no-such-flag"], "accel config": ["config", "--no-such-flag"]}
        if (BIN / "libaccel_cluster.so").exists():
            lines |= {"accel run": ["run"], "accel status": ["status", "--no-such-flag"]}
        for command, line in lines.items():
            done = run(BIN / "accel", *line)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertRegex(done.stderr, r"^accel[a-z ]*: error \[usage\]")
            self.assertIn(f"see `{command} --help`", done.stderr)

    def test_launch_shows_the_groups_of_the_choice(self):
        """As the peer: options of a paradigm that was not chosen are not shown beside another choice."""
        for chosen, shown, hidden in (("--multi_gpu", "--max_restarts", "--fsdp_version"),
                                      ("--use_fsdp", "--fsdp_version", "--megatron_lm_tp_degree"),
                                      ("--use-deepspeed", "--zero_stage", "--fsdp_version"),
                                      ("--use_megatron_lm", "--megatron_lm_tp_degree", "--zero_stage"),
                                      ("--mixed_precision fp8", "--fp8_backend", "--zero_stage"),
                                      ("--mixed-precision=bf16", "--max_restarts", "--fp8_backend")):
            done = run(BIN / "accel-launch", *chosen.split(), "-h")
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
        self.assertEqual(self.bash("accel-torchrun", "--nproc-per"), ["--nproc-per-node"])
        self.assertEqual(self.bash("accel-launch", "--mixed-precision", "fp8"), ["fp8"])
        self.assertEqual(self.bash("accel-launch", "--mixed_precision", "=", "fp8"), ["fp8"])

    def test_bash_leaves_what_follows_the_script_to_it(self):
        script = ["train.py", "--mixed_pre"]
        for flags in ([], ["--num_processes", "2"], ["--num-processes", "=", "2", "--cpu"], ["-t", "3", "--standalone"], ["-m"]):
            self.assertEqual(self.bash("accel-launch", *flags, *script), [], flags)
            self.assertEqual(self.bash("accel", "launch", *flags, *script), [], flags)
            self.assertEqual(self.bash("accel-launch", *flags, script[1]), ["--mixed_precision"], flags)
            self.assertEqual(self.bash("accel", "launch", *flags, script[1]), ["--mixed_precision"], flags)
        self.assertEqual(self.bash("accel-launch", "train.py", "--mixed_precision", "fp8"), [])
        self.assertEqual(self.bash("accel", "run", "--name", "launch", "./train", "--det"), [])

    def test_fish(self):
        def offered(line):
            script = '$ACCEL completion fish | source; complete -C $argv[1]'
            done = run("fish", "--no-config", "-c", script, line, cwd="/proc/self/fdinfo")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            return [entry.split("\t")[0] for entry in done.stdout.splitlines()]

        self.assertEqual(offered("accel conf"), ["config"])
        self.assertEqual(offered("accel config --config"), ["--config_file"])
        self.assertEqual(offered("accel config upd"), ["update"])
        self.assertEqual(offered("accel config default --mixed_precision b"), ["bf16"])
        self.assertEqual(offered("accel-launch --fsdp_version "), ["1", "2"])
        self.assertEqual(offered("accel-config upd"), ["update"])
        self.assertEqual(offered("accel-config default --mixed_precision b"), ["bf16"])
        # Hyphens are underscores.
        self.assertEqual(offered("accel-torchrun --nproc-p"), ["--nproc-per-node"])
        self.assertEqual(offered("accel-launch --num-processes 2 --mixed-pre"), ["--mixed-precision"])
        self.assertEqual(offered("accel-launch --num-processes 2 --mixed_pre"), ["--mixed_precision"])
        self.assertEqual(offered("accel-launch --mixed-precision b"), ["bf16"])
        self.assertEqual(offered("accel launch --mixed-precision=b"), ["--mixed-precision=bf16"])
        self.assertEqual(offered("accel-config default --mixed-precision b"), ["bf16"])
        self.assertEqual(offered("accel-launch train.py --mixed-pre"), [])
        self.assertEqual(offered("accel-launch -t 3 --num-processes 2 --fsdp_vers"), ["--fsdp_version"])
        # What follows the script belongs to it.
        for flags in ("", "--num_processes 2 ", "--num-processes=2 --cpu ", "-t 3 --standalone ", "-m "):
            self.assertEqual(offered(f"accel-launch {flags}train.py --mixed_pre"), [], flags)
            self.assertEqual(offered(f"accel launch {flags}train.py --mixed_pre"), [], flags)
            self.assertEqual(offered(f"accel launch {flags}--mixed_pre"), ["--mixed_precision"], flags)
        self.assertEqual(offered("accel run --name launch ./train --det"), [])
        # A value that is the name of a command is no command.
        self.assertEqual(offered("accel run --name launch --mixed"), [])
        self.assertEqual(offered("accel run --name launch --detac"), ["--detach"])

    def test_zsh(self):
        self.check(Zsh(), BOTH_SHELLS + (
            ("accel config --config-f", "accel config --config-file "),
            # Names with letters that the shell has to quote.
            ("accel-launch my\\ t", "accel-launch my\\ train.py "),
            ("accel-launch --config_file=my\\ c", "--config_file=my\\ config.yaml ")))

    def test_bash_as_it_is_used(self):
        self.check(Bash(), BOTH_SHELLS + (
            ("accel config --config-f", "accel config --config-file "),
            ("accel-launch my\\ t", "accel-launch my\\ train.py "),
            ("accel-launch --config_file=my\\ c", "--config_file=my\\ config.yaml ")))

    def check(self, shell, lines):
        self.addCleanup(shell.close)
        for typed, shown in lines:
            completed = shell.completed(typed)
            self.assertTrue(completed.endswith(shown), f"{typed!r} became {completed!r}")


# What is typed before Tab, and how the line ends behind it.
BOTH_SHELLS = (
    ("accel conf", "accel config "),
    ("accel config --config_f", "accel config --config_file "),
    ("accel config upd", "accel config update "),
    ("accel config default --mixed_precision b", "--mixed_precision bf16 "),
    ("accel launch --fsdp_vers", "accel launch --fsdp_version "),
    ("accel-torchrun --nproc_p", "accel-torchrun --nproc_per_node "),
    ("accel completion z", "accel completion zsh "),
    ("accel export --task im", "accel export --task image"),
    ("accel run --detac", "accel run --detach "),
    # Hyphens are underscores.
    ("accel-torchrun --nproc-p", "accel-torchrun --nproc-per-node "),
    ("accel-launch --mixed-precision b", "--mixed-precision bf16 "),
    ("accel-launch --num_processes 2 --mixed-precision b", "--mixed-precision bf16 "),
    ("accel-launch --num_processes 2 --mixed-prec", "accel-launch --num_processes 2 --mixed-precision "),
    ("accel-launch --num-processes 2 --mixed_prec", "--mixed_precision "),
    ("accel-launch --num-processes=2 --mixed_precision=b", "--mixed_precision=bf16 "),
    ("accel-launch --num_processes=2 --mixed-precision=b", "--mixed-precision=bf16 "),
    # Each command is a program too.
    ("accel-config upd", "accel-config update "),
    ("accel-config default --mixed-precision b", "--mixed-precision bf16 "),
    ("accel-tpu-config --tpu_n", "accel-tpu-config --tpu_name "),
    ("accel-completion z", "accel-completion zsh "),
    # Files: a folder of the name of a command is none.
    ("accel tes", "accel test "),
    ("accel config --config_file acc", "--config_file accelerate.yaml "),
    ("accel-config --config-file acc", "--config-file accelerate.yaml "),
    ("accel merge-weights tes", "accel merge-weights test/"),
    # What follows the script belongs to it.
    ("accel-launch train.py --mixed_pre", "accel-launch train.py --mixed_pre"),
    ("accel-launch train.py acc", "accel-launch train.py accelerate.yaml "),
    ("accel-launch -t 3 --mixed_pre", "accel-launch -t 3 --mixed_precision "),
)


def as_drawn(said):
    """The line that a terminal shows after these letters."""
    cells, column = [], 0
    for letter in said:
        if letter in "\r\b":
            column = 0 if letter == "\r" else max(0, column - 1)
            continue
        cells[column:column + 1] = [letter]
        column += 1
    return "".join(cells)


class Shell:
    """An interactive shell that has read our script, in a folder of its own."""

    PROMPT = "<prompt>"  # shown when keys go to the shell's own editor

    def __init__(self, *words, setup):
        scratch = tempfile.TemporaryDirectory()
        self.scratch, folder = scratch, pathlib.Path(scratch.name)
        for name in ("my train.py", "my config.yaml", "accelerate.yaml"):
            (folder / name).touch()
        (folder / "test").mkdir()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.environ |= {"TERM": "xterm", "PS1": self.PROMPT, "ACCEL": str(BIN / "accel"), "HOME": "/nonexistent",
                           "INPUTRC": "/dev/null"}
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
            try:
                os.execvp(words[0], words)
            finally:
                os._exit(127)
        self.wait_for(self.PROMPT)
        self.send(setup + "\n")
        self.wait_for(self.PROMPT)

    def send(self, text):
        os.write(self.fd, text.encode())

    def wait_for(self, text):
        """All that came before it, without what moves the cursor and sets colours."""
        came, said = b"", ""  # a sequence may come in pieces
        while text not in said:
            ready, _, _ = select.select([self.fd], [], [], 30)
            assert ready, f"{text!r} did not come after {said!r}"
            came += os.read(self.fd, 4096)
            said = re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>])|[\a\0]", "", came.decode(errors="replace"))
        return said.partition(text)[0]

    def completed(self, line):
        """The line after Tab; the word END is typed behind it and the line deleted."""
        self.send(line + "\tEND")
        said = self.wait_for("END")
        self.send("\x15")  # Ctrl-U
        return as_drawn(said)

    def close(self):
        os.close(self.fd)
        os.waitpid(self.pid, 0)
        self.scratch.cleanup()


class Zsh(Shell):
    def __init__(self):
        super().__init__("zsh", "-f", "-i", setup='autoload -Uz compinit; compinit -D -u; eval "$($ACCEL completion zsh)"')


class Bash(Shell):
    def __init__(self):
        super().__init__("bash", "--norc", "--noprofile", "-i",
                         setup='bind "set enable-bracketed-paste off"; bind "set bell-style none"; eval "$($ACCEL completion bash)"')


if __name__ == "__main__":
    unittest.main()
