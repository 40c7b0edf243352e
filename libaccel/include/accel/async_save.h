// AsyncSave: a checkpoint that is written while training continues.
//
//   accel::AsyncSave saving = accel::async_save_checkpoint(folder, accelerator.checkpoint_objects(), {.step = step});
//   ... train ...
//   saving.wait();
//
// The call copies the state and returns; a thread writes the copy. With SaveOptions.files.async_copy = AsyncCopy::kBeforeUpdate
// parameters and moments are copied while the next forward and backward run. The checkpoint appears when the last rank has written its part.
// As with save_checkpoint(), a folder of that name is complete or absent.
//
// Threads:  the thread that trains; every rank makes the same calls. Only one save runs at a time. Another save first waits for it,
//           and throws its error if wait() has not thrown it yet.
// Cost:     the call copies this rank's part; the copy is kept until it is written. With kBeforeUpdate the call takes some messages
//           between the ranks, and the next step waits for the rest of the copy.
#pragma once

#include <filesystem>
#include <memory>

#include <accel/checkpoint.h>
#include <accel/export.h>

namespace accel {

class ACCEL_EXPORT AsyncSave {
 public:
  AsyncSave() = default;  // of nothing
  AsyncSave(AsyncSave&&) noexcept = default;
  // Ends the earlier save of this object, as the destructor does.
  AsyncSave& operator=(AsyncSave&& other) noexcept;
  // Waits for the end of the save and logs an error that wait() did not throw. During an exception it gives the save up instead,
  // because the other ranks may be gone.
  ~AsyncSave();

  // Whether the save has ended, successfully or not.
  [[nodiscard]] bool is_done() const;
  // Returns when the checkpoint is complete. Throws, once, the errors of save_checkpoint(), and kPeerLost if a rank does not finish
  // its part within 30 minutes of the first rank. A dead rank is noticed sooner: in a second on this node, in a minute on another.
  CheckpointInfo wait();

  class Task;  // private to the library
  explicit AsyncSave(std::shared_ptr<Task> task);

 private:
  std::shared_ptr<Task> task_;
};

// Starts a save. Hooks run before it returns. Errors  of save_checkpoint() about the objects and the folder; wait() throws
// later errors. Requires: every rank calls it.
[[nodiscard]] ACCEL_EXPORT AsyncSave async_save_checkpoint(const std::filesystem::path& folder,
                                                           const CheckpointObjects& objects,
                                                           const SaveOptions& options = {});

}  // namespace accel
