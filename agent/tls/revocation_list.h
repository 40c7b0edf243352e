// RevocationList: the certificates that their authority has taken back (an X.509 CRL).
//
//   open() --look_again(), every ten seconds--> the same --a new file that is good--> changed
//                                                 '--one that cannot be used--> the same, and a warning
//
// A list is believed when an authority of ours has signed it. A file may hold several, one of each authority.
//
// Threads:  any; one lock inside. look_again() reads a file.
// Cost:     contains() parses one certificate and looks one number up.
// Source:   docs/admin/security.md "Certificates that are taken back"; RFC 5280, section 5.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <openssl/x509.h>

#include <accel/result.h>

#include "agent/config/agent_config.h"

namespace accel::agent {

class RevocationList {
 public:
  // Reads files.crl. Errors  kTls: it cannot be read, holds no list, was signed by none of files.authority, or has ended.
  [[nodiscard]] static Result<std::shared_ptr<RevocationList>> open(const TlsFiles& files);

  // Whether the list names the certificate (PEM). One that cannot be read counts as named.
  [[nodiscard]] bool contains(const std::string& certificate) const;

  struct Look {
    bool has_changed = false;
    std::string warning;  // each is said once; empty: all is well
  };
  // Reads the file again.
  [[nodiscard]] Look look_again();

  // How many certificates it names.
  [[nodiscard]] int size() const;

 private:
  using Crl = std::unique_ptr<X509_CRL, void (*)(X509_CRL*)>;
  struct Content {
    std::string text;  // of the file
    std::vector<Crl> lists;
  };
  RevocationList(std::string path, std::string authority, Content content);
  static Result<Content> read(const std::string& path, const std::string& authority);

  const std::string path_;
  const std::string authority_;
  mutable std::mutex mutex_;
  Content content_;
  std::string said_;  // the last warning
};

// Opens the list of `files`, where they name one. Errors  those of RevocationList::open().
[[nodiscard]] Result<void> open_revocations(TlsFiles& files);

// A caller whose certificate was taken back. `name` is the certificate's.
[[nodiscard]] Error revoked_error(const std::string& name);

}  // namespace accel::agent
