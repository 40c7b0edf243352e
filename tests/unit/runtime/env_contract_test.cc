#include <map>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/env_contract.h>

namespace accel::env_contract_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

EnvLookup lookup_in(EnvMap env) {
  return [env = std::move(env)](std::string_view name) -> std::optional<std::string> {
    const auto found = env.find(std::string(name));
    if (found == env.end()) return std::nullopt;
    return found->second;
  };
}

TEST(EnvContract, NothingSetMeansOneProcess) {
  const WorkerIdentity identity = or_throw(parse_worker_env(lookup_in({})));

  EXPECT_EQ(identity.global_rank, 0);
  EXPECT_EQ(identity.world_size, 1);
  EXPECT_EQ(identity.local_world_size, 1);
  EXPECT_EQ(identity.master_port, 29500);
  EXPECT_FALSE(identity.use_agent_store);
}

TEST(EnvContract, WhatIsRenderedIsReadBack) {
  WorkerIdentity written;
  written.global_rank = 5;
  written.world_size = 8;
  written.local_rank = 1;
  written.local_world_size = 4;
  written.node_rank = 1;
  written.num_nodes = 2;
  written.restart_count = 3;
  written.max_restarts = 7;
  written.role = "trainer";
  written.run_id = "run-1";
  written.master_addr = "10.0.0.1";
  written.master_port = 1234;
  written.error_file = "/logs/error.json";
  written.channel = "1:7:8";
  written.job_id = "job-a";
  written.instance = "0123456789abcdef0123456789abcdef";

  const WorkerIdentity read =
      or_throw(parse_worker_env(lookup_in(render_worker_env(written, EnvMode::kDistributed))));

  EXPECT_EQ(render_worker_env(read, EnvMode::kDistributed),
            render_worker_env(written, EnvMode::kDistributed));
  EXPECT_EQ(read.global_rank, 5);
  EXPECT_EQ(read.restart_count, 3);
  EXPECT_EQ(read.channel, "1:7:8");
  EXPECT_EQ(read.instance, written.instance);
}

TEST(EnvContract, TheSimpleModeHasNoRanks) {
  const EnvMap env = render_worker_env({}, EnvMode::kSimple);

  EXPECT_THAT(env, IsEmpty());
}

TEST(EnvContract, TheSimpleModeKeepsTheRestartCount) {
  WorkerIdentity identity;
  identity.job_id = "job-a";
  identity.restart_count = 2;

  const EnvMap env = render_worker_env(identity, EnvMode::kSimple);

  EXPECT_EQ(or_throw(parse_worker_env(lookup_in(env))).restart_count, 2);
}

TEST(EnvContract, DistributedSetHasTheNamesOfTorchrun) {
  const EnvMap env = render_worker_env({}, EnvMode::kDistributed);

  for (const char* name : {"RANK",
                           "LOCAL_RANK",
                           "WORLD_SIZE",
                           "LOCAL_WORLD_SIZE",
                           "GROUP_RANK",
                           "GROUP_WORLD_SIZE",
                           "ROLE_RANK",
                           "ROLE_WORLD_SIZE",
                           "ROLE_NAME",
                           "MASTER_ADDR",
                           "MASTER_PORT",
                           "TORCHELASTIC_RESTART_COUNT",
                           "TORCHELASTIC_MAX_RESTARTS",
                           "TORCHELASTIC_RUN_ID",
                           "TORCHELASTIC_USE_AGENT_STORE"}) {
    EXPECT_EQ(env.count(name), 1u) << name;
  }
  EXPECT_EQ(env.at("TORCHELASTIC_USE_AGENT_STORE"), "True");
}

TEST(EnvContract, EveryRenderedVariableIsDocumented) {
  WorkerIdentity identity;
  identity.job_id = identity.channel = identity.error_file = "x";
  std::set<std::string_view> documented;
  for (const EnvVariable& variable : env_variables()) documented.insert(variable.name);

  for (const auto& [name, value] : render_worker_env(identity, EnvMode::kDistributed)) {
    EXPECT_EQ(documented.count(name), 1u) << name;
  }
}

