#include <cstdio>
#include <string>

#include "launcher/cluster/agent_client.h"
#include "launcher/cluster/entry.h"
#include "launcher/cluster/followed_job.h"
#include "launcher/cluster/launch_description.h"
#include "launcher/flags/flag_spelling.h"

namespace accel::cluster {

int launch_by_agent(const launcher::ElasticRequest& request) {
  const std::string program(launcher::name_of(request.settings.program));
  block_forwarded_signals();
  const auto client = AgentClient::make(parse_agent_address("", "", false));
  if (!client) return launcher::print_failure(program, client.error());
  const bool is_quiet = request.settings.quiet;
  const auto job = submit_and_follow(*client,
                                     describe_for_agents(request),
                                     Patience(kCoordinatorWait),
                                     [&program, is_quiet](const v1::Job& begun) {
                                       if (!is_quiet)
                                         std::fprintf(stderr,
                                                      "%s: job %s was given to the agent\n",
                                                      program.c_str(),
                                                      begun.job_id().c_str());
                                     });
  if (!job) return launcher::print_failure(program, job.error());
  if (const std::string text = ending_text(*job); !text.empty() && !is_quiet)
    std::fprintf(stderr, "%s: %s", program.c_str(), text.c_str());
  return job->exit_code();
}

}  // namespace accel::cluster
