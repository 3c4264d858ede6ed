// See Note [The compact form].
#include "schedule/compact.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/error.h"
#include "graph/json_reader.h"
#include "schedule/byte_io.h"
#include "schedule/schedule.h"

namespace poet {
namespace {

using bytes::Reader;
using bytes::Writer;

constexpr std::string_view kWhat = "compact schedule";
constexpr size_t kChecksumBytes = 4;

// ---- the head ---------------------------------------------------------------------------------

// Fields that follow, in this order. The four lowest bits hold status and objective.
enum Flag : uint64_t {
  kMethod = 1 << 4,  // not "poet"
  kRamBudget = 1 << 5,
  kRuntimeBudget = 1 << 6,
  kFigures = 1 << 7,  // peak, op, seconds, joules
  kBelievedPeak = 1 << 8,
  kBelievedSeconds = 1 << 9,
  kBound = 1 << 10,
  kGap = 1 << 11,         // spelled out
  kGapFollows = 1 << 12,  // from value and bound
  kScopeAll = 1 << 13,
  kScopeCandidates = 1 << 14,  // with kScopeAll: spelled out; without either: empty
  kSolveSeconds = 1 << 15,
  kLeastBudget = 1 << 16,
  kLeastOp = 1 << 17,
  kMessage = 1 << 18,
  kEnergyBudget = 1 << 19,
  kLeastEnergy = 1 << 20,
  kBoundAll = 1 << 21,         // spelled out
  kBoundAllFollows = 1 << 22,  // the bound itself
  kAllFlags = (1 << 23) - 1,
};

constexpr uint64_t kScope = kScopeAll | kScopeCandidates;
constexpr std::string_view kAll = "all";
constexpr std::string_view kCandidates = "candidates";

bool sameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

double gapThatFollows(const Schedule& s) {
  return (s.objectiveValue() - *s.bound) / s.objectiveValue();
}

uint64_t flagsOf(const Schedule& s) {
  uint64_t flags = static_cast<uint64_t>(s.status) | (static_cast<uint64_t>(s.objective) << 2);
  const auto set = [&](Flag flag, bool on) {
    if (on) flags |= flag;
  };
  set(kMethod, s.method != "poet");
  set(kRamBudget, s.ram_budget_bytes.has_value());
  set(kRuntimeBudget, s.runtime_budget_seconds.has_value());
  set(kFigures, s.peak_bytes != 0 || s.peak_op.valid() || !sameBits(s.makespan_seconds, 0) ||
                    !sameBits(s.energy_joules, 0));
  set(kBelievedPeak, s.believed_peak_bytes != s.peak_bytes);
  set(kBelievedSeconds, !sameBits(s.believed_seconds, s.makespan_seconds));
  set(kBound, s.bound.has_value());
  const bool follows = s.bound && s.gap && sameBits(*s.gap, gapThatFollows(s));
  set(kGap, s.gap.has_value() && !follows);
  set(kGapFollows, follows);
  set(kScopeAll, s.bound_scope != kCandidates && !s.bound_scope.empty());
  set(kScopeCandidates, s.bound_scope != kAll && !s.bound_scope.empty());
  const bool same = s.bound && s.bound_all && sameBits(*s.bound, *s.bound_all);
  set(kBoundAll, s.bound_all.has_value() && !same);
  set(kBoundAllFollows, same);
  set(kSolveSeconds, !sameBits(s.solve_seconds, 0));
  set(kLeastBudget, s.least_ram_budget.has_value());
  set(kLeastOp, s.least_ram_op.valid());
  set(kMessage, !s.message.empty());
  set(kEnergyBudget, s.energy_budget_joules.has_value());
  set(kLeastEnergy, s.least_energy_joules.has_value());
  return flags;
}

void writeHead(const Schedule& s, Writer& out) {
  const uint64_t flags = flagsOf(s);
  out.count(s.num_ops, "num_ops");
  out.varint(flags);
  if ((flags & kMethod) != 0) out.text(s.method);
  if ((flags & kRamBudget) != 0) out.count(*s.ram_budget_bytes, "ram_budget_bytes");
  if ((flags & kRuntimeBudget) != 0)
    out.number(*s.runtime_budget_seconds, "runtime_budget_seconds");
  if ((flags & kFigures) != 0) {
    out.count(s.peak_bytes, "peak_bytes");
    out.count(int64_t{s.peak_op.index} + 1, "peak_op");
    out.number(s.makespan_seconds, "makespan_seconds");
    out.number(s.energy_joules, "energy_joules");
  }
  if ((flags & kBelievedPeak) != 0) out.count(s.believed_peak_bytes, "believed_peak_bytes");
  if ((flags & kBelievedSeconds) != 0) out.number(s.believed_seconds, "believed_seconds");
  if ((flags & kBound) != 0) out.number(*s.bound, "bound");
  if ((flags & kGap) != 0) out.number(*s.gap, "gap");
  if ((flags & kScope) == kScope) out.text(s.bound_scope);
  if ((flags & kBoundAll) != 0) out.number(*s.bound_all, "bound_all");
  if ((flags & kSolveSeconds) != 0) out.number(s.solve_seconds, "solve_seconds");
  if ((flags & kLeastBudget) != 0) out.count(*s.least_ram_budget, "least_ram_budget");
  if ((flags & kLeastOp) != 0) out.count(s.least_ram_op.index, "least_ram_op");
  if ((flags & kMessage) != 0) out.text(s.message);
  if ((flags & kEnergyBudget) != 0) out.number(*s.energy_budget_joules, "energy_budget_joules");
  if ((flags & kLeastEnergy) != 0) out.number(*s.least_energy_joules, "least_energy_joules");
}

void readFigures(Reader& in, Schedule& s) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  s.peak_bytes = in.count("peak_bytes", kMost);
  s.peak_op = OpId(in.count("peak_op", s.num_ops + 1) - 1);
  s.makespan_seconds = in.numberFromZero("makespan_seconds");
  s.energy_joules = in.numberFromZero("energy_joules");
}

void readBound(Reader& in, uint64_t flags, Schedule& s) {
  if ((flags & kBound) != 0) s.bound = in.number("bound");
  if ((flags & kGap) != 0) s.gap = in.number("gap");
  if ((flags & kGapFollows) != 0) {
    if (!s.bound || s.gap || s.objectiveValue() == 0) in.fail("gap", "it does not follow");
    s.gap = gapThatFollows(s);
  }
  if ((flags & kScope) == kScope) {
    s.bound_scope = in.text("bound_scope");
  } else if ((flags & kScope) != 0) {
    s.bound_scope = (flags & kScopeAll) != 0 ? kAll : kCandidates;
  }
  if ((flags & kBoundAll) != 0) s.bound_all = in.number("bound_all");
  if ((flags & kBoundAllFollows) != 0) {
    if (!s.bound || s.bound_all) in.fail("bound_all", "it does not follow");
    s.bound_all = s.bound;
  }
}

Schedule readHead(Reader& in, const Graph& graph) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  Schedule s;
  s.graph_signature = graph.signature();
  s.num_ops = in.count("num_ops", json::kMaxFileOps);
  POET_CHECK_AS(ScheduleError, s.num_ops == graph.numOps(), "schedule: it was made for a graph of ",
                s.num_ops, " ops, and this one has ", graph.numOps(),
                ". Solve again for this graph.");
  const uint64_t flags = in.varint("flags");
  if (flags > kAllFlags) in.fail("flags", "there are unknown ones");
  s.status = static_cast<Status>(flags & 3);
  if (((flags >> 2) & 3) > static_cast<uint64_t>(Objective::kMemory))
    in.fail("objective", "there is none of number 3");
  s.objective = static_cast<Objective>((flags >> 2) & 3);
  if ((flags & kMethod) != 0) s.method = in.text("method");
  if ((flags & kRamBudget) != 0) s.ram_budget_bytes = in.count("ram_budget_bytes", kMost);
  if ((flags & kRuntimeBudget) != 0) s.runtime_budget_seconds = in.number("runtime_budget_seconds");
  if ((flags & kFigures) != 0) readFigures(in, s);
  s.believed_peak_bytes =
      (flags & kBelievedPeak) != 0 ? in.count("believed_peak_bytes", kMost) : s.peak_bytes;
  s.believed_seconds =
      (flags & kBelievedSeconds) != 0 ? in.numberFromZero("believed_seconds") : s.makespan_seconds;
  readBound(in, flags, s);
  if ((flags & kSolveSeconds) != 0) s.solve_seconds = in.numberFromZero("solve_seconds");
  if ((flags & kLeastBudget) != 0) s.least_ram_budget = in.count("least_ram_budget", kMost);
  if ((flags & kLeastOp) != 0) s.least_ram_op = OpId(in.count("least_ram_op", s.num_ops));
  if ((flags & kMessage) != 0) s.message = in.text("message");
  if ((flags & kEnergyBudget) != 0) s.energy_budget_joules = in.number("energy_budget_joules");
  if ((flags & kLeastEnergy) != 0) s.least_energy_joules = in.number("least_energy_joules");
  return s;
}

