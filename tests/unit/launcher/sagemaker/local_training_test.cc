// The files of SageMaker's local mode. That docker compose is started on them: tests/peer/sagemaker_request.py.

#include "launcher/start/sagemaker/local_training.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

namespace accel::launcher::local_training_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

TrainingJob local_job(int num_machines = 1) {
  TrainingJob job;
  job.config.instance_type = "local";
  job.config.image = "123.dkr.ecr.eu-west-1.amazonaws.com/image:1";
  job.config.num_machines = num_machines;
  job.script = "code/train.py";
  job.arguments = {"--epochs", "3"};
  job.variables = {{"ACCELERATE_MIXED_PRECISION", "a$b"}};
  job.suffix = "x1";
  return job;
}

Result<LocalTraining> training_of(const TrainingJob& job, const EnvMap& environment = {}) {
  return make_local_training(
      or_throw(make_training_request(job, {})), "/jobs/one", "/home/me/code", environment);
}

Json file(const LocalTraining& training, const std::string& name) {
  return Json::parse(training.files.at("/jobs/one/" + name));
}

// Where a service of the compose file sees a folder of this machine.
std::string target_of(const Json& service, const std::string& source) {
  for (const Json& volume : service.at("volumes"))
    if (volume.at("source") == source) return volume.at("target");
  return "";
}

TEST(LocalTraining, AContainerGetsTheScriptsFolderAndTheFilesOfItsToolkit) {
  const LocalTraining training = or_throw(training_of(local_job()));
  const Json service = file(training, "docker-compose.json")["services"]["algo-1"];

  EXPECT_EQ(service["image"], "123.dkr.ecr.eu-west-1.amazonaws.com/image:1");
  EXPECT_EQ(service["command"], "train");
  EXPECT_EQ(target_of(service, "/home/me/code"), "/opt/ml/code");
  EXPECT_EQ(target_of(service, "/jobs/one/algo-1/config"), "/opt/ml/input/config");
  EXPECT_EQ(target_of(service, "/jobs/one/model"), "/opt/ml/model");
  EXPECT_EQ(target_of(service, "/jobs/one/output/algo-1"), "/opt/ml/output");
  const Json parameters = file(training, "algo-1/config/hyperparameters.json");
  EXPECT_EQ(parameters["epochs"], "3");
  EXPECT_EQ(parameters["sagemaker_submit_directory"], "\"/opt/ml/code\"");
  EXPECT_EQ(parameters["sagemaker_program"], "\"train.py\"");
  for (const Json& volume : service["volumes"]) {
    const std::string source = volume.at("source");
    EXPECT_TRUE(source == "/home/me/code" ||
                std::ranges::count_if(training.folders,
                                      [&](auto& made) { return made.starts_with(source); }) > 0)
        << source << " would be missing";
  }
}

TEST(LocalTraining, EachHostKnowsItselfAndTheOthers) {
  const LocalTraining training = or_throw(training_of(local_job(2)));
  const Json services = file(training, "docker-compose.json")["services"];

  ASSERT_EQ(services.size(), 2U);
  EXPECT_EQ(services["algo-2"]["hostname"], "algo-2");
  const Json second = file(training, "algo-2/config/resourceconfig.json");
  EXPECT_EQ(second["current_host"], "algo-2");
  EXPECT_THAT(second["hosts"], ElementsAre("algo-1", "algo-2"));
}

TEST(LocalTraining, SecretsStandInNoFile) {
  const LocalTraining training =
      or_throw(training_of(local_job(), {{"AWS_SECRET_ACCESS_KEY", "hush"}, {"HOME", "/h"}}));

  const Json service = file(training, "docker-compose.json")["services"]["algo-1"];
  EXPECT_THAT(service["environment"], Contains("AWS_SECRET_ACCESS_KEY"));
  EXPECT_THAT(service["environment"], Not(Contains("AWS_ACCESS_KEY_ID")));
  for (const auto& [path, text] : training.files) EXPECT_THAT(text, Not(HasSubstr("hush"))) << path;
}

TEST(LocalTraining, ADollarStaysOne) {
  const LocalTraining training = or_throw(training_of(local_job()));

  EXPECT_THAT(file(training, "docker-compose.json")["services"]["algo-1"]["environment"],
              Contains("ACCELERATE_MIXED_PRECISION=a$$b"));
}

TEST(LocalTraining, DataAreFetchedFromS3AndMountedFromHere) {
  TrainingJob job = local_job();
  job.inputs = "channel_name\tdata_location\ntrain\ts3://b/train\ntest\tfile:///data/test\n";

  const LocalTraining training = or_throw(training_of(job));

  const Json service = file(training, "docker-compose.json")["services"]["algo-1"];
  EXPECT_EQ(target_of(service, "/data/test"), "/opt/ml/input/data/test");
  EXPECT_EQ(target_of(service, "/jobs/one/data/train"), "/opt/ml/input/data/train");
  ASSERT_EQ(training.fetched.size(), 1U);
  EXPECT_EQ(training.fetched[0].location, "s3://b/train");
  EXPECT_EQ(training.fetched[0].folder, "/jobs/one/data/train");
  EXPECT_TRUE(file(training, "algo-1/config/inputdataconfig.json").contains("test"));
}

TEST(LocalTraining, GpusAreGivenToTheOneContainerThatMayHaveThem) {
  TrainingJob job = local_job();
  job.config.instance_type = "local_gpu";

  const LocalTraining training = or_throw(training_of(job));

  const Json service = file(training, "docker-compose.json")["services"]["algo-1"];
  EXPECT_EQ(service["deploy"]["resources"]["reservations"]["devices"][0]["count"], "all");
  EXPECT_FALSE(file(or_throw(training_of(local_job())), "docker-compose.json")["services"]["algo-1"]
                   .contains("deploy"));
}

TEST(LocalTraining, ARegistryOfAwsWantsALoginAndOthersDoNot) {
  const LocalTraining training = or_throw(training_of(local_job()));
  EXPECT_EQ(training.registry, "123.dkr.ecr.eu-west-1.amazonaws.com");
  EXPECT_EQ(training.registry_region, "eu-west-1");  // not the configuration's
  TrainingJob job = local_job();
  job.config.image = "registry.local/image:1";
  EXPECT_EQ(or_throw(training_of(job)).registry, "");
}

TEST(LocalTraining, WhatCannotRunHereIsRefused) {
  const auto refused = [](auto change) {
    TrainingJob job = local_job(2);
    change(job);
    const auto training = training_of(job);
    if (training) return std::string("it was made");
    EXPECT_FALSE(training.error().remedy().empty());
    return training.error().message();
  };

  EXPECT_THAT(refused([](TrainingJob& job) { job.config.instance_type = "local_gpu"; }),
              HasSubstr("local_gpu on 2 machines"));
  EXPECT_THAT(refused([](TrainingJob& job) { job.config.distributed_type = "DATA_PARALLEL"; }),
              HasSubstr("no local mode"));
  EXPECT_THAT(refused([](TrainingJob& job) { job.inputs = "n\tl\ntrain\t/data\n"; }),
              AllOf(HasSubstr("'train'"), HasSubstr("'/data'")));
  EXPECT_THAT(refused([](TrainingJob& job) { job.inputs = "n\tl\n../train\ts3://b\n"; }),
              HasSubstr("'../train'"));
}

}  // namespace
}  // namespace accel::launcher::local_training_test
