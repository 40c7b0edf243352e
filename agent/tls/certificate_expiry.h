// CertificateExpiry: says in time that a certificate of this node is about to end.
//
// A word 7 days, 1 day and 1 hour before the end and at the end, each once; a new certificate begins anew. The end of a
// certificate is a moment of the calendar, so this is the one place that compares with the wall clock.
//
// Threads:  plain values; read_certificates() reads files.
// Source:   docs/admin/security.md, fault 62.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include <accel/result.h>

namespace accel::agent {

using WallTime = std::chrono::system_clock::time_point;

struct CertificateEnd {
  std::string path;
  WallTime not_after;
};

// The end of the first certificate of a PEM file. Errors  kTls.
[[nodiscard]] Result<CertificateEnd> read_certificate_end(const std::string& path);

class CertificateExpiry {
 public:
  // What is to be said now; empty most of the time.
  [[nodiscard]] std::vector<std::string> warnings(const std::vector<CertificateEnd>& certificates,
                                                  WallTime now);

 private:
  struct Said {
    WallTime not_after;
    int level = 0;  // how many of the thresholds were passed when it was last told
  };
  std::map<std::string, Said> said_;  // by path
};

}  // namespace accel::agent
