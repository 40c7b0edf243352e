#include "agent/tls/tls_authority.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/access/access_policy.h"
#include "agent/config/agent_config.h"
#include "agent/tls/certificate_file.h"
#include "runtime/unique_fd.h"

namespace accel::agent {
namespace {

constexpr int kAuthorityDays = 3650;
constexpr int kCertificateDays = 365;

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* value) const {
    Free(value);
  }
};
using Bignum = std::unique_ptr<BIGNUM, Freed<BN_free>>;
using Crl = std::unique_ptr<X509_CRL, Freed<X509_CRL_free>>;
using Number = std::unique_ptr<ASN1_INTEGER, Freed<ASN1_INTEGER_free>>;
using Revoked = std::unique_ptr<X509_REVOKED, Freed<X509_REVOKED_free>>;
using Time = std::unique_ptr<ASN1_TIME, Freed<ASN1_TIME_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION_free>>;
using File = std::unique_ptr<std::FILE, Freed<std::fclose>>;

Error openssl_error(const std::string& what) {
  char text[256] = "unknown";
  ::ERR_error_string_n(::ERR_get_error(), text, sizeof text);
  return Error(ErrorCode::kTls, what + ": " + text);
}

Error file_error(const std::string& path) {
  return Error(ErrorCode::kFileIo, "cannot write " + path + ": " + errno_text(errno));
}

Key make_tls_key() {
  return Key(::EVP_EC_gen("P-256"));
}

bool add_extension(X509& certificate, X509& issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  ::X509V3_set_ctx(&context, &issuer, &certificate, nullptr, nullptr, 0);
  const Extension extension(::X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  return extension && ::X509_add_ext(&certificate, extension.get(), -1) == 1;
}

bool set_random_serial(X509& certificate) {
  unsigned char bytes[16];
  if (::RAND_bytes(bytes, sizeof bytes) != 1) return false;
  bytes[0] &= 0x7f;  // serial numbers are positive
  const Bignum number(::BN_bin2bn(bytes, sizeof bytes, nullptr));
  return number &&
         ::BN_to_ASN1_INTEGER(number.get(), ::X509_get_serialNumber(&certificate)) != nullptr;
}

struct Subject {
  std::string common_name;
  std::string uri;  // empty: an authority
  int days = kCertificateDays;
};

// Signed by `issuer` with `issuer_key`; by itself when issuer is nullptr.
Result<Certificate> sign(const Subject& subject,
                         EVP_PKEY& key,
                         X509* issuer,
                         EVP_PKEY& issuer_key) {
  Certificate certificate(::X509_new(), &::X509_free);
  X509& out = *certificate;
  X509& signer = issuer == nullptr ? out : *issuer;
  X509_NAME* name = ::X509_get_subject_name(&out);
  const auto* text = reinterpret_cast<const unsigned char*>(subject.common_name.c_str());
  bool is_good = ::X509_set_version(&out, 2) == 1 && set_random_serial(out) &&
                 ::X509_set_pubkey(&out, &key) == 1 &&
                 ::X509_gmtime_adj(::X509_getm_notBefore(&out), -3600) != nullptr &&
                 ::X509_gmtime_adj(::X509_getm_notAfter(&out), 86'400L * subject.days) != nullptr &&
                 ::X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, text, -1, -1, 0) == 1 &&
                 ::X509_set_issuer_name(&out, ::X509_get_subject_name(&signer)) == 1;
  is_good = is_good && add_extension(out, signer, NID_subject_key_identifier, "hash");
  if (subject.uri.empty()) {
    is_good = is_good &&
              add_extension(out, signer, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
              add_extension(out, signer, NID_key_usage, "critical,keyCertSign,cRLSign");
  } else {
    is_good = is_good && add_extension(out, signer, NID_authority_key_identifier, "keyid") &&
              add_extension(out, signer, NID_basic_constraints, "critical,CA:FALSE") &&
              add_extension(out, signer, NID_key_usage, "critical,digitalSignature") &&
              add_extension(out, signer, NID_ext_key_usage, "serverAuth,clientAuth") &&
              add_extension(out, signer, NID_subject_alt_name, "URI:" + subject.uri);
  }
  if (!is_good || ::X509_sign(&out, &issuer_key, ::EVP_sha256()) == 0) {
    return openssl_error("cannot make the certificate of " + subject.common_name);
  }
  return certificate;
}

// A new file in place of an old one: whoever reads it meanwhile sees one or the other.
template <typename Write>
Result<void> write_file(const std::string& path, mode_t mode, Write&& write) {
  const std::string fresh = path + ".new";
  ::unlink(fresh.c_str());
  UniqueFd fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!fd) return file_error(fresh);
  const File file(::fdopen(fd.release(), "w"));
  if (!file || !write(file.get()) || std::fflush(file.get()) != 0 ||
      ::rename(fresh.c_str(), path.c_str()) != 0) {
    return file_error(path);
  }
  return {};
}

Result<void> write_key(const std::string& path, EVP_PKEY& key) {
  return write_file(path, 0600, [&](std::FILE* file) {
    return ::PEM_write_PrivateKey(file, &key, nullptr, nullptr, 0, nullptr, nullptr) == 1;
  });
}

Result<void> write_certificate(const std::string& path, X509& certificate) {
  return write_file(
      path, 0644, [&](std::FILE* file) { return ::PEM_write_X509(file, &certificate) == 1; });
}

Result<void> make_tls_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return file_error(path);
  return {};
}

