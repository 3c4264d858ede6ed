#include "methods/chain_program.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>

#include "graph/error.h"
#include "methods/plan_choice.h"
#include "schedule/simulator.h"

namespace poet::methods {
namespace {

using planner::Evictable;
using planner::Problem;
using planner::Replay;
using planner::Stage;

constexpr float kNeverSo = std::numeric_limits<float>::infinity();
// Choices of an Entry below 0; others are k of Note [The program of a chain].
constexpr int16_t kNone = -1, kAll = -2, kLeaf = -3, kAllOut = -4;
// Of bestFirst: k + this where x_{k-1} goes to the store.
constexpr int16_t kAway = 1 << 12;

}  // namespace

ChainProgram::ChainProgram(const Problem& problem, const Chain& chain,
                           const ChainProgramOptions& options)
    : problem_(problem), chain_(chain), options_(options), n_(static_cast<int>(chain.size())) {
  findOthers();
  int64_t kept = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    facts_.push_back(factsOf(i));
    kept += facts_.back().kept_bytes;
  }
  const int64_t range = std::max<int64_t>(1, std::min(kept, options.budget_bytes));
  slot_bytes_ = (range + kChainSlots - 1) / kChainSlots;
  num_slots_ = static_cast<int>(range / slot_bytes_) + 1;
  solveReplays();
  solveFirst();
}

// ---- what a link needs --------------------------------------------------------------------------

// Gradients above all: resident between the op that makes them and their last touch.
void ChainProgram::findOthers() {
  std::vector<char> of_chain(problem_.values.size(), 0);
  for (const Link& link : chain_) {
    for (const int v : link.inside) of_chain[static_cast<size_t>(v)] = 1;
    if (link.boundary >= 0) of_chain[static_cast<size_t>(link.boundary)] = 1;
  }
  other_bytes_.assign(problem_.stages.size() + 1, 0);
  for (size_t v = 0; v < problem_.values.size(); ++v) {
    const Evictable& value = problem_.values[v];
    if (of_chain[v] || value.use_stages.empty()) continue;
    other_bytes_[static_cast<size_t>(value.first_stage + 1)] += value.bytes;
    other_bytes_[static_cast<size_t>(value.use_stages.back()) + 1] -= value.bytes;
  }
  std::partial_sum(other_bytes_.begin(), other_bytes_.end(), other_bytes_.begin());
}

ChainProgram::Facts ChainProgram::factsOf(size_t i) const {
  Facts facts;
  if (chain_[i].boundary >= 0)
    facts.boundary_bytes = problem_.values[static_cast<size_t>(chain_[i].boundary)].bytes;
  facts.kept_bytes = facts.boundary_bytes;
  for (const int v : keptOf(i)) facts.kept_bytes += problem_.values[static_cast<size_t>(v)].bytes;
  const int begin = std::min(chain_[i].backward_stage, problem_.endStage());
  facts.fixed_bytes = problem_.stages[static_cast<size_t>(begin)].fixed_before_bytes +
                      other_bytes_[static_cast<size_t>(begin)];
  addReplays(facts, i);
  addFirst(facts, i);
  addBackward(facts, i);
  if (options_.offload) addPages(facts, i);
  return facts;
}

// Inside values that something outside of the forward part touches.
std::vector<int> ChainProgram::keptOf(size_t i) const {
  std::vector<int> kept;
  for (const int v : chain_[i].inside) {
    if (problem_.plainTouchFrom(v, chain_.back().last_stage + 1) >= 0) kept.push_back(v);
  }
  return kept;
}