// ---- names of values --------------------------------------------------------------------------

// The long list: what op 0, op 1 ... show, then every value once.
class ShownList {
 public:
  explicit ShownList(const Graph& graph) : places_(static_cast<size_t>(graph.numValues())) {
    begin_.reserve(static_cast<size_t>(graph.numOps()) + 1);
    begin_.push_back(0);
    for (const Op& op : graph.ops()) {
      std::vector<ValueId> shown = op.inputs;
      shown.insert(shown.end(), op.outputs.begin(), op.outputs.end());
      shown.insert(shown.end(), op.mutates.begin(), op.mutates.end());
      std::sort(shown.begin(), shown.end());
      shown.erase(std::unique(shown.begin(), shown.end()), shown.end());
      for (const ValueId v : shown) add(v);
      begin_.push_back(size());
    }
    for (int64_t v = 0; v < graph.numValues(); ++v) add(ValueId(v));
  }

  // A varint that names v at a place between two ops, of which `ops_run` have run. `back` says
  // where it is more likely found.
  uint64_t nameOf(ValueId v, int64_t ops_run, bool back) const {
    const int64_t here = begin_[static_cast<size_t>(ops_run)];
    const auto& places = places_[static_cast<size_t>(v.index)];
    const auto next = std::lower_bound(places.begin(), places.end(), here);
    const int64_t ahead = *next - here;  // always there: the list ends with every value
    uint64_t name = named(ahead, !back);
    if (next != places.begin()) name = std::min(name, named(here - 1 - *std::prev(next), back));
    return name;
  }

