// How long the coordinator itself takes for a rendezvous of N simulated agents: its step function, the
// messages in the bytes of the wire, and its journal with fsync. No sockets, no TLS, one core.
//
//   rendezvous_step N [folder]
//
// Prints seconds from the last Join to the last Start, seconds for all Hello and Join before it, and the
// bytes that Assign and Start took in all.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include <unistd.h>

#include "accel/v1/rendezvous.pb.h"
#include "agent/coordinator/decisions/coordinator.h"
#include "agent/coordinator/journal/journal.h"
#include "agent/rendezvous/job_specs.h"
#include "agent/rendezvous/job_wire.h"
#include "agent/rendezvous/wire.h"

namespace {

using namespace accel::agent;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Rendezvous {
 public:
  Rendezvous(int nodes, Journal& journal) : nodes_(nodes), journal_(journal) {
    Step first = found(1, {}, Clock::now());
    state_ = std::move(first.state);
    carry_out(first.actions);
    accel::v1::JobSpec spec;
    spec.set_job_id("bench");
    spec.set_job_uuid("bench");
    spec.set_min_nodes(static_cast<unsigned>(nodes));
    spec.set_max_nodes(static_cast<unsigned>(nodes));
    spec.set_procs_per_node(8);
    // As much as a command line and its environment take.
    spec.add_argv(std::string(2'048, 'x'));
    feed(StartJob{"1", describe_job(spec)});
  }

  // Seconds for everything but the last Join, and from there to the last Start.
  std::pair<double, double> run() {
    const auto begin = Clock::now();
    for (int i = 0; i < nodes_; ++i) say_hello(i);
    for (int i = 0; i + 1 < nodes_; ++i) say_join(i);
    const double joined = seconds_since(begin);
    const auto last = Clock::now();
    say_join(nodes_ - 1);
    for (int i = 0; i < nodes_; ++i) say_ready(i);
    return {joined, seconds_since(last)};
  }

  [[nodiscard]] int num_assigns() const { return assigns_; }
  [[nodiscard]] int num_starts() const { return starts_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  template <typename What>
  void feed(What what) {
    Step next = step(std::move(state_), Event{Clock::now(), 0.5, std::move(what)});
    state_ = std::move(next.state);
    carry_out(next.actions);
  }

  void carry_out(const Actions& actions) {
    for (const Action& action : actions) {
      if (const auto* send = std::get_if<Send>(&action)) transmit(*send);
      if (const auto* persist = std::get_if<Persist>(&action)) {
        const bool ok = journal_.write(persist->record, persist->sync).has_value();
        feed(Persisted{persist->ticket, ok});
      }
    }
  }

  // To bytes, as it would go onto the wire; they are counted and thrown away.
  void transmit(const Send& send) {
    assigns_ += std::holds_alternative<Assign>(send.message.body) ? 1 : 0;
    starts_ += std::holds_alternative<Start>(send.message.body) ? 1 : 0;
    const bool is_counted = std::holds_alternative<Assign>(send.message.body) ||
                            std::holds_alternative<Start>(send.message.body);
    if (!is_counted) return;
    SpecsSent& specs = sent_.try_emplace(send.connection, packer_).first->second;
    to_proto(send.message, &specs).SerializeToString(&buffer_);
    bytes_ += buffer_.size();
  }

  // From bytes, as it would come from the wire.
  void receive(int node, accel::v1::AgentMsg& wire, std::uint64_t seq, std::uint64_t generation) {
    wire.mutable_fence()->set_leader_epoch(1);
    wire.mutable_fence()->set_session_id("session-" + std::to_string(node));
    wire.mutable_fence()->set_seq(seq);
    wire.mutable_fence()->set_generation(generation);
    wire.SerializeToString(&buffer_);
    accel::v1::AgentMsg parsed;
    parsed.ParseFromString(buffer_);
    AgentMessage message;
    message.fence = {parsed.fence().leader_epoch(),
                     parsed.fence().generation(),
                     parsed.fence().session_id(),
                     parsed.fence().seq()};
    message.mono = std::chrono::nanoseconds(++mono_);
    if (parsed.has_hello()) {
      Hello hello;
      hello.node.node_id = parsed.hello().node().node_id();
      hello.node.hostname = parsed.hello().node().hostname();
      message.body = std::move(hello);
    } else if (parsed.has_join()) {
      message.body = Join{parsed.join().job_uuid()};
    } else {
      message.body = Ready{parsed.ready().job_uuid(), "10.0.0.1:29500"};
    }
    feed(FromAgent{static_cast<ConnectionId>(node + 1), std::move(message)});
  }

  void say_hello(int node) {
    accel::v1::AgentMsg wire;
    const std::string name = "gpu-" + std::to_string(100'000 + node);
    wire.mutable_hello()->mutable_node()->set_node_id(name);
    wire.mutable_hello()->mutable_node()->set_hostname(name + ".cluster");
    receive(node, wire, 0, 0);
  }
  void say_join(int node) {
    accel::v1::AgentMsg wire;
    wire.mutable_join()->set_job_uuid("bench");
    receive(node, wire, 1, 0);
  }
  void say_ready(int node) {
    accel::v1::AgentMsg wire;
    wire.mutable_ready()->set_job_uuid("bench");
    receive(node, wire, 2, 1);
  }

  int nodes_;
  Journal& journal_;
  State state_;
  std::string buffer_;
  SpecPacker packer_;
  std::map<ConnectionId, SpecsSent> sent_;
  std::int64_t mono_ = 0;
  int assigns_ = 0;
  int starts_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const int nodes = argc > 1 ? std::atoi(argv[1]) : 0;
  if (nodes < 1) {
    std::fprintf(stderr, "use: rendezvous_step N [folder]\n");
    return 2;
  }
  const std::filesystem::path folder =
      argc > 2 ? argv[2] : std::filesystem::temp_directory_path().string();
  const std::string path = (folder / ("rendezvous_step." + std::to_string(::getpid()))).string();
  auto journal = Journal::open(path);
  if (!journal) {
    std::fprintf(stderr, "%s\n", journal.error().render("rendezvous_step").c_str());
    return 1;
  }
  Rendezvous rendezvous(nodes, **journal);
  const auto [joined, started] = rendezvous.run();
  std::filesystem::remove(path);
  if (rendezvous.num_assigns() != nodes || rendezvous.num_starts() != nodes) {
    std::fprintf(stderr,
                 "%d of %d nodes were assigned, %d started\n",
                 rendezvous.num_assigns(),
                 nodes,
                 rendezvous.num_starts());
    return 1;
  }
  std::printf("%.6f %.6f %zu\n", started, joined, rendezvous.bytes());
  return 0;
}