// Cost and peak of making `wanted` from x_{i-1}.
void ChainProgram::addReplays(Facts& facts, size_t i) const {
  const Link& link = chain_[i];
  std::set<int> own(link.inside.begin(), link.inside.end());
  if (link.boundary >= 0) own.insert(link.boundary);
  const auto measure = [&](const std::vector<int>& wanted, double* cost, int64_t* peak) {
    std::set<int> order;  // replays, in running order
    std::vector<int> todo = wanted;
    while (!todo.empty()) {
      const int v = todo.back();
      todo.pop_back();
      const int r = problem_.values[static_cast<size_t>(v)].recipe;
      if (!own.contains(v) || !order.insert(r).second) continue;
      const auto& inputs = problem_.replays[static_cast<size_t>(r)].inputs;
      todo.insert(todo.end(), inputs.begin(), inputs.end());
    }
    std::vector<int> reads(problem_.values.size(), 0);
    for (const int v : wanted) ++reads[static_cast<size_t>(v)];
    for (const int r : order) {
      for (const int u : problem_.replays[static_cast<size_t>(r)].inputs)
        ++reads[static_cast<size_t>(u)];
    }
    int64_t resident = 0;
    for (const int r : order) {
      const Replay& replay = problem_.replays[static_cast<size_t>(r)];
      *cost += replay.cost;
      *peak = std::max(*peak, resident + replay.replay_bytes);
      for (const int v : replay.outputs) {
        if (reads[static_cast<size_t>(v)] > 0)
          resident += problem_.values[static_cast<size_t>(v)].bytes;
      }
      for (const int u : replay.inputs) {
        if (--reads[static_cast<size_t>(u)] == 0 && own.contains(u))
          resident -= problem_.values[static_cast<size_t>(u)].bytes;
      }
    }
  };
  std::vector<int> wanted = keptOf(i);
  if (link.boundary >= 0) {
    measure({link.boundary}, &facts.none_cost, &facts.none_peak);
    const int next = problem_.plainTouchFrom(link.boundary, link.backward_stage);
    if (next >= 0) wanted.push_back(link.boundary);
  }
  measure(wanted, &facts.last_cost, &facts.last_peak);
  if (link.boundary >= 0 && (wanted.empty() || wanted.back() != link.boundary))
    wanted.push_back(link.boundary);
  measure(wanted, &facts.all_cost, &facts.all_peak);
}

// Of the link's stages, beside x_{i-1}.
void ChainProgram::addFirst(Facts& facts, size_t i) const {
  const Link& link = chain_[i];
  std::vector<int> own = link.inside;
  if (link.boundary >= 0) own.push_back(link.boundary);
  const std::vector<int> kept = keptOf(i);
  const auto last_stage = [&](int v, bool all) {
    if (v == link.boundary || (all && std::binary_search(kept.begin(), kept.end(), v)))
      return link.last_stage;
    int last = problem_.values[static_cast<size_t>(v)].first_stage;
    for (const int t : problem_.values[static_cast<size_t>(v)].use_stages) {
      if (t <= link.last_stage) last = t;
    }
    return std::max(last, problem_.values[static_cast<size_t>(v)].pin_stage);
  };
  for (int t = link.first_stage; t <= link.last_stage; ++t) {
    const int64_t fixed = problem_.stages[static_cast<size_t>(t)].fixed_during_bytes +
                          other_bytes_[static_cast<size_t>(t)];
    int64_t none = fixed, all = fixed;
    for (const int v : own) {
      const Evictable& value = problem_.values[static_cast<size_t>(v)];
      if (value.first_stage >= t) continue;  // those of stage t are among the fixed bytes
      if (last_stage(v, false) >= t) none += value.bytes;
      if (last_stage(v, true) >= t) all += value.bytes;
    }
    facts.first_none_peak = std::max(facts.first_none_peak, none);
    facts.first_all_peak = std::max(facts.first_all_peak, all);
  }
}

// Of the stages up to the next link's backward, beside x_{i-1}.
void ChainProgram::addBackward(Facts& facts, size_t i) const {
  const Link& link = chain_[i];
  std::vector<int> own = keptOf(i);
  if (link.boundary >= 0) own.push_back(link.boundary);
  int end = i > 0 ? chain_[i - 1].backward_stage : problem_.numStages();
  if (i == 0) {  // beyond its last touch other bytes decide
    end = link.backward_stage;
    for (const int v : own) {
      const auto& uses = problem_.values[static_cast<size_t>(v)].use_stages;
      if (!uses.empty()) end = std::max(end, uses.back() + 1);
    }
  }
  for (int t = link.backward_stage; t < end; ++t) {
    int64_t bytes = problem_.stages[static_cast<size_t>(t)].fixed_during_bytes +
                    other_bytes_[static_cast<size_t>(t)];
    for (const int v : own) {
      if (problem_.plainTouchFrom(v, t) >= 0)
        bytes += problem_.values[static_cast<size_t>(v)].bytes;
    }
    facts.backward_peak = std::max(facts.backward_peak, bytes);
  }
}