  // kNoValue where the name points beyond the list.
  ValueId valueOf(uint64_t name, int64_t ops_run, bool back) const {
    const int64_t here = begin_[static_cast<size_t>(ops_run)];
    const bool goes_back = ((name & 1) == 0) == back;
    const uint64_t distance = name >> 1;
    if (distance >= static_cast<uint64_t>(goes_back ? here : size() - here)) return kNoValue;
    const auto steps = static_cast<int64_t>(distance);
    return values_[static_cast<size_t>(goes_back ? here - 1 - steps : here + steps)];
  }

 private:
  static uint64_t named(int64_t distance, bool likely) {
    return 2 * static_cast<uint64_t>(distance) + (likely ? 0 : 1);
  }
  int64_t size() const { return static_cast<int64_t>(values_.size()); }
  void add(ValueId v) {
    places_[static_cast<size_t>(v.index)].push_back(size());
    values_.push_back(v);
  }

  std::vector<ValueId> values_;
  std::vector<int64_t> begin_;                // by op: its first place; one more for the end
  std::vector<std::vector<int64_t>> places_;  // by value, ascending
};

// ---- the plan ---------------------------------------------------------------------------------

// What a token says beside the position. The order is part of the format.
struct Form {
  ActionKind kind = ActionKind::kFree;
  bool after = false;
  bool spelled_out = false;  // a chain that does not follow from its value

