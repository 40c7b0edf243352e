// ArchiveForm: what an optimizer writes about itself, and whether that is what LibTorch's classes write.
//
// Those write the states in state(), which are kept by parameter, and the groups. A class of the user's own that writes the same
// has its states there too; one that writes nothing, or more, may have them anywhere: by place in the list of parameters, say.
//
// Threads:  the thread that trains.
#pragma once

#include <optional>
#include <string>

#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

namespace accel {

// The archive as somebody reads it who gets it as a file. Cost: a copy of it in memory.
[[nodiscard]] torch::serialize::InputArchive written(torch::serialize::OutputArchive& archive);

// std::nullopt: as LibTorch's. Else half a sentence: "its save() also writes momenta". The archive is one without states,
// which is small. Throws what save() throws, but for LibTorch's own errors.
[[nodiscard]] std::optional<std::string> why_unusual(torch::optim::Optimizer& optimizer);

}  // namespace accel
