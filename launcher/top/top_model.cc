#include "launcher/top/top_model.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>

#include "runtime/text/letter_case.h"

namespace accel::launcher {
namespace {

// Those that need a look come first.
int weight_of_state(const std::string& state) {
  static constexpr std::string_view kOrder[] = {"running",
                                                "stopping",
                                                "suspended",
                                                "preparing",
                                                "gathering",
                                                "pending",
                                                "failed",
                                                "cancelled"};
  const auto found = std::find(std::begin(kOrder), std::end(kOrder), state);
  return static_cast<int>(found - std::begin(kOrder));
}

bool comes_first(const TopJob& a, const TopJob& b, TopSort sort) {
  const auto by_name = std::tie(a.id, a.uuid) < std::tie(b.id, b.uuid);
  // Texts ascend, numbers descend; what is not known is less than any number.
  switch (sort) {
    case TopSort::kState:
      if (weight_of_state(a.state) != weight_of_state(b.state))
        return weight_of_state(a.state) < weight_of_state(b.state);
      return by_name;
    case TopSort::kName:
      return by_name;
    case TopSort::kUser:
      return a.user != b.user ? a.user < b.user : by_name;
    case TopSort::kWorkers:
      return a.num_workers != b.num_workers ? a.num_workers > b.num_workers : by_name;
    case TopSort::kRate:
      return top_step_rate(a) != top_step_rate(b) ? top_step_rate(a) > top_step_rate(b) : by_name;
    case TopSort::kMemory:
      return top_memory_bytes(a) != top_memory_bytes(b) ? top_memory_bytes(a) > top_memory_bytes(b)
                                                        : by_name;
    case TopSort::kRestarts:
      return a.restarts != b.restarts ? a.restarts > b.restarts : by_name;
    case TopSort::kElapsed:
      return a.elapsed != b.elapsed ? a.elapsed > b.elapsed : by_name;
  }
  return by_name;
}

const TopRank* slowest_rank(const TopJob& job) {
  const TopRank* last = nullptr;
  for (const TopRank& rank : job.ranks) {
    if (rank.step && (last == nullptr || *rank.step < *last->step)) last = &rank;
  }
  return last;
}

bool fits_filter(const TopJob& job, const std::string& filter) {
  const std::string part = lowercase(filter);
  const auto has_it = [&](const std::string& text) {
    return lowercase(text).find(part) != std::string::npos;
  };
  return has_it(job.id) || has_it(job.user) || has_it(job.state);
}

std::size_t row_of_selection(const TopModel& model, const std::vector<const TopJob*>& jobs) {
  const auto found = std::ranges::find(jobs, model.selected, &TopJob::uuid);
  return found == jobs.end() ? 0 : static_cast<std::size_t>(found - jobs.begin());
}

// Where the keys of a list lead from `row` of `count`.
std::size_t moved(TopKey key, std::size_t row, std::size_t count, std::size_t page_rows) {
  const std::size_t last = count == 0 ? 0 : count - 1;
  const std::size_t page = std::max<std::size_t>(page_rows, 1);
  switch (key) {
    case TopKey::kUp:
      return row > 0 ? row - 1 : 0;
    case TopKey::kDown:
      return std::min(row + 1, last);
    case TopKey::kPageUp:
      return row > page ? row - page : 0;
    case TopKey::kPageDown:
      return std::min(row + page, last);
    case TopKey::kHome:
      return 0;
    case TopKey::kEnd:
      return last;
    default:
      return row;
  }
}

void move(TopModel& model, TopKey key, std::size_t page_rows) {
  if (model.page == TopPage::kRanks) {
    const TopJob* const job = find_job(model, model.selected);
    // With the names of the columns.
    const std::size_t count = job == nullptr ? 0 : job->ranks.size() + job->nodes.size() + 1;
    const std::size_t last = count > page_rows ? count - page_rows : 0;
    model.first_row = std::min(moved(key, model.first_row, count, page_rows), last);
    return;
  }
  const auto jobs = shown_jobs(model);
  if (jobs.empty()) return;
  model.selected = jobs[moved(key, row_of_selection(model, jobs), jobs.size(), page_rows)]->uuid;
}

void type_filter(TopModel& model, const TopPress& pressed) {
  constexpr std::size_t kLongestFilter = 64;
  if (pressed.key == TopKey::kEnter) {
    model.is_typing = false;
  } else if (pressed.key == TopKey::kEscape) {
    model.is_typing = false;
    model.filter.clear();
  } else if (pressed.key == TopKey::kErase) {
    if (!model.filter.empty()) model.filter.pop_back();
  } else if (pressed.key == TopKey::kLetter && model.filter.size() < kLongestFilter) {
    model.filter += pressed.letter;
  }
}

TopOrder answer(TopModel& model, const TopPress& pressed) {
  const std::string uuid = std::exchange(model.asked, "");
  const bool is_letter = pressed.key == TopKey::kLetter;
  const bool is_yes = is_letter && pressed.letter == 'y';
  if (is_yes && !model.asks_for_kill) {
    model.asked_to_stop.insert(uuid);
    return {TopOrder::Kind::kStop, uuid};
  }
  if (is_yes || (is_letter && pressed.letter == 'K')) return {TopOrder::Kind::kKill, uuid};
  model.message = "not stopped";
  return {};
}

// What the keys are about: on the page of its ranks that job alone, also when the list no longer shows it.
const TopJob* job_at_hand(const TopModel& model) {
  return model.page == TopPage::kRanks ? find_job(model, model.selected) : selected_job(model);
}

void next_sort(TopModel& model, int step) {
  const int sort = static_cast<int>(model.sort) + step + kNumTopSorts;
  model.sort = static_cast<TopSort>(sort % kNumTopSorts);
}

TopOrder order_of(TopModel& model, char letter) {
  const TopJob* const job = job_at_hand(model);
  const std::string uuid = job == nullptr ? "" : job->uuid;
  switch (letter) {
    case 'q':
      return {TopOrder::Kind::kQuit, ""};
    case 'l':
      return job == nullptr ? TopOrder() : TopOrder{TopOrder::Kind::kFollow, uuid};
    case 'k':
      if (job == nullptr) return {};
      if (job->exit_code) model.message = "that job has ended";
      if (!job->exit_code) model.asked = uuid;
      model.asks_for_kill = job->state == "stopping" || model.asked_to_stop.contains(uuid);
      return {};
    case 's':
      next_sort(model, 1);
      return {};
    case 'S':
      next_sort(model, -1);
      return {};
    case '?':
      model.shows_keys = true;
      return {};
    case 'r':
      model.is_reversed = !model.is_reversed;
      return {};
    case '/':
      model.is_typing = model.page == TopPage::kJobs;
      return {};
    case ' ':
      return {TopOrder::Kind::kRefresh, ""};
    default:
      return {};
  }
}

}  // namespace

std::optional<double> top_memory_bytes(const TopJob& job) {
  std::optional<double> bytes;
  for (const TopRank& rank : job.ranks) {
    if (rank.memory_bytes) bytes = bytes.value_or(0) + *rank.memory_bytes;
  }
  return bytes;
}

std::optional<std::uint64_t> top_step(const TopJob& job) {
  const TopRank* const last = slowest_rank(job);
  return last == nullptr ? std::nullopt : last->step;
}

std::optional<double> top_step_rate(const TopJob& job) {
  const TopRank* const last = slowest_rank(job);
  if (last == nullptr || !last->step_seconds || *last->step_seconds <= 0) return std::nullopt;
  return 1 / *last->step_seconds;
}

std::vector<const TopJob*> shown_jobs(const TopModel& model) {
  std::vector<const TopJob*> jobs;
  for (const TopJob& job : model.jobs) {
    if (fits_filter(job, model.filter)) jobs.push_back(&job);
  }
  std::ranges::stable_sort(jobs, [&](const TopJob* a, const TopJob* b) {
    return model.is_reversed ? comes_first(*b, *a, model.sort) : comes_first(*a, *b, model.sort);
  });
  return jobs;
}

const TopJob* find_job(const TopModel& model, const std::string& uuid) {
  const auto found = std::ranges::find(model.jobs, uuid, &TopJob::uuid);
  return found == model.jobs.end() ? nullptr : &*found;
}

const TopJob* selected_job(const TopModel& model) {
  const auto jobs = shown_jobs(model);
  return jobs.empty() ? nullptr : jobs[row_of_selection(model, jobs)];
}

void take_jobs(TopModel& model, std::vector<TopJob> jobs) {
  const auto before = shown_jobs(model);
  const std::size_t row = row_of_selection(model, before);
  const bool was_shown = !before.empty() && before[row]->uuid == model.selected;
  model.jobs = std::move(jobs);
  if (model.page != TopPage::kJobs || !was_shown) return;
  const auto now = shown_jobs(model);
  const bool is_shown = std::ranges::find(now, model.selected, &TopJob::uuid) != now.end();
  if (!is_shown && !now.empty()) model.selected = now[std::min(row, now.size() - 1)]->uuid;
}

void take_failed_stop(TopModel& model, const std::string& uuid) {
  model.asked_to_stop.erase(uuid);
}

bool open_job(TopModel& model, const std::string& named) {
  const auto found = std::ranges::find_if(
      model.jobs, [&](const TopJob& job) { return job.id == named || job.uuid == named; });
  if (found == model.jobs.end()) return false;
  model.selected = found->uuid;
  model.page = TopPage::kRanks;
  model.first_row = 0;
  return true;
}

TopOrder press(TopModel& model, const TopPress& pressed, std::size_t page_rows) {
  if (pressed.key == TopKey::kRedraw) return {TopOrder::Kind::kRedraw, ""};
  if (std::exchange(model.shows_keys, false)) return {};
  if (!model.asked.empty()) return answer(model, pressed);
  if (model.is_typing) {
    type_filter(model, pressed);
    return {};
  }
  model.message.clear();
  const bool is_list = model.page == TopPage::kJobs;
  switch (pressed.key) {
    case TopKey::kLetter:
      return order_of(model, pressed.letter);
    case TopKey::kEnter:
      if (const TopJob* const job = selected_job(model); job != nullptr && is_list)
        (void)open_job(model, job->uuid);
      return {};
    case TopKey::kEscape:
      if (is_list) model.filter.clear();
      model.page = TopPage::kJobs;
      return {};
    case TopKey::kErase:
    case TopKey::kRedraw:
      return {};
    default:
      move(model, pressed.key, page_rows);
      return {};
  }
}

namespace {

// The key of a whole sequence behind ESC; ESC itself for one that means nothing here.
std::optional<TopKey> top_key_of(std::string_view sequence) {
  struct Known {
    std::string_view sequence;
    TopKey key;
  };
  static constexpr Known kKnown[] = {{"[A", TopKey::kUp},
                                     {"OA", TopKey::kUp},
                                     {"[B", TopKey::kDown},
                                     {"OB", TopKey::kDown},
                                     {"[5~", TopKey::kPageUp},
                                     {"[6~", TopKey::kPageDown},
                                     {"[H", TopKey::kHome},
                                     {"OH", TopKey::kHome},
                                     {"[1~", TopKey::kHome},
                                     {"[F", TopKey::kEnd},
                                     {"OF", TopKey::kEnd},
                                     {"[4~", TopKey::kEnd}};
  const auto found = std::ranges::find(kKnown, sequence, &Known::sequence);
  return found == std::end(kKnown) ? std::nullopt : std::optional(found->key);
}

}  // namespace

std::vector<TopPress> TopKeys::take(std::string_view bytes) {
  std::vector<TopPress> pressed;
  for (const char byte : bytes) {
    if (pending_ == "\x1b" && byte == '\x1b') {
      pressed.push_back({TopKey::kEscape, 0});  // the second one may begin a sequence
    } else if (!pending_.empty()) {
      pending_ += byte;
      const bool is_first = pending_.size() == 2;
      if (is_first && (byte == '[' || byte == 'O')) continue;
      const bool is_final = byte >= 0x40 && byte <= 0x7E;
      if (!is_first && !is_final && pending_.size() < 16) continue;
      if (const auto key = top_key_of(std::string_view(pending_).substr(1)))
        pressed.push_back({*key, 0});
      pending_.clear();
    } else if (byte == '\x1b') {
      pending_ = byte;
    } else if (byte == '\r' || byte == '\n') {
      pressed.push_back({TopKey::kEnter, 0});
    } else if (byte == '\b' || byte == '\x7F') {
      pressed.push_back({TopKey::kErase, 0});
    } else if (byte == '\f') {
      pressed.push_back({TopKey::kRedraw, 0});
    } else if (byte >= 0x20 && byte < 0x7F) {
      pressed.push_back({TopKey::kLetter, byte});
    }
  }
  return pressed;
}

std::optional<TopPress> TopKeys::over() {
  const bool is_escape = pending_ == "\x1b";
  pending_.clear();
  return is_escape ? std::optional(TopPress{TopKey::kEscape, 0}) : std::nullopt;
}

}  // namespace accel::launcher
