// Regions of a graph: ranges of its nodes. A range reaches from the first to the last node of a submodule's call; what export put
// between them (sizes, mostly) runs in it too, so that all regions in order are all nodes in order.

#include <algorithm>
#include <utility>

#include <accel/error.h>
#include <accel/exported_model.h>

#include "libaccel/exported/call_range.h"
#include "libaccel/exported/loaded_model.h"
#include "runtime/printable.h"

namespace accel {

ExportedRegion::ExportedRegion(const exported::LoadedModel& model,
                               bool is_training,
                               std::size_t begin,
                               std::size_t end)
    : model_(&model), is_training_(is_training), begin_(begin), end_(end) {
  const exported::BoundGraph& graph = model.graph(is_training);
  inputs_ = graph.values_into(begin, end);
  outputs_ = graph.program().values_out_of(begin, end);
}

std::vector<std::string> ExportedRegion::inputs() const {
  std::vector<std::string> names;
  for (const std::size_t id : inputs_)
    names.push_back(
        model_->graph(is_training_).program().value_name(static_cast<exported::ValueId>(id)));
  return names;
}

std::vector<std::string> ExportedRegion::outputs() const {
  std::vector<std::string> names;
  for (const std::size_t id : outputs_)
    names.push_back(
        model_->graph(is_training_).program().value_name(static_cast<exported::ValueId>(id)));
  return names;
}

std::vector<c10::IValue> ExportedRegion::operator()(std::vector<c10::IValue> inputs) const {
  if (inputs.size() != inputs_.size())
    throw Error(ErrorCode::kInvalidArgument,
                "the region takes " + std::to_string(inputs_.size()) + " values, got " +
                    std::to_string(inputs.size()),
                "give the values that inputs() names");
  return model_->graph(is_training_).run_range(begin_, end_, inputs_, std::move(inputs), outputs_);
}

ExportedRegion ExportedModelImpl::region(const std::string& path) const {
  const auto [begin, end] =
      exported::range_of_call(model_->graph(is_training()).source().graph, path);
  return ExportedRegion(*model_, is_training(), begin, end);
}

std::vector<ExportedRegion> ExportedModelImpl::regions(
    const std::vector<std::string>& paths) const {
  const exported::Graph& graph = model_->graph(is_training()).source().graph;
  std::vector<exported::NodeRange> ranges;
  for (const std::string& path : paths) ranges.push_back(exported::range_of_call(graph, path));
  std::sort(
      ranges.begin(), ranges.end(), [](const exported::NodeRange& a, const exported::NodeRange& b) {
        return a.begin < b.begin;
      });
  std::vector<ExportedRegion> regions;
  std::size_t next = 0;
  const auto add = [&](std::size_t begin, std::size_t end) {
    if (begin < end) regions.push_back(ExportedRegion(*model_, is_training(), begin, end));
  };
  for (const auto& [begin, end] : ranges) {
    if (begin < next)
      throw Error(ErrorCode::kInvalidArgument,
                  "two of the regions overlap at the node " + printable(graph.nodes[begin].name),
                  "name modules that are called one after the other");
    add(next, begin);
    add(begin, end);
    next = end;
  }
  add(next, graph.nodes.size());
  return regions;
}

}  // namespace accel
