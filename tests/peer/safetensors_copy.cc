// What tests/peer/safetensors_interop.py drives: loads a file and saves it again, or saves tensors
// that the script knows.
//
//   safetensors_copy copy IN OUT     the tensors and metadata of IN
//   safetensors_copy make OUT        views, single values and empty tensors

#include <iostream>
#include <string_view>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <accel/error.h>
#include <accel/safetensors_file.h>

namespace st = accel::safetensors;

int main(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  try {
    if (command == "copy" && argc == 4) {
      st::save_file(st::load_file(argv[2]), argv[3], st::load_metadata(argv[2]));
    } else if (command == "make" && argc == 3) {
      const at::Tensor grid = at::arange(0, 24, at::kFloat).reshape({4, 6});
      st::save_file({{"transposed", grid.t()},
                     {"every second column", grid.slice(1, 0, 6, 2)},
                     {"row repeated", grid[1].expand({3, 6})},
                     {"half", grid.to(at::kBFloat16)},
                     {"single", grid[0][5].to(at::kLong)},
                     {"empty", at::empty({0, 3}, at::kInt)}},
                    argv[2],
                    {{"format", "pt"}});
    } else {
      std::cerr << "usage: safetensors_copy copy IN OUT | make OUT\n";
      return 2;
    }
  } catch (const accel::Error& error) {
    std::cerr << error.render("safetensors_copy") << "\n";
    return 1;
  }
  return 0;
}
