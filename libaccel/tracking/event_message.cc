#include "libaccel/tracking/event_message.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "libaccel/tracking/png_image.h"
#include "libaccel/tracking/value_text.h"
#include "runtime/checksum.h"

namespace accel::tracking {
namespace {

// event.proto
enum EventField { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5 };
// summary.proto
enum SummaryField { kSummaryValue = 1 };
enum ValueField { kTag = 1, kSimpleValue = 2, kImage = 4, kHisto = 5, kTensor = 8, kMetadata = 9 };
enum ImageField { kHeight = 1, kWidth = 2, kColorspace = 3, kEncodedImage = 4 };
enum MetadataField { kPluginData = 1 };
enum PluginDataField { kPluginName = 1, kPluginContent = 2 };
// histogram.proto
enum HistogramField {
  kMin = 1,
  kMax = 2,
  kNum = 3,
  kSum = 4,
  kSumSquares = 5,
  kLimit = 6,
  kBucket = 7
};
// tensor.proto, tensor_shape.proto
enum TensorField { kDtype = 1, kShape = 2, kStringVal = 8 };
enum ShapeField { kDim = 2 };
enum DimField { kSize = 1 };
constexpr int kDtString = 7;
// plugins/hparams/plugin_data.proto, api.proto; struct.proto
enum HParamsField { kVersion = 1, kExperiment = 2, kSessionStart = 3, kSessionEnd = 4 };
enum SessionStartField { kHparams = 1 };
enum SessionEndField { kStatus = 1 };
enum ExperimentField { kHparamInfos = 4 };
enum HParamInfoField { kInfoName = 1, kInfoType = 4 };
enum MapEntryField { kMapKey = 1, kMapValue = 2 };
enum StructValueField { kNumberValue = 2, kStringValue = 3 };
constexpr int kTypeString = 1;
constexpr int kTypeFloat64 = 3;
constexpr int kStatusSuccess = 1;

WireMessage summary_of(const WireMessage& value) {
  return WireMessage().add_message(kSummaryValue, value);
}

WireMessage plugin_metadata(std::string_view plugin, std::string_view content) {
  return WireMessage().add_message(
      kPluginData, WireMessage().add_bytes(kPluginName, plugin).add_bytes(kPluginContent, content));
}

WireMessage hparams_summary(std::string_view tag, int field, const WireMessage& content) {
  const WireMessage data = WireMessage().add_int(kVersion, 0).add_message(field, content);
  return summary_of(WireMessage().add_bytes(kTag, tag).add_message(
      kMetadata, plugin_metadata("hparams", data.bytes())));
}

std::string little_endian(std::uint64_t value, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFF);
  return bytes;
}

// A checksum of data that holds checksums is weak: hence TFRecord's mask.
std::string masked_checksum(std::string_view bytes) {
  const std::uint32_t crc = crc32c_of(bytes);
  return little_endian(((crc >> 15) | (crc << 17)) + 0xA282EAD8U, 4);
}

std::string record_of(const WireMessage& event) {
  const std::string length = little_endian(event.bytes().size(), 8);
  return length + masked_checksum(length) + event.bytes() + masked_checksum(event.bytes());
}

// The limits that all histograms share, ascending.
const std::vector<double>& default_limits() {
  static const std::vector<double> limits = [] {
    std::vector<double> positive;
    for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
    std::vector<double> all(positive.rbegin(), positive.rend());
    for (double& limit : all) limit = -limit;
    all.push_back(0);
    all.insert(all.end(), positive.begin(), positive.end());
    return all;
  }();
  return limits;
}

// How many values lie in each bin [limit, next limit); the last one has its right end too, as numpy.histogram.
std::vector<double> counts_of(std::span<const double> values, const std::vector<double>& limits) {
  std::vector<double> counts(limits.size() - 1, 0);
  for (const double value : values) {
    if (value < limits.front() || value > limits.back()) continue;
    const auto above = std::upper_bound(limits.begin(), limits.end(), value);
    const auto bin = static_cast<std::size_t>(above - limits.begin()) - 1;
    ++counts[std::min(bin, counts.size() - 1)];
  }
  return counts;
}

}  // namespace

