// Diagnosis: what the kernel says about the workers of a job, to see where they hang.
//
// A job may have a thousand workers with hundreds of threads each. They are looked at one by one, in the turn of their user,
// and each waits until the one before was taken.
//
// Threads:  diagnose() any; the class's methods the loop.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <sys/types.h>

#include "accel/v1/control.pb.h"
#include "agent/files/file_readers.h"
#include "runtime/system.h"

namespace accel::agent {

// State, what each thread waits for (wchan), the kernel stack where we may read it. Its number is the word of a shim, which the
// user may replace: of a process that is not `owner`'s nothing is told. Cost: small files of /proc, four a thread, of 256
// threads at most.
[[nodiscard]] v1::DiagChunk diagnose(const v1::Worker& worker, uid_t owner, System& system);

class Diagnosis : public std::enable_shared_from_this<Diagnosis> {
 public:
  struct Handlers {
    std::function<void(v1::DiagChunk)> on_chunk;
    std::function<void()> on_end;
  };
  // user  whose workers they are.
  Diagnosis(FileReaders& files, uid_t user, std::vector<v1::Worker> workers, Handlers handlers);

  // Looks at the next worker, and calls on_chunk; on_end where none is left. Once until then.
  void next();

 private:
  FileReaders& files_;
  uid_t user_;
  std::vector<v1::Worker> workers_;
  Handlers handlers_;
  std::size_t next_ = 0;
};

}  // namespace accel::agent
