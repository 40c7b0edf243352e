#include "runtime/supervisor/dashboard/dashboard_server.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <set>
#include <utility>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/printable.h"
#include "runtime/supervisor/dashboard/dashboard_page.h"
#include "runtime/text/endpoint_text.h"
#include "runtime/text/number_text.h"
#include "runtime/text/secret_text.h"
#include "runtime/unique_fd.h"

namespace accel::supervisor {
namespace {

using boost::system::error_code;

// Nothing from elsewhere, nothing inline, in no frame.
constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' "
    "data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

std::vector<std::pair<std::string_view, std::string>> guarding_headers() {
  return {{"Content-Security-Policy", kPagePolicy},
          {"X-Content-Type-Options", "nosniff"},
          {"Referrer-Policy", "no-referrer"},
          {"Cross-Origin-Opener-Policy", "same-origin"},
          {"Cross-Origin-Resource-Policy", "same-origin"}};
}

std::optional<int> hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return {};
    const auto high = hex_digit(text[i + 1]);
    const auto low = hex_digit(text[i + 2]);
    if (!high || !low) return {};
    decoded += static_cast<char>(*high * 16 + *low);
    i += 2;
  }
  return decoded;
}

// std::nullopt: it asks for nothing that could be answered.
std::optional<LogQuestion> log_question(std::string_view query) {
  LogQuestion question = {.job = query_value(query, "job"), .bytes = DashboardServer::kMostLog};
  const auto rank = number_of<int>(query_value(query, "rank"));
  if (question.job.empty() || !rank || *rank < 0) return std::nullopt;
  question.rank = *rank;
  const std::string stream = query_value(query, "stream");
  if (stream == "err") question.stream = Stream::kErr;
  return question;
}

std::optional<DashboardDeed> deed_at(std::string_view path) {
  constexpr std::string_view kApi = "/api/";
  for (const DashboardDeed deed :
       {DashboardDeed::kStop, DashboardDeed::kDrain, DashboardDeed::kStacks}) {
    if (path.starts_with(kApi) && path.substr(kApi.size()) == name_of(deed)) return deed;
  }
  return std::nullopt;
}

// std::nullopt: a job or a rank is missing that the deed is about.
std::optional<DashboardAction> action_of(DashboardDeed deed, const HttpRequest& request) {
  DashboardAction action = {.deed = deed, .from = request.from};
  if (deed == DashboardDeed::kDrain) return action;
  action.job = query_value(request.query, "job");
  if (action.job.empty()) return std::nullopt;
  action.kill = deed == DashboardDeed::kStop && query_value(request.query, "kill") == "1";
  if (deed == DashboardDeed::kStop) return action;
  const auto rank = number_of<int>(query_value(request.query, "rank"));
  if (!rank || *rank < 0) return std::nullopt;
  action.rank = *rank;
  return action;
}

std::string json_of_outcome(const DashboardOutcome& outcome) {
  const nlohmann::json json = {{"is_done", outcome.is_done}, {"text", printable(outcome.text)}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_of_tail(const LogTail& tail) {
  const nlohmann::json json = {{"text", tail.text},
                               {"offset", tail.offset},
                               {"size", tail.size},
                               {"notice", printable(tail.notice)}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

HttpAnswer json_answer(std::string body) {
  return {.type = "application/json", .body = std::move(body), .headers = guarding_headers()};
}

}  // namespace

bool is_own_host(std::string_view host) {
  const std::string name = without_brackets(split_endpoint(host).host);
  if (name == "localhost") return true;
  error_code not_numeric;
  (void)boost::asio::ip::make_address(name, not_numeric);
  return !not_numeric;
}

std::string_view name_of(DashboardDeed deed) {
  switch (deed) {
    case DashboardDeed::kStop:
      return "stop";
    case DashboardDeed::kDrain:
      return "drain";
    case DashboardDeed::kStacks:
      return "stacks";
  }
  return "";
}

bool is_own_origin(std::string_view origin, std::string_view host) {
  return origin.empty() || origin == "http://" + std::string(host);
}

std::string query_value(std::string_view query, std::string_view key) {
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    const std::size_t equals = pair.find('=');
    if (equals != std::string_view::npos && pair.substr(0, equals) == key)
      return percent_decoded(pair.substr(equals + 1));
  }
  return {};
}

LogTail log_tail_of(int file, std::uint64_t most) {
  struct stat info = {};
  if (::fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) return {.notice = "it cannot be read"};
  LogTail tail;
  tail.size = static_cast<std::uint64_t>(info.st_size);
  tail.offset = tail.size > most ? tail.size - most : 0;
  std::string bytes(tail.size - tail.offset, '\0');
  const ssize_t got = ::pread(file, bytes.data(), bytes.size(), static_cast<off_t>(tail.offset));
  bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  const std::size_t first = tail.offset == 0 ? std::string::npos : bytes.find('\n');
  if (first != std::string::npos && first + 1 < bytes.size()) {  // one long line stays as it is
    bytes.erase(0, first + 1);
    tail.offset += first + 1;
  }
  tail.text = printable(bytes);
  return tail;
}

LogTail read_log_tail(const std::string& path, std::uint64_t most) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file && errno == ENOENT) return {.notice = "nothing was written yet"};
  return log_tail_of(file.get(), most);
}

