#include "launcher/flags/torchrun_flags.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kTorchrunGroup = "As torchrun spells it";

constexpr FlagSpec kTorchrunSpecs[] = {
    {"nproc_per_node",
     0,
     FlagKind::kText,
     "N|cpu|gpu|auto",
     "",
     kTorchrunGroup,
     "Workers on this node: a number; one for each granted hardware thread (cpu), for each visible "
     "GPU "
     "(gpu), or for each GPU if there are any, else for each thread (auto)."},
    {"node_rank", 0, FlagKind::kInteger, "R", "", kTorchrunGroup, "As --machine_rank."},
    {"master_addr", 0, FlagKind::kText, "IP", "", kTorchrunGroup, "As --main_process_ip."},
    {"master_port", 0, FlagKind::kInteger, "PORT", "", kTorchrunGroup, "As --main_process_port."},
    {"standalone",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kTorchrunGroup,
     "One node, and a store on any free port, as --main_process_port 0."},
    {"rdzv_backend",
     0,
     FlagKind::kChoice,
     "NAME",
     "static,c10d,etcd,etcd-v2",
     kTorchrunGroup,
     "How nodes meet: at --master_addr with a --node_rank each (static), at --rdzv_endpoint "
     "(c10d), or at a node that the etcd at --rdzv_endpoint names (etcd, etcd-v2)."},
    {"rdzv_conf",
     0,
     FlagKind::kText,
     "KEY=VALUE,...",
     "",
     kTorchrunGroup,
     "join_timeout or timeout is --rdzv_join_timeout, last_call_timeout is "
     "--rdzv_last_call_timeout; for etcd, protocol=https with cacert, cert "
     "and "
     "key (files); other keys have no effect."},
    {"run_path",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kTorchrunGroup,
     "SCRIPT is run by Python's runpy.run_path()."},
    {"local_addr",
     0,
     FlagKind::kText,
     "IP",
     "",
     kTorchrunGroup,
     "By which others reach this node, with --rdzv_backend etcd. Else without effect: nodes see "
     "where "
     "calls come from."},
    {"local_ranks_filter",
     0,
     FlagKind::kText,
     "RANKS",
     "",
     kTorchrunGroup,
     "Only these local ranks write to the console, as in 0,1; the others to files alone."},
    {"duplicate_stdout_filters",
     0,
     FlagKind::kText,
     "TEXT,...",
     "",
     kTorchrunGroup,
     "Lines of teed stdout with one of the texts also go to filtered_stdout.log; ',,' is a comma."},
    {"duplicate_stderr_filters",
     0,
     FlagKind::kText,
     "TEXT,...",
     "",
     kTorchrunGroup,
     "The same for stderr, to filtered_stderr.log."},
    {"virtual_local_rank",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kTorchrunGroup,
     "Each worker sees one GPU, its own, and LOCAL_RANK 0."},
    {"numa_binding",
     0,
     FlagKind::kChoice,
     "MODE",
     "node,socket,exclusive,core-complex",
     kTorchrunGroup,
     "Bind every worker to the cores of a memory node, a package, to cores of its own, or to those "
     "that "
     "share a last cache."},
    {"signals_to_handle",
     0,
     FlagKind::kText,
     "NAMES",
     "",
     kTorchrunGroup,
     "Sets TORCHELASTIC_SIGNALS_TO_HANDLE. SIGTERM, SIGINT, SIGHUP and SIGQUIT always reach the "
     "workers."},
    {"event_log_handler",
     0,
     FlagKind::kText,
     "NAME",
     "",
     kTorchrunGroup,
     "Has no effect: the report tells what happened, with an agent `accel ledger` too."},
    {"logs_specs",
     0,
     FlagKind::kText,
     "NAME",
     "",
     kTorchrunGroup,
     "Has no effect: --log_dir, --tee and --redirects say where output goes."},
    {"start_method",
     0,
     FlagKind::kChoice,
     "NAME",
     "spawn,fork,forkserver",
     kTorchrunGroup,
     "Has no effect: workers are programs of their own."},
    {"same_network",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kTorchrunGroup,
     "Of accelerate launch; has no effect: machines meet at --main_process_ip."},
};

constexpr std::string_view kPetFlags[] = {
    "nnodes",
    "nproc_per_node",
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_id",
    "rdzv_conf",
    "standalone",
    "max_restarts",
    "role",
    "module",
    "no_python",
    "run_path",
    "log_dir",
    "redirects",
    "tee",
    "monitor_interval",
    "node_rank",
    "master_addr",
    "master_port",
    "local_addr",
    "start_method",
    "logs_specs",
    "local_ranks_filter",
    "numa_binding",
    "signals_to_handle",
    "event_log_handler",
    "duplicate_stdout_filters",
    "duplicate_stderr_filters",
    "virtual_local_rank",
};

}  // namespace

std::span<const FlagSpec> torchrun_flags() {
  return kTorchrunSpecs;
}

std::span<const std::string_view> pet_flags() {
  return kPetFlags;
}

std::string pet_variable(std::string_view flag) {
  std::string name = "PET_";
  for (const char c : flag) name += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return name;
}

}  // namespace accel::launcher
