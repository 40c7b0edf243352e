// A job's last change has a number, and so has the last change of each place in its list of nodes. Whoever knows the job as it
// was at number n gets the places whose number is higher; a place that went and came back has a new one.

#include "agent/cluster/job_changes.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "agent/cluster/job_view.h"
#include "agent/jobs/job_page.h"
#include "agent/jobs/job_state.h"

namespace accel::agent {
namespace {

bool is_same_node(const v1::JobNode& one, const v1::JobNode& other) {
  return one.node_id() == other.node_id() && one.endpoint() == other.endpoint() &&
         one.first_rank() == other.first_rank() && one.count() == other.count() &&
         one.is_gone() == other.is_gone();
}

// Fills an answer as long as there is room.
class ChangesPage {
 public:
  explicit ChangesPage(v1::JobChanges& answer) : answer_(answer) {}
  // False: it has no room, and the answer says that more follows.
  bool add(v1::JobChange change) {
    bytes_ += change.ByteSizeLong();
    answer_.set_more(answer_.jobs_size() > 0 && bytes_ > kPageBytes);
    if (!answer_.more()) *answer_.add_jobs() = std::move(change);
    return !answer_.more();
  }

 private:
  v1::JobChanges& answer_;
  std::size_t bytes_ = 0;
};

}  // namespace

// ---- the coordinator's end ----

void ViewLog::look(const State& state) {
  std::vector<std::string> gone;
  for (const auto& [uuid, entry] : jobs_) {
    if (!state.jobs.contains(uuid)) gone.push_back(uuid);
  }
  for (const std::string& uuid : gone) forget(uuid);
  for (const auto& [uuid, job] : state.jobs) take(state, uuid, job);
}

void ViewLog::forget(const std::string& uuid) {
  const auto entry = jobs_.find(uuid);
  by_change_.erase(entry->second.changed);
  jobs_.erase(entry);
  gone_[++now_] = uuid;
  if (gone_.size() <= kMostGone) return;
  forgotten_ = gone_.begin()->first;
  gone_.erase(gone_.begin());
}

void ViewLog::take(const State& state, const std::string& uuid, const Job& job) {
  const auto [at, is_new] = jobs_.try_emplace(uuid);
  Entry& entry = at->second;
  if (!is_new && has_ended(entry.head) && is_terminal(job.phase)) return;
  if (is_new) std::erase_if(gone_, [&](const auto& known) { return known.second == uuid; });
  const std::uint64_t next = now_ + 1;
  v1::Job head = head_of(job);
  std::string head_text = head.SerializeAsString();
  const bool shows_nodes = has_seats(job.phase);
  bool has_changed = is_new || head_text != entry.head_text || shows_nodes != entry.shows_nodes ||
                     job.members.size() != entry.nodes.size();
  entry.nodes.resize(job.members.size());
  entry.node_changed.resize(job.members.size(), next);
  for (std::size_t i = 0; i < job.members.size(); ++i) {
    v1::JobNode node = node_of(state, job.members[i]);
    if (is_same_node(node, entry.nodes[i])) continue;
    entry.nodes[i] = std::move(node);
    entry.node_changed[i] = next;
    has_changed = true;
  }
  if (!has_changed) return;
  by_change_.erase(entry.changed);
  entry.head = std::move(head);
  entry.head_text = std::move(head_text);
  entry.shows_nodes = shows_nodes;
  entry.changed = now_ = next;
  by_change_[next] = uuid;
}

v1::JobChange ViewLog::change_of(const Entry& entry, std::uint64_t since, bool is_whole) {
  v1::JobChange change;
  *change.mutable_job() = entry.head;
  change.set_is_whole(is_whole);
  change.set_num_nodes(static_cast<std::uint32_t>(entry.nodes.size()));
  change.set_shows_nodes(entry.shows_nodes);
  for (std::size_t i = 0; i < entry.nodes.size(); ++i) {
    if (!is_whole && entry.node_changed[i] <= since) continue;
    *change.mutable_job()->add_nodes() = entry.nodes[i];
    change.add_places(static_cast<std::uint32_t>(i));
  }
  return change;
}

v1::JobChanges ViewLog::answer(const v1::ChangesReq& request) const {
  v1::JobChanges answer;
  const v1::ViewRevision& since = request.since();
  answer.set_question(request.question());
  const bool is_known = since.log() == id_ && since.number() <= now_ && since.gone() >= forgotten_;
  answer.set_is_whole(!is_known);
  answer.mutable_now()->set_log(id_);
  answer.mutable_now()->set_number(now_);
  answer.mutable_now()->set_gone(now_);
  const std::uint64_t from = is_known ? since.number() : 0;
  std::set<std::string_view> fresh;
  std::set<std::string_view> known;
  if (!request.all()) {
    fresh.insert(request.fresh().begin(), request.fresh().end());
    (is_known ? known : fresh).insert(request.jobs().begin(), request.jobs().end());
  }
  ChangesPage page(answer);
  for (const std::string_view uuid : fresh) {
    const auto entry = jobs_.find(std::string(uuid));
    if (entry == jobs_.end()) {
      answer.add_gone(std::string(uuid));
    } else if (!page.add(change_of(entry->second, 0, true))) {
      // Who knows some jobs of `from` asks for their changes again; who knows none has what it has as of now.
      if (is_known) *answer.mutable_now() = since;
      return answer;
    }
  }
  for (const std::string_view uuid : known) {
    if (!contains(std::string(uuid))) answer.add_gone(std::string(uuid));
  }
  const bool is_beginning = request.all() && (!is_known || since.is_partial());
  std::uint64_t last = from;
  for (auto at = by_change_.upper_bound(from); at != by_change_.end(); ++at) {
    const std::string& uuid = at->second;
    if (!request.all() && (!known.contains(uuid) || fresh.contains(uuid))) continue;
    if (!page.add(change_of(jobs_.at(uuid), from, is_beginning))) {
      answer.mutable_now()->set_number(last);
      answer.mutable_now()->set_is_partial(is_beginning);
      break;
    }
    last = at->first;
  }
  if (request.all() && is_known) {
    for (auto at = gone_.upper_bound(since.gone()); at != gone_.end(); ++at)
      answer.add_gone(at->second);
  }
  return answer;
}

bool has_news(const v1::JobChanges& answer) {
  return answer.is_whole() || answer.jobs_size() > 0 || answer.gone_size() > 0;
}

// ---- the other end ----

void KnownViews::want(std::set<std::string> jobs, bool all) {
  if (all == all_ && jobs == wanted_) return;
  ++question_;
  // Of the others nothing was asked until now.
  if (all && !all_) since_.Clear();
  wanted_ = std::move(jobs);
  all_ = all;
  std::erase_if(jobs_, [this](const auto& known) { return !is_wanted(known.first); });
}

v1::ChangesReq KnownViews::request() const {
  v1::ChangesReq request;
  *request.mutable_since() = since_;
  request.set_all(all_);
  request.set_question(question_);
  if (all_) return request;
  for (const std::string& uuid : wanted_)
    (jobs_.contains(uuid) ? request.add_jobs() : request.add_fresh())->assign(uuid);
  return request;
}

std::optional<KnownViews::News> KnownViews::take(const v1::JobChanges& answer) {
  if (answer.question() != question_) return std::nullopt;
  ++question_;
  since_ = answer.now();
  if (answer.is_whole()) jobs_.clear();
  News news;
  for (const v1::JobChange& change : answer.jobs()) {
    if (take(change)) news.changed.push_back(change.job().job_uuid());
  }
  for (const std::string& uuid : answer.gone()) {
    jobs_.erase(uuid);
    if (is_wanted(uuid)) news.gone.push_back(uuid);
  }
  return news;
}

// A change to what is not known says too little; where all jobs are followed it is a new one, with all its places.
bool KnownViews::take(const v1::JobChange& change) {
  const std::string& uuid = change.job().job_uuid();
  const bool is_known = jobs_.contains(uuid);
  if (!is_wanted(uuid) || (!is_known && !change.is_whole() && !all_)) return false;
  Known& known = jobs_[uuid];
  // Places that are new come with the change.
  const std::size_t most = known.nodes.size() + static_cast<std::size_t>(change.job().nodes_size());
  known.nodes.resize(std::min<std::size_t>(change.num_nodes(), most));
  for (int i = 0; i < std::min(change.places_size(), change.job().nodes_size()); ++i) {
    if (change.places(i) < known.nodes.size())
      known.nodes[change.places(i)] = change.job().nodes(i);
  }
  known.job = change.job();
  known.job.clear_nodes();
  if (!change.shows_nodes()) return true;
  for (const v1::JobNode& node : known.nodes) *known.job.add_nodes() = node;
  return true;
}

const v1::Job* KnownViews::find(const std::string& uuid) const {
  const auto known = jobs_.find(uuid);
  return known == jobs_.end() ? nullptr : &known->second.job;
}

std::vector<std::string> KnownViews::uuids() const {
  std::vector<std::string> uuids;
  for (const auto& [uuid, known] : jobs_) uuids.push_back(uuid);
  return uuids;
}

}  // namespace accel::agent