struct DashboardServer::Core : std::enable_shared_from_this<Core> {
  Core(boost::asio::io_context& loop, Tokens made_tokens, Handlers made_handlers)
      : tokens(std::move(made_tokens)), handlers(std::move(made_handlers)), timer(loop) {}

  void take(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void serve_api(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void serve_state(const std::shared_ptr<HttpReply>& reply);
  void serve_log(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void serve_offers(bool is_operator, const std::shared_ptr<HttpReply>& reply) const;
  void act(const HttpRequest& request, bool is_operator, const std::shared_ptr<HttpReply>& reply);
  void add_stream(const std::shared_ptr<HttpReply>& reply);
  void look();
  void wait();
  void tell(DashboardState state);

  const Tokens tokens;
  std::string host;  // the address listened at
  Handlers handlers;
  boost::asio::steady_timer timer;
  std::set<std::shared_ptr<HttpReply>> streams;
  DashboardRefusals refusals;
  bool is_looking = false;
  bool is_closed = false;
};

void DashboardServer::Core::take(const HttpRequest& request,
                                 const std::shared_ptr<HttpReply>& reply) {
  if (!is_own_host(request.host)) {
    ++refusals.wrong_host;
    return reply->answer(http_refusal(421));
  }
  if (!is_own_origin(request.origin, request.host)) {
    ++refusals.cross_site;
    return reply->answer(http_refusal(403));
  }
  if (request.path.starts_with("/api/")) return serve_api(request, reply);
  if (request.is_post) return reply->answer(http_refusal(405));
  const auto file = dashboard_file(request.path == "/" ? "/index.html" : request.path);
  if (!file) return reply->answer(http_refusal(404));
  reply->answer(
      {.type = file->type, .body = std::string(file->text), .headers = guarding_headers()});
}

void DashboardServer::Core::serve_api(const HttpRequest& request,
                                      const std::shared_ptr<HttpReply>& reply) {
  constexpr std::string_view kScheme = "Bearer ";
  const std::string_view given = request.authorization.starts_with(kScheme)
                                     ? request.authorization.substr(kScheme.size())
                                     : std::string_view();
  const bool is_operator = is_same_secret(given, tokens.operators);
  if (!is_operator && !is_same_secret(given, tokens.viewers)) {
    ++refusals.unauthenticated;
    HttpAnswer refusal = http_refusal(401);
    refusal.headers = {{"WWW-Authenticate", "Bearer"}};
    return reply->answer(std::move(refusal));
  }
  if (is_closed) return reply->answer(http_refusal(503));
  if (request.is_post) return act(request, is_operator, reply);
  if (request.path == "/api/events" && !request.is_head) return add_stream(reply);
  if (request.path == "/api/state") return serve_state(reply);
  if (request.path == "/api/log") return serve_log(request, reply);
  if (request.path == "/api/curves" && handlers.read_curves) {
    return handlers.read_curves(query_value(request.query, "job"), [reply](std::string json) {
      reply->answer(json_answer(std::move(json)));
    });
  }
  if (request.path == "/api/offers") return serve_offers(is_operator, reply);
  reply->answer(http_refusal(deed_at(request.path) ? 405 : 404));
}

void DashboardServer::Core::serve_state(const std::shared_ptr<HttpReply>& reply) {
  handlers.collect([core = shared_from_this(), reply](DashboardState state) {
    state.refusals = core->refusals;
    reply->answer(json_answer(to_json(state)));
  });
}

void DashboardServer::Core::serve_log(const HttpRequest& request,
                                      const std::shared_ptr<HttpReply>& reply) {
  const auto question = log_question(request.query);
  if (!question) return reply->answer(http_refusal(400));
  handlers.read_log(
      *question, [reply](const LogTail& tail) { reply->answer(json_answer(json_of_tail(tail))); });
}

void DashboardServer::Core::serve_offers(bool is_operator,
                                         const std::shared_ptr<HttpReply>& reply) const {
  nlohmann::json actions = nlohmann::json::array();
  for (const DashboardDeed deed : handlers.deeds) {
    if (is_operator) actions.push_back(std::string(name_of(deed)));
  }
  reply->answer(json_answer(nlohmann::json{{"actions", std::move(actions)}}.dump()));
}

void DashboardServer::Core::act(const HttpRequest& request,
                                bool is_operator,
                                const std::shared_ptr<HttpReply>& reply) {
  const auto deed = deed_at(request.path);
  const bool is_known = deed && std::ranges::count(handlers.deeds, *deed) > 0;
  if (!is_known) return reply->answer(http_refusal(404));
  // A browser always says whose page it is that posts.
  if (request.origin.empty()) {
    ++refusals.cross_site;
    return reply->answer(http_refusal(403));
  }
  if (!is_operator) {
    ++refusals.forbidden;
    return reply->answer(http_refusal(403));
  }
  const auto action = action_of(*deed, request);
  if (!action) return reply->answer(http_refusal(400));
  handlers.act(*action, [reply](const DashboardOutcome& outcome) {
    reply->answer(json_answer(json_of_outcome(outcome)));
  });
}

void DashboardServer::Core::add_stream(const std::shared_ptr<HttpReply>& reply) {
  streams.insert(reply);
  reply->stream([core = weak_from_this(), stream = std::weak_ptr(reply)](bool was_dropped) {
    const auto self = core.lock();
    if (!self) return;
    if (was_dropped) ++self->refusals.dropped;
    if (const auto over = stream.lock()) self->streams.erase(over);
  });
  look();
}

void DashboardServer::Core::look() {
  if (is_closed || std::exchange(is_looking, true)) return;
  handlers.collect([core = shared_from_this()](DashboardState state) {
    core->is_looking = false;
    if (core->is_closed) return;
    core->tell(std::move(state));
    core->wait();
  });
}

void DashboardServer::Core::wait() {
  if (streams.empty()) return;
  timer.expires_after(kEvery);
  timer.async_wait([core = shared_from_this()](const error_code& error) {
    if (!error) core->look();
  });
}

void DashboardServer::Core::tell(DashboardState state) {
  state.refusals = refusals;
  const auto text = std::make_shared<const std::string>(to_json(state));
  // One that ends is taken out of the set meanwhile.
  for (const auto& stream : std::set(streams)) {
    stream->send(text);
    if (state.is_over) stream->end();
  }
}

DashboardServer::DashboardServer(std::shared_ptr<Core> core, std::unique_ptr<HttpServer> server)
    : core_(std::move(core)), server_(std::move(server)) {}

DashboardServer::~DashboardServer() {
  core_->is_closed = true;
  core_->timer.cancel();
  core_->handlers = {};
}

Result<std::unique_ptr<DashboardServer>> DashboardServer::listen(
    boost::asio::io_context& loop,
    const TcpEndpoint& endpoint,
    Tokens tokens,
    Handlers handlers,
    std::chrono::milliseconds patience) {
  auto core = std::make_shared<Core>(loop, std::move(tokens), std::move(handlers));
  auto server = HttpServer::listen(
      loop,
      endpoint,
      [core](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
        core->take(request, reply);
      },
      {.most_connections = kMaxConnections, .patience = patience, .takes_post = true});
  if (!server) return std::move(server).error();
  core->host = endpoint.address().to_string();
  return std::unique_ptr<DashboardServer>(new DashboardServer(std::move(core), *std::move(server)));
}

int DashboardServer::port() const {
  return server_->port();
}

std::string DashboardServer::address() const {
  return address_of(core_->tokens.viewers);
}

std::string DashboardServer::operators_address() const {
  return address_of(core_->tokens.operators);
}

std::string DashboardServer::address_of(const std::string& token) const {
  return "http://" + endpoint_text(core_->host, port()) + "/#token=" + token;
}

const DashboardRefusals& DashboardServer::refusals() const {
  return core_->refusals;
}

bool DashboardServer::has_streams() const {
  return !core_->streams.empty();
}

void DashboardServer::end() {
  core_->handlers.collect([core = core_](DashboardState state) {
    state.is_over = true;
    core->tell(std::move(state));
  });
}

}  // namespace accel::supervisor
