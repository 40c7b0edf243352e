#include "agent/rendezvous/token_proof.h"

#include <array>
#include <cerrno>

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/access/ticket_book.h"
#include "runtime/unique_fd.h"

namespace accel::agent {
namespace {

constexpr std::size_t kLeastTokenBytes = 16;
constexpr std::size_t kMostTokenBytes = 4096;

const unsigned char* unsigned_bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

std::string token_key(std::string_view token) {
  std::string key(SHA256_DIGEST_LENGTH, '\0');
  ::SHA256(unsigned_bytes(token), token.size(), reinterpret_cast<unsigned char*>(key.data()));
  return key;
}

std::string prove_words(std::string_view key, std::initializer_list<std::string_view> words) {
  std::string text;
  for (const std::string_view word : words) {
    text += word;
    text += '\0';
  }
  text.pop_back();
  std::string proof(SHA256_DIGEST_LENGTH, '\0');
  unsigned size = 0;
  ::HMAC(::EVP_sha256(),
         key.data(),
         static_cast<int>(key.size()),
         unsigned_bytes(text),
         text.size(),
         reinterpret_cast<unsigned char*>(proof.data()),
         &size);
  return proof;
}

std::string prove_token(std::string_view key,
                        std::string_view nonce,
                        std::string_view node_id,
                        std::string_view job_uuid) {
  return prove_words(key, {nonce, node_id, job_uuid});
}

bool is_proof(std::string_view proof,
              std::string_view key,
              std::string_view nonce,
              std::string_view node_id,
              std::string_view job_uuid) {
  return equal_in_constant_time(proof, prove_token(key, nonce, node_id, job_uuid));
}

std::string prove_coordinator(std::string_view key,
                              std::string_view nonce,
                              std::string_view node_id) {
  return prove_words(key, {"coordinator", nonce, node_id});
}

bool is_coordinator_proof(std::string_view proof,
                          std::string_view key,
                          std::string_view nonce,
                          std::string_view node_id) {
  return equal_in_constant_time(proof, prove_coordinator(key, nonce, node_id));
}

Result<std::string> read_token(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0) {
    return Error(ErrorCode::kAuthentication,
                 "the token file " + path + " cannot be read: " + errno_text(errno));
  }
  if ((info.st_mode & 0077) != 0) {
    return Error(ErrorCode::kAuthentication,
                 "the token file " + path + " may be read by other users",
                 "chmod 600 " + path);
  }
  std::string token(kMostTokenBytes, '\0');
  const ssize_t got = ::read(file.get(), token.data(), token.size());
  token.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  constexpr const char* kBlanks = " \t\r\n";
  const std::size_t first = token.find_first_not_of(kBlanks);
  token = first == std::string::npos
              ? ""
              : token.substr(first, token.find_last_not_of(kBlanks) - first + 1);
  if (token.size() < kLeastTokenBytes) {
    return Error(ErrorCode::kAuthentication,
                 "the token in " + path + " has " + std::to_string(token.size()) +
                     " characters, at least 16 are needed",
                 "make one with `openssl rand -hex 32 > " + path + "`");
  }
  return token;
}

}  // namespace accel::agent
