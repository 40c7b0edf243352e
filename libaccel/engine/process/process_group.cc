// How the ranks find each other, and how a broken connection is reported.
//
// Joining has four steps. (1) Everybody opens the key-value store at MASTER_ADDR:MASTER_PORT, which
// the supervisor or rank 0 hosts; store_contact.h waits for it. (2) Every rank writes a key and waits
// for those of all others, so that a rank which never started is named within store_timeout; Gloo
// alone would wait for its collective timeout and not say for whom. (3) Ranks that are all on one node
// share memory (engine/collectives/shm_meeting.h), unless another backend is asked for. (4) Where they do
// not, Gloo connects each pair of ranks (gloo_backend.h); it gets the addresses from the same store.
// On several nodes the ranks of each share memory then (engine/collectives/node_meeting.h), and Gloo carries
// what goes between nodes. Then the ranks
// meet in the store once more: one that ended at once would cut connections that others have not
// completed yet. Keys carry the restart count, for a store that outlives a generation, and the number of the group among those
// that this process joined at the same store: ranks of one communicator may have been in others before, each in its own.
//
// Bytes: all_gather and broadcast move raw bytes, since Gloo knows fewer element types than
// LibTorch.

#include "libaccel/engine/process/process_group.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <accel/detail/step_span.h>

#include "libaccel/engine/collectives/host_copies_backend.h"
#include "libaccel/engine/collectives/node_link.h"
#include "libaccel/engine/collectives/node_meeting.h"
#include "libaccel/engine/collectives/queued_group.h"
#include "libaccel/engine/collectives/reduced_numbers.h"
#include "libaccel/engine/collectives/shm_backend.h"
#include "libaccel/engine/collectives/shm_meeting.h"
#include "libaccel/engine/collectives/store_contact.h"
#include "libaccel/engine/collectives/store_round.h"
#include "libaccel/engine/collectives/two_level_group.h"
#include "libaccel/engine/device/device_backend.h"
#include "libaccel/engine/process/call_record.h"
#include "libaccel/engine/process/gloo_backend.h"
#include "libaccel/engine/process/sigpipe.h"
#include "libaccel/engine/process/supervisor_link.h"
#include "libaccel/engine/shm/memory/node_identity.h"
#include "libaccel/interception/state_staging.h"
#include "runtime/text/first_line.h"

