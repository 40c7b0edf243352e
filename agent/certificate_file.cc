#include "agent/certificate_file.h"

#include <string_view>

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "agent/access_policy.h"

namespace accel::agent {

Result<Certificate> read_certificate(const std::string& path) {
  const std::unique_ptr<BIO, int (*)(BIO*)> file(BIO_new_file(path.c_str(), "r"), &BIO_free);
  Certificate certificate(file ? PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr) : nullptr,
                          &X509_free);
  if (!certificate) return Error(ErrorCode::kTls, path + " holds no certificate that can be read");
  return certificate;
}

Result<std::string> cluster_of_certificate(const std::string& path) {
  auto certificate = read_certificate(path);
  if (!certificate) return std::move(certificate).error();
  const std::unique_ptr<GENERAL_NAMES, void (*)(GENERAL_NAMES*)> names(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(certificate->get(), NID_subject_alt_name, nullptr, nullptr)),
      &GENERAL_NAMES_free);
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    const std::string_view text(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                                static_cast<std::size_t>(ASN1_STRING_length(uri)));
    const std::string_view cluster = cluster_of(text);
    if (parse_certificate_name(text, cluster)) return std::string(cluster);
  }
  return Error(
      ErrorCode::kTls,
      path + " has no name of the form accel://CLUSTER/ROLE/NAME",
      "make it with `accel-agent init-tls`, or with such a URI as subject alternative name");
}

}  // namespace accel::agent
