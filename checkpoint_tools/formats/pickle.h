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
// Cost:     one pass. A node has 16 bytes, what it contains 4 for each item, and twice that when it grew. There is at most one node
//           for two bytes of the pickle, so that 64 MiB take 0.7 GB at most, whatever is in them; metadata of that size, which has half
//           as many nodes, takes half. Texts are views of the input.
// Source:   Python's Lib/pickletools.py; tests/unit/checkpoint_tools/pickle_test.cc, tests/fuzz/fuzz_pickle.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <string_view>

#include <accel/result.h>

namespace accel::launcher {

// A million chunks of tensors need some 30 million.
inline constexpr std::size_t kMostPickleNodes = std::size_t{1} << 25;
// What has fields by name is an object of PyTorch with a few of them: a hostile one shall not be searched for each of many.
inline constexpr std::size_t kMostFields = 64;

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
  [[nodiscard]] PickleNode root() const noexcept { return root_; }

  // All functions require a number that this pickle gave.
  [[nodiscard]] PickleKind kind(PickleNode node) const { return nodes_[node].kind; }
  // nullopt: it is something else.
  [[nodiscard]] std::optional<std::int64_t> integer(PickleNode node) const;
  [[nodiscard]] std::optional<bool> boolean(PickleNode node) const;
  [[nodiscard]] std::optional<double> real(PickleNode node) const;
  [[nodiscard]] std::optional<std::string_view> text(PickleNode node) const;
  [[nodiscard]] std::optional<std::string_view> name(PickleNode node) const;
  // The items of a tuple or list.
  [[nodiscard]] std::optional<std::span<const PickleNode>> sequence(PickleNode node) const;
  // Keys and values, in turn, of a dict or an OrderedDict.
  [[nodiscard]] std::optional<std::span<const PickleNode>> entries(PickleNode node) const;
  // What a persistent id was made of.
  [[nodiscard]] std::optional<std::span<const PickleNode>> persistent_id(PickleNode node) const;
  // The callable's name, the arguments, and the state of an object.
  [[nodiscard]] std::optional<std::string_view> made_by(PickleNode node) const;
  [[nodiscard]] std::span<const PickleNode> arguments(PickleNode node) const;
  [[nodiscard]] std::optional<PickleNode> state(PickleNode node) const;
  // The value of `key` in a dict, or in an object's state when that is a dict: among its first kMostFields.
  [[nodiscard]] std::optional<PickleNode> field(PickleNode node, std::string_view key) const;

 private:
  friend class PickleMachine;

  static constexpr PickleNode kNoNode = ~PickleNode{0};
  static constexpr std::size_t kObjectHead = 3;  // callable, arguments, state (or kNoNode)

  // kObject: its head, then what was appended to it or, by key and value, set in it.
  struct Node {
    PickleKind kind = PickleKind::kNone;
    bool has_room = false;    // the items lie in memory for bit_ceil(count) of them
    std::uint32_t count = 0;  // bytes of the text, or items
    union {
      std::int64_t integer = 0;  // of kBool too
      const char* text;
      PickleNode* items;
    };
  };
  static_assert(sizeof(Node) == 16);

  [[nodiscard]] std::span<PickleNode> items(PickleNode node) const {
    return {nodes_[node].items, nodes_[node].count};
  }
  // Requires a container. `values` must not be its own items.
  void add_items(PickleNode node, std::span<const PickleNode> values);

  std::deque<Node> nodes_;
  std::unique_ptr<std::pmr::monotonic_buffer_resource> memory_ =
      std::make_unique<std::pmr::monotonic_buffer_resource>();  // of items
  PickleNode root_ = 0;
};

// `bytes` must live as long as the result. `allowed`: what the pickle may name, as "module name".
// Errors  kUnsupported: a name that is not allowed, an opcode that is not read (both are named, with their place);
//         kCheckpointIncomplete: it is cut short, damaged or too large.
[[nodiscard]] Result<Pickle> read_pickle(std::string_view bytes,
                                         std::span<const std::string_view> allowed);

}  // namespace accel::launcher
