#include "train/samples.h"

#include <algorithm>
#include <iterator>
#include <span>

#include <ATen/Functions.h>

#include <accel/error.h>

#include "runtime/printable.h"
#include "runtime/text/counted.h"
#include "train/array_file.h"
#include "train/labelled_table.h"
#include "train/token_file.h"

namespace accel::train {

class SampleSource {
 public:
  virtual ~SampleSource() = default;
  [[nodiscard]] virtual torch::data::Example<> get(std::size_t index) const = 0;
  [[nodiscard]] virtual std::size_t size() const = 0;
};

namespace {

// Sample i lies in the file before whose end it is.
class TokenSamples : public SampleSource {
 public:
  TokenSamples(const std::vector<std::string>& paths, std::int64_t length, std::int64_t num_tokens)
      : length_(length), num_tokens_(num_tokens), paths_(paths) {
    for (const std::string& path : paths) {
      const TokenFile& file = files_.emplace_back(path);
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) +
                      static_cast<std::size_t>(file.size() / length));
    }
    if (ends_.back() != 0) return;
    throw Error(ErrorCode::kInvalidArgument,
                "no file has " + std::to_string(length) + " tokens: " + printable(paths.front()) +
                    " has " + counted(files_.front().size(), "token"),
                "give a shorter --sequence_length, or more data");
  }

  torch::data::Example<> get(std::size_t index) const override {
    const auto end = std::ranges::upper_bound(ends_, index);
    const std::size_t file = static_cast<std::size_t>(end - ends_.begin());
    const std::size_t begin = file == 0 ? 0 : ends_[file - 1];
    at::Tensor tokens = at::empty({length_}, at::kLong);
    files_[file].read(static_cast<std::int64_t>(index - begin) * length_,
                      {tokens.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(length_)});
    check({tokens.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(length_)}, file);
    return {tokens, tokens};
  }
  std::size_t size() const override { return ends_.back(); }

 private:
  // An operator would say no more than that an index is out of range.
  void check(std::span<const std::int64_t> tokens, std::size_t file) const {
    const auto [least, most] = std::ranges::minmax_element(tokens);
    if (num_tokens_ < 0 || (*least >= 0 && *most < num_tokens_)) return;
    throw Error(ErrorCode::kInvalidArgument,
                printable(paths_[file]) + " has the token " +
                    std::to_string(*least < 0 ? *least : *most) +
                    ", and the model knows those from 0 to " + std::to_string(num_tokens_ - 1),
                "tokenize with the tokenizer that belongs to the model");
  }

  std::int64_t length_;
  std::int64_t num_tokens_;
  std::vector<std::string> paths_;
  std::vector<TokenFile> files_;
  std::vector<std::size_t> ends_;  // samples of this file and those before it
};

// Of a row of `count` numbers without its class.
void check_row(const std::string& path,
               std::int64_t count,
               const char* what,
               const std::vector<std::int64_t>& shape) {
  std::int64_t fixed = 1;
  bool is_free = false;
  for (const std::int64_t size : shape) {
    if (size < 0) is_free = true;
    if (size >= 0) fixed *= size;
  }
  if (is_free ? fixed > 0 && count % fixed == 0 : count == fixed) return;
  throw Error(ErrorCode::kInvalidArgument,
              printable(path) + " has " + counted(count, what) +
                  " besides the class, and the model takes " + std::to_string(fixed) +
                  (is_free ? ", or several times that" : "") + " numbers a sample");
}

class TableSamples : public SampleSource {
 public:
  TableSamples(const std::vector<std::string>& paths,
               const std::string& label_column,
               const std::vector<std::int64_t>& shape) {
    std::vector<at::Tensor> values;
    std::vector<at::Tensor> labels;
    for (const std::string& path : paths) {
      const LabelledTable table = read_labelled_table(path, label_column);
      const auto rows = static_cast<std::int64_t>(table.num_rows());
      check_row(path, static_cast<std::int64_t>(table.columns.size()), "column", shape);
      std::vector<std::int64_t> sizes = {rows};
      sizes.insert(sizes.end(), shape.begin(), shape.end());
      values.push_back(at::tensor(table.values).view(sizes));
      labels.push_back(at::tensor(table.labels));
    }
    values_ = at::cat(values);
    labels_ = at::cat(labels);
  }

