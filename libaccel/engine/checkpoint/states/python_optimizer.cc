#include "libaccel/engine/checkpoint/states/python_optimizer.h"

#include <charconv>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <accel/error.h>

#include "checkpoint_tools/merge/distcp_files.h"
#include "libaccel/engine/checkpoint/files/distcp_parts.h"
#include "libaccel/engine/checkpoint/files/tensor_file.h"
#include "runtime/printable.h"

namespace accel::checkpoint {
namespace {

using launcher::Pickle;
using launcher::PickleNode;

constexpr std::string_view kGroups = "param_groups";
constexpr std::string_view kStates = "state";
constexpr std::size_t kMostGroups = 1 << 16;

// The values of groups in one pickle. A learning rate may be a tensor, which only the file can read.
class GroupReading {
 public:
  using NumberOf = std::function<std::optional<double>(PickleNode)>;

  GroupReading(const std::filesystem::path& path, const Pickle& pickle, NumberOf number_of_tensor)
      : path_(path), pickle_(pickle), number_of_tensor_(std::move(number_of_tensor)) {}

  std::vector<PythonOptimizer::Group> groups(PickleNode list) const {
    const auto nodes = pickle_.sequence(list);
    if (!nodes) fail("has a " + std::string(kGroups) + " that is no list");
    std::vector<PythonOptimizer::Group> groups;
    for (const PickleNode node : *nodes) {
      const auto entries = pickle_.entries(node);
      if (!entries) fail("has a parameter group that is no dict");
      PythonOptimizer::Group& group = groups.emplace_back();
      for (std::size_t i = 0; i + 1 < entries->size(); i += 2)
        if (const auto key = pickle_.text((*entries)[i]))
          add(group, std::string(*key), (*entries)[i + 1]);
    }
    return groups;
  }

  void add(PythonOptimizer::Group& group, const std::string& key, PickleNode node) const {
    if (key == "params")
      group.params = params(node);
    else
      group.options.insert_or_assign(key, option(node));
  }

  [[nodiscard]] std::optional<double> number(PickleNode node) const {
    if (const auto whole = pickle_.integer(node)) return static_cast<double>(*whole);
    if (const auto real = pickle_.real(node)) return *real;
    return number_of_tensor_(node);
  }

  [[nodiscard]] std::optional<PythonOptimizer::Parameter> parameter(PickleNode node) const {
    if (const auto number = pickle_.integer(node)) return *number;
    if (const auto name = pickle_.text(node)) return std::string(*name);
    return std::nullopt;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw_optimizer_mismatch(path_, what); }

  std::vector<PythonOptimizer::Parameter> params(PickleNode node) const {
    const auto items = pickle_.sequence(node);
    if (!items) fail("has params that are no list");
    std::vector<PythonOptimizer::Parameter> params;
    for (const PickleNode item : *items) {
      auto named = parameter(item);
      if (!named) fail("calls a parameter by something else than a number or a name");
      params.push_back(*std::move(named));
    }
    return params;
  }

  [[nodiscard]] PythonOptimizer::Option option(PickleNode node) const {
    if (const auto flag = pickle_.boolean(node)) return *flag;
    if (const auto value = number(node)) return *value;
    const auto items = pickle_.sequence(node);
    if (!items) return {};
    std::vector<double> numbers;
    for (const PickleNode item : *items) {
      const auto value = number(item);
      if (!value) return {};
      numbers.push_back(*value);
    }
    return numbers;
  }

  const std::filesystem::path& path_;
  const Pickle& pickle_;
  NumberOf number_of_tensor_;
};

std::optional<double> only_number(const at::Tensor& tensor) {
  return tensor.numel() == 1 ? std::optional(tensor.item<double>()) : std::nullopt;
}

void read_fields(PythonFile& file,
                 const GroupReading& reading,
                 PickleNode state,
                 std::map<std::string, PythonOptimizer::Field>& fields) {
  const Pickle& pickle = file.pickle();
  const auto entries = pickle.entries(state);
  if (!entries) throw_optimizer_mismatch(file.path(), "has a state of a parameter that is no dict");
  for (std::size_t i = 0; i + 1 < entries->size(); i += 2) {
    const auto key = pickle.text((*entries)[i]);
    const PickleNode value = (*entries)[i + 1];
    if (!key) continue;
    if (file.is_tensor(value))
      fields.insert_or_assign(std::string(*key), file.tensor(value));
    else if (const auto number = reading.number(value))
      fields.insert_or_assign(std::string(*key), *number);
  }
}

// ---- folders

// Without the key under which Accelerate saves the dict.
std::span<const std::string> within_optimizer(const launcher::DistcpPath& path) {
  const std::span<const std::string> all(path);
  return path.front() == "optimizer" ? all.subspan(1) : all;
}

class FolderReading {
 public:
  FolderReading(const std::filesystem::path& folder, const launcher::DistcpMetadata& metadata)
      : folder_(folder), metadata_(metadata) {
    optimizer_.path = folder;
  }

