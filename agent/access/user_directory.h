// UserDirectory: what the user database says, asked beside the loop.
//
// The database may be a directory service that does not answer. A question is a thread that nobody waits for; one user is
// asked for once at a time. Whoever waits goes on after `patience` with the answer of before, or with an error.
//
// Threads:  everything on the loop but the questions.
// Cost:     find() O(log users); a question a thread.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <boost/asio/io_context.hpp>

#include <accel/result.h>

#include "agent/access/user_account.h"
#include "runtime/clock.h"
#include "runtime/supervisor/kernel/detached_call.h"

namespace accel::agent {

using UserKey = std::variant<uid_t, std::string>;  // or the name

class UserDirectory {
 public:
  struct Options {
    std::function<Result<UserAccount>(const UserKey&)> ask = nullptr;  // nullptr: find_user()
    std::chrono::milliseconds patience{5'000};
    std::size_t most_asked = 32;  // at a time; others wait for their turn
    std::size_t most_kept =
        4096;  // answers, and users who are asked for or wait; more get an error at once
  };
  explicit UserDirectory(boost::asio::io_context& loop);
  UserDirectory(boost::asio::io_context& loop, Options options);
  ~UserDirectory();

  // Asks for those whose answer is older than `max_age`, or who were not found. Then calls `done`: before it returns where
  // nothing is to be asked, else on the loop.
  static constexpr std::chrono::seconds kMaxAge{60};
  void look_up(const std::vector<UserKey>& users,
               std::function<void()> done,
               std::chrono::milliseconds max_age = kMaxAge);

  // False: nobody knows yet whether there is such a user.
  [[nodiscard]] bool has_answer(const UserKey& user) const { return answers_.contains(user); }

  // The last answer. Errors  kAgentRefused: there is no such user, or no answer yet.
  [[nodiscard]] Result<UserAccount> find(const UserKey& user) const;

 private:
  struct Question;
  struct Answer {
    Result<UserAccount> account;
    TimePoint at{};
  };

  [[nodiscard]] bool is_fresh(const UserKey& user, std::chrono::milliseconds max_age) const;
  void ask(const UserKey& user, std::function<void()> done);
  void ask_next();
  void give_up(const UserKey& user, const Question* question);
  void take(const UserKey& user, const Result<UserAccount>& account);
  void keep(const UserKey& user, const Result<UserAccount>& account);

  boost::asio::io_context& loop_;
  Options options_;
  SteadyClock clock_;
  std::map<UserKey, Answer> answers_;
  std::map<UserKey, std::unique_ptr<Question>> questions_;
  std::deque<UserKey> turns_;  // of those that are not asked yet
  std::size_t num_asked_ = 0;
};

}  // namespace accel::agent
