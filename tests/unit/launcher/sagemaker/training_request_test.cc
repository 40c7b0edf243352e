#include "launcher/start/sagemaker/training_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/start/sagemaker/hyperparameters.h"
#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::training_request_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Json = nlohmann::json;

TEST(Hyperparameters, ValuesAreTyped) {
  EXPECT_EQ(or_throw(hyperparameters_of({"--model_name_or_path",
                                         "bert",
                                         "--do_train",
                                         "False",
                                         "--epochs",
                                         "3",
                                         "--learning-rate",
                                         "5e-5",
                                         "--max_steps=50.5",
                                         "--whole",
                                         "3.0",
                                         "--word",
                                         "true"})),
            Json({{"model_name_or_path", "bert"},
                  {"do_train", false},
                  {"epochs", 3},
                  {"learning_rate", 5e-5},
                  {"max_steps", 50.5},
                  {"whole", 3},
                  {"word", "true"}}));
}

TEST(Hyperparameters, WhatCannotBeHandedOnIsRefused) {
  const auto message = [](const std::vector<std::string>& arguments) {
    const auto all = hyperparameters_of(arguments);
    if (all) throw std::logic_error("it was taken");
    EXPECT_FALSE(all.error().remedy().empty());
    return all.error().message();
  };

  EXPECT_THAT(message({"--do_train", "--do_test", "False"}),
              AllOf(HasSubstr("store_true"), HasSubstr("--do_train has no value")));
  EXPECT_THAT(message({"--epochs", "3", "--do_train"}), HasSubstr("--do_train has no value"));
  EXPECT_THAT(message({"train", "--epochs", "3"}), HasSubstr("'train' follows no flag"));
  EXPECT_THAT(message({"--a", "1", "2"}), HasSubstr("'2' follows no flag"));
  EXPECT_THAT(message({"--a", "1", "--a=2"}), HasSubstr("--a is given twice"));
}

TrainingJob job() {
  TrainingJob job;
  job.config.instance_type = "ml.p3.2xlarge";
  job.config.role = "my_role";
  job.script = "code/train.py";
  job.arguments = {"--epochs", "3", "--name", "bert"};
  job.variables = {{"ACCELERATE_MIXED_PRECISION", "fp16"}};
  job.suffix = "7-ab";
  return job;
}

TEST(TrainingRequest, SaysWhatTheEstimatorOfThePeerWouldSay) {
  const TrainingRequest request = or_throw(make_training_request(job(), {.id = "123"}));
  const Json& json = request.json;

  EXPECT_EQ(json["TrainingJobName"], "accelerate-sagemaker-1-7-ab");
  EXPECT_EQ(json["RoleArn"], "arn:aws:iam::123:role/my_role");
  EXPECT_EQ(json["HyperParameters"]["epochs"], "3");
  EXPECT_EQ(json["HyperParameters"]["name"], "\"bert\"");
  EXPECT_EQ(json["HyperParameters"]["sagemaker_program"], "\"train.py\"");
  EXPECT_EQ(json["Environment"],
            Json({{"ACCELERATE_MIXED_PRECISION", "fp16"},
                  {"ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE", "NO"},
                  {"ACCELERATE_USE_SAGEMAKER", "true"}}));
  EXPECT_EQ(
      json["ResourceConfig"],
      Json({{"InstanceType", "ml.p3.2xlarge"}, {"InstanceCount", 1}, {"VolumeSizeInGB", 30}}));
  EXPECT_THAT(json["AlgorithmSpecification"]["TrainingImage"].get<std::string>(),
              HasSubstr("us-east-1.amazonaws.com/huggingface-pytorch-training:1.10.2-"));
  EXPECT_EQ(request.source_folder, "code");
  EXPECT_EQ(request.source_location,
            "s3://sagemaker-us-east-1-123/accelerate-sagemaker-1-7-ab/source/sourcedir.tar.gz");
  EXPECT_FALSE(json.contains("InputDataConfig"));
}

TEST(TrainingRequest, FilesOfInputsAndMetricsHaveAHeadline) {
  TrainingJob full = job();
  full.inputs = "channel\tlocation\ntrain\ts3://b/train\r\ntest\ts3://b/test";
  full.metrics = "name\tregex\nloss\tloss=(.*)\n";
  const TrainingRequest request = or_throw(make_training_request(full, {}));

  EXPECT_EQ(request.json["InputDataConfig"].size(), 2U);
  EXPECT_EQ(request.json["InputDataConfig"][1]["ChannelName"], "test");
  EXPECT_EQ(request.json["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"],
            "s3://b/train");
  EXPECT_EQ(request.json["AlgorithmSpecification"]["MetricDefinitions"],
            Json::array({{{"Name", "loss"}, {"Regex", "loss=(.*)"}}}));

  full.inputs = "channel\tlocation\ntrain s3://b/train\n";
  full.config.inputs_file = "I";
  EXPECT_THAT(make_training_request(full, {}).error().message(), HasSubstr("I:2: "));
}

