// Handles: what is behind the opaque types of accel/c/accel.h.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/accelerator.h>
#include <accel/c/accel.h>
#include <accel/exported_model.h>
#include <accel/rendezvous.h>

namespace accel::c_interface {
class RegisteredArray;
}

struct accel_rendezvous {
  accel::Rendezvous rendezvous;
};

struct accel_model {
  struct Input {
    at::Tensor memory;  // of the program; not defined: None
    bool requires_gradient = false;
    at::Tensor leaf;           // what the last forward took, when it requires a gradient
    at::Tensor gradient = {};  // of the last backward
  };

  accel_accelerator& owner;
  accel::ExportedModel net;
  std::vector<std::string> input_names;
  std::vector<std::string> output_names;
  std::map<std::string, Input> inputs;
  std::optional<accel::Prepared<accel::ExportedModel>> prepared = {};
  std::optional<accel::AcceleratedOptimizer> optimizer = {};
  std::optional<accel::AcceleratedScheduler> scheduler = {};
  std::unique_ptr<accel::NoSyncScope> batch = {};  // from its first forward to the optimizer's step
  std::optional<accel::ExportedOutputs> outputs = {};  // of the last forward
  bool may_go_backward = false;                        // since then there was no backward
  std::map<std::size_t, at::Tensor> views = {};        // of outputs, as C sees them
};

struct accel_accelerator {
  explicit accel_accelerator(const accel::AcceleratorOptions& options);
  ~accel_accelerator();

  // Arrays outlive what saves them, and models go first.
  std::vector<std::unique_ptr<accel::c_interface::RegisteredArray>> arrays;
  accel::Accelerator accelerator;
  std::vector<std::unique_ptr<accel_model>> models;
};
