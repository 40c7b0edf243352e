// DetachedCall: a call that may never return (a look-up of a name, a file on a server that does not answer), made by a thread
// that nobody waits for.
//
// The thread is detached: neither the caller nor the end of the program waits for it. What the call uses must be its own.
//
// Threads:  call_detached() any; DetachedCall the one that runs its executor.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>

#include <accel/result.h>

#include "runtime/supervisor/kernel/exhausted.h"

namespace accel::supervisor {

// Calls done(work()) on a thread of its own. Where no thread can be had, done() gets the error on this one:
// kSpawnFailed, which begins with `refusal`.
template <typename T>
void call_detached(std::function<Result<T>()> work,
                   const std::string& refusal,
                   std::function<void(Result<T>)> done) {
  const auto answer = std::make_shared<std::function<void(Result<T>)>>(std::move(done));
  try {
    std::thread([work = std::move(work), answer] { (*answer)(work()); }).detach();
  } catch (const std::system_error& error) {
    (*answer)(exhausted_error(refusal, error.code().value()));
  }
}

// One call for an event loop.
template <typename T>
class DetachedCall {
 public:
  // Calls `done` on `executor`, which is kept busy until then, unless this object goes before.
  DetachedCall(const boost::asio::any_io_executor& executor,
               std::function<Result<T>()> work,
               const std::string& refusal,
               std::function<void(Result<T>)> done)
      : state_(std::make_shared<State>()) {
    state_->done = std::move(done);
    state_->loop.emplace(executor);
    call_detached<T>(std::move(work), refusal, [state = state_](Result<T> result) {
      const std::lock_guard lock(state->mutex);
      if (!state->loop) return;
      boost::asio::post(state->loop->get_executor(), [state, result = std::move(result)]() mutable {
        if (auto answer = std::exchange(state->done, nullptr)) answer(std::move(result));
      });
      state->loop.reset();
    });
  }
  ~DetachedCall() {
    state_->done = nullptr;
    const std::lock_guard lock(state_->mutex);
    state_->loop.reset();
  }
  DetachedCall(const DetachedCall&) = delete;
  DetachedCall& operator=(const DetachedCall&) = delete;

 private:
  struct State {
    std::function<void(Result<T>)> done;  // of the loop's thread

    std::mutex mutex;
    std::optional<boost::asio::executor_work_guard<boost::asio::any_io_executor>>
        loop;  // empty: nobody waits any more
  };
  std::shared_ptr<State> state_;
};

}  // namespace accel::supervisor
