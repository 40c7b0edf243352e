#include "libaccel/engine/checkpoint/series/fsdp_part.h"

#include <memory>
#include <string>
#include <vector>

#include "libaccel/engine/checkpoint/files/target_folder.h"
#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"
#include "libaccel/engine/checkpoint/series/background_save.h"
#include "libaccel/engine/checkpoint/series/checkpoint_reader.h"
#include "libaccel/engine/checkpoint/states/accelerate_source.h"
#include "runtime/checkpoint/layout.h"

namespace accel::checkpoint {
namespace {

// The object of that number, as the first and only one.
class PartSource final : public CheckpointSource {
 public:
  PartSource(const std::filesystem::path& folder,
             const CheckpointObjects& objects,
             FsdpPart part,
             std::size_t number)
      : of_all_(objects),
        stem_(numbered(part == FsdpPart::kModel ? "model" : "optimizer", number)) {
    // Where the source looks for the one of that number.
    if (part == FsdpPart::kOptimizer)
      of_all_.optimizers.resize(number + 1, objects.optimizers.front());
    folder_ = std::make_unique<AccelerateSource>(folder, of_all_, stem_);
    manifest_.objects.models = part == FsdpPart::kModel ? 1 : 0;
    manifest_.objects.optimizers = part == FsdpPart::kOptimizer ? 1 : 0;
  }

  [[nodiscard]] const std::filesystem::path& name() const noexcept override {
    return folder_->name();
  }
  [[nodiscard]] const Manifest& manifest() const noexcept override { return manifest_; }
  [[nodiscard]] bool has(const std::string& file) const override { return folder_->has(file); }
  [[nodiscard]] std::string text(const std::string& file) override {
    return folder_->text(renamed(file));
  }
  [[nodiscard]] LoadedParts parts(const std::string& file,
                                  const PartsWanted& wanted,
                                  LoadedMemory memory) override {
    return folder_->parts(renamed(file), wanted, memory);
  }
  [[nodiscard]] std::vector<std::string> notices() const override { return folder_->notices(); }

 private:
  [[nodiscard]] std::string renamed(const std::string& file) const {
    return stem_ + file.substr(file.rfind('.'));
  }

  CheckpointObjects of_all_;
  std::string stem_;
  std::unique_ptr<AccelerateSource> folder_;
  Manifest manifest_;
};

}  // namespace

LoadReport load_fsdp_part(const std::filesystem::path& name,
                          const CheckpointObjects& objects,
                          FsdpPart part,
                          std::size_t number) {
  background_saves().wait();
  const std::unique_ptr<RankExchange> ranks = current_ranks();
  const std::filesystem::path folder = absolute_name(name);
  try {
    std::unique_ptr<StagedCheckpoint> staged;
    agree_on(*ranks, [&] {
      PartSource source(folder, objects, part, number);
      staged = std::make_unique<StagedCheckpoint>(source, objects, ranks->rank());
    });
    // There are none; it says whether somebody has written to the files.
    agree_on(*ranks, [&] { staged->apply_states(); });
    agree_on(*ranks, [&] { staged->apply_tensors(); });
    LoadReport report = {.checkpoint = staged->info(), .notices = staged->notices()};
    report.checkpoint.folder = folder;
    return report;
  } catch (Error& error) {
    error.while_doing("loading from " + folder.string());
    throw;
  }
}

}  // namespace accel::checkpoint
