#include "launcher/cluster/agents/followed_job.h"

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string_view>
#include <thread>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "agent/jobs/job_state.h"
#include "launcher/agent_commands/agent_flags.h"
#include "launcher/cluster/meeting/launch_description.h"
#include "launcher/flags/flag_spelling.h"
#include "runtime/printable.h"
#include "runtime/text/letter_case.h"

namespace accel::cluster {
namespace {

sigset_t forwarded_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&set, signal);
  return set;
}

// Asks the agent to stop the job at each of the signals, until it is destroyed.
class SignalForwarder {
 public:
  SignalForwarder(const AgentClient& client, const v1::Job& job)
      : client_(client),
        job_(job.job_uuid()),
        patience_(job),
        quit_(::eventfd(0, EFD_CLOEXEC)),
        thread_([this] { watch(); }) {}
  ~SignalForwarder() {
    const std::uint64_t one = 1;
    (void)!::write(quit_.get(), &one, sizeof one);
    thread_.join();
  }

 private:
  void watch() {
    const sigset_t set = forwarded_signals();
    const UniqueFd signals(::signalfd(-1, &set, SFD_CLOEXEC));
    int count = 0;
    while (true) {
      pollfd fds[] = {{signals.get(), POLLIN, 0}, {quit_.get(), POLLIN, 0}};
      if (::poll(fds, std::size(fds), -1) < 0) continue;
      if (fds[1].revents != 0) return;
      signalfd_siginfo info{};
      if (::read(signals.get(), &info, sizeof info) != sizeof info) continue;
      v1::StopReq request;
      request.set_job(job_);
      request.set_kill(++count > 1);
      const auto stopped = call_patiently(client_, &v1::Control::Stub::StopJob, request, patience_);
      if (!stopped) std::fprintf(stderr, "%s\n", stopped.error().render("accel").c_str());
    }
  }

  const AgentClient& client_;
  std::string job_;
  Patience patience_;
  UniqueFd quit_;
  std::thread thread_;
};

}  // namespace

void block_forwarded_signals() {
  const sigset_t set = forwarded_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

Result<v1::Job> submit_and_follow(const AgentClient& client,
                                  const v1::JobSpec& spec,
                                  Patience until_begun,
                                  const std::function<void(const v1::Job&)>& told) {
  const auto job = submit_patiently(client, spec, until_begun);
  if (!job) return job.error();
  told(*job);
  const SignalForwarder forwarder(client, *job);
  const Patience patience(*job);
  v1::LogReq logs;
  logs.set_job(job->job_uuid());
  logs.set_follow(true);
  // Of a job on one node the ranks are known before it runs; of others the agents know them.
  if (spec.max_nodes() <= 1) {
    for (unsigned rank = 0; rank < spec.procs_per_node(); ++rank) logs.add_ranks(rank);
  }
  if (auto copied = copy_logs(client, logs, patience); !copied) return std::move(copied).error();
  v1::JobRef ref;
  ref.set_job(job->job_uuid());
  return call_patiently(client, &v1::Control::Stub::GetJob, ref, patience);
}

std::string ending_text(const v1::Job& job) {
  if (job.state() == v1::JOB_STATE_SUCCEEDED) return "";
  return "job " + job.job_id() + ' ' + agent::job_state_word(job.state()) + ": " +
         printable(job.reason()) + '\n' + printable(job.report());
}

int launch_by_agent(const launcher::ElasticRequest& request) {
  const std::string program(launcher::name_of(request.settings.program));
  block_forwarded_signals();
  const auto client = AgentClient::make(parse_agent_address("", "", false));
  if (!client) return launcher::print_failure(program, client.error());
  const bool is_quiet = request.settings.quiet;
  const auto job = submit_and_follow(*client,
                                     describe_for_agents(request),
                                     Patience(launcher::kCoordinatorWait),
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
