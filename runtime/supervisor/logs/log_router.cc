#include "runtime/supervisor/logs/log_router.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include <boost/system/system_error.hpp>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/supervisor/kernel/exhausted.h"
#include "runtime/supervisor/kernel/pseudo_terminal.h"
#include "runtime/supervisor/lines/line_duplicate.h"
#include "runtime/supervisor/lines/line_prefix.h"
#include "runtime/supervisor/lines/notice_board.h"
#include "runtime/supervisor/logs/console_writer.h"
#include "runtime/supervisor/logs/drain_watch.h"
#include "runtime/supervisor/logs/file_writer.h"
#include "runtime/supervisor/logs/log_layout.h"
#include "runtime/supervisor/logs/log_pump.h"
#include "runtime/supervisor/logs/log_sinks.h"
#include "runtime/supervisor/logs/log_source.h"
#include "runtime/supervisor/logs/stdio_plan.h"
#include "runtime/supervisor/logs/worker_inputs.h"
#include "runtime/supervisor/logs/worker_pipe.h"

namespace accel::supervisor {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kMostFileThreads = 4;

// Two descriptors of one terminal (or file) are one console: their lines must not mix either.
bool are_same_console(int one, int other) {
  struct stat a = {};
  struct stat b = {};
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino && a.st_rdev == b.st_rdev;
}

const char* name_of(Stream stream) {
  return stream == Stream::kOut ? "out" : "err";
}

}  // namespace

class LogRouter::Impl {
 public:
  explicit Impl(LogRouterOptions options)
      : options_(std::move(options)),
        layout_(options_.log.dir, options_.job_id),
        notices_(std::make_shared<NoticeBoard>(options_.on_notice)),
        terminals_{.in = ::isatty(options_.owner_in) == 1,
                   .out = ::isatty(options_.owner_out) == 1,
                   .err = ::isatty(options_.owner_err) == 1},
        window_(window_size_of(options_.owner_out)),
        inputs_(options_.owner_in, options_.owner_pid, options_.console.held_input) {}

  Result<void> start();
  Result<WorkerStdio> open(int local_rank, int generation);
  void write_stacks(int local_rank, int generation, const std::string& text);
  void drain(int local_rank, std::function<void()> done);
  [[nodiscard]] WorkerTail tail(int local_rank) const;
  void resize_window(WindowSize size);
  void end_inputs() { inputs_.end(); }
  void show_status(std::string text, bool despite_returns, std::function<void()> on_done) {
    consoles_[1].writer->show_status(std::move(text), despite_returns, std::move(on_done));
  }
  void begin_close(const std::function<void()>& on_change);
  [[nodiscard]] bool is_drained(TimePoint until) const;
  [[nodiscard]] std::uint64_t progress() const;
  bool end_close(const std::string& why);
  bool close(milliseconds standstill, milliseconds at_most);

  [[nodiscard]] const LogLayout& layout() const { return layout_; }
  [[nodiscard]] const LogRouterOptions& options() const { return options_; }
  [[nodiscard]] const NoticeBoard& notices() const { return *notices_; }

  std::optional<int> first_rank;  // of this node, when it is not as in the options

 private:
  struct Streams {
    std::shared_ptr<LogSource> out;
    std::shared_ptr<LogSource> err;
  };
  struct Console {
    std::shared_ptr<ConsoleWriter> writer;
    std::shared_ptr<ConsoleSink> sink;
  };

  Result<void> check_routes() const;
  Result<void> start_threads();
  void abandon_threads();
  Console make_console(int fd, const char* name);
  Result<const WorkerSpec*> find_worker(int local_rank) const;
  Result<UniqueFd> open_stream(
      OutputKind kind, const WorkerSpec& worker, int generation, Stream stream, Streams& streams);
  Result<std::shared_ptr<LogSource>> route(std::shared_ptr<LogSource> source,
                                           const WorkerSpec& worker,
                                           int generation,
                                           Stream stream);
  [[nodiscard]] std::optional<LineDuplicate> duplicate_of(const WorkerSpec& worker,
                                                          int generation,
                                                          Stream stream);
  [[nodiscard]] milliseconds patience_for(LogSource::Kind kind, Stream stream) const;
  void report_unwritten(const std::string& why);

