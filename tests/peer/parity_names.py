#!/usr/bin/env python3
"""docs/parity_names.yaml lists every public name of accelerate, and what it says is there is there; the manual has each flag of its commands.

The names, their arguments and the defaults of these come from the installed package, ours from the public headers. What is "done"
or "differs" names C++ symbols that the headers hold and tests that exist; each argument that Accelerate has a default for is an
argument or a field here, with the same default, or the table says what serves in its place. A table that says so of what is there
is a fault too. Flags and their choices are those of the peers' own parsers, torchrun's too; the manual is written from the tables
that our parsers read.

  tests/peer/parity_names.py            compares; run by ctest with the peer's Python
  tests/peer/parity_names.py --write    writes the table of docs/reference/parity.md
"""

import enum
import fnmatch
import importlib
import inspect
import os
import pathlib
import re
import sys

import yaml

from cpp_declarations import Declarations

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
PAGE = SOURCE / "docs/reference/parity.md"
BEGIN, END = "<!-- names: written by tests/peer/parity_names.py --write -->\n", "<!-- end of names -->\n"
MODULES = ["state", "data_loader", "optimizer", "scheduler", "tracking", "logging", "launchers", "big_modeling", "hooks",
           "local_sgd", "checkpointing", "inference", "parallelism_config"]
STATES = {"done", "differs", "not yet", "not needed"}


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


def peer_object(name):
    import accelerate

    module, _, member = name.rpartition(".")
    if module == "Accelerator":
        return inspect.getattr_static(accelerate.Accelerator, member)
    return getattr(importlib.import_module(f"accelerate.{module}" if module else "accelerate"), member)


def peer_defaults(name):
    """{argument: default} of those that may be left out."""
    made = peer_object(name)
    made = getattr(made, "__func__", made)
    if isinstance(made, property) or not callable(made) or inspect.isclass(made) and issubclass(made, enum.Enum):
        return {}
    return {argument.name: argument.default for argument in inspect.signature(made).parameters.values()
            if argument.default is not argument.empty and not argument.name.startswith("_")}


def table():
    entries = yaml.safe_load((SOURCE / "docs/parity_names.yaml").read_text())
    for entry in entries:
        entry["tests"] = [entry["test"]] if isinstance(entry.get("test"), str) else entry.get("test", [])
        entry["symbols"] = re.findall(r"`([A-Za-z0-9_:]+)[^`]*`", entry.get("here", ""))
        entry.setdefault("without", {})
        entry.setdefault("defaults", {})
    return entries


def headers():
    folders = [SOURCE / "libaccel/include/accel", SOURCE / "runtime/include/accel"]
    return [path for folder in folders for path in sorted(folder.rglob("*.h"))]


def name_faults(entries):
    names = peer_names()
    assert "Accelerator.accumulate" in names and len(names) > 300, "the peer's names were not read"
    patterns = [pattern for entry in entries for pattern in entry["names"]]
    for name in names:
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            yield f"{name} is public in the peer and not listed"
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            yield f"{pattern} is no public name of the peer"
        if patterns.count(pattern) > 1:
            yield f"{pattern} is listed twice"


def entry_faults(entries):
    text = "\n".join(path.read_text() for path in headers())
    for entry in entries:
        where = entry["names"][0]
        if entry["state"] not in STATES:
            yield f"{where}: {entry['state']} is none of {sorted(STATES)}"
        if entry["state"] not in ("done", "differs"):
            continue
        for symbol in entry["symbols"]:
            if not re.search(rf"\b{symbol.split('::')[-1]}\b", text):
                yield f"{where}: {symbol} is in no public header"
        if not entry["tests"] or not entry["symbols"]:
            yield f"{where} names no test or no symbol"
        for path in entry["tests"]:
            if not (SOURCE / path).exists():
                yield f"{where}: {path} is not there"


def plain(value):
    """A default of Python, for comparing."""
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or value == () or "factory" in str(value):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(float(value)) if isinstance(value, (int, float)) else str(value).lower()


def plain_here(kind, value):
    """A default of C++ alike; "required" where there is none and the type has no empty value."""
    if value is None:
        return "required" if re.match(r"(const )?(int|bool|double|float|std::u?int\w+)$", kind) else ""
    if value in ("{}", "std::nullopt", "nullptr", '""'):
        return ""
    if number := re.fullmatch(r"(?:std::int64_t)?\{?(-?[\d.]+)[fFL]?\}?", value):
        return repr(float(number[1]))
    if constant := re.fullmatch(r"\w+::k(\w+)", value):
        return re.sub(r"(?<!^)(?=[A-Z])", "_", constant[1]).lower()
    return value.strip('"').lower()


def signature_faults(entries):
    declarations = Declarations(headers())
    compared = 0
    for entry in entries:
        if entry["state"] not in ("done", "differs"):
            continue
        here = {}
        for symbol in entry["symbols"]:
            for name, value in declarations.parameters(symbol).items():
                here.setdefault(name, value)
        for name in entry["names"]:
            if "*" in name:
                continue
            wanted = peer_defaults(name)
            compared += len(wanted)
            for argument, default in wanted.items():
                is_here, is_excused = argument in here, argument in entry["without"]
                if is_here == is_excused:
                    yield f"{name}: {argument} is {'here, and' if is_here else 'not here, and not'} listed under `without`"
                if not is_here:
                    continue
                differs = plain(default) != plain_here(*here[argument])
                if differs != (argument in entry["defaults"]):
                    yield (f"{name}: the default of {argument} is {default!r} in the peer and {here[argument][1]} here, "
                           f"{'not listed' if differs else 'but listed'} under `defaults`")
            for argument in (*entry["without"], *entry["defaults"]):
                if argument not in wanted:
                    yield f"{name} has no {argument} with a default in the peer"
    assert compared > 150, "the peer's arguments were not read"


def rendered(entries):
    lines = ["| name | status | in accel | test |", "|---|---|---|---|"]
    for entry in entries:
        if entry["state"] not in ("done", "differs"):
            continue
        here = entry["here"]
        for kind, words in (("without", "without"), ("defaults", "other defaults:")):
            if entry[kind]:
                here += f"; {words} " + ", ".join(f"`{argument}` ({why})" for argument, why in entry[kind].items())
        lines.append(f"| {names_text(entry)} | {entry['state']} | {here} | {', '.join(f'`{path}`' for path in entry['tests'])} |")
    for state, words in (("not yet", "Not supported yet"), ("not needed", "Not needed")):
        for entry in entries:
            if entry["state"] == state:
                lines += ["", f"{words}{', ' + entry['here'] if entry.get('here') else ''}: {names_text(entry)}."]
    return "\n".join(lines) + "\n"


def names_text(entry):
    return ", ".join(f"`{name}`" for name in entry["names"])


def page_with(entries):
    text = PAGE.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return text[:begin] + "\n" + rendered(entries) + "\n" + text[end:]


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
    entries = table()
    if "--write" in sys.argv:
        PAGE.write_text(page_with(entries))
        return 0
    found = [*name_faults(entries), *entry_faults(entries), *signature_faults(entries), *constant_faults(), *flag_faults()]
    if PAGE.read_text() != page_with(entries):
        found.append("the table of docs/reference/parity.md is stale: run tests/peer/parity_names.py --write")
    for fault in found:
        print("parity:", fault)
    print(f"parity: {len(found)} faults, {len(peer_names())} names")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
