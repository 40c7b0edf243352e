// WriteGate: keeps shards from being read while their owners write them.
//
//   open    --close()--> closed, once all passes are over     close() and open(): one thread, the one that trains
//   closed  --open()--> open
//
// At a closed gate a Pass throws: whoever waited there might be waited for by the thread that opens it.
//
// Threads:  any.
#pragma once

#include <condition_variable>
#include <mutex>

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
  // Throws kUnsupported while the gate is closed.
  void enter();
  void leave() noexcept;

  std::mutex mutex_;
  std::condition_variable changed_;
  int num_inside_ = 0;
  bool is_closed_ = false;
};

}  // namespace accel::sharding