  const LogRouterOptions options_;
  const LogLayout layout_;
  const std::shared_ptr<NoticeBoard> notices_;
  const OwnerTerminals terminals_;
  WindowSize window_;

  std::shared_ptr<FileWriter> file_writer_;
  std::shared_ptr<FileSink> file_sink_;
  struct FilteredFile {
    int generation = 0;
    std::shared_ptr<FilteredLog> log;
  };
  std::array<FilteredFile, 2> filtered_;  // by Stream; of the latest generation
  std::array<Console, 2> consoles_;       // by Stream; both the same when stdout and stderr are
  std::shared_ptr<LogPump> pump_;
  WorkerInputs inputs_;
  std::map<int, Streams> streams_;  // by local rank; of its latest generation
  std::vector<UniqueFd>
      terminals_of_rank0_;  // masters, to resize and to feed; the first is stdout's
  bool is_closing_ = false;
  bool is_closed_ = false;
};

// The libraries below throw where the kernel has no more threads or descriptors.
Result<void> LogRouter::Impl::start() {
  if (Result<void> checked = check_routes(); !checked) return checked;
  constexpr const char* kWhat = "the output of the workers cannot be taken";
  try {
    return start_threads();
  } catch (const boost::system::system_error& error) {
    abandon_threads();
    return exhausted_error(kWhat, error.code().value());
  } catch (const std::system_error& error) {
    abandon_threads();
    return exhausted_error(kWhat, error.code().value());
  }
}

void LogRouter::Impl::abandon_threads() {
  if (file_writer_) file_writer_->finish();
  if (pump_) pump_->abandon();
  for (const Console& console : consoles_) {
    if (console.writer) console.writer->finish();
  }
}

Result<void> LogRouter::Impl::start_threads() {
  const SinkPolicy policy{.overflow = options_.log.overflow, .stall_limit = options_.stall_limit};
  if (!options_.log.dir.empty()) {
    const int num_threads =
        static_cast<int>(std::clamp<std::size_t>(options_.workers.size(), 1, kMostFileThreads));
    auto writer = FileWriter::start(layout_.job_folder(),
                                    num_threads,
                                    notices_,
                                    options_.folder_limit,
                                    options_.before_file_portion);
    if (!writer) return std::move(writer).error();
    file_writer_ = *writer;
    file_sink_ = std::make_shared<FileSink>(file_writer_, policy, notices_);
  }
  pump_ = LogPump::start();
  consoles_[0] = make_console(options_.owner_out, "stdout");
  consoles_[1] = are_same_console(options_.owner_out, options_.owner_err)
                     ? consoles_[0]
                     : make_console(options_.owner_err, "stderr");
  std::vector<std::shared_ptr<ConsoleSink>> sinks{consoles_[0].sink};
  if (consoles_[1].sink != consoles_[0].sink) sinks.push_back(consoles_[1].sink);
  pump_->use_sinks(file_sink_, std::move(sinks));
  return {};
}

Result<void> LogRouter::Impl::check_routes() const {
  if (!options_.log.dir.empty()) return {};
  for (const WorkerSpec& worker : options_.workers) {
    if (route_of(worker, Stream::kOut).to_file || route_of(worker, Stream::kErr).to_file) {
      return Error(ErrorCode::kInvalidArgument,
                   "rank " + std::to_string(worker.global_rank) +
                       " has a stream that goes to a file, but there is no folder for it",
                   "name the folder with --log_dir");
    }
  }
  return {};
}

LogRouter::Impl::Console LogRouter::Impl::make_console(int fd, const char* name) {
  Console console;
  console.writer = ConsoleWriter::start(
      {.fd = fd, .name = name, .notices = notices_, .on_space = [weak = std::weak_ptr(pump_)] {
         if (const auto pump = weak.lock()) {
           pump->console_has_room();
         }
       }});
  const SinkPolicy policy{.overflow = options_.log.overflow, .stall_limit = options_.stall_limit};
  console.sink = std::make_shared<ConsoleSink>(console.writer, name, policy, notices_);
  return console;
}

