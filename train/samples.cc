#include "train/samples.h"

#include <algorithm>
#include <span>

#include <ATen/Functions.h>

#include <accel/error.h>

#include "runtime/printable.h"
#include "runtime/text/counted.h"
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
      check(path, static_cast<std::int64_t>(table.columns.size()), shape);
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
  static void check(const std::string& path,
                    std::int64_t columns,
                    const std::vector<std::int64_t>& shape) {
    std::int64_t fixed = 1;
    bool is_free = false;
    for (const std::int64_t size : shape) {
      if (size < 0) is_free = true;
      if (size >= 0) fixed *= size;
    }
    if (is_free ? fixed > 0 && columns % fixed == 0 : columns == fixed) return;
    throw Error(ErrorCode::kInvalidArgument,
                printable(path) + " has " + counted(columns, "column") +
                    " besides the class, and the model takes " + std::to_string(fixed) +
                    (is_free ? ", or several times that" : "") + " numbers a sample");
  }

  at::Tensor values_;
  at::Tensor labels_;
};

}  // namespace

Samples::Samples(const TrainSettings& settings,
                 const std::vector<std::string>& files,
                 const std::vector<std::int64_t>& shape,
                 std::int64_t num_tokens) {
  if (settings.task == "causal-lm") {
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
