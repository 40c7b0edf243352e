#!/usr/bin/env python3
"""The environment of a worker under accel-launch and under the peers, variable by variable.

Every case starts a script that writes its environment down: once under `accelerate launch` (and torchrun, for
several processes: the peer's own --cpu starts one process whatever --num_processes says), once under accel-launch
with the same flags. What differs must be in the table "Environment" of docs/reference/parity.md, and what that table says
must really differ. With --strict_compat nothing at all may differ, OMP_NUM_THREADS neither.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", SOURCE / "build"))
PEER = SOURCE / ".deps/peer/bin"
LAUNCHER = BUILD / "bin/accel-launch"
TORCHRUN = BUILD / "bin/accel-torchrun"

DUMP = """
import json, os, sys
name = os.environ.get("RANK", "0")
with open(os.path.join(sys.argv[1], name + ".json"), "w") as file:
    json.dump(dict(os.environ), file)
"""
CONFIG = """
compute_environment: LOCAL_MACHINE
distributed_type: 'NO'
mixed_precision: bf16
num_processes: 1
use_cpu: true
debug: true
dynamo_config:
  dynamo_backend: INDUCTOR
  dynamo_mode: max-autotune
  dynamo_use_dynamic: true
"""
# name -> (flags, processes)
CASES = {
    "cpu": (["--cpu", "--num_processes", "1"], 1),
    "flags": (["--cpu", "--num_processes", "1", "--mixed_precision", "bf16", "--debug", "--enable_cpu_affinity",
               "--num_cpu_threads_per_process", "3", "--dynamo_backend", "eager"], 1),
    "config": (["--config_file", "CONFIG"], 1),
    "two": (["--cpu", "--num_processes", "2", "--max_restarts", "1"], 2),
    "fsdp": (["--use_fsdp", "--num_processes", "2", "--fsdp_version", "2", "--main_process_port", "0"], 2),
}
# As `flags` of CASES, for torchrun and accel-torchrun.
TORCHRUN_CASES = {
    "torchrun": (["--nproc-per-node", "2", "--standalone", "--max-restarts=1", "--role", "trainer"], 2),
    "torchrun_one": (["--nnodes=1", "--master_port=29657", "--signals-to-handle", "SIGTERM", "--rdzv-id", "night"], 1),
    "torchrun_c10d": (["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=7"], 1),
}
# Both sides set it, each to a value of this very launch.
VOLATILE = {"MASTER_PORT", "MASTER_ADDR"}
# Of --standalone: drawn by both.
RUN_ID = "TORCHELASTIC_RUN_ID"
# Set by the interpreter or shell that is in between, not by a launcher.
FOREIGN = {"_", "SHLVL", "PWD", "OLDPWD", "LC_CTYPE", "KMP_INIT_AT_FORK", "KMP_DUPLICATE_LIB_OK"}
# The peer counts the machine's cores, accel-launch those that are granted: compared only where a flag says it.
THREADS = "OMP_NUM_THREADS"
ALL = CASES | TORCHRUN_CASES
# There when logs are kept; the folder is of this launch.
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


def clean_environment(home):
    keep = ("PATH", "LANG", "LD_LIBRARY_PATH", "ACCEL_SHIM", "ASAN_OPTIONS", "UBSAN_OPTIONS")
    environment = {name: os.environ[name] for name in keep if name in os.environ}
    # torchrun leaves folders of logs in TMPDIR.
    return environment | {"HOME": home, "HF_HOME": home, "TMPDIR": home, "VIRTUAL_ENV": str(PEER.parent)}


def dumps_of(command, folder, home):
    folder.mkdir()
    done = subprocess.run([*map(str, command), str(folder)], env=clean_environment(home), capture_output=True,
                          text=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit {done.returncode}\n{done.stderr}")
    return {int(path.stem): json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def peer_dumps(flags, processes, script, scratch, home, name):
    accelerate = [PEER / "python", "-m", "accelerate.commands.launch", *flags, script]
    dumps = dumps_of(accelerate, scratch / f"{name}-accelerate", home)
    if len(dumps) == processes:
        return dumps
    torchrun = [PEER / "python", "-m", "torch.distributed.run", "--nproc_per_node", processes, "--max_restarts", "1",
                script]
    ranks = dumps_of(torchrun, scratch / f"{name}-torchrun", home)
    threads = {THREADS: dumps[0][THREADS]}  # those of `accelerate launch` would hold
    return {rank: dumps[0] | environment | threads for rank, environment in ranks.items()}


def listed_differences():
    """(variable, case) pairs of docs/reference/parity.md; a case of `all` stands for every case."""
    text = (SOURCE / "docs/reference/parity.md").read_text()
    section = re.search(r"^## Environment\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    for line in section.group(1).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 5 and cells[0].startswith("`"):
            for case in ALL if cells[1] == "all" else cells[1].split(", "):
                assert case in ALL, f"docs/reference/parity.md: no case {case}: {line}"
                for variable in cells[0].split(", "):
                    yield variable.strip("`"), case


def differences(theirs, ours, case, *, is_strict=False):
    for variable in sorted(theirs.keys() | ours.keys()):
        if variable in FOREIGN or variable == ERROR_FILE or variable.startswith("ACCEL_"):
            continue
        if variable == THREADS and case != "flags" and not is_strict:
            continue
        left, right = theirs.get(variable), ours.get(variable)
        if variable in VOLATILE and left is not None and right is not None:
            continue
        if variable == RUN_ID and case == "torchrun" and "none" not in (left, right) and left and right:
            continue
        if left != right:
            yield variable, left, right


def main():
    if not (PEER / "python").exists():
        print(f"skipped: {PEER}/python is missing; run scripts/setup.sh")
        return 77
    listed = set(listed_differences())
    seen = set()
    faults = []
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = pathlib.Path(scratch_name)
        script, config = scratch / "dump.py", scratch / "config.yaml"
        script.write_text(DUMP)
        config.write_text(CONFIG)
        for case, (flags, processes) in ALL.items():
            flags = [str(config) if flag == "CONFIG" else flag for flag in flags]
            launcher = LAUNCHER
            if case in TORCHRUN_CASES:
                launcher = TORCHRUN
                torchrun = [PEER / "python", "-m", "torch.distributed.run", *flags, script]
                theirs = dumps_of(torchrun, scratch / f"{case}-torchrun", scratch_name)
            else:
                theirs = peer_dumps(flags, processes, script, scratch, scratch_name, case)
            ours = dumps_of([launcher, *flags, script], scratch / f"{case}-accel", scratch_name)
            strict = dumps_of([launcher, *flags, "--strict_compat", script], scratch / f"{case}-strict", scratch_name)
            faults += [f"{case}, rank {rank}, --strict_compat: {variable} is {left!r} under the peer, {right!r} here"
                       for rank in strict
                       for variable, left, right in differences(theirs[rank], strict[rank], case, is_strict=True)]
            if theirs.keys() != ours.keys():
                faults.append(f"{case}: ranks {sorted(theirs)} under the peer, {sorted(ours)} under accel-launch")
                continue
            for rank in ours:
                for variable, left, right in differences(theirs[rank], ours[rank], case):
                    seen.add((variable, case))
                    if (variable, case) not in listed:
                        faults.append(f"{case}, rank {rank}: {variable} is {left!r} under the peer, {right!r} under "
                                      "accel-launch, and docs/reference/parity.md does not say so")
    faults += [f"docs/reference/parity.md says that {variable} differs in case {case}, but it does not"
               for variable, case in sorted(listed - seen)]
    print("\n".join(faults) if faults else f"{len(ALL)} cases, {len(seen)} reviewed differences, no other")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
