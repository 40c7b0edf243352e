// The wire format only grows: every field that was ever released keeps its number, name and type.
//
// proto_fields.txt lists them. A field that is new is added there by hand; one that changed or went makes this fail.

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>

#include "accel/v1/cluster.pb.h"
#include "accel/v1/control.pb.h"
#include "accel/v1/record.pb.h"
#include "accel/v1/rendezvous.pb.h"

namespace accel::agent::proto_fields_test {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

std::string type_of(const FieldDescriptor& field) {
  std::string type = field.is_repeated() ? "repeated " : "";
  if (field.message_type() != nullptr) return type + field.message_type()->full_name();
  if (field.enum_type() != nullptr) return type + field.enum_type()->full_name();
  return type + field.type_name();
}

void list_enum(const EnumDescriptor& kind, std::set<std::string>& lines) {
  for (int i = 0; i < kind.value_count(); ++i) {
    lines.insert(kind.full_name() + " " + std::to_string(kind.value(i)->number()) + " " +
                 kind.value(i)->name());
  }
}

void list_message(const Descriptor& message, std::set<std::string>& lines) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    lines.insert(message.full_name() + " " + std::to_string(field.number()) + " " + field.name() +
                 " " + type_of(field));
  }
  for (int i = 0; i < message.nested_type_count(); ++i)
    list_message(*message.nested_type(i), lines);
  for (int i = 0; i < message.enum_type_count(); ++i) list_enum(*message.enum_type(i), lines);
}

std::set<std::string> present_fields() {
  std::set<std::string> lines;
  const FileDescriptor* control = v1::Job::descriptor()->file();
  const FileDescriptor* rendezvous = v1::Hello::descriptor()->file();
  const FileDescriptor* cluster = v1::OnBehalf::descriptor()->file();
  const FileDescriptor* job = v1::JobSpec::descriptor()->file();
  const FileDescriptor* record = v1::JobRecord::descriptor()->file();
  for (const FileDescriptor* file : {job, rendezvous, control, cluster, record}) {
    for (int i = 0; i < file->message_type_count(); ++i)
      list_message(*file->message_type(i), lines);
    for (int i = 0; i < file->enum_type_count(); ++i) list_enum(*file->enum_type(i), lines);
  }
  return lines;
}

std::set<std::string> released_fields() {
  const char* root = std::getenv("ACCEL_SOURCE_DIR");
  std::ifstream file(std::string(root == nullptr ? "." : root) +
                     "/tests/unit/agent/proto_fields.txt");
  std::set<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') lines.insert(line);
  }
  return lines;
}

std::string listed(const std::set<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text;
}

TEST(ProtoFields, NoReleasedFieldChangesOrGoes) {
  const auto released = released_fields();
  ASSERT_GT(released.size(), 200U);
  const auto present = present_fields();
  std::set<std::string> lost;
  std::set_difference(released.begin(),
                      released.end(),
                      present.begin(),
                      present.end(),
                      std::inserter(lost, lost.end()));
  EXPECT_TRUE(lost.empty()) << "changed or gone, which breaks agents of other versions:\n"
                            << listed(lost);
}

TEST(ProtoFields, EveryFieldIsListed) {
  const auto released = released_fields();
  const auto present = present_fields();
  std::set<std::string> fresh;
  std::set_difference(present.begin(),
                      present.end(),
                      released.begin(),
                      released.end(),
                      std::inserter(fresh, fresh.end()));
  EXPECT_TRUE(fresh.empty()) << "add to tests/unit/agent/proto_fields.txt:\n" << listed(fresh);
}

TEST(ProtoFields, EveryEnumerationBeginsWithUnspecified) {
  for (const auto& line : present_fields()) {
    const auto space = line.find(" 0 ");
    if (space == std::string::npos) continue;
    EXPECT_THAT(line, testing::EndsWith("_UNSPECIFIED"));
  }
}

}  // namespace
}  // namespace accel::agent::proto_fields_test
