// JournalSink: the entries of a tracker with a Python SDK, in a file that the SDK's process reads (tracker_bridge.py).
//
//   {"op":"start","tracker":"wandb","project":P,"logging_dir":D,"kwargs":{...}}
//   {"op":"config","values":{...}}
//   {"op":"log","values":{...},"step":3,"kwargs":{...},"time":1767225600.5}
//   {"op":"images","values":{NAME:{"count":1,"height":H,"width":W,"channels":3,"pixels":BASE64}},...}
//   {"op":"call","name":"log_table","kwargs":{...}}
//   {"op":"finish"}
//
// A lock on the file says that its writer lives. The reader removes it when it has done all of it.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>

#include "libaccel/tracking/bridge_process.h"
#include "libaccel/tracking/track_sink.h"

namespace accel::tracking {

struct JournalStart {
  std::string tracker;
  std::string project;
  std::string logging_dir;  // of the SDK; empty: "."
  TrackerDict kwargs;
};

class JournalSink final : public TrackSink {
 public:
  JournalSink(std::filesystem::path path,
              const JournalStart& start,
              std::shared_ptr<BridgeProcess> bridge);

  void write(const TrackEntry& entry) override;
  Backlog drain() override;
  [[nodiscard]] bool needs_tending() const override { return bridge_ != nullptr; }
  [[nodiscard]] bool is_done() const override { return is_done_.load(); }
  [[nodiscard]] bool has_failed() const { return has_failed_.load(); }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return file_.path(); }

 private:
  void hear();
  void end();

  std::string tracker_;
  AppendFile file_;
  std::shared_ptr<BridgeProcess> bridge_;  // until it is done, or failed
  bool is_served_ = false;
  bool has_grown_ = false;
  std::atomic<bool> is_done_{false};
  std::atomic<bool> has_failed_{false};
};

}  // namespace accel::tracking