namespace accel {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr const char* kShm = "shm";
constexpr const char* kGloo = "gloo";
constexpr const char* kTwoLevel = "two_level";
constexpr const char* kNccl = "nccl";

std::string endpoint(const WorkerIdentity& identity) {
  return identity.master_addr + ":" + std::to_string(identity.master_port);
}

StorePtr open_store(const WorkerIdentity& identity, const InitProcessGroupKwargs& options) {
  if (identity.world_size == 1) return c10::make_intrusive<c10d::HashStore>();
  c10d::TCPStoreOptions store_options;
  store_options.port = identity.master_port;
  store_options.isServer = !identity.use_agent_store && identity.global_rank == 0;
  store_options.waitWorkers = false;
  store_options.timeout = options.store_timeout;
  const bool hosts = store_options.isServer;
  UniqueFd first_contact;
  try {
    if (!hosts) {
      first_contact =
          contact_store(identity.master_addr, identity.master_port, options.store_timeout);
    }
    return c10::make_intrusive<c10d::TCPStore>(identity.master_addr, store_options);
  } catch (Error& error) {
    error.while_doing(joining_text(identity.global_rank));
    throw;
  } catch (const std::exception& cause) {
    throw Error(hosts ? ErrorCode::kPortInUse : ErrorCode::kStoreUnreachable,
                (hosts ? "cannot host the store at " : "lost the store at ") + endpoint(identity),
                hosts ? "set MASTER_PORT to a free port on every rank" : "")
        .with_detail("cause", first_line(cause.what()))
        .while_doing(joining_text(identity.global_rank));
  }
}

constexpr StoreRound kArrived{"arrived", "reach the store"};
constexpr StoreRound kDevices{"devices", "say which device they have"};
constexpr StoreRound kConnected{"connected", "connect to every other rank"};
constexpr StoreRound kLeft{"left", "take leave of the store"};

StoreMember member_of(const WorkerIdentity& identity, const InitProcessGroupKwargs& options) {
  return {.rank = identity.global_rank,
          .world_size = identity.world_size,
          .endpoint = endpoint(identity),
          .timeout = options.store_timeout};
}

// How many groups this process has joined at that store before; runs are told apart, for a port may have been another's.
int count_group(const WorkerIdentity& identity) {
  static std::mutex mutex;
  static auto* const counts = new std::map<std::string, int>;
  const std::lock_guard lock(mutex);
  return (*counts)[endpoint(identity) + "/" + identity.run_id]++;
}

// Tells the others that this rank is there, and waits until all have told it.
void meet(c10d::Store& store, const StoreRound& round, const StoreMember& member) {
  (void)exchange(store, round, member, "here");
}

// Returns when every rank has all its connections. Whoever hosts the store stays until the others
// need it no more.
void wait_until_connected(c10d::Store& store,
                          const WorkerIdentity& identity,
                          const StoreMember& member) {
  meet(store, kConnected, member);
  const bool hosts = !identity.use_agent_store && identity.global_rank == 0;
  if (hosts) return meet(store, kLeft, member);
  try {
    say(store, kLeft, identity.global_rank, "here");
  } catch (const std::exception&) {
    // Everybody is connected: who hosts the store may be through with it already.
  }
}

// For ever comes as the largest number that there is, which no clock can be added to; poll() counts to 24 days.
InitProcessGroupKwargs with_bounded_timeouts(InitProcessGroupKwargs options) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::days(24);
  const std::pair<const char*, std::chrono::milliseconds*> timeouts[] = {
      {"timeout", &options.timeout}, {"store_timeout", &options.store_timeout}};
  for (const auto& [name, timeout] : timeouts) {
    if (timeout->count() <= 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  std::string("InitProcessGroupKwargs.") + name + " is " +
                      std::to_string(timeout->count()) + " ms, expected a time above 0");
    }
    *timeout = std::min(*timeout, kLongest);
  }
  return options;
}

// What a rank shares with nobody.
std::shared_ptr<shm::ShmGroup> group_of_one() {
  const shm::GroupShape shape = {.world_size = 1, .slot_bytes = 4096};
  return or_throw(shm::ShmGroup::join(or_throw(shm::GroupMemory::create(shape)), {.shape = shape}));
}

// Groups that stand on one link have one thread beside the caller's; one without, of ranks that all share memory, needs none.
std::shared_ptr<shm::ByteGroup> in_turns(std::shared_ptr<shm::ByteGroup> group,
                                         const std::shared_ptr<NodeLink>& link) {
  if (link == nullptr) return group;
  return std::make_shared<QueuedGroup>(std::move(group), link->thread());
}

bool contains_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
    return text.find(part) != std::string_view::npos;
  });
}

// A one-dimensional view of the memory; the tensor must be contiguous.
at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.view({-1}).view(at::kByte);
}

c10d::ReduceOp::RedOpType reduce_op(Reduction reduction) {
  return reduction == Reduction::kMax ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
}

// Calls act() and says in our words what c10d throws.
template <typename F>
void translated(std::string_view operation, int rank, int size, F&& act) {
  try {
    act();
  } catch (const Error& cause) {
    throw collective_error(cause, operation, rank, size);
  } catch (const std::exception& cause) {
    throw collective_error(cause.what(), operation, rank, size);
  }
}

}  // namespace

