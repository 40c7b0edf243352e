// The stack machine that reads pickles.
//
// The stack holds numbers of nodes; a mark is the size that the stack had. The memo is a vector: Python remembers only what it
// has just made, and numbers it from 0 upwards, so a number beyond the nodes that exist so far is damage. No length or number
// in the input makes anything grow by more than what the input itself has bytes for. DUP is not read: Python writes none.

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <accel/error.h>

#include "checkpoint_tools/formats/pickle.h"
#include "runtime/printable.h"

namespace accel::launcher {
namespace {

// The names of pickletools, for what is read.
enum Opcode : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNoneValue = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kDictOfMark = 'd',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kListOfMark = 'l',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTupleOfMark = 't',
  kSetItems = 'u',
  kEmptyList = ']',
  kEmptyDict = '}',
  kEmptyTuple = ')',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

constexpr int kNewestProtocol = 5;
// An opcode of one byte makes a node of 16. Metadata has more than 4 bytes for each, whatever the protocol, and more than 3 when
// nothing is memoized in vain.
constexpr std::size_t kLeastBytesPerNode = 2;
constexpr std::size_t kFewNodes = 64;
constexpr std::size_t kMostMarks = 1 << 16;  // Python itself nests some thousand values at most

// Thrown within this file alone: a machine with an error in hand cannot go on.
struct Fault {
  Error error;
};

}  // namespace

class PickleMachine {
 public:
  PickleMachine(std::string_view bytes, std::span<const std::string_view> allowed)
      : bytes_(bytes),
        allowed_(allowed.begin(), allowed.end()),
        most_nodes_(std::min(kMostPickleNodes, kFewNodes + bytes.size() / kLeastBytesPerNode)) {
    if (bytes.size() > std::numeric_limits<std::uint32_t>::max())
      fail("it has " + std::to_string(bytes.size()) + " bytes");
  }

  Pickle run() {
    while (!step()) {
    }
    return std::move(pickle_);
  }

 private:
  using Node = Pickle::Node;

  [[noreturn]] void fail(const std::string& what) const {
    throw Fault{Error(ErrorCode::kCheckpointIncomplete,
                      "the pickle cannot be read: " + what + ", at byte " + std::to_string(start_),
                      "save it again, or copy it again: it is cut short or was changed")};
  }

