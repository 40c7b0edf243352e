// ShmWork: what the calls of ShmBackend return.
//
// Threads:  one thread at a time.
#pragma once

#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "libaccel/engine/collectives/communication_thread.h"
#include "libaccel/engine/shm/group/byte_group.h"

namespace accel {

// Of a collective, whose results are there.
[[nodiscard]] c10::intrusive_ptr<c10d::Work> completed_work(int rank,
                                                            c10d::OpType type,
                                                            std::vector<at::Tensor> results);

// Of a collective that a thread makes.
[[nodiscard]] c10::intrusive_ptr<c10d::Work> job_work(std::shared_ptr<CommunicationThread> thread,
                                                      CommunicationThread::JobPtr job,
                                                      int rank,
                                                      c10d::OpType type,
                                                      std::vector<at::Tensor> results);

// Of a message, which is posted: SEND, or else it is received. Memory that is not contiguous is copied at the end. Throws what
// ByteGroup::post() returns; kUnsupported: a tensor that is not dense, or not on the CPU.
[[nodiscard]] c10::intrusive_ptr<c10d::Work> letter_work(std::shared_ptr<shm::ByteGroup> group,
                                                         c10d::OpType type,
                                                         const at::Tensor& tensor,
                                                         int peer,
                                                         int tag);

}  // namespace accel
