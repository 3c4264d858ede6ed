// Carries a schedule out on a graph, op by op, as Note [Semantics of a schedule] says, and counts
// what it costs. O(ops + values + actions and the ops in their chains).
#include "schedule/simulator.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "graph/error.h"

namespace poet {
namespace {

// A point between two ops: how many of them have run, and where the plan says so.
struct Position {
  int64_t ops_run = 0;
  OpId op;
  bool before = true;
};

class Simulation {
 public:
  Simulation(const Graph& graph, const Schedule& schedule, const DeviceProfile& profile)
      : graph_(graph), schedule_(schedule), profile_(profile) {}

  SimulationResult run() {
    start();
    for (int64_t k = 0; k < graph_.numOps(); ++k) {
      perform(schedule_.before, {k, OpId(k), true});
      runFirst(OpId(k));
      perform(schedule_.after, {k + 1, OpId(k), false});
      letDie(OpId(k));
    }
    perform(schedule_.before, {graph_.numOps(), graph_.endOfStep(), true});
    finish();
    return std::move(result_);
  }

 private:
  // What is known of one value.
  struct State {
    bool resident = false;
    bool retained = false;
    int32_t stored_version = -1;  // of the copy in the store; -1: there is none
    double in_at = 0;             // when its last page_in is done
    double out_at = 0;            // when its last page_out is done
    int32_t version = 0;          // writes by ops that ran first
    int32_t held_version = 0;     // of the bytes in memory, where resident
    int64_t left_at = -1;         // ops that had run when it last left memory; -1: never
    bool freed = false;           // it left by a free, not by its natural death
    int32_t chain_writes = 0;     // writes to it so far in the recompute that runs now
  };

  // ---- the four things that happen ------------------------------------------------------------
  void start();
  void runFirst(OpId op);
  void letDie(OpId op);
  void finish();

  // ---- actions --------------------------------------------------------------------------------
  void perform(const std::vector<std::vector<Action>>& lists, const Position& at);
  void perform(const Action& action, const Position& at);
  void freeValue(ValueId v, const Position& at);
  void retain(ValueId v, const Position& at);
  void recompute(const std::vector<OpId>& chain, const Position& at);
  void pageOut(ValueId v, const Position& at);
  void pageIn(ValueId v, const Position& at);
  void checkChain(const std::vector<OpId>& chain, const Position& at);
  void checkLaterOp(OpId op, OpId first, const Position& at) const;
  void checkWhole(OpId first, const Position& at) const;
  void replayOp(OpId op, OpId first, const Position& at);
  void bringBack(OpId first, const Position& at);

  // ---- time -----------------------------------------------------------------------------------
  void compute(double seconds);
  double transfer(double seconds, const Position& at);  // returns when it is done
  void waitFor(double moment) { now_ = std::max(now_, moment); }

  // ---- bookkeeping ----------------------------------------------------------------------------
  State& state(ValueId v) { return states_[static_cast<size_t>(v.index)]; }
  const State& state(ValueId v) const { return states_[static_cast<size_t>(v.index)]; }
  void enter(ValueId v);
  void leave(ValueId v, int64_t ops_run, bool freed);
  int64_t bytesMadeBy(OpId op) const;
  int64_t countBytes(int64_t extra, int64_t workspace, OpId op);
  std::vector<char> opsInRecomputes() const;

  // ---- messages -------------------------------------------------------------------------------
  std::string name(OpId op) const;
  std::string where(const Position& at) const;
  std::string whyAbsent(ValueId v) const;
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw ScheduleError(detail::message("schedule: ", parts...));
  }