Error collective_error(std::string_view what, std::string_view operation, int rank, int size) {
  const bool lost = contains_any(what,
                                 {"Connection closed by peer",
                                  "Connection reset",
                                  "Broken pipe",
                                  "Connection refused",
                                  "Socket closed"});
  const bool late = contains_any(what, {"Timed out", "timed out", "timeout"});
  std::string message = std::string(operation) + " failed on rank " + std::to_string(rank) +
                        " of " + std::to_string(size) + ": ";
  if (lost) {
    message += "another rank ended (" + first_line(what) + ")";
    return Error(ErrorCode::kPeerLost, std::move(message));
  }
  if (late) {
    message += "another rank did not answer in time (" + first_line(what) + ")";
    return Error(ErrorCode::kPeerLost,
                 std::move(message),
                 "check that every rank calls the same collectives; raise "
                 "InitProcessGroupKwargs.timeout for slow ranks");
  }
  return Error(ErrorCode::kProcessGroup, message + first_line(what));
}

Error collective_error(const Error& cause, std::string_view operation, int rank, int size) {
  Error error(cause.code(),
              std::string(operation) + " failed on rank " + std::to_string(rank) + " of " +
                  std::to_string(size) + ": " + cause.message(),
              cause.remedy());
  for (const std::string& context : cause.context()) error.while_doing(context);
  return error;
}

Work::Work() = default;
Work::Work(Work&&) noexcept = default;
Work::~Work() = default;

void Work::wait() {
  if (work_ == nullptr) return;
  const detail::StepSpan span(detail::StepPart::kCommunication);
  translated(operation_, rank_, size_, [&] { work_->wait(); });
  if (at_end_) at_end_();
}

ProcessGroup::ProcessGroup(const WorkerIdentity& identity, const InitProcessGroupKwargs& options)
    : identity_(identity), options_(options), names_(static_cast<std::size_t>(size())) {
  std::iota(names_.begin(), names_.end(), 0);
  layout_.nodes = {names_};
}

ProcessGroup::~ProcessGroup() = default;

std::unique_ptr<ProcessGroup> ProcessGroup::join(const WorkerIdentity& identity,
                                                 const InitProcessGroupKwargs& given,
                                                 RankDevice device) {
  InitProcessGroupKwargs options = with_bounded_timeouts(given);
  const std::string wanted = options.backend;
  const bool wants_nccl = wanted == kNccl && device.backend != nullptr;
  if (!wanted.empty() && wanted != kShm && wanted != kGloo && !wants_nccl) {
    throw Error(ErrorCode::kUnsupported,
                "the process group backend '" + wanted + "' is not part of this build" +
                    (wanted == kNccl ? ", or this rank has no GPU" : ""),
                "set InitProcessGroupKwargs.backend to shm or gloo, or leave it empty");
  }
  if (wants_nccl) options.backend.clear();  // for what is on the CPU, which NCCL does not take
  std::unique_ptr<ProcessGroup> joined(new ProcessGroup(identity, options));
  joined->device_ = device;
  if (wanted == kShm && !joined->is_one_node()) {
    throw Error(ErrorCode::kUnsupported,
                "the process group backend 'shm' joins the ranks of one node, and " +
                    std::to_string(identity.local_world_size) + " of " +
                    std::to_string(identity.world_size) + " ranks are on this one",
                "leave InitProcessGroupKwargs.backend empty");
  }
  ignore_sigpipe_unless_handled();
  // The first group of a process has the prefix to itself; each later one gets its own.
  const int number = count_group(identity);
  joined->store_ = c10::make_intrusive<c10d::PrefixStore>(
      "accel/attempt_" + std::to_string(identity.restart_count) +
          (number == 0 ? "" : "/group_" + std::to_string(number)),
      open_store(identity, options));
  meet(*joined->store_, kArrived, member_of(identity, options));
  if (wanted == kGloo || !joined->is_one_node() || !joined->join_shm()) joined->join_gloo();
  if (device.backend == nullptr) return joined;
  const std::string obstacle = wanted == kShm || wanted == kGloo
                                   ? std::string()
                                   : joined->agree_on_devices(member_of(identity, options));
  if (wants_nccl && !joined->has_own_devices_) {
    throw Error(ErrorCode::kUnsupported,
                "the process group backend 'nccl' cannot serve: " + obstacle,
                "start one process for each GPU, or leave InitProcessGroupKwargs.backend empty");
  }
  if (!obstacle.empty()) {
    joined->notice_ += (joined->notice_.empty() ? "" : "; ") + obstacle +
                       ": gradients go through the memory of the host";
  }
  joined->connect_devices();
  return joined;
}