  // ---- the input ----

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - place_) fail("it ends within a value");
    const std::string_view taken = bytes_.substr(place_, count);
    place_ += count;
    return taken;
  }
  std::uint64_t take_number(std::size_t width) {
    std::uint64_t number = 0;
    const std::string_view taken = take(width);
    for (std::size_t i = 0; i < width; ++i)
      number |= std::uint64_t{static_cast<unsigned char>(taken[i])} << (8 * i);
    return number;
  }
  std::int64_t take_signed(std::size_t width) {
    if (width == 0) return 0;
    if (width > sizeof(std::int64_t)) fail("an integer of more than 64 bits");
    const unsigned unused = 64 - 8 * static_cast<unsigned>(width);
    return static_cast<std::int64_t>(take_number(width) << unused) >> unused;
  }
  std::string_view take_line() {
    const std::size_t end = bytes_.find('\n', place_);
    if (end == std::string_view::npos) fail("a name without an end");
    const std::string_view line = bytes_.substr(place_, end - place_);
    place_ = end + 1;
    return line;
  }

  // ---- the stack ----

  void push(PickleNode node) { stack_.push_back(node); }
  void push(const Node& node) {
    if (pickle_.nodes_.size() == most_nodes_)
      fail("it has more than " + std::to_string(most_nodes_) + " values, which no pickle of " +
           std::to_string(bytes_.size()) + " bytes that PyTorch wrote has");
    push(static_cast<PickleNode>(pickle_.nodes_.size()));
    pickle_.nodes_.push_back(node);
  }
  void push_text(std::string_view text, PickleKind kind = PickleKind::kText) {
    push(Node{.kind = kind, .count = static_cast<std::uint32_t>(text.size()), .text = text.data()});
  }
  void push_integer(std::int64_t value, PickleKind kind = PickleKind::kInteger) {
    push(Node{.kind = kind, .integer = value});
  }
  // A container of the topmost values, which it takes off the stack.
  void push_items(PickleKind kind, std::size_t count) {
    const std::span values = top_many(count);
    Node node{.kind = kind, .count = static_cast<std::uint32_t>(count), .items = nullptr};
    if (count > 0) {
      node.items = static_cast<PickleNode*>(
          pickle_.memory_->allocate(count * sizeof(PickleNode), alignof(PickleNode)));
      std::ranges::copy(values, node.items);
    }
    drop(count);
    push(node);
  }
  [[nodiscard]] std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  [[nodiscard]] std::span<const PickleNode> top_many(std::size_t count) const {
    if (stack_.size() - floor() < count) fail("a value is missing");
    return std::span(stack_).last(count);
  }
  [[nodiscard]] PickleNode top() const { return top_many(1).front(); }
  void drop(std::size_t count) { stack_.resize(stack_.size() - count); }
  PickleNode pop() {
    const PickleNode node = top();
    drop(1);
    return node;
  }
  // How many values there are above the mark, which goes.
  std::size_t unmark() {
    if (marks_.empty()) fail("a mark is missing");
    const std::size_t count = stack_.size() - marks_.back();
    marks_.pop_back();
    return count;
  }
  void mark() {
    if (marks_.size() == kMostMarks) fail("values that are nested too deep");
    marks_.push_back(stack_.size());
  }

  // ---- what opcodes do ----

  void push_name(std::string_view module, std::string_view name) {
    std::string both = std::string(module) + " " + std::string(name);
    const auto found = allowed_.find(both);
    if (found == allowed_.end())
      throw Fault{Error(ErrorCode::kUnsupported,
                        "the pickle names " + printable(both) + " at byte " +
                            std::to_string(start_) + "; nothing was run",
                        "only what PyTorch itself saves is read: save tensors, not objects of "
                        "your own, and trust no file that wants to run something")};
    push_text(*found, PickleKind::kName);
  }
  void stack_global() {
    const PickleNode name = pop();
    const PickleNode module = pop();
    const auto module_text = pickle_.text(module);
    const auto name_text = pickle_.text(name);
    if (!module_text || !name_text) fail("a name that is no text");
    push_name(*module_text, *name_text);
  }
  void make_object() {
    const std::span both = top_many(2);  // callable, arguments
    if (pickle_.kind(both[0]) != PickleKind::kName) fail("a call of what is no name");
    if (pickle_.kind(both[1]) != PickleKind::kTuple) fail("arguments that are no tuple");
    push(Pickle::kNoNode);
    push_items(PickleKind::kObject, Pickle::kObjectHead);
  }
  void build() {
    const PickleNode state = pop();
    if (pickle_.kind(top()) != PickleKind::kObject) fail("a state of what is no object");
    pickle_.items(top())[2] = state;
  }
  // Below the values that go into it.
  [[nodiscard]] PickleNode target_of(std::size_t count) const {
    return top_many(count + 1).front();
  }
  void append(std::size_t count) {
    const PickleKind target = pickle_.kind(target_of(count));
    if (target != PickleKind::kList && target != PickleKind::kObject)
      fail("an append to what is no list");
    pickle_.add_items(target_of(count), top_many(count));
    drop(count);
  }
  void set_items(std::size_t count) {
    const PickleKind target = pickle_.kind(target_of(count));
    if (target != PickleKind::kDict && target != PickleKind::kObject)
      fail("an item of what is no dict");
    if (count % 2 != 0) fail("a key without a value");
    pickle_.add_items(target_of(count), top_many(count));
    drop(count);
  }
  void put(std::uint64_t number) {
    if (number > pickle_.nodes_.size()) fail("a memo number that is too large");
    if (number >= memo_.size()) memo_.resize(number + 1, Pickle::kNoNode);
    memo_[number] = top();
  }
  void get(std::uint64_t number) {
    if (number >= memo_.size() || memo_[number] == Pickle::kNoNode)
      fail("memo number " + std::to_string(number) + " was not set");
    push(memo_[number]);
  }

  // True after STOP.
  bool step() {
    start_ = place_;
    const auto opcode = static_cast<std::uint8_t>(take(1).front());
    if (opcode == kStop) {
      pickle_.root_ = pop();
      return true;
    }
    if (!scalar(opcode) && !container(opcode) && !machinery(opcode)) unknown(opcode);
    return false;
  }

  bool scalar(std::uint8_t opcode) {
    switch (opcode) {
      case kNoneValue:
        push_integer(0, PickleKind::kNone);
        return true;
      case kNewTrue:
        push_integer(1, PickleKind::kBool);
        return true;
      case kNewFalse:
        push_integer(0, PickleKind::kBool);
        return true;
      case kBinInt:
        push_integer(take_signed(4));
        return true;
      case kBinInt1:
        push_integer(static_cast<std::int64_t>(take_number(1)));
        return true;
      case kBinInt2:
        push_integer(static_cast<std::int64_t>(take_number(2)));
        return true;
      case kLong1:
        push_integer(take_signed(take_number(1)));
        return true;
      case kBinFloat:
        push_text(take(8), PickleKind::kFloat);
        return true;
      case kShortBinUnicode:
      case kShortBinString:
      case kShortBinBytes:
        push_text(take(take_number(1)));
        return true;
      case kBinUnicode:
      case kBinString:
      case kBinBytes:
        push_text(take(take_number(4)));
        return true;
      case kBinUnicode8:
      case kBinBytes8:
        push_text(take(take_number(8)));
        return true;
      default:
        return false;
    }
  }

  bool container(std::uint8_t opcode) {
    switch (opcode) {
      case kEmptyTuple:
        push_items(PickleKind::kTuple, 0);
        return true;
      case kTuple1:
        push_items(PickleKind::kTuple, 1);
        return true;
      case kTuple2:
        push_items(PickleKind::kTuple, 2);
        return true;
      case kTuple3:
        push_items(PickleKind::kTuple, 3);
        return true;
      case kTupleOfMark:
      case kFrozenSet:
        push_items(PickleKind::kTuple, unmark());
        return true;
      case kEmptyList:
      case kEmptySet:
        push_items(PickleKind::kList, 0);
        return true;
      case kListOfMark:
        push_items(PickleKind::kList, unmark());
        return true;
      case kEmptyDict:
        push_items(PickleKind::kDict, 0);
        return true;
      case kDictOfMark: {
        const std::size_t count = unmark();
        if (count % 2 != 0) fail("a key without a value");
        push_items(PickleKind::kDict, count);
        return true;
      }
      case kAppend:
        append(1);
        return true;
      case kAppends:
      case kAddItems:
        append(unmark());
        return true;
      case kSetItem:
        set_items(2);
        return true;
      case kSetItems:
        set_items(unmark());
        return true;
      default:
        return false;
    }
  }

  bool machinery(std::uint8_t opcode) {
    switch (opcode) {
      case kProto:
        check_protocol(take_number(1));
        return true;
      case kFrame:
        take_number(8);
        return true;  // a hint for who reads from a stream
      case kMark:
        mark();
        return true;
      case kPop:
        marks_.empty() || stack_.size() > floor() ? (void)pop() : marks_.pop_back();
        return true;
      case kPopMark:
        drop(unmark());
        return true;
      case kGlobal: {
        const std::string_view module = take_line();
        push_name(module, take_line());
        return true;
      }
      case kStackGlobal:
        stack_global();
        return true;
      case kReduce:
      case kNewObj:
        make_object();
        return true;
      case kBuild:
        build();
        return true;
      case kBinPersId:
        make_persistent();
        return true;
      case kMemoize:
        put(memo_.size());
        return true;
      case kBinPut:
        put(take_number(1));
        return true;
      case kLongBinPut:
        put(take_number(4));
        return true;
      case kBinGet:
        get(take_number(1));
        return true;
      case kLongBinGet:
        get(take_number(4));
        return true;
      default:
        return false;
    }
  }

  void make_persistent() {
    if (!pickle_.sequence(top())) fail("a persistent id that is no tuple");
    Node node = pickle_.nodes_[pop()];  // the items are shared: no opcode adds to a persistent id
    node.kind = PickleKind::kPersistent;
    push(node);
  }

  void check_protocol(std::uint64_t protocol) const {
    if (protocol > kNewestProtocol)
      throw Fault{Error(
          ErrorCode::kUnsupported,
          "the pickle has protocol " + std::to_string(protocol) + "; protocols 2 to 5 are read",
          "save it with the pickle protocol 2 or 4, as PyTorch does")};
  }

  [[noreturn]] void unknown(std::uint8_t opcode) const {
    throw Fault{Error(ErrorCode::kUnsupported,
                      "the pickle has the opcode " + std::to_string(opcode) + " at byte " +
                          std::to_string(start_) + ", which nothing of PyTorch writes",
                      "check that the file is what PyTorch saved")};
  }

  std::string_view bytes_;
  std::unordered_set<std::string_view> allowed_;
  std::size_t most_nodes_;
  std::size_t place_ = 0;
  std::size_t start_ = 0;  // of the opcode
  std::vector<PickleNode> stack_;
  std::vector<std::size_t> marks_;
  std::vector<PickleNode> memo_;
  Pickle pickle_;
};

Result<Pickle> read_pickle(std::string_view bytes, std::span<const std::string_view> allowed) {
  try {
    return PickleMachine(bytes, allowed).run();
  } catch (Fault& fault) {
    return std::move(fault.error);
  }
}

}  // namespace accel::launcher
