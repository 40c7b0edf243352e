// WriteGate: keeps shards from being read while their owners write them.
//
//   open    --close()--> closed, once all passes are over     close() and open(): one thread, the one that trains
//   closed  --open()--> open
//
// Other threads (those that fetch ahead) wait at a closed gate. The thread that closed it may not: it would wait for
// itself, so a Pass throws there.
//
// Threads:  any.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

namespace accel::sharding {

class WriteGate {
 public:
  class Pass {
   public:
    explicit Pass(WriteGate& gate) : gate_(gate) { gate_.enter(); }
    ~Pass() { gate_.leave(); }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    WriteGate& gate_;
  };

  // Returns when nobody holds a Pass.
  void close();
  void open() noexcept;

 private:
  // Throws kUnsupported in the thread that closed the gate.
  void enter();
  void leave() noexcept;

  std::mutex mutex_;
  std::condition_variable changed_;
  int num_inside_ = 0;
  bool is_closed_ = false;
  std::thread::id closer_;
};

}  // namespace accel::sharding