  friend bool operator==(const Form&, const Form&) = default;
};
constexpr std::array<Form, 7> kForms = {{{ActionKind::kFree, false},
                                         {ActionKind::kRecompute, false},
                                         {ActionKind::kPageOut, false},
                                         {ActionKind::kPageIn, false},
                                         {ActionKind::kRetain, true},
                                         {ActionKind::kPageOut, true},
                                         {ActionKind::kFree, true}}};
constexpr uint64_t kCodes = kForms.size() + 1;

// What leaves was shown just now; what comes back is shown soon.
bool looksBack(ActionKind kind) {
  return kind != ActionKind::kRecompute && kind != ActionKind::kPageIn;
}

// What makes v and every op that writes into what is made there; empty where v was there before.
std::vector<OpId> chainOf(const Graph& graph, ValueId v) {
  const OpId producer = graph.value(v).producer;
  if (producer == kNoOp) return {};
  std::vector<OpId> chain = {producer};
  for (const ValueId made : graph.madeBy(producer)) {
    const auto& writers = graph.writersOf(made);
    chain.insert(chain.end(), writers.begin(), writers.end());
  }
  std::sort(chain.begin(), chain.end());
  chain.erase(std::unique(chain.begin(), chain.end()), chain.end());
  return chain;
}

class PlanWriter {
 public:
  PlanWriter(const Schedule& schedule, const Graph& graph, Writer& out)
      : schedule_(schedule), graph_(graph), shown_(graph), out_(out) {}

  void write() {
    out_.varint(schedule_.away_between_steps.size());
    int64_t last = -1;
    for (const ValueId v : schedule_.away_between_steps) {
      out_.varint(static_cast<uint64_t>(v.index - last - 1));
      last = v.index;
    }
    size_t count = 0;
    for (const auto* lists : {&schedule_.before, &schedule_.after}) {
      for (const auto& actions : *lists) count += actions.size();
    }
    out_.varint(count);
    for (size_t k = 0; k < schedule_.before.size(); ++k) {
      for (const Action& action : schedule_.before[k]) write(action, k, false);
      if (k == schedule_.after.size()) continue;
      for (const Action& action : schedule_.after[k]) write(action, k, true);
    }
  }

 private:
  void write(const Action& action, size_t k, bool after) {
    const auto at = static_cast<int64_t>(k);
    const int64_t ops_run = at + (after ? 1 : 0);
    Form form{action.kind, after, false};
    if (action.kind != ActionKind::kRecompute) {
      writeToken(form, at);
      out_.varint(shown_.nameOf(ValueId(action.arg), ops_run, looksBack(action.kind)));
      return;
    }
    const auto& chain = schedule_.recipes[static_cast<size_t>(action.arg)];
    form.spelled_out = !followsFromAValue(chain);
    writeToken(form, at);
    if (form.spelled_out) {
      writeChain(chain);
    } else {
      out_.varint(shortestName(chain, ops_run));
    }
  }

  void writeToken(const Form& form, int64_t at) {
    const auto passed = static_cast<uint64_t>(at - last_op_);
    last_op_ = at;
    const auto found = std::find(kForms.begin(), kForms.end(), form);
    out_.varint(kCodes * passed + static_cast<uint64_t>(found - kForms.begin()));
    if (found != kForms.end()) return;
    out_.byte(static_cast<uint8_t>(static_cast<unsigned>(form.kind) | (form.after ? 8U : 0U) |
                                   (form.spelled_out ? 16U : 0U)));
  }

