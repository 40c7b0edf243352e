// Block by block: the accumulators of one block stay in the first cache while the operands pass by, and the loop over a
// block has no branch, whatever the operation.
//
// Sums of floating-point numbers are compiled for wider vectors too, and chosen by what the processor has. Each element is
// added as before, and nothing is contracted, so the bits are those of the narrow ones.

#include "libaccel/engine/shm/numbers/reduction.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "libaccel/engine/shm/numbers/half.h"

namespace accel::shm {
namespace {

constexpr std::size_t kBlock = 1024;  // elements: 4 or 8 KiB of accumulators

// What values are accumulated in, and how they come and go.
template <typename T>
struct Accumulated {
  // Whole numbers wrap around without being undefined.
  using type = typename std::
      conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
  static type load(T value) { return static_cast<type>(value); }
  static T store(type value) { return static_cast<T>(value); }
};
template <>
struct Accumulated<Half> {
  using type = float;
  static float load(Half value) { return to_float(value); }
  static Half store(float value) { return to_half(value); }
};
template <>
struct Accumulated<BFloat16> {
  using type = float;
  static float load(BFloat16 value) { return to_float(value); }
  static BFloat16 store(float value) { return to_bfloat16(value); }
};

// Multiplied by the formula; the checks for infinite parts that C makes would be half of the work.
template <typename T>
struct Complex {
  T real;
  T imaginary;

