#include <ATen/autocast_mode.h>

#include <accel/precision.h>

namespace accel {

Autocast::Autocast(const AutocastOptions& options)
    : is_active_(true),
      was_enabled_(at::autocast::is_autocast_enabled(options.device_type)),
      was_cache_enabled_(at::autocast::is_autocast_cache_enabled()),
      device_type_(options.device_type),
      previous_dtype_(at::autocast::get_autocast_dtype(options.device_type)) {
  at::autocast::set_autocast_enabled(device_type_, options.enabled);
  at::autocast::set_autocast_dtype(device_type_, options.dtype);
  at::autocast::set_autocast_cache_enabled(options.cache_enabled);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!is_active_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_cache_enabled(was_cache_enabled_);
  at::autocast::set_autocast_dtype(device_type_, previous_dtype_);
  at::autocast::set_autocast_enabled(device_type_, was_enabled_);
}

}  // namespace accel