TEST(TrainingRequest, AdditionalArgumentsBeatTheOthers) {
  const auto entry = [](const char* key, auto value) {
    return ConfigEntry{key, 0, {.data = value}};
  };
  TrainingJob full = job();
  full.config.additional_args = {
      entry("max_run", std::int64_t{60}),
      entry("environment", ConfigValue::Map{entry("KEY", std::string("v"))}),
      entry("subnets", std::int64_t{1})};
  const TrainingRequest request = or_throw(make_training_request(full, {}));

  EXPECT_EQ(request.json["StoppingCondition"]["MaxRuntimeInSeconds"], 60);
  EXPECT_EQ(request.json["Environment"]["KEY"], "v");
  EXPECT_EQ(request.json["Environment"]["ACCELERATE_USE_SAGEMAKER"], "true");
  EXPECT_THAT(request.notices, ElementsAre("additional_args has no effect for subnets"));
}

TEST(TrainingRequest, WhatCannotBeSentIsRefused) {
  const auto refused = [](auto change) {
    TrainingJob changed = job();
    change(changed);
    const auto request = make_training_request(changed, {});
    if (request) throw std::logic_error("it was made");
    EXPECT_FALSE(request.error().remedy().empty());
    return request.error().message();
  };

  EXPECT_EQ(refused([](TrainingJob& job) { job.script = "code/run.sh"; }),
            "Your training script should be a python script and not \"run.sh\"");
  EXPECT_THAT(refused([](TrainingJob& job) { job.config.pytorch_version = "2.1"; }),
              HasSubstr("PyTorch 2.1"));
  EXPECT_THAT(refused([](TrainingJob& job) { job.config.region = "cn-north-1"; }),
              HasSubstr("cn-north-1"));
}

TEST(TrainingRequest, BytesThatAreNoTextAreNamed) {
  TrainingJob bytes = job();
  bytes.arguments = {"--name", "a\xff"};

  const auto request = make_training_request(bytes, {});

  ASSERT_FALSE(request);
  EXPECT_THAT(request.error().message(), HasSubstr("an argument is not UTF-8: a?"));
  bytes.arguments = {"--name", "gr\xc3\xbc\xc3\x9f"};
  EXPECT_TRUE(make_training_request(bytes, {}));
}

class SageMakerPlan : public test::LaunchPlanFixture {
 protected:
  Words words(Words more = {}) {
    Words words = file(
        "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: DATA_PARALLEL\nmixed_precision: "
        "bf16\n"
        "ec2_instance_type: ml.p4dn.24xlarge\niam_role_name: arn:aws:iam::1:role/r\nnum_machines: "
        "2\n");
    words.insert(words.end(), more.begin(), more.end());
    words.push_back(script_);
    return words;
  }
};

TEST_F(SageMakerPlan, TheWorkersVariablesAreSent) {
  host_.environment["AWS_PROFILE"] = "mine";
  const LaunchPlan plan =
      or_throw(resolve_launch(words({"--dynamo_backend", "inductor", "--debug"}), host_));

  const auto& submission = std::get<Submission>(plan.start);
  EXPECT_TRUE(submission.is_printed_only);
  EXPECT_EQ(submission.environment.at("AWS_DEFAULT_REGION"), "us-east-1");
  const Json json = or_throw(make_training_request(submission.job, {})).json;
  EXPECT_EQ(json["Environment"]["ACCELERATE_MIXED_PRECISION"], "bf16");
  EXPECT_EQ(json["Environment"]["ACCELERATE_DYNAMO_BACKEND"], "INDUCTOR");
  EXPECT_EQ(json["Environment"]["ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE"], "DATA_PARALLEL");
  EXPECT_EQ(json["HyperParameters"]["sagemaker_distributed_dataparallel_enabled"], "true");
  EXPECT_EQ(json["RoleArn"], "arn:aws:iam::1:role/r");
  EXPECT_EQ(json["ResourceConfig"]["InstanceCount"], 2);
  EXPECT_TRUE(plan.spec.workers.empty());
}

TEST_F(SageMakerPlan, KeysComeFromTheCommandLineOrTheEnvironment) {
  const auto refused = resolve_launch(words(), host_);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("aws_access_key_id and aws_secret_access_key"));

  const LaunchPlan plan = or_throw(
      resolve_launch(words({"--aws_access_key_id", "a", "--aws_secret_access_key", "b"}), host_));
  EXPECT_EQ(std::get<Submission>(plan.start).environment.at("AWS_SECRET_ACCESS_KEY"), "b");
}

TEST_F(SageMakerPlan, OtherWaysToStartWorkersExcludeIt) {
  host_.environment["AWS_PROFILE"] = "mine";
  const auto message = [&](Words more) {
    return resolve_launch(words(more), host_).error().message();
  };

  EXPECT_THAT(message({"--use_fsdp"}), HasSubstr("--use_fsdp cannot be used"));
  EXPECT_THAT(message({"--tpu"}), HasSubstr("--tpu cannot be used"));
  EXPECT_THAT(message({"--mpirun_hostfile", "H"}), HasSubstr("--mpirun_hostfile cannot be used"));
  EXPECT_THAT(message({"--module"}), HasSubstr("SageMaker requires a python training script file"));
}

}  // namespace
}  // namespace accel::launcher::training_request_test
