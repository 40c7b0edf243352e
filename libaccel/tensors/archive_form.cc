#include "libaccel/tensors/archive_form.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace accel {
namespace {

using torch::optim::Optimizer;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

// Takes the states out of an optimizer for as long as it lives.
struct StatesAside {
  explicit StatesAside(Optimizer& from) : optimizer(from) { std::swap(states, optimizer.state()); }
  ~StatesAside() { std::swap(states, optimizer.state()); }
  StatesAside(const StatesAside&) = delete;
  StatesAside& operator=(const StatesAside&) = delete;
  Optimizer& optimizer;
  std::remove_reference_t<decltype(optimizer.state())> states;
};

bool has_states_and_groups(InputArchive& read, std::ptrdiff_t num_groups) {
  InputArchive groups;
  InputArchive states;
  at::Tensor size;
  return read.try_read("state", states) && read.try_read("param_groups", groups) &&
         groups.try_read("param_groups/size", size) && size.item<std::int64_t>() == num_groups;
}

}  // namespace

InputArchive written(OutputArchive& archive) {
  std::ostringstream out(std::ios::binary);
  archive.save_to(out);
  const std::string bytes = std::move(out).str();
  InputArchive read;
  read.load_from(bytes.data(), bytes.size());
  return read;
}

std::optional<std::string> why_unusual(Optimizer& optimizer) {
  constexpr std::array<std::string_view, 3> kUsual = {"pytorch_version", "state", "param_groups"};
  const StatesAside aside(optimizer);
  OutputArchive archive;
  try {
    optimizer.save(archive);
  } catch (const c10::Error& error) {
    return std::string("its save() fails: ") + error.what_without_backtrace();
  }
  InputArchive read = written(archive);
  if (!has_states_and_groups(read, std::ssize(optimizer.param_groups())))
    return "its save() does not write its states and groups";
  for (const std::string& key : read.keys()) {
    if (std::find(kUsual.begin(), kUsual.end(), key) == kUsual.end())
      return "its save() also writes " + key;
  }
  return std::nullopt;
}

}  // namespace accel
