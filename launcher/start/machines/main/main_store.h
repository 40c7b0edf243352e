// MainStore: the store of machine 0 as one launcher has it: opened by its own shim, or looked for at the
// address of the main process.
//
//   we may be machine 0   the shim opens it; on all addresses, when no interface has the one that is named
//                         and nobody answers there; then it is watched whether somebody else does later
//   we are another one    connect, again and again
//   nobody is beforehand  (ranks in the order of joins) who can listen is machine 0
//   the name has no address  ask again: that of a pod is there only once the pod runs
//   nobody answers        ask again where the name leads: a pod that was started anew has another address
//   the port is held here we ask the holder: a launcher of this job has our rank, and hears of it
//
// Threads:  the one that runs the io_context. Handlers may close it, and begin anew.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <accel/error.h>

#include "launcher/start/machines/board/board_seal.h"
#include "launcher/start/machines/main/main_probe.h"
#include "launcher/start/machines/main/store_link.h"
#include "launcher/start/machines/main/stranger_check.h"
#include "launcher/start/machines/settings/machines_settings.h"
#include "runtime/clock.h"

namespace accel::launcher {

// Who is machine 0, when the store that this launcher wanted to open cannot be opened.
enum class MainSeat {
  kTaken,      // another launcher has it; we are one of the other machines
  kUnclear,    // the address is none of ours: it is translated, or another machine's
  kContested,  // the port is held here: by a launcher of this job our rank was given twice
  kOurs,       // and cannot be taken: the launch fails
};

// why           of the store: kInvalidArgument for an address that no interface has, kPortInUse, ...
// draws_rank    no machine rank was given: whoever can listen is machine 0
// is_translated we listen on all addresses already
// is_first      generation: in a later one the store had been ours
[[nodiscard]] MainSeat seat_without_store(ErrorCode why,
                                          bool draws_rank,
                                          bool is_translated,
                                          bool is_first);

class MainStore {
 public:
  struct Handlers {
    std::function<void()> on_found;  // the addresses are known: begin()
    // The shim is to open the store there; opened() or not_opened() answers.
    std::function<void(const std::string& bind_address)> open;
    std::function<void()> on_up;                 // a connection was made
    std::function<void()> on_gone;               // nobody listens at any of the addresses
    std::function<void(const Error&)> on_fault;  // the job cannot begin
    std::function<void(const std::string&)> say;
    // Asks for the addresses of the main process; empty: StoreLink::find().
    using Found = std::function<void(Result<std::vector<supervisor::TcpEndpoint>>)>;
    std::function<void(const std::string& host, std::uint16_t port, Found)> look_up;
  };
  MainStore(boost::asio::io_context& context,
            MachinesSettings settings,
            BoardSeal seal,
            Handlers handlers,
            StorePauses pauses = {});

  // Asks again and again until the name has an address; the caller's patience ends it.
  void find();
  // Requires: found.
  void begin(int generation);
  void close();

  void opened();
  void not_opened(const Error& why);

  // The first exchange of a generation follows. card: our own.
  void join(const MachineCard& card);
  // All have come, and the plan is taken: another machine 0 would be too late.
  void settle_on_main();

  // Requires: is_idle().
  void exchange(const supervisor::StoreExchange& wanted, std::function<void(const Board&)> done);

  // Before we have joined: why what answers is no machine 0 for us. kPortInUse or kStoreUnreachable:
  // it is no launcher; kAuthentication: not one with our token.
  [[nodiscard]] std::optional<Error> fault(TimePoint now) const;
  // We were stopped so long ourselves.
  void pardon(Duration pause) { stranger_.pardon(pause); }

  [[nodiscard]] bool is_main() const { return is_main_; }
  [[nodiscard]] bool is_looking() const {
    return addresses_.empty() || !may_be_main_ || is_probing_;
  }
  [[nodiscard]] bool is_up() const { return link_.is_up(); }
  [[nodiscard]] bool is_idle() const { return link_.is_idle(); }
  [[nodiscard]] std::string own_address() const;  // as others see it
  [[nodiscard]] std::string name() const;         // "gpu-01:29500"
  // "gpu-01:29500 (10.0.0.1:29500) from 10.0.0.2 (eth0): Connection refused (errno 111)"
  // "gpu-01:29500: the main process's host 'gpu-01' has no address: Name or service not known"
  [[nodiscard]] std::string describe_way() const {
    return addresses_.empty() ? name() + ": " + last_trouble_ : link_.describe_way(name());
  }
  // Why the last connection broke, or was not made; empty: none did.
  [[nodiscard]] const std::string& last_trouble() const { return last_trouble_; }

 private:
  void look_up(Handlers::Found done);
  void ask_again();
  void look_up_again();
  void open_here();
  void stop_watching();
  void listen_on_all();
  void on_up();
  void on_trouble(const Error& why);
  [[nodiscard]] Error in_our_words(const Error& why) const;
  [[nodiscard]] Error port_is_held(const std::string& by) const;

  boost::asio::io_context& context_;
  MachinesSettings settings_;
  BoardSeal seal_;
  Handlers handlers_;
  StorePauses pauses_;
  SteadyClock clock_;
  StoreLink link_;
  StrangerCheck stranger_;
  boost::asio::steady_timer asking_again_;
  TimePoint asked_at_{};                            // for the name's addresses
  std::optional<MainProbe> probe_;                  // is_translated_: until settle_on_main()
  std::vector<supervisor::TcpEndpoint> addresses_;  // of the main process
  std::string bound_to_;
  std::string port_holder_;  // what kept us from being machine 0
  std::string last_trouble_;
  int generation_ = 0;
  bool may_be_main_ = false;
  bool is_main_ = false;
  bool is_contested_ = false;   // port_holder_ may have our rank
  bool is_probing_ = false;     // whether another launcher is machine 0
  bool is_translated_ = false;  // no interface of ours has the address
  bool is_asking_ = false;      // for the name's addresses
  bool is_closed_ = false;
  bool was_up_ = false;  // in this generation
};

}  // namespace accel::launcher
