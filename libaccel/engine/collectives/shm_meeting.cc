#include "libaccel/engine/collectives/shm_meeting.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "libaccel/engine/shm/memory/memory_offer.h"
#include "runtime/printable.h"

namespace accel {
namespace {

using shm::GroupMemory;

constexpr StoreRound kNodes{"shm/node", "say which node they are on"};
constexpr StoreRound kMemory{"shm/memory", "say whether they share memory"};

Error cannot_share(int rank, const std::string& why) {
  return Error(ErrorCode::kUnsupported,
               "rank " + std::to_string(rank) + " cannot share memory: " + why,
               "give the ranks of a node the same user, /proc and pid namespace, or choose the "
               "backend gloo");
}

Error death_of(int rank, const std::vector<shm::ProcessWatch::Process>& processes) {
  const pid_t pid = processes[static_cast<std::size_t>(rank)].pid;
  return Error(ErrorCode::kPeerLost,
               "rank " + std::to_string(rank) + " (process " + std::to_string(pid) +
                   ") has died while the ranks of this node agreed on shared memory");
}

// "<node> <has channel> <pid> <start time> <offer>", or that it declines.
std::string vote_text(const ShmVote& vote) {
  if (!vote.node) return refusal_text(vote.node.error().message());
  return to_text(*vote.node) + (vote.has_channel ? " 1 " : " 0 ") +
         std::to_string(vote.process.pid) + " " + std::to_string(vote.process.start_time) + " " +
         vote.offer;
}

ShmVote parse_vote(const std::string& text) {
  if (auto why = reason_of_refusal(text))
    return {.node = Error(ErrorCode::kUnsupported, *std::move(why))};
  std::istringstream fields(text);
  std::string node;
  ShmVote vote;
  if (!(fields >> node >> vote.has_channel >> vote.process.pid >> vote.process.start_time)) {
    return {.node = Error(ErrorCode::kUnsupported, "its vote is '" + printable(text) + "'")};
  }
  vote.node = shm::parse_node_identity(node);
  std::getline(fields >> std::ws, vote.offer);
  return vote;
}

// What this rank says. Rank 0 holds the memory that it offers in `held`.
ShmVote vote_of(const ShmMeetingOptions& options, UniqueFd& held) {
  ShmVote vote = {.node = options.node,
                  .has_channel = options.channel != nullptr,
                  .process = options.process,
                  .offer = {}};
  if (options.member.rank != 0 || !vote.node) return vote;
  auto memory = GroupMemory::create(options.group.shape);
  if (!memory) return {.node = std::move(memory).error()};
  held = *std::move(memory);
  auto offer = shm::offer_memory(held.get());
  if (!offer) return {.node = std::move(offer).error()};
  vote.offer = to_text(*offer);
  return vote;
}

// What this rank says of the memory, with the pages that it writes taken: who has not enough of them says so here.
std::string answer_of(const Result<GroupMemory>& memory, int rank) {
  if (!memory) return refusal_text(memory.error().message());
  const Result<void> reserved = memory->reserve(rank);
  return reserved ? "yes" : refusal_text(reserved.error().message());
}

Result<GroupMemory> memory_of_rank_zero(const std::string& text, const shm::GroupShape& shape) {
  const auto offer = shm::parse_memory_offer(text);
  if (!offer) return offer.error();
  const auto memory = shm::open_offer(*offer);
  if (!memory) return memory.error();
  return GroupMemory::map(memory->get(), shape);
}

Result<GroupMemory> memory_of_channel(WorkerChannel& channel,
                                      std::string name,
                                      const shm::GroupShape& shape) {
  std::replace(name.begin(), name.end(), ' ', '.');
  auto region = channel.get_shared("accel.collectives." + name, GroupMemory::size_of(shape));
  if (!region) return std::move(region).error();
  return GroupMemory::on(*std::move(region), shape);
}

}  // namespace

Result<ShmSource> decide(const std::vector<ShmVote>& votes) {
  bool have_channel = true;
  for (std::size_t rank = 0; rank < votes.size(); ++rank) {
    const ShmVote& vote = votes[rank];
    if (!vote.node) return cannot_share(static_cast<int>(rank), vote.node.error().message());
    const std::string other = difference(*vote.node, *votes[0].node);
    if (!other.empty()) {
      return cannot_share(static_cast<int>(rank), "it runs on " + other + " than rank 0");
    }
    have_channel = have_channel && vote.has_channel;
  }
  return have_channel ? ShmSource::kChannel : ShmSource::kRankZero;
}

Result<std::unique_ptr<shm::ShmGroup>> meet_in_shared_memory(c10d::Store& store,
                                                             const ShmMeetingOptions& options) {
  UniqueFd held;  // until everybody has said that it has the memory
  const ShmVote mine = vote_of(options, held);
  std::vector<ShmVote> votes;
  for (const std::string& text : exchange(store, kNodes, options.member, vote_text(mine)))
    votes.push_back(parse_vote(text));
  const Result<ShmSource> source = decide(votes);
  if (!source) return source.error();

  const shm::GroupShape& shape = options.group.shape;
  Result<GroupMemory> memory = *source == ShmSource::kChannel
                                   ? memory_of_channel(*options.channel, votes[0].offer, shape)
                                   : memory_of_rank_zero(votes[0].offer, shape);
  shm::GroupOptions group = options.group;
  for (const ShmVote& vote : votes) group.processes.push_back(vote.process);
  shm::ProcessWatch watch(group.processes);
  const auto check_others = [&] {
    for (int rank = 0; rank < options.member.world_size; ++rank) {
      if (!watch.is_alive(rank)) throw death_of(rank, group.processes);
    }
  };
  const std::string answer = answer_of(memory, options.member.rank);
  const auto answers = exchange(store, kMemory, options.member, answer, check_others);
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (const auto why = reason_of_refusal(answers[rank]))
      return cannot_share(static_cast<int>(rank), *why);
  }
  group.rank = options.member.rank;
  group.join_timeout = options.member.timeout;
  return or_throw(shm::ShmGroup::join(*std::move(memory), std::move(group)));
}

}  // namespace accel