Result<const WorkerSpec*> LogRouter::Impl::find_worker(int local_rank) const {
  for (const WorkerSpec& worker : options_.workers) {
    if (worker.local_rank == local_rank) return &worker;
  }
  return Error(ErrorCode::kInvalidArgument,
               "there is no worker with local rank " + std::to_string(local_rank));
}

Result<WorkerStdio> LogRouter::Impl::open(int local_rank, int generation) {
  const Result<const WorkerSpec*> found = find_worker(local_rank);
  if (!found) return found.error();
  const WorkerSpec& worker = **found;
  const StdioPlan plan =
      plan_stdio(worker, options_.workers.size(), options_.log, options_.console, terminals_);
  if (local_rank == 0) terminals_of_rank0_.clear();
  if (file_writer_) file_writer_->make_folder(layout_.worker_folder(local_rank, generation));

  Streams streams;
  WorkerStdio stdio;
  stdio.terminal = plan.terminal;
  auto out = open_stream(plan.out, worker, generation, Stream::kOut, streams);
  if (!out) return std::move(out).error();
  stdio.out = *std::move(out);
  auto err = options_.log.merge_stderr
                 ? duplicate(stdio.out.get())
                 : open_stream(plan.err, worker, generation, Stream::kErr, streams);
  if (!err) return std::move(err).error();
  stdio.err = *std::move(err);
  const int master = terminals_of_rank0_.empty() ? -1 : terminals_of_rank0_.front().get();
  auto in = inputs_.open(plan.in, master, stdio.out.get());
  if (!in) return std::move(in).error();
  stdio.in = *std::move(in);

  for (const auto& source : {streams.out, streams.err}) {
    if (!source) continue;
    if (Result<void> added = pump_->add(source); !added) return std::move(added).error();
  }
  streams_[local_rank] = std::move(streams);
  return stdio;
}

// Returns the child's descriptor.
Result<UniqueFd> LogRouter::Impl::open_stream(
    OutputKind kind, const WorkerSpec& worker, int generation, Stream stream, Streams& streams) {
  if (kind == OutputKind::kInherited) {
    return duplicate(stream == Stream::kOut ? options_.owner_out : options_.owner_err);
  }
  UniqueFd for_child;
  std::shared_ptr<LogSource> source;
  if (kind == OutputKind::kPipe) {
    auto pipe = make_worker_pipe();
    if (!pipe) return std::move(pipe).error();
    set_non_blocking(pipe->read_end.get());
    for_child = std::move(pipe->write_end);
    source = std::make_shared<LogSource>(LogSource::Kind::kPipe, std::move(pipe->read_end));
  } else {
    auto pty = open_pseudo_terminal(window_);
    if (!pty) return std::move(pty).error();
    auto kept = duplicate(pty->master.get());
    if (!kept) return std::move(kept).error();
    terminals_of_rank0_.push_back(*std::move(kept));
    for_child = std::move(pty->slave);
    source = std::make_shared<LogSource>(LogSource::Kind::kPseudoTerminal, std::move(pty->master));
  }
  auto routed = route(std::move(source), worker, generation, stream);
  if (!routed) return std::move(routed).error();
  (stream == Stream::kOut ? streams.out : streams.err) = *std::move(routed);
  return for_child;
}

Result<std::shared_ptr<LogSource>> LogRouter::Impl::route(std::shared_ptr<LogSource> source,
                                                          const WorkerSpec& worker,
                                                          int generation,
                                                          Stream stream) {
  const StreamRoute route = route_of(worker, stream);
  if (route.to_file) {
    auto pipe = make_worker_pipe();
    if (!pipe) return std::move(pipe).error();
    set_non_blocking(pipe->read_end.get());
    set_non_blocking(pipe->write_end.get());
    auto stage = std::make_shared<FileStage>();
    stage->path = layout_.stream_file(worker.local_rank, generation, stream);
    stage->rotation = options_.log.rotation;
    if (route.to_console) stage->duplicate = duplicate_of(worker, generation, stream);
    stage->read_end = std::move(pipe->read_end);
    if (Result<void> added = file_writer_->add(stage); !added) return std::move(added).error();
    source->send_to_file(file_sink_, std::move(stage), std::move(pipe->write_end));
  }
  if (route.to_console) {
    std::string prefix;
    const bool is_named =
        options_.log.prefix || (route.to_file && !options_.log.prefix_template.empty());
    if (is_named) {
      const int rank = first_rank ? *first_rank + worker.local_rank : worker.global_rank;
      prefix = line_prefix(options_.log.prefix_template,
                           {.global_rank = rank,
                            .local_rank = worker.local_rank,
                            .role = options_.role,
                            .stream = name_of(stream)});
    }
    source->send_to_console(consoles_[static_cast<std::size_t>(stream)].sink,
                            std::move(prefix),
                            patience_for(source->kind(), stream));
  }
  return source;
}

