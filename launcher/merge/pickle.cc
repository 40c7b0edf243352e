// The stack machine.
//
// The stack holds numbers of nodes; a mark is the size that the stack had. The memo is a vector: Python numbers it from 0
// upwards, so a number beyond the nodes that exist so far is damage, and no length or number in the input makes anything
// grow by more than what the input itself has bytes for.

#include "launcher/merge/pickle.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_set>

#include <accel/error.h>

#include "runtime/printable.h"

namespace accel::launcher {
namespace {

// The names of pickletools, for what is read.
enum Opcode : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
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
// A node takes 90 bytes, and an opcode of one byte makes it. Metadata has more than 4 bytes for each, whatever the protocol, and
// more than 3 when nothing is memoized in vain.
constexpr std::size_t kLeastBytesPerNode = 2;
constexpr std::size_t kFewNodes = 64;
constexpr std::size_t kObjectHead = 3;  // callable, arguments, state

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
        most_nodes_(std::min(kMostPickleNodes, kFewNodes + bytes.size() / kLeastBytesPerNode)) {}

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
  void push(Node node) {
    if (pickle_.nodes_.size() == most_nodes_)
      fail("it has more than " + std::to_string(most_nodes_) + " values, which no pickle of " +
           std::to_string(bytes_.size()) + " bytes that PyTorch wrote has");
    push(static_cast<PickleNode>(pickle_.nodes_.size()));
    pickle_.nodes_.push_back(std::move(node));
  }
  void push_text(std::string_view text) {
    push({.kind = PickleKind::kText, .text = text, .items = {}});
  }
  void push_integer(std::int64_t value, PickleKind kind = PickleKind::kInteger) {
    push({.kind = kind, .integer = value, .text = {}, .items = {}});
  }
  void push_items(PickleKind kind, std::vector<PickleNode> items = {}) {
    push({.kind = kind, .text = {}, .items = std::move(items)});
  }
  [[nodiscard]] std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleNode pop() {
    const PickleNode node = top();
    stack_.pop_back();
    return node;
  }
  [[nodiscard]] PickleNode top() const {
    if (stack_.size() <= floor()) fail("a value is missing");
    return stack_.back();
  }
  std::vector<PickleNode> pop_many(std::size_t count) {
    if (stack_.size() - floor() < count) fail("a value is missing");
    const auto begin = stack_.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<PickleNode> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    return items;
  }
  std::vector<PickleNode> pop_to_mark() {
    if (marks_.empty()) fail("a mark is missing");
    std::vector<PickleNode> items = pop_many(stack_.size() - marks_.back());
    marks_.pop_back();
    return items;
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
    push({.kind = PickleKind::kName, .text = *found, .items = {}});
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
    const PickleNode arguments = pop();
    const PickleNode callable = pop();
    if (pickle_.at(callable).kind != PickleKind::kName) fail("a call of what is no name");
    if (pickle_.at(arguments).kind != PickleKind::kTuple) fail("arguments that are no tuple");
    push_items(PickleKind::kObject, {callable, arguments, Pickle::kNoNode});
  }
  void build() {
    const PickleNode state = pop();
    Node& object = pickle_.nodes_[top()];
    if (object.kind != PickleKind::kObject) fail("a state of what is no object");
    object.items[2] = state;
  }
  void append(const std::vector<PickleNode>& values) {
    Node& target = pickle_.nodes_[top()];
    if (target.kind != PickleKind::kList && target.kind != PickleKind::kObject)
      fail("an append to what is no list");
    target.items.insert(target.items.end(), values.begin(), values.end());
  }
  void set_items(const std::vector<PickleNode>& pairs) {
    Node& target = pickle_.nodes_[top()];
    if (target.kind != PickleKind::kDict && target.kind != PickleKind::kObject)
      fail("an item of what is no dict");
    if (pairs.size() % 2 != 0) fail("a key without a value");
    target.items.insert(target.items.end(), pairs.begin(), pairs.end());
  }
  void put(std::uint64_t number) {
    // Python numbers one after the other; each has at least one opcode.
    if (number > place_) fail("a memo number that is too large");
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
        push({.kind = PickleKind::kNone, .text = {}, .items = {}});
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
        push_text(take(8)), pickle_.nodes_.back().kind = PickleKind::kFloat;
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
        push_items(PickleKind::kTuple);
        return true;
      case kTuple1:
        push_items(PickleKind::kTuple, pop_many(1));
        return true;
      case kTuple2:
        push_items(PickleKind::kTuple, pop_many(2));
        return true;
      case kTuple3:
        push_items(PickleKind::kTuple, pop_many(3));
        return true;
      case kTupleOfMark:
      case kFrozenSet:
        push_items(PickleKind::kTuple, pop_to_mark());
        return true;
      case kEmptyList:
      case kEmptySet:
        push_items(PickleKind::kList);
        return true;
      case kListOfMark:
        push_items(PickleKind::kList, pop_to_mark());
        return true;
      case kEmptyDict:
        push_items(PickleKind::kDict);
        return true;
      case kDictOfMark: {
        const std::vector<PickleNode> pairs = pop_to_mark();
        push_items(PickleKind::kDict);
        set_items(pairs);
        return true;
      }
      case kAppend:
        append(pop_many(1));
        return true;
      case kAppends:
      case kAddItems:
        append(pop_to_mark());
        return true;
      case kSetItem:
        set_items(pop_many(2));
        return true;
      case kSetItems:
        set_items(pop_to_mark());
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
        marks_.push_back(stack_.size());
        return true;
      case kPop:
        marks_.empty() || stack_.size() > floor() ? (void)pop() : marks_.pop_back();
        return true;
      case kPopMark:
        pop_to_mark();
        return true;
      case kDup:
        push(top());
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
        push_items(PickleKind::kPersistent, persistent_items(pop()));
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

  std::vector<PickleNode> persistent_items(PickleNode node) const {
    const auto items = pickle_.sequence(node);
    if (!items) fail("a persistent id that is no tuple");
    return {items->begin(), items->end()};
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

std::optional<std::int64_t> Pickle::integer(PickleNode node) const {
  if (at(node).kind != PickleKind::kInteger) return std::nullopt;
  return at(node).integer;
}

std::optional<std::string_view> Pickle::text(PickleNode node) const {
  if (at(node).kind != PickleKind::kText) return std::nullopt;
  return at(node).text;
}

std::optional<std::string_view> Pickle::name(PickleNode node) const {
  if (at(node).kind != PickleKind::kName) return std::nullopt;
  return at(node).text;
}

std::optional<std::span<const PickleNode>> Pickle::sequence(PickleNode node) const {
  const PickleKind kind = at(node).kind;
  if (kind != PickleKind::kTuple && kind != PickleKind::kList) return std::nullopt;
  return std::span(at(node).items);
}

std::optional<std::span<const PickleNode>> Pickle::entries(PickleNode node) const {
  if (at(node).kind == PickleKind::kDict) return std::span(at(node).items);
  if (made_by(node) != "collections OrderedDict") return std::nullopt;
  const auto set = std::span(at(node).items).subspan(kObjectHead);
  if (set.size() % 2 != 0) return std::nullopt;
  return set;
}

std::optional<std::string_view> Pickle::made_by(PickleNode node) const {
  if (at(node).kind != PickleKind::kObject) return std::nullopt;
  return at(at(node).items[0]).text;
}

std::span<const PickleNode> Pickle::arguments(PickleNode node) const {
  if (at(node).kind != PickleKind::kObject) return {};
  return at(at(node).items[1]).items;
}

std::optional<PickleNode> Pickle::field(PickleNode node, std::string_view key) const {
  if (at(node).kind == PickleKind::kObject && at(node).items[2] != kNoNode)
    node = at(node).items[2];
  const auto pairs = entries(node);
  if (!pairs) return std::nullopt;
  for (std::size_t i = 0; i + 1 < pairs->size(); i += 2)
    if (text((*pairs)[i]) == key) return (*pairs)[i + 1];
  return std::nullopt;
}

Result<Pickle> read_pickle(std::string_view bytes, std::span<const std::string_view> allowed) {
  try {
    return PickleMachine(bytes, allowed).run();
  } catch (Fault& fault) {
    return std::move(fault.error);
  }
}

}  // namespace accel::launcher