  const Graph& graph_;
  const Schedule& schedule_;
  const DeviceProfile& profile_;
  SimulationResult result_;
  std::vector<State> states_;
  std::vector<std::vector<ValueId>> dying_after_;  // by op
  // The version of each data input that an op read when it ran first: of op k, from first_read_[k]
  // on.
  std::vector<size_t> first_read_;
  std::vector<int32_t> read_versions_;
  std::vector<char> keeps_generator_;  // by op
  int64_t resident_bytes_ = 0;         // values, base and generator states
  double first_seconds_ = 0;
  double now_ = 0;                    // with DMA: seconds since the step began
  std::vector<double> channel_free_;  // by DMA channel: when it is done with what it was given
  int64_t awake_in_ = -1;             // ops that had run at the last wake-up
};

int64_t add(int64_t a, int64_t b) {
  int64_t sum = 0;
  POET_CHECK_AS(ScheduleError, !__builtin_add_overflow(a, b, &sum),
                "schedule: it needs 2^63 bytes or more at once");
  return sum;
}

// ---- the four things that happen --------------------------------------------------------------

void Simulation::start() {
  const auto ops = static_cast<size_t>(graph_.numOps());
  states_.resize(static_cast<size_t>(graph_.numValues()));
  dying_after_.resize(ops);
  first_read_.resize(ops);
  result_.resident_bytes.reserve(ops);
  keeps_generator_ = opsInRecomputes();
  resident_bytes_ = graph_.baseBytes();
  for (int64_t i = 0; i < graph_.numValues(); ++i) {
    const ValueId v(i);
    const Value& value = graph_.value(v);
    if (value.death.valid() && value.death < graph_.endOfStep()) {
      dying_after_[static_cast<size_t>(value.death.index)].push_back(v);
    }
    // A death of -1: gone before the first op.
    if (value.producer == kNoOp && value.death.valid()) enter(v);
  }
  for (const ValueId v : schedule_.away_between_steps) {
    leave(v, 0, true);
    state(v).stored_version = 0;
  }
  // More channels than transfers are of no use.
  const int64_t transfers =
      schedule_.countActions(ActionKind::kPageOut) + schedule_.countActions(ActionKind::kPageIn);
  const int64_t channels = std::min<int64_t>(profile_.dma_channels, transfers);
  channel_free_.assign(static_cast<size_t>(channels), 0);
  if (ops == 0) countBytes(0, 0, graph_.endOfStep());
}

void Simulation::runFirst(OpId op) {
  first_read_[static_cast<size_t>(op.index)] = read_versions_.size();
  for (ValueId v : graph_.dataInputs(op)) {
    if (!state(v).resident)
      fail(name(op), " needs value ", v.index, " in version ", state(v).version, ", ",
           whyAbsent(v));
    POET_INTERNAL_ASSERT(state(v).held_version == state(v).version, "value ", v.index, " at ",
                         name(op));
    read_versions_.push_back(state(v).version);
    waitFor(state(v).in_at);
  }
  const Op& running = graph_.op(op);
  if (keeps_generator_[static_cast<size_t>(op.index)]) {
    resident_bytes_ = add(resident_bytes_, profile_.generator_state_bytes);
  }
  result_.resident_bytes.push_back(countBytes(bytesMadeBy(op), running.workspace_bytes, op));
  for (ValueId v : running.mutates) {
    waitFor(state(v).out_at);
    ++state(v).version;
    ++state(v).held_version;
  }
  for (ValueId v : graph_.madeBy(op)) enter(v);
  first_seconds_ += profile_.firstSeconds(running);
  compute(profile_.firstSeconds(running));
}

void Simulation::letDie(OpId op) {
  for (ValueId v : dying_after_[static_cast<size_t>(op.index)]) {
    if (!state(v).resident || state(v).retained) continue;
    waitFor(std::max(state(v).in_at, state(v).out_at));
    leave(v, op.index + 1, false);
  }
}

void Simulation::finish() {
  for (int64_t i = 0; i < graph_.numValues(); ++i) {
    const ValueId v(i);
    if (graph_.value(v).death != graph_.endOfStep() || state(v).resident) continue;
    const auto& away = schedule_.away_between_steps;
    if (state(v).stored_version == state(v).version &&
        std::binary_search(away.begin(), away.end(), v))
      continue;
    fail("value ", i, " outlives the step and is missing at its end in version ", state(v).version,
         ", ", whyAbsent(v));
  }
  const double busy = first_seconds_ + result_.recompute_seconds;
  const double blocking = busy + result_.transfer_seconds;
  result_.makespan_seconds = blocking;
  if (profile_.dma_channels > 0) {
    for (const double moment : channel_free_) waitFor(moment);
    result_.makespan_seconds = now_;
    result_.hidden_seconds = std::max(0.0, blocking - now_);
  }
  result_.energy_joules = profile_.joules({.busy_seconds = busy,
                                           .makespan_seconds = result_.makespan_seconds,
                                           .store_seconds = result_.transfer_seconds,
                                           .wake_ups = result_.wake_ups});
  POET_CHECK_AS(ScheduleError, std::isfinite(result_.energy_joules),
                "schedule: its seconds or joules are not finite");
}

// ---- actions ----------------------------------------------------------------------------------

void Simulation::perform(const std::vector<std::vector<Action>>& lists, const Position& at) {
  if (lists.empty()) return;
  for (const Action& action : lists[static_cast<size_t>(at.op.index)]) perform(action, at);
}

void Simulation::perform(const Action& action, const Position& at) {
  switch (action.kind) {
    case ActionKind::kFree:
      return freeValue(ValueId(action.arg), at);
    case ActionKind::kRetain:
      return retain(ValueId(action.arg), at);
    case ActionKind::kRecompute:
      return recompute(schedule_.recipes[static_cast<size_t>(action.arg)], at);
    case ActionKind::kPageOut:
      return pageOut(ValueId(action.arg), at);
    case ActionKind::kPageIn:
      return pageIn(ValueId(action.arg), at);
  }
}

void Simulation::pageOut(ValueId v, const Position& at) {
  const int64_t bytes = graph_.value(v).bytes;
  if (!profile_.hasStore())
    fail(where(at), ": page_out of value ", v.index, ", and the device \"", profile_.name,
         "\" has no store");
  if (!state(v).resident) fail(where(at), ": page_out of value ", v.index, ", ", whyAbsent(v));
  if (!graph_.value(v).evictable)
    fail(where(at), ": page_out of value ", v.index, ", which is not evictable");
  waitFor(state(v).in_at);
  countBytes(0, 0, at.op);
  state(v).out_at = transfer(profile_.pageOutSeconds(bytes), at);
  state(v).stored_version = state(v).held_version;
  ++result_.page_outs;
  result_.paged_out_bytes = add(result_.paged_out_bytes, bytes);
}

void Simulation::pageIn(ValueId v, const Position& at) {
  State& now = state(v);
  const int64_t bytes = graph_.value(v).bytes;
  if (!profile_.hasStore())
    fail(where(at), ": page_in of value ", v.index, ", and the device \"", profile_.name,
         "\" has no store");
  if (now.resident) fail(where(at), ": page_in of value ", v.index, ", which is resident");
  if (now.stored_version < 0)
    fail(where(at), ": page_in of value ", v.index, ", which was not paged out");
  if (now.stored_version != now.version) {
    fail(where(at), ": page_in of value ", v.index, " in version ", now.version,
         ", and the store holds version ", now.stored_version);
  }
  waitFor(now.out_at);
  enter(v);
  countBytes(0, 0, at.op);
  now.in_at = transfer(profile_.pageInSeconds(bytes), at);
  now.retained = at.ops_run > graph_.lastShown(v).index;
  ++result_.page_ins;
  result_.paged_in_bytes = add(result_.paged_in_bytes, bytes);
}

// ---- time -------------------------------------------------------------------------------------

void Simulation::compute(double seconds) { now_ += seconds; }

double Simulation::transfer(double seconds, const Position& at) {
  result_.transfer_seconds += seconds;
  if (awake_in_ != at.ops_run) ++result_.wake_ups;
  awake_in_ = at.ops_run;
  if (channel_free_.empty()) {
    now_ += seconds;
    return now_;
  }
  double& channel = *std::min_element(channel_free_.begin(), channel_free_.end());
  channel = std::max(channel, now_) + seconds;
  return channel;
}

void Simulation::freeValue(ValueId v, const Position& at) {
  if (!state(v).resident) fail(where(at), ": free of value ", v.index, ", ", whyAbsent(v));
  if (!graph_.value(v).evictable)
    fail(where(at), ": free of value ", v.index, ", which is not evictable");
  waitFor(std::max(state(v).in_at, state(v).out_at));
  leave(v, at.ops_run, true);
}

void Simulation::retain(ValueId v, const Position& at) {
  if (at.before || at.op != graph_.lastShown(v)) {
    fail(where(at), ": retain of value ", v.index, " is allowed only after ",
         name(graph_.lastShown(v)), ", the last op that shows it");
  }
  if (!state(v).resident) fail(where(at), ": retain of value ", v.index, ", ", whyAbsent(v));
  state(v).retained = true;
}

void Simulation::recompute(const std::vector<OpId>& chain, const Position& at) {
  checkChain(chain, at);
  const OpId first = chain.front();
  int64_t workspace = 0;
  for (ValueId v : graph_.madeBy(first)) state(v).chain_writes = 0;
  for (OpId op : chain) {
    replayOp(op, first, at);
    workspace = std::max(workspace, graph_.op(op).workspace_bytes);
    result_.recompute_seconds += profile_.replaySeconds(graph_.op(op));
    compute(profile_.replaySeconds(graph_.op(op)));
  }
  result_.recomputed_ops += static_cast<int64_t>(chain.size());
  countBytes(bytesMadeBy(first), workspace, at.op);
  bringBack(first, at);
}

// A chain is an op that makes values and, in order, ops that only write into those.
void Simulation::checkChain(const std::vector<OpId>& chain, const Position& at) {
  if (chain.empty()) fail(where(at), ": recompute of nothing");
  const OpId first = chain.front();
  if (graph_.madeBy(first).empty())
    fail(where(at), ": recompute of ", name(first), ", which makes no value");
  if (graph_.op(first).mutates != graph_.op(first).statistics) {
    fail(where(at), ": recompute of ", name(first),
         ", which writes into a value that was there before it");
  }
  for (size_t i = 0; i < chain.size(); ++i) {
    if (i > 0 && !(chain[i - 1] < chain[i]))
      fail(where(at), ": recompute: ops must ascend, ", name(chain[i]), " stands after ",
           name(chain[i - 1]));
    if (chain[i].index >= at.ops_run)
      fail(where(at), ": recompute of ", name(chain[i]), ", which has not run yet");
    if (!graph_.op(chain[i]).replayable)
      fail(where(at), ": recompute of ", name(chain[i]), ", which is not replayable");
    if (i > 0) checkLaterOp(chain[i], first, at);
  }
  checkWhole(first, at);
}

// A value comes back in its last version alone (graph/recipes.h, Note [Recipes and versions]): what
// is away when the step departs must come back, so nothing leaves that a write is yet to come to.
void Simulation::checkWhole(OpId first, const Position& at) const {
  for (ValueId v : graph_.madeBy(first)) {
    const auto& writers = graph_.writersOf(v);
    if (writers.empty() || writers.back().index < at.ops_run) continue;
    fail(where(at), ": recompute of ", name(first), ", and value ", v.index, " that it makes is ",
         "still to be written by ", name(writers.back()));
  }
}

void Simulation::checkLaterOp(OpId op, OpId first, const Position& at) const {
  const Op& later = graph_.op(op);
  const bool writes_only_what_first_made =
      !later.mutates.empty() && later.statistics.empty() &&
      std::all_of(later.mutates.begin(), later.mutates.end(),
                  [&](ValueId v) { return graph_.value(v).producer == first; });
  if (!graph_.madeBy(op).empty() || !writes_only_what_first_made) {
    fail(where(at), ": recompute: ", name(op), " does not just write into what ", name(first),
         " makes");
  }
}

// The op must find every byte that it reads as it found it the first time. Statistics are neither
// read nor written.
void Simulation::replayOp(OpId op, OpId first, const Position& at) {
  const Op& replayed = graph_.op(op);
  size_t read = first_read_[static_cast<size_t>(op.index)];
  for (ValueId v : graph_.dataInputs(op)) {
    const int32_t version = read_versions_[read++];
    if (std::binary_search(replayed.statistics.begin(), replayed.statistics.end(), v)) continue;
    const bool own = graph_.value(v).producer == first;
    if (!own && !state(v).resident) {
      fail(where(at), ": recompute of ", name(op), " needs value ", v.index, " in version ",
           version, ", ", whyAbsent(v));
    }
    if (!own) waitFor(state(v).in_at);
    const int32_t found = own ? state(v).chain_writes : state(v).held_version;
    if (found != version) {
      fail(where(at), ": recompute of ", name(op), " needs value ", v.index, " in version ",
           version, " and finds version ", found);
    }
  }
  for (ValueId v : replayed.mutates) {
    if (graph_.value(v).producer == first) ++state(v).chain_writes;
  }
}

void Simulation::bringBack(OpId first, const Position& at) {
  for (ValueId v : graph_.madeBy(first)) {
    State& now = state(v);
    if (now.chain_writes != now.version) {
      fail(where(at), ": recompute from ", name(first), " yields value ", v.index, " in version ",
           now.chain_writes, ", and its version is ", now.version,
           " by now: the chain leaves out a write");
    }
    if (now.resident) continue;  // the second copy is dropped
    if (!graph_.value(v).evictable) {
      fail(where(at), ": recompute from ", name(first), " brings back value ", v.index,
           ", which is not evictable");
    }
    enter(v);
    now.retained = at.ops_run > graph_.lastShown(v).index;
  }
}

// ---- bookkeeping ------------------------------------------------------------------------------

void Simulation::enter(ValueId v) {
  State& now = state(v);
  now.resident = true;
  now.held_version = now.version;
  resident_bytes_ = add(resident_bytes_, graph_.value(v).bytes);
}

void Simulation::leave(ValueId v, int64_t ops_run, bool freed) {
  State& now = state(v);
  now.resident = false;
  now.retained = false;
  now.left_at = ops_run;
  now.freed = freed;
  resident_bytes_ -= graph_.value(v).bytes;
}

int64_t Simulation::bytesMadeBy(OpId op) const {
  int64_t bytes = 0;
  for (ValueId v : graph_.madeBy(op)) bytes = add(bytes, graph_.value(v).bytes);
  return bytes;
}

int64_t Simulation::countBytes(int64_t extra, int64_t workspace, OpId op) {
  const int64_t bytes = add(add(resident_bytes_, extra), workspace);
  if (bytes > result_.peak_bytes || !result_.peak_op.valid()) {
    result_.peak_bytes = bytes;
    result_.peak_op = op;
  }
  return bytes;
}

// The random ops that any recompute of the schedule runs again.
std::vector<char> Simulation::opsInRecomputes() const {
  std::vector<char> kept(static_cast<size_t>(graph_.numOps()), false);
  for (const auto* lists : {&schedule_.before, &schedule_.after}) {
    for (const auto& actions : *lists) {
      for (const Action& action : actions) {
        if (action.kind != ActionKind::kRecompute) continue;
        for (OpId op : schedule_.recipes[static_cast<size_t>(action.arg)]) {
          kept[static_cast<size_t>(op.index)] = graph_.op(op).random;
        }
      }
    }
  }
  return kept;
}

// ---- messages ---------------------------------------------------------------------------------

std::string Simulation::name(OpId op) const {
  if (op == graph_.endOfStep()) return "the end of the step";
  return detail::message("op ", op.index, " (", graph_.op(op).name, ")");
}

std::string Simulation::where(const Position& at) const {
  return detail::message(at.before ? "before " : "after ", name(at.op));
}

std::string Simulation::whyAbsent(ValueId v) const {
  const State& now = state(v);
  if (now.left_at < 0) {
    const OpId producer = graph_.value(v).producer;
    return producer == kNoOp ? "which is gone before the step begins"
                             : detail::message("which is not made before ", name(producer));
  }
  const char* how = now.freed ? "which was freed before " : "which died before ";
  return detail::message(how, name(OpId(now.left_at)), " and did not come back");
}

}  // namespace

SimulationResult simulate(const Graph& graph, const Schedule& schedule,
                          const DeviceProfile& profile) {
  profile.check();
  const bool has_plan = !schedule.before.empty() || !schedule.after.empty();
  if (has_plan || !schedule.away_between_steps.empty()) schedule.checkAgainst(graph);
  return Simulation(graph, schedule, profile).run();
}

SimulationResult simulatePlain(const Graph& graph, const DeviceProfile& profile) {
  profile.check();
  return Simulation(graph, Schedule{}, profile).run();
}

void finalize(const Graph& graph, const DeviceProfile& profile, Schedule& schedule) {
  const SimulationResult result = simulate(graph, schedule, profile);
  schedule.peak_bytes = result.peak_bytes;
  schedule.peak_op = result.peak_op;
  schedule.makespan_seconds = result.makespan_seconds;
  schedule.energy_joules = result.energy_joules;
}

}  // namespace poet
