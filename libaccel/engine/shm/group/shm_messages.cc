#include "libaccel/engine/shm/group/shm_group.h"

namespace accel::shm {

Result<void> ShmGroup::post(const TransferPtr& transfer) {
  const bool may_be_any = !transfer->is_sent && transfer->peer == kAnyRank && world_size() > 1;
  const bool exists =
      transfer->peer >= 0 && transfer->peer < world_size() && transfer->peer != rank();
  if (!exists && !may_be_any) {
    return Error(ErrorCode::kInvalidArgument,
                 "rank " + std::to_string(rank()) + " has no messages with rank " +
                     std::to_string(transfer->peer) + ": of " + std::to_string(world_size()) +
                     " ranks it takes another one");
  }
  if (auto usable = check_usable(); !usable) return usable;
  point_to_point_.post(transfer);
  const auto moved = point_to_point_.progress();
  return moved ? Result<void>() : Result<void>(broken(moved.error()));
}

Result<bool> ShmGroup::is_done(const TransferPtr& transfer) {
  if (transfer->is_done) return true;
  if (auto usable = check_usable(); !usable) return std::move(usable).error();
  // What a rank left in its ring before it ended still counts: looked at first, moved afterwards.
  const Result<void> may_come = is_look_due() ? check_peer_of(*transfer) : Result<void>();
  if (const auto moved = point_to_point_.progress(); !moved) return broken(moved.error());
  if (!transfer->is_done && !may_come) return broken(may_come.error());
  return transfer->is_done;
}

Result<void> ShmGroup::wait(const TransferPtr& transfer) {
  const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
  Bell& bell = memory_.bell(rank());
  for (;;) {
    if (transfer->is_done) return {};
    if (auto usable = check_usable(); !usable) return usable;
    const std::uint32_t rings = bell.rings.load(std::memory_order_seq_cst);
    const Result<void> may_come = check_peer_of(*transfer);  // first, as in is_done()
    const auto moved = point_to_point_.progress();
    if (!moved) return broken(moved.error());
    if (transfer->is_done || *moved) continue;
    if (!may_come) return broken(may_come.error());
    if (std::chrono::steady_clock::now() >= deadline) return broken(lateness_of(transfer->peer));
    await_bell(bell, rings, options_.spins, kLookEvery);
  }
}

Result<void> ShmGroup::check_peer_of(const Transfer& transfer) {
  std::optional<Loss> left;
  bool is_anybody_here = false;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (rank == this->rank() || (transfer.peer != kAnyRank && transfer.peer != rank)) continue;
    std::optional<Loss> loss = loss_of(rank);
    // Its error may come of a third one's death.
    if (loss && loss->how == Loss::kBroken) loss = loss_before(phase_ + 1);
    if (!loss)
      is_anybody_here = true;
    else if (loss->how == Loss::kLeft)
      left = loss;
    else
      return error_of(*loss);
  }
  if (is_anybody_here) return {};
  return error_of(*left);
}

}  // namespace accel::shm