void ChainProgram::addPages(Facts& facts, size_t i) const {
  const auto costOf = [&](int v, bool* pages) {
    const int page = problem_.values[static_cast<size_t>(v)].page;
    *pages = *pages && page >= 0;
    if (page < 0) return 0.0;
    const Replay& replay = problem_.replays[static_cast<size_t>(page)];
    return options_.transfer_share * (replay.cost + replay.once_cost);
  };
  facts.boundary_pages = chain_[i].boundary >= 0;
  if (chain_[i].boundary >= 0)
    facts.boundary_page_cost = costOf(chain_[i].boundary, &facts.boundary_pages);
  facts.kept_pages = facts.boundary_pages;
  for (const int v : keptOf(i)) facts.kept_page_cost += costOf(v, &facts.kept_pages);
}

// ---- the tables ---------------------------------------------------------------------------------

int ChainProgram::slots(int64_t bytes) const {
  return static_cast<int>(
      std::min<int64_t>((bytes + slot_bytes_ - 1) / slot_bytes_, 4 * int64_t{kChainSlots}));
}

const ChainProgram::Entry& ChainProgram::entry(int s, int t, int used) const {
  static const Entry never{kNeverSo, kNone};
  if (used >= num_slots_) return never;
  return replays_[(static_cast<size_t>(s) * static_cast<size_t>(n_) + static_cast<size_t>(t)) *
                      static_cast<size_t>(num_slots_) +
                  static_cast<size_t>(used)];
}

const ChainProgram::Entry& ChainProgram::firstEntry(int s, bool away, int used) const {
  static const Entry never{kNeverSo, kNone};
  if (used >= num_slots_) return never;
  return first_[(2 * static_cast<size_t>(s) + (away ? 1 : 0)) * static_cast<size_t>(num_slots_) +
                static_cast<size_t>(used)];
}

void ChainProgram::solveReplays() {
  replays_.assign(
      static_cast<size_t>(n_) * static_cast<size_t>(n_) * static_cast<size_t>(num_slots_),
      Entry{kNeverSo, kNone});
  for (int length = 0; length < n_; ++length) {
    for (int s = 0; s + length < n_; ++s) {
      const int t = s + length;
      Entry* row =
          &replays_[(static_cast<size_t>(s) * static_cast<size_t>(n_) + static_cast<size_t>(t)) *
                    static_cast<size_t>(num_slots_)];
      for (int used = 0; used < num_slots_; ++used) {
        row[used] = bestReplay(s, t, used);
        if (row[used].choice == kNone) break;  // with less memory there is none either
      }
    }
  }
}

ChainProgram::Entry ChainProgram::bestReplay(int s, int t, int used) const {
  const Facts& first = facts_[static_cast<size_t>(s)];
  const Facts& last = facts_[static_cast<size_t>(t)];
  const int64_t m = room(used);
  Entry best{kNeverSo, kNone};
  if (s == t) {
    if (last.fixed_bytes + last.last_peak <= m && last.backward_peak <= m)
      best = {static_cast<float>(last.last_cost), kLeaf};
    return best;
  }
  const auto consider = [&](double cost, int choice) {
    if (cost < best.cost) best = {static_cast<float>(cost), static_cast<int16_t>(choice)};
  };
  double forward = 0;
  int64_t before = 0;  // x_{k-2} is transient
  for (int k = s + 1; k <= t; ++k) {
    const Facts& ran = facts_[static_cast<size_t>(k) - 1];
    if (last.fixed_bytes + ran.none_peak + before > m) break;
    forward += ran.none_cost;
    before = ran.boundary_bytes;
    if (forward >= best.cost) break;
    consider(
        forward + entry(k, t, used + slots(ran.boundary_bytes)).cost + entry(s, k - 1, used).cost,
        k);
  }
  if (last.fixed_bytes + first.all_peak <= m && first.backward_peak <= m)
    consider(first.all_cost + entry(s + 1, t, used + slots(first.kept_bytes)).cost, kAll);
  return best;
}

