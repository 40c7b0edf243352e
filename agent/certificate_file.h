// CertificateFile: what stands in the file of a certificate.
//
// Threads:  plain functions.
#pragma once

#include <memory>
#include <string>

#include <openssl/x509.h>

#include <accel/result.h>

namespace accel::agent {

using Certificate = std::unique_ptr<X509, void (*)(X509*)>;

// The first one of the file (PEM). Errors  kTls.
[[nodiscard]] Result<Certificate> read_certificate(const std::string& path);

// The cluster of its name accel://<cluster>/<role>/<name>. Errors  kTls: it has no such name.
[[nodiscard]] Result<std::string> cluster_of_certificate(const std::string& path);

}  // namespace accel::agent
