"""A worker as torch.distributed users write it; it knows nothing of accel."""
import json
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist


def leave_a_key_behind(store, restarts):
    """What an earlier generation stored must be gone."""
    if restarts > 0 and store.check(["left_behind"]):
        sys.exit("the store of the first generation is still there")
    dist.barrier()  # every rank has looked before one writes
    store.set("left_behind", "1")


def main():
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((1000,), float(rank + 1))
    dist.all_reduce(tensor)
    gathered = [None] * world
    dist.all_gather_object(gathered, {"rank": rank, "local_rank": int(os.environ["LOCAL_RANK"])})
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    leave_a_key_behind(store, restarts)
    dist.barrier()
    if "--fail-first" in sys.argv and restarts == 0 and rank == world - 1:
        os._exit(7)
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps({"rank": rank, "world": world, "sum": tensor[0].item(), "restarts": restarts,
                      "ranks": [entry["rank"] for entry in gathered],
                      "arguments": sys.argv[1:]}), flush=True)
    os._exit(0)  # as in accelerate_job.py


if __name__ == "__main__":
    main()
