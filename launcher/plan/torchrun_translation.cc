// One flag after the other, so that each step may rely on those before it: first what PET_* says, then
// counts and names, then how nodes meet.

#include "launcher/plan/torchrun_translation.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "launcher/flags/flag_table.h"
#include "launcher/flags/torchrun_flags.h"
#include "launcher/plan/node_settings.h"
#include "launcher/start/elastic/elastic_settings.h"
#include "launcher/start/machines/settings/machines_request.h"
#include "launcher/start/machines/settings/machines_settings.h"
#include "launcher/text/faults.h"
#include "runtime/text/endpoint_text.h"
#include "runtime/text/number_text.h"
#include "runtime/trimmed.h"

namespace accel::launcher {
namespace {

// How machines meet, and how many workers each has. Who says some of it in the words of `accelerate launch` has said all
// of it: the variables of a pod are for those who have not.
constexpr std::string_view kOfMachines[] = {"nnodes",
                                            "nproc_per_node",
                                            "node_rank",
                                            "master_addr",
                                            "master_port",
                                            "rdzv_backend",
                                            "rdzv_endpoint",
                                            "rdzv_id",
                                            "rdzv_conf"};

class Translation {
 public:
  Translation(CommandLine& line,
              const TorchrunView& view,
              std::vector<std::string>& notices,
              Faults& faults)
      : line_(line), view_(view), notices_(notices), faults_(faults) {}

  void run() {
    is_port_named_ = line_.has("master_port") || is_given("main_process_port");
    is_standalone_typed_ = line_.has("standalone");
    take_pet_variables();
    count_workers();
    line_.counts_per_machine = line_.has("nproc_per_node") || view_.is_torchrun;
    use_own_names();
    check_place_of_pod();
    if (view_.is_torchrun && view_.file == nullptr) line_.given.try_emplace("num_processes", "1");
    stand_alone();
    choose_meeting();
    read_conf();
    check_etcd();
    note_what_does_nothing();
  }

 private:
  void take_pet_variables() {
    std::string ignored;
    for (const std::string_view name : pet_flags()) {
      const auto found = view_.environment.find(pet_variable(name));
      if (found == view_.environment.end() || found->second.empty() || line_.has(name)) continue;
      if (!view_.placed_by.empty() &&
          std::ranges::find(kOfMachines, name) != std::end(kOfMachines)) {
        ignored += (ignored.empty() ? "" : ", ") + found->first;
        continue;
      }
      if (is_given_otherwise(name)) continue;
      if (find_flag(name)->kind == FlagKind::kSwitch) {
        take_switch(name, found->second);
      } else {
        take_text(name, found->second);
      }
    }
    if (!ignored.empty())
      notices_.push_back(view_.placed_by +
                         " says how machines meet, so these have no effect: " + ignored);
  }

  // A value that is none is told here, where its variable is known.
  void take_text(std::string_view name, const std::string& text) {
    const bool is_number = find_flag(name)->kind == FlagKind::kInteger;
    const bool is_wrong =
        name == "nnodes" ? !parse_num_nodes(text) : is_number && !typed_number<int>(text);
    if (is_wrong) {
      const std::string variable = pet_variable(name);
      return faults_.add(Error(ErrorCode::kInvalidArgument,
                               variable + " is '" + text + "', expected " +
                                   (is_number ? "a whole number" : "a number of nodes or MIN:MAX"),
                               "set " + variable + " to one, or unset it"));
    }
    line_.given[std::string(name)] = text;
    from_variables_.emplace(name);
  }

  // The variable, if it said this, else the flag.
  [[nodiscard]] std::string source_of(std::string_view flag) const {
    return from_variables_.contains(flag) ? pet_variable(flag) : line_.spelled(flag);
  }

  // A pod's rank and its main process are of a job over several.
  void check_place_of_pod() {
    const int nodes = most_nodes();
    if (nodes == 1) {
      if (from_variables_.contains("node_rank")) line_.given.erase("machine_rank");
      if (from_variables_.contains("master_addr")) line_.given.erase("main_process_ip");
    } else if (from_variables_.contains("node_rank")) {
      const int rank = typed_number<int>(line_.text("machine_rank").value_or("")).value_or(0);
      if (rank >= 0 && rank < nodes) return;
      faults_.add(Error(ErrorCode::kInvalidArgument,
                        "PET_NODE_RANK is " + std::to_string(rank) + ", expected 0 to " +
                            std::to_string(nodes - 1) + " with " + source_of("nnodes") + " " +
                            line_.text("nnodes").value_or(""),
                        "give each pod a PET_NODE_RANK of its own"));
      line_.given.erase("machine_rank");
    }
  }

