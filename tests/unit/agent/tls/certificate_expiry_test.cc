#include "agent/tls/certificate_expiry.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "agent/tls/certificate_file.h"
#include "agent/tls/tls_authority.h"
#include "tests/support/scratch_folder.h"

namespace accel::agent::certificate_expiry_test {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const WallTime kEnd =
    std::chrono::system_clock::from_time_t(1'800'000'000);  // 2027-01-15 08:00:00 UTC

std::vector<std::string> at(CertificateExpiry& expiry, hours before_end, WallTime end = kEnd) {
  return expiry.warnings({{"/etc/accel/cert.pem", end}}, kEnd - before_end);
}

TEST(CertificateName, SaysOfWhichClusterItIs) {
  const test::ScratchFolder folder;
  const auto issued = issue_certificate(
      {.folder = folder.path().string() + "/ca", .cluster = "lab", .role = "node", .name = "n1"});
  ASSERT_TRUE(issued) << issued.error().message();
  EXPECT_EQ(or_throw(cluster_of_certificate(*issued + "/cert.pem")), "lab");
  EXPECT_THAT(cluster_of_certificate(*issued + "/ca.pem").error().message(),
              HasSubstr("ca.pem has no name of the form accel://CLUSTER/ROLE/NAME"));
  EXPECT_THAT(cluster_of_certificate(*issued + "/key.pem").error().message(),
              HasSubstr("key.pem holds no certificate"));
}

TEST(CertificateExpiry, Fault62WarnsAWeekADayAndAnHourBeforeEachOnce) {
  CertificateExpiry expiry;

  EXPECT_THAT(at(expiry, hours(200)), IsEmpty());
  EXPECT_THAT(at(expiry, hours(168)),
              ElementsAre(AllOf(HasSubstr("/etc/accel/cert.pem ends within 7 days"),
                                HasSubstr("2027-01-15 08:00:00 UTC"))));
  EXPECT_THAT(at(expiry, hours(100)), IsEmpty());
  EXPECT_THAT(at(expiry, hours(23)), ElementsAre(HasSubstr("ends within a day")));
  EXPECT_THAT(at(expiry, hours(1)), ElementsAre(HasSubstr("ends within an hour")));
  EXPECT_THAT(at(expiry, hours(0)), ElementsAre(HasSubstr("has ended")));
  EXPECT_THAT(at(expiry, hours(-5)), IsEmpty());
}

TEST(CertificateExpiry, SaysOnlyTheMostPressingThingAtAStart) {
  CertificateExpiry expiry;

  EXPECT_THAT(at(expiry, hours(0)), ElementsAre(HasSubstr("has ended")));
}

TEST(CertificateExpiry, ANewCertificateBeginsAnew) {
  CertificateExpiry expiry;
  (void)at(expiry, hours(2));

  EXPECT_THAT(at(expiry, hours(1), kEnd + hours(1000)), IsEmpty());
  EXPECT_THAT(at(expiry, hours(1), kEnd + hours(20)), ElementsAre(HasSubstr("ends within a day")));
}

class CertificateFile : public ::testing::Test {
 protected:
  CertificateFile() : folder_(::testing::TempDir() + "/expiry-" + std::to_string(::getpid())) {}
  ~CertificateFile() override { std::filesystem::remove_all(folder_); }
  const std::string folder_;
};

TEST_F(CertificateFile, ReadsTheEndOfACertificate) {
  const auto now = std::chrono::system_clock::now();
  const auto made = issue_certificate(
      {.folder = folder_, .cluster = "c", .role = "node", .name = "n1", .days = 30});
  ASSERT_TRUE(made);

  const auto end = read_certificate_end(*made + "/cert.pem");
  ASSERT_TRUE(end);
  // init-tls and this test look at the clock one after the other.
  EXPECT_GE(end->not_after, now + hours(30 * 24) - minutes(1));
  EXPECT_LE(end->not_after, std::chrono::system_clock::now() + hours(30 * 24) + minutes(1));
}

TEST_F(CertificateFile, NamesAFileThatIsNone) {
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ + "/cert.pem") << "no certificate";

  const auto end = read_certificate_end(folder_ + "/cert.pem");
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code(), ErrorCode::kTls);
  EXPECT_THAT(end.error().message(), HasSubstr(folder_ + "/cert.pem"));
}

}  // namespace
}  // namespace accel::agent::certificate_expiry_test