  bool followsFromAValue(const std::vector<OpId>& chain) const {
    if (chain.empty() || graph_.madeBy(chain.front()).empty()) return false;
    return chainOf(graph_, graph_.madeBy(chain.front()).front()) == chain;
  }

  // Of the values that the chain brings back, the one that is nearest names it.
  uint64_t shortestName(const std::vector<OpId>& chain, int64_t ops_run) const {
    uint64_t shortest = std::numeric_limits<uint64_t>::max();
    for (const ValueId v : graph_.madeBy(chain.front()))
      shortest = std::min(shortest, shown_.nameOf(v, ops_run, looksBack(ActionKind::kRecompute)));
    return shortest;
  }

  void writeChain(const std::vector<OpId>& chain) {
    POET_CHECK_AS(ScheduleError, !chain.empty(), "schedule: recipes: expected at least one op");
    out_.varint(chain.size());
    int64_t last = -1;
    for (const OpId op : chain) {
      POET_CHECK_AS(ScheduleError, op.index > last, "schedule: recipes: expected ascending ops");
      out_.varint(static_cast<uint64_t>(op.index - last - 1));
      last = op.index;
    }
  }

  const Schedule& schedule_;
  const Graph& graph_;
  const ShownList shown_;
  Writer& out_;
  int64_t last_op_ = 0;
};

class PlanReader {
 public:
  PlanReader(Reader& in, const Graph& graph, Schedule& schedule)
      : in_(in), graph_(graph), shown_(graph), schedule_(schedule) {}

  void read() {
    schedule_.before.resize(static_cast<size_t>(graph_.numOps()) + 1);
    schedule_.after.resize(static_cast<size_t>(graph_.numOps()));
    readAway();
    for (uint64_t left = in_.varint("actions"); left > 0; --left) readAction();
  }

 private:
  void readAway() {
    int64_t last = -1;
    for (uint64_t left = in_.varint("away_between_steps"); left > 0; --left) {
      last += 1 + in_.count("away_between_steps", graph_.numValues() - last - 2);
      schedule_.away_between_steps.emplace_back(last);
    }
  }

  void readAction() {
    const uint64_t token = in_.varint("an action");
    if (token / kCodes > static_cast<uint64_t>(graph_.numOps() - at_))
      in_.fail("an action", "it stands beyond the end of the step");
    if (token >= kCodes) after_ = false;
    at_ += static_cast<int64_t>(token / kCodes);
    const Form form = token % kCodes < kForms.size() ? kForms[token % kCodes] : readForm();
    if (after_ && !form.after) in_.fail("an action", "it stands before an earlier one");
    if (form.after && at_ == graph_.numOps()) in_.fail("an action", "no op stands before it");
    after_ = form.after;
    auto& lists = form.after ? schedule_.after : schedule_.before;
    lists[static_cast<size_t>(at_)].push_back({form.kind, readArgument(form)});
  }

  Form readForm() {
    const unsigned bits = in_.byte();
    const unsigned kind = bits & 7;
    if (bits > 31 || kind > static_cast<unsigned>(ActionKind::kPageIn))
      in_.fail("an action", "there is none of that kind");
    const Form form{static_cast<ActionKind>(kind), (bits & 8) != 0, (bits & 16) != 0};
    if (form.spelled_out && form.kind != ActionKind::kRecompute)
      in_.fail("an action", "only a recompute has a chain");
    return form;
  }

  int32_t readArgument(const Form& form) {
    if (form.spelled_out) return recipe(readChain());
    const int64_t ops_run = at_ + (form.after ? 1 : 0);
    const ValueId v = shown_.valueOf(in_.varint("a value"), ops_run, looksBack(form.kind));
    if (!v.valid()) in_.fail("an action", "the graph has no such value");
    if (form.kind != ActionKind::kRecompute) return v.index;
    const OpId producer = graph_.value(v).producer;
    if (producer == kNoOp) in_.fail("a recompute", "no op makes the value that it names");
    const auto known = recipe_of_producer_.find(producer);
    if (known != recipe_of_producer_.end()) return known->second;
    return recipe_of_producer_[producer] = recipe(chainOf(graph_, v));
  }

