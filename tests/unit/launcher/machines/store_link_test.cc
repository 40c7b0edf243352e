// StoreLink over real sockets: which address of a name it takes after one is refused or broken.

#include "launcher/start/machines/main/store_link.h"

#include <gtest/gtest.h>

#include "tests/support/reserved_port.h"

namespace accel::launcher::store_link_test {
namespace {

using boost::asio::ip::tcp;

constexpr StorePauses kNoPauses{.connect = {}, .look_up = {}};

tcp::endpoint any_port() {
  return {boost::asio::ip::address_v4::loopback(), 0};
}

// Nobody listens there.
tcp::endpoint at(const test::ReservedPort& port) {
  return {boost::asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(port.port())};
}

TEST(StoreLink, GoesBackToTheAddressThatWorkedAndJudgesAfterOneRound) {
  boost::asio::io_context loop;
  const test::ReservedPort silent;
  const tcp::endpoint refusing = at(silent);
  tcp::acceptor store(loop, any_port());
  std::vector<bool> rounds_over;
  int num_ups = 0;
  StoreLink* link = nullptr;
  StoreLink owned(
      loop,
      {.on_up =
           [&] {
             if (++num_ups == 2) return loop.stop();
             supervisor::StoreExchange wanted;
             wanted.reads.emplace_back("key");
             link->exchange(wanted, [](const supervisor::StoreAnswer&) {});
             tcp::socket(store.accept()).close();  // it breaks
           },
       .on_trouble = [&](const Error&) { rounds_over.push_back(link->has_tried_all()); }},
      kNoPauses);
  link = &owned;
  owned.open({refusing, store.local_endpoint()});
  loop.run_for(std::chrono::seconds(20));
  EXPECT_EQ(num_ups, 2);
  EXPECT_EQ(rounds_over, (std::vector<bool>{false, false}));  // refused; broken; and up again
}

TEST(StoreLink, HasTriedAllWhenEachAddressRefused) {
  boost::asio::io_context loop;
  const test::ReservedPort silent;
  const tcp::endpoint refusing = at(silent);
  int num_troubles = 0;
  StoreLink* link = nullptr;
  StoreLink owned(loop,
                  {.on_up = [] {},
                   .on_trouble =
                       [&](const Error&) {
                         EXPECT_EQ(link->has_tried_all(), ++num_troubles == 2);
                         if (num_troubles == 2) loop.stop();
                       }},
                  kNoPauses);
  link = &owned;
  owned.open({refusing, refusing});
  loop.run_for(std::chrono::seconds(20));
  EXPECT_EQ(num_troubles, 2);
}

TEST(StoreLink, TriesWhereTheNameLeadsByNow) {
  boost::asio::io_context loop;
  const test::ReservedPort silent;
  const tcp::endpoint refusing = at(silent);
  tcp::acceptor store(loop, any_port());
  bool is_up = false;
  StoreLink* link = nullptr;
  StoreLink owned(loop,
                  {.on_up =
                       [&] {
                         is_up = true;
                         loop.stop();
                       },
                   .on_trouble = [&](const Error&) { link->move_to({store.local_endpoint()}); }},
                  kNoPauses);
  link = &owned;
  owned.open({refusing});
  loop.run_for(std::chrono::seconds(20));
  EXPECT_TRUE(is_up);
}

TEST(StoreLink, BeginsWithTheFirstOfTheAddressesThatItMovedTo) {
  boost::asio::io_context loop;
  const test::ReservedPort silent;
  const tcp::endpoint refusing = at(silent);
  tcp::acceptor store(loop, any_port());
  int num_troubles = 0;
  StoreLink* link = nullptr;
  StoreLink owned(loop,
                  {.on_up = [&] { loop.stop(); },
                   .on_trouble =
                       [&](const Error&) {
                         ++num_troubles;
                         link->move_to({store.local_endpoint(), refusing});
                       }},
                  kNoPauses);
  link = &owned;
  owned.open({refusing, refusing});
  loop.run_for(std::chrono::seconds(20));
  EXPECT_TRUE(owned.is_up());
  EXPECT_EQ(num_troubles, 1);
}

TEST(StoreLink, TryThatIsUnderWayWhenItMovesIsNoneOfTheNewAddresses) {
  boost::asio::io_context loop;
  const test::ReservedPort silent;
  const tcp::endpoint refusing = at(silent);
  std::vector<bool> rounds_over;
  StoreLink* link = nullptr;
  StoreLink owned(loop,
                  {.on_up = [] {},
                   .on_trouble =
                       [&](const Error&) {
                         rounds_over.push_back(link->has_tried_all());
                         if (rounds_over.back()) loop.stop();
                       }},
                  kNoPauses);
  link = &owned;
  owned.open({refusing});
  owned.move_to({refusing, refusing});
  loop.run_for(std::chrono::seconds(20));
  EXPECT_EQ(rounds_over, (std::vector<bool>{false, false, true}));
}

}  // namespace
}  // namespace accel::launcher::store_link_test
