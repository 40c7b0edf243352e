#include "agent/rendezvous/job_specs.h"

#include <algorithm>
#include <utility>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <openssl/sha.h>

#include "agent/rendezvous/job_wire.h"

namespace accel::agent {
namespace {

constexpr std::size_t kMostPacked = 16;  // jobs that look for nodes at one time, as a rule

// Of the same spec the same, whatever the order of its maps.
std::string spec_digest(const v1::JobSpec& spec) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream out(&stream);
    out.SetSerializationDeterministic(true);
    spec.SerializeToCodedStream(&out);
  }
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  ::SHA256(reinterpret_cast<const unsigned char*>(bytes.data()),
           bytes.size(),
           reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

template <typename Message>
bool complete_spec(SpecWindow& window, Message& message) {
  const std::string& sha256 = message.spec_sha256();
  if (sha256.empty()) return true;  // of a coordinator that sends each spec whole
  if (message.has_spec()) {
    window.add({sha256,
                message.spec().ByteSizeLong(),
                std::make_shared<const v1::JobSpec>(message.spec())});
    return true;
  }
  const SpecWindow::Entry* held = window.find(sha256);
  if (held == nullptr) return false;
  *message.mutable_spec() = *held->spec;
  return true;
}

}  // namespace

const PackedSpec& SpecPacker::pack(const std::shared_ptr<const JobDescription>& job) {
  const auto known = std::find_if(
      packed_.begin(), packed_.end(), [&](const PackedSpec& packed) { return packed.job == job; });
  if (known != packed_.end()) return *known;
  if (packed_.size() >= kMostPacked) packed_.pop_front();
  PackedSpec& packed = packed_.emplace_back();
  packed.job = job;
  packed.spec = to_job_spec(*job);
  packed.sha256 = spec_digest(packed.spec);
  return packed;
}

const SpecWindow::Entry* SpecWindow::find(const std::string& sha256) const {
  const auto found = std::find_if(
      entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.sha256 == sha256; });
  return found == entries_.end() ? nullptr : &*found;
}

void SpecWindow::add(Entry entry) {
  bytes_ += entry.bytes;
  entries_.push_back(std::move(entry));
  while (entries_.size() > kMostSpecs || bytes_ > kMostSpecBytes) {
    bytes_ -= entries_.front().bytes;
    entries_.pop_front();
  }
}

bool SpecsHeld::complete(v1::CoordMsg& message) {
  if (message.has_assign()) return complete_spec(window_, *message.mutable_assign());
  if (message.has_invite()) return complete_spec(window_, *message.mutable_invite());
  return true;
}

}  // namespace accel::agent
