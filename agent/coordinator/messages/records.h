// Records: what the coordinator keeps over its own death.
//
// Each record replaces the one with the same key; the text is JSON with a version. A store (journal
// or etcd) keeps the newest of each key and knows nothing of their meaning.
//
//   epoch            the leader epoch of the coordinator that wrote it
//   job/<uuid>       description, phase, generation, members, what is left of the budget
//   node/<node_id>   drained, quarantined, recent losses
//
// Threads:  plain values.
#pragma once

#include <string>

namespace accel::agent {

struct Record {
  std::string key;
  std::string value;  // empty: the key is forgotten

  bool operator==(const Record&) const = default;
};

}  // namespace accel::agent
