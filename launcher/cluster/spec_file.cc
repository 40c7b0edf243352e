#include "launcher/cluster/spec_file.h"

#include <google/protobuf/util/json_util.h>

#include "runtime/text/text_file.h"

namespace accel::cluster {

Result<v1::JobSpec> read_spec_file(const std::string& path) {
  const auto text = read_text_file(path, kMostConfigBytes, "the file");
  if (!text) {
    return Error(text.error().code(),
                 text.error().message(),
                 "check the path given with --spec and its permissions");
  }
  v1::JobSpec spec;
  const auto parsed = google::protobuf::util::JsonStringToMessage(*text, &spec);
  if (parsed.ok()) return spec;
  return Error(ErrorCode::kConfigInvalidValue,
               "'" + path + "' is not a job in JSON: " + std::string(parsed.message()),
               "the names and values are those of JobSpec in proto/accel/v1/job.proto");
}

}  // namespace accel::cluster
