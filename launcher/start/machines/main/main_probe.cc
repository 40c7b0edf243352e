#include "launcher/start/machines/main/main_probe.h"

#include <chrono>
#include <string>
#include <utility>

#include "launcher/start/machines/board/agreement.h"
#include "launcher/start/machines/board/board.h"

namespace accel::launcher {
namespace {

constexpr std::chrono::milliseconds kAskAgain(250);
constexpr std::chrono::milliseconds kAskForAnswer(50);  // of machine 0, that it lives

}  // namespace

MainProbe::MainProbe(boost::asio::io_context& context,
                     MachineCard card,
                     BoardSeal seal,
                     Program program,
                     std::string port_flag,
                     std::function<void(const Error&)> on_other)
    : card_(std::move(card)),
      seal_(std::move(seal)),
      program_(program),
      port_flag_(std::move(port_flag)),
      on_other_(std::move(on_other)),
      pause_(context),
      link_(context, {.on_up = [this] { ask(); }, .on_trouble = [](const Error&) {}}) {
  seal_.begin(card_, false);
}

void MainProbe::ask() {
  supervisor::StoreExchange wanted;
  wanted.reads.emplace_back(board_key::kHost);
  link_.exchange(seal_.seal(wanted), [this, wanted](const supervisor::StoreAnswer& answer) {
    judge(seal_.open(wanted, answer).at(board_key::kHost));
  });
}

void MainProbe::judge(const std::string& host) {
  const auto other = card_from(host);
  if (other && other->id == card_.id) return link_.close();  // the address is translated to us
  if (const auto why = seal_.distrust()) {
    link_.close();
    return on_other_(*why);
  }
  // Of the way to the other one: ours is not the address that names machine 0.
  card_.address = link_.local_endpoint().address().to_string();
  if (other) {
    return tell(find_disagreement(*other, card_, program_)
                    .value_or(rank_is_taken(*other, card_, program_, port_flag_)));
  }
  pause_.expires_after(seal_.is_asking() ? kAskForAnswer : kAskAgain);
  pause_.async_wait([this](const boost::system::error_code& cancelled) {
    if (!cancelled && link_.is_idle()) ask();
  });
}

void MainProbe::tell(const Error& why) {
  supervisor::StoreExchange fault;
  fault.swaps.push_back(
      {std::string(board_key::kFault), "", to_text(failed_verdict(why, card_.rank))});
  link_.exchange(seal_.seal(fault), [this, why](const supervisor::StoreAnswer&) {
    link_.close();
    on_other_(why);
  });
}

}  // namespace accel::launcher
