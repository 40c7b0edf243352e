// EventFolder: the event files of one run for TensorBoard: <folder>/events.out.tfevents.*, and folders below it.
//
//   <folder>/                    scalars, texts, pictures, histograms
//   <folder>/<name>_<inner>/     a scalar of a dictionary, tag <name>
//   <folder>/<time>/             the configuration: hparams, hparams.yml
//
// Source:   torch/utils/tensorboard/writer.py, accelerate/tracking.py.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "libaccel/tracking/track_sink.h"

namespace accel::tracking {

class EventFolder final : public TrackSink {
 public:
  EventFolder(std::filesystem::path folder, std::string suffix);

  void write(const TrackEntry& entry) override;
  Backlog drain() override;

 private:
  // The event file of a folder, made with its first record.
  AppendFile& file_in(const std::filesystem::path& folder, double wall_time);
  void write_values(const TrackEntry& entry);
  void write_config(const TrackEntry& entry);

  std::filesystem::path folder_;
  std::string suffix_;
  std::map<std::filesystem::path, AppendFile> files_;
};

}  // namespace accel::tracking