  torch::data::Example<> get(std::size_t index) const override {
    const auto row = static_cast<std::int64_t>(index);
    return {values_[row], labels_[row]};
  }
  std::size_t size() const override { return static_cast<std::size_t>(labels_.size(0)); }

 private:
  at::Tensor values_;
  at::Tensor labels_;
};

at::ScalarType scalar_type(ElementType type) {
  switch (type) {
    case ElementType::kBool:
      return at::kBool;
    case ElementType::kU8:
      return at::kByte;
    case ElementType::kI8:
      return at::kChar;
    case ElementType::kI16:
      return at::kShort;
    case ElementType::kI32:
      return at::kInt;
    case ElementType::kI64:
      return at::kLong;
    case ElementType::kF16:
      return at::kHalf;
    case ElementType::kF32:
      return at::kFloat;
    case ElementType::kF64:
      return at::kDouble;
  }
  return at::kFloat;
}

// The classes of a .npy file with one number a sample.
at::Tensor read_labels(const std::string& path, std::uint64_t num_samples) {
  const TokenFile file(path);
  if (static_cast<std::uint64_t>(file.size()) != num_samples)
    throw Error(ErrorCode::kInvalidArgument,
                printable(path) + " has " + counted(file.size(), "label") + " for " +
                    counted(num_samples, "sample"),
                "give one label for each sample");
  at::Tensor labels = at::empty({file.size()}, at::kLong);
  file.read(0, {labels.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(file.size())});
  if (const auto least = labels.min().item<std::int64_t>(); least < 0)
    throw Error(ErrorCode::kInvalidArgument,
                printable(path) + " has the class " + std::to_string(least),
                "classes are counted from 0 on");
  return labels;
}

