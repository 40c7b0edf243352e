#include "launcher/start/tpu/tpu_launch.h"

namespace accel::launcher {
namespace {

// sys.argv: -c, "file" or "module", its name, the function, the arguments of the script. The function is found by
// import, because processes that torch_xla starts import it again.
constexpr std::string_view kStarterProgram =
    "import importlib, os, sys\n"
    "kind, name, function = sys.argv[1:4]\n"
    "if kind == 'file':\n"
    "    folder, name = os.path.split(os.path.abspath(name))\n"
    "    sys.path.append(folder)\n"
    "    name = os.path.splitext(name)[0]\n"
    "module = importlib.import_module(name)\n"
    "if not hasattr(module, function):\n"
    "    sys.exit(f'Your training script should have a function named {function}, or you should "
    "pass a '\n"
    "             'different value to `--main_training_function`.')\n"
    "sys.argv = [module.__file__, *sys.argv[4:]]\n"
    "from accelerate.utils import PrepareForLaunch\n"
    "import torch_xla.distributed.xla_multiprocessing as xmp\n"
    "xmp.spawn(PrepareForLaunch(getattr(module, function)), args=())\n";

}  // namespace

Result<WorkerCommand> tpu_command(const WorkerCommand& command, const TpuSettings& settings) {
  // PYTHON -u [-m] NAME ...
  const auto& argv = command.argv;
  const bool is_module = argv.size() > 3 && argv[2] == "-m";
  const bool is_run_path = argv.size() > 2 && argv[2] == "-c";
  if (!command.is_python || argv.size() < 3 || is_run_path) {
    return Error(
        ErrorCode::kUsage,
        "--tpu starts a function of a Python script or module, and " + command.name + " is none",
        "give a .py file with the function `" + settings.function +
            "`, without --no_python and --run_path");
  }
  WorkerCommand result = command;
  const auto name = argv.begin() + (is_module ? 3 : 2);
  result.argv = {argv[0],
                 argv[1],
                 "-c",
                 std::string(kStarterProgram),
                 is_module ? "module" : "file",
                 *name,
                 settings.function};
  result.argv.insert(result.argv.end(), name + 1, argv.end());
  return result;
}

EnvMap tpu_variables(const TpuSettings& settings, std::string_view mixed_precision) {
  if (mixed_precision != "bf16") return {};
  return {{settings.downcast_bf16 ? "XLA_DOWNCAST_BF16" : "XLA_USE_BF16", "1"}};
}

}  // namespace accel::launcher
