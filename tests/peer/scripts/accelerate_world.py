"""A worker that leaves the device to Accelerate, and says which job it finds itself in."""
import json
import os

from accelerate import Accelerator

accelerator = Accelerator()
print(json.dumps({"rank": accelerator.process_index, "world": accelerator.num_processes,
                  "device": accelerator.device.type}) + "\n", end="", flush=True)
accelerator.wait_for_everyone()  # a rank that ends while another one still connects is a lost peer to it
accelerator.end_training()
os._exit(0)  # as in accelerate_job.py
