#include "agent/tls/certificate_file.h"

#include <string_view>
#include <utility>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "agent/access/access_policy.h"

namespace accel::agent {

Result<std::vector<Certificate>> read_certificates(const std::string& path) {
  const std::unique_ptr<BIO, int (*)(BIO*)> file(BIO_new_file(path.c_str(), "r"), &BIO_free);
  std::vector<Certificate> certificates;
  while (file) {
    Certificate next(PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr), &X509_free);
    if (!next) break;
    certificates.push_back(std::move(next));
  }
  ERR_clear_error();
  if (certificates.empty())
    return Error(ErrorCode::kTls, path + " holds no certificate that can be read");
  return certificates;
}

Result<Certificate> read_certificate(const std::string& path) {
  auto certificates = read_certificates(path);
  if (!certificates) return std::move(certificates).error();
  return std::move(certificates->front());
}

std::vector<std::string> uris_of(const X509& certificate) {
  const std::unique_ptr<GENERAL_NAMES, void (*)(GENERAL_NAMES*)> names(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)),
      &GENERAL_NAMES_free);
  std::vector<std::string> uris;
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<std::size_t>(ASN1_STRING_length(uri)));
  }
  return uris;
}

Result<std::string> cluster_of_certificate(const std::string& path) {
  auto certificate = read_certificate(path);
  if (!certificate) return std::move(certificate).error();
  for (const std::string& uri : uris_of(**certificate)) {
    const std::string_view cluster = cluster_of(uri);
    if (parse_certificate_name(uri, cluster)) return std::string(cluster);
  }
  return Error(
      ErrorCode::kTls,
      path + " has no name of the form accel://CLUSTER/ROLE/NAME",
      "make it with `accel-agent init-tls`, or with such a URI as subject alternative name");
}

}  // namespace accel::agent
