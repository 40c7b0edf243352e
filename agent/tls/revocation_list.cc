// Which certificates are taken back.
//
// gRPC 1.51 can read such lists itself (set_crl_directory), and was not taken: it wants a folder with names made of
// hashes, reads it at each handshake, and says nothing of a list that is missing, cannot be read or has ended. Nor does it
// end what is connected.

#include "agent/tls/revocation_list.h"

#include <fstream>
#include <iterator>
#include <utility>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include "agent/tls/certificate_file.h"

namespace accel::agent {
namespace {

constexpr const char* kListRemedy =
    "make one with `accel-agent init-tls --revoke`, or let the authority sign a new one";

using Memory = std::unique_ptr<BIO, int (*)(BIO*)>;

Memory memory_of(const std::string& text) {
  return {::BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &::BIO_free};
}

bool is_signed_by_one(X509_CRL& list, const std::vector<Certificate>& authorities) {
  for (const Certificate& authority : authorities) {
    const bool is_issuer = ::X509_NAME_cmp(::X509_CRL_get_issuer(&list),
                                           ::X509_get_subject_name(authority.get())) == 0;
    if (is_issuer && ::X509_CRL_verify(&list, ::X509_get0_pubkey(authority.get())) == 1)
      return true;
  }
  ::ERR_clear_error();
  return false;
}

bool has_list_ended(const X509_CRL& list) {
  const ASN1_TIME* end = ::X509_CRL_get0_nextUpdate(&list);
  return end != nullptr && ::X509_cmp_current_time(end) < 0;
}

Error bad_list(const std::string& path, const std::string& what) {
  return Error(
      ErrorCode::kTls, "the list of revoked certificates " + path + " " + what, kListRemedy);
}

}  // namespace

RevocationList::RevocationList(std::string path, std::string authority, Content content)
    : path_(std::move(path)), authority_(std::move(authority)), content_(std::move(content)) {}

Result<RevocationList::Content> RevocationList::read(const std::string& path,
                                                     const std::string& authority) {
  std::ifstream file(path, std::ios::binary);
  Content content;
  content.text.assign(std::istreambuf_iterator<char>(file), {});
  if (!file) return bad_list(path, "cannot be read");
  const auto authorities = read_certificates(authority);
  if (!authorities) return authorities.error();
  const Memory memory = memory_of(content.text);
  while (true) {
    Crl list(::PEM_read_bio_X509_CRL(memory.get(), nullptr, nullptr, nullptr), &::X509_CRL_free);
    if (!list) break;
    if (!is_signed_by_one(*list, *authorities))
      return bad_list(path, "was not signed by the authority of " + authority);
    // What such a list leaves out may be revoked all the same: lists of changes, or of one part.
    if (::X509_CRL_get_ext_by_critical(list.get(), 1, -1) >= 0)
      return bad_list(path, "has a critical extension, and is no whole list");
    if (has_list_ended(*list)) return bad_list(path, "has ended");
    content.lists.push_back(std::move(list));
  }
  const bool is_whole = ERR_GET_REASON(::ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ::ERR_clear_error();
  if (content.lists.empty() || !is_whole) return bad_list(path, "holds none that can be read");
  return content;
}

Result<std::shared_ptr<RevocationList>> RevocationList::open(const TlsFiles& files) {
  auto content = read(files.crl, files.authority);
  if (!content) return std::move(content).error();
  return std::shared_ptr<RevocationList>(
      new RevocationList(files.crl, files.authority, *std::move(content)));
}

bool RevocationList::contains(const std::string& certificate) const {
  const Memory memory = memory_of(certificate);
  const Certificate parsed(::PEM_read_bio_X509(memory.get(), nullptr, nullptr, nullptr),
                           &::X509_free);
  if (!parsed) {
    ::ERR_clear_error();
    return true;
  }
  const std::lock_guard lock(mutex_);
  for (const Crl& list : content_.lists) {
    X509_REVOKED* found = nullptr;
    const bool is_issuer = ::X509_NAME_cmp(::X509_CRL_get_issuer(list.get()),
                                           ::X509_get_issuer_name(parsed.get())) == 0;
    // 2: taken off the list again.
    if (is_issuer &&
        ::X509_CRL_get0_by_serial(list.get(), &found, ::X509_get_serialNumber(parsed.get())) == 1)
      return true;
  }
  return false;
}

// What was revoked stays so: an old list is better than none.
RevocationList::Look RevocationList::look_again() {
  auto fresh = read(path_, authority_);
  Look look;
  const std::lock_guard lock(mutex_);
  if (fresh && fresh->text != content_.text) {
    content_ = *std::move(fresh);
    look.has_changed = true;
  } else if (!fresh) {
    look.warning = fresh.error().message() + "; the one of before is kept";
  }
  const bool is_said = look.warning == said_;
  said_ = look.warning;
  if (is_said) look.warning.clear();
  return look;
}

int RevocationList::size() const {
  const std::lock_guard lock(mutex_);
  int count = 0;
  for (const Crl& list : content_.lists) {
    const auto* revoked = ::X509_CRL_get_REVOKED(list.get());
    count += revoked == nullptr ? 0 : sk_X509_REVOKED_num(revoked);
  }
  return count;
}

Result<void> open_revocations(TlsFiles& files) {
  files.revoked = nullptr;
  if (files.crl.empty()) return {};
  auto opened = RevocationList::open(files);
  if (!opened) return std::move(opened).error();
  files.revoked = *std::move(opened);
  return {};
}

Error revoked_error(const std::string& name) {
  return Error(ErrorCode::kAuthentication,
               "the certificate of " + name + " was revoked",
               "ask who keeps the authority for a new one");
}

}  // namespace accel::agent
