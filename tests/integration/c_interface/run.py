#!/usr/bin/env python3
"""The C interface: programs in C and Fortran, built by their own compilers, train what C++ trains, to the bit; on the ranks of
accel-launch and on those of MPI communicators under Open MPI. What docs/guides/c-interface.md shows is built and run."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from programs import BIN, BUILD, PATIENCE, SOURCE

HERE = pathlib.Path(__file__).resolve().parent
MODEL = SOURCE / "tests/unit/libaccel/exported/models/field.pt2"
HEADER = SOURCE / "libaccel/include/accel/c/accel.h"
MODULE = SOURCE / "libaccel/include/accel/c/accel.f90"
PAGE = SOURCE / "docs/guides/c-interface.md"
INCLUDES = ["-I", SOURCE / "libaccel/include", "-I", SOURCE / "runtime/include"]
LIBRARY = ["-L", BUILD / "libaccel", "-laccel", f"-Wl,-rpath,{BUILD}/libaccel", "-Wl,--unresolved-symbols=ignore-in-shared-libs", "-lm"]
C99 = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
F2018 = ["-std=f2018", "-Wall", "-Wextra", "-Werror"]
PACKAGES = {"gcc": "g++", "gfortran": "gfortran", "mpicc": "libopenmpi-dev", "mpifort": "libopenmpi-dev", "mpirun": "openmpi-bin"}
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}


def run(*command, code=0, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=ENVIRONMENT, **options)
    if done.returncode != code:
        raise AssertionError(f"{' '.join(map(str, command))}\nended with {done.returncode}, not {code}:\n{done.stdout}{done.stderr}")
    return done


def mpirun(ranks, *command, **options):
    return run("mpirun", "--oversubscribe", "-np", str(ranks), *command, **options)


def launched(ranks, *command):
    return run(BIN / "accel-launch", "--cpu", "--num_processes", str(ranks), *command)


def lines(done):
    return done.stdout.lower().splitlines()


def blocks_of_page():
    return dict(re.findall(r"^```(c|fortran)\n(.*?)^```", PAGE.read_text(), re.S | re.M))


class CInterface(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        missing = [f"{program} (package {package})" for program, package in PACKAGES.items() if not shutil.which(program)]
        if missing:
            raise AssertionError(f"not installed: {', '.join(missing)}; run scripts/setup.sh --tests")
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = pathlib.Path(scratch.name)
        cls.c = cls.compile_c("trainer", "gcc")
        cls.c_mpi = cls.compile_c("trainer", "mpicc", "-DACCEL_TEST_MPI", name="mpi_trainer")
        cls.fortran = cls.compile_fortran(HERE / "trainer.f90", "fortran_trainer")
        cls.cxx = BUILD / "tests/c_interface_reference"

    @classmethod
    def compile_c(cls, source, compiler, *flags, name=None):
        program = cls.folder / (name or source)
        run(compiler, *C99, *flags, *INCLUDES, HERE / f"{source}.c", "-o", program, *LIBRARY)
        return program

    @classmethod
    def compile_fortran(cls, source, name):
        program = cls.folder / name
        modules = cls.folder / f"{name}_modules"
        modules.mkdir()
        run("mpifort", *F2018, MODULE, source, "-o", program, *LIBRARY, cwd=modules)
        return program

    def own_folder(self):
        return pathlib.Path(tempfile.mkdtemp(dir=self.folder))

    # --- the same bits

    def check_one_rank(self, *flags):
        expected = lines(run(self.cxx, MODEL, "0", "6", *flags))
        self.assertEqual(len(expected), 6)
        self.assertEqual(lines(run(self.c, MODEL, "0", "6", *flags)), expected)

    def test_one_rank_trains_as_in_cxx(self):
        self.check_one_rank()

    def test_every_optimizer_and_schedule_is_that_of_cxx(self):
        for flags in (["--optimizer", "sgd"], ["--optimizer", "adam", "--schedule", "cosine"], ["--schedule", "linear"]):
            with self.subTest(flags=flags):
                self.check_one_rank(*flags)

    def test_accumulation_and_precision_are_those_of_cxx(self):
        self.check_one_rank("--accumulate", "2", "--schedule", "cosine")
        self.check_one_rank("--precision", "bf16")

    def test_two_ranks_of_accel_launch_train_as_in_cxx(self):
        for strategy in ("ddp", "zero1", "zero2", "full_shard"):
            with self.subTest(strategy=strategy):
                flags = ["--strategy", strategy, "--schedule", "cosine"]
                expected = lines(launched(2, self.cxx, MODEL, "0", "4", *flags))
                self.assertEqual(len(expected), 4)
                self.assertEqual(lines(launched(2, self.c, MODEL, "0", "4", *flags)), expected)

    def test_derivatives_by_inputs_are_there_whatever_is_divided(self):
        expected = lines(launched(2, self.c, MODEL, "0", "2", "--adjoint", "yes"))
        self.assertEqual(sum(line.startswith("slope of") for line in expected), 2)
        for strategy in ("zero1", "full_shard"):
            with self.subTest(strategy=strategy):
                self.assertEqual(sorted(lines(launched(2, self.c, MODEL, "0", "2", "--adjoint", "yes", "--strategy", strategy))),
                                 sorted(expected))

    # --- the ranks of MPI

    def test_an_mpi_communicator_in_c_and_fortran_trains_as_under_accel_launch(self):
        for flags in ([], ["--strategy", "full_shard", "--schedule", "cosine"]):
            with self.subTest(flags=flags):
                expected = lines(launched(2, self.c, MODEL, "0", "4", *flags))
                self.assertEqual(len(expected), 4)
                self.assertEqual(lines(mpirun(2, self.c_mpi, MODEL, "0", "4", *flags)), expected)
                self.assertEqual(lines(mpirun(2, self.fortran, MODEL, "0", "4", *flags)), expected)

    def test_ranks_of_an_mpi_communicator_that_share_no_node_train_the_same(self):
        for strategy in ("ddp", "full_shard"):
            with self.subTest(strategy=strategy):
                done = mpirun(2, self.c_mpi, MODEL, "0", "3", "--strategy", strategy, "--apart", "yes")
                self.assertIn("goes through gloo", done.stderr)
                self.assertEqual(lines(done), lines(launched(2, self.c, MODEL, "0", "3", "--strategy", strategy)))

    def test_parts_of_a_communicator_train_each_for_itself(self):
        expected = lines(launched(2, self.c, MODEL, "0", "3"))
        for program in (self.c_mpi, self.fortran):
            self.assertEqual(sorted(lines(mpirun(4, program, MODEL, "0", "3", "--split", "2"))), sorted(2 * expected))

    def test_the_death_of_a_rank_is_told_to_the_others(self):
        # mpirun leaves rank 0 alone, and calls it good.
        done = mpirun(2, "--mca", "orte_enable_recovery", "1", self.c_mpi, MODEL, "0", "6", "--die", "2")
        self.assertRegex(done.stderr, r"error \[rank\.peer_lost\].* rank 1 \(process \d+\) has died")

    # --- checkpoints

    def test_a_run_that_was_saved_goes_on_with_the_same_bits(self):
        for ranks, flags in ((1, []), (2, ["--strategy", "full_shard"])):
            with self.subTest(ranks=ranks):
                folder = self.own_folder() / "saved"
                whole = lines(launched(ranks, self.c, MODEL, "0", "5", *flags))
                first = lines(launched(ranks, self.c, MODEL, "0", "3", *flags, "--save", folder))
                # The registered array says where to go on: the step that is given would be another one.
                rest = lines(launched(ranks, self.c, MODEL, "1", "5", *flags, "--load", folder))
                self.assertEqual(first + rest, whole)

    def test_what_accel_launch_saved_goes_on_in_fortran_under_mpi(self):
        folder = self.own_folder() / "saved"
        whole = lines(launched(2, self.c, MODEL, "0", "5"))
        launched(2, self.c, MODEL, "0", "3", "--save", folder)
        rest = lines(mpirun(2, self.fortran, MODEL, "0", "5", "--load", folder, "--model", self.own_folder()))
        self.assertEqual(rest, whole[3:])

    # --- the interface

    def test_mistakes_have_codes_and_words(self):
        run(self.compile_c("faults", "gcc"), MODEL, self.own_folder())

    def test_pieces_of_a_step_are_the_step(self):
        folder = self.own_folder()
        run(self.compile_c("pieces", "gcc"), MODEL, folder)
        self.assertTrue((folder / "model.safetensors").is_file())

    def test_the_header_is_c99_and_cxx(self):
        source = self.own_folder() / "header.c"
        source.write_text("#include <accel/c/accel.h>\n#include <accel/c/accel.h>\n")
        for language in (["-x", "c", "-std=c99", "-Wstrict-prototypes"], ["-x", "c", "-std=c17"], ["-x", "c++", "-std=c++98", "-Wno-long-long"]):
            run("gcc", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *language, *INCLUDES, source)

    def test_fortran_has_the_numbers_and_functions_of_c(self):
        header, module = HEADER.read_text(), MODULE.read_text()
        numbers = {name.lower(): number for name, number in re.findall(r"^\s+(ACCEL_\w+) = (-?\d+)", header, re.M)}
        numbers |= {name.lower(): number for name, number in re.findall(r"(ACCEL_(?:SUM|MEAN|MAX)) = (\d)", header)}
        self.assertGreater(len(numbers), 70)
        in_fortran = {name: number for name, number in re.findall(r"(accel_\w+) = (-?\d+)", module)}
        self.assertEqual({name: in_fortran.get(name) for name in numbers}, numbers)
        functions = set(re.findall(r"^ACCEL_EXPORT [\w* ]+?(accel_\w+)\(", header, re.M))
        bound = set(re.findall(r'bind\(c, name="(accel_\w+)"\)', module))
        # What Fortran needs in another form, or not at all: texts that live in C, memory that is borrowed, the version.
        self.assertEqual(functions - bound, {"accel_version", "accel_input_name", "accel_output_name", "accel_get_output"})
        exported = run("nm", "-D", "--defined-only", BUILD / "libaccel/libaccel.so").stdout
        self.assertEqual(functions - set(re.findall(r" T (accel_\w+)$", exported, re.M)), set())

    # --- the page

    def test_the_programs_of_the_page_run(self):
        folder = self.own_folder()
        shutil.copy(MODEL, folder / "field.pt2")
        blocks = blocks_of_page()
        (folder / "train.c").write_text(blocks["c"])
        (folder / "train.f90").write_text(blocks["fortran"])
        run("gcc", *C99, *INCLUDES, "train.c", "-o", "train", *LIBRARY, cwd=folder)
        run("mpifort", *F2018, MODULE, "train.f90", "-o", "train_mpi", *LIBRARY, cwd=folder)
        for done in (run("./train", cwd=folder), mpirun(2, "./train_mpi", cwd=folder)):
            self.assertRegex(done.stdout, r"^step 99 loss 0\.\d+\n\Z")
        self.assertTrue((folder / "trained/model.safetensors").is_file())


if __name__ == "__main__":
    unittest.main()
