"""Commands of `accel` that a person waits for: --help, and estimate-memory of a model of 100 GB (the headers of its files,
never their data), beside those of the peer.

The model has the tensors of a Llama of 50 billion parameters in bfloat16, as the Hub has such models: 30 files and an
index. The files have their whole size, but only their headers are written: the data are holes.
"""

import json
import os
import re
import struct
import sys
import tempfile

from measure import BUILD, PEER_BIN, PEER_PYTHON, SOURCE, emit, median, spread, timed

ROUNDS = 20
PEER_ROUNDS = 3
SHARDS = 30
LAYERS, HIDDEN, INNER, WORDS = 110, 6144, 16384, 32000
ACCEL = os.path.join(BUILD, "bin/accel")
# Commands of the peer's help; `accel` has them all.
COMMANDS = {"config", "env", "estimate-memory", "launch", "merge-weights", "test", "to-fsdp2", "tpu-config"}


def layer(number):
    prefix = f"model.layers.{number}."
    yield prefix + "input_layernorm.weight", [HIDDEN]
    yield prefix + "mlp.down_proj.weight", [HIDDEN, INNER]
    yield prefix + "mlp.gate_proj.weight", [INNER, HIDDEN]
    yield prefix + "mlp.up_proj.weight", [INNER, HIDDEN]
    yield prefix + "post_attention_layernorm.weight", [HIDDEN]
    for name in "koqv":
        yield f"{prefix}self_attn.{name}_proj.weight", [HIDDEN, HIDDEN]


def tensors():
    yield "model.embed_tokens.weight", [WORDS, HIDDEN]
    for number in range(LAYERS):
        yield from layer(number)
    yield "model.norm.weight", [HIDDEN]
    yield "lm_head.weight", [WORDS, HIDDEN]


def write_shard(path, named):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in named:
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return end


def write_model(folder):
    """Returns (path of the index, number of tensors, bytes of data)."""
    named, total, places = list(tensors()), 0, {}
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"
        part = named[len(named) * shard // SHARDS:len(named) * (shard + 1) // SHARDS]
        total += write_shard(os.path.join(folder, file), part)
        places |= {name: file for name, _ in part}
    index = os.path.join(folder, "model.safetensors.index.json")
    with open(index, "w") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}, file, indent=2)
    return index, len(named), total


def output_of(command):
    _, status, output = timed(command)
    if status != 0:
        sys.exit(f"commands_bench: {' '.join(command)} ended with {status}:\n{output}")
    return output


def milliseconds(command, rounds):
    """One run to warm up, then `rounds`."""
    output_of(command)
    return [timed(command)[0] * 1e3 for _ in range(rounds)]


def report(case, ours, theirs, peer_name, most):
    a, b = milliseconds(ours, ROUNDS), milliseconds(theirs, PEER_ROUNDS)
    emit("commands", case, f"whole command, median of {ROUNDS}", "ms", median(a), median(b), peer_name,
         goal=f"<= {most} ms", passed=median(a) <= most, spread=spread(a))


def help_texts():
    ours, theirs = [ACCEL, "--help"], [os.path.join(PEER_BIN, "accelerate"), "--help"]
    for command in (ours, theirs):
        if missing := COMMANDS - set(re.findall(r"[a-z0-9-]+", output_of(command))):
            sys.exit(f"commands_bench: {' '.join(command)} does not name {missing}")
    report("accel --help", ours, theirs, "accelerate --help", 10)


def cells(table):
    return [[cell.strip() for cell in line.split("│")] for line in table.splitlines() if "│" in line]


def estimate():
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        index, number, total = write_model(folder)
        assert total >= 100e9, total
        ours = [ACCEL, "estimate-memory", index]
        theirs = [PEER_PYTHON, os.path.join(SOURCE, "bench/estimate_peer.py"), index]
        said, expected = output_of(ours), output_of(theirs)
        if cells(said) != cells(expected):
            sys.exit(f"commands_bench: the tables differ\n{said}\n{expected}")
        report(f"accel estimate-memory, {total / 1e9:.0f} GB in {SHARDS} files, {number} tensors", ours, theirs,
               "accelerate's functions, from the same files", 100)


if __name__ == "__main__":
    help_texts()
    estimate()
