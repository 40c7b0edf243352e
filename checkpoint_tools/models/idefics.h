// Idefics: the tensors of IDEFICS (model_type idefics), text and images in one model, without a head.
//
// Numbers that a config.json leaves out are those of idefics-9b, as in transformers' IdeficsConfig. The tables of the
// rotary embeddings count too: each attention of the text has its own, and the peer counts them.
#pragma once

#include "checkpoint_tools/models/model_builder.h"

namespace accel::launcher {

// Source:   the modules of transformers' IdeficsModel, IdeficsVisionTransformer and IdeficsPerceiverResampler.
void idefics(Sizes& sizes, Builder& build);

}  // namespace accel::launcher
