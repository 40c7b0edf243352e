#include "launcher/flag_table.h"

#include <array>
#include <utility>

#include "launcher/paradigms/option.h"
#include "launcher/torchrun/torchrun_flags.h"
#include "launcher/tpu/tpu_flags.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kGeneral = "General";
constexpr std::string_view kProcessHeading = "Processes";
constexpr std::string_view kCompute = "Computing";
constexpr std::string_view kCompile = "torch.compile (Python scripts)";
constexpr std::string_view kOutput = "Output";
constexpr std::string_view kFailure = "Failures and stopping";
constexpr std::string_view kSageMaker = "Amazon SageMaker (with a configuration file for it)";
constexpr std::string_view kNodes = "Several nodes (run the same command on each)";

constexpr std::string_view kDynamoBackends =
    "no,eager,aot_eager,inductor,aot_ts_nvfuser,nvprims_nvfuser,cudagraphs,ofi,fx2trt,onnxrt,"
    "tensorrt,aot_torchxla_trace_once,torhchxla_trace_once,tvm";

constexpr FlagSpec kLaunchFlags[] = {
    {"help",
     'h',
     FlagKind::kSwitch,
     "",
     "",
     kGeneral,
     "Show the flags that most need, of GROUP with --help GROUP, or with --help all."},
    {"version", 0, FlagKind::kSwitch, "", "", kGeneral, "Show the version."},
    {"config_file",
     0,
     FlagKind::kText,
     "PATH",
     "",
     kGeneral,
     "Configuration in YAML, or JSON when it ends in .json. Without it the default file is read if "
     "it "
     "exists: $HF_HOME/accelerate/default_config.yaml."},
    {"dry_run",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kGeneral,
     "Show what would be started, and start nothing."},
    {"quiet", 'q', FlagKind::kSwitch, "", "", kGeneral, "No warnings and no report of a failure."},
    {"debug",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kGeneral,
     "Workers check the shapes of their collectives over all ranks."},
    {"strict",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kGeneral,
     "Warnings about the configuration file are errors: keys that are given twice, that are "
     "unknown "
     "to their section, or of older versions."},
    {"strict_compat",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kGeneral,
     "Give workers the variables that accelerate launch and torchrun give them, also where others "
     "are better (OMP_NUM_THREADS, KMP_AFFINITY), and hand a -- after SCRIPT on."},
    {"module",
     'm',
     FlagKind::kSwitch,
     "",
     "",
     kGeneral,
     "SCRIPT is a Python module, as with python -m."},
    {"no_python",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kGeneral,
     "SCRIPT is a program, also one on PATH; never run it with Python."},

    {"num_processes",
     0,
     FlagKind::kInteger,
     "N",
     "",
     kProcessHeading,
     "Number of workers, of all machines together. Default: of the configuration, else one for "
     "each "
     "visible GPU, else 1 on each machine."},
    {"num_machines",
     0,
     FlagKind::kInteger,
     "N",
     "",
     kProcessHeading,
     "Number of machines; each runs its own accel-launch. Default: 1."},
    {"machine_rank",
     0,
     FlagKind::kInteger,
     "R",
     "",
     kProcessHeading,
     "Rank of this machine. Machine 0 has the store. Default: 0."},
    {"main_process_ip",
     0,
     FlagKind::kText,
     "IP",
     "",
     kProcessHeading,
     "Address of machine 0. With one machine the store always listens on 127.0.0.1."},
    {"main_process_port",
     0,
     FlagKind::kInteger,
     "PORT",
     "",
     kProcessHeading,
     "Port of the store; 0, or one that is taken, gives a free one. Default: 29500 when it is "
     "free, "
     "else any; with several machines 29500."},
    {"role",
     0,
     FlagKind::kText,
     "NAME",
     "",
     kProcessHeading,
     "Value of ROLE_NAME. Default: default."},

    {"mpirun_hostfile",
     0,
     FlagKind::kText,
     "PATH",
     "",
     kProcessHeading,
     "Let mpirun start the workers, on the hosts of this file; its form is that of the mpirun that "
     "is "
     "installed (Open MPI, Intel MPI, MVAPICH). --num_processes and --num_machines count all of "
     "them."},

    {"cpu", 0, FlagKind::kSwitch, "", "", kCompute, "Train on the CPU although there are GPUs."},
    {"multi_gpu",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kCompute,
     "Train on the GPUs of this machine; needs two."},
    {"gpu_ids",
     0,
     FlagKind::kText,
     "IDS",
     "",
     kCompute,
     "GPUs that the workers may use, as in 0,1; or all. Sets CUDA_VISIBLE_DEVICES."},
    {"mixed_precision",
     0,
     FlagKind::kChoice,
     "MODE",
     "no,fp16,bf16,fp8",
     kCompute,
     "Mixed precision of the workers. Default: no."},
    {"num_cpu_threads_per_process",
     0,
     FlagKind::kInteger,
     "N",
     "",
     kCompute,
     "OMP_NUM_THREADS of every worker. Default: what is set already, else the physical cores "
     "divided by "
     "the workers."},
    {"enable_cpu_affinity",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kCompute,
     "Bind every worker to physical cores of its own, close to one memory."},

    {"dynamo_backend", 0, FlagKind::kChoice, "NAME", kDynamoBackends, kCompile, "Default: no."},
    {"dynamo_mode",
     0,
     FlagKind::kChoice,
     "MODE",
     "default,reduce-overhead,max-autotune",
     kCompile,
     "Default: default."},
    {"dynamo_use_fullgraph", 0, FlagKind::kSwitch, "", "", kCompile, "Compile whole graphs only."},
    {"dynamo_use_dynamic", 0, FlagKind::kSwitch, "", "", kCompile, "Trace with dynamic shapes."},
    {"dynamo_use_regional_compilation",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kCompile,
     "Compile repeated blocks once."},

    {"log_dir",
     0,
     FlagKind::kText,
     "DIR",
     "",
     kOutput,
     "Write the streams of every rank to files below DIR, byte for byte (and to the console, "
     "unless "
     "redirected)."},
    {"tee",
     't',
     FlagKind::kText,
     "STREAMS",
     "",
     kOutput,
     "Streams that go to a file and the console: 0 none, 1 stdout, 2 stderr, 3 both; or by local "
     "rank, as "
     "in 0:3,1:1."},
    {"redirects",
     'r',
     FlagKind::kText,
     "STREAMS",
     "",
     kOutput,
     "Streams that go to a file only; the same form."},
    {"log_prefix",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kOutput,
     "Begin console lines with the rank and the stream."},
    {"log_rotate_bytes",
     0,
     FlagKind::kText,
     "SIZE",
     "",
     kOutput,
     "Begin a new log file when one has so many bytes, as 256M; 0: never. Default: 0."},
    {"log_keep",
     0,
     FlagKind::kInteger,
     "N",
     "",
     kOutput,
     "Full log files of each stream that stay, the newest ones. Default: 8."},
    {"log_overflow",
     0,
     FlagKind::kChoice,
     "POLICY",
     "block,drop,sample",
     kOutput,
     "Output that a file or the console does not take as fast as it comes: block lets the worker "
     "wait, drop "
     "drops it, sample drops it but for lines here and there. Default: block."},
    {"log_merge_stderr",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kOutput,
     "Make stdout and stderr of every rank one stream, stdout, so that their order is kept."},
    {"no_pty", 0, FlagKind::kSwitch, "", "", kOutput, "Never give rank 0 a terminal."},

    {"max_restarts",
     0,
     FlagKind::kInteger,
     "N",
     "",
     kFailure,
     "How often all workers are started again after one has failed. Default: 0."},
    {"monitor_interval",
     0,
     FlagKind::kSeconds,
     "S",
     "",
     kFailure,
     "Accepted for torchrun's sake: the end of a worker is an event here, seen at once."},
    {"stop_grace",
     0,
     FlagKind::kSeconds,
     "S",
     "",
     kFailure,
     "From the signal that asks workers to stop until SIGKILL, as in 30, 500ms or 2m. Default: "
     "30."},
    {"hang_timeout",
     0,
     FlagKind::kText,
     "auto|S|off",
     "",
     kFailure,
     "When a worker that reports its steps (libaccel does) counts as hung: auto is three times the "
     "longest usual step, at least 30 s; or a time as in 600 or 10m. Default: off."},
    {"preflight",
     0,
     FlagKind::kText,
     "NAME=COMMAND",
     "",
     kFailure,
     "A check that every node runs before workers start, in /bin/sh; may be given several times. A "
     "node whose check does not end with 0 does not take part."},
    {"preflight_seconds",
     0,
     FlagKind::kSeconds,
     "S",
     "",
     kFailure,
     "How long each check of --preflight may take. Default: 30."},
    {"stop_with_stdin",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kFailure,
     "Stop the job when standard input ends, as when the ssh that started this launcher is gone. "
     "Workers have nothing to read then."},
    {"linger",
     0,
     FlagKind::kSeconds,
     "S",
     "",
     kFailure,
     "How long processes that a finished rank left behind may live. Default: 10."},

    {"aws_access_key_id",
     0,
     FlagKind::kText,
     "ID",
     "",
     kSageMaker,
     "Of the account, where the configuration file names no profile of AWS."},
    {"aws_secret_access_key",
     0,
     FlagKind::kText,
     "SECRET",
     "",
     kSageMaker,
     "Belongs to it. Others may see command lines: a profile, or AWS_SECRET_ACCESS_KEY in the "
     "environment, is better."},

    {"nnodes",
     0,
     FlagKind::kText,
     "MIN:MAX",
     "",
     kNodes,
     "Nodes of the job, as 4 or 2:4; inside SLURM by default those of the allocation. With a range "
     "--nproc_per_node says how many workers each has."},
    {"agent",
     0,
     FlagKind::kSwitch,
     "",
     "",
     kNodes,
     "Give the job to the agent of this machine and follow it; the agents find the nodes and keep "
     "the output. The agent is that of $ACCEL_AGENT, else of /run/accel."},
    {"rdzv_endpoint",
     0,
     FlagKind::kText,
     "ADDR:PORT",
     "",
     kNodes,
     "Where the nodes meet, an address or a name; the launcher whose it is hosts the coordinator. "
     "With a fixed number of nodes and no --rdzv_token_file it is --main_process_ip and its port, "
     "and ranks come in the order of joins. With --rdzv_backend c10d, a range of nodes and no "
     "token, whoever reaches it is trusted."},
    {"rdzv_id",
     0,
     FlagKind::kText,
     "ID",
     "",
     kNodes,
     "The job's id, the same on each node. Default: job; without a daemon none."},
    {"node_id",
     0,
     FlagKind::kText,
     "ID",
     "",
     kNodes,
     "This node's id. Default: the host's name and the launcher's pid; inside SLURM its node's "
     "name."},
    {"rdzv_token_file",
     0,
     FlagKind::kText,
     "PATH",
     "",
     kNodes,
     "File of mode 0600 with the job's token, the same on each node."},
    {"rdzv_tls_dir",
     0,
     FlagKind::kText,
     "PATH",
     "",
     kNodes,
     "Folder with ca.pem, cert.pem and key.pem of this node, as `accel-agent init-tls` makes it."},
    {"rdzv_insecure", 0, FlagKind::kSwitch, "", "", kNodes, "No TLS; loopback addresses only."},
    {"rdzv_dir",
     0,
     FlagKind::kText,
     "PATH",
     "",
     kNodes,
     "Inside SLURM: a folder that all nodes see, for the job's key. Default: the working folder."},
    {"rdzv_join_timeout",
     0,
     FlagKind::kSeconds,
     "S",
     "",
     kNodes,
     "How long to wait for the nodes. Default: 600."},
    {"rdzv_last_call_timeout",
     0,
     FlagKind::kSeconds,
     "S",
     "",
     kNodes,
     "With MIN:MAX, how long to wait for more nodes once MIN are there. Default: 3."},
    {"fencing",
     0,
     FlagKind::kChoice,
     "MODE",
     "soft,hard",
     kNodes,
     "Whether a node that is cut off must be dead before the others go on: soft, at once; hard, "
     "its "
     "workers are killed when its lease is over, and the others wait for that. Default: soft."},
    {"lease",
     0,
     FlagKind::kSeconds,
     "S",
     "",
     kNodes,
     "How long workers run on without an answer from the coordinator, with --fencing hard. "
     "Default: "
     "10."},
};

// The launcher's own flags, then those of TPUs, of torchrun and of each paradigm.
std::vector<FlagSpec> all_flags() {
  std::vector<FlagSpec> all(std::begin(kLaunchFlags), std::end(kLaunchFlags));
  all.insert(all.end(), tpu_flags().begin(), tpu_flags().end());
  all.insert(all.end(), torchrun_flags().begin(), torchrun_flags().end());
  for (const Paradigm* paradigm : paradigms()) {
    if (!paradigm->chooser.name.empty()) all.push_back(paradigm->chooser);
    for (const Option& option : paradigm->options) all.push_back(option.flag);
  }
  return all;
}

}  // namespace

std::span<const FlagSpec> flag_table() {
  static const std::vector<FlagSpec> all = all_flags();
  return all;
}

const FlagSpec* find_flag(std::string_view name) {
  for (const FlagSpec& flag : flag_table()) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

}  // namespace accel::launcher
