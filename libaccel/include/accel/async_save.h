// AsyncSave: a checkpoint that is written while training goes on.
//
//   accel::AsyncSave saving = accel::async_save_checkpoint(folder, accelerator.checkpoint_objects(), {.step = step});
//   ... train ...
//   saving.wait();
//
// The call copies the state and returns; a thread writes the copy. With SaveOptions.files.async_copy = AsyncCopy::kBeforeUpdate
// parameters and moments are copied while the next forward and backward run. The checkpoint appears when the last rank has written its part.
// As with save_checkpoint(), a folder of that name is complete or absent.
//
// Threads:  the thread that trains, every rank the same calls. One save is under way at a time: another one, in the background
//           or not, waits for it first, and throws its error when nobody has asked for that yet.
// Cost:     the call copies what this rank writes; the copy is kept until it is written. With kBeforeUpdate the call takes some
//           messages between the ranks, and the next step waits for what is not copied by then.
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
  // Ends the save that this object had, as the destructor does.
  AsyncSave& operator=(AsyncSave&& other) noexcept;
  // Waits for the end of the save and logs an error that wait() did not throw. During an exception it gives the save up instead,
  // because the other ranks may be gone.
  ~AsyncSave();

  // Whether the save has ended, well or not.
  [[nodiscard]] bool is_done() const;
  // Returns when the checkpoint is complete. Throws, once, what save_checkpoint() throws; kPeerLost when a rank has not ended its
  // part within 30 minutes of the first that has, sooner when it is dead: a second on this node, a minute on another one.
  CheckpointInfo wait();

  class Task;  // private to the library
  explicit AsyncSave(std::shared_ptr<Task> task);

 private:
  std::shared_ptr<Task> task_;
};

// Begins to save. Hooks run before it returns. Errors  as save_checkpoint() for what is wrong with the objects and the folder;
// what goes wrong later is thrown by wait(). Requires: every rank calls it.
[[nodiscard]] ACCEL_EXPORT AsyncSave async_save_checkpoint(const std::filesystem::path& folder,
                                                           const CheckpointObjects& objects,
                                                           const SaveOptions& options = {});

}  // namespace accel
