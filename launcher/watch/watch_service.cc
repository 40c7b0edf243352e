#include "launcher/watch/watch_service.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>
#include <variant>

#include "runtime/clock.h"
#include "runtime/supervisor/metrics/process_metrics.h"
#include "runtime/text/endpoint_text.h"
#include "runtime/text/host_name.h"
#include "runtime/text/random_digits.h"
#include "runtime/wall_clock.h"

namespace accel::launcher {
namespace {

using boost::system::error_code;
using supervisor::DashboardDeed;

constexpr std::size_t kTokenDigits = 48;  // hexadecimal: 192 random bits
constexpr const char* kOwnStacks = "a program of libaccel writes its stacks to its stderr";

}  // namespace

WatchService::WatchService(JobWatch::Names names, std::string log_dir)
    : limit_(loop_),
      steps_(loop_),
      job_(names.job),
      log_dir_(std::move(log_dir)),
      watch_(std::move(names), SteadyClock().now()) {}

WatchService::~WatchService() = default;

Result<std::unique_ptr<WatchService>> WatchService::start(const WatchSettings& settings,
                                                          JobWatch::Names names,
                                                          std::string log_dir) {
  std::unique_ptr<WatchService> service(new WatchService(std::move(names), std::move(log_dir)));
  if (settings.metrics) {
    if (auto served = service->serve_metrics(*settings.metrics); !served)
      return std::move(served).error();
  }
  if (settings.dashboard) {
    if (auto served = service->serve_dashboard(*settings.dashboard, settings.tracking_dir); !served)
      return std::move(served).error();
  }
  return service;
}

Result<void> WatchService::serve_metrics(const supervisor::TcpEndpoint& endpoint) {
  auto metrics =
      supervisor::MetricsServer::listen(loop_,
                                        endpoint,
                                        {.collect = [this](auto done) { collect(std::move(done)); },
                                         .is_ending = [this] { return is_over_; }});
  if (!metrics) return std::move(metrics).error();
  metrics_ = *std::move(metrics);
  metrics_at_ = endpoint.address().to_string();
  return {};
}

Result<void> WatchService::serve_dashboard(const supervisor::TcpEndpoint& endpoint,
                                           const std::string& tracking_dir) {
  std::function<void(const std::string&, CurveFeed::TellCurves)> read_curves;
  if (!tracking_dir.empty()) {
    curves_ = std::make_unique<CurveFeed>(loop_, tracking_dir);
    read_curves = [this](const auto& /*job*/, auto done) { curves_->read(std::move(done)); };
  }
  auto dashboard = supervisor::DashboardServer::listen(
      loop_,
      endpoint,
      {.viewers = random_digits(kTokenDigits), .operators = random_digits(kTokenDigits)},
      {.collect = [this](auto done) { look([this, done = std::move(done)] { done(shown()); }); },
       .read_log = [this](const auto& question, const auto& done) { read_log(question, done); },
       .read_curves = std::move(read_curves),
       .deeds = {DashboardDeed::kStop, DashboardDeed::kStacks},
       .act = [this](const auto& action, auto done) { act(action, std::move(done)); }});
  if (!dashboard) return std::move(dashboard).error();
  dashboard_ = *std::move(dashboard);
  return {};
}

supervisor::DashboardState WatchService::shown() const {
  supervisor::DashboardState state = {.program = "accel-launch",
                                      .version = supervisor::kBuildVersion,
                                      .node = host_name(),
                                      .wall_seconds = seconds_since_1970(),
                                      .is_over = is_over_};
  state.jobs.push_back(watch_.shown(SteadyClock().now()));
  state.jobs.back().has_logs = !log_dir_.empty();
  state.jobs.back().has_curves = curves_ != nullptr;
  return state;
}

void WatchService::read_log(const supervisor::LogQuestion& question, const TellTail& done) {
  if (question.job != job_) return done({.notice = "there is no such job here"});
  if (log_dir_.empty())
    return done(
        {.notice = "the output goes to the console alone: give --log_dir DIR to accel-launch"});
  const int local_rank = watch_.local_rank_of(question.rank);
  if (local_rank < 0) return done({.notice = "the rank is one of another machine: open its page"});
  const auto path = supervisor::LogLayout(log_dir_, job_)
                        .stream_file(local_rank, watch_.generation(), question.stream);
  const auto tail = std::make_shared<supervisor::LogTail>();
  logs_.add(
      [tail, path = path.string(), most = question.bytes] {
        *tail = supervisor::read_log_tail(path, most);
      },
      [tail, done](const std::string& failure) {
        if (!failure.empty()) tail->notice = "the output is not read: " + failure;
        done(std::move(*tail));
      });
}

std::vector<std::string> WatchService::notices() const {
  std::vector<std::string> lines;
  if (metrics_)
    lines.push_back("serves metrics at http://" + endpoint_text(metrics_at_, metrics_->port()) +
                    "/metrics");
  if (dashboard_) lines.push_back("the dashboard is at " + dashboard_->address());
  return lines;
}

std::string WatchService::operators_address() const {
  return dashboard_ ? dashboard_->operators_address() : "";
}

void WatchService::attend(Handlers handlers) {
  handlers_ = std::move(handlers);
  look_for_steps();
}

void WatchService::hear(const supervisor::HostEvent& event) {
  watch_.hear(event, SteadyClock().now(), seconds_since_1970());
  if (const auto* notice = std::get_if<supervisor::Notice>(&event)) hear_stacks(notice->text);
  if (std::holds_alternative<supervisor::JobOutcome>(event)) is_over_ = true;
  if (is_over_ || std::holds_alternative<supervisor::Snapshot>(event)) end_looks();
}

void WatchService::ask_to_stop() {
  is_stop_asked_ = true;
  watch_.ask_to_stop(SteadyClock().now());
}

void WatchService::lose(const Error& error) {
  watch_.lose(error.message(), SteadyClock().now(), seconds_since_1970());
}

void WatchService::finish() {
  is_over_ = true;
  if (!dashboard_) return;
  const bool is_watched = dashboard_->has_streams();
  dashboard_->end();
  const TimePoint limit = SteadyClock().now() + kLookPatience;
  loop_.restart();
  while (dashboard_->has_streams() && SteadyClock().now() < limit) loop_.run_one_until(limit);
  // A page that has heard of the end asks for the last output.
  const TimePoint last = std::min(limit, SteadyClock().now() + kLastLookPatience);
  while (is_watched && SteadyClock().now() < last) loop_.run_one_until(last);
}

void WatchService::act(const supervisor::DashboardAction& action, const TellOutcome& done) {
  if (action.job != job_) return done({.is_done = false, .text = "there is no such job here"});
  if (!handlers_.request || is_over_)
    return done({.is_done = false, .text = "the job does not run"});
  if (action.deed == DashboardDeed::kStacks) return take_stacks(action.rank, done);
  // Another stop means SIGKILL.
  if (is_stop_asked_ && !action.kill)
    return done({.is_done = false, .text = "the job is stopping already: nothing was done"});
  const std::string from = "an operator of the dashboard at " + action.from;
  if (!is_stop_asked_) handlers_.stop(from);
  if (action.kill) handlers_.stop(from);
  done({.text = action.kill ? "the job is killed" : "the job is asked to stop"});
}

void WatchService::take_stacks(int rank, const TellOutcome& done) {
  const std::string name = "rank " + std::to_string(rank);
  if (!watch_.runs(rank)) return done({.is_done = false, .text = name + " does not run"});
  const int number = ++num_wishes_;
  auto limit = boost::asio::steady_timer(loop_, kStackPatience);
  limit.async_wait([this, number](const error_code&) {
    const auto wish = stack_wishes_.extract(number);
    if (wish.empty()) return;
    wish.mapped().done({.is_done = false, .text = "the shim has not answered"});
  });
  stack_wishes_.emplace(number, StackWish{.rank = rank, .done = done, .limit = std::move(limit)});
  handlers_.request(supervisor::DumpStacks{});
}

// "rank 1 (pid 77): state S, waits in futex_wait_queue" is the shim's answer about a rank.
void WatchService::hear_stacks(const std::string& text) {
  for (auto wish = stack_wishes_.begin(); wish != stack_wishes_.end();) {
    const std::string start = "rank " + std::to_string(wish->second.rank) + " (pid ";
    const bool is_answer = text.starts_with(start);
    if (is_answer) wish->second.done({.text = text + "; " + kOwnStacks});
    wish = is_answer ? stack_wishes_.erase(wish) : std::next(wish);
  }
}

void WatchService::collect(std::function<void(std::string)> done) {
  look([this, done = std::move(done)] {
    supervisor::MetricPage page;
    page.add(supervisor::Metric::kBuildInfo, {supervisor::kBuildVersion}, 1);
    watch_.add_to(page, SteadyClock().now());
    if (dashboard_) add_refusals(page, dashboard_->refusals());
    add_process(page);
    done(page.text());
  });
}

void WatchService::look(std::function<void()> done) {
  if (!handlers_.request || is_over_) return done();
  waiting_.push_back(std::move(done));
  if (waiting_.size() > 1) return;
  limit_.expires_after(kLookPatience);
  limit_.async_wait([this](const error_code& error) {
    if (!error) end_looks();
  });
  handlers_.request(supervisor::TakeSnapshot{});
}

void WatchService::end_looks() {
  limit_.cancel();
  for (const auto& done : std::exchange(waiting_, {})) done();
}

// The accounts have to see the first step of a generation, whether or not somebody asks.
void WatchService::look_for_steps() {
  steps_.expires_after(kLookEvery);
  steps_.async_wait([this](const error_code& error) {
    if (error || is_over_) return;
    if (watch_.wants_snapshots()) handlers_.request(supervisor::TakeSnapshot{});
    look_for_steps();
  });
}

}  // namespace accel::launcher
