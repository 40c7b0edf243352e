#include "agent/tls/certificate_expiry.h"

#include <array>
#include <ctime>
#include <string_view>

#include "agent/tls/certificate_file.h"

namespace accel::agent {
namespace {

using std::chrono::hours;

struct Threshold {
  hours left;
  std::string_view text;
};
constexpr std::array kThresholds = {
    Threshold{hours(7 * 24), "ends within 7 days"},
    Threshold{hours(24), "ends within a day"},
    Threshold{hours(1), "ends within an hour"},
    Threshold{hours(0), "has ended: nobody believes it any more"},
};

int level_of(WallTime not_after, WallTime now) {
  int level = 0;
  for (const Threshold& threshold : kThresholds) level += not_after - now <= threshold.left ? 1 : 0;
  return level;
}

std::string utc_text(WallTime time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text.data();
}

}  // namespace

Result<CertificateEnd> read_certificate_end(const std::string& path) {
  const auto certificate = read_certificate(path);
  if (!certificate) return certificate.error();
  std::tm parts{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate->get()), &parts) != 1)
    return Error(ErrorCode::kTls, path + " holds no certificate that can be read");
  return CertificateEnd{path, std::chrono::system_clock::from_time_t(::timegm(&parts))};
}

std::vector<std::string> CertificateExpiry::warnings(
    const std::vector<CertificateEnd>& certificates, WallTime now) {
  std::vector<std::string> lines;
  for (const CertificateEnd& certificate : certificates) {
    Said& said = said_[certificate.path];
    if (said.not_after != certificate.not_after) said = {certificate.not_after, 0};
    const int level = level_of(certificate.not_after, now);
    if (level > said.level) {
      lines.push_back(certificate.path + " " +
                      std::string(kThresholds.at(static_cast<std::size_t>(level - 1)).text) + " (" +
                      utc_text(certificate.not_after) +
                      "); put a new one in its place, it is read without a restart");
    }
    said.level = level;
  }
  return lines;
}

}  // namespace accel::agent