struct Authority {
  Key key;
  Certificate certificate{nullptr, &::X509_free};
};

Result<Authority> open_authority(const std::string& folder) {
  const File key_file(std::fopen((folder + "/ca-key.pem").c_str(), "r"));
  Authority authority;
  if (key_file)
    authority.key.reset(::PEM_read_PrivateKey(key_file.get(), nullptr, nullptr, nullptr));
  if (!authority.key) return openssl_error("the authority in " + folder + " cannot be read");
  auto certificate = read_certificate(folder + "/ca.pem");
  if (!certificate) return std::move(certificate).error();
  authority.certificate = *std::move(certificate);
  return authority;
}

// ---- the list of what is taken back ----

std::string list_path(const std::string& folder) {
  return folder + "/crl.pem";
}

// Empty where there is none yet.
Result<Crl> read_list(const std::string& folder) {
  const File file(std::fopen(list_path(folder).c_str(), "r"));
  if (!file && errno != ENOENT) return file_error(list_path(folder));
  Crl list(file ? ::PEM_read_X509_CRL(file.get(), nullptr, nullptr, nullptr) : ::X509_CRL_new());
  if (!list) return openssl_error(list_path(folder) + " cannot be read");
  return list;
}

bool set_next_number(X509_CRL& list) {
  const Number before(
      static_cast<ASN1_INTEGER*>(::X509_CRL_get_ext_d2i(&list, NID_crl_number, nullptr, nullptr)));
  const Bignum value(before ? ::ASN1_INTEGER_to_BN(before.get(), nullptr) : ::BN_new());
  if (!value || ::BN_add_word(value.get(), 1) != 1) return false;
  const Number next(::BN_to_ASN1_INTEGER(value.get(), nullptr));
  return next &&
         ::X509_CRL_add1_ext_i2d(&list, NID_crl_number, next.get(), 0, X509V3_ADD_REPLACE) == 1;
}

Result<void> write_list(const std::string& path, X509_CRL& list) {
  return write_file(
      path, 0644, [&](std::FILE* file) { return ::PEM_write_X509_CRL(file, &list) == 1; });
}

