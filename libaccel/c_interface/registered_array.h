// RegisteredArray: memory of the program that checkpoints save, and write into when they are loaded.
#pragma once

#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include <accel/error.h>
#include <accel/state_dict.h>

namespace accel::c_interface {

class RegisteredArray final : public Stateful {
 public:
  RegisteredArray(std::string name, at::Tensor memory)
      : name_(std::move(name)), memory_(std::move(memory)) {}

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] StateDict state_dict() const override { return {{{name_, memory_}}, {}}; }
  void load_state_dict(const StateDict& state) override {
    const auto found = state.tensors.find(name_);
    if (found == state.tensors.end()) {
      throw Error(ErrorCode::kCheckpointMismatch,
                  "the checkpoint has no array '" + name_ + "' in this place",
                  "register the same arrays in the same order as the program that saved it");
    }
    if (found->second.sizes() != memory_.sizes() ||
        found->second.scalar_type() != memory_.scalar_type()) {
      throw Error(ErrorCode::kCheckpointMismatch,
                  "the array '" + name_ + "' has another dtype or shape in the checkpoint",
                  "register memory of the dtype and shape that it was saved with");
    }
    memory_.copy_(found->second);
  }

 private:
  std::string name_;
  at::Tensor memory_;
};

}  // namespace accel::c_interface
