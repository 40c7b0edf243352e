// The order of one pass, drawn as PyTorch draws it.
//
// Equal orders need equal numbers of draws, also between passes:
//   without replacement  torch.randperm(n) floor(k / n) times and once more for the rest of k
//   elements,
//                        even when that rest is empty;
//   no generator given   one 63-bit seed from the default generator, then a generator of its own.
// A pass that is begun again after an interruption must not draw from the default generator, whose
// state a checkpoint restores by itself: it uses the seed that was saved.

#include <bit>
#include <string>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>

#include <accel/error.h>
#include <accel/permutation.h>
#include <accel/samplers.h>

#include "libaccel/tensors/state_reader.h"

namespace accel {
namespace {

void append(Indices& list, const at::Tensor& values, std::int64_t count) {
  const auto* first = values.const_data_ptr<std::int64_t>();
  list.insert(list.end(), first, first + count);
}

std::int64_t draw_seed() {
  return at::empty({}, at::kLong).random_().item<std::int64_t>();
}

at::Generator seeded_generator(std::int64_t seed) {
  return at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
}

void check_not_empty(std::int64_t num_elements) {
  if (num_elements > 0) return;
  throw Error(ErrorCode::kInvalidArgument,
              "a random sampler needs at least 1 element, got " + std::to_string(num_elements),
              "check that the dataset was found and read; an empty one cannot be shuffled");
}

// As manual_seed() or set_seed() left it.
std::int64_t initial_seed_of_torch() {
  return static_cast<std::int64_t>(at::globalContext().defaultGenerator(at::kCPU).current_seed());
}

// Of samplers whose order is made of both.
StateDict state_of_seed(std::int64_t epoch, std::int64_t seed) {
  StateDict state;
  state.values["epoch"] = epoch;
  state.values["seed"] = seed;
  return state;
}

void load_state_of_seed(const char* sampler,
                        const StateDict& state,
                        std::int64_t& epoch,
                        std::int64_t& seed) {
  const StateReader reader(sampler, state);
  const std::int64_t saved_epoch = reader.integer("epoch");
  seed = reader.integer("seed");
  epoch = saved_epoch;
}

}  // namespace

RandomSampler::RandomSampler(std::int64_t num_elements, RandomSamplerOptions options)
    : num_elements_(num_elements), options_(std::move(options)) {
  check_not_empty(num_elements);
  if (options_.num_samples && *options_.num_samples <= 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "num_samples must be positive, got " + std::to_string(*options_.num_samples));
  }
}

std::int64_t RandomSampler::size() const {
  return options_.num_samples.value_or(num_elements_);
}

IndexOrder RandomSampler::begin_pass() {
  if (options_.generator.defined()) {
    state_before_pass_ = options_.generator.get_state();
    return draw(options_.generator);
  }
  seed_of_pass_ = seed_to_repeat_ ? std::exchange(seed_to_repeat_, std::nullopt) : draw_seed();
  return draw(seeded_generator(*seed_of_pass_));
}

void RandomSampler::end_pass() {
  state_before_pass_.reset();
  seed_of_pass_.reset();
}

IndexOrder RandomSampler::draw(at::Generator generator) const {
  const std::int64_t wanted = size();
  Indices list;
  list.reserve(static_cast<size_t>(wanted));
  if (options_.replacement) {
    append(list, at::randint(num_elements_, {wanted}, generator, at::kLong), wanted);
    return IndexOrder(std::move(list));
  }
  for (std::int64_t pass = 0; pass < wanted / num_elements_; ++pass) {
    append(list, at::randperm(num_elements_, generator, at::kLong), num_elements_);
  }
  append(list, at::randperm(num_elements_, generator, at::kLong), wanted % num_elements_);
  return IndexOrder(std::move(list));
}

StateDict RandomSampler::state_dict() const {
  StateDict state;
  if (options_.generator.defined()) {
    state.tensors["generator"] =
        state_before_pass_.defined() ? state_before_pass_ : options_.generator.get_state();
  } else if (seed_of_pass_) {
    state.values["seed"] = *seed_of_pass_;
  }
  return state;
}

void RandomSampler::load_state_dict(const StateDict& state) {
  const StateReader reader("a random sampler", state);
  end_pass();
  seed_to_repeat_.reset();
  if (options_.generator.defined()) {
    options_.generator.set_state(reader.tensor("generator"));
  } else if (reader.has("seed")) {
    seed_to_repeat_ = reader.integer("seed");
  }
}

SeedableRandomSampler::SeedableRandomSampler(std::int64_t num_elements,
                                             std::optional<std::int64_t> seed,
                                             RandomSamplerOptions options)
    : RandomSampler(num_elements, std::move(options)),
      initial_seed_(seed ? *seed : initial_seed_of_torch()) {}

IndexOrder SeedableRandomSampler::begin_pass() {
  // The sum wraps around as the generator's 64-bit seed does.
  const auto seed = static_cast<std::uint64_t>(epoch_) + static_cast<std::uint64_t>(initial_seed_);
  at::Generator generator = options().generator;
  if (!generator.defined()) return draw(seeded_generator(static_cast<std::int64_t>(seed)));
  generator.set_current_seed(seed);
  return draw(generator);
}

StateDict SeedableRandomSampler::state_dict() const {
  return state_of_seed(epoch_, initial_seed_);
}

void SeedableRandomSampler::load_state_dict(const StateDict& state) {
  load_state_of_seed("a seedable sampler", state, epoch_, initial_seed_);
}

PermutationSampler::PermutationSampler(std::int64_t num_elements, std::optional<std::int64_t> seed)
    : num_elements_(num_elements), seed_(seed ? *seed : initial_seed_of_torch()) {
  check_not_empty(num_elements);
}

IndexOrder PermutationSampler::begin_pass() {
  const std::uint64_t key =
      static_cast<std::uint64_t>(seed_) ^ std::rotl(static_cast<std::uint64_t>(epoch_), 32);
  return IndexOrder(std::make_shared<const Permutation>(num_elements_, key));
}

StateDict PermutationSampler::state_dict() const {
  return state_of_seed(epoch_, seed_);
}

void PermutationSampler::load_state_dict(const StateDict& state) {
  load_state_of_seed("a permutation sampler", state, epoch_, seed_);
}

}  // namespace accel