// Of a generation the workers share one file for each stream.
std::optional<LineDuplicate> LogRouter::Impl::duplicate_of(const WorkerSpec& worker,
                                                           int generation,
                                                           Stream stream) {
  const auto& texts = stream == Stream::kOut ? options_.log.out_filters : options_.log.err_filters;
  if (texts.empty()) return std::nullopt;
  FilteredFile& file = filtered_[static_cast<std::size_t>(stream)];
  if (!file.log || file.generation != generation)
    file = {generation,
            std::make_shared<FilteredLog>(layout_.filtered_file(generation, stream), notices_)};
  const std::string header = "[" + options_.role + std::to_string(worker.local_rank) + "]:";
  return LineDuplicate{.filter = LineFilter(texts, header), .log = file.log};
}

// A person before a terminal wants to see a prompt at once, above all from the rank that has it as its
// own. Elsewhere an unfinished line is more often a line in two write()s of a worker that had to wait
// for a processor.
milliseconds LogRouter::Impl::patience_for(LogSource::Kind kind, Stream stream) const {
  if (kind == LogSource::Kind::kPseudoTerminal) return milliseconds(15);
  const bool on_terminal = stream == Stream::kOut ? terminals_.out : terminals_.err;
  return on_terminal ? milliseconds(100) : options_.line_patience;
}

// The bytes wait in the pipe until the writer takes them: nobody here waits for a disk.
void LogRouter::Impl::write_stacks(int local_rank, int generation, const std::string& text) {
  auto pipe =
      file_writer_ ? make_worker_pipe() : Result<WorkerPipe>(Error(ErrorCode::kLogUnwritable, ""));
  if (!pipe || text.empty()) return;
  set_non_blocking(pipe->read_end.get());
  set_non_blocking(pipe->write_end.get());
  (void)!::write(pipe->write_end.get(), text.data(), text.size());
  auto stage = std::make_shared<FileStage>();
  stage->path = layout_.stacks_file(local_rank, generation);
  stage->read_end = std::move(pipe->read_end);
  (void)file_writer_->add(std::move(stage));  // a convenience: the job goes on without it
}

void LogRouter::Impl::drain(int local_rank, std::function<void()> done) {
  std::vector<std::shared_ptr<LogSource>> sources;
  if (const auto found = streams_.find(local_rank); found != streams_.end()) {
    if (found->second.out) sources.push_back(found->second.out);
    if (found->second.err) sources.push_back(found->second.err);
  }
  pump_->drain(std::move(sources), options_.descendant_limit, std::move(done));
}

WorkerTail LogRouter::Impl::tail(int local_rank) const {
  const auto found = streams_.find(local_rank);
  if (found == streams_.end()) return {};
  const auto& [out, err] = found->second;
  return {.out = out ? out->tail().contents() : "", .err = err ? err->tail().contents() : ""};
}

void LogRouter::Impl::resize_window(WindowSize size) {
  window_ = size;
  for (const UniqueFd& master : terminals_of_rank0_) set_window_size(master.get(), size);
}

void LogRouter::Impl::begin_close(const std::function<void()>& on_change) {
  if (std::exchange(is_closing_, true)) return;
  inputs_.stop_feeding();
  if (file_writer_) file_writer_->finish();
  pump_->when_done(on_change);
  for (const Console& console : consoles_) console.writer->when_done(on_change);
  if (file_writer_) file_writer_->when_done(on_change);
  pump_->close();
}

