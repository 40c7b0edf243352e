#!/usr/bin/env python3
"""P-X2: machine code of an exported model, one process, fp32, one thread: a forward in eval(), and a forward with its backward, beside
the interpreter, Python eager and torch.compile.

The model is the smaller Llama of exported_bench.py. Losses must agree within LOSS_TOLERANCE before a time is printed.
"""
import os
import sys
import tempfile
import time

import torch

import exported_llama
from measure import BUILD, SOURCE, emit, median, run_ranks, spread

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
CALLS = 10
# Sums in another order: some hundred roundings of 2^-24 one after the other, relative.
LOSS_TOLERANCE = 256 * 2.0 ** -24

SIZE = "20M"


def model():
    return exported_llama.model(SIZE)


def example_inputs():
    return exported_llama.example(SIZE)


def timed(call):
    call()
    seconds = []
    for _ in range(CALLS):
        start = time.perf_counter()
        loss = call().item()
        seconds.append(time.perf_counter() - start)
    return loss, seconds


def peer_worker(kind):
    torch.set_num_threads(1)
    net, inputs = model(), example_inputs()
    run = torch.compile(net) if kind == "compile" else net

    def evaluate():
        with torch.no_grad():
            return run(**inputs)

    def step():
        net.zero_grad(set_to_none=True)
        loss = run(**inputs)
        loss.backward()
        return loss.detach()

    net.eval()
    in_eval = timed(evaluate)
    net.train()
    in_train = timed(step)
    print(in_eval[0], in_train[0])
    print(*in_eval[1])
    print(*in_train[1])


def export(folder):
    from safetensors.torch import save_file
    sys.path.insert(0, os.path.join(SOURCE, "launcher/commands/export"))
    import export_model
    path, inputs = os.path.join(folder, "llama.pt2"), os.path.join(folder, "inputs.safetensors")
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    export_model.export(export_model.Request(model="compiled_bench:model", output=path, compile=("eval", "train")))
    save_file(example_inputs(), inputs)
    return path, inputs


def main():
    if "--worker" in sys.argv:
        return peer_worker(sys.argv[-1])
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(folder, "cache"))
        path, inputs = export(folder)
        step = [os.path.join(BUILD, "bench/compiled_step"), path, inputs, str(CALLS)]
        worker = [sys.executable, os.path.abspath(__file__), "--worker"]
        sides = {"code": step + ["required"], "graph": step + ["never"], "PyTorch eager": worker + ["eager"],
                 "torch.compile": worker + ["compile"]}
        results = {side: [] for side in sides}
        for _ in range(ROUNDS):
            for side, command in sides.items():
                results[side].append(run_ranks(command, 1)[0])
    expected = results["PyTorch eager"][0][0]
    for side, rows in results.items():
        if max(abs(a - b) / b for a, b in zip(rows[0][0], expected)) > LOSS_TOLERANCE:
            sys.exit(f"bench: the losses of {side} are {rows[0][0]} and not {expected}; no time is printed")
    for metric, row in (("forward in eval()", 1), ("forward and backward", 2)):
        times = {side: [1e3 * median(rows[row]) for rows in all_rows] for side, all_rows in results.items()}
        for side in ("graph", "PyTorch eager", "torch.compile"):
            mine, peer = median(times["code"]), median(times[side])
            emit("P-X2", "the Llama of P-X1, machine code", metric, "ms", mine, peer, "the interpreter" if side == "graph" else side,
                 goal=1.0, passed=mine <= peer, spread=spread(times["code"]))


if __name__ == "__main__":
    main()