  // A flag of the launcher's own beats a variable, and so does a file.
  [[nodiscard]] bool is_given_otherwise(std::string_view name) const {
    return std::ranges::any_of(flags_of_two_names(), [&](const FlagNames& names) {
      return names.torchrun == name && is_given(names.own);
    });
  }

  [[nodiscard]] bool is_given(std::string_view own) const {
    if (line_.has(own)) return true;
    const ConfigFile* const file = view_.file;
    if (file == nullptr) return false;
    if (own == "num_processes") return true;  // it has to say how many, unless a flag does
    if (own == "machine_rank") return file->machine_rank.has_value();
    if (own == "main_process_port") return file->main_process_port.has_value();
    return own == "main_process_ip" && !file->main_process_ip.value_or("").empty();
  }

  void take_switch(std::string_view name, const std::string& text) {
    const auto number = typed_number<int>(text);
    if (!number) {
      faults_.add(Error(ErrorCode::kInvalidArgument,
                        pet_variable(name) + " is '" + text + "', expected 0 or 1",
                        "unset " + pet_variable(name) + ", or set it to 0 or 1"));
      return;
    }
    if (*number != 0) line_.given[std::string(name)] = "true";
  }

  void count_workers() {
    const auto text = line_.text("nproc_per_node");
    if (!text) return;
    std::string& count = line_.given["nproc_per_node"];
    if (*text == "cpu") {
      count = std::to_string(view_.num_cpus());
    } else if (*text == "gpu" || *text == "auto") {
      const int gpus = view_.num_gpus();
      if (gpus == 0 && *text == "gpu") {
        faults_.add(Error(ErrorCode::kUnsupported,
                          line_.spelled("nproc_per_node") + " is gpu, but no GPU is visible",
                          "give " + line_.spelled("nproc_per_node") + " auto, cpu or a number"));
      }
      count = std::to_string(gpus > 0 ? gpus : view_.num_cpus());
    } else if (const auto number = typed_number<int>(*text); number && *number >= 0) {
      count = std::to_string(*number);
    } else if (!text->empty()) {
      faults_.add(Error(ErrorCode::kInvalidArgument,
                        line_.spelled("nproc_per_node") + " is '" + *text +
                            "', expected a number, cpu, gpu or auto",
                        "give " + line_.spelled("nproc_per_node") + " N"));
      count = "1";
    }
  }

  void use_own_names() {
    for (const auto& [name, own] : flags_of_two_names()) {
      const auto text = line_.text(name);
      if (!text) continue;
      const auto other = line_.text(own);
      if (other && *other != *text) {
        faults_.add(usage_error(line_.spelled(name) + " is " + *text + ", and --" +
                                    std::string(own) + " is " + *other + ", but they are one thing",
                                "leave one of them out"));
      }
      line_.given[std::string(own)] = *text;
      line_.given.erase(std::string(name));
    }
  }

  [[nodiscard]] int most_nodes() const {
    const auto text = line_.text("nnodes");
    if (!text) return 1;
    const auto range = parse_num_nodes(*text);
    return range ? range->second : 1;  // what is wrong there is told when nodes are chosen
  }

  void stand_alone() {
    if (!line_.is_on("standalone")) return;
    if (most_nodes() > 1) {
      faults_.add(
          usage_error("--standalone is for one node, and " + source_of("nnodes") + " says more",
                      "leave one of them out"));
      return;
    }
    line_.given.try_emplace("nnodes", "1");
    const bool is_port_kept = is_port_named_ && !is_standalone_typed_;
    if (!line_.is_on("agent") && !is_port_kept) line_.given["main_process_port"] = "0";
    line_.given.erase("rdzv_backend");
    forget_meeting_of_one();
  }

  // One node meets nobody. How many there are stays: SLURM may have more, and only an agent needs the job's name. Workers are
  // told it all the same.
  void forget_meeting_of_one() {
    line_.given.erase("rdzv_endpoint");
    line_.run_id = line_.text("rdzv_id").value_or(line_.run_id);
    if (!line_.is_on("agent")) line_.given.erase("rdzv_id");
  }

