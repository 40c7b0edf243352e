// Diagnosis: what the kernel says about the workers of a job, to see where they hang.
//
// A job may have a thousand workers with hundreds of threads each. They are looked at one by one, on the thread for files,
// where others take their turns between, and each waits until the one before was taken.
//
// Threads:  diagnose() any; the class's methods the loop.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>

#include "accel/v1/control.pb.h"
#include "runtime/system.h"

namespace accel::agent {

// State, what each thread waits for (wchan), the kernel stack where we may read it. Cost: small files of /proc, four a thread,
// of 256 threads at most.
[[nodiscard]] v1::DiagChunk diagnose(const v1::Worker& worker, System& system);

class Diagnosis : public std::enable_shared_from_this<Diagnosis> {
 public:
  struct Handlers {
    std::function<void(v1::DiagChunk)> on_chunk;
    std::function<void()> on_end;
  };
  Diagnosis(boost::asio::io_context& loop,
            boost::asio::thread_pool& files,
            std::vector<v1::Worker> workers,
            Handlers handlers);

  // Looks at the next worker, and calls on_chunk; on_end where none is left. Once until then.
  void next();

 private:
  boost::asio::io_context& loop_;
  boost::asio::thread_pool& files_;
  std::vector<v1::Worker> workers_;
  Handlers handlers_;
  std::size_t next_ = 0;
};

}  // namespace accel::agent
