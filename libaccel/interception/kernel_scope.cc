#include "libaccel/interception/kernel_scope.h"

#include <utility>

#include "libaccel/interception/parameter_operators.h"

namespace accel::interception {
namespace {

thread_local constinit KernelHandler* t_kernels = nullptr;

KernelHandler* set_kernels(KernelHandler& handler) {
  hook_operators_below_autograd();
  return std::exchange(t_kernels, &handler);
}

}  // namespace

KernelScope::KernelScope(KernelHandler& handler)
    : outer_(set_kernels(handler)), key_(c10::DispatchKey::Fake) {}

KernelScope::~KernelScope() {
  t_kernels = outer_;
}

NoKernelScope::NoKernelScope() : key_(c10::DispatchKey::Fake) {}

KernelHandler* kernel_handler() noexcept {
  return t_kernels;
}

}  // namespace accel::interception