void ChainProgram::solveFirst() {
  first_.assign(2 * static_cast<size_t>(n_) * static_cast<size_t>(num_slots_),
                Entry{kNeverSo, kNone});
  for (int s = n_; s-- > 0;) {
    for (const bool away : {false, true}) {
      if (away && (!options_.offload || s == 0)) continue;
      Entry* row =
          &first_[(2 * static_cast<size_t>(s) + (away ? 1 : 0)) * static_cast<size_t>(num_slots_)];
      for (int used = 0; used < num_slots_; ++used) {
        row[used] = bestFirst(s, away, used);
        if (row[used].choice == kNone) break;
      }
    }
  }
}

// `away`: x_{s-1} is in the store once link s has read it, and comes back for the backward of link
// s or for its replays. It is not among the slots used.
ChainProgram::Entry ChainProgram::bestFirst(int s, bool away, int used) const {
  const Facts& link = facts_[static_cast<size_t>(s)];
  const int64_t base = away ? facts_[static_cast<size_t>(s) - 1].boundary_bytes : 0;
  const int64_t m = room(used);
  const int with_base = used + slots(base);
  Entry best{kNeverSo, kNone};
  const auto consider = [&](double cost, int choice) {
    if (cost < best.cost) best = {static_cast<float>(cost), static_cast<int16_t>(choice)};
  };
  const bool all = link.first_all_peak + base <= m && link.backward_peak + base <= m;
  if (s + 1 == n_) {
    if (all) best = {0, kLeaf};
    return best;
  }
  int64_t before = base;
  for (int k = s + 1; k < n_; ++k) {
    const Facts& ran = facts_[static_cast<size_t>(k) - 1];
    if (ran.first_none_peak + before > m) break;
    before = ran.boundary_bytes;
    const double back = entry(s, k - 1, with_base).cost;
    consider(firstEntry(k, false, used + slots(ran.boundary_bytes)).cost + back, k);
    if (ran.boundary_pages)
      consider(ran.boundary_page_cost + firstEntry(k, true, used).cost + back, k + kAway);
  }
  if (!all) return best;
  consider(firstEntry(s + 1, false, used + slots(link.kept_bytes)).cost, kAll);
  if (link.kept_pages) {
    consider(link.boundary_page_cost + link.kept_page_cost + firstEntry(s + 1, true, used).cost,
             kAllOut);
  }
  return best;
}

// ---- the schedule -------------------------------------------------------------------------------

void ChainProgram::writeReplays(int s, int t, int used, std::vector<Step>& steps) const {
  const Entry& found = entry(s, t, used);
  const Facts& first = facts_[static_cast<size_t>(s)];
  if (found.choice == kLeaf) {
    steps.push_back({Word::kForwardAll, s});
    steps.push_back({Word::kBackward, s});
  } else if (found.choice == kAll) {
    steps.push_back({Word::kForwardAll, s});
    writeReplays(s + 1, t, used + slots(first.kept_bytes), steps);
    steps.push_back({Word::kBackward, s});
  } else {
    const int k = found.choice;
    for (int i = s; i < k; ++i) steps.push_back({i == s ? Word::kForwardKeep : Word::kForward, i});
    writeReplays(k, t, used + slots(facts_[static_cast<size_t>(k) - 1].boundary_bytes), steps);
    writeReplays(s, k - 1, used, steps);
  }
}

