#include "runtime/supervisor/protocol/job_outcome.h"

#include "runtime/supervisor/protocol/json_fields.h"

namespace accel::supervisor {
namespace {

// Lists the members once for both directions: visit(name, member).
template <typename Exit, typename Visit>
void each_exit_member(Exit& exit, Visit&& visit) {
  visit("global_rank", exit.global_rank);
  visit("local_rank", exit.local_rank);
  visit("generation", exit.generation);
  visit("pid", exit.pid);
  visit("exit_code", exit.exit_code);
  visit("signal", exit.signal);
  visit("core_dumped", exit.core_dumped);
  visit("core_path", exit.core_path);
  visit("stage", exit.stage);
  visit("error_number", exit.error_number);
  visit("program", exit.program);
  visit("peak_rss_bytes", exit.peak_rss_bytes);
  visit("seen_at", exit.seen_at);
  visit("tail", exit.tail);
  visit("error_file", exit.error_file);
  visit("last_error", exit.last_error);
}

Json encode_exit(const WorkerExit& exit) {
  Json json = {{"cause", to_field(exit.cause)}};
  each_exit_member(exit,
                   [&](const char* name, const auto& member) { json[name] = to_field(member); });
  json["detail"] = to_field(exit.detail);
  json["has_saved"] = exit.has_saved;
  json["saved_step"] = exit.saved_step;
  json["step"] = exit.step;
  return json;
}

WorkerExit decode_exit(const Json& json) {
  WorkerExit exit;
  read_member(json, "cause", [&](const Json& cause) {
    from_enum_field(cause, exit.cause, kLastExitCause);
  });
  each_exit_member(exit, [&](const char* name, auto& member) { read_member(json, name, member); });
  read_new_member(json, "detail", exit.detail);
  read_new_member(json, "has_saved", exit.has_saved);
  read_new_member(json, "saved_step", exit.saved_step);
  read_new_member(json, "step", exit.step);
  return exit;
}

CommittedCheckpoint decode_checkpoint(const Json& json) {
  CommittedCheckpoint checkpoint;
  read_member(json, "step", checkpoint.step);
  read_member(json, "generation", checkpoint.generation);
  read_member(json, "path", checkpoint.path);
  read_member(json, "token", checkpoint.token);
  return checkpoint;
}

JobOutcome decode_outcome(const Json& json) {
  JobOutcome outcome;
  read_member(json, "success", outcome.success);
  read_member(json, "exit_code", outcome.exit_code);
  read_member(json, "reason", outcome.reason);
  read_member(json, "restarts", outcome.restarts);
  read_new_member(json, "has_saved", outcome.has_saved);
  read_member(json, "notices", outcome.notices);
  if (json.contains("checkpoint") && !json["checkpoint"].is_null()) {
    outcome.checkpoint = decode_checkpoint(json["checkpoint"]);
  }
  read_member(json, "first_failure", [&](const Json& exit) {
    if (!exit.is_null()) outcome.first_failure = decode_exit(exit);
  });
  read_member(json, "exits", [&](const Json& exits) {
    if (!exits.is_array()) throw FieldError("is not an array");
    for (const Json& exit : exits) outcome.exits.push_back(decode_exit(exit));
  });
  read_member(json, "leftovers", [&](const Json& leftovers) {
    if (!leftovers.is_array()) throw FieldError("is not an array");
    for (const Json& leftover : leftovers) {
      Leftover& out = outcome.leftovers.emplace_back();
      read_member(leftover, "pid", out.pid);
      read_member(leftover, "command", out.command);
    }
  });
  return outcome;
}

}  // namespace

std::string to_json(const WorkerExit& exit) {
  return encode_exit(exit).dump();
}

std::string to_json(const JobOutcome& outcome) {
  Json json = {{"success", outcome.success},
               {"exit_code", outcome.exit_code},
               {"reason", to_field(outcome.reason)},
               {"restarts", outcome.restarts},
               {"has_saved", outcome.has_saved},
               {"notices", to_field(outcome.notices)},
               {"checkpoint", nullptr},
               {"first_failure", nullptr},
               {"exits", Json::array()},
               {"leftovers", Json::array()}};
  if (const auto& checkpoint = outcome.checkpoint) {
    json["checkpoint"] = {{"step", checkpoint->step},
                          {"generation", checkpoint->generation},
                          {"path", to_field(checkpoint->path)},
                          {"token", to_field(checkpoint->token)}};
  }
  if (outcome.first_failure) json["first_failure"] = encode_exit(*outcome.first_failure);
  for (const WorkerExit& exit : outcome.exits) json["exits"].push_back(encode_exit(exit));
  for (const Leftover& leftover : outcome.leftovers) {
    json["leftovers"].push_back({{"pid", leftover.pid}, {"command", to_field(leftover.command)}});
  }
  return json.dump();
}

Result<WorkerExit> worker_exit_from_json(std::string_view json) {
  return decode_json(json, "the exit of a worker", decode_exit);
}

Result<JobOutcome> job_outcome_from_json(std::string_view json) {
  return decode_json(json, "the outcome of a job", decode_outcome);
}

}  // namespace accel::supervisor