  PythonOptimizer run() {
    read_single_values();
    for (std::size_t i = 0; i < metadata_.tensors.size(); ++i) add_tensor(i);
    launcher::visit_distcp_values(
        folder_,
        metadata_.other_values,
        [this](const launcher::DistcpValue& value, const launcher::TorchFile& file) {
          add_value(value, file.pickle());
        });
    if (optimizer_.groups.empty())
      throw_optimizer_mismatch(folder_, "has no " + std::string(kGroups));
    return std::move(optimizer_);
  }

 private:
  // Tensors without dimensions: the numbers of states.
  void read_single_values() {
    const auto single = [](const launcher::DistcpTensor& tensor) -> std::optional<std::string> {
      if (!tensor.shape.empty()) return std::nullopt;
      return tensor.name;
    };
    const auto all = [](const safetensors::TensorInfo&) { return std::nullopt; };
    LoadedParts loaded;
    read_distcp_parts(loaded, folder_, metadata_, single, all);
    singles_ = std::move(loaded.tensors);
  }

  void add_tensor(std::size_t number) {
    const launcher::DistcpTensor& tensor = metadata_.tensors[number];
    const auto path = within_optimizer(tensor.path);
    const auto single = singles_.find(tensor.name);
    if (path.size() != 3) return;
    if (path[0] == kGroups && single != singles_.end()) {
      if (const auto value = only_number(single->second))
        group(path[1]).options.insert_or_assign(path[2], *value);
    } else if (path[0] == kStates) {
      auto& fields = optimizer_.states[path[1]];
      if (single != singles_.end()) {
        fields.insert_or_assign(path[2], single->second);
        return;
      }
      const at::Tensor shape = allocate(info_of(tensor, tensor.name), at::kMeta);
      optimizer_.stored.emplace(shape.unsafeGetTensorImpl(), number);
      fields.insert_or_assign(path[2], shape);
    }
  }

  void add_value(const launcher::DistcpValue& value, const Pickle& pickle) {
    const GroupReading reading(folder_, pickle, [](PickleNode) { return std::optional<double>(); });
    const auto path = within_optimizer(value.path);
    if (path.size() == 3 && path[0] == kGroups) {
      reading.add(group(path[1]), path[2], pickle.root());
    } else if (path.size() == 1 && path[0] == kGroups) {  // of PyTorch before 2.4
      optimizer_.groups = reading.groups(pickle.root());
    } else if (path.size() == 3 && path[0] == kStates) {
      if (const auto number = reading.number(pickle.root()))
        optimizer_.states[path[1]].insert_or_assign(path[2], *number);
    }
  }

  PythonOptimizer::Group& group(const std::string& text) {
    std::size_t number = kMostGroups;
    std::from_chars(text.data(), text.data() + text.size(), number);
    if (number >= kMostGroups)
      throw_optimizer_mismatch(folder_,
                               "has a parameter group without a number: " + printable(text));
    if (number >= optimizer_.groups.size()) optimizer_.groups.resize(number + 1);
    return optimizer_.groups[number];
  }

  const std::filesystem::path& folder_;
  const launcher::DistcpMetadata& metadata_;
  safetensors::TensorMap singles_;
  PythonOptimizer optimizer_;
};

}  // namespace

void throw_optimizer_mismatch(const std::filesystem::path& path, const std::string& what) {
  throw Error(ErrorCode::kCheckpointMismatch,
              printable(path.string()) + " " + what,
              "load into the optimizer that was saved, over the same parameters");
}

PythonOptimizer read_python_optimizer(PythonFile& file) {
  const Pickle& pickle = file.pickle();
  const auto required = [&](std::string_view key) {
    const auto node = pickle.field(pickle.root(), key);
    if (!node) throw_optimizer_mismatch(file.path(), "has no " + std::string(key));
    return *node;
  };
  const GroupReading reading(file.path(), pickle, [&file](PickleNode node) {
    return file.is_tensor(node) ? only_number(file.tensor(node)) : std::nullopt;
  });
  PythonOptimizer optimizer{
      .path = file.path(), .groups = reading.groups(required(kGroups)), .states = {}, .stored = {}};
  const auto entries = pickle.entries(required(kStates));
  if (!entries) throw_optimizer_mismatch(file.path(), "has a state that is no dict");
  for (std::size_t i = 0; i + 1 < entries->size(); i += 2) {
    const auto key = reading.parameter((*entries)[i]);
    if (!key)
      throw_optimizer_mismatch(file.path(), "has a state of a parameter without number or name");
    read_fields(file, reading, (*entries)[i + 1], optimizer.states[*key]);
  }
  return optimizer;
}

PythonOptimizer read_distcp_optimizer(const std::filesystem::path& folder,
                                      const launcher::DistcpMetadata& metadata) {
  return FolderReading(folder, metadata).run();
}

}  // namespace accel::checkpoint
