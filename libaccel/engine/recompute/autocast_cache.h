// AutocastCache: LibTorch's copies of parameters in 16 bits, which live as long as the autocast of a forward.
//
// Threads:  each has its own.
#pragma once

#include <ATen/autocast_mode.h>

namespace accel::recompute {

// While it lives, operators under autocast neither use such copies nor leave any.
class NoAutocastCache {
 public:
  NoAutocastCache() : was_enabled_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~NoAutocastCache() { at::autocast::set_autocast_cache_enabled(was_enabled_); }
  NoAutocastCache(const NoAutocastCache&) = delete;
  NoAutocastCache& operator=(const NoAutocastCache&) = delete;

 private:
  bool was_enabled_;
};

}  // namespace accel::recompute