TEST(EnvContract, RanksOfMpiAreUnderstood) {
  const WorkerIdentity identity =
      or_throw(parse_worker_env(lookup_in({{"OMPI_COMM_WORLD_RANK", "3"},
                                           {"OMPI_COMM_WORLD_SIZE", "4"},
                                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                           {"MASTER_ADDR", "node0"}})));

  EXPECT_EQ(identity.global_rank, 3);
  EXPECT_EQ(identity.local_rank, 1);
  EXPECT_EQ(identity.num_nodes, 2);
  EXPECT_EQ(identity.node_rank, 1);
}

TEST(EnvContract, RankWinsOverMpiAndANegativeOneIsSkipped) {
  const EnvMap mpi = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};
  EnvMap set = mpi;
  set.insert({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  EnvMap unset = mpi;
  unset.insert({{"RANK", "-1"}, {"LOCAL_RANK", "-1"}});

  EXPECT_EQ(or_throw(parse_worker_env(lookup_in(set))).global_rank, 0);
  EXPECT_EQ(or_throw(parse_worker_env(lookup_in(unset))).global_rank, 1);
}

struct BadEnv {
  const char* name;
  EnvMap env;
  const char* expected;  // part of the message
};

class EnvContractHostile : public ::testing::TestWithParam<BadEnv> {};

TEST_P(EnvContractHostile, IsAnErrorThatNamesTheVariable) {
  const Result<WorkerIdentity> identity = parse_worker_env(lookup_in(GetParam().env));

  ASSERT_FALSE(identity);
  EXPECT_EQ(identity.error().code(), ErrorCode::kEnvInvalid);
  EXPECT_THAT(identity.error().message(), HasSubstr(GetParam().expected));
  EXPECT_THAT(identity.error().remedy(), Not(IsEmpty()));
}

INSTANTIATE_TEST_SUITE_P(
    Values,
    EnvContractHostile,
    ::testing::Values(
        BadEnv{"RankIsText",
               {{"RANK", "first"}, {"WORLD_SIZE", "2"}},
               "RANK is 'first', expected a whole number"},
        BadEnv{"RankTooBig",
               {{"RANK", "2"}, {"WORLD_SIZE", "2"}},
               "RANK is '2', expected less than WORLD_SIZE (2)"},
        BadEnv{"RankWithoutWorldSize", {{"RANK", "1"}}, "WORLD_SIZE (1, as it is not set)"},
        BadEnv{"WorldSizeZero",
               {{"RANK", "0"}, {"WORLD_SIZE", "0"}},
               "WORLD_SIZE is '0', expected at least 1"},
        BadEnv{"WorldSizeWithoutRank", {{"WORLD_SIZE", "4"}}, "no rank is set"},
        BadEnv{"NumberOverflows",
               {{"RANK", "99999999999"}, {"WORLD_SIZE", "2"}},
               "RANK is '99999999999'"},
        BadEnv{"NumberWithTail", {{"RANK", "0x"}, {"WORLD_SIZE", "2"}}, "RANK is '0x'"},
        BadEnv{"LocalRankTooBig",
               {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}},
               "LOCAL_RANK is '2', expected less than LOCAL_WORLD_SIZE (2)"},
        BadEnv{"LocalSizeTooBig",
               {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "3"}},
               "LOCAL_WORLD_SIZE is '3'"},
        BadEnv{"PortZero",
               {{"MASTER_PORT", "0"}},
               "MASTER_PORT is '0', expected a port from 1 to 65535"},
        BadEnv{"PortTooBig", {{"MASTER_PORT", "65536"}}, "MASTER_PORT is '65536'"},
        BadEnv{"ManyMachinesWithoutAddress",
               {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}},
               "MASTER_ADDR is not set"}),
    [](const auto& param_info) { return param_info.param.name; });

TEST(EnvBool, AcceptsTheFormsOfPython) {
  for (const char* yes : {"1", "True", "TRUE", "yes", "Y", "on", "t"}) {
    EXPECT_TRUE(or_throw(parse_env_bool("X", yes))) << yes;
  }
  for (const char* no : {"0", "False", "no", "N", "off", "f"}) {
    EXPECT_FALSE(or_throw(parse_env_bool("X", no))) << no;
  }
}

TEST(EnvBool, AnythingElseIsAnErrorWithTheName) {
  const Result<bool> value = parse_env_bool("ACCELERATE_USE_CPU", "maybe");

  ASSERT_FALSE(value);
  EXPECT_THAT(value.error().message(), AllOf(HasSubstr("ACCELERATE_USE_CPU"), HasSubstr("maybe")));
}

}  // namespace
}  // namespace accel::env_contract_test
