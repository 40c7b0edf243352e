// MainProbe: whether another launcher is machine 0 at the address that names it, while this one listens
// on all addresses of its own because it has no such address.
//
// Behind a translated address the probe reaches its own store, or nothing. Who else answers is machine
// 0, and our machine rank was given twice: it is told so in its store, and we by `on_other`.
//
// Threads:  the one that runs the io_context.
// Source:   tests/peer/machines.py.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <accel/error.h>

#include "launcher/start/machines/board/board_seal.h"
#include "launcher/start/machines/board/records.h"
#include "launcher/start/machines/main/store_link.h"
#include "launcher/text/program.h"

namespace accel::launcher {

class MainProbe {
 public:
  // card: our own; seal: as ours; program, port_flag: of MachinesSettings, whose words errors use. on_other: once; the probe
  // has ended then.
  MainProbe(boost::asio::io_context& context,
            MachineCard card,
            BoardSeal seal,
            Program program,
            std::string port_flag,
            std::function<void(const Error&)> on_other);

  // Requires: at least one address. It is tried every 250 ms.
  void open(std::vector<supervisor::TcpEndpoint> addresses) { link_.open(std::move(addresses)); }
  void close() { link_.close(); }

 private:
  void ask();
  void judge(const std::string& host);
  void tell(const Error& why);

  MachineCard card_;
  BoardSeal seal_;
  Program program_;
  std::string port_flag_;
  std::function<void(const Error&)> on_other_;
  boost::asio::steady_timer pause_;  // until a store that says nothing yet is asked again
  StoreLink link_;
};

}  // namespace accel::launcher
