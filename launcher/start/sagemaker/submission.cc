#include "launcher/start/sagemaker/submission.h"

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include <unistd.h>

#include "launcher/start/sagemaker/local_training.h"
#include "launcher/system/program_output.h"
#include "launcher/text/shell_word.h"
#include "launcher/workers/script.h"
#include "runtime/user_folders.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// Removes its folder with all that is in it.
class PackedFolder {
 public:
  [[nodiscard]] static Result<PackedFolder> create(const EnvMap& environment) {
    std::string name = temporary_folder(environment) + "/accel-sagemaker-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr)
      return Error(ErrorCode::kFileIo, "cannot make " + name + ": " + errno_text(errno));
    return PackedFolder(name);
  }
  ~PackedFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  PackedFolder(PackedFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  PackedFolder& operator=(PackedFolder&&) = delete;
  [[nodiscard]] std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  explicit PackedFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// For requests, and for what they upload.
constexpr std::chrono::minutes kRequestLimit{30};
// For data, which may be terabytes.
constexpr std::chrono::hours kDataLimit{24 * 7};

class Aws {
 public:
  explicit Aws(const EnvMap& environment) : environment_(environment) {}

  [[nodiscard]] const EnvMap& environment() const { return environment_; }

  // What it prints, without the newline at the end.
  [[nodiscard]] Result<std::string> run(const Words& words,
                                        std::chrono::milliseconds limit = kRequestLimit) const {
    auto output = run_program(words, environment_, limit);
    if (!output && words.front() == "aws" && find_on_path("aws", environment_).empty()) {
      return Error(ErrorCode::kExecFailed,
                   output.error().message(),
                   "install the AWS CLI (https://aws.amazon.com/cli), or look at the request with "
                   "--debug");
    }
    if (!output) return std::move(output).error();
    if (output->exit_code != 0) {
      return Error(
          ErrorCode::kExecFailed,
          "`" + shell_words(words) + "` ended with exit code " + std::to_string(output->exit_code),
          "its own words stand above; mend what they name");
    }
    while (output->out.ends_with('\n')) output->out.pop_back();
    return output->out;
  }

 private:
  const EnvMap& environment_;
};

Result<AwsAccount> ask_account(const Aws& aws, const SageMakerConfig& config) {
  AwsAccount account;
  auto id =
      aws.run({"aws", "sts", "get-caller-identity", "--query", "Account", "--output", "text"});
  if (!id) return std::move(id).error();
  account.id = *std::move(id);
  if (config.role.starts_with("arn:")) return account;
  auto role = aws.run({"aws",
                       "iam",
                       "get-role",
                       "--role-name",
                       config.role,
                       "--query",
                       "Role.Arn",
                       "--output",
                       "text"});
  if (!role) return std::move(role).error();
  account.role_arn = *std::move(role);
  return account;
}

Result<void> write_text(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return {};
  return Error(ErrorCode::kFileIo,
               "cannot write " + path + ": " + errno_text(errno),
               "make room; TMPDIR names the folder in which a script's folder is packed");
}

// Replaces this process, which has nothing more to do: the program's end is that of the launch. Returns only on an error.
Error become(const Words& words, const EnvMap& environment) {
  std::vector<std::string> variables = assignments_of(environment);
  Words copies = words;
  const std::string program = find_on_path(words.front(), environment);
  ::signal(SIGXFSZ, SIG_DFL);
  std::fflush(nullptr);
  ::execve(program.c_str(), pointers_to(copies).data(), pointers_to(variables).data());
  return Error(ErrorCode::kExecFailed, "cannot start " + program + ": " + errno_text(errno));
}

// Version 2 is a part of docker, version 1 a program of its own.
Result<Words> compose_words(const EnvMap& environment) {
  for (const Words& words : {Words{"docker", "compose"}, Words{"docker-compose"}}) {
    Words asked = words;
    asked.emplace_back("version");
    if (find_on_path(words.front(), environment).empty()) continue;
    if (const auto said = run_program(asked, environment); said && said->exit_code == 0)
      return words;
  }
  return Error(
      ErrorCode::kExecFailed,
      "there is no `docker compose` and no `docker-compose`, which SageMaker's local mode "
      "starts containers with",
      "install Docker with its compose plugin, or try the script with a configuration file of "
      "LOCAL_MACHINE");
}

// An image of ECR that is not here yet needs a login.
Result<void> log_in(const Aws& aws, const LocalTraining& training) {
  if (training.registry.empty()) return {};
  const auto present =
      run_program({"docker", "image", "inspect", training.image}, aws.environment());
  if (present && present->exit_code == 0) return {};
  constexpr const char* kLogIn =
      R"(word=$(aws ecr get-login-password --region "$1") && printf %s "$word" | docker login --username AWS --password-stdin "$2")";
  auto done = aws.run({"sh", "-c", kLogIn, "sh", training.registry_region, training.registry});
  return done ? Result<void>{} : Result<void>(std::move(done).error());
}

Result<void> make_files(const LocalTraining& training) {
  for (const std::string& folder : training.folders) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return Error(ErrorCode::kFileIo, "cannot make " + folder + ": " + error.message());
  }
  for (const auto& [path, text] : training.files)
    if (auto written = write_text(path, text); !written) return written;
  return {};
}

// A location is a folder or one object: `--recursive` of an object finds nothing, and is no error.
Result<void> fetch(const Aws& aws, const FetchedChannel& channel) {
  for (const Words& words :
       {Words{"aws", "s3", "cp", "--recursive", channel.location, channel.folder},
        Words{"aws", "s3", "cp", channel.location, channel.folder + "/"}}) {
    if (auto copied = aws.run(words, kDataLimit); !copied) return std::move(copied).error();
    std::error_code error;
    if (!fs::is_empty(channel.folder, error)) return {};
  }
  return Error(ErrorCode::kFileIo,
               "there is nothing at " + channel.location,
               "mend the line of sagemaker_inputs_file");
}

// Starts the containers. Returns only on an error.
Error train_here(const Submission& submission) {
  const auto request = make_training_request(submission.job, {});
  if (!request) return request.error();
  const Aws aws(submission.environment);
  auto training = make_local_training(*request,
                                      fs::absolute("sagemaker-local/" + request->job_name),
                                      fs::absolute(request->source_folder).lexically_normal(),
                                      aws.environment());
  if (!training) return std::move(training).error();
  auto words = compose_words(aws.environment());
  if (!words) return std::move(words).error();
  if (auto made = make_files(*training); !made) return std::move(made).error();
  for (const FetchedChannel& channel : training->fetched)
    if (auto fetched = fetch(aws, channel); !fetched) return std::move(fetched).error();
  if (auto done = log_in(aws, *training); !done) return std::move(done).error();
  std::printf("training job %s runs here; You can find your model data at: file://%s/model\n",
              request->job_name.c_str(),
              training->folder.c_str());
  for (const char* word : {"--file", training->compose_file.c_str(), "up"})
    words->emplace_back(word);
  words->insert(words->end(),
                {"--abort-on-container-exit", "--exit-code-from", training->first_host});
  return become(*words, aws.environment());
}

// Sends the script's folder and the request.
Result<void> create_job(const Aws& aws, const TrainingRequest& request) {
  const auto folder = PackedFolder::create(aws.environment());
  if (!folder) return folder.error();
  const std::string packed = folder->file("sourcedir.tar.gz");
  const std::string text = folder->file("request.json");
  if (auto written = write_text(text, request.json.dump(2)); !written) return written;
  for (const Words& words :
       {Words{"tar", "-czf", packed, "-C", request.source_folder, "."},
        Words{"aws", "s3", "cp", packed, request.source_location},
        Words{"aws", "sagemaker", "create-training-job", "--cli-input-json", "file://" + text}}) {
    if (auto done = aws.run(words); !done) return std::move(done).error();
  }
  return {};
}

// What is known about a job: its status, where its model is, why it failed, with tabs between them.
Result<std::string> describe_job(const Aws& aws, const std::string& name) {
  return aws.run({"aws",
                  "sagemaker",
                  "describe-training-job",
                  "--training-job-name",
                  name,
                  "--query",
                  "[TrainingJobStatus,ModelArtifacts.S3ModelArtifacts,FailureReason]",
                  "--output",
                  "text"});
}

// Its description at its end. `aws sagemaker wait` gives up after 180 looks, two minutes apart.
Result<std::string> wait_for_job(const Aws& aws, const std::string& name) {
  constexpr int kMostWaits = 120;  // of six hours each; a job may run for 28 days
  const Words wait = {
      "aws", "sagemaker", "wait", "training-job-completed-or-stopped", "--training-job-name", name};
  for (int waits = 1;; ++waits) {
    // It also ends with an error when the job failed; describing it says why.
    const auto waited = aws.run(wait);
    auto now = describe_job(aws, name);
    if (!now) return now;
    const std::string status = now->substr(0, now->find('\t'));
    if (status != "InProgress" && status != "Stopping") return now;
    if (waits < kMostWaits) continue;
    return Error(ErrorCode::kExecFailed,
                 "training job " + name + " is still " + status +
                     (waited ? "" : ": " + waited.error().message()),
                 "look at it with `aws sagemaker describe-training-job --training-job-name " +
                     name + "`; it goes on without this launcher");
  }
}

// 0 when it has completed.
Result<int> follow_job(const Aws& aws, const std::string& name) {
  std::printf(
      "training job %s has begun; to stop it: aws sagemaker stop-training-job "
      "--training-job-name %s\n",
      name.c_str(),
      name.c_str());
  std::fflush(stdout);
  const auto end = wait_for_job(aws, name);
  if (!end) return end.error();
  const std::string status = end->substr(0, end->find('\t'));
  if (status != "Completed") {
    return Error(ErrorCode::kWorkerFailed,
                 "training job " + name + " ended as " + *end,
                 "look at its output in CloudWatch, log group /aws/sagemaker/TrainingJobs");
  }
  const std::string rest = end->substr(std::min(end->size(), status.size() + 1));
  std::printf("You can find your model data at: %s\n", rest.substr(0, rest.find('\t')).c_str());
  return 0;
}

}  // namespace

Result<int> submit(const Submission& submission) {
  if (submission.is_printed_only) {
    const auto request = make_training_request(submission.job, {});
    if (!request) return request.error();
    std::printf("%s\n", request->json.dump(2).c_str());
    return 0;
  }
  if (is_local(submission.job.config)) return train_here(submission);
  const Aws aws(submission.environment);
  const auto account = ask_account(aws, submission.job.config);
  if (!account) return account.error();
  const auto request = make_training_request(submission.job, *account);
  if (!request) return request.error();
  if (auto created = create_job(aws, *request); !created) return std::move(created).error();
  return follow_job(aws, request->job_name);
}

}  // namespace accel::launcher
