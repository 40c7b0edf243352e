#include "agent/config/agent_config.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <yaml-cpp/yaml.h>

#include "runtime/supervisor/kernel/tcp_endpoint.h"

namespace accel::agent::agent_config_test {
namespace {

using testing::HasSubstr;

std::string source_file(const std::string& name) {
  const char* root = std::getenv("ACCEL_SOURCE_DIR");
  return std::string(root == nullptr ? "." : root) + "/" + name;
}

TEST(AgentConfig, TheExampleFileHoldsEveryKeyWithItsDefault) {
  const YAML::Node file = YAML::LoadFile(source_file("configs/agent.yaml"));
  for (const AgentConfigKey& key : agent_config_keys()) {
    EXPECT_TRUE(file[std::string(key.name)].IsDefined())
        << key.name << " is missing in configs/agent.yaml";
  }
  EXPECT_EQ(file.size(), agent_config_keys().size());
  const auto config = load_agent_config(source_file("configs/agent.yaml"));
  ASSERT_TRUE(config) << config.error().what();
  const AgentConfig defaults;
  EXPECT_EQ(config->state_dir, defaults.state_dir);
  EXPECT_EQ(config->runtime_dir, defaults.runtime_dir);
  EXPECT_EQ(config->max_jobs, defaults.max_jobs);
  EXPECT_EQ(config->max_cluster_jobs, defaults.max_cluster_jobs);
  EXPECT_EQ(config->max_cluster_jobs_each, defaults.max_cluster_jobs_each);
  EXPECT_EQ(config->max_connections, defaults.max_connections);
  EXPECT_EQ(config->max_connections_each, defaults.max_connections_each);
  EXPECT_EQ(config->keep_finished, defaults.keep_finished);
  EXPECT_EQ(config->drain_grace, defaults.drain_grace);
  EXPECT_EQ(config->hold, defaults.hold);
  EXPECT_EQ(config->adopts_damaged, defaults.adopts_damaged);
  EXPECT_EQ(config->beat_every, defaults.beat_every);
  EXPECT_EQ(config->allow_root, defaults.allow_root);
  EXPECT_TRUE(config->listen.empty());
  EXPECT_TRUE(config->remote_users.empty());
}

TEST(AgentConfig, EveryFaultOfAFileIsNamedWithItsLine) {
  const auto config = parse_agent_config("max_jobs: many\nallow_rot: true\nlabels: 3\n", "a.yaml");
  ASSERT_FALSE(config);
  const std::string text = config.error().render();
  EXPECT_THAT(text, HasSubstr("a.yaml:2: allow_rot is not known"));
  EXPECT_THAT(text, HasSubstr("a.yaml:1: max_jobs must be a whole number from 1 to 4096"));
  EXPECT_THAT(text, HasSubstr("a.yaml:3: labels must be a mapping"));
}

TEST(AgentConfig, OneAddressMayNotHaveMoreConnectionsThanThereAre) {
  AgentConfig config;
  config.max_connections = 100;
  config.max_connections_each = 101;
  const auto checked = complete_agent_config(config);
  ASSERT_FALSE(checked);
  EXPECT_THAT(checked.error().message(), HasSubstr("max_connections_each is 101"));
  EXPECT_THAT(checked.error().message(), HasSubstr("only 100"));

  config.max_connections_each = 100;
  EXPECT_TRUE(complete_agent_config(config));
}

TEST(AgentConfig, InsecureIsRefusedBeyondLoopback) {
  AgentConfig config;
  config.insecure = true;
  for (const char* address : {"0.0.0.0:1", "10.1.2.3:29400", "[::]:1"}) {
    config.listen = address;
    EXPECT_FALSE(complete_agent_config(config)) << address;
  }
  for (const char* address : {"127.0.0.1:0", "127.8.8.8:1", "[::1]:29400"}) {
    config.listen = address;
    EXPECT_TRUE(complete_agent_config(config)) << address;
  }
}

TEST(AgentConfig, TcpWithoutCertificatesIsRefused) {
  AgentConfig config;
  config.listen = "127.0.0.1:1";
  const auto completed = complete_agent_config(config);
  ASSERT_FALSE(completed);
  EXPECT_THAT(completed.error().remedy(), HasSubstr("init-tls"));
}

TEST(AgentConfig, ACoordinatorNeedsListenAndCertificates) {
  AgentConfig config;
  config.coordinator = "10.0.0.1:29400";
  auto completed = complete_agent_config(config);
  ASSERT_FALSE(completed);
  EXPECT_THAT(completed.error().message(), HasSubstr("coordinator needs listen"));

  config.listen = "10.0.0.2:29400";
  completed = complete_agent_config(config);
  ASSERT_FALSE(completed);
  EXPECT_THAT(completed.error().message(), HasSubstr("tls.authority"));

  config.tls = {"ca.pem", "cert.pem", "key.pem"};
  EXPECT_TRUE(complete_agent_config(config));
  config.coordinator = "10.0.0.1:0";
  EXPECT_FALSE(complete_agent_config(config));
  config.coordinator = "gpu-01:29400";
  EXPECT_FALSE(complete_agent_config(config));
}

TEST(AgentConfig, ACoordinatorWithoutCertificatesNeedsLoopbackATokenAndNoRoot) {
  AgentConfig config;
  config.insecure = true;
  config.listen = "127.0.0.1:29401";
  config.coordinator = "10.0.0.1:29400";
  EXPECT_FALSE(complete_agent_config(config));
  config.coordinator = "127.0.0.1:29400";
  EXPECT_FALSE(complete_agent_config(config));
  config.token_file = "/etc/accel/token";
  EXPECT_EQ(complete_agent_config(config).has_value(), ::geteuid() != 0);
}

AgentConfig config_with_etcd() {
  AgentConfig config;
  config.listen = "10.0.0.7:29400";
  config.tls = {"ca", "cert", "key"};
  config.etcd.endpoints = {"10.0.0.1:2379", "etcd-2.example:2379"};
  config.etcd.tls.authority = "etcd-ca";
  return config;
}

TEST(AgentConfig, WithEtcdAnAgentFindsTheCoordinatorByWayOfItself) {
  const auto config = complete_agent_config(config_with_etcd());
  ASSERT_TRUE(config) << config.error().what();
  EXPECT_EQ(config->coordinator, "10.0.0.7:29400");
}

TEST(AgentConfig, EtcdNeedsTlsBeyondLoopback) {
  AgentConfig config = config_with_etcd();
  config.etcd.tls.authority = "";
  const auto refused = complete_agent_config(config);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("10.0.0.1:2379"));
  config.etcd.endpoints = {"127.0.0.1:2379"};
  EXPECT_TRUE(complete_agent_config(config));
}

TEST(AgentConfig, EtcdNeedsWholeEndpointsPairsOfFilesAndAnAddressForTheOthers) {
  for (const char* bad :
       {"", ":1", "host", "host:", "host:0", "host:70000", "http://10.0.0.1:2379"}) {
    AgentConfig config = config_with_etcd();
    config.etcd.endpoints = {bad};
    EXPECT_FALSE(complete_agent_config(config)) << bad;
  }
  for (const char* bad : {"", "0.0.0.0:29400", "[::]:29400", "10.0.0.7:0"}) {
    AgentConfig config = config_with_etcd();
    config.listen = bad;
    EXPECT_FALSE(complete_agent_config(config)) << bad;
  }
  AgentConfig config = config_with_etcd();
  config.etcd.tls.certificate = "cert";
  EXPECT_FALSE(complete_agent_config(config));
}

TEST(AgentConfig, AnUnknownKeyOfEtcdIsNamed) {
  const auto config = parse_agent_config("etcd:\n  endpoint: x\n", "a.yaml");
  ASSERT_FALSE(config);
  EXPECT_THAT(config.error().render(), HasSubstr("a.yaml:2: etcd.endpoint is not known"));
}

TEST(AgentConfig, AnAddressIsNumericWithAPort) {
  for (const char* bad : {"",
                          "localhost:1",
                          "1.2.3.4",
                          "1.2.3.4:",
                          "1.2.3.4:70000",
                          "1.2.3.4:1x",
                          "::1:5",
                          "[1.2.3.4]:5",
                          "[fe80::1%lo]:5",
                          "[::1]"}) {
    EXPECT_FALSE(supervisor::parse_tcp_endpoint(bad)) << bad;
  }
  const auto v6 = supervisor::parse_tcp_endpoint("[::1]:8");
  ASSERT_TRUE(v6);
  EXPECT_EQ(v6->address().to_string(), "::1");
  EXPECT_EQ(v6->port(), 8);
}

TEST(AgentConfig, AnIdIsNoPath) {
  for (const char* bad : {"", ".", "..", "a/b", "a b", "a\n", "\xff"})
    EXPECT_FALSE(is_valid_id(bad)) << bad;
  EXPECT_FALSE(is_valid_id(std::string(65, 'a')));
  EXPECT_TRUE(is_valid_id("Job_1.a-b"));
}

}  // namespace
}  // namespace accel::agent::agent_config_test