void ChainProgram::writeFirst(int s, bool away, int used, bool prefetch,
                              std::vector<Step>& steps) const {
  const Entry& found = firstEntry(s, away, used);
  const Facts& link = facts_[static_cast<size_t>(s)];
  const int with_base = used + slots(away ? facts_[static_cast<size_t>(s) - 1].boundary_bytes : 0);
  // Behind what comes first, or before its last backward.
  const auto comeBack = [&](Step step) { steps.insert(steps.end() - (prefetch ? 1 : 0), step); };
  if (found.choice == kLeaf) {
    steps.push_back({Word::kForwardAll, s});
    if (away) steps.push_back({Word::kPageIn, s - 1});
    steps.push_back({Word::kBackward, s});
  } else if (found.choice == kAll || found.choice == kAllOut) {
    const bool out = found.choice == kAllOut;
    steps.push_back({out ? Word::kForwardOut : Word::kForwardAll, s});
    writeFirst(s + 1, out, out ? used : used + slots(link.kept_bytes), prefetch, steps);
    if (away) comeBack({Word::kPageIn, s - 1});
    if (out) comeBack({Word::kPageInAll, s});
    steps.push_back({Word::kBackward, s});
  } else {
    const bool out = found.choice >= kAway;
    const int k = out ? found.choice - kAway : found.choice;
    for (int i = s; i < k; ++i)
      steps.push_back({i == s && !away ? Word::kForwardKeep : Word::kForward, i});
    const int64_t boundary = facts_[static_cast<size_t>(k) - 1].boundary_bytes;
    writeFirst(k, out, out ? used : used + slots(boundary), prefetch, steps);
    if (away) comeBack({Word::kPageIn, s - 1});
    writeReplays(s, k - 1, with_base, steps);
  }
}

double ChainProgram::cost(int reserve_slots) const {
  return static_cast<double>(firstEntry(0, false, reserve_slots).cost);
}

std::optional<std::vector<Step>> ChainProgram::steps(int reserve_slots, bool prefetch) const {
  if (std::isinf(cost(reserve_slots))) return std::nullopt;
  std::vector<Step> steps;
  writeFirst(0, false, reserve_slots, prefetch, steps);
  return steps;
}

int ChainProgram::mostReserve() const {
  int most = -1;
  while (most + 1 < num_slots_ && !std::isinf(cost(most + 1))) ++most;
  return most;
}

// ---- the method ---------------------------------------------------------------------------------

namespace {

// Programs for the same budget, one a chain.
class ChainPrograms {
 public:
  ChainPrograms(const Problem& problem, const std::vector<Chain>& chains,
                const ChainProgramOptions& options)
      : problem_(problem), chains_(chains) {
    for (const Chain& chain : chains) programs_.emplace_back(problem, chain, options);
  }

  // The plan that leaves at least `reserve_bytes` alone in each chain.
  std::optional<planner::ReplayPlan> plan(int64_t reserve_bytes, bool prefetch) const {
    std::vector<std::vector<Step>> steps;
    for (const ChainProgram& program : programs_) {
      const int64_t slots = (reserve_bytes + program.slotBytes() - 1) / program.slotBytes();
      auto found =
          program.steps(static_cast<int>(std::min<int64_t>(slots, 2 * kChainSlots)), prefetch);
      if (!found) return std::nullopt;
      steps.push_back(std::move(*found));
    }
    return planOfChains(problem_, chains_, steps);
  }

  int64_t slotBytes() const {
    int64_t least = 1;
    for (const ChainProgram& program : programs_) least = std::max(least, program.slotBytes());
    return least;
  }

  int64_t mostReserveBytes() const {
    int64_t most = std::numeric_limits<int64_t>::max();
    for (const ChainProgram& program : programs_)
      most = std::min(most, program.mostReserve() * program.slotBytes());
    return most;
  }

