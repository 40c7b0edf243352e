#!/usr/bin/env python3
"""Models that `accel export` writes train in accel::ExportedModel as they do in PyTorch: small instances of many architectures,
ten steps of AdamW, losses and norms of gradients compared.

    exported_models.py                     some architectures, others in each commit (ACCEL_TEST_SEED, ACCEL_TEST_BUDGET seconds)
    exported_models.py --all [--table]     all; --table prints the rows of docs/reference/architectures.md
    exported_models.py NAME...             these
"""
import argparse
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import peer_python  # runs this script under the peer's Python

SOURCE = pathlib.Path(peer_python.SOURCE)
BUILD = pathlib.Path(peer_python.BUILD)
sys.path.insert(0, str(SOURCE / "launcher/commands/export"))

# Without it MKL's sums depend on where in memory operands lie.
os.environ["MKL_CBWR"] = "COMPATIBLE"
os.environ["OMP_NUM_THREADS"] = "1"

import torch
import transformers
from accelerate.hooks import ModelHook, add_hook_to_module
from safetensors.torch import save_file

import export_model
from exported_architectures import ARCHITECTURES, OTHERS

TRAIN = BUILD / "tests/exported_train"
STEPS = 10
RATE = 1e-3
SEED = 7
HOOKED = "transformer.h.0.mlp"  # of GPT-2
SETTINGS = ("--optimizer", "adamw", "--steps", str(STEPS), "--lr", str(RATE), "--seed", str(SEED))
# Kernels, their order and the numbers of the generator are the same, and most losses are equal to the bit. But the fused kernel
# of AdamW rounds the last elements of an array in another way than whole vectors, and arrays are cut in another way here: after
# some steps a loss below 16 differs by one or two units of its last place, which is 9.5e-7.
LOSS = 2e-6
# Relative: half a unit of the sixth digit.
NORM = 5e-6


def request_of(name, folder):
    """Writes the configuration where there is one."""
    options = {"output": str(folder / f"{name}.pt2"), "random_weights": True, "sequence_length": 32}
    if name in OTHERS:
        source, values = OTHERS[name]
        if isinstance(values, dict):
            (folder / name).mkdir()
            (folder / name / "config.json").write_text(json.dumps(values))
            values = folder / name
        return export_model.Request(model=f"{source}:{values}", **options)
    task, kind, values = ARCHITECTURES[name]
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps({"model_type": kind, **values}))
    return export_model.Request(model=f"hf:{folder / name}", task=task, **options)


def fused_adamw(parameters):
    return torch.optim.AdamW(parameters, lr=RATE, fused=True)


def train_in_python(subject, precision=contextlib.nullcontext(), optimizer_of=fused_adamw):
    """(loss, norm of the gradients) of each step, with the forward within `precision`; then the loss in eval()."""
    net = subject.in_mode("train").net
    optimizer = optimizer_of(net.parameters())
    rows = []
    torch.manual_seed(SEED)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with precision:
            loss = subject.results(net.forward, dict(subject.inputs))["loss"]
        loss.backward()
        rows.append((loss.item(), torch.nn.utils.clip_grad_norm_(net.parameters(), 1e30).item()))
        optimizer.step()
    with torch.no_grad(), precision:
        loss = subject.results(subject.in_mode("eval").net.forward, dict(subject.inputs))["loss"]
    return rows, loss.item()


def rows_of(lines):
    """What train_in_python() returns, from the output of exported_train."""
    *steps, last = [line.split() for line in lines if line]
    if last[0] != "eval":
        raise AssertionError(f"no loss in eval(): {lines}")
    return [(float(loss), float(norm)) for _, loss, norm in steps], float(last[1])


class DoubledOutput(ModelHook):
    def post_forward(self, module, output):
        return output * 2


def train_in_accel(request, subject, *flags):
    inputs = f"{request.output}.inputs.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in subject.inputs.items()}, inputs)
    done = subprocess.run([TRAIN, request.output, inputs, *SETTINGS, *flags], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"exported_train ended with {done.returncode}: {done.stderr.strip()[-1500:]}")
    return rows_of(done.stdout.splitlines())