  void choose_meeting() {
    const auto backend = choice_flag(line_, "rdzv_backend", faults_);
    if (backend && backend->starts_with("etcd")) return meet_by_etcd();
    if (joins_in_order()) {
      line_.joins_in_order = true;
      return meet_without_daemon();
    }
    const bool is_spoken_to_as_torchrun =
        backend || view_.is_torchrun || from_variables_.contains("nnodes");
    if (!is_spoken_to_as_torchrun) return;
    if (most_nodes() == 1) {
      // With a token it is a job of the coordinator's, which more nodes may be meant for.
      if (line_.has("rdzv_token_file")) return;
      forget_meeting_of_one();
      return;
    }
    if (backend.value_or("static") == "static" && !line_.is_on("agent") && !is_in_slurm())
      return meet_without_daemon();
    line_.given.erase("machine_rank");  // ranks are given where the nodes meet
  }

  // With --num_machines, as accelerate launch has it, etcd is at --main_process_ip unless an endpoint says where.
  void meet_by_etcd() {
    const auto endpoint = line_.text("rdzv_endpoint");
    line_.etcd.emplace().endpoint = endpoint.value_or("");
    if (most_nodes() == 1) return forget_meeting_of_one();
    const auto range = parse_num_nodes(line_.text("nnodes").value_or(""));
    if (!range) return;
    if (!endpoint) {
      return faults_.add(usage_error(
          line_.spelled("rdzv_backend") + " etcd needs " + line_.spelled("rdzv_endpoint"),
          "give the address of etcd, as in " + line_.spelled("rdzv_endpoint") + " gpu-01:2379"));
    }
    // The nodes of a range meet at a coordinator, which numbers them.
    if (range->first != range->second) {
      line_.given.erase("machine_rank");
      return;
    }
    line_.given["num_machines"] = std::to_string(range->first);
    for (const char* name : {"nnodes", "rdzv_endpoint", "main_process_ip"}) line_.given.erase(name);
  }

  // Inside an allocation nothing has to be said about where nodes meet, unless it is.
  [[nodiscard]] bool is_in_slurm() const {
    return view_.environment.contains("SLURM_JOB_ID") && !line_.has("main_process_ip") &&
           !line_.has("rdzv_endpoint");
  }

  // A fixed number of nodes at an endpoint, and nothing that only the agents' rendezvous knows.
  [[nodiscard]] bool joins_in_order() const {
    constexpr std::string_view kOfAgents[] = {
        "agent", "rdzv_token_file", "rdzv_tls_dir", "rdzv_insecure", "fencing", "lease", "node_id"};
    const auto range = parse_num_nodes(line_.text("nnodes").value_or("1"));
    const bool is_fixed = range && range->first == range->second && range->first > 1;
    return is_fixed && line_.has("rdzv_endpoint") &&
           line_.text("rdzv_backend").value_or(view_.is_torchrun ? "static" : "c10d") == "c10d" &&
           std::ranges::none_of(kOfAgents, [&](std::string_view flag) { return line_.has(flag); });
  }

  // torchrun's static rendezvous and its c10d with a fixed number of nodes, by our own names.
  void meet_without_daemon() {
    const auto range = parse_num_nodes(line_.text("nnodes").value_or(""));
    if (!range) return;
    if (range->first != range->second) return refuse_range();
    if (line_.joins_in_order) line_.given.erase("machine_rank");
    line_.given["num_machines"] = std::to_string(range->first);
    line_.given.erase("nnodes");
    if (const auto endpoint = line_.text("rdzv_endpoint")) {
      take_endpoint(*endpoint);
    } else if (!is_given("main_process_ip")) {
      line_.given["main_process_ip"] = "127.0.0.1";  // torchrun's default
    }
    if (!is_given("main_process_port"))
      line_.given["main_process_port"] = std::to_string(kDefaultMainPort);
  }

  void refuse_range() {
    faults_.add(usage_error(
        source_of("nnodes") + " " + line_.text("nnodes").value_or("") + " is a range, and " +
            line_.spelled("rdzv_backend") + " static knows one number",
        "give " + line_.spelled("rdzv_backend") + " c10d with " + line_.spelled("rdzv_endpoint")));
    // What else is missing for another way to meet is not this fault.
    line_.given.erase("nnodes");
    for (const char* name : kMeetingFlags) line_.given.erase(name);
  }

  // "gpu-01:29400", "gpu-01", "[fe80::1]:29400".
  void take_endpoint(const std::string& endpoint) {
    line_.is_at_endpoint = true;
    line_.given.erase("rdzv_endpoint");
    const auto [host, port] = split_endpoint(endpoint);
    line_.given["main_process_ip"] = without_brackets(host);
    if (port) line_.given["main_process_port"] = std::string(*port);
  }

