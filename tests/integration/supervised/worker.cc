// A worker in one of the states that a supervisor asks about:
//
//   throw           ends with an uncaught error on rank 1
//   sleep           waits until it is stopped
//   save FOLDER     saves two checkpoints, then fails on rank 1
//   part HOW        after three steps on rank 1 calls something else than rank 0 ("other"), or nothing ("none")
//   memory          says what its group stands on; in the first generation rank 1 is then killed
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>

#include <ATen/ops/ones.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/state.h>

namespace {

void save_twice(const char* folder) {
  accel::Accelerator accelerator(
      {.project_dir = folder, .project_config = {.automatic_checkpoint_naming = true}});
  for (int step = 0; step < 2; ++step) {
    accelerator.backward(at::ones({1}).set_requires_grad(true).sum());
    const std::string token = accelerator.save_state().commit_token;
    accelerator.print("token", token.empty() ? "none" : token);
  }
  accelerator.wait_for_everyone();  // rank 0 has printed before rank 1 fails
}

// Through Gloo, which waits for ranks that call different things.
void part(bool calls_other) {
  accel::Accelerator accelerator(
      {.cpu = true, .init_process_group = {.backend = calls_other ? "gloo" : ""}});
  for (int step = 0; step < 3; ++step)
    accelerator.backward(at::ones({1}).set_requires_grad(true).sum());
  if (accelerator.process_index() == 0) accelerator.wait_for_everyone();
  if (calls_other) (void)accelerator.gather(at::ones({3}));
}

// "memory <rank> <generation> <backend> <whose memory is mapped> <its inode>", for each piece.
void print_memory(const accel::PartialState& state) {
  std::ifstream maps("/proc/self/maps");
  std::string range, access, offset, device, inode, name;
  std::string line;
  while (std::getline(maps, line)) {
    name.clear();
    std::istringstream(line) >> range >> access >> offset >> device >> inode >> name;
    if (name != "/memfd:accel-shared" && name != "/memfd:accel-collectives") continue;
    std::printf("memory %d %d %s %s %s\n",
                state.process_index(),
                state.restart_count(),
                state.backend().c_str(),
                name.c_str(),
                inode.c_str());
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "part") {
    part(argv[2] == std::string_view("other"));
    std::this_thread::sleep_for(std::chrono::minutes(2));
  }
  accel::PartialState state;
  std::printf("ready %d\n", state.process_index());
  std::fflush(stdout);
  if (what == "throw" && state.process_index() == 1) {
    throw accel::Error(accel::ErrorCode::kDataSharding,
                       "a batch of 7 cannot be split over 2 ranks");
  }
  if (what == "memory") {
    print_memory(state);
    state.wait_for_everyone();
    if (state.restart_count() > 0) return 0;
    if (state.process_index() == 1) std::raise(SIGKILL);
    try {
      state.wait_for_everyone();
    } catch (const accel::Error& error) {
      std::printf("lost %s\n", error.message().c_str());
      return 1;
    }
  }
  if (what == "save") {
    save_twice(argv[2]);
    if (state.process_index() == 1) return 3;
  }
  std::this_thread::sleep_for(std::chrono::minutes(2));
}
