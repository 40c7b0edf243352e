#include "agent/rendezvous/session_client.h"

#include <string>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scratch_folder.h"

namespace accel::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Knows five members, and gives two at a time.
class Pages final : public v1::Rendezvous::Service {
 public:
  explicit Pages(std::uint32_t fails_from) : fails_from_(fails_from) {}

  grpc::Status GetMembers(grpc::ServerContext*,
                          const v1::MembersReq* request,
                          v1::MembersPage* page) override {
    if (request->from() >= fails_from_) return {grpc::StatusCode::UNAVAILABLE, "no more today"};
    constexpr std::uint32_t kAll = 5;
    constexpr std::uint32_t kEach = 2;
    for (std::uint32_t i = request->from(); i < kAll && i < request->from() + kEach; ++i)
      page->add_members()->set_node_id(request->job_uuid() + "-" + std::to_string(i));
    if (page->members_size() == kEach) page->set_next(request->from() + kEach);
    return grpc::Status::OK;
  }

 private:
  const std::uint32_t fails_from_;
};

std::vector<std::string> ask_members(std::uint32_t fails_from) {
  const test::ScratchFolder folder;
  const std::string address = "unix:" + folder.file("socket");
  Pages pages(fails_from);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&pages);
  const auto server = builder.BuildAndStart();
  boost::asio::io_context loop{1};
  const auto work = boost::asio::make_work_guard(loop);
  SessionClient client(loop, grpc::CreateChannel(address, grpc::InsecureChannelCredentials()), {});
  std::vector<std::string> names;
  client.get_members("job", [&](const std::vector<v1::Member>& members) {
    for (const v1::Member& member : members) names.push_back(member.node_id());
    loop.stop();
  });
  loop.run();
  server->Shutdown();
  return names;
}

TEST(SessionClient, TheListOfMembersIsAskedForToItsLastPage) {
  EXPECT_THAT(ask_members(100), ElementsAre("job-0", "job-1", "job-2", "job-3", "job-4"));
}

TEST(SessionClient, OfAListThatCannotBeHadWholeNothingIsTold) {
  EXPECT_THAT(ask_members(2), IsEmpty());
}

}  // namespace
}  // namespace accel::agent