// Whether the ranks may be connected by their devices: all of them learn the same. Returns why not.
std::string ProcessGroup::agree_on_devices(const StoreMember& member) {
  std::string mine = device_.backend->why_no_connection();
  if (mine.empty()) {
    const auto node = shm::read_node_identity();
    mine = (node ? node->boot_id : std::to_string(identity_.node_rank)) + " " +
           device_.backend->place_of(device_.index);
  } else {
    mine = refusal_text(mine);
  }
  const std::vector<std::string> said = exchange(*store_, kDevices, member, mine);
  for (std::size_t other = 0; other < said.size(); ++other) {
    if (const auto reason = reason_of_refusal(said[other]))
      return "rank " + std::to_string(other) + ": " + *reason;
    const auto first = std::find(said.begin(), said.end(), said[other]) - said.begin();
    if (first != static_cast<std::ptrdiff_t>(other))
      return "ranks " + std::to_string(first) + " and " + std::to_string(other) +
             " share a GPU, which NCCL refuses";
  }
  has_own_devices_ = true;
  return {};
}

void ProcessGroup::connect_devices() {
  if (device_.backend == nullptr) return;
  c10::intrusive_ptr<c10d::Backend> backend;
  if (has_own_devices_ && size() > 1) {
    translated("connecting the ranks' GPUs", rank(), size(), [&] {
      backend = device_.backend->connect(c10::make_intrusive<c10d::PrefixStore>(kNccl, store_),
                                         {.rank = rank(),
                                          .world_size = size(),
                                          .device = device_.index,
                                          .timeout = options_.timeout});
    });
  } else {
    backend = c10::make_intrusive<HostCopiesBackend>(group_->getDefaultBackend());
  }
  // The kind of backend is a key of the group's, and a kind has one backend there: one that nobody else uses here.
  const auto kind = has_own_devices_ ? c10d::ProcessGroup::NCCL : c10d::ProcessGroup::UCC;
  group_->setBackend(device_.backend->type(), kind, backend);
}

ShmMeetingOptions ProcessGroup::meeting_options() const {
  ShmMeetingOptions meeting = {
      .member = member_of(identity_, options_),
      .group = {},
      .node = shm::read_node_identity(),
      .process = {.pid = ::getpid(), .start_time = shm::start_time_of(::getpid())},
      .channel = detail::supervisor_channel()};
  meeting.group.shape.world_size = size();
  meeting.group.timeout = options_.timeout;
  meeting.group.names = names_;
  return meeting;
}

// Whether the ranks share memory now; all of them get the same answer.
bool ProcessGroup::join_shm() {
  auto met = meet_in_shared_memory(*store_, meeting_options());
  if (!met) {
    if (options_.backend == kShm) throw std::move(met).error().while_doing(joining_text(rank()));
    notice_ = met.error().message() + "; collectives go through gloo";
    return false;
  }
  // c10d::Reducer asks the backend for the memory of its buckets only where this says 0; what the user has set stays.
  ::setenv("DDP_DISABLE_COMM_MEM", "0", /*replace=*/0);
  take_memory(kShm, *std::move(met));
  return true;
}

