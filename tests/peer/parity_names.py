#!/usr/bin/env python3
"""docs/parity.md lists every public name of accelerate, and what it says is there is there; the manual has each flag of its commands.

The names come from the installed package. A row's first column is a name or a glob over names; "done" and
"differs" rows must name C++ symbols that the public headers hold and tests that exist. Flags and their choices are those of the
peers' own parsers, torchrun's too; the manual is written from the tables that our parsers read.
Run by ctest with the peer's Python.
"""

import fnmatch
import importlib
import inspect
import os
import pathlib
import re
import sys

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
MODULES = ["state", "data_loader", "optimizer", "scheduler", "tracking", "logging", "launchers", "big_modeling", "hooks",
           "local_sgd", "checkpointing", "inference", "parallelism_config"]
STATUSES = {"done", "differs", "not yet", "not needed"}


def public(module):
    return [name for name in dir(module)
            if not name.startswith("_") and not inspect.ismodule(getattr(module, name))]


def peer_names():
    import accelerate
    import accelerate.utils

    names = set(public(accelerate))
    names |= {f"Accelerator.{name}" for name in dir(accelerate.Accelerator) if not name.startswith("_")}
    names |= {f"utils.{name}" for name in public(accelerate.utils)}
    for short in MODULES:
        module = importlib.import_module(f"accelerate.{short}")
        names |= {f"{short}.{name}" for name in public(module)
                  if getattr(getattr(module, name), "__module__", "") == module.__name__}
    return sorted(names)


def rows():
    for number, line in enumerate((SOURCE / "docs/parity.md").read_text().splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and cells[1] in STATUSES:
            yield number, cells[0].strip("`"), cells[1], cells[2], cells[3]


def header_text():
    folders = [SOURCE / "libaccel/include/accel", SOURCE / "runtime/include/accel"]
    return "\n".join(path.read_text() for folder in folders for path in sorted(folder.rglob("*.h")))


def faults():
    names = peer_names()
    assert "Accelerator.accumulate" in names and len(names) > 300, "the peer's names were not read"
    table = list(rows())
    for name in names:
        if not any(fnmatch.fnmatchcase(name, pattern) for _, pattern, *_ in table):
            yield f"{name} is public in the peer and not listed"
    headers = header_text()
    for number, pattern, status, symbols, test in table:
        where = f"docs/parity.md:{number}: {pattern}"
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            yield f"{where} is no public name of the peer"
        if status in ("done", "differs"):
            for symbol in re.findall(r"`([A-Za-z0-9_:]+)[^`]*`", symbols):
                if not re.search(rf"\b{symbol.split('::')[-1]}\b", headers):
                    yield f"{where}: {symbol} is in no public header"
            tests = re.findall(r"`(tests/[^`]+)`", test)
            if not tests:
                yield f"{where} names no test"
            for path in tests:
                if not (SOURCE / path).exists():
                    yield f"{where}: {path} is not there"


def constant_faults():
    """accel/checkpoint_names.h has the values of accelerate.utils.constants."""
    import accelerate.utils.constants as peer

    text = (SOURCE / "libaccel/include/accel/checkpoint_names.h").read_text()
    values = dict(re.findall(r'constexpr std::string_view (k\w+) = "([^"]*)";', text))
    assert len(values) > 10, "the constants were not read"
    for name, value in values.items():
        upper = re.sub(r"(?<!^)(?=[A-Z])", "_", name[1:]).upper()
        if getattr(peer, upper) != value:
            yield f"{name} is {value!r}, and {upper} of the peer {getattr(peer, upper)!r}"


def peer_parsers():
    """[(page of our manual, the peer's parser)]"""
    from accelerate.commands import env, estimate, launch, merge, test, to_fsdp2, tpu
    from accelerate.commands.config import get_config_parser
    from torch.distributed import run

    yield "accel-launch", launch.launch_command_parser()
    yield "accel-launch", run.get_args_parser()  # accel-torchrun has all of its flags
    yield "accel-config", get_config_parser()
    yield "accel-env", env.env_command_parser()
    yield "accel-estimate-memory", estimate.estimate_command_parser()
    yield "accel-merge-weights", merge.merge_command_parser()
    yield "accel-test", test.test_command_parser()
    yield "accel-to-fsdp2", to_fsdp2.to_fsdp2_command_parser()
    yield "accel-tpu-config", tpu.tpu_command_parser()


def flag_faults():
    for page, parser in peer_parsers():
        text = (SOURCE / f"docs/man/{page}.1").read_text().replace("\\-", "-")
        flags = {bare(word) for word in re.findall(r"--?[a-zA-Z][a-zA-Z0-9_-]*", text)}
        actions = [action for action in parser._actions if action.option_strings]
        assert actions, f"the peer's flags of {page} were not read"
        for action in actions:
            for word in action.option_strings:
                if bare(word) not in flags:
                    yield f"{word} is a flag of the peer, and not in the manual of {page}"
            for choice in action.choices or []:
                if str(choice) not in re.findall(r"[\w-]+", text):
                    yield f"{action.option_strings[0]} takes {choice} in the peer, and not in the manual of {page}"


def bare(flag):
    return flag.lstrip("-").replace("-", "_")


def main():
    found = [*faults(), *constant_faults(), *flag_faults()]
    for fault in found:
        print("parity:", fault)
    print(f"parity: {len(found)} faults, {len(peer_names())} names")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
