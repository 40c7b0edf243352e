// Pickle: the values of a Python pickle, read without running anything.
//
// A pickle is a program for a stack machine, which in Python imports what it names and calls it. Here a name stays a name and
// a call is only noted: `os.system("rm")` would become an object with a callable, "os system", and its arguments. As a second
// fence every name must be on the list that the caller gives. Read are the opcodes that Python's pickle writes with the
// protocols 2 to 5; those of protocol 0, which are lines of text, are not.
//
// Values are nodes of one table and refer to each other by number, so a value that contains itself is harmless: nobody
// follows it unless a reader of a known shape asks for the next level.
//
// Threads:  a value type.
// Cost:     one pass. A node has 56 bytes, and 32 or more for what it contains. There is at most one for two bytes of the pickle:
//           some 100 bytes of memory for each of them while the table grows, and at kMostPickleNodes, which a pickle of 64 MiB can
//           reach, 3 to 4 GB. What PyTorch writes has half as many nodes at most. Texts are views of the input.
// Source:   Python's Lib/pickletools.py; tests/unit/launcher/merge/pickle_test.cc, tests/fuzz/fuzz_pickle.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

namespace accel::launcher {

// A million chunks of tensors need some 30 million.
inline constexpr std::size_t kMostPickleNodes = std::size_t{1} << 25;

enum class PickleKind : std::uint8_t {
  kNone,
  kBool,
  kInteger,
  kFloat,
  kText,        // str and bytes
  kTuple,       // and frozenset
  kList,        // and set
  kDict,        // items: key, value, key, value ...
  kName,        // text: "module name"
  kObject,      // a callable, what it was called with, and its state
  kPersistent,  // items: what the persistent id was made of
};

using PickleNode = std::uint32_t;  // a number in the table

class Pickle {
 public:
  struct Node {
    PickleKind kind = PickleKind::kNone;
    std::int64_t integer = 0;  // of kBool too
    std::string_view text;
    // kTuple, kList, kDict, kPersistent: as said there. kObject: callable, arguments, state (or kNoNode), then what was
    // appended to it or, by key and value, set in it.
    std::vector<PickleNode> items;
  };
  static constexpr PickleNode kNoNode = ~PickleNode{0};

  [[nodiscard]] PickleNode root() const noexcept { return root_; }
  // Requires a number that this pickle gave.
  [[nodiscard]] const Node& at(PickleNode node) const { return nodes_[node]; }

  // nullopt: it is something else.
  [[nodiscard]] std::optional<std::int64_t> integer(PickleNode node) const;
  [[nodiscard]] std::optional<std::string_view> text(PickleNode node) const;
  [[nodiscard]] std::optional<std::string_view> name(PickleNode node) const;
  // The items of a tuple or list.
  [[nodiscard]] std::optional<std::span<const PickleNode>> sequence(PickleNode node) const;
  // Keys and values, in turn, of a dict or an OrderedDict.
  [[nodiscard]] std::optional<std::span<const PickleNode>> entries(PickleNode node) const;
  // The callable's name, and the arguments, of an object.
  [[nodiscard]] std::optional<std::string_view> made_by(PickleNode node) const;
  [[nodiscard]] std::span<const PickleNode> arguments(PickleNode node) const;
  // The value of `key` in a dict, or in an object's state when that is a dict.
  [[nodiscard]] std::optional<PickleNode> field(PickleNode node, std::string_view key) const;

 private:
  friend class PickleMachine;

  std::vector<Node> nodes_;
  PickleNode root_ = 0;
};

// `bytes` must live as long as the result. `allowed`: what the pickle may name, as "module name".
// Errors  kUnsupported: a name that is not allowed, an opcode that is not read (both are named, with their place);
//         kCheckpointIncomplete: it is cut short, damaged or too large.
[[nodiscard]] Result<Pickle> read_pickle(std::string_view bytes,
                                         std::span<const std::string_view> allowed);

}  // namespace accel::launcher
