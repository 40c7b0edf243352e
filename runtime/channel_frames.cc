#include "runtime/channel_frames.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

namespace accel {

static_assert(std::endian::native == std::endian::little,
              "frames are little-endian and numbers are copied as they are");

namespace {

enum Type : std::uint32_t {
  kGetShared = 1,
  kCommit = 2,
  kReport = 3,
  kBye = 4,
  kDropShared = 5,
  kReply = 256,
};

struct Header {
  std::uint32_t type;
  std::uint32_t payload_bytes;
  std::uint64_t id;
};
static_assert(sizeof(Header) == 16);

class Writer {
 public:
  template <typename T>
  Writer& number(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Writer& text(std::string_view value) {
    number(static_cast<std::uint32_t>(value.size()));
    out_.append(value);
    return *this;
  }
  [[nodiscard]] std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

// Reads fields off the front; after the first that is not there, everything fails.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T number() {
    T value{};
    if (rest_.size() < sizeof(value)) return fail(), value;
    std::memcpy(&value, rest_.data(), sizeof(value));
    rest_.remove_prefix(sizeof(value));
    return value;
  }
  std::string text() {
    const auto length = number<std::uint32_t>();
    if (rest_.size() < length) return fail(), std::string();
    std::string value(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return value;
  }
  void fail() {
    is_good_ = false;
    rest_ = {};
  }
  // All was there, and nothing else.
  [[nodiscard]] bool ended_well() const { return is_good_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool is_good_ = true;
};

struct Encoder {
  Writer& out;
  std::uint32_t operator()(const GetSharedFrame& frame) const {
    const std::uint32_t keep = frame.keep == Keep::kJob ? 1 : 0;
    out.number(frame.bytes).number(keep).text(frame.name);
    return kGetShared;
  }
  std::uint32_t operator()(const CommitFrame& frame) const {
    out.number(frame.step).text(frame.path).text(frame.digest);
    return kCommit;
  }
  std::uint32_t operator()(const ReportFrame& frame) const {
    out.text(frame.text);
    return kReport;
  }
  std::uint32_t operator()(const ByeFrame&) const { return kBye; }
  std::uint32_t operator()(const DropSharedFrame& frame) const {
    out.text(frame.name);
    return kDropShared;
  }
  std::uint32_t operator()(const ReplyFrame& frame) const {
    out.number(static_cast<std::uint32_t>(frame.status)).text(frame.text);
    return kReply;
  }
};

GetSharedFrame read_get_shared(Reader& in) {
  GetSharedFrame frame;
  frame.bytes = in.number<std::uint64_t>();
  const auto keep = in.number<std::uint32_t>();
  frame.keep = keep == 1 ? Keep::kJob : Keep::kGeneration;
  frame.name = in.text();
  if (keep > 1) in.fail();
  return frame;
}

ReplyFrame read_reply(Reader& in) {
  ReplyFrame frame;
  const auto status = in.number<std::uint32_t>();
  if (status > static_cast<std::uint32_t>(ChannelStatus::kStale)) in.fail();
  frame.status = static_cast<ChannelStatus>(status);
  frame.text = in.text();
  return frame;
}

Error malformed(std::size_t size, const std::string& what) {
  return {ErrorCode::kProtocol,
          "a frame of " + std::to_string(size) + " bytes on the worker channel " + what};
}

}  // namespace

Result<std::string> encode_channel_frame(const ChannelFrame& frame) {
  Writer payload;
  const std::uint32_t type = std::visit(Encoder{payload}, frame.body);
  const std::string body = payload.take();
  if (sizeof(Header) + body.size() > kMaxChannelFrame) {
    return Error(ErrorCode::kInvalidArgument,
                 "a message of " + std::to_string(body.size()) +
                     " bytes does not fit the worker channel (limit " +
                     std::to_string(kMaxChannelFrame - sizeof(Header)) + ")",
                 "write it to a file and send the file's name");
  }
  Writer whole;
  whole.number(Header{type, static_cast<std::uint32_t>(body.size()), frame.id});
  return whole.take() + body;
}

Result<ChannelFrame> decode_channel_frame(std::string_view bytes) {
  Header header{};
  if (bytes.size() < sizeof(header) || bytes.size() > kMaxChannelFrame) {
    return malformed(bytes.size(), "has an impossible size");
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.payload_bytes != bytes.size() - sizeof(header)) {
    return malformed(bytes.size(),
                     "says it has " + std::to_string(header.payload_bytes) + " bytes of payload");
  }
  Reader in(bytes.substr(sizeof(header)));
  ChannelFrame frame{header.id, ByeFrame{}};
  switch (header.type) {
    case kGetShared:
      frame.body = read_get_shared(in);
      break;
    case kCommit: {
      const auto step = in.number<std::uint64_t>();
      std::string path = in.text();
      frame.body = CommitFrame{step, std::move(path), in.text()};
      break;
    }
    case kReport:
      frame.body = ReportFrame{in.text()};
      break;
    case kBye:
      break;
    case kDropShared:
      frame.body = DropSharedFrame{in.text()};
      break;
    case kReply:
      frame.body = read_reply(in);
      break;
    default:
      return malformed(bytes.size(), "has the unknown type " + std::to_string(header.type));
  }
  if (!in.ended_well()) {
    return malformed(bytes.size(),
                     "of type " + std::to_string(header.type) + " has fields that do not fill it");
  }
  return frame;
}

bool is_shared_name(std::string_view name) noexcept {
  return !name.empty() && name.size() <= kMaxSharedName &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '.' || c == '-';
         });
}

}  // namespace accel