 private:
  const Problem& problem_;
  const std::vector<Chain>& chains_;
  std::vector<ChainProgram> programs_;
};

// Of the peak that a program was told to keep and the simulator's: the difference is left alone
// next time.
constexpr int kMostCorrections = 40;
constexpr int kMostSmallest = 8;
constexpr int kSmallerBudgets = 24;

void offerPlans(const ChainPrograms& programs, int64_t budget_bytes, bool prefetch,
                PlanChoice& choice) {
  int64_t reserve = 0;
  for (int i = 0; i < kMostCorrections && !choice.deadline().over(); ++i) {
    const auto plan = programs.plan(reserve, prefetch);
    if (!plan) return;
    const int64_t peak = choice.offer(*plan);
    if (peak <= budget_bytes) return;
    reserve += std::max(programs.slotBytes(), (peak - budget_bytes) / 2);
  }
}

// Those with the least memory that the programs can do with.
void offerSmallest(const ChainPrograms& programs, PlanChoice& choice) {
  const int64_t most = programs.mostReserveBytes();
  for (int64_t less = 0; less < kMostSmallest; ++less) {
    const int64_t reserve = most - less * programs.slotBytes();
    if (reserve < 0) return;
    if (const auto plan = programs.plan(reserve, false)) choice.offer(*plan);
  }
}

// The plans of programs for one budget.
class ChainPlans {
 public:
  ChainPlans(const Problem& problem, const std::vector<Chain>& chains, bool offload,
             PlanChoice& choice)
      : problem_(problem), chains_(chains), offload_(offload), choice_(choice) {}

  // `budget_bytes`: the programs'; plans are corrected until they keep `most_bytes`.
  void offer(int64_t budget_bytes, int64_t most_bytes) {
    // With channels a transfer may cost nothing, or all of its time: the simulator decides.
    const bool overlaps = offload_ && problem_.profile().dma_channels > 0;
    for (const double share :
         overlaps ? std::vector<double>{0, 0.25, 0.5, 1} : std::vector<double>{1}) {
      const ChainPrograms programs = within(budget_bytes, share);
      offerPlans(programs, most_bytes, false, choice_);
      if (overlaps) offerPlans(programs, most_bytes, true, choice_);
    }
  }

  // A program counts in slots of its own budget, so that one made for the plain peak knows little
  // of small budgets. The same budgets whatever was asked for: what is reported as the least is
  // met.
  void offerSmallest(int64_t plain_bytes) {
    poet::methods::offerSmallest(within(plain_bytes, 1), choice_);
    const int64_t room = std::max<int64_t>(0, plain_bytes - problem_.floor_bytes);
    for (int i = 0; i < kSmallerBudgets && !choice_.deadline().over(); ++i) {
      const int64_t budget =
          std::max<int64_t>(1, problem_.floor_bytes + room * i / kSmallerBudgets);
      offer(budget, budget);
      poet::methods::offerSmallest(within(budget, 1), choice_);
    }
  }

 private:
  ChainPrograms within(int64_t budget_bytes, double transfer_share) const {
    return ChainPrograms(
        problem_, chains_,
        {.budget_bytes = budget_bytes, .offload = offload_, .transfer_share = transfer_share});
  }

  const Problem& problem_;
  const std::vector<Chain>& chains_;
  const bool offload_;
  PlanChoice& choice_;
};

}  // namespace

Schedule planChains(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
                    const std::string& method, bool offload) {
  const RecipeTable table(graph);
  const Problem problem(
      graph, table, profile,
      {.objective = options.minimize, .recompute = options.recompute, .paging = offload});
  PlanChoice choice(problem, options, method);
  std::vector<Chain> chains = findChains(problem, findMayLeave(problem));
  for (Chain& chain : chains) chain = joinLinks(problem, std::move(chain), kMostChainLinks);
  std::vector<std::vector<Step>> keep_all;
  for (const Chain& chain : chains) keep_all.push_back(stepsThatKeepAll(chain.size()));
  choice.offer(planOfChains(problem, chains, keep_all));
  const int64_t plain = simulatePlain(graph, profile).peak_bytes;
  ChainPlans plans(problem, chains, offload, choice);
  plans.offer(std::min(options.ram_budget_bytes, plain), options.ram_budget_bytes);
  if (!choice.any() || options.minimize == Objective::kMemory) plans.offerSmallest(plain);
  return choice.finish("the least of its plans over the step's cut vertices");
}

}  // namespace poet::methods
