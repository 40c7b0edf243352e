#include "launcher/start/sagemaker/submission.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include <unistd.h>

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

class Aws {
 public:
  explicit Aws(const EnvMap& environment) : environment_(environment) {}

  [[nodiscard]] const EnvMap& environment() const { return environment_; }

  // What it prints, without the newline at the end.
  [[nodiscard]] Result<std::string> run(const Words& words) const {
    auto output = run_program(words, environment_, kRequestLimit);
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
               "name a folder with room for the script's folder with TMPDIR");
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
  const Aws aws(submission.environment);
  const auto account = ask_account(aws, submission.job.config);
  if (!account) return account.error();
  const auto request = make_training_request(submission.job, *account);
  if (!request) return request.error();
  if (auto created = create_job(aws, *request); !created) return std::move(created).error();
  return follow_job(aws, request->job_name);
}

}  // namespace accel::launcher
