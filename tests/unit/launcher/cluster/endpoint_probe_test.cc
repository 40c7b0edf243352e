#include "launcher/cluster/meeting/endpoint_probe.h"

#include <boost/asio/ip/address_v4.hpp>
#include <gtest/gtest.h>

#include "tests/support/reserved_port.h"

namespace accel::cluster::endpoint_probe_test {
namespace {

using boost::asio::ip::tcp;

class EndpointProbeTest : public ::testing::Test {
 protected:
  static tcp::endpoint loopback_at(int port) {
    return {boost::asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(port)};
  }

  // Until there is nothing more to wait for.
  void run() {
    loop_.restart();
    loop_.run();
  }

  boost::asio::io_context loop_;
  test::ReservedPort silent_;
  tcp::acceptor listener_{loop_, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)};
  EndpointProbe probe_{loop_};
};

TEST_F(EndpointProbeTest, SaysWhenNobodyListens) {
  probe_.ask(loopback_at(silent_.port()));
  EXPECT_FALSE(probe_.is_refused());
  run();
  EXPECT_TRUE(probe_.is_refused());
}

TEST_F(EndpointProbeTest, WhoListensHasNotRefused) {
  probe_.ask(loopback_at(silent_.port()));
  run();
  probe_.ask(loopback_at(listener_.local_endpoint().port()));
  EXPECT_TRUE(probe_.is_refused());
  run();
  EXPECT_FALSE(probe_.is_refused());
}

TEST_F(EndpointProbeTest, WhoDidNotAnswerUntilTheNextQuestionHasNotRefused) {
  probe_.ask(loopback_at(silent_.port()));
  run();
  probe_.ask(loopback_at(silent_.port()));
  EXPECT_TRUE(probe_.is_refused());
  probe_.ask(loopback_at(silent_.port()));
  EXPECT_FALSE(probe_.is_refused());
  run();
  EXPECT_TRUE(probe_.is_refused());
}

TEST_F(EndpointProbeTest, AnAnswerThatComesTooLateSaysNothing) {
  probe_.ask(loopback_at(silent_.port()));
  probe_.forget();
  run();
  EXPECT_FALSE(probe_.is_refused());
}

}  // namespace
}  // namespace accel::cluster::endpoint_probe_test
