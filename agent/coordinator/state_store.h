// StateStore: where the coordinator's records survive it. One interface for the journal and for etcd.
//
// Threads:  one thread at a time.
#pragma once

#include <vector>

#include <accel/result.h>

#include "agent/coordinator/records.h"

namespace accel::agent {

class StateStore {
 public:
  virtual ~StateStore() = default;

  // The newest record of each key, without forgotten ones.
  [[nodiscard]] virtual std::vector<Record> records() const = 0;

  // Keeps `record`; with `sync` it survives a power cut once this returns. After an error nothing of
  // the record is kept and the next write may be tried.
  // Errors  kDiskFull, kFileIo.
  [[nodiscard]] virtual Result<void> write(const Record& record, bool sync) = 0;
};

}  // namespace accel::agent