class ArraySamples : public SampleSource {
 public:
  ArraySamples(const TrainSettings& settings,
               const std::vector<std::string>& paths,
               const std::vector<std::string>& label_paths,
               const std::vector<std::int64_t>& shape)
      : scale_(settings.scale), channels_last_(settings.channels_last), shape_(shape) {
    if (paths.size() != label_paths.size())
      throw Error(ErrorCode::kInvalidArgument,
                  counted(paths.size(), "file") + " of samples, and " +
                      counted(label_paths.size(), "file") + " of classes",
                  "name one .npy of --labels (--eval_labels) for each of --data (--eval_data)");
    std::vector<at::Tensor> labels;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      const ArrayFile& file = files_.emplace_back(paths[i]);
      std::int64_t numbers = 1;
      for (const std::int64_t size : file.row_shape()) numbers *= size;
      if (channels_last_ && file.row_shape().size() != 3)
        throw Error(ErrorCode::kInvalidArgument,
                    printable(paths[i]) + " has samples of " +
                        counted(file.row_shape().size(), "dimension") +
                        ", and --channels_last is for images: height, width, channels");
      check_row(paths[i], numbers, "number", shape);
      check_order(paths[i], file.row_shape());
      labels.push_back(read_labels(label_paths[i], file.num_rows()));
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + file.num_rows());
    }
    labels_ = at::cat(labels);
    mean_ = by_channel("--mean", settings.mean);
    std_ = by_channel("--std", settings.stddev);
  }

  torch::data::Example<> get(std::size_t index) const override {
    const auto end = std::ranges::upper_bound(ends_, index);
    const std::size_t number = static_cast<std::size_t>(end - ends_.begin());
    const ArrayFile& file = files_[number];
    at::Tensor row = at::empty(file.row_shape(), scalar_type(file.type()));
    file.read(index - (number == 0 ? 0 : ends_[number - 1]),
              {static_cast<std::byte*>(row.mutable_data_ptr()), file.row_bytes()});
    row = row.to(at::kFloat);
    if (channels_last_) row = row.permute({2, 0, 1});
    row = row.reshape(shape_);
    if (scale_ != 1.0) row = row / scale_;
    if (mean_.defined()) row = row - mean_;
    if (std_.defined()) row = row / std_;
    return {row.contiguous(), labels_[static_cast<std::int64_t>(index)]};
  }
  std::size_t size() const override { return ends_.back(); }

 private:
  // As many numbers in another order would be taken for the same samples.
  void check_order(const std::string& path, std::vector<std::int64_t> sizes) const {
    if (sizes.size() != shape_.size()) return;
    if (channels_last_) std::ranges::rotate(sizes, std::prev(sizes.end()));
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (shape_[i] < 0 || shape_[i] == sizes[i]) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  printable(path) + " has samples of " + c10::str(at::IntArrayRef(sizes)) +
                      (channels_last_ ? " with channels first" : "") + ", and the model takes " +
                      c10::str(at::IntArrayRef(shape_)),
                  channels_last_ ? "leave --channels_last out, or save them in the model's shape"
                                 : "say --channels_last where channels are last, or save them in "
                                   "the model's shape");
    }
  }

  // One number for all, or one for each of the sample's first dimension.
  at::Tensor by_channel(const char* flag, const std::vector<double>& numbers) const {
    if (numbers.empty()) return {};
    const auto count = static_cast<std::int64_t>(numbers.size());
    if (count != 1 && (shape_.empty() || shape_.front() != count))
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(flag) + " has " + counted(count, "number") +
                      ", and the model's samples have " +
                      (shape_.empty() ? "no channels" : counted(shape_.front(), "channel")),
                  "give one number, or one for each channel");
    std::vector<std::int64_t> sizes(std::max<std::size_t>(shape_.size(), 1), 1);
    sizes.front() = count;
    const at::Tensor values = at::tensor(numbers, at::kFloat);
    return shape_.empty() ? values.reshape({}) : values.view(sizes);
  }

  double scale_;
  bool channels_last_;
  std::vector<std::int64_t> shape_;
  std::vector<ArrayFile> files_;
  std::vector<std::size_t> ends_;  // samples of this file and those before it
  at::Tensor labels_;
  at::Tensor mean_;  // in the shape of a sample's channels; not defined: none
  at::Tensor std_;
};

// What is for arrays alone has no effect on tables: an error.
void check_no_arrays(const TrainSettings& settings, const std::vector<std::string>& labels) {
  const char* flag = !labels.empty()            ? "--labels or --eval_labels"
                     : settings.scale != 1.0    ? "--scale"
                     : !settings.mean.empty()   ? "--mean"
                     : !settings.stddev.empty() ? "--std"
                     : settings.channels_last   ? "--channels_last"
                                                : nullptr;
  if (flag == nullptr) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(flag) + " is for .npy files with --task classification",
              "leave it out, or save the samples with numpy.save()");
}

}  // namespace

Samples::Samples(const TrainSettings& settings,
                 const std::vector<std::string>& files,
                 const std::vector<std::string>& labels,
                 const std::vector<std::int64_t>& shape,
                 std::int64_t num_tokens) {
  const bool is_causal = settings.task == "causal-lm";
  if (!is_causal && files.front().ends_with(".npy")) {
    source_ = std::make_shared<ArraySamples>(settings, files, labels, shape);
    return;
  }
  check_no_arrays(settings, labels);
  if (is_causal) {
    source_ = std::make_shared<TokenSamples>(files, settings.sequence_length, num_tokens);
  } else {
    source_ = std::make_shared<TableSamples>(files, settings.label_column, shape);
  }
}

torch::data::Example<> Samples::get(std::size_t index) const {
  return source_->get(index);
}

std::size_t Samples::size() const {
  return source_->size();
}

}  // namespace accel::train
