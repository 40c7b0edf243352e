#include "agent/tls_authority.h"

#include <cerrno>
#include <cstdio>
#include <memory>

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent_config.h"
#include "runtime/unique_fd.h"

namespace accel::agent {
namespace {

constexpr int kAuthorityDays = 3650;

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* value) const {
    Free(value);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
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
  const std::unique_ptr<BIGNUM, Freed<BN_free>> number(::BN_bin2bn(bytes, sizeof bytes, nullptr));
  return number &&
         ::BN_to_ASN1_INTEGER(number.get(), ::X509_get_serialNumber(&certificate)) != nullptr;
}

struct Subject {
  std::string common_name;
  std::string uri;  // empty: an authority
  int days = 365;
};

// Signed by `issuer` with `issuer_key`; by itself when issuer is nullptr.
Result<Certificate> sign(const Subject& subject,
                         EVP_PKEY& key,
                         X509* issuer,
                         EVP_PKEY& issuer_key) {
  Certificate certificate(::X509_new());
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

struct Authority {
  Key key;
  Certificate certificate;
};

Result<Authority> open_authority(const std::string& folder) {
  const File key_file(std::fopen((folder + "/ca-key.pem").c_str(), "r"));
  const File certificate_file(std::fopen((folder + "/ca.pem").c_str(), "r"));
  Authority authority;
  if (key_file)
    authority.key.reset(::PEM_read_PrivateKey(key_file.get(), nullptr, nullptr, nullptr));
  if (certificate_file)
    authority.certificate.reset(::PEM_read_X509(certificate_file.get(), nullptr, nullptr, nullptr));
  if (!authority.key || !authority.certificate)
    return openssl_error("the authority in " + folder + " cannot be read");
  return authority;
}

Result<Authority> make_authority(const std::string& folder, const std::string& cluster) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return file_error(folder);
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

}  // namespace

Result<std::string> issue_certificate(const TlsRequest& request) {
  const bool is_role =
      request.role == "node" || request.role == "operator" || request.role == "viewer";
  if (!request.role.empty() && !is_role) {
    return Error(ErrorCode::kInvalidArgument,
                 "--role is '" + request.role + "', expected node, operator or viewer",
                 "give one of the three");
  }
  if (!is_valid_id(request.cluster) || (is_role && !is_valid_id(request.name))) {
    return Error(ErrorCode::kInvalidArgument,
                 "--cluster and --name must be of the form [A-Za-z0-9_.-]{1,64}",
                 "choose another name");
  }
  auto authority = make_authority(request.folder, request.cluster);
  if (!authority) return std::move(authority).error();
  if (!is_role) return request.folder;
  const Key key = make_tls_key();
  if (!key) return openssl_error("cannot make a key");
  const Subject subject = {
      .common_name = request.name,
      .uri = "accel://" + request.cluster + "/" + request.role + "/" + request.name,
      .days = request.days};
  auto certificate = sign(subject, *key, authority->certificate.get(), *authority->key);
  if (!certificate) return std::move(certificate).error();
  const std::string folder = request.folder + "/" + request.role + "-" + request.name;
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return file_error(folder);
  if (auto written = write_certificate(folder + "/ca.pem", *authority->certificate); !written)
    return std::move(written).error();
  // The key first: whoever watches the files waits until both fit.
  if (auto written = write_key(folder + "/key.pem", *key); !written)
    return std::move(written).error();
  if (auto written = write_certificate(folder + "/cert.pem", **certificate); !written)
    return std::move(written).error();
  return folder;
}

}  // namespace accel::agent
