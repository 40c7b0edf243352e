#include "runtime/supervisor/dashboard/dashboard_state.h"

#include <nlohmann/json.hpp>

#include "runtime/printable.h"

namespace accel::supervisor {
namespace {

using Json = nlohmann::json;

Json json_of(const DashboardJob& job);
Json json_of(const DashboardNode& node);

Json json_of(const DashboardRank& rank) {
  Json json = {
      {"rank", rank.rank}, {"local_rank", rank.local_rank}, {"node", rank.node}, {"pid", rank.pid}};
  if (!rank.end.empty()) json["end"] = rank.end;
  if (!rank.reports) return json;
  json["step"] = rank.step;
  json["silent_seconds"] = rank.silent_seconds;
  if (rank.seconds_per_step > 0) json["seconds_per_step"] = rank.seconds_per_step;
  return json;
}

Json json_of(const JobTimeline::Event& event) {
  Json json = {{"wall_seconds", event.wall_seconds},
               {"kind", event.kind},
               {"generation", event.generation},
               {"text", printable(event.text)}};
  if (event.rank >= 0) json["rank"] = event.rank;
  return json;
}

template <typename Items>
Json list_of(const Items& items) {
  Json list = Json::array();
  for (const auto& item : items) list.push_back(json_of(item));
  return list;
}

Json json_of(const DashboardJob& job) {
  Json json = {{"id", printable(job.id)},
               {"uuid", job.uuid},
               {"user", printable(job.user)},
               {"state", job.state},
               {"reason", printable(job.reason)},
               {"generation", job.generation},
               {"restarts", job.restarts},
               {"has_logs", job.has_logs},
               {"has_curves", job.has_curves},
               {"ranks", list_of(job.ranks)},
               {"events", list_of(job.events)}};
  if (!job.has_ledger) return json;
  Json phases = Json::object();
  for (const Account phase : kAccountsOfTime)
    phases[std::string(name_of(phase))] = seconds_of(job.ledger.of(phase));
  json["seconds"] = std::move(phases);
  return json;
}

Json json_of(const DashboardNode& node) {
  return {{"id", printable(node.id)},
          {"state", node.state},
          {"endpoint", node.endpoint},
          {"slots", node.slots}};
}

}  // namespace

std::string to_json(const DashboardState& state) {
  const DashboardRefusals& refusals = state.refusals;
  const Json json = {{"program", state.program},
                     {"version", state.version},
                     {"node", printable(state.node)},
                     {"notice", printable(state.notice)},
                     {"wall_seconds", state.wall_seconds},
                     {"is_over", state.is_over},
                     {"is_drained", state.is_drained},
                     {"jobs", list_of(state.jobs)},
                     {"nodes", list_of(state.nodes)},
                     {"refusals",
                      {{"unauthenticated", refusals.unauthenticated},
                       {"cross_site", refusals.cross_site},
                       {"wrong_host", refusals.wrong_host},
                       {"forbidden", refusals.forbidden},
                       {"dropped", refusals.dropped}}}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void add_refusals(MetricPage& page, const DashboardRefusals& refusals) {
  const std::pair<std::string_view, std::uint64_t> counts[] = {
      {"unauthenticated", refusals.unauthenticated},
      {"cross_site", refusals.cross_site},
      {"wrong_host", refusals.wrong_host},
      {"forbidden", refusals.forbidden},
      {"dropped", refusals.dropped}};
  for (const auto& [cause, count] : counts)
    page.add(Metric::kDashboardRefusals, {cause}, static_cast<double>(count));
}

void add_sight(DashboardRank& rank, const JobCounters::Sight& sight, TimePoint now) {
  rank.reports = true;
  rank.step = sight.step;
  rank.silent_seconds = seconds_of(now - sight.beat_at);
  rank.seconds_per_step = sight.seconds_per_step;
}

}  // namespace accel::supervisor