void ProcessGroup::join_gloo() {
  c10::intrusive_ptr<c10d::Backend> gloo;
  try {
    gloo = connect_gloo(store_,
                        {.rank = rank(),
                         .world_size = size(),
                         .is_one_machine = is_one_node(),
                         .timeout = options_.timeout});
  } catch (const std::exception& cause) {
    throw collective_error(cause.what(), "joining the process group", rank(), size());
  }
  const bool wants_levels = options_.backend.empty() && !is_one_node();
  if (!wants_levels || !join_two_level(gloo)) take_backend(kGloo, c10d::ProcessGroup::GLOO, gloo);
  wait_until_connected(*store_, identity_, member_of(identity_, options_));
}

// Whether the ranks of each node share memory now; all ranks get the same answer.
bool ProcessGroup::join_two_level(const c10::intrusive_ptr<c10d::Backend>& gloo) {
  auto met =
      meet_by_nodes(store_, {.shm = meeting_options(), .launcher_node = identity_.node_rank});
  if (!met) {
    notice_ = "no collectives by nodes: " + met.error().message() +
              "; every rank goes through gloo, inside a node too";
    return false;
  }
  node_ = std::move(met->group);
  link_ = std::make_shared<NodeLink>(gloo);
  take_layout(std::move(met->layout), node_);
  return true;
}

std::shared_ptr<ProcessGroup> ProcessGroup::part(const std::vector<int>& ranks) {
  WorkerIdentity identity = identity_;
  identity.world_size = static_cast<int>(ranks.size());
  identity.global_rank =
      static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
  identity.local_world_size = is_one_node() ? identity.world_size : 0;
  identity.use_agent_store = true;  // nobody hosts it for this group alone
  std::shared_ptr<ProcessGroup> part(new ProcessGroup(identity, options_));
  part->names_ = ranks;
  part->is_part_ = true;
  part->device_ = device_;
  part->has_own_devices_ = has_own_devices_;
  if (ranks.size() == 1) {
    part->store_ = store_;
    part->take_memory(kShm,
                      node_ && node_->world_size() == 1 ? in_turns(node_, link_) : group_of_one());
  } else {
    join_part(*part, ranks);
  }
  part->connect_devices();
  return part;
}

void ProcessGroup::join_part(ProcessGroup& part, const std::vector<int>& ranks) {
  part.store_ = c10::make_intrusive<c10d::PrefixStore>(
      "part_" + std::to_string(num_parts_++) + "/" + std::to_string(ranks.front()), store_);
  NodeLayout layout = layout_.among(ranks);
  if (backend_ == kGloo || !layout.is_even()) {
    part.options_.backend = kGloo;
    part.join_gloo();
    return;
  }
  part.link_ = link_;
  const std::size_t num_places = layout.nodes.front().size();
  if (node_ != nullptr && num_places == layout_.nodes.front().size()) {
    part.take_layout(std::move(layout), node_);
  } else if (num_places == 1) {
    part.take_layout(std::move(layout), group_of_one());
  } else {
    auto met = meet_on_node(part.store_, layout, part.meeting_options());
    part.take_layout(std::move(layout), or_throw(std::move(met)));
  }
}

// Neither memory nor links are shared with this group, whose calls have an order of their own.
std::shared_ptr<ProcessGroup> ProcessGroup::twin() {
  WorkerIdentity identity = identity_;
  identity.use_agent_store = true;  // who hosts it does so for this group
  std::shared_ptr<ProcessGroup> twin(new ProcessGroup(identity, options_));
  twin->is_part_ = true;
  twin->device_ = device_;
  twin->has_own_devices_ = has_own_devices_;
  twin->store_ =
      c10::make_intrusive<c10d::PrefixStore>("twin_" + std::to_string(num_twins_++), store_);
  if (backend_ == kGloo) twin->options_.backend = kGloo;
  if (backend_ != kShm || !twin->join_shm()) twin->join_gloo();
  twin->connect_devices();
  return twin;
}