  void read_conf() {
    std::string_view rest;
    const auto text = line_.text("rdzv_conf");
    if (text) rest = *text;
    while (!rest.empty()) {
      const size_t comma = std::min(rest.find(','), rest.size());
      const std::string_view pair = rest.substr(0, comma);
      rest.remove_prefix(std::min(comma + 1, rest.size()));
      const size_t equals = pair.find('=');
      if (equals == std::string_view::npos || equals == 0) {
        faults_.add(Error(
            ErrorCode::kInvalidArgument,
            line_.spelled("rdzv_conf") + " is '" + *text + "', expected KEY=VALUE,KEY=VALUE"));
        return;
      }
      constexpr std::string_view kBlanks = " \t";  // as torchrun strips them
      use_conf(std::string(trimmed(pair.substr(0, equals), kBlanks)),
               std::string(trimmed(pair.substr(equals + 1), kBlanks)));
    }
  }

  // By the names of torchrun's etcd and of its etcd-v2; null: none of them.
  static std::string* file_of_etcd(EtcdAccess& etcd, std::string_view key) {
    if (key == "cacert" || key == "ca_cert") return &etcd.authority;
    if (key == "cert" || key == "ssl_cert") return &etcd.certificate;
    if (key == "key" || key == "ssl_cert_key") return &etcd.key;
    return nullptr;
  }

  void check_etcd() {
    if (!line_.etcd) return;
    line_.etcd->own_address = line_.text("local_addr").value_or("");
    line_.given.erase("local_addr");
    const bool wants_tls = is_etcd_encrypted_ || !line_.etcd->certificate.empty();
    if (!wants_tls || !line_.etcd->authority.empty()) return;
    const std::string flag = line_.spelled("rdzv_conf");
    faults_.add(usage_error(flag + (is_etcd_encrypted_ ? " protocol=https" : " cert") +
                                " needs cacert, of the authority that signed etcd's certificate",
                            "give " + flag + " protocol=https,cacert=FILE"));
  }

  void use_conf(const std::string& key, const std::string& value) {
    if (key == "join_timeout" || key == "timeout") {
      line_.given.try_emplace("rdzv_join_timeout", value);
    } else if (key == "last_call_timeout") {
      line_.given.try_emplace("rdzv_last_call_timeout", value);
    } else if (std::string* file = line_.etcd ? file_of_etcd(*line_.etcd, key) : nullptr) {
      *file = value;
    } else if (line_.etcd && key == "protocol") {
      is_etcd_encrypted_ = value == "https";
    } else {
      notices_.push_back(line_.spelled("rdzv_conf") + " " + key + " has no effect");
    }
  }

  void note_what_does_nothing() {
    constexpr std::pair<std::string_view, std::string_view> kNothing[] = {
        {"local_addr", "nodes see where calls come from"},
        {"event_log_handler", "the report tells what happened, with an agent `accel ledger` too"},
        {"logs_specs", "--log_dir, --tee and --redirects say where output goes"},
        {"start_method", "workers are programs of their own, started by the supervisor"},
    };
    for (const auto& [name, reason] : kNothing) {
      if (line_.has(name))
        notices_.push_back(line_.spelled(name) + " has no effect: " + std::string(reason));
    }
  }

  std::set<std::string, std::less<>> from_variables_;  // as torchrun names them
  bool is_port_named_ = false;                         // by a flag or a file
  bool is_standalone_typed_ = false;
  bool is_etcd_encrypted_ = false;
  CommandLine& line_;
  const TorchrunView& view_;
  std::vector<std::string>& notices_;
  Faults& faults_;
};

}  // namespace

std::string who_places_machines(const CommandLine& line, const ConfigFile* file) {
  for (const std::string_view own : {"num_machines", "machine_rank", "main_process_ip"}) {
    if (line.has(own)) return line.spelled(own);
  }
  const bool is_said = file != nullptr && (file->num_machines || file->machine_rank ||
                                           !file->main_process_ip.value_or("").empty());
  return is_said ? file->path : "";
}

void translate_torchrun(CommandLine& line,
                        const TorchrunView& view,
                        std::vector<std::string>& notices,
                        Faults& faults) {
  Translation(line, view, notices, faults).run();
}

}  // namespace accel::launcher