  std::vector<OpId> readChain() {
    std::vector<OpId> chain;
    int64_t last = -1;
    for (uint64_t left = in_.varint("a chain"); left > 0; --left) {
      last += 1 + in_.count("a chain", graph_.numOps() - last - 2);
      chain.emplace_back(last);
    }
    if (chain.empty()) in_.fail("a chain", "expected at least one op");
    return chain;
  }

  // Equal chains share one entry of Schedule::recipes.
  int32_t recipe(std::vector<OpId> chain) {
    const auto next = static_cast<int32_t>(schedule_.recipes.size());
    const auto [entry, is_new] = known_.try_emplace(chain, next);
    if (is_new) schedule_.recipes.push_back(std::move(chain));
    return entry->second;
  }

  Reader& in_;
  const Graph& graph_;
  const ShownList shown_;
  Schedule& schedule_;
  int64_t at_ = 0;
  bool after_ = false;
  std::map<std::vector<OpId>, int32_t> known_;
  std::map<OpId, int32_t> recipe_of_producer_;
};

// Bytes whose checksum is right, without it.
std::string_view checked(std::string_view text) {
  POET_CHECK_AS(FormatError, text.size() > kCompactMagic.size() + kChecksumBytes, kWhat,
                ": expected the bytes of a compact schedule, got ", text.size(), " bytes");
  POET_CHECK_AS(FormatError, text.substr(0, kCompactMagic.size()) == kCompactMagic, kWhat,
                ": expected the bytes of a compact schedule: they begin with \"", kCompactMagic,
                "\"");
  const std::string_view body = text.substr(0, text.size() - kChecksumBytes);
  const uint64_t sum = Reader(text.substr(body.size()), kWhat).fixed(kChecksumBytes);
  POET_CHECK_AS(FormatError, sum == bytes::crc32(body), kWhat,
                ": the bytes are damaged: their checksum is wrong");
  return body.substr(kCompactMagic.size());
}

}  // namespace

std::string Schedule::toBytes(const Graph& graph) const {
  checkAgainst(graph);
  POET_CHECK_AS(ScheduleError, hasPlan() || (before.empty() && away_between_steps.empty()),
                "schedule: expected no actions with status \"", toString(status), "\"");
  Writer out;
  for (const char letter : kCompactMagic) out.byte(static_cast<uint8_t>(letter));
  out.byte(kCompactVersion);
  out.fixed(graph_signature, 8);
  writeHead(*this, out);
  if (hasPlan()) PlanWriter(*this, graph, out).write();
  out.fixed(bytes::crc32(out.bytes()), kChecksumBytes);
  return out.bytes();
}

Schedule Schedule::fromBytes(std::string_view text, const Graph& graph) {
  Reader in(checked(text), kWhat);
  const int version = in.byte();
  POET_CHECK_AS(FormatError, version == kCompactVersion, kWhat, ": expected version ",
                kCompactVersion, ", got ", version, ". It was written by another version of poet.");
  const uint64_t signature = in.fixed(8);
  POET_CHECK_AS(ScheduleError, signature == graph.signature(),
                "schedule: it was made for another graph: the schedule's signature is ",
                json::toHex(signature), ", the graph's ", json::toHex(graph.signature()),
                ". Solve again for this graph.");
  Schedule schedule = readHead(in, graph);
  if (schedule.hasPlan()) PlanReader(in, graph, schedule).read();
  if (in.size() > 0) in.fail("the end", detail::message(in.size(), " bytes follow"));
  schedule.checkAgainst(graph);
  return schedule;
}

}  // namespace poet
