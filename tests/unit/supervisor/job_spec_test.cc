#include "runtime/supervisor/protocol/job_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace accel::supervisor::job_spec_test {
namespace {

using ::testing::HasSubstr;

JobSpec example() {
  JobSpec spec;
  spec.job_id = "job-1";
  spec.instance = "0123456789abcdef0123456789abcdef";
  spec.cwd = "/tmp";
  spec.env = {{"PATH", "/bin"}, {"BYTES", "\xFF\xFE"}};
  spec.identity.world_size = 2;
  spec.workers = {{.local_rank = 0,
                   .global_rank = 0,
                   .argv = {"a", "\x80"},
                   .cpus = {0, 2},
                   .memory_nodes = {1},
                   .bind_memory = true},
                  {.local_rank = 1, .global_rank = 1, .argv = {"b"}, .tee = Streams::kErr}};
  spec.stop.grace = Milliseconds(1234);
  spec.restart.max_restarts = 3;
  spec.log.dir = "/logs";
  spec.store.port = 0;
  return spec;
}

Result<JobSpec> with(const std::string& pointer, const nlohmann::json& value) {
  auto json = nlohmann::json::parse(to_json(example()));
  json[nlohmann::json::json_pointer(pointer)] = value;
  return job_spec_from_json(json.dump());
}

TEST(JobSpecJson, ComesBackUnchanged) {
  const auto back = job_spec_from_json(to_json(example()));

  ASSERT_TRUE(back.has_value()) << back.error().what();
  EXPECT_EQ(to_json(*back), to_json(example()));
  EXPECT_EQ(back->env.at("BYTES"), "\xFF\xFE");
  EXPECT_EQ(back->workers[1].tee, Streams::kErr);
}

TEST(JobSpecJson, AnotherVersionIsRefused) {
  for (const int version : {0, JobSpec::kVersion + 1}) {
    const auto result = with("/version", version);
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code(), ErrorCode::kProtocol);
    EXPECT_THAT(result.error().message(),
                HasSubstr("version " + std::to_string(version) + " instead of " +
                          std::to_string(JobSpec::kVersion)));
  }
}

TEST(JobSpecJson, Fault55TheVersionBeforeMayLackWhatIsNew) {
  auto json = nlohmann::json::parse(to_json(example()));
  json["version"] = 1;
  for (const char* name : {"control", "node_id", "owner", "hang"}) json.erase(name);
  json["stop"].erase("requeue_exit_code");
  json["store"].erase("members");

  const auto back = job_spec_from_json(json.dump());

  ASSERT_TRUE(back.has_value()) << back.error().what();
  EXPECT_EQ(back->control, GenerationControl::kShim);
  EXPECT_EQ(to_json(*back), to_json(example()));
}

TEST(JobSpecJson, Fault55AnOwnerOfVersionTwoNamesNoInstance) {
  auto json = nlohmann::json::parse(to_json(example()));
  json["version"] = 2;
  json.erase("instance");

  const auto back = job_spec_from_json(json.dump());

  ASSERT_TRUE(back.has_value()) << back.error().what();
  EXPECT_EQ(back->instance, "");
}

TEST(JobSpecJson, Fault55AnOwnerOfVersionThreeNamesNoMemory) {
  auto json = nlohmann::json::parse(to_json(example()));
  json["version"] = 3;
  for (const char* name : {"memory_nodes", "bind_memory"}) json["workers"][0].erase(name);

  const auto back = job_spec_from_json(json.dump());

  ASSERT_TRUE(back.has_value()) << back.error().what();
  EXPECT_TRUE(back->workers[0].memory_nodes.empty());
}

TEST(JobSpecJson, Fault55AnOwnerOfVersionFiveHoldsEmptyInputs) {
  auto json = nlohmann::json::parse(to_json(example()));
  json["version"] = 5;
  json["console"].erase("held_input");

  const auto back = job_spec_from_json(json.dump());

  ASSERT_TRUE(back.has_value()) << back.error().what();
  EXPECT_EQ(back->console.held_input, "");
}

TEST(JobSpecJson, Fault55AnOwnerOfVersionFourKnowsNoStarters) {
  auto json = nlohmann::json::parse(to_json(example()));
  json["version"] = 4;
  json["workers"][0].erase("is_starter");
  json["console"].erase("stop_by_input");

  const auto back = job_spec_from_json(json.dump());

  ASSERT_TRUE(back.has_value()) << back.error().what();
  EXPECT_FALSE(back->workers[0].is_starter);
  EXPECT_FALSE(back->console.stop_by_input);
}

TEST(JobSpecJson, Fault55AnOwnerOfVersionThreeKnowsNoRotationAndOneSwitch) {
  auto json = nlohmann::json::parse(to_json(example()));
  json["version"] = 3;
  for (const char* name : {"rotate_bytes", "keep", "overflow", "merge_stderr"})
    json["log"].erase(name);
  for (const bool drop : {false, true}) {
    json["log"]["drop"] = drop;

    const auto back = job_spec_from_json(json.dump());

    ASSERT_TRUE(back.has_value()) << back.error().what();
    EXPECT_EQ(back->log.rotation.bytes, 0U);
    EXPECT_EQ(back->log.overflow, drop ? Overflow::kDrop : Overflow::kBlock);
  }
}

TEST(JobSpecJson, MissingMemberIsNamed) {
  auto json = nlohmann::json::parse(to_json(example()));
  json["workers"][1].erase("argv");
  const auto result = job_spec_from_json(json.dump());

  ASSERT_FALSE(result.has_value());
  EXPECT_THAT(result.error().message(), HasSubstr("workers argv is missing"));
}

TEST(JobSpecJson, WrongKindIsNamed) {
  EXPECT_THAT(with("/stop/grace", "soon").error().message(), HasSubstr("stop grace"));
  EXPECT_THAT(with("/store/port", 70000).error().message(), HasSubstr("out of range"));
}

TEST(JobSpecJson, ImpossibleValuesAreRefused) {
  const std::pair<const char*, nlohmann::json> cases[] = {
      {"/job_id", "a/b"},
      {"/job_id", ""},
      {"/workers", nlohmann::json::array()},
      {"/workers/1/local_rank", 0},
      {"/workers/0/argv", nlohmann::json::array()},
      {"/workers/0/cpus/0", -1},
      {"/workers/0/memory_nodes/0", kMaxMemoryNodes},
      {"/workers/0/memory_nodes", nlohmann::json::array()},
      {"/stop/signal", 0},
      {"/stop/grace", -1},
      {"/restart/max_restarts", -1},
      {"/console/foreground", true},
      {"/env", {{"A=B", "c"}}},
      {"/stop/requeue_exit_code", 256},
      {"/node_id", "a b"},
      {"/instance", "0123456789abcdef"},
      {"/instance", "0123456789abcdef0123456789ABCDEF"},
      {"/owner/on_loss", 1},  // without a folder and a token
      {"/hang/mode", 2},      // without a time
      {"/log/rotate_bytes", 4095},
      {"/log/keep", 0},
      {"/log/keep", 1001},
  };
  for (const auto& [pointer, value] : cases) {
    const auto result = with(pointer, value);
    ASSERT_FALSE(result.has_value()) << pointer;
    EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument) << pointer;
  }
}

}  // namespace
}  // namespace accel::supervisor::job_spec_test
