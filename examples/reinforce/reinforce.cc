// Reinforcement learning: REINFORCE balances a pole on a cart. Each rank plays games of its own, the gradients are those of all.
//
//   accel-launch --cpu --num_processes 2 build/examples/reinforce
//
// Source: the cart's equations and bounds are those of Barto, Sutton, Anderson (1983), as in Gymnasium's CartPole-v1.

#include <cmath>
#include <vector>

#include <torch/torch.h>

#include <accel/accel.h>

namespace {

constexpr int kMaxSteps = 200;
constexpr double kDiscount = 0.99;

// Many carts at once. states: [N, 4], place, speed, angle, its speed.
struct Carts {
  torch::Tensor states;
  torch::Tensor are_up;  // [N], 1 until the pole falls or the cart leaves

  explicit Carts(std::int64_t number)
      : states(torch::rand({number, 4}) * 0.1 - 0.05), are_up(torch::ones({number})) {}

  void push(const torch::Tensor& to_the_right) {
    const auto force = to_the_right.to(torch::kFloat) * 20 - 10;
    const auto parts = states.unbind(1);
    const auto &x = parts[0], &dx = parts[1], &angle = parts[2], &spin = parts[3];
    const auto sine = angle.sin(), cosine = angle.cos();
    const auto pull =
        (force + 0.05 * spin.square() * sine) / 1.1;  // kg: pole 0.1, cart 1; half a pole: 0.5 m
    const auto turn =
        (9.8 * sine - cosine * pull) / (0.5 * (4.0 / 3 - 0.1 * cosine.square() / 1.1));
    const auto drive = pull - 0.05 * turn * cosine / 1.1;
    constexpr double kSeconds = 0.02;
    states = torch::stack(
        {x + kSeconds * dx, dx + kSeconds * drive, angle + kSeconds * spin, spin + kSeconds * turn},
        1);
    const auto stays =
        (states.select(1, 0).abs() < 2.4) & (states.select(1, 2).abs() < 12 * M_PI / 180);
    are_up = are_up * stays.to(torch::kFloat);
  }
};

struct Games {
  torch::Tensor states;   // [T, N, 4]
  torch::Tensor actions;  // [T, N]
  torch::Tensor are_on;   // [T, N], 1 while the game went on: also the reward of the step
};

Games play(torch::nn::Sequential& policy, std::int64_t number) {
  torch::NoGradGuard no_grad;
  Carts carts(number);
  std::vector<torch::Tensor> states, actions, are_on;
  for (int step = 0; step < kMaxSteps && carts.are_up.any().item<bool>(); ++step) {
    states.push_back(carts.states);
    are_on.push_back(carts.are_up);
    actions.push_back(torch::multinomial(policy->forward(carts.states).softmax(1), 1).squeeze(1));
    carts.push(actions.back());
  }
  return {torch::stack(states), torch::stack(actions), torch::stack(are_on)};
}

// What follows each step, discounted.
torch::Tensor returns_of(const torch::Tensor& rewards) {
  auto returns = torch::zeros_like(rewards);
  auto sum = torch::zeros_like(rewards[0]);
  for (std::int64_t step = rewards.size(0) - 1; step >= 0; --step)
    returns[step] = sum = rewards[step] + kDiscount * sum;
  return returns;
}

}  // namespace

int main() {
  accel::Accelerator accelerator;
  accel::set_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(4, 64), torch::nn::Tanh(), torch::nn::Linear(64, 2));
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(1e-2));
  auto [policy, optimizer] = accelerator.prepare(net, adam);

  accel::set_seed(0, {.device_specific = true});  // other games on each rank
  for (int update = 1; update <= 40; ++update) {
    const Games games = play(net, 16);
    const auto is_on = games.are_on.to(torch::kBool);
    const auto returns = returns_of(games.are_on).masked_select(is_on);
    const auto advantages = (returns - returns.mean()) / (returns.std() + 1e-6);
    const auto chances = policy(games.states).log_softmax(2);
    const auto taken =
        chances.gather(2, games.actions.unsqueeze(2)).squeeze(2).masked_select(is_on);
    optimizer.zero_grad();
    accelerator.backward(-(taken * advantages).mean());
    optimizer.step();

    const auto steps = accelerator.reduce(games.are_on.sum(0).mean(), accel::Reduction::kMean);
    if (update % 10 == 0 || update == 1)
      accelerator.print("update", update, "steps", steps.item<float>());
  }
  accelerator.end_training();
}
