// StateStore: where the coordinator's records survive it. One interface for the journal and for etcd.
//
// Threads:  one thread at a time.
#pragma once

#include <vector>

#include <accel/result.h>

#include "agent/coordinator/messages/records.h"

namespace accel::agent {

class StateStore {
 public:
  virtual ~StateStore() = default;

  // The newest record of each key, without forgotten ones.
  [[nodiscard]] virtual std::vector<Record> records() const = 0;

  // Keeps `record`; with `sync` it survives a power cut once this returns. After an error it is not in records(), but
  // whoever opens the store next may find it: a disk, or an etcd, that did not answer may have it. The next write may be
  // tried.
  // Errors  kDiskFull, kFileIo.
  [[nodiscard]] virtual Result<void> write(const Record& record, bool sync) = 0;
};

}  // namespace accel::agent
