// A frame is {"type": ..., members}. Members that an older protocol lacks are read with
// read_new_member() and keep their defaults; an unknown type is an error.

#include "runtime/supervisor/protocol/frames.h"

#include <concepts>
#include <type_traits>

#include "runtime/supervisor/protocol/json_fields.h"

namespace accel::supervisor {

const char* const kBuildVersion = ACCEL_VERSION;

namespace {

template <typename... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
// Clang 14 does not deduce aggregates.
template <typename... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

// Whether it has more values than any event of a thousand workers. Each costs its reader some hundred bytes and nanoseconds: 16
// MiB of empty arrays were half a GiB and a second of an agent's loop. Texts, however long, count once.
bool has_too_many_values(std::string_view json) {
  constexpr int kMostValues = 256 * 1024;
  int num_values = 0;
  bool is_in_text = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (is_in_text) {
      if (c == '\\') ++i;
      is_in_text = c != '"';
    } else if (c == '"') {
      is_in_text = true;
    } else if ((c == ',' || c == '[' || c == '{') && ++num_values > kMostValues) {
      return true;
    }
  }
  return false;
}

Json parse_own(const std::string& json) {
  return Json::parse(json);
}

// An exit or an outcome inside a frame goes through its own reader; its Error becomes a FieldError.
template <typename T>
T unwrap(Result<T> result) {
  if (!result) throw FieldError(result.error().message());
  return *std::move(result);
}

// ---- frames whose members are plain fields: listed once for both directions ----

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, Prepared>
void each_frame_member(T& prepared, Visit&& visit) {
  visit("generation", prepared.generation);
  visit("store_port", prepared.store_port);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, StoreOpened>
void each_frame_member(T& opened, Visit&& visit) {
  visit("generation", opened.generation);
  visit("store_port", opened.store_port);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, StatusShown>
void each_frame_member(T& shown, Visit&& visit) {
  visit("number", shown.number);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, ShowStatus>
void each_frame_member(T& status, Visit&& visit) {
  visit("number", status.number);
  visit("text", status.text);
  visit("despite_returns", status.despite_returns);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, OpenStore>
void each_frame_member(T& open, Visit&& visit) {
  visit("generation", open.generation);
  visit("bind_address", open.bind_address);
  visit("port", open.port);
  visit("is_exact_port", open.is_exact_port);
  visit("members", open.members);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, WorkerSnapshot>
void each_frame_member(T& worker, Visit&& visit) {
  visit("local_rank", worker.local_rank);
  visit("global_rank", worker.global_rank);
  visit("pid", worker.pid);
  visit("is_alive", worker.is_alive);
  visit("beats", worker.beats);
  visit("step", worker.step);
  visit("samples", worker.samples);
  visit("phase", worker.phase);
  visit("silent_for", worker.silent_for);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, PrepareGeneration>
void each_frame_member(T& prepare, Visit&& visit) {
  visit("generation", prepare.generation);
  visit("restart_count", prepare.restart_count);
  visit("first_rank", prepare.first_rank);
  visit("world_size", prepare.world_size);
  visit("node_rank", prepare.node_rank);
  visit("num_nodes", prepare.num_nodes);
  visit("hosts_store", prepare.hosts_store);
  visit("bind_address", prepare.bind_address);
  visit("port", prepare.port);
  visit("is_exact_port", prepare.is_exact_port);
  visit("members", prepare.members);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, RenewLease>
void each_frame_member(T& renewal, Visit&& visit) {
  visit("generation", renewal.generation);
  visit("until", renewal.until);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, StartGeneration>
void each_frame_member(T& start, Visit&& visit) {
  visit("generation", start.generation);
  visit("master_addr", start.master_addr);
  visit("master_port", start.master_port);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, Adopt>
void each_frame_member(T& adopt, Visit&& visit) {
  visit("protocol", adopt.protocol);
  visit("oldest_protocol", adopt.oldest_protocol);
  visit("build", adopt.build);
  visit("token", adopt.token);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, WorkerStopped>
void each_frame_member(T& stopped, Visit&& visit) {
  visit("global_rank", stopped.global_rank);
  visit("pid", stopped.pid);
  visit("is_stopped", stopped.is_stopped);
  visit("is_traced", stopped.is_traced);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, Hung>
void each_frame_member(T& hung, Visit&& visit) {
  visit("generation", hung.generation);
  visit("global_rank", hung.global_rank);
  visit("step", hung.step);
  visit("silent_for", hung.silent_for);
  visit("limit", hung.limit);
  visit("silent_ranks", hung.silent_ranks);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, Straggler>
void each_frame_member(T& straggler, Visit&& visit) {
  visit("generation", straggler.generation);
  visit("global_rank", straggler.global_rank);
  visit("step_time", straggler.step_time);
  visit("median", straggler.median);
  visit("score", straggler.score);
}

template <typename T, typename Visit>
requires std::same_as<std::remove_const_t<T>, StepTimes>
void each_frame_member(T& times, Visit&& visit) {
  visit("steps", times.steps);
  visit("total_ns", times.total_ns);
  visit("input_ns", times.input_ns);
  visit("communication_ns", times.communication_ns);
  visit("io_ns", times.io_ns);
  visit("wait_ns", times.wait_ns);
}

template <typename T>
concept Plain = requires(T& value) {
  each_frame_member(value, [](const char*, auto&) {});
};

template <Plain T>
Json encode_plain(const T& value, const char* type = nullptr) {
  Json json = Json::object();
  if (type != nullptr) json["type"] = type;
  each_frame_member(value,
                    [&](const char* name, const auto& member) { json[name] = to_field(member); });
  return json;
}

template <Plain T>
T decode_plain(const Json& json) {
  T value;
  each_frame_member(value,
                    [&](const char* name, auto& member) { read_member(json, name, member); });
  return value;
}

// ---- the others ----

Json encode_snapshot(const Snapshot& snapshot) {
  Json json = {{"type", "snapshot"},
               {"job_id", to_field(snapshot.job_id)},
               {"state", to_field(snapshot.state)},
               {"generation", snapshot.generation},
               {"store_port", snapshot.store_port},
               {"workers", Json::array()},
               {"stale_requests", snapshot.stale_requests},
               {"lease_until", snapshot.lease_until.count()},
               {"is_stop_asked", snapshot.is_stop_asked}};
  for (const auto& worker : snapshot.workers) {
    Json shown = encode_plain(worker);
    if (worker.times != StepTimes{}) shown["times"] = encode_plain(worker.times);
    json["workers"].push_back(std::move(shown));
  }
  json["exits"] = Json::array();
  for (const auto& exit : snapshot.exits) json["exits"].push_back(parse_own(to_json(exit)));
  return json;
}

Snapshot snapshot_from(const Json& json) {
  Snapshot snapshot;
  read_member(json, "job_id", snapshot.job_id);
  read_member(json, "state", snapshot.state);
  read_member(json, "generation", snapshot.generation);
  read_member(json, "store_port", snapshot.store_port);
  read_member(json, "stale_requests", snapshot.stale_requests);
  read_new_member(json, "lease_until", snapshot.lease_until);
  read_new_member(json, "is_stop_asked", snapshot.is_stop_asked);
  read_member(json, "workers", [&](const Json& workers) {
    if (!workers.is_array()) throw FieldError("is not an array");
    for (const Json& worker : workers) {
      WorkerSnapshot& read = snapshot.workers.emplace_back(decode_plain<WorkerSnapshot>(worker));
      if (worker.contains("times")) read.times = decode_plain<StepTimes>(worker.at("times"));
    }
  });
  if (!json.contains("exits")) return snapshot;  // of an older build
  read_member(json, "exits", [&](const Json& exits) {
    if (!exits.is_array()) throw FieldError("is not an array");
    for (const Json& exit : exits) {
      snapshot.exits.push_back(unwrap(worker_exit_from_json(exit.dump())));
    }
  });
  return snapshot;
}

Json encode_error(const Error& error) {
  Json details = Json::array();
  for (const auto& [label, text] : error.details()) {
    details.push_back(to_field(std::vector<std::string>{label, text}));
  }
  return {{"code", static_cast<int>(error.code())},
          {"message", to_field(error.message())},
          {"remedy", to_field(error.remedy())},
          {"context", to_field(error.context())},
          {"details", std::move(details)}};
}

Error error_from(const Json& json) {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::string remedy;
  std::vector<std::string> context;
  std::vector<std::vector<std::string>> details;
  read_member(json, "code", [&](const Json& number) {
    from_enum_field(number, code, static_cast<ErrorCode>(static_cast<int>(ErrorCode::kCount_) - 1));
  });
  read_member(json, "message", message);
  read_member(json, "remedy", remedy);
  read_member(json, "context", context);
  read_member(json, "details", details);
  Error error(code, std::move(message), std::move(remedy));
  for (std::string& step : context) error.while_doing(std::move(step));
  for (const auto& detail : details) {
    if (detail.size() != 2) throw FieldError("a detail is not a label and a text");
    error.with_detail(detail[0], detail[1]);
  }
  return error;
}

GenerationEnded generation_ended_from(const Json& json) {
  GenerationEnded ended;
  read_member(json, "generation", ended.generation);
  read_member(json, "is_clean", ended.is_clean);
  read_member(json, "made_progress", ended.made_progress);
  read_member(json, "outcome", [&](const Json& text) {
    ended.outcome = unwrap(job_outcome_from_json(text.dump()));
  });
  return ended;
}

HostEvent event_from(const Json& json) {
  std::string type;
  read_member(json, "type", type);
  if (type == "hello") {
    Hello hello;
    read_member(json, "protocol", hello.protocol);
    hello.oldest_protocol = hello.protocol;
    read_new_member(json, "oldest_protocol", hello.oldest_protocol);
    read_member(json, "build", hello.build);
    read_member(json, "pid", hello.pid);
    return hello;
  }
  if (type == "refused") {
    Refused refused;
    read_member(json, "error", [&](const Json& error) { refused.error = error_from(error); });
    return refused;
  }
  if (type == "generation_started") {
    GenerationStarted started;
    read_member(json, "generation", started.generation);
    read_member(json, "pids", started.pids);
    read_member(json, "store_port", started.store_port);
    return started;
  }
  if (type == "worker_exited") {
    WorkerExit exit;
    read_member(
        json, "exit", [&](const Json& text) { exit = unwrap(worker_exit_from_json(text.dump())); });
    return exit;
  }
  if (type == "restarting") {
    Restarting restarting;
    read_member(json, "next_generation", restarting.next_generation);
    read_member(json, "delay", restarting.delay);
    read_member(json, "because", [&](const Json& text) {
      restarting.because = unwrap(worker_exit_from_json(text.dump()));
    });
    return restarting;
  }
  if (type == "notice") {
    Notice notice;
    read_member(json, "text", notice.text);
    return notice;
  }
  if (type == "outcome") {
    JobOutcome outcome;
    read_member(json, "outcome", [&](const Json& text) {
      outcome = unwrap(job_outcome_from_json(text.dump()));
    });
    return outcome;
  }
  if (type == "store_opened") return decode_plain<StoreOpened>(json);
  if (type == "prepared") return decode_plain<Prepared>(json);
  if (type == "prepare_failed") {
    PrepareFailed failed;
    read_member(json, "generation", failed.generation);
    read_member(json, "error", [&](const Json& error) { failed.error = error_from(error); });
    return failed;
  }
  if (type == "generation_ended") return generation_ended_from(json);
  if (type == "snapshot") return snapshot_from(json);
  if (type == "worker_stopped") return decode_plain<WorkerStopped>(json);
  if (type == "hung") return decode_plain<Hung>(json);
  if (type == "straggler") return decode_plain<Straggler>(json);
  if (type == "status_shown") return decode_plain<StatusShown>(json);
  throw FieldError("unknown type '" + type + "'");
}

HostRequest request_from(const Json& json) {
  std::string type;
  read_member(json, "type", type);
  if (type == "stop") {
    Stop stop;
    read_member(
        json, "mode", [&](const Json& mode) { from_enum_field(mode, stop.mode, StopMode::kKill); });
    read_member(json, "signal", stop.signal);
    bool is_delivered = false;
    int generation = -1;
    read_member(json, "is_delivered", is_delivered);
    read_new_member(json, "generation", generation);
    if (is_delivered) stop.delivered_to = generation;
    read_new_member(json, "grace", stop.grace);
    return stop;
  }
  if (type == "suspend") return Suspend{};
  if (type == "resume") return Resume{};
  if (type == "dump_stacks") return DumpStacks{};
  if (type == "take_snapshot") return TakeSnapshot{};
  if (type == "show_status") return decode_plain<ShowStatus>(json);
  if (type == "finish") return Finish{};
  if (type == "open_store") return decode_plain<OpenStore>(json);
  if (type == "adopt") return decode_plain<Adopt>(json);
  if (type == "prepare_generation") {
    auto prepare = decode_plain<PrepareGeneration>(json);
    read_new_member(json, "lease_until", prepare.lease_until);
    return prepare;
  }
  if (type == "renew_lease") return decode_plain<RenewLease>(json);
  if (type == "start_generation") return decode_plain<StartGeneration>(json);
  if (type == "stop_generation") {
    StopGeneration stop;
    read_member(json, "generation", stop.generation);
    read_member(
        json, "mode", [&](const Json& mode) { from_enum_field(mode, stop.mode, StopMode::kKill); });
    read_member(json, "grace", stop.grace);
    return stop;
  }
  if (type == "window_size") {
    WindowSize size;
    read_member(json, "rows", size.rows);
    read_member(json, "columns", size.columns);
    return size;
  }
  throw FieldError("unknown type '" + type + "'");
}

}  // namespace

bool has_common_protocol(const Hello& hello) {
  return hello.protocol >= kOldestProtocol && hello.oldest_protocol <= kProtocolVersion;
}

std::string describe_protocols(int oldest, int newest) {
  if (oldest == newest) return std::to_string(newest);
  return std::to_string(oldest) + " to " + std::to_string(newest);
}

std::string encode(const HostEvent& event) {
  const Json json = std::visit(
      Overloaded{
          [](const Hello& hello) -> Json {
            return {{"type", "hello"},
                    {"protocol", hello.protocol},
                    {"oldest_protocol", hello.oldest_protocol},
                    {"build", to_field(hello.build)},
                    {"pid", hello.pid}};
          },
          [](const Refused& refused) -> Json {
            return {{"type", "refused"}, {"error", encode_error(refused.error)}};
          },
          [](const GenerationStarted& started) -> Json {
            return {{"type", "generation_started"},
                    {"generation", started.generation},
                    {"pids", to_field(started.pids)},
                    {"store_port", started.store_port}};
          },
          [](const WorkerExit& exit) -> Json {
            return {{"type", "worker_exited"}, {"exit", parse_own(to_json(exit))}};
          },
          [](const Restarting& restarting) -> Json {
            return {{"type", "restarting"},
                    {"next_generation", restarting.next_generation},
                    {"delay", restarting.delay.count()},
                    {"because", parse_own(to_json(restarting.because))}};
          },
          [](const Notice& notice) -> Json {
            return {{"type", "notice"}, {"text", to_field(notice.text)}};
          },
          [](const JobOutcome& outcome) -> Json {
            return {{"type", "outcome"}, {"outcome", parse_own(to_json(outcome))}};
          },
          [](const StoreOpened& opened) -> Json { return encode_plain(opened, "store_opened"); },
          [](const Prepared& prepared) -> Json { return encode_plain(prepared, "prepared"); },
          [](const PrepareFailed& failed) -> Json {
            return {{"type", "prepare_failed"},
                    {"generation", failed.generation},
                    {"error", encode_error(failed.error)}};
          },
          [](const GenerationEnded& ended) -> Json {
            return {{"type", "generation_ended"},
                    {"generation", ended.generation},
                    {"is_clean", ended.is_clean},
                    {"made_progress", ended.made_progress},
                    {"outcome", parse_own(to_json(ended.outcome))}};
          },
          [](const Snapshot& snapshot) -> Json { return encode_snapshot(snapshot); },
          [](const WorkerStopped& stopped) -> Json {
            return encode_plain(stopped, "worker_stopped");
          },
          [](const Hung& hung) -> Json { return encode_plain(hung, "hung"); },
          [](const Straggler& straggler) -> Json { return encode_plain(straggler, "straggler"); },
          [](const StatusShown& shown) -> Json { return encode_plain(shown, "status_shown"); },
      },
      event);
  return json.dump();
}

std::string encode(const HostRequest& request) {
  const Json json = std::visit(
      Overloaded{
          [](const Stop& stop) -> Json {
            return {{"type", "stop"},
                    {"mode", static_cast<int>(stop.mode)},
                    {"signal", stop.signal},
                    {"is_delivered", stop.delivered_to.has_value()},
                    {"generation", stop.delivered_to.value_or(-1)},
                    {"grace", stop.grace.count()}};
          },
          [](const Suspend&) -> Json {
            return {{"type", "suspend"}};
          },
          [](const Resume&) -> Json {
            return {{"type", "resume"}};
          },
          [](const DumpStacks&) -> Json {
            return {{"type", "dump_stacks"}};
          },
          [](const WindowSize& size) -> Json {
            return {{"type", "window_size"}, {"rows", size.rows}, {"columns", size.columns}};
          },
          [](const TakeSnapshot&) -> Json {
            return {{"type", "take_snapshot"}};
          },
          [](const ShowStatus& status) -> Json { return encode_plain(status, "show_status"); },
          [](const OpenStore& open) -> Json { return encode_plain(open, "open_store"); },
          [](const PrepareGeneration& prepare) -> Json {
            Json json = encode_plain(prepare, "prepare_generation");
            json["lease_until"] = prepare.lease_until.count();
            return json;
          },
          [](const StartGeneration& start) -> Json {
            return encode_plain(start, "start_generation");
          },
          [](const StopGeneration& stop) -> Json {
            return {{"type", "stop_generation"},
                    {"generation", stop.generation},
                    {"mode", static_cast<int>(stop.mode)},
                    {"grace", stop.grace.count()}};
          },
          [](const RenewLease& renewal) -> Json { return encode_plain(renewal, "renew_lease"); },
          [](const Finish&) -> Json {
            return {{"type", "finish"}};
          },
          [](const Adopt& adopt) -> Json { return encode_plain(adopt, "adopt"); },
      },
      request);
  return json.dump();
}

Result<HostEvent> decode_event(std::string_view frame) {
  if (has_too_many_values(frame))
    return Error(ErrorCode::kProtocol, "a frame of the shim has more values than any event");
  return decode_json(frame, "a frame of the shim", event_from);
}

Result<HostRequest> decode_request(std::string_view frame) {
  return decode_json(frame, "a frame of the owner", request_from);
}

}  // namespace accel::supervisor
