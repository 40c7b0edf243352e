#!/usr/bin/env python3
"""The operations of libaccel give what those of HF Accelerate give, value for value, on two ranks.

Runs the operations twice, as two Python processes with the installed accelerate and as two processes of
build/tests/operations_peer, both against a store in this process, and compares their JSON. No tolerance:
the values are small whole numbers, or come from the same random generator.
Run by ctest; exits with 77 (skipped) when the peer is not installed.
"""

import json
import os
import pathlib
import subprocess
import sys

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", SOURCE / "build"))
PYTHON = SOURCE / ".deps/peer/bin/python"


def rank():
    """The Python half: one rank. Each entry has the same name and inputs in both halves."""
    import torch
    from accelerate import Accelerator, PartialState
    from accelerate.state import GradientState
    from accelerate import utils

    state = PartialState(cpu=True)
    # The one difference that is meant: ranks of one node share memory here, and go through Gloo there.
    renamed = lambda text: text.replace("Backend: gloo", "Backend: shm")
    results = {"state": renamed(repr(state))}
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=4)
    results["accelerator state"] = renamed(repr(accelerator.state))
    results["gradient state"] = repr(GradientState())
    results["flags"] = [state.is_main_process, state.is_local_main_process, state.is_last_process]

    def two_numbers():
        return torch.arange(1, 3, dtype=torch.float32) + 2 * state.process_index

    square = (torch.arange(4).view(2, 2) + 10 * state.process_index).t()
    results["gather"] = utils.gather(two_numbers()).tolist()
    results["gather scalar"] = utils.gather(torch.tensor(state.process_index)).tolist()
    results["gather view"] = utils.gather(square).tolist()
    results["reduce sum"] = utils.reduce(two_numbers(), "sum").tolist()
    results["reduce mean"] = utils.reduce(two_numbers()).tolist()
    results["reduce max"] = utils.reduce(two_numbers(), "max").tolist()
    results["broadcast"] = utils.broadcast(two_numbers()).tolist()
    results["broadcast from 1"] = utils.broadcast(two_numbers(), from_process=1).tolist()
    results["gather nested"] = utils.gather({"a": [two_numbers(), two_numbers() * 2]})["a"][1].tolist()

    extra = 1 if state.is_main_process else 0
    row, matrix = torch.arange(1, 4 + extra), torch.ones(2, 3 - extra)
    results["pad"] = utils.pad_across_processes(row).tolist()
    results["pad first"] = utils.pad_across_processes(row, pad_index=-1, pad_first=True).tolist()
    results["pad dim 1"] = utils.pad_across_processes(matrix, dim=1, pad_index=7).tolist()
    results["pad dim -1"] = utils.pad_across_processes(matrix, dim=-1).tolist()
    results["pad dim 5"] = utils.pad_across_processes(matrix, dim=5).tolist()

    results["gather_object"] = utils.gather_object([f"from {state.process_index}"] * (1 + state.process_index))
    results["broadcast_object_list"] = utils.broadcast_object_list(
        [f"a{state.process_index}", f"b{state.process_index}"], from_process=1)

    def split(inputs, **options):
        with state.split_between_processes(inputs, **options) as part:
            return part

    letters = ["A", "B", "C"]
    results["split 17"] = split(list(range(17)))
    results["split letters"] = split(letters)
    results["split letters padded"] = split(letters, apply_padding=True)
    results["split one"] = split(["A"])
    results["split one padded"] = split(["A"], apply_padding=True)
    results["split rows"] = split(torch.arange(6).view(3, 2)).tolist()
    results["split map"] = split({"x": letters, "y": letters})

    batch = [torch.arange(6).view(3, 2), torch.arange(3)]
    results["batch size"] = utils.find_batch_size(batch)
    results["slice"] = utils.slice_tensors(batch, slice(1, 9))[1].tolist()
    results["concatenate"] = utils.concatenate([batch, batch])[0].tolist()
    half = utils.convert_to_fp32(torch.full((1,), 1.0 / 3, dtype=torch.bfloat16))
    results["fp32"] = [half.tolist(), half.dtype == torch.float32]

    utils.set_seed(42)
    results["rand"] = torch.rand(4).tolist()
    results["randn"] = torch.randn(20).tolist()
    results["randperm"] = torch.randperm(10).tolist()
    results["randint"] = torch.randint(0, 1000, (5,)).tolist()
    utils.set_seed(42, device_specific=True)
    results["rand device specific"] = torch.rand(4).tolist()
    utils.synchronize_rng_states(["torch"])
    results["rand synchronized"] = torch.rand(4).tolist()

    if state.debug:
        def fails(operation):
            try:
                operation(torch.ones(1, 5) if state.is_main_process else torch.ones(1, 1, 6))
            except utils.operations.DistributedOperationException:
                return True
            return False

        try:
            utils.gather(torch.ones(1, 5 + state.process_index))
        except utils.operations.DistributedOperationException as error:
            results["debug words"] = str(error).replace("accelerate.utils.operations.", "")
        results["debug gather"] = fails(utils.gather)
        results["debug reduce"] = fails(utils.reduce)
        results["debug broadcast"] = fails(utils.broadcast)
        results["debug pad"] = fails(utils.pad_across_processes)
    state.wait_for_everyone()
    print(json.dumps(results), flush=True)
    os._exit(0)  # as train_peer.leave_group() does, and for its reason


def run_two(command, debug):
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = []
    for index in range(2):
        env = dict(os.environ, RANK=str(index), LOCAL_RANK=str(index), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2",
                   MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), TORCHELASTIC_USE_AGENT_STORE="True",
                   OMP_NUM_THREADS="1", ACCELERATE_DEBUG_MODE="true" if debug else "false")
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    results = []
    for index, process in enumerate(processes):
        out, err = process.communicate(timeout=120)
        if process.returncode != 0:
            sys.exit(f"rank {index} of {command} ended with {process.returncode}:\n{out}{err}")
        results.append(json.loads(out.splitlines()[-1]))
    return results


def differences(debug):
    peer = run_two([sys.executable, __file__, "rank"], debug)
    ours = run_two([str(BUILD / "tests/operations_peer")], debug)
    for index in range(2):
        for name in sorted(peer[index].keys() | ours[index].keys()):
            expected, got = peer[index].get(name), ours[index].get(name)
            if expected != got:
                yield f"{name} on rank {index}: the peer has {expected!r}, we have {got!r}"
    print(f"{len(ours[0])} results compared on 2 ranks{' in debug mode' if debug else ''}")


def main():
    if not PYTHON.exists():
        print("skipped: the peer is not installed in .deps/peer")
        return 77
    if pathlib.Path(sys.executable) != PYTHON:
        os.execv(PYTHON, [str(PYTHON), __file__])
    faults = [*differences(debug=False), *differences(debug=True)]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["rank"]:
        rank()
    else:
        sys.exit(main())
