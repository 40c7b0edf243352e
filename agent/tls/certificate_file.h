// CertificateFile: what stands in the file of a certificate.
//
// Threads:  plain functions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <openssl/x509.h>

#include <accel/result.h>

namespace accel::agent {

using Certificate = std::unique_ptr<X509, void (*)(X509*)>;

// The first one of the file (PEM). Errors  kTls.
[[nodiscard]] Result<Certificate> read_certificate(const std::string& path);

// All of the file, one at least: an authority that is being replaced has two. Errors  kTls.
[[nodiscard]] Result<std::vector<Certificate>> read_certificates(const std::string& path);

// The URIs of its subject alternative name.
[[nodiscard]] std::vector<std::string> uris_of(const X509& certificate);

// The cluster of its name accel://<cluster>/<role>/<name>. Errors  kTls: it has no such name.
[[nodiscard]] Result<std::string> cluster_of_certificate(const std::string& path);

}  // namespace accel::agent
