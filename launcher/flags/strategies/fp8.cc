// The options of fp8, for Python programs: those of every backend are told, whichever is chosen.

#include "launcher/flags/strategies/option.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kFp8Group = "fp8 (with --mixed_precision fp8)";
constexpr OptionMaker kMakeFp8 = {kFp8Group, TruthForm::kDigit};
// One reader compares the backend's name letter by letter.
constexpr OptionMaker kMakeTypedFp8 = {kFp8Group, TruthForm::kTyped};
constexpr OptionMaker kMakePythonFp8 = {kFp8Group, TruthForm::kPython};

constexpr Option kFp8Options[] = {
    kMakeTypedFp8.choice("fp8_backend",
                         "ao,te,msamp,ms-amp",
                         "ACCELERATE_FP8_BACKEND",
                         "",
                         "torchao, Transformer Engine or MS-AMP (deprecated)."),
    kMakePythonFp8.make(FlagKind::kSwitch,
                        "fp8_use_autocast_during_eval",
                        "",
                        "",
                        "ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL",
                        "False",
                        "te: fp8 also in evaluation."),
    kMakeFp8.integer("fp8_margin",
                     "ACCELERATE_FP8_MARGIN",
                     "0",
                     "te: margin of the scaling factor. Default: 0."),
    kMakeFp8
        .integer("fp8_interval",
                 "ACCELERATE_FP8_INTERVAL",
                 "1",
                 "te: steps between scaling factors. Default: 1.")
        .at_least(1),
    kMakeFp8.choice("fp8_format",
                    "HYBRID,E4M3,E5M2",
                    "ACCELERATE_FP8_FORMAT",
                    "HYBRID",
                    "te: the fp8 format. Default: HYBRID."),
    kMakeFp8
        .integer("fp8_amax_history_len",
                 "ACCELERATE_FP8_AMAX_HISTORY_LEN",
                 "1024",
                 "te: steps that the largest value is looked for in. Default: 1024.")
        .at_least(1)
        .once_called("fp8_amax_history_length"),
    kMakeFp8
        .choice("fp8_amax_compute_algo",
                "max,most_recent",
                "ACCELERATE_FP8_AMAX_COMPUTE_ALGO",
                "most_recent",
                "te: which of them counts. Default: most_recent.")
        .once_called("fp8_amax_compute_algorithm"),
    kMakeFp8.text(
        "fp8_override_linear_precision",
        "B,B,B",
        "",
        "te: higher precision for the forward pass, the gradient of the input and that of the "
        "weight, as in false,false,true."),
    kMakeFp8
        .choice("fp8_opt_level",
                "O1,O2",
                "ACCELERATE_FP8_OPT_LEVEL",
                "O2",
                "msamp: level of optimization. Default: O2.")
        .once_called("fp8_optimization_level"),
    kMakeFp8.boolean("fp8_enable_fsdp_float8_all_gather",
                     "ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER",
                     "1",
                     "ao: FSDP version 2 gathers parameters in fp8. Default: true."),
    kMakeFp8.boolean("fp8_pad_inner_dim",
                     "ACCELERATE_FP8_PAD_INNER_DIM",
                     "1",
                     "ao: pad sizes to multiples of 16. Default: true."),
    kMakeFp8.boolean("fp8_use_mxfp8_block_scaling",
                     "ACCELERATE_FP8_USE_MXFP8_BLOCK_SCALING",
                     "",
                     "te: a scaling factor for each block."),
};

constexpr Strategy kFp8 = {
    .name = "fp8",
    .chooser = {},
    .variable = "",
    .section = "fp8_config",
    .prefix = "fp8_",
    .options = kFp8Options,
    .hands_on_other_keys = true,
};

}  // namespace

const Strategy& fp8_strategy() {
  return kFp8;
}

}  // namespace accel::launcher
