#!/usr/bin/env python3
"""The layers of docs/internals/design.md, enforced: who may include what, who may link what, what a launch loads.

    runtime <- supervisor <- launcher;   runtime <- libaccel.   Only libaccel and the examples see LibTorch.
    runtime <- safetensors <- checkpoint_tools <- the commands of the launcher;   safetensors <- libaccel, train.

In libaccel, that LibTorch is intercepted in interception/ alone, and docs/reference/process-effects.md names each file that changes
something for the whole process.

Run by ctest. Exits with 1 and names the offending line.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[3]))
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", SOURCE / "build"))

TORCH = r"(torch|ATen|c10)/"
RPC = r"(grpc|grpcpp|google/protobuf|absl)/"
# folder -> patterns that its includes must not match
FORBIDDEN_INCLUDES = {
    "runtime": [TORCH, RPC, r"libaccel/", r"launcher/", r"agent/", r"(accel/)?safetensors"],
    "safetensors": [TORCH, RPC, r"boost/", r"runtime/supervisor/", r"checkpoint_tools/", r"libaccel/", r"launcher/", r"agent/", r"train/"],
    "safetensors/include": [r"accel/(?!safetensors|error|result|export)", r"nlohmann/", r'"'],
    "runtime/include": [TORCH, RPC, r"supervisor/", r"boost/"],
    "launcher": [TORCH, RPC, r"libaccel/", r"agent/", r"train/(?!(train_settings|plan_settings|generation/generate_settings)\.h)"],
    "checkpoint_tools": [TORCH, RPC, r"runtime/supervisor/", r"launcher/", r"libaccel/", r"agent/"],
    "agent": [TORCH, r"libaccel/", r"launcher/"],
    "train": [RPC, r"runtime/supervisor/", r"libaccel/", r"launcher/", r"agent/", r"boost/"],
    "agent/coordinator": [TORCH, RPC, r"accel/v1/"],
    "libaccel": [RPC, r"supervisor/", r"launcher/", r"agent/", r"boost/"],
    "libaccel/c_interface": [r"libaccel/(?!c_interface/)"],
    "libaccel/engine": [r"accel/(accel|accelerator|prepared_model|dataloader|launchers)\.h"],
    "libaccel/engine/shm": [TORCH, r"accel/(?!channel|error|result|export|env_contract|version)"],
    "libaccel/tensors": [r"accel/(?!error|result|export|state_dict|lion|lomo|muon|schedule_free)"],
    "libaccel/include": [RPC, r"torch/torch\.h", r"nlohmann/", r"spdlog/", r'"'],
}
# a folder below one of those, with rules of its own: the part of the launcher that is opened with dlopen, and the parts of
# libaccel that all others may register with, that serve other nodes and that start workers from inside a program
OWN_RULES = {
    "launcher/cluster": [TORCH, r"libaccel/"],
    "libaccel/interception": [RPC, r"supervisor/", r"boost/", r"libaccel/(?!interception/)"],
    "libaccel/launch": [TORCH, RPC, r"launcher/", r"agent/", r"boost/"],
    "libaccel/tracking": [TORCH, RPC, r"supervisor/", r"launcher/", r"agent/", r"boost/"],
    "libaccel/engine/remote": [TORCH, RPC, r"supervisor/", r"launcher/", r"agent/"],
}
# Folders from below: each includes what is in a line above its own alone.
LEVELS = {
    "runtime/supervisor": ["kernel lines",
                           "http protocol",
                           "logs spawn store watch",
                           "metrics stop",
                           "dashboard owner",
                           "shim"],
    "launcher": ["text",
                 "curves devices documents system",
                 "flags",
                 "cluster_entry config run top watch",
                 "workers",
                 "agent_commands",
                 "start/elastic start/machines/board start/machines/settings start/tpu",
                 "start/machines/decisions start/machines/main",
                 "start/machines/run",
                 "start/sagemaker start/slurm start/ssh",
                 "start/mpi",
                 "plan",
                 "launch",
                 "commands",
                 "cluster/meeting main",
                 "cluster/hosting",
                 "cluster/slurm",
                 "cluster/agents",
                 "cluster/elastic",
                 "cluster/entry"],
    "libaccel": ["include",
                 "launch tensors tracking",
                 "interception engine/device",
                 "cuda exported planning",
                 "engine/shm/numbers",
                 "engine/shm/memory",
                 "engine/shm/group",
                 "engine/collectives engine/precision engine/remote",
                 "engine/process",
                 "engine/construction engine/optim engine/pager engine/recompute engine/settings",
                 "engine/gradients engine/homes",
                 "engine/checkpoint/files",
                 "exporting",
                 "engine/checkpoint/ranks engine/checkpoint/states",
                 "engine/checkpoint/series",
                 "engine/checkpoint/memory",
                 "engine/sharding",
                 "api/console api/data api/operations api/selftest placement",
                 "api/accelerator",
                 "api/profiling",
                 "c_interface"],
    "agent": ["coordinator/messages",
              "coordinator/state",
              "coordinator/decisions coordinator/journal coordinator/member",
              "config coordinator/election",
              "access",
              "tls",
              "calls files",
              "etcd shims",
              "jobs logs",
              "rendezvous",
              "parts",
              "cluster",
              "control",
              "main"],
}
# What libaccel/interception/ alone may name of LibTorch: dispatch keys and their registration, the engine and its hooks, the
# allocator.
INTERCEPTION = (r"DispatchKey::(Fake|DeferredInit)\b|\b(Include|Exclude)DispatchKeyGuard\b|\btorch::Library\b|\bTORCH_LIBRARY"
                r"|\bautograd::Engine\b|\bset_default_engine_stub\b|\bSavedVariableHooks\b|\bSavedTensorDefaultHooks\b"
                r"|\bqueue_callback\b|\bget_current_node\b|\b(add|del)_(pre|post)_hook\b|\bimpl::(add_hook|hooks|grad_accumulator)\b"
                r"|\bpost_acc_grad_hooks\b|\bregister_(post_accumulate_grad_)?hook\b|\bSetCPU(Caching)?Allocator\b|\bSetAllocator\b")
# Calls that change something for the whole process, and threads.
PROCESS_EFFECTS = (r"(?<![\w>])::(signal|sigaction|setenv|unsetenv|putenv|clearenv|mallopt|malloc_trim|umask|prctl|setsid|chdir|fchdir"
                   r"|on_exit|atexit|pthread_atfork|dlsym|dlopen|sched_setaffinity|setrlimit|personality)\("
                   r"|\bstd::(set_terminate|atexit|at_quick_exit|quick_exit|set_new_handler|locale::global)\(|\b__libc_start_main\("
                   r"|\bset_num_(interop_)?threads\(|\bmanual_seed\(|\bset\w*Deterministic\w*\(|\bset\w+FuserEnabled\("
                   r"|\bset_default_engine_stub\(|\bSetCPUAllocator\(|\bnew torch::Library\(|\bmakeFromBoxedFunction"
                   r"|\bstd::j?thread\b(?!::)(?! *\()")
# what may be loaded or needed by which program
FORBIDDEN_LIBRARIES = {
    "bin/accel-launch": r"lib(torch|c10|grpc|protobuf|absl|python)",
    "bin/accel": r"lib(torch|c10|grpc|protobuf|absl|python)",
    "bin/accel-agent": r"lib(torch|c10|python)",
    "bin/libaccel_cluster.so": r"lib(torch|c10|python)",
    "bin/accel-shim": r"lib(torch|c10|grpc|protobuf|absl|python|yaml-cpp)",
    "libaccel/libaccel.so": r"lib(grpc|protobuf|absl|gloo|boost|torch_cuda|torch_python)",
}


def level_of(root, name):
    """Of a folder or a file below `root`; None: it stands in no line."""
    for level, line in enumerate(LEVELS[root]):
        if any(f"{name}/".startswith(f"{folder}/") for folder in line.split()):
            return level
    return None


def folder_of(root, name):
    return next(folder for line in LEVELS[root] for folder in line.split() if name.startswith(f"{folder}/"))


def objection(root, path, included):
    """What is wrong when `path` includes `included`, both below `root`; None: nothing."""
    own, other = level_of(root, path), level_of(root, included)
    if own is None or other is None:
        return f"{root}/{path if own is None else included} is in no folder of LEVELS"
    if folder_of(root, path) == folder_of(root, included) or other < own:
        return None
    return f"{root}/{folder_of(root, path)} must not include {root}/{included}"


def level_faults():
    for root in LEVELS:
        for path in sorted((SOURCE / root).rglob("*")):
            if path.suffix not in (".h", ".cc"):
                continue
            name = path.relative_to(SOURCE / root).as_posix()
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = re.match(rf'\s*#\s*include\s+"{root}/([^"]+)"', line)
                fault = match and objection(root, name, match.group(1))
                if fault:
                    yield f"{root}/{name}:{number}: {fault}"


def include_faults():
    for folder, patterns in [*FORBIDDEN_INCLUDES.items(), *OWN_RULES.items()]:
        for path in sorted((SOURCE / folder).rglob("*")):
            has_own_rules = any(SOURCE / own in path.parents for own in OWN_RULES)
            if path.suffix not in (".h", ".cc") or (folder not in OWN_RULES and has_own_rules):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = re.match(r'\s*#\s*include\s+([<"][^>"]+[>"])', line)
                if not match:
                    continue
                name = match.group(1)
                for pattern in patterns:
                    hit = name.startswith('"') if pattern == '"' else re.match('[<"]' + pattern, name)
                    if hit:
                        yield f"{path.relative_to(SOURCE)}:{number}: {folder}/ must not include {name}"


def page_faults():
    """The pictures of docs/internals/design.md name each folder of LEVELS, which names none that is not there."""
    page = (SOURCE / "docs/internals/design.md").read_text()
    pictures = page[page.index("\n## Parts\n"):page.index("\n## Data flow of one launch\n")]
    named = set(re.findall(r"\w+", pictures))
    for root, lines in LEVELS.items():
        for folder in " ".join(lines).split():
            if not (SOURCE / root / folder).is_dir():
                yield f"LEVELS names {root}/{folder}, which is not there"
            if not named.issuperset(folder.split("/")):
                yield f"docs/internals/design.md, Parts: no picture names {root}/{folder}"


def code_lines(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        yield number, re.sub(r"(^|\s)//.*", "", line)


def sources(*folders):
    for folder in folders:
        for path in sorted((SOURCE / folder).rglob("*")):
            if path.suffix in (".h", ".cc"):
                yield path, path.relative_to(SOURCE).as_posix()


def interception_faults():
    for path, name in sources("libaccel"):
        if name.startswith("libaccel/interception/"):
            continue
        for number, line in code_lines(path):
            if match := re.search(INTERCEPTION, line):
                yield f"{name}:{number}: {match.group()} belongs to libaccel/interception/"


def effect_faults():
    page = (SOURCE / "docs/reference/process-effects.md").read_text()
    # A header and its source count as one.
    named = {name.rsplit(".", 1)[0] for name in re.findall(r"`((?:libaccel|runtime)/[\w/]+\.(?:h|cc))`", page)}
    for path, name in sources("libaccel", "runtime"):
        if name.startswith(("runtime/supervisor/", "libaccel/api/selftest/")) or name.rsplit(".", 1)[0] in named:
            continue
        for number, line in code_lines(path):
            if match := re.search(PROCESS_EFFECTS, line):
                yield f"{name}:{number}: docs/reference/process-effects.md does not name this file, which has {match.group()}"


def needed(binary):
    out = subprocess.run(["readelf", "-d", binary], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", out)


def link_faults():
    for name, pattern in FORBIDDEN_LIBRARIES.items():
        binary = BUILD / name
        if not binary.exists():
            yield f"{binary} was not built"
            continue
        for library in needed(binary):
            if re.match(pattern, library):
                yield f"{name} links {library}"


def gloo_symbol_faults():
    """Our headers of Gloo are older than the wheel's Gloo: none of its classes may be emitted by us."""
    library = BUILD / "libaccel/libaccel.so"
    out = subprocess.run(["nm", "-DC", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    for line in out.splitlines():
        if re.search(r"\b(vtable|typeinfo) for (gloo::|c10d::.*GlooStore)", line) or re.search(r" [TW] gloo::", line):
            yield f"libaccel.so defines {line.strip()}"


def load_faults():
    """What a one-machine launch really loads, by the loader's own word, workers and shim included."""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "loader")
        environment = dict(os.environ, LD_DEBUG="files", LD_DEBUG_OUTPUT=log)
        command = [str(BUILD / "bin/accel-launch"), "--num_processes", "2", "/bin/true"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            yield f"{' '.join(command)} ended with {done.returncode}: {done.stderr}"
        text = "".join(path.read_text(errors="replace") for path in pathlib.Path(folder).iterdir())
        if "libc.so.6" not in text:
            yield "LD_DEBUG gave nothing: the check would not bite"
        for library in sorted(set(re.findall(r"file=(\S+)", text))):
            if re.search(r"lib(torch|c10|grpc|protobuf|absl)", library):
                yield f"a one-machine launch loads {library}"


def bites():
    """The patterns catch what they are for."""
    assert re.match('[<"]' + TORCH, "<torch/types.h>") and re.match('[<"]' + RPC, "<grpcpp/server.h>")
    assert re.match('[<"]' + FORBIDDEN_INCLUDES["runtime"][-1], "<accel/safetensors.h>")
    assert re.match('[<"]' + FORBIDDEN_INCLUDES["safetensors/include"][0], "<accel/channel.h>")
    assert re.match(FORBIDDEN_LIBRARIES["bin/accel-shim"], "libtorch_cpu.so")
    assert objection("launcher", "text/joined.h", "flags/flags.h") and objection("launcher", "start/mpi/a.cc", "plan/b.h")
    assert objection("launcher", "start/ssh/a.cc", "start/slurm/b.h") and objection("launcher", "new.cc", "flags/flags.h")
    assert objection("agent", "jobs/a.cc", "rendezvous/b.h") and objection("agent", "rendezvous/a.cc", "control/b.h")
    assert objection("agent", "coordinator/state/a.cc", "coordinator/decisions/b.h") and objection("agent", "a.cc", "tls/b.h")
    assert objection("launcher", "cluster/meeting/a.cc", "cluster/hosting/b.h")
    assert objection("launcher", "start/machines/main/a.cc", "start/machines/decisions/b.h")
    assert not objection("launcher", "start/mpi/a.cc", "start/ssh/b.h")
    for line in ("c10::SetCPUAllocator(own);", "constexpr auto kKey = c10::DispatchKey::Fake;", "engine.queue_callback(end);"):
        assert re.search(INTERCEPTION, line)
    for line in ('  ::setenv("A", "0", 1);', "std::jthread thread_;", "if (::sigaction(SIGPIPE, &own, nullptr) != 0) return;"):
        assert re.search(PROCESS_EFFECTS, line)
    assert not re.search(PROCESS_EFFECTS, "std::thread::hardware_concurrency()")
    assert not objection("launcher", "flags/strategies/option.h", "flags/flag_spec.h")


def main():
    bites()
    faults = [*include_faults(), *level_faults(), *page_faults(), *interception_faults(), *effect_faults(), *link_faults(),
              *gloo_symbol_faults(), *load_faults()]
    for fault in faults:
        print("layers:", fault)
    print(f"layers: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
