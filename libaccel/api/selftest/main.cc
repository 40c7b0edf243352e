// accel-selftest: the program that `accel test` launches. Ends with 0 when every check passed on every rank.
//
//   accel-selftest [--fault CHECK:RANK]   that rank falsifies what this check sees: a test of the test

#include <cstdio>
#include <exception>
#include <string>

#include <accel/accelerator.h>
#include <accel/error.h>

#include "libaccel/api/selftest/self_test.h"

namespace {

using accel::selftest::Check;

bool is_faulty(const std::string& fault, const Check& check, int rank) {
  return fault == std::string(check.name) + ":" + std::to_string(rank);
}

int run_checks(const std::string& fault) {
  // What is compared to the bit is computed in full precision, whatever the set-up trains in.
  const accel::Accelerator accelerator({.mixed_precision = "no"});
  for (const Check& check : accel::selftest::checks()) {
    const int rank = accelerator.process_index();
    try {
      check.run({.accelerator = accelerator, .is_faulty = is_faulty(fault, check, rank)});
    } catch (const std::exception& error) {
      std::fprintf(stderr,
                   "accel-selftest: rank %d of %d: the check \"%s\" failed: %s\n",
                   rank,
                   accelerator.num_processes(),
                   check.name,
                   error.what());
      return 1;
    }
    accelerator.wait_for_everyone();
    accelerator.print("accel-selftest:", std::string(check.name) + ":", check.meaning);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool has_fault = argc == 3 && std::string(argv[1]) == "--fault";
  if (argc != 1 && !has_fault) {
    std::fprintf(stderr, "accel-selftest is started by `accel test`\n");
    return 2;
  }
  try {
    return run_checks(has_fault ? argv[2] : "");
  } catch (const accel::Error& error) {
    std::fprintf(stderr, "%s\n", error.render("accel-selftest").c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "accel-selftest: %s\n", error.what());
  }
  return 1;
}
