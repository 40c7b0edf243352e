#!/usr/bin/env python3
"""What scripts/package.sh makes is installed as a user does it, outside of the sources, and used: the wheel in a fresh virtual
environment, the RPM in a root of its own, the tarball in another folder by a project that only knows find_package(accel); wheel, Debian package
and tarball also on a bare Debian (bare_debian.py), which has what they say that they need and nothing else.

The packages are of the programs of this build; nothing is compiled here but one small program against the tarball.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from bare_debian import BareDebian, cannot_be_made  # noqa: E402
from programs import free_port  # noqa: E402

SOURCE = pathlib.Path(os.environ["ACCEL_SOURCE_DIR"])
BUILD = pathlib.Path(os.environ["ACCEL_BUILD_DIR"])
TORCH = next(iter(sorted((SOURCE / ".deps/torch").glob("lib/python3*/site-packages/torch"))), None)
ENVIRONMENT = TORCH.parents[3] if TORCH else None
HAS_LIBRARY = (BUILD / "libaccel/libaccel.so").exists()
PYTHON = "python3, python3-venv, libstdc++6"  # what the wheel and the tarball ask of a Debian, in the words of its packages
OLDEST_GLIBC = (2, 28)  # what the tag of the wheel promises
# Of C programs themselves, and LibTorch's: the tarball must bring everything else along.
PRESENT = r"(linux-vdso|ld-linux-x86-64|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s))\.so"

SCRIPT = """import os, sys
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", flush=True)
if "--fail" in sys.argv and os.environ["RANK"] == "1":
    raise ValueError("no such tensor: decoder.weight")
"""


def run(*command, **options):
    """The whole output must be there when something fails: it is the only evidence."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def package(folder, *kinds):
    """kind -> file. The time of the packages is not that of now, nor of the commit."""
    environment = os.environ | {"ACCEL_DIST_DIR": str(folder), "SOURCE_DATE_EPOCH": "1700000000"}
    run(SOURCE / "scripts/package.sh", "--no-build", *kinds, env=environment)
    suffixes = {"wheel": "*.whl", "rpm": "*.rpm", "deb": "*.deb", "tarball": "*.tar.gz"}
    return {kind: next(folder.glob(suffixes[kind])) for kind in kinds}


def glibc_versions(program):
    """The versions of the C library (and of those of GCC) that a program or library asks for."""
    text = run("readelf", "--version-info", "--wide", program)
    needs = text.partition("Version needs section")[2]
    return {(name, tuple(map(int, version.split("."))))
            for name, version in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)", needs)}


