// launching_trainer: launches ranks that meet through an Accelerator, after and around other uses of LibTorch; run by
// tests/integration/inproc/run.py where there is LibTorch.
//
//   launching_trainer early|registered    ends with 0, or with words on stdout and 1

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include <torch/torch.h>

#include <accel/accelerator.h>
#include <accel/launchers.h>

namespace {

void sum_ranks() {
  const accel::Accelerator accelerator;
  const auto sum = accelerator.reduce(torch::full({1000}, accelerator.process_index() + 1.0));
  const int ranks = accelerator.num_processes();
  const double wanted = ranks * (ranks + 1) / 2.0;
  if (!sum.eq(wanted).all().item<bool>())
    throw std::runtime_error("the sum over the ranks is wrong");
  // Threads of LibTorch must work in a copy of the program.
  const auto product = torch::ones({300, 300}).mm(torch::ones({300, 300}));
  if (product[0][0].item<float>() != 300.0F) throw std::runtime_error("the product is wrong");
  accelerator.print("sum", wanted, "of", ranks, "on", accelerator.state().backend());
}

ACCEL_LAUNCH_FUNCTION(sum_ranks);

void use_libtorch_here() {
  auto weight = torch::ones({300, 300}, torch::requires_grad());
  weight.mm(weight).sum().backward();
}

bool is_refused_beside_an_accelerator() {
  const accel::Accelerator accelerator;
  try {
    accel::debug_launcher(sum_ranks, 2);
  } catch (const accel::Error& error) {
    std::printf("%s\n", error.what());
    return error.code() == accel::ErrorCode::kUsage;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "early") accel::init_launcher(argc, argv);
  try {
    use_libtorch_here();
    for (const int ranks : {2, 3}) accel::debug_launcher(sum_ranks, ranks);
    accel::notebook_launcher(
        sum_ranks, {.num_processes = 2, .use_port = "0", .env = {{"ACCELERATE_USE_CPU", "yes"}}});
    if (!is_refused_beside_an_accelerator())
      throw std::runtime_error("a launch beside an Accelerator was not refused");
    accel::PartialState::reset();
    accel::debug_launcher(sum_ranks, 1);
    std::printf("done\n");
    return 0;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
