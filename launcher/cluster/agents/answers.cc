#include "launcher/cluster/agents/answers.h"

#include <cstdio>

#include <google/protobuf/util/json_util.h>

namespace accel::cluster {

int fail(const Error& error) {
  std::fprintf(stderr, "%s\n", error.render(kProgram).c_str());
  return error_info(error.code()).exit_status;
}

void print_json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  (void)google::protobuf::util::MessageToJsonString(message, &text, options);
  std::printf("%s\n", text.c_str());
}

}  // namespace accel::cluster