void ProcessGroup::take_layout(NodeLayout layout, const std::shared_ptr<shm::ShmGroup>& node) {
  if (layout.num_nodes() == 1) {
    take_memory(kShm, in_turns(node, link_));
  } else {
    auto group = std::make_shared<TwoLevelGroup>(TwoLevelGroup::Parts{
        .rank = rank(), .layout = layout, .names = names_, .node = node, .link = link_});
    take_memory(kTwoLevel, in_turns(std::move(group), link_));
  }
  layout_ = std::move(layout);
}

void ProcessGroup::take_memory(const char* name, std::shared_ptr<shm::ByteGroup> memory) {
  memory_ = std::move(memory);
  if (auto* const word = memory_->stop_word()) stop_word_.emplace(*word);
  take_backend(
      name,
      c10d::ProcessGroup::CUSTOM,
      c10::make_intrusive<ShmBackend>(memory_, std::string("accel_") + name, options_.timeout));
}

void ProcessGroup::take_backend(const char* name,
                                int type,
                                const c10::intrusive_ptr<c10d::Backend>& backend) {
  const auto backend_type = static_cast<c10d::ProcessGroup::BackendType>(type);
  group_ = c10::make_intrusive<c10d::ProcessGroup>(store_, rank(), size());
  group_->setBackend(device().type(), backend_type, backend);
  group_->setDefaultBackend(backend_type);
  group_->setGroupName("default_pg");
  backend_ = name;
}

void ProcessGroup::record(const Call& call) const noexcept {
  if (!is_part_ && size() > 1)
    detail::record_call(call.kind, call.operation, call.elements, call.type);
}

template <typename F>
Work ProcessGroup::begin(const Call& call, F&& start, std::function<void()> at_end) const {
  record(call);
  const detail::StepSpan span(detail::StepPart::kCommunication);
  Work work;
  translated(call.operation, rank(), size(), [&] { work.work_ = start(); });
  work.operation_ = call.operation;
  work.rank_ = rank();
  work.size_ = size();
  work.at_end_ = std::move(at_end);
  return work;
}

at::Tensor ProcessGroup::all_gather(const at::Tensor& input, std::string_view operation) {
  auto shape = input.sizes().vec();
  shape.insert(shape.begin(), size());
  at::Tensor gathered = at::empty(shape, input.options().requires_grad(false));
  if (input.numel() == 0) return gathered;
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int rank = 0; rank < size(); ++rank)
    outputs[0].push_back(as_bytes(gathered.select(0, rank)));
  std::vector<at::Tensor> inputs{as_bytes(input.detach())};
  begin({"all_gather", operation, input.numel(), input.scalar_type()}, [&] {
    return group_->allgather(outputs, inputs);
  }).wait();
  return gathered;
}

Work ProcessGroup::begin_all_reduce(at::Tensor& values,
                                    Reduction reduction,
                                    std::string_view operation) {
  if (values.numel() == 0) return {};
  before_write_to(values);
  const at::Tensor target = values.detach();
  std::vector<at::Tensor> tensors{target.contiguous()};
  c10d::AllreduceOptions options;
  options.reduceOp = reduce_op(reduction);
  const int divisor = reduction == Reduction::kMean ? size() : 1;
  const auto at_end = [target, sum = tensors[0], divisor] {
    if (divisor > 1) sum.div_(divisor);
    if (!sum.is_same(target)) target.copy_(sum);
  };
  return begin(
      {reduction == Reduction::kMax ? "all_reduce max" : "all_reduce sum",
       operation,
       values.numel(),
       values.scalar_type()},
      [&] { return group_->allreduce(tensors, options); },
      at_end);
}

void ProcessGroup::all_to_all_rows(at::Tensor& output,
                                   const at::Tensor& input,
                                   std::vector<std::int64_t> output_rows,
                                   std::vector<std::int64_t> input_rows,
                                   std::string_view operation) {
  at::Tensor sent = input.view(at::kByte);
  at::Tensor got = output.view(at::kByte);
  // Ranks have different numbers of rows.
  begin({"all_to_all", operation}, [&] {
    return group_->alltoall_base(got, sent, output_rows, input_rows);
  }).wait();
}

