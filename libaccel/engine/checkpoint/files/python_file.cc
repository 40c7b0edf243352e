#include "libaccel/engine/checkpoint/files/python_file.h"

#include <array>
#include <fstream>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <accel/error.h>
#include <accel/result.h>

#include "libaccel/engine/checkpoint/files/tensor_file.h"
#include "runtime/printable.h"

namespace accel::checkpoint {
namespace {

using launcher::PickleKind;
using launcher::PickleNode;

// Python itself does not nest deeper when it saves.
constexpr int kMostReadLevels = 900;

bool may_be_key(const c10::IValue& value) {
  return value.isString() || value.isInt() || value.isDouble() || value.isBool();
}

std::vector<std::int64_t> signed_sizes(const std::vector<std::uint64_t>& sizes) {
  return {sizes.begin(), sizes.end()};
}

}  // namespace

bool is_python_file(const std::filesystem::path& path) {
  if (path.extension() == ".safetensors") return false;
  for (const char* const suffix : {".bin", ".pt", ".pth", ".pkl", ".ckpt"})
    if (path.extension() == suffix) return true;
  std::array<char, 2> begin{};
  std::ifstream(path, std::ios::binary).read(begin.data(), begin.size());
  return std::string_view(begin.data(), begin.size()) == "PK";  // an archive
}

// Each node once: what two others refer to stays one value.
class PythonFile::Conversion {
 public:
  explicit Conversion(PythonFile& file) : file_(file), pickle_(file.pickle()) {}

  std::optional<c10::IValue> run(PickleNode node) {
    if (const auto done = values_.find(node); done != values_.end()) return done->second;
    if (open_.size() == kMostReadLevels || !open_.insert(node).second) return std::nullopt;
    std::optional<c10::IValue> value = convert(node);
    open_.erase(node);
    if (value) values_.emplace(node, *value);
    return value;
  }

 private:
  std::optional<c10::IValue> convert(PickleNode node) {
    switch (pickle_.kind(node)) {
      case PickleKind::kNone:
        return c10::IValue();
      case PickleKind::kBool:
        return c10::IValue(*pickle_.boolean(node));
      case PickleKind::kInteger:
        return c10::IValue(*pickle_.integer(node));
      case PickleKind::kFloat:
        return c10::IValue(*pickle_.real(node));
      case PickleKind::kText:
        return c10::IValue(std::string(*pickle_.text(node)));
      case PickleKind::kTuple:
        return tuple(node);
      case PickleKind::kList:
        return list(node);
      case PickleKind::kDict:
        return dict(node);
      case PickleKind::kObject:
        return object(node);
      case PickleKind::kName:
      case PickleKind::kPersistent:
        return std::nullopt;
    }
    return std::nullopt;
  }

  std::optional<std::vector<c10::IValue>> items(std::span<const PickleNode> nodes) {
    std::vector<c10::IValue> values;
    for (const PickleNode node : nodes) {
      auto value = run(node);
      if (!value) return std::nullopt;
      values.push_back(*std::move(value));
    }
    return values;
  }

  std::optional<c10::IValue> tuple(PickleNode node) {
    auto values = items(*pickle_.sequence(node));
    if (!values) return std::nullopt;
    return c10::IValue(c10::ivalue::Tuple::create(*std::move(values)));
  }

  std::optional<c10::IValue> list(PickleNode node) {
    const auto values = items(*pickle_.sequence(node));
    if (!values) return std::nullopt;
    c10::impl::GenericList made(c10::AnyType::get());
    made.reserve(values->size());
    for (const c10::IValue& value : *values) made.push_back(value);
    return c10::IValue(std::move(made));
  }

  std::optional<c10::IValue> dict(PickleNode node) {
    const auto values = items(*pickle_.entries(node));
    if (!values || values->size() % 2 != 0) return std::nullopt;
    c10::impl::GenericDict made(c10::AnyType::get(), c10::AnyType::get());
    for (std::size_t i = 0; i < values->size(); i += 2) {
      if (!may_be_key((*values)[i])) return std::nullopt;
      made.insert_or_assign((*values)[i], (*values)[i + 1]);
    }
    return c10::IValue(std::move(made));
  }

  std::optional<c10::IValue> object(PickleNode node) {
    if (file_.is_tensor(node)) return c10::IValue(file_.tensor(node));
    if (pickle_.entries(node)) return dict(node);  // an OrderedDict
    return std::nullopt;
  }

  PythonFile& file_;
  const launcher::Pickle& pickle_;
  std::unordered_map<PickleNode, c10::IValue> values_;
  std::unordered_set<PickleNode> open_;
};

PythonFile::PythonFile(const std::filesystem::path& path,
                       std::span<const std::string_view> more_names)
    : path_(path),
      name_(path.string()),
      input_(path),
      file_(or_throw(launcher::TorchFile::open(
          {.fd = input_.fd(), .path = name_, .begin = 0, .size = input_.size()}, more_names))) {}

at::Tensor PythonFile::tensor(PickleNode node, Values values) {
  const launcher::SavedTensor saved = or_throw(file_.tensor(node));
  const at::ScalarType dtype = scalar_type_of("in " + printable(name_), saved.dtype);
  const std::vector<std::int64_t> sizes = signed_sizes(saved.shape);
  const std::vector<std::int64_t> strides = signed_sizes(saved.strides);
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (saved.first > kMost || saved.storage.size > kMost)
    throw Error(ErrorCode::kCheckpointIncomplete, printable(name_) + " has a size beyond 63 bits");
  if (values == Values::kNone)
    return at::empty_strided(sizes, strides, at::TensorOptions().dtype(dtype).device(at::kMeta));
  at::Tensor& bytes = storages_[{saved.storage.begin, saved.storage.size}];
  if (!bytes.defined()) {
    at::Tensor read = at::empty({static_cast<std::int64_t>(saved.storage.size)}, at::kByte);
    or_throw(saved.storage.read(
        0, {static_cast<std::byte*>(read.mutable_data_ptr()), saved.storage.size}));
    bytes = std::move(read);
  }
  return at::empty({0}, at::TensorOptions().dtype(dtype))
      .set_(bytes.storage(), static_cast<std::int64_t>(saved.first), sizes, strides);
}

std::optional<c10::IValue> PythonFile::value(PickleNode node) {
  return Conversion(*this).run(node);
}

safetensors::TensorMap PythonFile::tensors(Values values) {
  const auto mismatch = [&](const std::string& what) {
    return Error(ErrorCode::kCheckpointMismatch,
                 printable(name_) + " holds no weights: " + what,
                 "name a file that holds a state dict: torch.save(model.state_dict(), file)");
  };
  const auto entries = pickle().entries(pickle().root());
  if (!entries) throw mismatch("it is no dict");
  safetensors::TensorMap map;
  for (std::size_t i = 0; i + 1 < entries->size(); i += 2) {
    const auto name = pickle().text((*entries)[i]);
    if (!name) throw mismatch("a key of it is no text");
    if (!is_tensor((*entries)[i + 1])) throw mismatch(printable(*name) + " is no tensor");
    map.insert_or_assign(std::string(*name), tensor((*entries)[i + 1], values));
  }
  return map;
}

}  // namespace accel::checkpoint
