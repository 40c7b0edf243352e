// EventMessage: the events of TensorBoard, and how a file holds them.
//
//   file    := record*, the first one an event with file_version "brain.Event:2"
//   record  := u64 length | u32 masked crc32c(length) | event | u32 masked crc32c(event)      all little-endian
//
// Threads:  pure functions.
// Source:   TensorBoard's event.proto, summary.proto, tensor.proto and hparams' api.proto and plugin_data.proto, whose numbers of fields stand in
//           event_message.cc; torch/utils/tensorboard/summary.py, whose summaries these are byte for byte in meaning.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <accel/tracker_value.h>

#include "libaccel/tracking/wire_message.h"

namespace accel::tracking {

struct Histogram {
  double min = 0;
  double max = 0;
  double count = 0;
  double sum = 0;
  double sum_squares = 0;
  std::vector<double> limits;  // the right ends of the buckets
  std::vector<double> counts;  // by bucket
};

// With the bins of SummaryWriter.add_histogram(bins="tensorflow"): limits of 1e-12 * 1.1^k, both signs, and 0.
// Requires: values are finite, at least one.
[[nodiscard]] Histogram histogram_of(std::span<const double> values);

// Summaries, one value each.
[[nodiscard]] WireMessage scalar_summary(std::string_view tag, double value);
[[nodiscard]] WireMessage text_summary(std::string_view tag, std::string_view text);
[[nodiscard]] WireMessage histogram_summary(std::string_view tag, const Histogram& histogram);
// The pictures in rows of eight, as SummaryWriter.add_images.
[[nodiscard]] WireMessage image_summary(std::string_view tag, const ImageBatch& images);

// What SummaryWriter.add_hparams(values, metric_dict={}) writes, in its order. None is left out; lists and dictionaries are as their
// JSON texts, where Accelerate throws.
[[nodiscard]] std::vector<WireMessage> hparams_summaries(const TrackerDict& values);

// Records.
[[nodiscard]] std::string version_record(double wall_time);
[[nodiscard]] std::string event_record(const WireMessage& summary,
                                       std::optional<std::int64_t> step,
                                       double wall_time);

}  // namespace accel::tracking
