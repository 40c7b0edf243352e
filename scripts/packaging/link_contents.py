#!/usr/bin/env python3
"""Lists what was linked into programs, as a CycloneDX file, and copies the licences of it.

    link_contents.py --build DIR --name NAME --version V --output FILE [--licenses DIR] PROGRAM=MAP...

PROGRAM and MAP are below the build folder. Everything comes from the link and the compilation themselves:

    static      archives and objects of the linker's map, that are not of the build
    headers     what the compiler read for the objects of that map (`ninja -t deps`)
    dynamic     what the program asks the loader for (DT_NEEDED)

Each file belongs to a Debian package (dpkg -S) or a wheel (its dist-info); one that belongs to none is an error, because the list
would not be whole. The time in the list is SOURCE_DATE_EPOCH.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import uuid

KINDS = ("static", "headers", "dynamic")  # the nearest first: a component of several kinds names all
LICENSE = "Apache-2.0"


def lines_of(*command, cwd=None, check=True):
    return subprocess.run(command, cwd=cwd, check=check, capture_output=True, text=True).stdout.splitlines()


def linked_inputs(build, map_file):
    """Of a linker's map: files outside the build, and (archive or "", object) of the build."""
    outside, own = set(), set()
    with open(build / map_file, errors="replace") as lines:
        words = {line.split()[-1].partition(":(")[0] for line in lines if ".o" in line}
    for archive, member, plain in (match.groups() for word in words if (match := re.fullmatch(r"(.+\.a)\((.+)\)|(.+\.o)", word))):
        path = pathlib.Path(os.path.normpath(build / (archive or plain)))
        if build in path.parents:
            own.add((path, member or ""))
        else:
            outside.add(path)
    if not outside or not own:
        sys.exit(f"link_contents: {map_file} names no inputs: is it the map of a link?")
    return outside, own


def objects_of(build, own):
    """The objects of the build behind the members of its archives; relative to the build, as ninja names them."""
    objects = set()
    for path, member in own:
        relative = path.relative_to(build).as_posix()
        if not member:
            objects.add(relative)
            continue
        inputs = lines_of("ninja", "-t", "inputs", relative, cwd=build)
        found = {name for name in inputs if name.endswith(f"/{member}") or name == member}
        if not found:
            sys.exit(f"link_contents: {relative} has a member {member}, which ninja does not know")
        objects |= found
    return objects


def headers_of(build, source, objects):
    """What the compiler read for them outside of source and build."""
    headers = set()
    for line in lines_of("ninja", "-t", "deps", *sorted(objects), cwd=build):
        if line.startswith("    "):
            headers.add(line.strip())
        elif line and "#deps" not in line:
            sys.exit(f"link_contents: ninja has no list of headers: {line}")
    paths = (os.path.normpath(build / header) for header in headers)
    return {pathlib.Path(path) for path in paths if not path.startswith(f"{source}/") or "/site-packages/" in path}


def needed_libraries(build, program):
    """The files behind DT_NEEDED, where the loader finds them now."""
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", "\n".join(lines_of("readelf", "-d", program, cwd=build)))
    if not needed:
        return set()
    loaded = "\n".join(lines_of("ldd", program, cwd=build))
    found = dict(re.findall(r"(\S+) => (/\S*) \(", loaded))
    found |= {pathlib.Path(path).name: path for path in re.findall(r"^\s*(/\S+) \(", loaded, re.M)}  # the loader itself
    if missing := [name for name in needed if name not in found]:
        sys.exit(f"link_contents: {program} needs {missing}, which the loader does not find")
    return {pathlib.Path(found[name]) for name in needed if not found[name].startswith(f"{build}/")}


def debian_owners(paths):
    """path -> package, by dpkg; /lib may be a link to /usr/lib."""
    asked = {}
    for path in paths:
        real = os.path.realpath(path)
        for name in (str(path), real, real.removeprefix("/usr")):
            asked.setdefault(name, path)
    owners = {}
    names = sorted(asked)
    for begin in range(0, len(names), 500):
        for line in lines_of("dpkg", "-S", *names[begin:begin + 500], check=False):
            package, _, name = line.partition(": ")
            if name in asked and not line.startswith("diversion by"):
                owners[asked[name]] = package.split(",")[0]
    return owners


