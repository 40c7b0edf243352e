// accel-launch: starts the workers of a job on this machine and watches over them. Under the name
// accel-torchrun it has the defaults of torchrun.

#include <string>
#include <string_view>
#include <vector>

#include "launcher/launch/cmd_launch.h"
#include "launcher/launch/program_end.h"
#include "launcher/system/missing_stdio.h"

int main(int argc, char** argv) {
  accel::launcher::open_missing_stdio();
  if (argc == 0) return 2;
  const std::string_view name = argv[0];
  const bool is_torchrun = name.substr(name.rfind('/') + 1) == "accel-torchrun";
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return accel::launcher::status_of_program(is_torchrun ? "accel-torchrun" : "accel-launch", [&] {
    return accel::launcher::cmd_launch(arguments, is_torchrun);
  });
}
