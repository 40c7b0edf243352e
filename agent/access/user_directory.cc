#include "agent/access/user_directory.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

namespace accel::agent {
namespace {

namespace asio = boost::asio;

Result<UserAccount> ask_database(const UserKey& user) {
  return std::visit([](const auto& key) { return find_user(key); }, user);
}

std::string text_of(const UserKey& user) {
  const auto* name = std::get_if<std::string>(&user);
  return name != nullptr ? "user '" + *name + "'" : "uid " + std::to_string(std::get<uid_t>(user));
}

Error no_answer(const UserKey& user) {
  return Error(ErrorCode::kAgentRefused,
               "the user database has no answer yet for " + text_of(user),
               "see whether `getent passwd` answers on this node, and try again");
}

}  // namespace

// One that is being asked, and who waits for it.
struct UserDirectory::Question {
  explicit Question(asio::io_context& loop) : limit(loop) {}

  void go_on() {
    limit.cancel();
    for (const auto& done : std::exchange(waiting, {})) done();
  }

  asio::steady_timer limit;
  std::vector<std::function<void()>> waiting;
  std::optional<supervisor::DetachedCall<UserAccount>> call;
};

UserDirectory::UserDirectory(asio::io_context& loop) : UserDirectory(loop, Options()) {}

UserDirectory::UserDirectory(asio::io_context& loop, Options options)
    : loop_(loop), options_(std::move(options)) {
  if (!options_.ask) options_.ask = ask_database;
}

UserDirectory::~UserDirectory() = default;

bool UserDirectory::is_fresh(const UserKey& user, std::chrono::milliseconds max_age) const {
  const auto known = answers_.find(user);
  return known != answers_.end() && known->second.account &&
         clock_.now() - known->second.at < max_age;
}

void UserDirectory::look_up(const std::vector<UserKey>& users,
                            std::function<void()> done,
                            std::chrono::milliseconds max_age) {
  std::vector<UserKey> wanted;
  for (const UserKey& user : users) {
    const bool is_listed = std::find(wanted.begin(), wanted.end(), user) != wanted.end();
    if (!is_listed && !is_fresh(user, max_age)) wanted.push_back(user);
  }
  if (wanted.empty()) return done();
  const auto num_missing = std::make_shared<std::size_t>(wanted.size());
  const auto done_one = [num_missing, done = std::move(done)] {
    if (--*num_missing == 0) done();
  };
  for (const UserKey& user : wanted) ask(user, done_one);
}

void UserDirectory::ask(const UserKey& user, std::function<void()> done) {
  const auto open = questions_.find(user);
  const bool is_late = open != questions_.end() && open->second->waiting.empty();
  // Its answer is late already: nobody waits for it a second time.
  if (is_late || (open == questions_.end() && questions_.size() >= options_.most_kept))
    return asio::post(loop_, std::move(done));
  if (open != questions_.end()) return open->second->waiting.push_back(std::move(done));

  Question& question = *(questions_[user] = std::make_unique<Question>(loop_));
  question.waiting.push_back(std::move(done));
  question.limit.expires_after(options_.patience);
  question.limit.async_wait(
      [this, user, asked = &question](const boost::system::error_code& error) {
        if (!error) give_up(user, asked);
      });
  turns_.push_back(user);
  ask_next();
}

void UserDirectory::ask_next() {
  while (num_asked_ < options_.most_asked && !turns_.empty()) {
    const UserKey user = std::move(turns_.front());
    turns_.pop_front();
    const auto next = questions_.find(user);
    if (next == questions_.end() || next->second->call) continue;  // given up meanwhile
    ++num_asked_;
    next->second->call.emplace(
        loop_.get_executor(),
        [ask = options_.ask, user] { return ask(user); },
        "cannot ask the user database",
        [this, user](const Result<UserAccount>& account) { take(user, account); });
  }
}

// Whoever waits goes on. The question stays while its thread does.
void UserDirectory::give_up(const UserKey& user, const Question* question) {
  const auto late = questions_.find(user);
  if (late == questions_.end() || late->second.get() != question) return;
  if (late->second->call) return late->second->go_on();
  std::erase(turns_, user);
  const auto dropped = questions_.extract(late);
  dropped.mapped()->go_on();
}

void UserDirectory::take(const UserKey& user, const Result<UserAccount>& account) {
  --num_asked_;
  keep(user, account);
  if (account) {
    keep(account->name, account);
    keep(account->credentials.uid, account);
  }
  const auto answered = questions_.extract(user);
  ask_next();
  answered.mapped()->go_on();
}

void UserDirectory::keep(const UserKey& user, const Result<UserAccount>& account) {
  if (answers_.size() >= options_.most_kept && !answers_.contains(user)) {
    answers_.erase(std::min_element(answers_.begin(), answers_.end(), [](auto& left, auto& right) {
      return left.second.at < right.second.at;
    }));
  }
  answers_.insert_or_assign(user, Answer{account, clock_.now()});
}

Result<UserAccount> UserDirectory::find(const UserKey& user) const {
  const auto known = answers_.find(user);
  if (known == answers_.end()) return no_answer(user);
  return known->second.account;
}

}  // namespace accel::agent
