// PlanReport: a TrainingPlan as a table, or as JSON.
#pragma once

#include <string>

#include "train/training_plan.h"

namespace accel::train {

[[nodiscard]] std::string plan_table(const TrainingPlan& plan, const PlanSettings& settings);
[[nodiscard]] std::string plan_json(const TrainingPlan& plan, const PlanSettings& settings);

}  // namespace accel::train
