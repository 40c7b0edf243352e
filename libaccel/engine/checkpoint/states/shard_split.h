// ShardSplit: which tensor goes into which file when a model is too large for one.
//
// Threads:  pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

#include "checkpoint_tools/merge/weights_format.h"

namespace accel::checkpoint {

// Bytes of a size such as "10GB" (10^9), "1.5GiB" (2^30), "500MB", "100KB" or "100" (bytes). A
// lower-case b counts bits, as HF Accelerate has it: "8Gb" is 10^9 bytes. Errors  kInvalidArgument:
// names the text and the forms that are understood, `option` as what to give.
[[nodiscard]] Result<std::uint64_t> parse_size(std::string_view text, const std::string& option);
// The same of save_model()'s option, which is not 0.
[[nodiscard]] Result<std::uint64_t> parse_shard_size(std::string_view text);

struct SizedName {
  std::string name;
  std::uint64_t bytes = 0;
};

// Fills shards in order: a tensor that does not fit any more opens the next shard; one that is
// larger than the limit gets a shard of its own, at the place where it was met.
[[nodiscard]] std::vector<std::vector<std::string>> split_into_shards(
    const std::vector<SizedName>& tensors, std::uint64_t max_bytes);

// "model-00001-of-00003.safetensors"; "model.safetensors" when there is only one. index counts from
// 0. Of torch.save(): "pytorch_model-00001-of-00003.bin", "pytorch_model.bin".
[[nodiscard]] std::string shard_name(size_t index, size_t count, launcher::WeightsFormat format);

// Whether a file of this name may be a shard, or the index, of an earlier save in that format.
[[nodiscard]] bool is_shard_name(std::string_view name, launcher::WeightsFormat format);
[[nodiscard]] std::string shard_index_name(launcher::WeightsFormat format);

}  // namespace accel::checkpoint