Histogram histogram_of(std::span<const double> values) {
  const std::vector<double>& limits = default_limits();
  const std::vector<double> counts = counts_of(values, limits);
  Histogram histogram;
  histogram.min = histogram.max = values[0];
  for (const double value : values) {
    histogram.min = std::min(histogram.min, value);
    histogram.max = std::max(histogram.max, value);
    histogram.sum += value;
    histogram.sum_squares += value * value;
  }
  histogram.count = static_cast<double>(values.size());
  const auto is_filled = [](double count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), is_filled) - counts.begin();
  if (first == static_cast<std::ptrdiff_t>(counts.size())) {  // all beyond 1e20
    histogram.limits = {histogram.min, histogram.max};
    histogram.counts = {0, histogram.count};
    return histogram;
  }
  const auto end = counts.rend() - std::find_if(counts.rbegin(), counts.rend(), is_filled);
  // TensorBoard knows right ends alone: an empty bucket in front gives the first one its left end.
  histogram.counts = {0};
  histogram.counts.insert(histogram.counts.end(), counts.begin() + first, counts.begin() + end);
  histogram.limits.assign(limits.begin() + first, limits.begin() + end + 1);
  return histogram;
}

WireMessage scalar_summary(std::string_view tag, double value) {
  return summary_of(
      WireMessage().add_bytes(kTag, tag).add_float(kSimpleValue, static_cast<float>(value)));
}

WireMessage text_summary(std::string_view tag, std::string_view text) {
  const WireMessage shape = WireMessage().add_message(kDim, WireMessage().add_int(kSize, 1));
  const WireMessage tensor = WireMessage()
                                 .add_int(kDtype, kDtString)
                                 .add_message(kShape, shape)
                                 .add_bytes(kStringVal, text);
  return summary_of(WireMessage()
                        .add_bytes(kTag, std::string(tag) + "/text_summary")
                        .add_message(kMetadata, plugin_metadata("text", ""))
                        .add_message(kTensor, tensor));
}

WireMessage histogram_summary(std::string_view tag, const Histogram& histogram) {
  const WireMessage histo = WireMessage()
                                .add_double(kMin, histogram.min)
                                .add_double(kMax, histogram.max)
                                .add_double(kNum, histogram.count)
                                .add_double(kSum, histogram.sum)
                                .add_double(kSumSquares, histogram.sum_squares)
                                .add_packed(kLimit, histogram.limits)
                                .add_packed(kBucket, histogram.counts);
  return summary_of(WireMessage().add_bytes(kTag, tag).add_message(kHisto, histo));
}

WireMessage image_summary(std::string_view tag, const ImageBatch& images) {
  const PixelGrid grid = pixel_grid(images);
  const WireMessage image = WireMessage()
                                .add_int(kHeight, grid.height)
                                .add_int(kWidth, grid.width)
                                .add_int(kColorspace, 3)
                                .add_bytes(kEncodedImage, png_of(grid));
  return summary_of(WireMessage().add_bytes(kTag, tag).add_message(kImage, image));
}

std::vector<WireMessage> hparams_summaries(const TrackerDict& values) {
  WireMessage experiment;
  WireMessage session_start;
  for (const auto& [name, value] : values) {
    if (std::holds_alternative<std::monostate>(value.data())) continue;
    WireMessage struct_value;
    if (value.is_number()) {
      struct_value.add_double(kNumberValue, value.number());
    } else {
      struct_value.add_bytes(kStringValue,
                             value.text() != nullptr ? *value.text() : json_text(value));
    }
    session_start.add_message(
        kHparams, WireMessage().add_bytes(kMapKey, name).add_message(kMapValue, struct_value));
    experiment.add_message(kHparamInfos,
                           WireMessage()
                               .add_bytes(kInfoName, name)
                               .add_int(kInfoType, value.is_number() ? kTypeFloat64 : kTypeString));
  }
  const WireMessage session_end = WireMessage().add_int(kStatus, kStatusSuccess);
  return {hparams_summary("_hparams_/experiment", kExperiment, experiment),
          hparams_summary("_hparams_/session_start_info", kSessionStart, session_start),
          hparams_summary("_hparams_/session_end_info", kSessionEnd, session_end)};
}

std::string version_record(double wall_time) {
  return record_of(
      WireMessage().add_double(kWallTime, wall_time).add_bytes(kFileVersion, "brain.Event:2"));
}

std::string event_record(const WireMessage& summary,
                         std::optional<std::int64_t> step,
                         double wall_time) {
  WireMessage event;
  event.add_double(kWallTime, wall_time);
  if (step) event.add_int(kStep, *step);
  return record_of(event.add_message(kSummary, summary));
}

}  // namespace accel::tracking
