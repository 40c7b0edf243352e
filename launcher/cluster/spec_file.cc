#include "launcher/cluster/spec_file.h"

#include <fstream>
#include <iterator>

#include <google/protobuf/util/json_util.h>

namespace accel::cluster {

Result<v1::JobSpec> read_spec_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) {
    return Error(ErrorCode::kConfigUnreadable,
                 "the file '" + path + "' cannot be read",
                 "check the path given with --spec and its permissions");
  }
  v1::JobSpec spec;
  const auto parsed = google::protobuf::util::JsonStringToMessage(text, &spec);
  if (parsed.ok()) return spec;
  return Error(ErrorCode::kConfigInvalidValue,
               "'" + path + "' is not a job in JSON: " + std::string(parsed.message()),
               "the names and values are those of JobSpec in proto/accel/v1/job.proto");
}

}  // namespace accel::cluster
