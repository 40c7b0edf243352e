// The table of error codes, and how an Error is shown to a person.

#include <cstring>
#include <string>
#include <utility>

#include <accel/error.h>

#include "runtime/printable.h"

namespace accel {
namespace {

using enum ErrorCode;

// One row per code, in the order of the enumeration.
// clang-format off
constexpr ErrorInfo kTable[] = {
    {kInternal, "internal", 70, "accel itself did something it should not.",
     "run again with --debug and report the output"},
    {kInvalidArgument, "argument.invalid", 2, "A value is out of range or does not fit the others.",
     "change the value that the message names"},
    {kUsage, "usage", 2, "The command line cannot be used as it is.", "see `accel-launch --help`"},
    {kUnknownFlag, "usage.unknown_flag", 2, "A flag before the script is not known.",
     "see `accel-launch --help`; flags of the script go after the script"},
    {kConfigUnreadable, "config.unreadable", 2, "The configuration file cannot be opened or read.",
     "check the path given with --config_file and its permissions"},
    {kConfigSyntax, "config.syntax", 2, "The configuration file is not valid YAML or JSON.",
     "mend the line that the message names; YAML indents with spaces"},
    {kConfigUnknownKey, "config.unknown_key", 2, "The configuration file has a key that never existed.",
     "remove the key, or correct its spelling"},
    {kConfigInvalidValue, "config.invalid_value", 2, "A key of the configuration file has a wrong value.",
     "change the value to one of those that the message lists"},
    {kEnvInvalid, "env.invalid", 2, "An environment variable has a value that cannot be used.",
     "unset the variable, or give it a value of the kind that the message names"},
    {kScriptMissing, "script.missing", 127, "The script or program to launch does not exist.",
     "check the path; a program on PATH is found with --no_python"},
    {kScriptNotExecutable, "script.not_executable", 126, "The program to launch cannot be executed.",
     "make it executable with chmod +x"},
    {kExecFailed, "worker.exec_failed", 126, "A worker's program could not be started.",
     "check that the file is a program for this machine and that its interpreter exists"},
    {kLibraryMissing, "worker.library_missing", 127, "A worker's program needs a library that was not found.",
     "install the library, or add its folder to LD_LIBRARY_PATH"},
    {kSpawnFailed, "worker.spawn_failed", 71, "The operating system refused to start a worker.",
     "check the limits on processes and open files (`ulimit -a`)"},
    {kShimMissing, "shim.missing", 71, "The accel-shim program was not found.",
     "install accel-shim beside accel-launch, or name it with ACCEL_SHIM"},
    {kShimLost, "shim.lost", 71, "The accel-shim process ended before the job did; its workers were killed.",
     "look for what killed it (`dmesg`), then start the job again"},
    {kProtocol, "protocol", 70, "A message between two parts of accel was not understood.",
     "install accel-launch and accel-shim from the same build"},
    {kWorkerFailed, "worker.failed", 1, "A worker ended with an exit code other than 0.",
     "read the worker's last lines above"},
    {kWorkerSignaled, "worker.signaled", 1, "A worker was ended by a signal.",
     "read the worker's last lines and the core file, if there is one"},
    {kWorkerOutOfMemory, "worker.out_of_memory", 137, "A worker was killed because memory ran out.",
     "lower the batch size or the number of processes, or raise the memory limit"},
    {kWorkerUnkillable, "worker.unkillable", 137, "A worker did not end after SIGKILL.",
     "it waits inside the kernel (disk, network file system, GPU); look at /proc/PID/stack"},
    {kRestartsExhausted, "worker.restarts_exhausted", 1, "The job failed more often than --max_restarts allows.",
     "fix the first failure of the report, or raise --max_restarts"},
    {kPortInUse, "store.port_in_use", 98, "The port of the store is used by another process.",
     "give another port with --main_process_port (--master-port), or 0 for any free one"},
    {kStoreUnreachable, "store.unreachable", 111, "The store at MASTER_ADDR:MASTER_PORT cannot be reached.",
     "check MASTER_ADDR and MASTER_PORT, or start the program with accel-launch"},
    {kStoreTimeout, "store.timeout", 110, "A key did not appear in the store in time.",
     "find the rank that did not arrive; see the report of its process"},
    {kStoreLimit, "store.limit", 71, "A client exceeded a limit of the store.",
     "store large values in files and their names in the store"},
    {kChannelCorrupt, "channel.corrupt", 70, "A worker's channel holds bytes that make no sense.",
     "look for code in the worker that writes outside its own memory"},
    {kChannelVersion, "channel.version", 70, "Worker and launcher speak different versions of the channel.",
     "build the worker against the libaccel of the accel-launch that starts it"},
    {kLogUnwritable, "log.unwritable", 73, "A log file cannot be created or written.",
     "check that the folder of --log_dir exists, is writable and has space"},
    {kTopology, "topology", 71, "The cores of this machine could not be read or do not suffice.",
     "start fewer processes, or switch --enable_cpu_affinity off"},
    {kPeerLost, "rank.peer_lost", 1, "Another rank ended or does not answer.",
     "look at the first failing rank of the report: this rank only followed it"},
    {kProcessGroup, "rank.process_group", 1, "The process group could not be formed or a collective failed.",
     "check that every rank runs the same program and calls the same collectives"},
    {kNotInitialized, "state.not_initialized", 1, "Something was used before it was set up.",
     "construct an accel::Accelerator or accel::PartialState first"},
    {kShapeMismatch, "shape.mismatch", 1, "Tensors that must agree between ranks do not.",
     "use pad_across_processes before the call, or gather_object"},
    {kDataSharding, "data.sharding", 1, "A data loader cannot be divided over the ranks as asked.",
     "change the batch size, or split_batches"},
    {kSafetensorsHeader, "safetensors.header", 1, "A safetensors file has a header that is not valid.",
     "write the file again; it is cut short or was changed"},
    {kSafetensorsMismatch, "safetensors.mismatch", 1, "A safetensors file does not hold what the model expects.",
     "load a file that was saved from this model, or pass strict = false"},
    {kCheckpointIncomplete, "checkpoint.incomplete", 1, "A checkpoint has no valid manifest or a file of it is damaged.",
     "load an older checkpoint; load_state() without a folder picks the newest complete one"},
    {kCheckpointMismatch, "checkpoint.mismatch", 1, "A checkpoint was saved from other objects than those prepared now.",
     "prepare the same models, optimizers, schedulers and loaders, in the same order"},
    {kCheckpointVersion, "checkpoint.version", 1, "A checkpoint was written by a newer version of accel.",
     "load it with the version of accel that wrote it, or a later one"},
    {kCheckpointExists, "checkpoint.exists", 1, "The folder to save into exists already.",
     "set ProjectConfiguration.iteration past the existing checkpoints, or remove the folder"},
    {kFileIo, "file.io", 74, "Reading or writing a file failed.", "check the path, its permissions and the device"},
    {kDiskFull, "file.disk_full", 28, "The disk is full.", "free space on the device that the message names"},
    {kOutOfMemory, "memory.exhausted", 137, "Memory ran out.", "lower the batch size"},
    {kAgentUnreachable, "agent.unreachable", 69, "No accel-agent answers at the address.",
     "start accel-agent, or name the folder of its sockets with --agent or ACCEL_AGENT"},
    {kAgentRefused, "agent.refused", 77, "The agent does not let this caller do that.",
     "ask the administrator of the agent; docs/admin/security.md lists the rights of each caller"},
    {kAgentRunning, "agent.running", 71, "Another accel-agent uses the same state folder.",
     "stop the other agent, or give this one a folder of its own with --state-dir"},
    {kJobUnknown, "job.unknown", 66, "There is no such job, or it belongs to another user.",
     "see `accel status` for the jobs of this agent"},
    {kAuthentication, "auth.failed", 77, "A node or client could not prove its identity.",
     "give every node the same token file and a certificate of the same authority"},
    {kTls, "tls.invalid", 78, "A certificate or key cannot be used.",
     "make new ones with `accel-agent init-tls`"},
    {kRendezvousTimeout, "rendezvous.timeout", 110, "Not enough nodes joined in time.",
     "start the missing nodes, or raise the time or lower the number of nodes"},
    {kCoordinatorLost, "rendezvous.coordinator_lost", 111, "The coordinator does not answer any more.",
     "check that the machine of --rdzv-endpoint is up and its port reachable"},
    {kClusterMissing, "cluster.missing", 71, "libaccel_cluster.so was not found or does not fit this program.",
     "install it beside the program or in ../lib, from the same build; in a build folder: cmake --build build"},
    {kUnsupported, "unsupported", 1, "This build or this machine cannot do what was asked.",
     "see docs/reference/parity.md for what is supported"},
    {kShimState, "shim.state", 71, "The folder or state file of an accel-shim cannot be used.",
     "give a folder of mode 0700 that the job's user owns; remove a state file that is damaged"},
    {kShimRefused, "shim.refused", 77, "An accel-shim refused its new owner.",
     "use the token of the job; one owner at a time can have it"},
    {kWorkerHung, "worker.hung", 124, "A worker made no progress for longer than its limit.",
     "read its stacks in the log; raise --hang_timeout if the step is really that long"},
    {kEtcdUnreachable, "etcd.unreachable", 69, "No member of the etcd cluster answers.",
     "check that etcd runs, and etcd.endpoints of the agent's configuration (`etcdctl endpoint health`)"},
    {kLeadershipLost, "rendezvous.leadership_lost", 75, "Another agent hosts the coordinator now.",
     "nothing is lost: the other agent goes on; ask it, or try again"},
    {kNodeLost, "node.lost", 71, "A node is gone, and the job cannot go on with those that are left.",
     "queue the job again; or give --nnodes MIN:MAX and --max_restarts, so that it goes on with fewer nodes"},
    {kPreflightFailed, "preflight.failed", 75, "A check that the job asked for before its workers start failed on a node.",
     "run the check by hand on that node; its last lines are in the message"},
    {kNotFinite, "training.not_finite", 1, "A loss or a gradient is infinite or not a number, and nan_watch stops the run for that.",
     "look at the loss and the input of the rank that is named; lower the learning rate, or clip gradients"},
};
// clang-format on
static_assert(std::size(kTable) == static_cast<size_t>(kCount_), "every ErrorCode needs its row");

constexpr bool rows_are_in_order() {
  for (size_t i = 0; i < std::size(kTable); ++i) {
    if (kTable[i].code != static_cast<ErrorCode>(i)) return false;
  }
  return true;
}
static_assert(rows_are_in_order(), "kTable must follow the order of ErrorCode");

std::string doc_anchor(std::string_view id) {
  std::string anchor(id);
  for (char& c : anchor) {
    if (c == '.' || c == '_') c = '-';
  }
  return anchor;
}

void append_row(std::string& out, std::string_view label, std::string_view text) {
  constexpr size_t kLabelWidth = 10;
  out += "\n  ";
  out += label;
  out.append(label.size() < kLabelWidth ? kLabelWidth - label.size() : 1, ' ');
  for (char c : text) {
    out += c;
    if (c == '\n') out.append(2 + kLabelWidth, ' ');
  }
}

}  // namespace

const ErrorInfo& error_info(ErrorCode code) noexcept {
  const auto index = static_cast<size_t>(code);
  return kTable[index < std::size(kTable) ? index : 0];
}

Error::Error(ErrorCode code, std::string message, std::string remedy)
    : std::runtime_error(message),
      code_(code),
      message_(std::move(message)),
      remedy_(remedy.empty() ? std::string(error_info(code).remedy) : std::move(remedy)) {
  refresh_what();
}

Error& Error::while_doing(std::string what) & {
  context_.push_back(std::move(what));
  refresh_what();
  return *this;
}

Error&& Error::while_doing(std::string what) && {
  return std::move(while_doing(std::move(what)));
}

Error& Error::with_detail(std::string label, std::string text) & {
  details_.emplace_back(std::move(label), std::move(text));
  return *this;
}

Error&& Error::with_detail(std::string label, std::string text) && {
  return std::move(with_detail(std::move(label), std::move(text)));
}

void Error::refresh_what() {
  what_ = "[" + std::string(error_info(code_).id) + "] " + message_;
  for (const std::string& step : context_) what_ += "; while " + step;
  what_ += "; try: " + remedy_;
}

std::string Error::render(std::string_view program) const {
  const ErrorInfo& info = error_info(code_);
  std::string out(program);
  out += ": error [";
  out += info.id;
  out += "]: ";
  for (const char c : message_) {
    out += c;
    if (c == '\n') out += "  ";  // so that no line of it can look like an error of its own
  }
  for (const auto& [label, text] : details_) append_row(out, label, text);
  for (const std::string& step : context_) append_row(out, "while", step);
  append_row(out, "try", remedy_);
  append_row(out, "more", "docs/reference/errors.md#" + doc_anchor(info.id));
  return printable(out);  // words of a command line or a file may be in it
}

std::string errno_text(int error_number) {
  char buffer[128];
  const char* text = strerror_r(error_number, buffer, sizeof buffer);
  return std::string(text) + " (errno " + std::to_string(error_number) + ")";
}

}  // namespace accel
