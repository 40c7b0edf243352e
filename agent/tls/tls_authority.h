// TlsAuthority: a small certificate authority for clusters that have none.
//
//   DIR/ca.pem, DIR/ca-key.pem              made once; the key signs, and stays with the administrator
//   DIR/crl.pem                             the certificates that are taken back, signed; see revocation_list.h
//   DIR/issued/<serial>.pem                 every certificate that was made, to be found when it is taken back
//   DIR/<role>-<name>/{ca,cert,key,crl}.pem one folder per node, launcher, operator or viewer, to be copied there
//
// Keys are EC P-256, files of keys have mode 0600, names are accel://<cluster>/<role>/<name> in the subject alternative
// name. Nothing that exists is overwritten, but for a certificate that is asked for again, and the list.
//
// Threads:  plain functions.
#pragma once

#include <optional>
#include <string>

#include <accel/result.h>

namespace accel::agent {

struct TlsRequest {
  std::string folder;
  std::string cluster = "default";
  std::string role;              // of parse_role(); empty: the authority alone
  std::string name;              // [A-Za-z0-9_.-]{1,64}
  std::optional<int> days = {};  // how long the certificate (365) or the list (3650) is good
};

// Makes the authority when the folder has none, and the certificate that is asked for. Gives the folder to copy.
// Errors  kInvalidArgument, kTls, kFileIo.
[[nodiscard]] Result<std::string> issue_certificate(const TlsRequest& request);

// Takes every certificate back that the authority has made for that role and name. Gives the path of the list, which is to
// be copied to who shall know. Errors  kInvalidArgument: there is none; kTls, kFileIo.
[[nodiscard]] Result<std::string> revoke_certificates(const TlsRequest& request);

}  // namespace accel::agent