def compare(expected, found):
    """(largest difference of a loss, largest relative difference of a norm)."""
    (expected, expected_eval), (found, found_eval) = expected, found
    if len(found) != STEPS:
        raise AssertionError(f"{len(found)} steps and not {STEPS}")
    if not expected[-1][0] < expected[0][0]:
        raise AssertionError(f"Python learned nothing: {expected}")
    losses = max(abs(expected_eval - found_eval), *(abs(a - b) for (a, _), (b, _) in zip(expected, found)))
    norms = max(abs(a - b) / a for (_, a), (_, b) in zip(expected, found))
    return losses, norms


def train_both(name, folder):
    """What is exported, and how far training in accel is from training in Python."""
    request = request_of(name, folder)
    with contextlib.redirect_stderr(io.StringIO()):
        facts = export_model.export(request)
        subject = export_model.find_subject(request)
    return facts, *compare(train_in_python(subject), train_in_accel(request, subject))


def train_both_hooked(folder):
    """How far training is from Python's with a hook of Accelerate's kind on a layer; the hook changes the losses."""
    request = request_of("gpt2", folder)
    with contextlib.redirect_stderr(io.StringIO()):
        export_model.export(request)
        subject = export_model.find_subject(request)
    plain = train_in_accel(request, subject)
    found = train_in_accel(request, subject, "--double", HOOKED)
    if plain[0][0] == found[0][0]:
        raise AssertionError(f"the hook of {HOOKED} changed nothing")
    add_hook_to_module(subject.net.get_submodule(HOOKED), DoubledOutput())
    return compare(train_in_python(subject), found)


def fault_of_hooks(folder):
    losses, norms = train_both_hooked(folder)
    print(f"with a hook of {HOOKED}: losses within {losses:.1g}, norms within {norms:.1g}", flush=True)
    return f"hooks: losses differ by {losses:.3g}, norms by {norms:.3g}" if losses > LOSS or norms > NORM else ""


def fault_of(name, folder):
    """(fault or "", row of the table)."""
    try:
        facts, losses, norms = train_both(name, folder)
    except export_model.Refusal as refusal:
        return refusal.message, f"| {name} | | no | {refusal.message} |"
    except AssertionError as failure:
        return str(failure), f"| {name} | | no | {str(failure).splitlines()[-1]} |"
    row = f"| {name} | {facts['class']} | yes | losses within {losses:.1g}, norms within {norms:.1g} |"
    is_far = losses > LOSS or norms > NORM
    return f"losses differ by {losses:.3g}, norms of gradients by {norms:.3g} of them" if is_far else "", row


def chosen(arguments):
    """Names in the order in which they are run."""
    names = [*ARCHITECTURES, *OTHERS]
    unknown = set(arguments.names) - set(names)
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    if arguments.names or arguments.all:
        return arguments.names or names
    first = arguments.seed * 11 % len(names)
    return names[first:] + names[:first]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true", default=os.environ.get("ACCEL_TEST_LONG") == "1")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("ACCEL_TEST_SEED") or 1))
    parser.add_argument("--budget", type=float, default=float(os.environ.get("ACCEL_TEST_BUDGET") or 60))
    arguments = parser.parse_args()
    if not TRAIN.exists():
        print(f"skipped: {TRAIN} is not in this build")
        return 77
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    began, faults, count, good = time.monotonic(), [], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        if fault := fault_of_hooks(pathlib.Path(folder)):
            faults.append(fault)
    for name in chosen(arguments):
        if not (arguments.names or arguments.all) and time.monotonic() - began > arguments.budget:
            break
        with tempfile.TemporaryDirectory() as folder:
            fault, row = fault_of(name, pathlib.Path(folder))
        count += 1
        print(row if arguments.table else f"{'FAILED' if fault else 'ok'}: {row}", flush=True)
        good += not fault
        if fault:
            faults.append(f"{name}: {fault}")
    print(f"{good} of {count} architectures train as in Python (seed {arguments.seed})")
    for fault in faults:
        print("exported_models:", fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
