// SpecsSent, SpecsHeld: a job's spec crosses a session once; after that its digest stands for it.
//
//   coordinator                              node
//   Invite{sha256, spec}  ------------->  keeps the spec
//   Assign{sha256}        ------------->  puts it back, each generation anew
//
// Both ends keep the same window: the specs that crossed last, as HPACK's two ends keep their tables. A stream is ordered
// and loses nothing, so the coordinator knows what the node holds and nobody asks. The window ends with the stream: an
// agent that began anew and a coordinator that has just come to lead start with the whole spec. A node that meets a
// digest which it does not hold ends its stream, and the next one starts so too.
//
// The digest is SHA-256 of the spec with its user, so no user can make a spec that stands for another one's. A node does
// not check it: it runs what its coordinator says either way.
//
// Threads:  belong to the loop.
// Cost:     kMostSpecs digests for each session at the coordinator, kMostSpecBytes at a node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "accel/v1/rendezvous.pb.h"
#include "agent/coordinator/messages/job_description.h"

namespace accel::agent {

// Part of the protocol: both ends count alike. From this version on a node takes digests.
inline constexpr std::uint32_t kSpecDigestProtocol = 2;
inline constexpr std::size_t kMostSpecs = 32;
inline constexpr std::size_t kMostSpecBytes = 4 * 1024 * 1024;

struct PackedSpec {
  std::shared_ptr<const JobDescription> job;
  v1::JobSpec spec;
  std::string sha256;
};

// Makes the spec of a job and its digest once for all its nodes.
class SpecPacker {
 public:
  // Lives until the next call.
  [[nodiscard]] const PackedSpec& pack(const std::shared_ptr<const JobDescription>& job);

 private:
  std::deque<PackedSpec> packed_;  // the last few
};

// The rule of both ends.
class SpecWindow {
 public:
  struct Entry {
    std::string sha256;
    std::size_t bytes = 0;
    std::shared_ptr<const v1::JobSpec> spec;  // at the node alone
  };
  // nullptr: not in it.
  [[nodiscard]] const Entry* find(const std::string& sha256) const;
  void add(Entry entry);

 private:
  std::deque<Entry> entries_;
  std::size_t bytes_ = 0;
};

// The coordinator's end of one session.
class SpecsSent {
 public:
  explicit SpecsSent(SpecPacker& packer) : packer_(packer) {}

  // Message: v1::Assign or v1::Invite, which is sent then.
  template <typename Message>
  void put(Message& to, const std::shared_ptr<const JobDescription>& job) {
    const PackedSpec& packed = packer_.pack(job);
    to.set_spec_sha256(packed.sha256);
    if (window_.find(packed.sha256) != nullptr) return;
    *to.mutable_spec() = packed.spec;
    window_.add({packed.sha256, packed.spec.ByteSizeLong(), nullptr});
  }

 private:
  SpecPacker& packer_;
  SpecWindow window_;
};

// The node's end of one session.
class SpecsHeld {
 public:
  // Keeps a spec that comes with its digest, and puts it back where only its digest comes. False: it is not held.
  [[nodiscard]] bool complete(v1::CoordMsg& message);

  // Another stream begins.
  void clear() { window_ = {}; }

 private:
  SpecWindow window_;
};

}  // namespace accel::agent
