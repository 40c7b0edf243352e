// Which certificates an authority has taken back, and which lists are believed.

#include "agent/tls/revocation_list.h"

#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "agent/tls/tls_authority.h"
#include "tests/support/scratch_folder.h"

namespace accel::agent::revocation_list_test {
namespace {

using ::testing::HasSubstr;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

class RevocationListTest : public ::testing::Test {
 protected:
  std::string issue(const std::string& name) {
    return or_throw(issue_certificate({.folder = folder_, .role = "node", .name = name})) +
           "/cert.pem";
  }
  void revoke(const std::string& name, std::optional<int> days = {}) {
    (void)or_throw(
        revoke_certificates({.folder = folder_, .role = "node", .name = name, .days = days}));
  }
  [[nodiscard]] TlsFiles files() const {
    return {.authority = folder_ + "/ca.pem", .certificate = {}, .key = {}, .crl = list_};
  }
  [[nodiscard]] std::string why_not() const {
    const auto opened = RevocationList::open(files());
    return opened ? "" : opened.error().message();
  }

  const test::ScratchFolder scratch_;
  const std::string folder_ = scratch_.path().string() + "/ca";
  const std::string list_ = folder_ + "/crl.pem";
};

TEST_F(RevocationListTest, NamesWhatWasRevokedAndNothingElse) {
  const std::string good = issue("good");
  const std::string bad = issue("bad");
  revoke("bad");

  const auto list = or_throw(RevocationList::open(files()));

  EXPECT_EQ(list->size(), 1);
  EXPECT_TRUE(list->contains(text_of(bad)));
  EXPECT_FALSE(list->contains(text_of(good)));
  EXPECT_TRUE(list->contains("no certificate")) << "what cannot be read is not believed";
}

TEST_F(RevocationListTest, EveryCertificateOfTheNameIsTakenBackAndTheNextOneIsGood) {
  const std::string first = text_of(issue("n1"));
  const std::string second = text_of(issue("n1"));
  revoke("n1");
  revoke("n1");
  const std::string third = text_of(issue("n1"));

  const auto list = or_throw(RevocationList::open(files()));

  EXPECT_EQ(list->size(), 2);
  EXPECT_TRUE(list->contains(first));
  EXPECT_TRUE(list->contains(second));
  EXPECT_FALSE(list->contains(third));
}

TEST_F(RevocationListTest, ANameThatNobodyHasCannotBeRevoked) {
  (void)issue("n1");

  const auto revoked = revoke_certificates({.folder = folder_, .role = "operator", .name = "n1"});

  ASSERT_FALSE(revoked);
  EXPECT_EQ(revoked.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(revoked.error().message(), HasSubstr("accel://default/operator/n1"));
}

TEST_F(RevocationListTest, AFolderToCopyHasTheListOfNow) {
  (void)issue("bad");
  revoke("bad");

  const std::string good = issue("good");

  EXPECT_EQ(text_of(folder_ + "/node-good/crl.pem"), text_of(list_));
}

TEST_F(RevocationListTest, RefusesAListThatItsAuthorityHasNotSigned) {
  (void)issue("n1");
  const std::string other = scratch_.path().string() + "/other";
  // Of the same name, with another key.
  (void)or_throw(issue_certificate({.folder = other, .role = "node", .name = "n1"}));
  write(list_, text_of(other + "/crl.pem"));

  EXPECT_THAT(why_not(), HasSubstr("was not signed by the authority"));
}

TEST_F(RevocationListTest, RefusesAListThatHasEnded) {
  (void)issue("n1");
  revoke("n1", -1);

  EXPECT_THAT(why_not(), HasSubstr("crl.pem has ended"));
}

TEST_F(RevocationListTest, RefusesWhatIsNoListOrACutOne) {
  (void)issue("n1");
  const std::string whole = text_of(list_);

  for (const std::string& text : {std::string(),
                                  std::string("no list"),
                                  whole.substr(0, whole.size() / 2),
                                  whole + whole.substr(0, 60)}) {
    write(list_, text);
    EXPECT_THAT(why_not(), HasSubstr("holds none that can be read")) << text;
  }
  ::unlink(list_.c_str());
  EXPECT_THAT(why_not(), HasSubstr("cannot be read"));
}

TEST_F(RevocationListTest, TakesANewListAndKeepsTheOneBeforeABadOne) {
  const std::string bad = text_of(issue("bad"));
  const auto list = or_throw(RevocationList::open(files()));
  EXPECT_FALSE(list->look_again().has_changed);
  EXPECT_FALSE(list->contains(bad));

  revoke("bad");
  const auto changed = list->look_again();
  EXPECT_TRUE(changed.has_changed);
  EXPECT_EQ(changed.warning, "");
  EXPECT_TRUE(list->contains(bad));

  const std::string good = text_of(list_);
  write(list_, "no list");
  const auto kept = list->look_again();
  EXPECT_FALSE(kept.has_changed);
  EXPECT_THAT(kept.warning, HasSubstr("the one of before is kept"));
  EXPECT_EQ(list->look_again().warning, "") << "each is said once";
  EXPECT_TRUE(list->contains(bad));

  write(list_, good);
  revoke("bad", -1);
  EXPECT_THAT(list->look_again().warning, HasSubstr("has ended"));
  EXPECT_TRUE(list->contains(bad));
}

}  // namespace
}  // namespace accel::agent::revocation_list_test