Result<void> sign_list(const std::string& folder,
                       const Authority& authority,
                       X509_CRL& list,
                       int days) {
  const Time now(::X509_gmtime_adj(nullptr, -3600));
  const Time end(::X509_gmtime_adj(nullptr, 86'400L * days));
  const bool is_good = now && end && ::X509_CRL_set_version(&list, 1) == 1 &&
                       ::X509_CRL_set_issuer_name(
                           &list, ::X509_get_subject_name(authority.certificate.get())) == 1 &&
                       ::X509_CRL_set1_lastUpdate(&list, now.get()) == 1 &&
                       ::X509_CRL_set1_nextUpdate(&list, end.get()) == 1 && set_next_number(list) &&
                       ::X509_CRL_sort(&list) == 1 &&
                       ::X509_CRL_sign(&list, authority.key.get(), ::EVP_sha256()) != 0;
  if (!is_good) return openssl_error("cannot sign " + list_path(folder));
  return write_list(list_path(folder), list);
}

bool is_on(X509_CRL& list, const X509& certificate) {
  X509_REVOKED* found = nullptr;
  return ::X509_CRL_get0_by_serial(&list, &found, ::X509_get0_serialNumber(&certificate)) == 1;
}

bool put_on(X509_CRL& list, const X509& certificate) {
  const Time now(::X509_gmtime_adj(nullptr, 0));
  Revoked entry(::X509_REVOKED_new());
  const bool is_good =
      now && entry &&
      ::X509_REVOKED_set_serialNumber(
          entry.get(), const_cast<ASN1_INTEGER*>(::X509_get0_serialNumber(&certificate))) == 1 &&
      ::X509_REVOKED_set_revocationDate(entry.get(), now.get()) == 1;
  if (!is_good || ::X509_CRL_add0_revoked(&list, entry.get()) != 1) return false;
  (void)entry.release();  // the list has it
  return true;
}

std::string uri_of(const TlsRequest& request) {
  return "accel://" + request.cluster + "/" + request.role + "/" + request.name;
}

// All that the authority has made under the name. One of before it kept them lies in the folder of its owner alone.
std::vector<Certificate> issued_as(const TlsRequest& request) {
  std::vector<std::string> paths = {request.folder + "/" + request.role + "-" + request.name +
                                    "/cert.pem"};
  std::error_code none;
  for (const auto& file : std::filesystem::directory_iterator(request.folder + "/issued", none))
    paths.push_back(file.path().string());
  std::vector<Certificate> certificates;
  for (const std::string& path : paths) {
    auto certificate = read_certificate(path);
    if (!certificate) continue;
    const auto uris = uris_of(**certificate);
    if (std::find(uris.begin(), uris.end(), uri_of(request)) != uris.end())
      certificates.push_back(*std::move(certificate));
  }
  return certificates;
}

Result<void> keep_issued(const std::string& folder, X509& certificate) {
  if (auto made = make_tls_folder(folder + "/issued"); !made) return made;
  const Bignum serial(::ASN1_INTEGER_to_BN(::X509_get0_serialNumber(&certificate), nullptr));
  const std::unique_ptr<char, void (*)(char*)> text(serial ? ::BN_bn2hex(serial.get()) : nullptr,
                                                    [](char* hex) { OPENSSL_free(hex); });
  if (!text) return openssl_error("cannot keep a certificate");
  return write_certificate(folder + "/issued/" + text.get() + ".pem", certificate);
}

// ---- the authority ----

Result<Authority> make_authority(const std::string& folder, const std::string& cluster) {
  if (auto made = make_tls_folder(folder); !made) return std::move(made).error();
  if (::access((folder + "/ca-key.pem").c_str(), F_OK) == 0) return open_authority(folder);
  Authority authority;
  authority.key = make_tls_key();
  if (!authority.key) return openssl_error("cannot make a key");
  auto certificate =
      sign({.common_name = "accel " + cluster + " authority", .uri = {}, .days = kAuthorityDays},
           *authority.key,
           nullptr,
           *authority.key);
  if (!certificate) return std::move(certificate).error();
  authority.certificate = *std::move(certificate);
  if (auto written = write_certificate(folder + "/ca.pem", *authority.certificate); !written)
    return std::move(written).error();
  if (auto written = write_key(folder + "/ca-key.pem", *authority.key); !written)
    return std::move(written).error();
  return authority;
}

Result<void> check_request(const TlsRequest& request) {
  const bool is_role = parse_role(request.role).has_value();
  if (!request.role.empty() && !is_role) {
    return Error(ErrorCode::kInvalidArgument,
                 "--role is '" + request.role + "', expected node, launcher, operator or viewer",
                 "give one of the four");
  }
  if (!is_valid_id(request.cluster) || (is_role && !is_valid_id(request.name))) {
    return Error(ErrorCode::kInvalidArgument,
                 "--cluster and --name must be of the form [A-Za-z0-9_.-]{1,64}",
                 "choose another name");
  }
  return {};
}

}  // namespace

Result<std::string> issue_certificate(const TlsRequest& request) {
  if (auto checked = check_request(request); !checked) return std::move(checked).error();
  auto authority = make_authority(request.folder, request.cluster);
  if (!authority) return std::move(authority).error();
  auto list = read_list(request.folder);
  if (!list) return std::move(list).error();
  if (::access(list_path(request.folder).c_str(), F_OK) != 0) {
    auto signed_list = sign_list(request.folder, *authority, **list, kAuthorityDays);
    if (!signed_list) return std::move(signed_list).error();
  }
  if (request.role.empty()) return request.folder;
  const Key key = make_tls_key();
  if (!key) return openssl_error("cannot make a key");
  const Subject subject = {.common_name = request.name,
                           .uri = uri_of(request),
                           .days = request.days.value_or(kCertificateDays)};
  auto certificate = sign(subject, *key, authority->certificate.get(), *authority->key);
  if (!certificate) return std::move(certificate).error();
  if (auto kept = keep_issued(request.folder, **certificate); !kept) return std::move(kept).error();
  const std::string folder = request.folder + "/" + request.role + "-" + request.name;
  if (auto made = make_tls_folder(folder); !made) return std::move(made).error();
  if (auto written = write_list(list_path(folder), **list); !written)
    return std::move(written).error();
  if (auto written = write_certificate(folder + "/ca.pem", *authority->certificate); !written)
    return std::move(written).error();
  // The key first: whoever watches the files waits until both fit.
  if (auto written = write_key(folder + "/key.pem", *key); !written)
    return std::move(written).error();
  if (auto written = write_certificate(folder + "/cert.pem", **certificate); !written)
    return std::move(written).error();
  return folder;
}

Result<std::string> revoke_certificates(const TlsRequest& request) {
  if (auto checked = check_request(request); !checked) return std::move(checked).error();
  auto authority = open_authority(request.folder);
  if (!authority) return std::move(authority).error();
  auto list = read_list(request.folder);
  if (!list) return std::move(list).error();
  const auto certificates = issued_as(request);
  if (certificates.empty()) {
    return Error(
        ErrorCode::kInvalidArgument,
        "the authority in " + request.folder + " has made no certificate " + uri_of(request),
        "see --cluster, --role and --name");
  }
  for (const Certificate& certificate : certificates) {
    if (!is_on(**list, *certificate) && !put_on(**list, *certificate))
      return openssl_error("cannot take the certificate of " + request.name + " back");
  }
  auto written =
      sign_list(request.folder, *authority, **list, request.days.value_or(kAuthorityDays));
  if (!written) return std::move(written).error();
  return list_path(request.folder);
}

}  // namespace accel::agent
