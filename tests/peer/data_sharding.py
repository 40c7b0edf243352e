#!/usr/bin/env python3
"""Random cases of sharding, shuffling and skipping give the same indices as HF Accelerate, rank by rank.

    data_sharding.py [--seed N] [--cases N] [--long]

One process computes what Accelerate yields for all cases, one what libaccel yields. The seed is printed;
a case that differs is printed whole.
"""
import argparse
import json
import os
import random
import subprocess
import sys

from peer_python import BUILD

import torch
from accelerate import Accelerator
from accelerate.data_loader import (
    BatchSamplerShard, IterableDatasetShard, prepare_data_loader, skip_first_batches)
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

TOOL = os.path.join(BUILD, "tests/data_sharding")


class Count(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __iter__(self):
        return iter(range(self.size))


class FixedBatches:
    """Batches of varying size; has no batch_size."""

    def __init__(self, batches, drop_last):
        self.batches = batches
        self.drop_last = drop_last

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter([list(batch) for batch in self.batches])


def batches_case(pick):
    case = {"kind": "batches", "num_processes": pick.randint(1, 5), "even_batches": pick.random() < 0.5,
            "drop_last": pick.random() < 0.4}
    if pick.random() < 0.3:
        start, batches = 0, []
        for _ in range(pick.randint(0, 12)):
            size = pick.randint(1, 5)
            batches.append(list(range(start, start + size)))
            start += size
        return {**case, "batches": batches, "split_batches": False}
    return {**case, "size": pick.randint(0, 70), "batch_size": pick.randint(1, 9),
            "split_batches": pick.random() < 0.5}


def iterable_case(pick):
    return {"kind": "iterable", "num_processes": pick.randint(1, 5), "size": pick.randint(0, 60),
            "batch_size": pick.randint(1, 9), "drop_last": pick.random() < 0.4,
            "split_batches": pick.random() < 0.5}


def loader_case(pick):
    size = pick.randint(1, 60)
    has_samples = pick.random() < 0.3
    return {"kind": "loader", "num_processes": pick.randint(1, 4), "size": size,
            "batch_size": pick.randint(1, 8), "drop_last": pick.random() < 0.3,
            "shuffle": pick.random() < 0.7, "even_batches": pick.random() < 0.7,
            "split_batches": pick.random() < 0.3, "use_seedable_sampler": pick.random() < 0.4,
            "data_seed": pick.randint(0, 1000) if pick.random() < 0.5 else None,
            "generator_seed": pick.randint(0, 1000) if pick.random() < 0.4 else None,
            "num_samples": pick.randint(1, 90) if has_samples else None,
            "replacement": pick.random() < 0.5, "seed": pick.randint(0, 1000),
            "num_workers": pick.choice([0, 0, 1, 3]), "num_epochs": 3}


def skip_case(pick):
    return {"kind": "skip", "num_processes": 1, "size": pick.randint(1, 40),
            "batch_size": pick.randint(1, 6), "drop_last": pick.random() < 0.4, "skip": pick.randint(0, 5)}


def batches_of(case, rank):
    if "batches" in case:
        inner = FixedBatches(case["batches"], case["drop_last"])
    else:
        inner = BatchSampler(SequentialSampler(range(case["size"])), case["batch_size"], case["drop_last"])
    shard = BatchSamplerShard(inner, case["num_processes"], rank, case["split_batches"], case["even_batches"])
    # Copies: the peer goes on writing into lists that it has yielded.
    return {"batches": [list(batch) for batch in shard], "length": len(shard)}


def elements_of(case, rank):
    if case["split_batches"] and case["batch_size"] % case["num_processes"] != 0:
        raise ValueError("not a round multiple: the peer lets batch_size 1 pass and then yields nothing")
    shard = IterableDatasetShard(Count(case["size"]), case["batch_size"], case["drop_last"],
                                 case["num_processes"], rank, case["split_batches"])
    shard.set_epoch(0)
    elements = list(shard)
    # The peer's own length is wrong for split batches, so the number of elements is compared instead.
    return {"elements": elements, "length": len(elements)}


def epochs_of(case, rank):
    torch.manual_seed(case["seed"])
    data = range(case["size"])
    options = {"batch_size": case["batch_size"], "drop_last": case["drop_last"], "shuffle": case["shuffle"]}
    if case["generator_seed"] is not None:
        options["generator"] = torch.Generator()
        options["generator"].manual_seed(case["generator_seed"])
    if case["num_samples"] is not None:
        options["shuffle"] = False
        options["sampler"] = RandomSampler(data, replacement=case["replacement"],
                                           num_samples=case["num_samples"],
                                           generator=options.get("generator"))
    loader = prepare_data_loader(
        DataLoader(data, **options), num_processes=case["num_processes"], process_index=rank,
        split_batches=case["split_batches"], even_batches=case["even_batches"],
        use_seedable_sampler=case["use_seedable_sampler"], data_seed=case["data_seed"],
        rng_types=["generator"])
    epochs = []
    for _ in range(case["num_epochs"]):
        batches, ends = [], []
        for batch in loader:
            batches.append(batch.tolist())
            ends.append(loader.end_of_dataloader)
        epochs.append({"batches": batches, "ends": ends})
    answer = {"epochs": epochs, "length": len(loader), "total_batch_size": loader.total_batch_size}
    # The peer counts the dataset although the sampler draws another number of elements.
    elements = case["num_samples"] or case["size"]
    answer["remainder"] = -1 if case["drop_last"] else elements % loader.total_batch_size
    if case["num_samples"] is None:
        assert answer["remainder"] == loader.remainder
    return answer


def rest_of(case, _rank):
    loader = skip_first_batches(
        DataLoader(range(case["size"]), batch_size=case["batch_size"], drop_last=case["drop_last"]), case["skip"])
    batches = [batch.tolist() for batch in loader]
    return {"batches": batches, "length": len(batches)}


ANSWERS = {"batches": batches_of, "iterable": elements_of, "loader": epochs_of, "skip": rest_of}


def peer_answer(case):
    ranks = []
    for rank in range(case["num_processes"]):
        try:
            ranks.append(ANSWERS[case["kind"]](case, rank))
        except ValueError as error:
            if "round multiple" not in str(error):
                raise
            ranks.append({"refused": "data.sharding"})
    return ranks


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("ACCEL_TEST_SEED") or 1))
    parser.add_argument("--cases", type=int, default=600)
    parser.add_argument("--long", action="store_true", help="ten times as many cases",
                        default=os.environ.get("ACCEL_TEST_LONG") == "1")
    options = parser.parse_args()
    seed = options.seed
    pick = random.Random(seed)
    makers = [batches_case, batches_case, iterable_case, loader_case, loader_case, skip_case]
    cases = [pick.choice(makers)(pick) for _ in range(options.cases * (10 if options.long else 1))]
    print(f"seed {seed}, {len(cases)} cases")

    done = subprocess.run([TOOL], input=json.dumps(cases), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{TOOL}: exit {done.returncode}\n{done.stderr}")
    Accelerator(cpu=True)
    differing = 0
    for case, ours in zip(cases, json.loads(done.stdout), strict=True):
        theirs = peer_answer(case)
        if ours != theirs:
            differing += 1
            print(f"case   {json.dumps(case)}\n  accel  {json.dumps(ours)}\n  peer   {json.dumps(theirs)}")
    if differing:
        sys.exit(f"{differing} of {len(cases)} cases differ; repeat with --seed {seed}")
    print("all equal")


if __name__ == "__main__":
    main()