  friend Complex operator*(const Complex& a, const Complex& b) {
    return {static_cast<T>(a.real * b.real - a.imaginary * b.imaginary),
            static_cast<T>(a.real * b.imaginary + a.imaginary * b.real)};
  }
};
template <>
struct Accumulated<Complex<Half>> {
  using type = Complex<float>;
  static type load(const Complex<Half>& value) {
    return {to_float(value.real), to_float(value.imaginary)};
  }
  static Complex<Half> store(const type& value) {
    return {to_half(value.real), to_half(value.imaginary)};
  }
};

struct Sum {
  template <typename T, typename A>
  static A apply(A a, A b) {
    return static_cast<A>(a + b);
  }
};
struct Product {
  template <typename T, typename A>
  static A apply(A a, A b) {
    // The product of two short unsigned numbers would be one of signed ints, which may overflow.
    if constexpr (std::is_integral_v<A>) {
      return static_cast<A>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    } else {
      return a * b;
    }
  }
};
struct Min {
  template <typename T, typename A>
  static A apply(A a, A b) {
    if constexpr (std::is_floating_point_v<A>) {
      return a < b || a != a ? a : b;
    } else {
      return static_cast<T>(b) < static_cast<T>(a) ? b : a;
    }
  }
};
struct Max {
  template <typename T, typename A>
  static A apply(A a, A b) {
    if constexpr (std::is_floating_point_v<A>) {
      return a > b || a != a ? a : b;
    } else {
      return static_cast<T>(a) < static_cast<T>(b) ? b : a;
    }
  }
};
struct BitAnd {
  template <typename T, typename A>
  static A apply(A a, A b) {
    return static_cast<A>(a & b);
  }
};
struct BitOr {
  template <typename T, typename A>
  static A apply(A a, A b) {
    return static_cast<A>(a | b);
  }
};
struct BitXor {
  template <typename T, typename A>
  static A apply(A a, A b) {
    return static_cast<A>(a ^ b);
  }
};

// The average of so many, of their sum.
template <typename T, typename A>
[[gnu::always_inline]] inline A divided(A sum, std::size_t divisor) {
  if constexpr (std::is_integral_v<T>) {
    // In 64 bits: the number of ranks may be more than a small type holds.
    using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
    return static_cast<A>(static_cast<Wide>(static_cast<T>(sum)) / static_cast<Wide>(divisor));
  } else {
    return sum / static_cast<A>(divisor);
  }
}

// How an element of an operand comes to be added up.
template <typename T>
struct AsItIs {
  using A = typename Accumulated<T>::type;
  A operator()(T value) const { return Accumulated<T>::load(value); }
};
// Multiplied, and rounded to its type, as if the product had been written before.
template <typename T>
struct Scaled {
  using A = typename Accumulated<T>::type;
  A factor;
  A operator()(T value) const {
    return Accumulated<T>::load(
        Accumulated<T>::store(static_cast<A>(Accumulated<T>::load(value) * factor)));
  }
};

// Few operands need no accumulators in memory. `out` may be an operand, element by element: the loop depends on nothing that
// it has written.
template <typename T, typename Op, typename Load, std::size_t... kRest>
[[gnu::always_inline]] inline void reduce_few(std::span<const std::byte* const> operands,
                                              std::size_t count,
                                              std::byte* out,
                                              bool is_average,
                                              const Load& load,
                                              std::index_sequence<kRest...>) {
  using A = typename Accumulated<T>::type;
  const T* const first = reinterpret_cast<const T*>(operands[0]);
  const std::array<const T*, sizeof...(kRest)> rest = {
      reinterpret_cast<const T*>(operands[1 + kRest])...};
  T* const results = reinterpret_cast<T*>(out);
  const auto reduced = [&](std::size_t i) {
    A sum = load(first[i]);
    ((sum = Op::template apply<T, A>(sum, load(rest[kRest][i]))), ...);
    return sum;
  };
  if constexpr (!std::is_class_v<A>) {
    if (is_average) {
#pragma omp simd
      for (std::size_t i = 0; i < count; ++i)
        results[i] = Accumulated<T>::store(divided<T>(reduced(i), 1 + sizeof...(kRest)));
      return;
    }
  }
#pragma omp simd
  for (std::size_t i = 0; i < count; ++i) results[i] = Accumulated<T>::store(reduced(i));
}

template <typename T, typename Op, typename Load = AsItIs<T>>
[[gnu::always_inline]] inline void reduce_all(std::span<const std::byte* const> operands,
                                              std::size_t count,
                                              std::byte* out,
                                              bool is_average,
                                              const Load& load = {}) {
  using A = typename Accumulated<T>::type;
  switch (operands.size()) {
    case 2:
      return reduce_few<T, Op>(
          operands, count, out, is_average, load, std::make_index_sequence<1>());
    case 3:
      return reduce_few<T, Op>(
          operands, count, out, is_average, load, std::make_index_sequence<2>());
    case 4:
      return reduce_few<T, Op>(
          operands, count, out, is_average, load, std::make_index_sequence<3>());
    default:
      break;
  }
  A sums[kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, count - begin);
    const T* first = reinterpret_cast<const T*>(operands[0]) + begin;
    for (std::size_t i = 0; i < size; ++i) sums[i] = load(first[i]);
    for (const std::byte* operand : operands.subspan(1)) {
      const T* next = reinterpret_cast<const T*>(operand) + begin;
      for (std::size_t i = 0; i < size; ++i)
        sums[i] = Op::template apply<T, A>(sums[i], load(next[i]));
    }
    if constexpr (!std::is_class_v<A>) {
      for (std::size_t i = 0; is_average && i < size; ++i)
        sums[i] = divided<T>(sums[i], operands.size());
    }
    T* results = reinterpret_cast<T*>(out) + begin;
    for (std::size_t i = 0; i < size; ++i) results[i] = Accumulated<T>::store(sums[i]);
  }
}

template <typename T, typename Op>
void reduce_as(std::span<const std::byte* const> operands,
               std::size_t count,
               std::byte* out,
               bool is_average) {
  reduce_all<T, Op>(operands, count, out, is_average);
}

template <typename T>
void sum_scaled_as(std::span<const std::byte* const> operands,
                   std::size_t count,
                   std::byte* out,
                   typename Accumulated<T>::type factor) {
  reduce_all<T, Sum>(operands, count, out, false, Scaled<T>{factor});
}

#if defined(__x86_64__)
template <typename T, typename Op>
[[gnu::target("avx2"), gnu::flatten]] void reduce_wide(std::span<const std::byte* const> operands,
                                                       std::size_t count,
                                                       std::byte* out,
                                                       bool is_average) {
  reduce_all<T, Op>(operands, count, out, is_average);
}
template <typename T>
[[gnu::target("avx2"), gnu::flatten]] void sum_scaled_wide(
    std::span<const std::byte* const> operands,
    std::size_t count,
    std::byte* out,
    typename Accumulated<T>::type factor) {
  reduce_all<T, Sum>(operands, count, out, false, Scaled<T>{factor});
}
bool has_wide_vectors() {
  return __builtin_cpu_supports("avx2") != 0;
}
#else
template <typename T, typename Op>
constexpr auto reduce_wide = reduce_as<T, Op>;
template <typename T>
constexpr auto sum_scaled_wide = sum_scaled_as<T>;
bool has_wide_vectors() {
  return false;
}
#endif

// A function for each type, by operation.
using Reducer = void (*)(std::span<const std::byte* const>, std::size_t, std::byte*, bool);

template <typename T>
Reducer reducer_of(ReduceOp op) {
  constexpr bool has_bits = std::is_integral_v<T>;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      if constexpr (!std::is_integral_v<T>) {
        if (has_wide_vectors()) return reduce_wide<T, Sum>;
      }
      return reduce_as<T, Sum>;
    case ReduceOp::kProduct:
      return reduce_as<T, Product>;
    case ReduceOp::kMin:
      return reduce_as<T, Min>;
    case ReduceOp::kMax:
      return reduce_as<T, Max>;
    case ReduceOp::kBitAnd:
      if constexpr (has_bits) return reduce_as<T, BitAnd>;
      break;
    case ReduceOp::kBitOr:
      if constexpr (has_bits) return reduce_as<T, BitOr>;
      break;
    case ReduceOp::kBitXor:
      if constexpr (has_bits) return reduce_as<T, BitXor>;
      break;
  }
  return nullptr;
}