// Waits for each thread in turn, but for none past `until`.
bool LogRouter::Impl::is_drained(TimePoint until) const {
  return pump_->wait_until(until) && consoles_[0].writer->wait_until(until) &&
         consoles_[1].writer->wait_until(until) &&
         (!file_writer_ || file_writer_->wait_until(until));
}

std::uint64_t LogRouter::Impl::progress() const {
  return consoles_[0].writer->progress() + consoles_[1].writer->progress() +
         (file_writer_ ? file_writer_->progress() : 0);
}

bool LogRouter::Impl::end_close(const std::string& why) {
  if (std::exchange(is_closed_, true)) return true;
  const bool is_complete = is_drained(steady_clock::now());
  if (!is_complete) report_unwritten(why);
  notices_->stop_passing_on();
  pump_->when_done({});
  for (const Console& console : consoles_) {
    console.writer->when_done({});
    console.writer->forget_status();
  }
  if (file_writer_) file_writer_->when_done({});
  return is_complete;
}

bool LogRouter::Impl::close(milliseconds standstill, milliseconds at_most) {
  if (is_closed_) return true;
  begin_close({});
  const TimePoint start = steady_clock::now();
  DrainWatch watch(standstill, start);
  watch.end_by(start + at_most);
  TimePoint now = start;
  while (watch.observe(is_drained(watch.next(now)), progress(), now) ==
         DrainWatch::Verdict::kWait) {
    now = steady_clock::now();
  }
  return end_close("in time");
}

void LogRouter::Impl::report_unwritten(const std::string& why) {
  const TimePoint now = steady_clock::now();
  if (!pump_->wait_until(now)) {
    pump_->abandon();
    notices_->post("the last output of some ranks was not taken " + why + " and is lost");
  }
  for (const Console& console : consoles_) {
    if (console.writer->wait_until(now)) continue;
    notices_->post("console: " + std::to_string(console.writer->backlog()) +
                   " bytes were not written " + why);
    if (consoles_[0].writer == consoles_[1].writer) break;
  }
  if (file_writer_ && !file_writer_->wait_until(now)) {
    notices_->post(layout_.job_folder().string() + ": not all output was written " + why);
  }
}

Result<std::unique_ptr<LogRouter>> LogRouter::start(LogRouterOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  if (Result<void> started = impl->start(); !started) return std::move(started).error();
  return std::unique_ptr<LogRouter>(new LogRouter(std::move(impl)));
}

LogRouter::LogRouter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

LogRouter::~LogRouter() {
  impl_->close(std::chrono::seconds(1), std::chrono::seconds(1));
}

Result<WorkerStdio> LogRouter::open(int local_rank, int generation) {
  return impl_->open(local_rank, generation);
}

void LogRouter::end_inputs() {
  impl_->end_inputs();
}

void LogRouter::renumber(int first_rank) {
  impl_->first_rank = first_rank;
}

void LogRouter::write_stacks(int local_rank, int generation, const std::string& text) {
  impl_->write_stacks(local_rank, generation, text);
}

void LogRouter::drain(int local_rank, std::function<void()> done) {
  impl_->drain(local_rank, std::move(done));
}

WorkerTail LogRouter::tail(int local_rank) const {
  return impl_->tail(local_rank);
}

std::string LogRouter::error_file(int local_rank, int generation) const {
  if (impl_->options().log.dir.empty()) return {};
  return impl_->layout().error_file(local_rank, generation);
}

void LogRouter::resize_window(int rows, int columns) {
  impl_->resize_window({.rows = rows, .columns = columns});
}

void LogRouter::show_status(std::string text, bool despite_returns, std::function<void()> on_done) {
  impl_->show_status(std::move(text), despite_returns, std::move(on_done));
}

std::vector<std::string> LogRouter::notices() const {
  return impl_->notices().all();
}

void LogRouter::begin_close(std::function<void()> on_change) {
  impl_->begin_close(on_change);
}

bool LogRouter::is_drained() const {
  return impl_->is_drained(steady_clock::now());
}

std::uint64_t LogRouter::progress() const {
  return impl_->progress();
}

bool LogRouter::end_close(const std::string& why) {
  return impl_->end_close(why);
}

bool LogRouter::close(milliseconds standstill, milliseconds at_most) {
  return impl_->close(standstill, at_most);
}

}  // namespace accel::supervisor
