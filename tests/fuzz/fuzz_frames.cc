// Fuzzes everything that one process of a job reads from another: the frames between shim and owner,
// the job and its outcome as JSON, the frames and the page of the worker channel. The first byte
// picks the reader. What a reader accepts must survive being written and read again.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>

#include <accel/channel_layout.h>

#include "runtime/channel_frames.h"
#include "runtime/supervisor/protocol/frames.h"
#include "runtime/supervisor/protocol/job_outcome.h"
#include "runtime/supervisor/protocol/job_spec.h"

namespace {

using namespace accel;
using namespace accel::supervisor;

void require(bool condition) {
  if (!condition) std::abort();
}

void read_event(std::string_view bytes) {
  const auto event = decode_event(bytes);
  if (!event) return;
  const std::string text = encode(*event);
  const auto again = decode_event(text);
  require(again && encode(*again) == text);
}

void read_request(std::string_view bytes) {
  const auto request = decode_request(bytes);
  if (!request) return;
  const std::string text = encode(*request);
  const auto again = decode_request(text);
  require(again && encode(*again) == text);
}

void read_job_spec(std::string_view bytes) {
  const auto spec = job_spec_from_json(bytes);
  if (!spec) return;
  const std::string text = to_json(*spec);
  const auto again = job_spec_from_json(text);
  require(again && to_json(*again) == text);
}

void read_job_outcome(std::string_view bytes) {
  const auto outcome = job_outcome_from_json(bytes);
  if (!outcome) return;
  const std::string text = to_json(*outcome);
  const auto again = job_outcome_from_json(text);
  require(again && to_json(*again) == text);
}

void read_channel_frame(std::string_view bytes) {
  const auto frame = decode_channel_frame(bytes);
  if (!frame) return;
  const auto written = encode_channel_frame(*frame);
  require(written && *written == bytes);  // there is one way to write a frame
}

void read_channel_page(std::string_view bytes) {
  const auto page = std::make_unique<ChannelLayout>();
  std::memcpy(static_cast<void*>(page.get()), bytes.data(), std::min(bytes.size(), kChannelBytes));
  (void)read_heartbeat(page->slot);
  const auto error = read_error(page->error);
  if (error && *error) require((*error)->text.size() <= 3816);
  std::uint64_t first = 0;
  std::memcpy(&first, bytes.data(), std::min(bytes.size(), sizeof(first)));
  require(read_notices(*page, first).texts.size() <= kChannelNotices);
}

constexpr void (*kReaders[])(std::string_view) = {read_event,
                                                  read_request,
                                                  read_job_spec,
                                                  read_job_outcome,
                                                  read_channel_frame,
                                                  read_channel_page};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  kReaders[static_cast<std::size_t>(data[0]) % std::size(kReaders)](bytes.substr(1));
  return 0;
}