// A byte that is 0 or 1.
Reducer reducer_of_bool(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBitAnd:
      return reduce_as<std::uint8_t, BitAnd>;
    case ReduceOp::kBitXor:
      return reduce_as<std::uint8_t, BitXor>;
    default:
      return reduce_as<std::uint8_t, BitOr>;
  }
}

// visitor(std::type_identity<T>()) for the type of real numbers.
template <typename Visitor>
auto visit_number(DataType type, Visitor visitor) {
  switch (type) {
    case DataType::kFloat32:
      return visitor(std::type_identity<float>());
    case DataType::kFloat64:
      return visitor(std::type_identity<double>());
    case DataType::kFloat16:
      return visitor(std::type_identity<Half>());
    case DataType::kBFloat16:
      return visitor(std::type_identity<BFloat16>());
    case DataType::kInt8:
      return visitor(std::type_identity<std::int8_t>());
    case DataType::kInt16:
      return visitor(std::type_identity<std::int16_t>());
    case DataType::kInt32:
      return visitor(std::type_identity<std::int32_t>());
    case DataType::kInt64:
      return visitor(std::type_identity<std::int64_t>());
    case DataType::kUInt16:
      return visitor(std::type_identity<std::uint16_t>());
    case DataType::kUInt32:
      return visitor(std::type_identity<std::uint32_t>());
    case DataType::kUInt64:
      return visitor(std::type_identity<std::uint64_t>());
    default:
      return visitor(std::type_identity<std::uint8_t>());
  }
}

Reducer reducer_of(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kBool:
      return reducer_of_bool(op);
    // Their product alone is defined.
    case DataType::kComplex32:
      return reduce_as<Complex<Half>, Product>;
    case DataType::kComplex64:
      return reduce_as<Complex<float>, Product>;
    case DataType::kComplex128:
      return reduce_as<Complex<double>, Product>;
    default:
      break;
  }
  return visit_number(type, [op]<typename T>(std::type_identity<T>) { return reducer_of<T>(op); });
}

}  // namespace

void reduce_elements(std::span<const std::byte* const> operands,
                     std::size_t count,
                     DataType type,
                     ReduceOp op,
                     std::byte* out) noexcept {
  reducer_of(type, op)(operands, count, out, op == ReduceOp::kAverage);
}

void sum_scaled(std::span<const std::byte* const> operands,
                std::size_t count,
                DataType type,
                double factor,
                std::byte* out) noexcept {
  visit_number(type, [&]<typename T>(std::type_identity<T>) {
    if constexpr (!std::is_integral_v<T>) {
      const auto sum = has_wide_vectors() ? sum_scaled_wide<T> : sum_scaled_as<T>;
      sum(operands, count, out, static_cast<typename Accumulated<T>::type>(factor));
    }
  });
}

void divide_elements(std::byte* sums,
                     std::size_t count,
                     DataType type,
                     std::size_t divisor) noexcept {
  visit_number(type, [&]<typename T>(std::type_identity<T>) {
    T* const values = reinterpret_cast<T*>(sums);
    for (std::size_t i = 0; i < count; ++i)
      values[i] = Accumulated<T>::store(divided<T>(Accumulated<T>::load(values[i]), divisor));
  });
}

}  // namespace accel::shm