bool ProcessGroup::all_reduce_pieces(std::span<const shm::Piece> pieces,
                                     at::ScalarType dtype,
                                     double factor,
                                     std::string_view operation) {
  if (memory_ == nullptr) return false;
  std::int64_t elements = 0;
  for (const shm::Piece& piece : pieces) elements += static_cast<std::int64_t>(piece.count);
  record({"all_reduce pieces", operation, elements, dtype});
  const detail::StepSpan span(detail::StepPart::kCommunication);
  bool is_done = false;
  translated(operation, rank(), size(), [&] {
    is_done = or_throw(memory_->all_reduce_pieces(pieces, data_type_of(dtype), factor));
  });
  return is_done;
}

bool ProcessGroup::reduce_scatter_pieces(at::Tensor& output,
                                         std::span<const shm::Piece> pieces,
                                         double factor,
                                         std::string_view operation) {
  if (memory_ == nullptr) return false;
  record({"reduce_scatter pieces", operation, output.numel(), output.scalar_type()});
  const detail::StepSpan span(detail::StepPart::kCommunication);
  bool is_done = false;
  translated(operation, rank(), size(), [&] {
    is_done = or_throw(memory_->reduce_scatter_pieces(pieces,
                                                      static_cast<std::byte*>(output.data_ptr()),
                                                      static_cast<std::size_t>(output.numel()),
                                                      data_type_of(output.scalar_type()),
                                                      factor));
  });
  return is_done;
}

std::shared_ptr<std::byte> ProcessGroup::allocate_shared(std::size_t bytes) {
  if (memory_ == nullptr) return nullptr;
  auto room = memory_->allocate(bytes);
  return room ? *std::move(room) : nullptr;
}

void ProcessGroup::broadcast_(at::Tensor& values, int from_process, std::string_view operation) {
  if (values.numel() == 0) return;
  before_write_to(values);
  const at::Tensor target = values.detach();
  const at::Tensor whole = target.contiguous();
  std::vector<at::Tensor> tensors{as_bytes(whole)};
  c10d::BroadcastOptions options;
  options.rootRank = from_process;
  begin({"broadcast", operation, values.numel(), values.scalar_type()}, [&] {
    return group_->broadcast(tensors, options);
  }).wait();
  if (!whole.is_same(target)) target.copy_(whole);
}

std::function<bool()> ProcessGroup::begin_any(bool mine, std::string_view operation) {
  at::Tensor flag = at::full({1}, mine ? 1 : 0, at::TensorOptions(at::kLong).device(device()));
  const auto work = std::make_shared<Work>(begin_all_reduce(flag, Reduction::kMax, operation));
  return [flag, work] {
    work->wait();
    return flag.item<std::int64_t>() != 0;
  };
}

Work ProcessGroup::begin_all_gather_into(at::Tensor& output,
                                         const at::Tensor& input,
                                         std::string_view operation) {
  if (input.numel() == 0) return {};
  before_write_to(output);
  at::Tensor from = input;
  return begin({"all_gather", operation, input.numel(), input.scalar_type()},
               [&] { return group_->_allgather_base(output, from); });
}

Work ProcessGroup::begin_reduce_scatter(at::Tensor& output,
                                        at::Tensor& input,
                                        std::string_view operation) {
  if (output.numel() == 0) return {};
  before_write_to(output);
  return begin({"reduce_scatter", operation, output.numel(), output.scalar_type()},
               [&] { return group_->_reduce_scatter_base(output, input); });
}

void ProcessGroup::barrier(std::string_view operation) {
  const detail::StepSpan span(detail::StepPart::kWait);
  begin({"barrier", operation}, [&] { return group_->barrier(); }).wait();
}

}  // namespace accel
