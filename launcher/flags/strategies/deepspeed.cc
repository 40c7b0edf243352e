// The options of DeepSpeed. Programs of libaccel read the stage (docs/guides/sharding.md); Python programs all of it.

#include "launcher/flags/strategies/option.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kDeepspeedGroup = "DeepSpeed (with --use_deepspeed)";
constexpr OptionMaker kMakeDeepspeed = {kDeepspeedGroup, TruthForm::kLower};
constexpr std::string_view kOffloadDevices = "none,cpu,nvme";

constexpr Option kDeepspeedOptions[] = {
    kMakeDeepspeed.text("deepspeed_config_file",
                        "PATH",
                        "ACCELERATE_DEEPSPEED_CONFIG_FILE",
                        "DeepSpeed's own configuration, in JSON."),
    kMakeDeepspeed.choice("zero_stage",
                          "0,1,2,3",
                          "ACCELERATE_DEEPSPEED_ZERO_STAGE",
                          "",
                          "Stage of ZeRO. Default, of the workers: 2."),
    kMakeDeepspeed
        .choice("offload_optimizer_device",
                kOffloadDevices,
                "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
                "",
                "Where optimizer states are kept. nvme: in --offload_optimizer_nvme_path.")
        .lowered(),
    kMakeDeepspeed
        .choice("offload_param_device",
                kOffloadDevices,
                "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
                "",
                "Where parameters are kept, with stage 3. nvme: in --offload_param_nvme_path.")
        .lowered(),
    kMakeDeepspeed.text("offload_optimizer_nvme_path",
                        "PATH",
                        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
                        "Folder for --offload_optimizer_device nvme."),
    kMakeDeepspeed.text("offload_param_nvme_path",
                        "PATH",
                        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",
                        "Folder for --offload_param_device nvme."),
    kMakeDeepspeed
        .integer("gradient_accumulation_steps",
                 "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
                 "",
                 "Batches whose gradients are added before a step.")
        .at_least(1)
        .or_word("auto"),
    kMakeDeepspeed
        .number("gradient_clipping",
                "ACCELERATE_GRADIENT_CLIPPING",
                "",
                "Largest norm of the gradients.")
        .or_word("auto,none"),
    kMakeDeepspeed.boolean("zero3_init_flag",
                           "ACCELERATE_DEEPSPEED_ZERO3_INIT",
                           "",
                           "Stage 3: divide models while they are made."),
    kMakeDeepspeed.boolean("zero3_save_16bit_model",
                           "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
                           "",
                           "Stage 3: save whole models in 16 bits."),
    kMakeDeepspeed.text("deepspeed_moe_layer_cls_names",
                        "CLASSES",
                        "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
                        "Class names of layers of experts, separated by commas."),
    kMakeDeepspeed.text(
        "deepspeed_hostfile", "PATH", "", "Several machines: the hosts and their slots."),
    kMakeDeepspeed.text(
        "deepspeed_exclusion_filter", "HOSTS", "", "Several machines: hosts to leave out."),
    kMakeDeepspeed.text(
        "deepspeed_inclusion_filter", "HOSTS", "", "Several machines: hosts to take."),
    kMakeDeepspeed.choice("deepspeed_multinode_launcher",
                          "pdsh,ssh,standard,openmpi,mvapich,mpich,nossh,slurm",
                          "",
                          "",
                          "Several machines: how they are reached."),
};

constexpr Strategy kDeepSpeed = {
    .name = "DeepSpeed",
    .chooser = {"use_deepspeed",
                0,
                FlagKind::kSwitch,
                "",
                "",
                kDeepspeedGroup,
                "Train with DeepSpeed; in programs of libaccel, with its stages of ZeRO."},
    .variable = "ACCELERATE_USE_DEEPSPEED",
    .section = "deepspeed_config",
    .prefix = "",
    .options = kDeepspeedOptions,
};

}  // namespace

const Strategy& deepspeed_strategy() {
  return kDeepSpeed;
}

}  // namespace accel::launcher
