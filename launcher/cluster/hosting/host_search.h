// HostSearch: asks etcd which launcher hosts, with a coordinator of our own that listens already, should we be the one.
//
//   idle --begin()--> opening --a coordinator listens--> meeting --a place, or an error--> idle
//                       '--stop(), or begin() again: what was found does not count--^
//
// Names, addresses and etcd may hang: a thread waits for them, and the loop goes on.
//
// Threads:  everything on the loop; one of its own.
// Source:   launcher/cluster/meeting/etcd_place.h does the work.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/io_context.hpp>

#include <accel/result.h>

#include "launcher/cluster/hosting/coordinator_seat.h"
#include "launcher/cluster/meeting/etcd_place.h"

namespace accel::cluster {

class HostSearch {
 public:
  struct Handlers {
    // Makes the coordinator of this launcher, at that address.
    std::function<Result<std::unique_ptr<CoordinatorSeat>>(const MeetingPlace& place,
                                                           const std::string& at)>
        listen;
    // `seat`: of a place that is ours; else null, and the one that listened was retired.
    std::function<void(Result<MeetingPlace> found, std::unique_ptr<CoordinatorSeat> seat)> on_found;
    // A coordinator that listened for nothing. Nodes may have come to it, so it is not destroyed on the running loop.
    std::function<void(std::unique_ptr<CoordinatorSeat> seat)> retire;
    std::function<void(const std::string&)> say;  // a line for people
  };
  // `settings` outlive it.
  HostSearch(boost::asio::io_context& loop,
             const launcher::ElasticSettings& settings,
             Handlers handlers)
      : loop_(loop), settings_(settings), handlers_(std::move(handlers)) {}

  // Gives an error at that time at the latest.
  void begin(TimePoint until);
  void stop();

  // Lets go of what nobody needs any more: to give up its key takes as long as etcd takes to hear of it.
  void drop(MeetingPlace place);

 private:
  template <typename Work, typename Take>
  void run(Work work, Take take);
  void let_go(std::shared_ptr<void> thing);
  void on_offer(Result<EtcdOffer> offer);
  void on_met(Result<MeetingPlace> found);

  boost::asio::io_context& loop_;
  const launcher::ElasticSettings& settings_;
  Handlers handlers_;
  TimePoint until_{};
  int number_ = 0;                         // of the work under way
  std::unique_ptr<CoordinatorSeat> seat_;  // until etcd has said who hosts
  std::jthread thread_;
  std::vector<std::jthread>
      earlier_;  // told to stop, or letting go: they may wait for names or etcd
};

}  // namespace accel::cluster
