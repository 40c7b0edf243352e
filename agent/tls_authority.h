// TlsAuthority: a small certificate authority for clusters that have none.
//
//   DIR/ca.pem, DIR/ca-key.pem              made once; the key signs, and stays with the administrator
//   DIR/<role>-<name>/{ca,cert,key}.pem     one folder per node, operator or viewer, to be copied there
//
// Keys are EC P-256, files of keys have mode 0600, names are accel://<cluster>/<role>/<name> in the subject alternative
// name. Nothing that exists is overwritten, but for a certificate that is asked for again.
//
// Threads:  plain functions.
#pragma once

#include <string>

#include <accel/result.h>

namespace accel::agent {

struct TlsRequest {
  std::string folder;
  std::string cluster = "default";
  std::string role;  // "node", "operator", "viewer"; empty: the authority alone
  std::string name;  // [A-Za-z0-9_.-]{1,64}
  int days = 365;
};

// Makes the authority when the folder has none, and the certificate that is asked for. Gives the folder to copy.
// Errors  kInvalidArgument, kTls, kFileIo.
[[nodiscard]] Result<std::string> issue_certificate(const TlsRequest& request);

}  // namespace accel::agent
