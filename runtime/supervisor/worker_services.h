// WorkerServices: what the workers of a generation get besides their processes.
//
// The store (a new one per generation), each worker's descriptors 0, 1, 2 with the logs behind
// them, and its channel. The supervisor says when; this is where the three meet.
//
// Threads:  the one that runs the io_context.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include <accel/env_contract.h>
#include <accel/result.h>

#include "runtime/supervisor/job_spec.h"
#include "runtime/supervisor/spawner.h"
#include "runtime/supervisor/store_server.h"

namespace accel::supervisor {

class WorkerServices {
 public:
  // `notice`: something the user should read; called on the supervisor's thread.
  WorkerServices(boost::asio::io_context& context,
                 const JobSpec& spec,
                 std::function<void(const std::string&)> notice);
  ~WorkerServices();

  // Cuts what the generation before had, and opens the store of the next one.
  // Errors  those of StoreServer::listen().
  [[nodiscard]] Result<void> begin_generation(int generation);

  // Ends the store's connections; its port is free then.
  void end_generation();

  // 0 without a store.
  [[nodiscard]] int store_port() const;

  // While the workers are stopped their silence is nobody's fault.
  void suspend();
  void resume();

 private:
  boost::asio::io_context& context_;
  const JobSpec& spec_;
  std::function<void(const std::string&)> notice_;
  std::unique_ptr<StoreServer> store_;
};

}  // namespace accel::supervisor
