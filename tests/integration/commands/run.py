#!/usr/bin/env python3
"""Runs every command that README.md, CONTRIBUTING.md and the pages of docs/ show in a block of code.

A command is a line of a block that is marked `sh`, or that begins with one of our programs. It runs in a folder with a
small ./train, train.py, net.pt2, decoder.pt2 and agent.yaml. A tutorial has a folder of its own, and its commands run in their order: a block below a
line that ends in "`train.py`:" is that file from there on. What cannot run here within seconds is named in EXEMPT with the reason:
a command that is new in a page fails until it runs or stands there.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from programs import free_port  # noqa: E402

SOURCE = pathlib.Path(os.environ["ACCEL_SOURCE_DIR"])
BUILD = pathlib.Path(os.environ["ACCEL_BUILD_DIR"])
PYTHON = SOURCE / ".deps/peer/bin"  # with torch and Accelerate
PAGES = [SOURCE / "README.md", SOURCE / "CONTRIBUTING.md", *sorted((SOURCE / "docs").rglob("*.md"))]

EXEMPT = {
    "accel-launch --nnodes 2:4 --rdzv_endpoint 10.0.0.1:29400 --node_id gpu-01 --rdzv_token_file token "
    "--rdzv_tls_dir launcher-gpu-01 --nproc_per_node 8 --max_restarts 3 train.py":
        "several machines; tests/integration/elastic plays them on one",
    "scripts/quickstart.sh": "installs packages and LibTorch; proved on a bare system",
    "scripts/setup.sh --tests": "installs packages; scripts/test.sh begins with it",
    "cmake --preset dev": "configures a folder of the checkout; scripts/test.sh does, for its stage alone",
    "scripts/test.sh": "it runs this test",
    "scripts/test.sh --stage unit": "it runs this test",
    "scripts/test.sh --long": "takes hours",
    "bench/run build": "takes a quarter of an hour",
    "bench/run build --check": "takes a quarter of an hour",
    "bench/run build --accept": "writes to the checkout",
    "ctest --test-dir build -L fault": "runs other tests of this very run",
    "cmake --install build --prefix /opt/accel": "tests/integration/consumer runs it with a folder of its own",
    "gcc train.c $(pkg-config --cflags --libs accel) -o train": "tests/integration/consumer runs it with what it has installed",
    "mpifort $(pkg-config --variable=fortran_module accel) train.f90 $(pkg-config --libs accel) -o train":
        "tests/integration/consumer runs it with what it has installed; tests/integration/c_interface with mpifort",
    "mpirun -np 4 ./train": "tests/integration/c_interface runs it with a folder and ranks of its own",
    "accel-agent --state-dir /var/lib/accel": "runs until it is stopped; the agent's tests start it",
    "accel train --num_processes 2 llama.pt2 --data tokens.npy --sequence_length 512 --batch_size 8 --num_epochs 1 --lr 3e-4":
        "needs a model; tests/peer/train_command.py runs it with smaller ones",
    "accel train gpt2.pt2 --data book.txt news.jsonl --tokenizer tokenizer.json --sequence_length 512":
        "needs a model and a tokenizer; tests/peer/train_text.py makes both",
    "accel train vit.pt2 --task classification --data images.npy --labels classes.npy --channels_last --scale 255 --mean 0.485 0.456 0.406 "
    "--std 0.229 0.224 0.225": "needs a model; tests/peer/train_command.py runs it with smaller ones",
    "accel run --tracking_dir runs -- python3 train.py": "needs an agent; tests/integration/dashboard runs it with one",
    "scripts/gpu_check.sh --pack": "tests/gpu/gpu_check.py runs it with a folder of its own",
    "build-gpu/gpu_check.sh": "tests/gpu/gpu_check.py runs it in the folder that it has packed",
    "scripts/package.sh wheel": "tests/integration/packages runs it with folders of its own",
    "scripts/package.sh deb": "tests/integration/packages runs it with folders of its own",
    "scripts/package.sh deb rpm": "tests/integration/packages runs it with folders of its own",
    "scripts/package.sh tarball": "tests/integration/packages runs it with folders of its own",
    "pip install dist/accel_launch-*.whl": "tests/integration/packages installs it into a fresh environment",
    "sudo apt install ./dist/accel_*_amd64.deb": "tests/integration/package installs it into a root of its own",
    "sudo dnf install ./dist/accel-launch-*.x86_64.rpm": "tests/integration/packages installs it into a root of its own, by rpm",
    "sudo mkdir /opt/accel": "tests/integration/packages unpacks the tarball into a folder of its own",
    "sudo tar -C /opt/accel --strip-components=1 -xzf dist/accel-*-torch2.11.0-*.tar.gz":
        "tests/integration/packages unpacks the tarball into a folder of its own",
    'sudo /opt/accel/libexec/accel/link-torch "$(command -v python3)"': "tests/integration/packages runs it where it has unpacked the tarball",
    "cmake -S . -B build -G Ninja -DCMAKE_PREFIX_PATH=/opt/accel": "tests/integration/packages configures a project with its own folder",
}

TRAIN_SH = "#!/bin/sh\necho \"shell rank ${RANK:-0} of ${WORLD_SIZE:-1}\"\n"
TRAIN_PY = "import os, sys\nprint('python rank', os.environ['RANK'], sys.argv[1:])\n"


def steps(page):
    """Yields (None, command) for each command of a page, without comments, and (name, text) for each file of a tutorial."""
    in_tutorial = page.parent.name == "tutorials"
    for name, language, block in re.findall(r"(?:`([\w.-]+)`:\n\n)?^```(\w*)\n(.*?)^```", page.read_text(), re.S | re.M):
        if name and in_tutorial:
            yield name, block
            continue
        for line in block.replace("\\\n", "").splitlines():
            command = " ".join(line.split(" #")[0].split())
            is_ours = language == "" and re.match(r"(?:build/bin/)?accel(?:-launch|-agent)? ", command)
            if command and not command.startswith("#") and (language == "sh" or is_ours):
                yield None, command


def make_root(root):
    root.mkdir()
    (root / "build").symlink_to(BUILD)
    (root / "configs").symlink_to(SOURCE / "configs")
    (root / "train").write_text(TRAIN_SH)
    (root / "train").chmod(0o755)
    (root / "train.py").write_text(TRAIN_PY)
    models = SOURCE / "tests/unit/libaccel/exported/models"
    (root / "net.pt2").symlink_to(models / "blocks.pt2")
    (root / "decoder.pt2").symlink_to(models / "cached.pt2")
    (root / "agent.yaml").write_text((SOURCE / "configs/agent.yaml").read_text())


def run(command, root):
    # Without the configuration of whoever runs the test.
    environment = dict(os.environ, PATH=f"{BUILD}/bin:{PYTHON}:{os.environ['PATH']}", HF_HOME=str(root / "hf_home"))
    command = command.replace("29517", str(free_port()))  # of a page
    return subprocess.run(["bash", "-c", command], cwd=root, env=environment,
                          capture_output=True, text=True, errors="replace",
                          timeout=300 if "accel export" in command or "back.py" in command else 60)


def is_built(command):
    example = re.search(r"build/(examples/\w+)", command)
    if example and not (BUILD / example[1]).exists():
        return False
    if re.search(r"agent\.(sock|pid)|--agent node/run", command):
        return (BUILD / "bin/accel-agent").exists()
    if command.startswith(("accel export", "accel train")) or "back.py" in command:  # models of transformers, and libaccel
        return (BUILD / "bin/accel-trainer").exists() and (PYTHON / "python").exists()
    if command.startswith(("accel plan", "accel generate")):
        return (BUILD / "bin/accel-trainer").exists()
    if command.startswith("accel test"):  # part of libaccel
        return (BUILD / "bin/accel-selftest").exists()
    program = pathlib.Path(command.split()[0]).name
    return not program.startswith("accel") or (BUILD / "bin" / program).exists()


class Pages:
    """What came of the commands so far."""

    def __init__(self):
        self.shown = set()
        self.faults = []
        self.num_run = 0

    def try_page(self, page, root):
        name = page.relative_to(SOURCE)
        for file, text in steps(page):
            if file:
                (root / file).write_text(text)
            else:
                self.shown.add(text)
                self.try_command(name, text, root)

    def try_command(self, name, command, root):
        if command in EXEMPT:
            print(f"exempt: {name}: {command} ({EXEMPT[command]})")
            return
        if not is_built(command):
            print(f"skipped: {name}: {command} (not in this build)")
            return
        self.num_run += 1
        try:
            done = run(command, root)
        except subprocess.TimeoutExpired as late:
            self.faults.append(f"{name}: {command}\nhas not ended after {late.timeout} s")
            return
        # What the files of other pages print is known.
        trains = "tutorials" not in name.parts and "train" in command and "--dry-run" not in command
        if done.returncode != 0 or (trains and "rank" not in done.stdout):
            self.faults.append(f"{name}: {command}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
        else:
            print(f"ok: {name}: {command}")


def main():
    pages = Pages()
    with tempfile.TemporaryDirectory() as folder:
        shared = pathlib.Path(folder) / "pages"
        make_root(shared)
        for page in PAGES:
            root = shared
            if page.parent.name == "tutorials":
                root = pathlib.Path(folder) / page.stem
                make_root(root)
            pages.try_page(page, root)
    faults = [f"exempt, but no page shows it: {command}" for command in sorted(set(EXEMPT) - pages.shown)] + pages.faults
    if pages.num_run < 4:
        faults.append(f"only {pages.num_run} commands ran: were the blocks found?")
    for fault in faults:
        print("commands:", fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
