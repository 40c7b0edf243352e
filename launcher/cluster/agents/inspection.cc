#include "launcher/cluster/agents/inspection.h"

#include <cstdio>

#include "agent/jobs/job_state.h"
#include "launcher/cluster/agents/answers.h"
#include "launcher/cluster/agents/followed_job.h"
#include "launcher/run/notice_line.h"
#include "runtime/printable.h"

namespace accel::cluster {
namespace {

double seconds_of(const google::protobuf::Duration& time) {
  return static_cast<double>(time.seconds()) + static_cast<double>(time.nanos()) / 1e9;
}

}  // namespace

int show_ledger(const AgentClient& client, const std::string& job, bool json, Patience patience) {
  v1::JobRef ref;
  ref.set_job(job);
  const auto ledger = call_patiently(client, &v1::Control::Stub::GetLedger, ref, patience);
  if (!ledger) return fail(ledger.error());
  if (json) {
    print_json(*ledger);
    return 0;
  }
  const std::pair<const char*, double> accounts[] = {
      {"productive", seconds_of(ledger->productive())},
      {"waiting", seconds_of(ledger->waiting_nodes())},
      {"rendezvous", seconds_of(ledger->rendezvous())},
      {"spawn", seconds_of(ledger->spawn())},
      {"init", seconds_of(ledger->init())},
      {"replay", seconds_of(ledger->replay())},
      {"detect", seconds_of(ledger->detect())},
      {"stop", seconds_of(ledger->stop())}};
  double all = 0;
  for (const auto& [name, seconds] : accounts) all += seconds;
  std::printf("job        %s\nage        %10.1f s\n", printable(ledger->job_id()).c_str(), all);
  for (const auto& [name, seconds] : accounts) {
    std::printf("%-10s %10.1f s %5.1f %%%s\n",
                name,
                seconds,
                all > 0 ? 100 * seconds / all : 0.0,
                ledger->open() == name ? "  now" : "");
  }
  return 0;
}

int watch(const AgentClient& client, const std::string& job, bool json) {
  auto call = client.begin(AgentClient::Kind::kStream);
  if (!call) return fail(call.error());
  v1::WatchReq request;
  request.set_job(job);
  const auto reader = call->stub->Watch(call->context.get(), request);
  v1::Event event;
  while (reader->Read(&event)) {
    if (json) {
      print_json(event);
    } else if (!event.notice().empty()) {
      launcher::tell(kProgram, event.notice());
    } else {
      const v1::Job& now = event.job();
      std::printf("%s %s, generation %llu, %u restarts%s%s\n",
                  printable(now.job_id()).c_str(),
                  agent::job_state_word(now.state()).c_str(),
                  static_cast<unsigned long long>(now.generation()),
                  now.restarts(),
                  now.reason().empty() ? "" : ": ",
                  printable(now.reason()).c_str());
    }
    std::fflush(stdout);
  }
  const grpc::Status status = reader->Finish();
  return status.ok() ? 0 : fail(client.to_error(status));
}

int show_diagnosis(const AgentClient& client, const std::string& job, bool json) {
  auto call = client.begin(AgentClient::Kind::kStream);
  if (!call) return fail(call.error());
  v1::DiagReq request;
  request.set_job(job);
  const auto reader = call->stub->Diagnose(call->context.get(), request);
  v1::DiagChunk chunk;
  while (reader->Read(&chunk)) {
    if (json) {
      print_json(chunk);
    } else {
      std::printf("== %s\n%s", printable(chunk.title()).c_str(), printable(chunk.text()).c_str());
    }
  }
  const grpc::Status status = reader->Finish();
  return status.ok() ? 0 : fail(client.to_error(status));
}

}  // namespace accel::cluster