def plain_environment():
    """Of a user who knows nothing of the sources or the build."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8", "HF_HOME": "/nowhere"}


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory(prefix="accel packages ")  # with a space: users have such folders
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = pathlib.Path(scratch.name)
        kinds = ["wheel"]
        kinds += ["rpm"] if shutil.which("rpmbuild") else []
        kinds += ["deb"] if (BUILD / "maps/accel-agent.map").exists() else []
        kinds += ["tarball"] if HAS_LIBRARY else []
        cls.kinds = kinds
        cls.systems = {}
        cls.packages = package(cls.folder / "dist", *kinds)
        cls.script = cls.folder / "train.py"
        cls.script.write_text(SCRIPT)

    def bill(self, kind):
        document = json.loads(pathlib.Path(f"{self.packages[kind]}.cdx.json").read_text())
        linkage = {component["name"]: {entry["value"] for entry in component["properties"] if entry["name"] == "accel:linkage"}
                   for component in document["components"]}
        return document, linkage

    def check_launcher(self, bin_folder):
        """A launch, and one whose rank 1 fails."""
        out = run(bin_folder / "accel-launch", "--cpu", "--num_processes", "2", self.script, cwd=self.folder, env=plain_environment())
        self.assertEqual(sorted(out.splitlines()), ["rank 0 of 2", "rank 1 of 2"])
        failed = subprocess.run([bin_folder / "accel-torchrun", "--nproc-per-node", "2", self.script, "--fail"], cwd=self.folder,
                                env=plain_environment(), capture_output=True, text=True, timeout=60)
        self.assertEqual(failed.returncode, 1, failed.stderr)
        self.assertRegex(failed.stderr, r"accel-torchrun: error \[[\w.]+\].*rank 1")
        self.assertIn("ValueError: no such tensor: decoder.weight", failed.stderr)

    def test_packaging_twice_gives_the_same_bytes(self):
        again = package(self.folder / "again", *self.kinds)

        for kind, path in self.packages.items():
            for suffix in ("", ".cdx.json"):
                first, second = (pathlib.Path(f"{each}{suffix}").read_bytes() for each in (path, again[kind]))
                self.assertTrue(first == second, f"{path.name}{suffix} differs: {len(first)} and {len(second)} bytes")
        for line in (self.folder / "dist/SHA256SUMS").read_text().splitlines():
            digest, name = line.split()
            self.assertEqual(digest, hashlib.sha256((self.folder / "dist" / name).read_bytes()).hexdigest())

    def test_the_wheel_installs_and_launches_outside_of_the_sources(self):
        environment = self.folder / "environment"
        run("/usr/bin/python3", "-m", "venv", environment)
        run(environment / "bin/pip", "install", "--no-index", "--quiet", self.packages["wheel"])

        self.check_launcher(environment / "bin")

        programs = [path for path in (environment / "bin").glob("accel*") if path.read_bytes()[:4] == b"\x7fELF"]
        self.assertEqual({path.name for path in programs}, {"accel", "accel-launch", "accel-shim", "accel-torchrun"})
        for path in programs:
            self.assertNotRegex(run("readelf", "--program-headers", path), "INTERP|NEEDED", "it is to load no library")
            for name, version in glibc_versions(path):
                self.assertLessEqual((name, version), ("GLIBC", OLDEST_GLIBC), f"{path.name} asks for {name} {version}")
        self.assertIn("Usage: accel config", run(environment / "bin/accel-config", "--help"))
        self.assertIn("Usage: accel run", run(environment / "bin/accel", "run", "--help"))
        self.assertNotIn(str(SOURCE), run("strings", environment / "bin/accel-launch"))
        run(environment / "bin/pip", "uninstall", "--quiet", "--yes", "accel-launch")
        self.assertEqual(list((environment / "bin").glob("accel*")), [])

    def test_versions_of_the_c_library_are_found_where_there_are_some(self):
        newest = max(version for name, version in glibc_versions(BUILD / "bin/accel-launch") if name == "GLIBC")
        self.assertGreater(newest, OLDEST_GLIBC)  # Debian 12's own: the check of the wheel would see it

    def test_the_wheel_says_what_it_lacks_and_looks_names_up(self):
        root = self.folder / "unpacked"
        with zipfile.ZipFile(self.packages["wheel"]) as archive:
            for entry in archive.infolist():
                path = pathlib.Path(archive.extract(entry, root))
                path.chmod(entry.external_attr >> 16)
        programs = next(root.glob("*.data/scripts"))
        token = self.folder / "token"
        token.write_text("0" * 64)
        token.chmod(0o600)
        cases = [
            (["accel", "status"], 71, ["cluster.missing", "without its part for agents", "docs/admin/install.md"]),
            (["accel", "top"], 71, ["cluster.missing", "without its part for agents", "docs/admin/install.md"]),
            (["accel-launch", "--nnodes", "1:2", "--rdzv_endpoint", "127.0.0.1:1", "--rdzv_token_file", token, "--rdzv_insecure", self.script], 71,
             ["cluster.missing", "elastic jobs", "--main_process_ip"]),
            (["accel", "test"], 1, ["unsupported", "libaccel"]),
        ]
        for (program, *arguments), status, parts in cases:
            done = subprocess.run([programs / program, *arguments], env=plain_environment(), capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, status, done.stderr)
            for part in parts:
                self.assertIn(part, done.stderr)

        # Two machines that are this one; the main one by a name that the system's name service alone knows: here a getent of ours.
        services = self.folder / "services"
        services.mkdir()
        (services / "getent").write_text('#!/bin/sh\n[ "$1 $2" = "ahosts main-machine.invalid" ] || exit 2\n'
                                         "echo '127.0.0.1       STREAM main-machine.invalid'\n")
        (services / "getent").chmod(0o755)
        environment = plain_environment()
        environment["PATH"] = f"{services}:{environment['PATH']}"
        command = [programs / "accel-launch", "--cpu", "--num_machines", "2", "--num_processes", "2", "--main_process_ip", "main-machine.invalid",
                   "--main_process_port", str(free_port())]
        machines = [subprocess.Popen([*command, "--machine_rank", str(rank), self.script], env=environment, cwd=self.folder,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in (0, 1)]
        for machine in machines:
            self.addCleanup(machine.kill)
        for rank, machine in enumerate(machines):
            out, err = machine.communicate(timeout=60)
            self.assertEqual((machine.returncode, out), (0, f"rank {rank} of 2\n"), err)

    def test_the_lists_name_what_is_linked(self):
        for kind in self.kinds:
            document, linkage = self.bill(kind)
            self.assertEqual((document["bomFormat"], document["specVersion"]), ("CycloneDX", "1.5"))
            self.assertEqual(document["metadata"]["timestamp"], "2023-11-14T22:13:20Z")
            self.assertEqual(len({component["bom-ref"] for component in document["components"]}), len(document["components"]))
            self.assertIn("headers", linkage["libboost1.81-dev"])
            if kind in ("wheel", "rpm"):
                for name in ("libc6-dev", "libhwloc-dev", "libstdc++-12-dev", "libyaml-cpp-dev"):
                    self.assertIn("static", linkage[name])
                self.assertFalse([name for name, kinds in linkage.items() if "dynamic" in kinds])
            if kind == "deb":
                self.assertIn("dynamic", linkage["libgrpc++1.51"])
            if kind == "tarball":
                self.assertLessEqual({"headers", "dynamic"}, linkage["torch"])
        programs = {entry["name"]: entry["hashes"][0]["content"] for entry in self.bill("wheel")[0]["metadata"]["component"]["components"]}
        self.assertEqual(programs["accel-launch"], hashlib.sha256((BUILD / "static/accel-launch-static").read_bytes()).hexdigest())

    def test_the_wheel_holds_the_licences_of_what_is_linked(self):
        with zipfile.ZipFile(self.packages["wheel"]) as archive:
            names = {pathlib.Path(name).name for name in archive.namelist() if "/licenses/" in name}
        self.assertLessEqual({"LICENSE", "NOTICE", "libc6-dev.copyright", "libhwloc-dev.copyright", "libyaml-cpp-dev.copyright",
                              "libboost1.81-dev.copyright", "libcli11-dev.copyright", "nlohmann-json3-dev.copyright"}, names)

    def test_the_container_files_name_what_there_is(self):
        """Nothing here runs containers: what they copy, what they install and the form of their lines are compared."""
        files = sorted((SOURCE / "deploy/containers").glob("*.Dockerfile"))
        self.assertEqual([path.name for path in files], ["cpu.Dockerfile", "cuda.Dockerfile"])
        wheels = re.search(r"^ACCEL_TORCH_WHEELS=\((.*)\)", (SOURCE / "scripts/packages.sh").read_text(), re.M).group(1).split()
        for path in files:
            text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.M).replace("\\\n", "")
            lines = [line.split(maxsplit=1) for line in text.splitlines() if line]
            self.assertEqual(lines[0], ["FROM", "debian:12-slim"])
            for instruction, rest in lines:
                self.assertIn(instruction, ("FROM", "RUN", "ENV", "COPY", "WORKDIR", "CMD"))
                if instruction == "RUN":
                    run("sh", "-n", "-c", rest)
                if instruction == "COPY" and "tarball" in self.packages:
                    for pattern in rest.split()[:-1]:
                        self.assertEqual(len(list(self.packages["wheel"].parent.glob(pattern))), 1, pattern)
            for wheel in re.findall(r"[\w-]+==[\d.]+", text):
                self.assertIn(wheel, wheels)

    def test_the_rpm_installs_and_launches(self):
        if "rpm" not in self.packages or os.geteuid() != 0:
            self.skipTest("rpmbuild is not here, or this is not root")
        root = self.folder / "rpm root"
        run("rpm", "--root", root, "--dbpath", "/rpmdb", "--nodeps", "--install", self.packages["rpm"])
        self.check_launcher(root / "usr/bin")
        self.assertTrue((root / "usr/share/bash-completion/completions/accel-config").exists())
        run("rpm", "--root", root, "--dbpath", "/rpmdb", "--erase", "accel-launch")
        self.assertEqual(list((root / "usr/bin").glob("accel*")), [])

    def test_the_tarball_serves_a_project_elsewhere(self):
        if "tarball" not in self.packages:
            self.skipTest("this build has no libaccel")
        run("tar", "-C", self.folder, "-xf", self.packages["tarball"])
        root = next(self.folder.glob("accel-*-torch*"))
        libraries = [*root.glob("lib/*.so"), *root.glob("lib/accel/*.so*"), *root.glob("libexec/accel/accel-*")]
        for path in libraries:
            dynamic = run("readelf", "-d", path)
            self.assertNotIn(str(SOURCE), dynamic)
            for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
                is_there = re.match(PRESENT, name) or name in ("libtorch_cpu.so", "libc10.so")
                self.assertTrue(is_there or (root / "lib/accel" / name).exists() or (root / "lib" / name).exists(),
                                f"{path.name} needs {name}, which the tarball lacks")

        environment = plain_environment() | {"ACCEL_TORCH_ROOT": str(TORCH)}
        run("cmake", "-S", SOURCE / "examples/standalone", "-B", self.folder / "standalone", "-G", "Ninja",
            f"-DCMAKE_PREFIX_PATH={root}", "-DCMAKE_CXX_FLAGS=-O0", env=environment)
        run("cmake", "--build", self.folder / "standalone", env=environment)
        out = run(root / "bin/accel-launch", "--cpu", "--num_processes", "2", self.folder / "standalone/train", env=plain_environment())
        self.check_headers(root, self.folder / "standalone")
        values = dict(re.findall(r"(processes|slope|offset) (\S+)", out))
        self.assertEqual(values["processes"], "2")
        self.assertAlmostEqual(float(values["slope"]), 2, delta=0.05)
        self.assertAlmostEqual(float(values["offset"]), 1, delta=0.05)

        # Without find_package(accel) nobody has told libaccel where LibTorch is.
        out = run(root / "libexec/accel/link-torch", ENVIRONMENT / "bin/python", env=plain_environment())
        self.assertEqual(out.strip(), str((TORCH / "lib").resolve()))
        run(root / "bin/accel", "test", env=plain_environment())
        flags = run("pkg-config", "--libs", "accel", env=plain_environment() | {"PKG_CONFIG_PATH": str(root / "lib/pkgconfig")})
        self.assertIn(f"-L{root}".replace(" ", "\\ "), flags)

    def check_headers(self, root, build):
        """A project includes nothing but what the tarball, LibTorch and a compiler bring: no header of this machine's other packages."""
        places = {line.strip() for line in run("ninja", "-C", build, "-t", "deps").splitlines() if line.startswith("    ")}
        self.assertTrue(places)
        ours = [f"{one.resolve()}/" for one in (root, TORCH, SOURCE / "examples/standalone")]
        others = {str((build / place).resolve()) for place in places if not str((build / place).resolve()).startswith(tuple(ours))}
        owners = {name for line in run("dpkg-query", "--search", *sorted(others)).splitlines() for name in line.split(":")[0].split(", ")}
        self.assertLessEqual(owners, {"libc6-dev", "libgcc-12-dev", "libstdc++-12-dev", "linux-libc-dev"})

    def bare(self, dependencies):
        """A bare Debian with these dependencies, shared by the tests that ask for the same. It has the packages and the Python with LibTorch."""
        if cannot_be_made():
            self.skipTest(cannot_be_made())
        if dependencies not in self.systems:
            mounts = {"/packages": self.packages["wheel"].parent} | ({str(ENVIRONMENT): ENVIRONMENT} if HAS_LIBRARY else {})
            system = BareDebian(self.folder / "bare" / str(len(self.systems)), dependencies, mounts)
            (system.root / "root/train.py").write_text(SCRIPT)
            self.systems[dependencies] = system
        return self.systems[dependencies]

    def check_launcher_of(self, system, folder):
        """As check_launcher()."""
        out = system.run(f"{folder}/accel-launch", "--cpu", "--num_processes", "2", "train.py")
        self.assertEqual(sorted(out.splitlines()), ["rank 0 of 2", "rank 1 of 2"])
        failed = system.run(f"{folder}/accel-torchrun", "--nproc-per-node", "2", "train.py", "--fail", status=1)
        self.assertIn("ValueError: no such tensor: decoder.weight", failed)

    def test_the_wheel_is_installed_on_a_bare_debian(self):
        system = self.bare(PYTHON)
        system.run("python3", "-m", "venv", "accel")
        system.run("sh", "-c", "accel/bin/pip install --no-index --quiet /packages/*.whl")
        self.check_launcher_of(system, "/root/accel/bin")

    def test_the_debian_package_needs_no_more_than_it_says(self):
        if "deb" not in self.packages:
            self.skipTest("this build has no agent")
        system = self.bare(run("dpkg-deb", "--field", self.packages["deb"], "Depends") + ", python3")
        system.run("dpkg", "--install", f"/packages/{self.packages['deb'].name}")
        self.check_launcher_of(system, "/usr/bin")
        system.run("accel-agent", "--check", "--config", "/etc/accel/agent.yaml")
        self.assertIn("Usage: accel run", system.run("accel", "run", "--help"))
        system.run("dpkg", "--purge", "accel")
        self.assertEqual(list((system.root / "usr/bin").glob("accel*")), [])

    def test_the_tarball_trains_on_a_bare_debian(self):
        if "tarball" not in self.packages:
            self.skipTest("this build has no libaccel")
        system = self.bare(PYTHON)
        (system.root / "opt/accel").mkdir(parents=True)
        run("tar", "-C", system.root / "opt/accel", "--strip-components=1", "-xf", self.packages["tarball"])
        system.run("/opt/accel/libexec/accel/link-torch", ENVIRONMENT / "bin/python")
        self.assertIn("Test is a success!", system.run("/opt/accel/bin/accel", "test"))


if __name__ == "__main__":
    if not (BUILD / "static/accel-launch-static").exists():
        print("skipped: this build has no static programs (a sanitizer's, or without libhwloc.a and libyaml-cpp.a)")
        sys.exit(77)
    unittest.main(verbosity=2)
