#include "agent/coordinator/election/reign.h"

#include <utility>

namespace accel::agent {

Result<Reign> take_over(std::unique_ptr<StateStore> store,
                        std::optional<std::uint64_t> epoch,
                        const CoordinatorConfig& config,
                        TimePoint now) {
  const std::vector<Record> records = store->records();
  auto beginning = recover(records, epoch.value_or(recorded_epoch(records) + 1), config, now);
  if (!beginning)
    return std::move(beginning).error().while_doing("reading the coordinator's records");
  Reign reign{*std::move(beginning), std::move(store), nullptr};
  Actions later;
  for (Action& action : reign.beginning.actions) {
    const auto* persist = std::get_if<Persist>(&action);
    if (persist == nullptr) {
      later.push_back(std::move(action));
    } else if (auto written = reign.store->write(persist->record, persist->sync); !written) {
      return std::move(written).error().while_doing("writing the coordinator's epoch");
    }
  }
  reign.beginning.actions = std::move(later);
  return reign;
}

}  // namespace accel::agent
