#include "agent/shims/job_report.h"

#include <string>

#include "runtime/printable.h"

namespace accel::agent {

void add_to_report(v1::Job& job, std::string_view text) {
  constexpr std::string_view kFull = "the report is full: more was left out\n";
  if (text.empty() || job.report().ends_with(kFull)) return;
  const std::size_t room = kMostReportBytes - kFull.size();
  if (text.size() + 1 > room || job.report().size() + text.size() + 1 > room) {
    *job.mutable_report() += kFull;
    return;
  }
  *job.mutable_report() += printable(text);
  if (!text.ends_with('\n')) *job.mutable_report() += '\n';
}

}  // namespace accel::agent
