#include "tests/support/fake_tensors.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr std::size_t kAlignment = 64;

std::atomic<std::int64_t> g_live_bytes{0};
std::atomic<std::int64_t> g_peak_bytes{0};

// ---- memory

struct FakeBlock {
  void* memory;
  std::size_t bytes;

  explicit FakeBlock(std::size_t size)
      : memory(std::aligned_alloc(kAlignment, (size + kAlignment) / kAlignment * kAlignment)),
        bytes(size) {
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory, 0xff, bytes);  // NaN in each type of floating point
    const std::int64_t live =
        g_live_bytes.fetch_add(static_cast<std::int64_t>(bytes)) + static_cast<std::int64_t>(bytes);
    std::int64_t peak = g_peak_bytes.load();
    while (live > peak && !g_peak_bytes.compare_exchange_weak(peak, live)) {
    }
  }
  ~FakeBlock() {
    std::memset(memory, 0xff, bytes);
    std::free(memory);
    g_live_bytes -= static_cast<std::int64_t>(bytes);
  }
  FakeBlock(const FakeBlock&) = delete;
  FakeBlock& operator=(const FakeBlock&) = delete;
};

class FakeAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(kType, 0);
    if (bytes == 0) return {nullptr, device};
    auto* const block = new FakeBlock(bytes);
    return {block->memory,
            block,
            [](void* context) { delete static_cast<FakeBlock*>(context); },
            device};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

c10::Allocator& fake_allocator() {
  static auto& allocator = *new FakeAllocator;
  return allocator;
}

// ---- the device: one stream, on which everything is done when it is asked for

struct FakeGuard final : c10::impl::NoOpDeviceGuardImpl<kType> {
  static c10::Device device() { return {kType, 0}; }
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, device()); }

  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  c10::Device getDevice() const override { return device(); }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  void record(void**,
              const c10::Stream&,
              const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};

struct FakeHooks final : at::PrivateUse1HooksInterface {
  [[nodiscard]] bool isBuilt() const override { return true; }
  [[nodiscard]] bool isAvailable() const override { return true; }
  [[nodiscard]] bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  [[nodiscard]] c10::DeviceIndex deviceCount() const override { return 1; }
  [[nodiscard]] c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  // Who seeds all generators seeds this one, too.
  [[nodiscard]] const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  [[nodiscard]] at::Device getDeviceFromPtr(void*) const override { return {kType, 0}; }
};

// ---- operators that make, view and copy; all others run on the CPU

at::Tensor empty(c10::IntArrayRef size,
                 std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>,
                 std::optional<at::Device>,
                 std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size,
                                   &fake_allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   at::dtype_or_default(dtype),
                                   format);
}

at::Tensor empty_strided(c10::IntArrayRef size,
                         c10::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>,
                         std::optional<at::Device>,
                         std::optional<bool>) {
  return at::detail::empty_strided_generic(size,
                                           stride,
                                           &fake_allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           at::dtype_or_default(dtype));
}

// The same memory, as a tensor of the CPU.
at::Tensor on_cpu(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  void* const data = tensor.numel() == 0 ? nullptr : const_cast<void*>(tensor.const_data_ptr());
  return at::from_blob(data, tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.dtype()));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_cpu(to).copy_(on_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  return on_cpu(tensor).item();
}

at::Tensor& set_storage(at::Tensor& tensor,
                        at::Storage source,
                        std::int64_t offset,
                        c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(tensor, std::move(source), offset, size, stride);
}

// LibTorch asks devices that it does not know for their own.
at::Tensor convolve(const at::Tensor& input,
                    const at::Tensor& weight,
                    const std::optional<at::Tensor>& bias,
                    c10::SymIntArrayRef stride,
                    c10::SymIntArrayRef padding,
                    c10::SymIntArrayRef dilation,
                    bool transposed,
                    c10::SymIntArrayRef output_padding,
                    c10::SymInt groups) {
  const auto own_bias =
      bias && bias->defined() ? std::optional(on_cpu(*bias)) : std::optional<at::Tensor>();
  return at::convolution_symint(on_cpu(input),
                                on_cpu(weight),
                                own_bias,
                                stride,
                                padding,
                                dilation,
                                transposed,
                                output_padding,
                                std::move(groups))
      .to(input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolve_back(const at::Tensor& gradient,
                                                             const at::Tensor& input,
                                                             const at::Tensor& weight,
                                                             c10::SymIntArrayRef stride,
                                                             c10::SymIntArrayRef padding,
                                                             c10::SymIntArrayRef dilation,
                                                             bool transposed,
                                                             c10::SymIntArrayRef output_padding,
                                                             c10::SymInt groups,
                                                             std::array<bool, 3> wanted) {
  const std::vector<c10::SymInt> bias = {gradient.sym_size(1)};
  const auto [of_input, of_weight, of_bias] =
      at::convolution_backward_symint(on_cpu(gradient),
                                      on_cpu(input),
                                      on_cpu(weight),
                                      c10::SymIntArrayRef(bias),
                                      stride,
                                      padding,
                                      dilation,
                                      transposed,
                                      output_padding,
                                      std::move(groups),
                                      wanted);
  const auto on_device = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(input.device()) : tensor;
  };
  return {on_device(of_input), on_device(of_weight), on_device(of_bias)};
}

// What set_data() asks: a module's to() gives its parameters memory of another device.
bool may_be_given(const at::Tensor& tensor, const at::Tensor& from) {
  return tensor.layout() == from.layout();
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

}  // namespace

namespace accel::test {

void register_fake_tensors() {
  static const FakeGuard guard;
  c10::register_privateuse1_backend("fake");
  c10::impl::registerDeviceGuard(kType, &guard);
  c10::SetAllocator(kType, &fake_allocator());
  at::RegisterPrivateUse1HooksInterface(new FakeHooks);
  auto& aten = *new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  aten.impl("empty.memory_format", &empty);
  aten.impl("empty_strided", &empty_strided);
  aten.impl("as_strided", &at::native::as_strided_tensorimpl);
  aten.impl("view", &at::native::view);
  aten.impl("_reshape_alias", &at::native::_reshape_alias);
  aten.impl("unfold", &at::native::unfold);
  aten.impl(
      "resize_",
      static_cast<const at::Tensor& (*)(const at::Tensor&,
                                        c10::IntArrayRef,
                                        std::optional<at::MemoryFormat>)>(&at::native::resize_));
  aten.impl("set_.source_Storage_storage_offset", &set_storage);
  aten.impl("_copy_from", &copy_from);
  aten.impl("_copy_from_and_resize", &copy_from_and_resize);
  aten.impl("_local_scalar_dense", &local_scalar);
  aten.impl("convolution_overrideable", &convolve);
  aten.impl("convolution_backward_overrideable", &convolve_back);
  aten.impl("_has_compatible_shallow_copy_type", &may_be_given);
  // Of other devices it is no operator that owners of parameters see.
  auto& owners =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::Fake, __FILE__, __LINE__);
  owners.impl("_has_compatible_shallow_copy_type", torch::CppFunction::makeFallthrough());
  auto& all = *new torch::Library(
      torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

}  // namespace accel::test

// For tests: bytes of tensors on the device, and the most so far since the last call that began anew.
extern "C" {
__attribute__((visibility("default"))) std::int64_t fake_live_bytes() {
  return g_live_bytes.load();
}

__attribute__((visibility("default"))) std::int64_t fake_peak_bytes() {
  return g_peak_bytes.exchange(g_live_bytes.load());
}
}