def debian_component(package):
    name, version, source, architecture = lines_of(
        "dpkg-query", "-W", "-f", "${Package}\t${Version}\t${source:Package}\t${Architecture}\n", package)[0].split("\t")
    return {"type": "library", "name": name, "version": version, "bom-ref": f"deb/{name}",
            "purl": f"pkg:deb/debian/{name}@{version.replace(':', '%3A').replace('+', '%2B')}?arch={architecture}",
            "properties": [{"name": "accel:source_package", "value": source}]}


def wheel_component(path):
    at = path.parts.index("site-packages") + 1
    folder, package = pathlib.Path(*path.parts[:at]), path.parts[at]
    info = next(iter(sorted(folder.glob(f"{package}-*.dist-info"))), None)
    if info is None:
        return None
    version = info.name.removesuffix(".dist-info").split("-")[1]
    return {"type": "library", "name": package, "version": version, "bom-ref": f"pypi/{package}",
            "purl": f"pkg:pypi/{package}@{version}", "properties": []}


def components_of(files):
    """files: kind -> paths. Gives the components, each with its kinds; and package -> copyright file."""
    owners = debian_owners({path for paths in files.values() for path in paths if "site-packages" not in path.parts})
    components, licenses = {}, {}
    for kind in KINDS:
        for path in sorted(files[kind]):
            if path in owners:
                key = owners[path]
                component = components.get(key) or debian_component(key)
            elif "site-packages" in path.parts and (component := wheel_component(path)):
                key = component["bom-ref"]
                component = components.get(key) or component
            else:
                sys.exit(f"link_contents: no package owns {path}, which is linked ({kind})")
            components[key] = component
            mark = {"name": "accel:linkage", "value": kind}
            if mark not in component["properties"]:
                component["properties"].append(mark)
            if kind != "headers" and len(path.suffix) > 1:
                file = {"name": "accel:file", "value": path.name}
                if file not in component["properties"]:
                    component["properties"].append(file)
            copyright_file = pathlib.Path("/usr/share/doc") / component["name"] / "copyright"
            if kind != "dynamic" and copyright_file.exists():
                licenses[component["name"]] = copyright_file
    return sorted(components.values(), key=lambda component: component["bom-ref"]), licenses


def bill(name, version, components, programs):
    when = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    own = f"accel/{name}"
    document = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"timestamp": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
                     "component": {"type": "application", "name": name, "version": version, "bom-ref": own,
                                   "licenses": [{"license": {"id": LICENSE}}],
                                   "components": [{"type": "file", "name": path.name.removesuffix("-static"), "bom-ref": f"file/{path.name}",
                                                   "hashes": [{"alg": "SHA-256",
                                                               "content": hashlib.sha256(path.read_bytes()).hexdigest()}]}
                                                  for path in programs]}},
        "components": components,
        "dependencies": [{"ref": own, "dependsOn": [component["bom-ref"] for component in components]}]}
    text = json.dumps(document, sort_keys=True)
    return {**document, "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--licenses", type=pathlib.Path)
    parser.add_argument("programs", nargs="+", metavar="PROGRAM=MAP")
    wanted = parser.parse_args()
    build = wanted.build.resolve()
    source = pathlib.Path(__file__).resolve().parents[2]
    files = {kind: set() for kind in KINDS}
    programs = []
    for program, _, map_file in (word.partition("=") for word in wanted.programs):
        outside, own = linked_inputs(build, map_file)
        files["static"] |= outside
        files["headers"] |= headers_of(build, source, objects_of(build, own))
        files["dynamic"] |= needed_libraries(build, program)
        programs.append(build / program)
    components, licenses = components_of(files)
    wanted.output.write_text(json.dumps(bill(wanted.name, wanted.version, components, programs), indent=1) + "\n")
    if wanted.licenses:
        wanted.licenses.mkdir(parents=True, exist_ok=True)
        for name, path in sorted(licenses.items()):
            shutil.copyfile(path, wanted.licenses / f"{name}.copyright")
    return 0


if __name__ == "__main__":
    sys.exit(main())
