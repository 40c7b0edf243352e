#include "launcher/start/machines/main/main_store.h"

#include <chrono>
#include <string_view>
#include <utility>

#include <boost/asio/ip/address.hpp>

#include "runtime/printable.h"
#include "runtime/text/endpoint_text.h"

namespace accel::launcher {

using supervisor::TcpEndpoint;

namespace {

namespace ip = boost::asio::ip;

constexpr std::string_view kOtherPort = "give another port, on every machine the same";

// Where machine 0's store listens when the main process is called `name` and found at `found`: there,
// but a name of this machine may lead to a loopback address, which no other machine reaches. Then, and
// with `is_translated` (no interface has the address), on all addresses.
std::string listening_address(const std::string& name,
                              const TcpEndpoint& found,
                              bool is_translated) {
  const ip::address address = found.address();
  const bool is_hidden = address.is_loopback() && !is_loopback_name(name);
  if (!is_hidden && !is_translated) return address.to_string();
  return address.is_v6() ? "::" : "0.0.0.0";
}

// How machine 0 itself reaches a store that listens on the numeric `address`.
TcpEndpoint own_way_to(const std::string& address, std::uint16_t port) {
  const ip::address bound = ip::make_address(address);
  if (!bound.is_unspecified()) return {bound, port};
  if (bound.is_v6()) return {ip::address_v6::loopback(), port};
  return {ip::address_v4::loopback(), port};
}

}  // namespace

MainSeat seat_without_store(ErrorCode why, bool draws_rank, bool is_translated, bool is_first) {
  const bool is_elsewhere = why == ErrorCode::kInvalidArgument;
  if (draws_rank)
    return is_elsewhere || why == ErrorCode::kPortInUse ? MainSeat::kTaken : MainSeat::kOurs;
  if (why == ErrorCode::kPortInUse && is_first) return MainSeat::kContested;
  return is_elsewhere && !is_translated ? MainSeat::kUnclear : MainSeat::kOurs;
}

MainStore::MainStore(boost::asio::io_context& context,
                     MachinesSettings settings,
                     BoardSeal seal,
                     Handlers handlers,
                     StorePauses pauses)
    : context_(context),
      settings_(std::move(settings)),
      seal_(std::move(seal)),
      handlers_(std::move(handlers)),
      pauses_(pauses),
      link_(context,
            {.on_up = [this] { on_up(); },
             .on_trouble = [this](const Error& why) { on_trouble(why); }},
            pauses),
      asking_again_(context),
      may_be_main_(settings_.may_be_main && settings_.machine_rank.value_or(0) == 0) {}

void MainStore::look_up(Handlers::Found done) {
  if (handlers_.look_up)
    return handlers_.look_up(settings_.address, settings_.port, std::move(done));
  link_.find(settings_.address, settings_.port, std::move(done));
}

void MainStore::find() {
  look_up([this](auto found) {
    if (is_closed_) return;
    if (!found) {
      last_trouble_ = found.error().message();
      return ask_again();
    }
    addresses_ = *std::move(found);
    asked_at_ = clock_.now();
    handlers_.on_found();
  });
}

void MainStore::ask_again() {
  asking_again_.expires_after(pauses_.look_up);
  asking_again_.async_wait([this](const boost::system::error_code& cancelled) {
    if (!cancelled) find();
  });
}

// As long as it is not known better, the addresses that are known hold.
void MainStore::look_up_again() {
  const bool is_of_name = !is_main_ && !is_contested_ && !is_probing_;
  if (!is_of_name || is_asking_ || clock_.now() - asked_at_ < pauses_.look_up) return;
  is_asking_ = true;
  look_up([this](auto found) {
    is_asking_ = false;
    asked_at_ = clock_.now();
    if (is_closed_ || is_main_ || !found) return;
    addresses_ = *std::move(found);
    link_.move_to(addresses_);
  });
}

void MainStore::begin(int generation) {
  link_.close();
  is_closed_ = false;
  generation_ = generation;
  was_up_ = false;
  last_trouble_.clear();
  if (may_be_main_) return open_here();
  link_.open(addresses_);
}

void MainStore::close() {
  is_closed_ = true;
  asking_again_.cancel();
  stop_watching();
  link_.close();
}

void MainStore::open_here() {
  bound_to_ = listening_address(settings_.address, addresses_.front(), is_translated_);
  handlers_.open(bound_to_);
}

void MainStore::opened() {
  is_main_ = true;
  const TcpEndpoint bound(boost::asio::ip::make_address(bound_to_), settings_.port);
  if (generation_ == 0 && !bound.address().is_loopback()) {
    handlers_.say("machine 0 listens on " + supervisor::to_text(bound) +
                  (seal_.has_token()
                       ? "; launchers show that they know the job's token, workers do not"
                       : "; this port has no authentication, as with torchrun"));
  }
  link_.open({own_way_to(bound_to_, settings_.port)});
}

// The supervisor, which listened, does not know which flag said where.
Error MainStore::in_our_words(const Error& why) const {
  constexpr std::string_view kTheirs[] = {"--main_process_port (--master-port)",
                                          "--main_process_ip (--master-addr)"};
  if (!settings_.is_at_endpoint) return why;
  std::string remedy = why.remedy();
  for (const std::string_view flag : kTheirs) {
    if (const auto place = remedy.find(flag); place != std::string::npos)
      remedy.replace(place, flag.size(), settings_.port_flag());
  }
  Error ours(why.code(), why.message(), std::move(remedy));
  for (const auto& [label, text] : why.details()) ours.with_detail(label, text);
  return ours;
}

void MainStore::not_opened(const Error& why) {
  const bool draws_rank = !settings_.machine_rank && generation_ == 0;
  switch (seat_without_store(why.code(), draws_rank, is_translated_, generation_ == 0)) {
    case MainSeat::kOurs:
      return handlers_.on_fault(in_our_words(why));
    case MainSeat::kTaken:
      may_be_main_ = false;
      if (why.code() == ErrorCode::kPortInUse) port_holder_ = why.message();
      break;
    case MainSeat::kContested:
      is_contested_ = true;
      port_holder_ = why.message();
      return link_.open({own_way_to(bound_to_, settings_.port)});
    case MainSeat::kUnclear:  // who answers there is machine 0
      is_probing_ = true;
      break;
  }
  link_.open(addresses_);
}

void MainStore::listen_on_all() {
  is_probing_ = false;
  link_.close();
  handlers_.say(spelled("main_process_ip", settings_.program) + " " + settings_.address +
                " is no address of this machine: its store listens on all that it has");
  is_translated_ = true;
  open_here();
}

void MainStore::join(const MachineCard& card) {
  seal_.begin(card, is_main_);
  if (!is_main_ || !is_translated_ || generation_ > 0) return;
  // The address may be another machine's that was only not there yet.
  probe_.emplace(
      context_, card, seal_, settings_.program, settings_.port_flag(), handlers_.on_fault);
  probe_->open(addresses_);
}

void MainStore::settle_on_main() {
  stop_watching();
  seal_.pin();
}

void MainStore::stop_watching() {
  if (probe_) probe_->close();
}

void MainStore::on_up() {
  was_up_ = true;
  stranger_.came_up(clock_.now());
  handlers_.on_up();
}

void MainStore::on_trouble(const Error& why) {
  stranger_.broke(why.code());
  if (is_contested_ && !was_up_ && link_.has_tried_all())
    return handlers_.on_fault(port_is_held(""));
  if (is_probing_ && !was_up_ && link_.has_tried_all()) return listen_on_all();
  if (link_.has_tried_all()) look_up_again();
  last_trouble_ = why.message();
  if (link_.is_refused() && link_.has_tried_all()) handlers_.on_gone();
}

void MainStore::exchange(const supervisor::StoreExchange& wanted,
                         std::function<void(const Board&)> done) {
  link_.exchange(seal_.seal(wanted),
                 [this, wanted, done = std::move(done)](const supervisor::StoreAnswer& answer) {
                   const Board board = seal_.open(wanted, answer);
                   stranger_.answered(board.has(board_key::kHost) || seal_.is_asking());
                   const auto main = card_from(board.at(board_key::kHost));
                   // Another job is not to hear of us.
                   if (is_contested_ && main && main->run_id != settings_.run_id) {
                     return handlers_.on_fault(port_is_held(", for the job with " +
                                                            spelled("rdzv_id", settings_.program) +
                                                            " '" + printable(main->run_id) + "'"));
                   }
                   done(board);
                 });
}

// Where the port is not this machine's, what has it may still go away, unless it is a server of another
// kind.
std::optional<Error> MainStore::fault(TimePoint now) const {
  if (is_main_) return std::nullopt;
  if (auto why = seal_.distrust())
    return is_contested_ ? port_is_held(", for another job: " + why->message()) : why;
  const auto sign = generation_ > 0 ? std::nullopt : stranger_.sign(now);
  if (!sign) return std::nullopt;
  const std::string what = ", but no launcher of this job: " + describe(*sign);
  if (!port_holder_.empty()) return port_is_held(what);
  if (*sign != StrangerSign::kOtherProtocol) return std::nullopt;
  return Error(ErrorCode::kStoreUnreachable,
               "something listens at " + name() + what,
               "check " + settings_.place_flags() + ", or " + std::string(kOtherPort));
}

Error MainStore::port_is_held(const std::string& by) const {
  return Error(ErrorCode::kPortInUse, port_holder_ + by, std::string(kOtherPort));
}

std::string MainStore::own_address() const {
  const TcpEndpoint ours = is_main_ ? addresses_.front() : link_.local_endpoint();
  return ours.address().to_string();
}

std::string MainStore::name() const {
  return settings_.address + ":" + std::to_string(settings_.port);
}

}  // namespace accel::launcher
