#include "runtime/supervisor/worker_services.h"

#include <utility>

namespace accel::supervisor {

WorkerServices::WorkerServices(boost::asio::io_context& context,
                               const JobSpec& spec,
                               std::function<void(const std::string&)> notice)
    : context_(context), spec_(spec), notice_(std::move(notice)) {}

WorkerServices::~WorkerServices() = default;

Result<void> WorkerServices::begin_generation(int generation) {
  end_generation();
  if (!spec_.store.enabled) return {};
  StoreOptions options;
  options.policy = spec_.store;
  options.on_notice = [this](const Error& error) { notice_(error.message()); };
  auto store = StoreServer::listen(context_, std::move(options));
  if (!store) {
    return std::move(store).error().while_doing("starting the store of generation " +
                                                std::to_string(generation));
  }
  store_ = *std::move(store);
  return {};
}

void WorkerServices::end_generation() {
  store_.reset();
}

int WorkerServices::store_port() const {
  return store_ ? store_->port() : 0;
}

void WorkerServices::suspend() {
  if (store_) store_->suspend_timeouts();
}

void WorkerServices::resume() {
  if (store_) store_->resume_timeouts();
}

}  // namespace accel::supervisor
