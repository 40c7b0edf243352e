#include "launcher/start/machines/main/store_link.h"

#include <chrono>
#include <memory>
#include <utility>

#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <ifaddrs.h>

#include "launcher/system/name_lookup.h"

namespace accel::launcher {
namespace {

namespace asio = boost::asio;
using supervisor::TcpEndpoint;

constexpr std::chrono::seconds kStoreConnectLimit(3);

// The interface that has this address; empty when none has.
std::string interface_of(const asio::ip::address& wanted) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owned(list, ::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const auto endpoint = supervisor::endpoint_of(entry->ifa_addr);
    if (endpoint && endpoint->address() == wanted) return entry->ifa_name;
  }
  return {};
}

}  // namespace

std::string way_towards(const TcpEndpoint& there) {
  const auto source = supervisor::source_towards(there);
  if (!source) return "no route (" + source.error().message() + ")";
  const std::string name = interface_of(*source);
  return source->to_string() + (name.empty() ? "" : " (" + name + ")");
}

StoreLink::StoreLink(asio::io_context& context, Handlers handlers, StorePauses pauses)
    : handlers_(std::move(handlers)), pauses_(pauses), client_(context), timer_(context) {}

void StoreLink::find(const std::string& host,
                     std::uint16_t port,
                     std::function<void(Result<std::vector<TcpEndpoint>>)> done) {
  boost::system::error_code is_name;
  const auto numeric = asio::ip::make_address(host, is_name);
  if (!is_name) {
    return asio::post(timer_.get_executor(), [done = std::move(done), numeric, port] {
      done(std::vector<TcpEndpoint>{TcpEndpoint(numeric, port)});
    });
  }
  lookup_.emplace(
      timer_.get_executor(),
      [host] { return system_resolver()(host); },
      kNoLookup,
      [done = std::move(done), host, port](const HostAddresses& found) {
        std::vector<TcpEndpoint> addresses;
        if (found) {
          for (const auto& address : *found) addresses.emplace_back(address, port);
        }
        if (!addresses.empty()) return done(std::move(addresses));
        done(Error(ErrorCode::kStoreUnreachable,
                   "the main process's host '" + host + "' has no address" +
                       (found ? "" : ": " + found.error().message()),
                   "give a name that this machine can resolve, or an address"));
      });
}

void StoreLink::open(std::vector<TcpEndpoint> addresses) {
  close();
  addresses_ = std::move(addresses);
  next_ = num_tried_ = 0;
  connect();
}

void StoreLink::move_to(std::vector<TcpEndpoint> addresses) {
  if (addresses == addresses_) return;
  addresses_ = std::move(addresses);
  next_ = num_tried_ = 0;
  has_moved_ = true;
}

void StoreLink::close() {
  client_.close();
  timer_.cancel();
  is_up_ = is_asking_ = false;
}

void StoreLink::connect() {
  has_moved_ = is_refused_ = false;
  timer_.expires_after(kStoreConnectLimit);
  timer_.async_wait([this](const boost::system::error_code& cancelled) {
    if (cancelled || is_up_) return;
    fail(Error(ErrorCode::kStoreUnreachable,
               "no answer within " + std::to_string(kStoreConnectLimit.count()) + " s"));
  });
  client_.connect(addresses_[next_], [this](const boost::system::error_code& failure) {
    timer_.cancel();
    is_refused_ = failure == asio::error::connection_refused;
    if (failure) return fail(Error(ErrorCode::kStoreUnreachable, errno_text(failure.value())));
    is_up_ = true;
    num_tried_ = 0;
    handlers_.on_up();
  });
}

void StoreLink::fail(const Error& why) {
  client_.close();
  const bool has_worked = is_up_;
  if (!has_worked && !has_moved_) ++num_tried_;
  is_up_ = is_asking_ = false;
  last_trouble_ = why.message();
  timer_.expires_after(pauses_.connect);
  timer_.async_wait([this, has_worked](const boost::system::error_code& cancelled) {
    if (cancelled) return;
    if (!has_worked && !has_moved_) next_ = (next_ + 1) % addresses_.size();
    connect();
  });
  handlers_.on_trouble(why);
}

std::string StoreLink::describe_way(const std::string& name) const {
  std::string text = name;
  const std::string numeric = supervisor::to_text(addresses_[next_]);
  if (numeric != name) text += " (" + numeric + ")";
  text += " from " + way_towards(addresses_[next_]);
  if (is_up_) return text + ": something listens there, but no launcher of this job";
  return last_trouble_.empty() ? text : text + ": " + last_trouble_;
}

void StoreLink::exchange(const supervisor::StoreExchange& wanted,
                         std::function<void(const supervisor::StoreAnswer&)> done) {
  is_asking_ = true;
  client_.exchange(wanted,
                   [this, done = std::move(done)](const Result<supervisor::StoreAnswer>& answer) {
                     is_asking_ = false;
                     if (!answer) return fail(answer.error());
                     done(*answer);
                   });
}

}  // namespace accel::launcher
