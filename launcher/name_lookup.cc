#include "launcher/name_lookup.h"

#include <array>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <netdb.h>
#include <sys/socket.h>

#include "runtime/supervisor/exhausted.h"

namespace accel::launcher {
namespace {

namespace asio = boost::asio;

HostAddresses ask_system(const std::string& host) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  if (const int failure = ::getaddrinfo(host.c_str(), nullptr, &wanted, &found); failure != 0)
    return Error(ErrorCode::kInvalidArgument, ::gai_strerror(failure));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(entry->ai_addr,
                      entry->ai_addrlen,
                      text.data(),
                      text.size(),
                      nullptr,
                      0,
                      NI_NUMERICHOST) == 0)
      addresses.emplace_back(text.data());
  }
  return addresses;
}

}  // namespace

Resolver system_resolver() {
  return ask_system;
}

void look_up_detached(std::string host,
                      Resolver resolver,
                      std::function<void(HostAddresses)> done) {
  const auto shared = std::make_shared<std::function<void(HostAddresses)>>(std::move(done));
  try {
    std::thread([host = std::move(host), resolver = std::move(resolver), shared] {
      (*shared)(resolver(host));
    }).detach();
  } catch (const std::system_error& error) {
    (*shared)(supervisor::exhausted_error("no name can be looked up", error.code().value()));
  }
}

struct NameLookup::State {
  using Guard = asio::executor_work_guard<asio::any_io_executor>;

  // Of the loop's thread.
  std::function<void(HostAddresses)> done;

  std::mutex mutex;
  std::optional<Guard> loop;  // empty: nobody waits any more
};

NameLookup::NameLookup(const asio::any_io_executor& executor,
                       std::string host,
                       Resolver resolver,
                       std::function<void(HostAddresses)> done)
    : state_(std::make_shared<State>()) {
  state_->done = std::move(done);
  state_->loop.emplace(executor);
  look_up_detached(
      std::move(host), std::move(resolver), [state = state_](const HostAddresses& found) {
        const std::lock_guard lock(state->mutex);
        if (!state->loop) return;
        asio::post(state->loop->get_executor(), [state, found] {
          if (auto answer = std::exchange(state->done, nullptr)) answer(found);
        });
        state->loop.reset();
      });
}

NameLookup::~NameLookup() {
  state_->done = nullptr;
  const std::lock_guard lock(state_->mutex);
  state_->loop.reset();
}

}  // namespace accel::launcher
