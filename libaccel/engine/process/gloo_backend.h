// Gloo as a c10d backend, made without its headers: LibTorch's own collectives over TCP.
//
// Threads:  those of Gloo carry what the caller begins.
#pragma once

#include <chrono>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace accel {

struct GlooOptions {
  int rank = 0;
  int world_size = 1;
  bool is_one_machine = false;  // then connections go over the loopback device
  std::chrono::milliseconds timeout{1'800'000};
};

// Connects to all other ranks, whose addresses come through the store. Throws what LibTorch throws (collective_error() of
// process_group.h says it in our words). Requires: every rank calls it.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> connect_gloo(
    const c10::intrusive_ptr<c10d::Store>& store, const GlooOptions& options);

}  // namespace accel
