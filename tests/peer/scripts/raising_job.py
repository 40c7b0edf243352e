"""Rank 1 raises: recorded by torch.distributed.elastic, or not (--plain); --quiet also hides stderr."""
import os
import sys

from torch.distributed.elastic.multiprocessing.errors import record


def load_batch():
    raise ValueError("bad data in shard 7")


def main():
    if os.environ["RANK"] == "1":
        load_batch()


if "--quiet" in sys.argv:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
(main if "--plain" in sys.argv else record(main))()
