#include "launcher/start/elastic/elastic_settings.h"

#include "launcher/workers/node_range.h"
#include "runtime/supervisor/protocol/json_fields.h"

namespace accel::launcher {
namespace {

// Each member once, for both directions.
template <typename T, typename Visit>
void each_setting(T& settings, Visit&& visit) {
  visit("meeting", settings.meeting);
  visit("min_nodes", settings.min_nodes);
  visit("max_nodes", settings.max_nodes);
  visit("endpoint", settings.endpoint);
  visit("etcd_endpoint", settings.etcd.endpoint);
  visit("etcd_authority", settings.etcd.authority);
  visit("etcd_certificate", settings.etcd.certificate);
  visit("etcd_key", settings.etcd.key);
  visit("etcd_own_address", settings.etcd.own_address);
  visit("job", settings.job);
  visit("node_id", settings.node_id);
  visit("token_file", settings.token_file);
  visit("tls_dir", settings.tls_dir);
  visit("insecure", settings.insecure);
  visit("node_index", settings.node_index);
  visit("expected_hosts", settings.expected_hosts);
  visit("job_folder", settings.job_folder);
  visit("launch_address", settings.launch_address);
  visit("node_command", settings.node_command);
  visit("join_timeout_seconds", settings.join_timeout_seconds);
  visit("last_call", settings.last_call);
  visit("hard_fencing", settings.hard_fencing);
  visit("lease", settings.lease);
  visit("in_allocation", settings.allocation_end.is_there);
  visit("allocation_end_seconds", settings.allocation_end.end_seconds);
  visit("kill_wait_seconds", settings.allocation_end.kill_wait_seconds);
  visit("quiet", settings.quiet);
  visit("program", settings.program);
}

template <typename T>
void read_setting(const supervisor::Json& json, const char* name, T& out) {
  supervisor::read_member(json, name, out);
}
void read_setting(const supervisor::Json& json, const char* name, Meeting& out) {
  supervisor::read_member(json, name, [&](const supervisor::Json& value) {
    supervisor::from_enum_field(value, out, Meeting::kAgent);
  });
}
void read_setting(const supervisor::Json& json, const char* name, Program& out) {
  supervisor::read_member(json, name, [&](const supervisor::Json& value) {
    supervisor::from_enum_field(value, out, Program::kTorchrun);
  });
}

}  // namespace

Result<std::pair<int, int>> parse_num_nodes(std::string_view text) {
  if (const auto range = parse_node_range(text)) return std::pair(range->least, range->most);
  return Error(ErrorCode::kInvalidArgument,
               "--nnodes is '" + std::string(text) + "', expected a number of nodes or MIN:MAX",
               "give --nnodes 4, or --nnodes 2:4 for a job that goes on with two to four nodes");
}

std::string to_json(const ElasticSettings& settings, const supervisor::JobSpec& spec) {
  supervisor::Json json = supervisor::Json::object();
  each_setting(settings, [&](const char* name, const auto& member) {
    json[name] = supervisor::to_field(member);
  });
  json["spec"] = supervisor::to_field(supervisor::to_json(spec));
  return json.dump();
}

Result<ElasticRequest> elastic_request_from_json(std::string_view text) {
  std::string spec_text;
  auto settings =
      supervisor::decode_json(text, "the elastic launch", [&](const supervisor::Json& json) {
        ElasticSettings out;
        each_setting(out,
                     [&](const char* name, auto& member) { read_setting(json, name, member); });
        supervisor::read_member(json, "spec", spec_text);
        return out;
      });
  if (!settings) return std::move(settings).error();
  auto spec = supervisor::job_spec_from_json(spec_text);
  if (!spec) return std::move(spec).error();
  return ElasticRequest{*std::move(settings), *std::move(spec)};
}

}  // namespace accel::launcher
