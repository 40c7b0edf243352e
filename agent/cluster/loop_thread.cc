#include "agent/cluster/loop_thread.h"

#include <pthread.h>

namespace accel::agent {

void LoopThread::start() {
  thread_ = std::thread([this] {
    ::pthread_setname_np(::pthread_self(), name_.c_str());
    loop_.run();
  });
}

void LoopThread::stop() {
  loop_.stop();
  if (thread_.joinable()) thread_.join();
}

}  // namespace accel::agent
