#include "libaccel/engine/homes/paged_home.h"

#include <utility>

namespace accel::sharding {

PagedHome::PagedHome(std::vector<Unit> units,
                     const PagedHomeOptions& options,
                     pager::Pager::MakeSource make_source)
    : units_(std::move(units)), options_(options), make_source_(std::move(make_source)) {}

void PagedHome::take_in(const std::vector<NamedParameter>& parameters) {
  std::vector<pager::NamedTensor> paged;
  for (const NamedParameter& parameter : parameters)
    paged.push_back({parameter.name, parameter.tensor});
  pager::PagerOptions options;
  options.units = units_;
  options.max_live_bytes = options_.max_live_bytes;
  options.may_exceed = true;
  options.stays_paged = options_.at_end == PagedHomeOptions::AtEnd::kPages;
  options.prefetch_units = options_.units_ahead;
  pager_ = std::make_unique<pager::Pager>(std::move(paged), std::move(options), make_source_);
}

void PagedHome::end_step() {
  if (pager_ != nullptr) pager_->end_step();
}

bool PagedHome::give_all_back() {
  if (pager_ == nullptr) return true;
  pager_->evict_all();
  return pager_->statistics().live_bytes == 0;
}

void PagedHome::pause_prefetch() {
  if (pager_ != nullptr) pager_->pause_prefetch();
}

void PagedHome::resume_prefetch() noexcept {
  if (pager_ != nullptr) pager_->resume_prefetch();
}

}  // namespace accel::sharding
