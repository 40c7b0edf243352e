#!/usr/bin/python3
"""What a user may put in the place of accel-shim: it speaks the frames of the protocol, and means no good.

Started as accel-shim is. A job whose program is "hostile" says by its first argument how; any other gets the real shim, which
`<this file>.real` names.
"""
import fcntl
import json
import os
import signal
import socket
import sys

CALLS, JOB = int(sys.argv[1]), int(sys.argv[2])
ADD_SEALS, SEALS = 1033, 2 | 4 | 8  # of Linux: no shrinking, no growing, no writing
EXIT = {"cause": 1, "core_dumped": False, "core_path": "", "error_file": "", "error_number": 0, "exit_code": 7, "generation": 0,
        "global_rank": 0, "last_error": "", "local_rank": 0, "peak_rss_bytes": 0, "pid": 0, "program": "", "seen_at": 0, "signal": 0,
        "stage": "", "tail": "boom\n"}
OUTCOME = {"success": True, "exit_code": 0, "reason": "", "restarts": 0, "notices": [], "first_failure": None, "exits": [], "leftovers": []}


def say(kind, **members):
    agent.send(json.dumps({"type": kind, **members}).encode())


def say_much(size, of=b"0,"):
    """A notice of so many bytes, most of them a member that nobody reads: values, or one long text."""
    text = b'{"type":"notice","text":"much","x":[' + of * ((size - 60) // len(of)) + b"0]}"
    text += b" " * (size - len(text))
    payload = os.memfd_create("much", os.MFD_ALLOW_SEALING)
    os.write(payload, text)
    fcntl.fcntl(payload, ADD_SEALS, SEALS)
    socket.send_fds(agent, [json.dumps({"type": "payload", "size": size}).encode()], [payload])
    os.close(payload)


def start_workers(*pids):
    say("generation_started", generation=0, pids=list(pids), store_port=0)


def for_ever(act):
    while True:
        act()


def wait_for_ever():
    for_ever(signal.pause)


def say_end(rank):
    say("worker_exited", exit={**EXIT, "local_rank": rank, "global_rank": rank})


WAYS = {
    "silent": lambda: None,
    "notices": lambda: for_ever(lambda: say("notice", text="again")),
    "big_frames": lambda: for_ever(lambda: say_much(16 << 20, of=b'"' + b"much" * 65536 + b'",')),
    "ends": lambda: for_ever(lambda: say_end(0)),
    "starts": lambda: for_ever(lambda: start_workers(os.getpid())),
    "too_big_frame": lambda: say_much(17 << 20),
    "many_values": lambda: say_much(16 << 20, of=b"[],"),
    "nonsense": lambda: agent.send(b'{"type":"outcome","outcome":7}'),
    "many_workers": lambda: start_workers(*range(2, 5000)),
    "other_rank": lambda: say_end(99),
    "foreign_process": lambda: start_workers(int(way[1])),
    "closed": lambda: agent.close(),
    "stays": lambda: say("outcome", outcome=OUTCOME),
    "forged_line": lambda: say("refused", error={"code": 1, "message": "no\naccel-agent: audit: forged", "remedy": "", "context": [],
                                                 "details": []}),
    "other_protocol": lambda: None,
}

way = json.loads(os.pread(JOB, 1 << 24, 0))["workers"][0]["argv"]
if way.pop(0) != "hostile":
    real = os.readlink(sys.argv[0] + ".real")
    os.execv(real, [real, *sys.argv[1:]])
agent = socket.socket(fileno=CALLS)
agent.setblocking(True)
protocol = 99 if way[0] == "other_protocol" else 3
say("hello", protocol=protocol, oldest_protocol=protocol, build="hostile", pid=os.getpid())
WAYS[way[0]]()
wait_for_ever()
