// What must hold between the answers to two questions, whatever the right answer is: other units,
// other names, more of what is scarce. Random small graphs; recompute, paging or both.
//
// Where both plans are optimal their costs are compared. Where one is not, the bound over all
// schedules of either question still may not lie above the other's plan: a wrong bound is a wrong
// proof. Every check counts how often it was decided by two proofs, so that none passes by never
// comparing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <vector>

#include "planner/planner.h"
#include "planner/small_random_graph.h"
#include "schedule/simulator.h"
#include "support/property_cases.h"
#include "support/random.h"

namespace poet {
namespace {

using testing::Random;

int numCases() { return poet::testing::propertyCases(20); }

struct Question {
  Graph graph;
  DeviceProfile device;
  SolveOptions options;

  Schedule answer() const { return solve(graph, device, options); }
};

DeviceProfile device(Random& random) {
  DeviceProfile device;
  device.name = "test";
  device.compute_watts = 2;
  device.idle_watts = 1;
  device.memory_watts = 0.5;
  device.store_watts = static_cast<double>(random.below(3));
  device.replay_factor = 1.25;
  device.replay_fixed_seconds = 0.125;
  device.generator_state_bytes = 3;
  if (random.chance(0.6)) {
    device.store_read_rate = 0.5 + 7 * random.unit();
    device.store_write_rate = 0.5 + 7 * random.unit();
    device.store_read_latency_seconds = 0.25;
    device.store_write_latency_seconds = 0.5;
    device.wake_joules = static_cast<double>(random.below(2));
  }
  return device;
}

Question question(uint64_t seed, std::optional<Objective> minimize = {}) {
  Random random(seed);
  Question asked{.graph = testing::smallRandomGraph(seed), .device = device(random), .options = {}};
  const SimulationResult plain = simulatePlain(asked.graph, asked.device);
  asked.options.ram_budget_bytes =
      std::max<int64_t>(1, plain.peak_bytes * random.between(60, 99) / 100);
  asked.options.minimize = minimize.value_or(random.pick(
      std::vector<Objective>{Objective::kEnergy, Objective::kTime, Objective::kMemory}));
  asked.options.recompute = random.chance(0.8);
  if (random.chance(0.4))
    asked.options.runtime_budget_seconds = plain.makespan_seconds * (1 + 0.6 * random.unit());
  if (asked.options.minimize == Objective::kMemory)
    asked.options.ram_budget_bytes = std::max<int64_t>(1, plain.peak_bytes);
  if (minimize) {  // recompute against paging: where a wrong price shows
    asked.device.store_read_rate = asked.device.store_write_rate = 2 + 6 * random.unit();
    asked.device.wake_joules = 0;
    asked.options.recompute = true;
    asked.options.runtime_budget_seconds.reset();
    asked.options.ram_budget_bytes = std::max<int64_t>(1, plain.peak_bytes * 4 / 5);
  }
  asked.options.time_limit_seconds = 0.3;
  asked.options.deterministic = true;
  return asked;
}

constexpr double kTolerance = 1e-6;  // relative: the planner's own for "optimal"

bool atMost(double a, double b) { return a <= b + kTolerance * (std::abs(a) + std::abs(b)); }

class Comparison {
 public:
  // `other` may cost at most `factor` times what `one` does.
  void expectNoWorse(const Schedule& other, const Schedule& one, double factor) {
    if (!one.hasPlan()) return;
    const double cost = one.objectiveValue() * factor;
    EXPECT_NE(other.status, Status::kInfeasible) << other.message;
    if (other.status == Status::kOptimal) {
      EXPECT_PRED2(atMost, other.objectiveValue(), cost);
      decided_ += one.status == Status::kOptimal;
    }
    if (other.hasPlan() && other.bound_scope == "all") {
      EXPECT_PRED2(atMost, *other.bound, cost);
    }
  }

  void expectSame(const Schedule& one, const Schedule& other, double factor) {
    expectNoWorse(other, one, factor);
    expectNoWorse(one, other, 1 / factor);
    if (one.status == Status::kInfeasible || other.status == Status::kInfeasible) {
      EXPECT_FALSE(one.hasPlan());
      EXPECT_FALSE(other.hasPlan());
    }
  }

  void expectDecided(int least) const {
    std::printf("%d cases compared two proven plans\n", decided_);
    EXPECT_GE(decided_, least);
  }

 private:
  int decided_ = 0;
};

// Asks every question twice, the second time as `change` makes it. Its plan costs factor(question)
// times as much.
template <class Change, class Factor>
void expectSameAfter(uint64_t first_seed, Change change, Factor factor,
                     std::optional<Objective> minimize = {}) {
  Comparison comparison;
  for (int i = 0; i < numCases(); ++i) {
    SCOPED_TRACE(i);
    const Question one = question(first_seed + static_cast<uint64_t>(i), minimize);
    Question other = one;
    change(other, static_cast<uint64_t>(i));
    comparison.expectSame(one.answer(), other.answer(), factor(one));
  }
  comparison.expectDecided(numCases() / 10);
}

double unchanged(const Question&) { return 1; }

template <class Change>
Graph changed(const Graph& graph, Change change) {
  std::vector<Op> ops = graph.ops();
  std::vector<Value> values = graph.values();
  int64_t base_bytes = graph.baseBytes();
  change(ops, values, base_bytes);
  return Graph(std::move(ops), std::move(values), base_bytes);
}

// ---- units --------------------------------------------------------------------------------------

void scaleBytes(Question& asked, int64_t factor) {
  asked.graph = changed(asked.graph, [&](auto& ops, auto& values, int64_t& base_bytes) {
    base_bytes *= factor;
    for (Op& op : ops) op.workspace_bytes *= factor;
    for (Value& value : values) value.bytes *= factor;
  });
  asked.device.generator_state_bytes *= factor;
  asked.device.store_read_rate *= static_cast<double>(factor);
  asked.device.store_write_rate *= static_cast<double>(factor);
  asked.options.ram_budget_bytes *= factor;
}

TEST(Metamorphic, TheUnitOfBytesChangesNothing) {
  for (const int64_t factor : {2, 1000}) {
    expectSameAfter(
        1000, [&](Question& asked, uint64_t) { scaleBytes(asked, factor); },
        [&](const Question& asked) {
          return asked.options.minimize == Objective::kMemory ? static_cast<double>(factor) : 1.0;
        });
  }
}

void scaleSeconds(Question& asked, double factor) {
  asked.graph = changed(asked.graph, [&](auto& ops, auto&, int64_t&) {
    for (Op& op : ops) op.seconds *= factor;
  });
  DeviceProfile& device = asked.device;
  device.replay_fixed_seconds *= factor;
  device.store_read_rate /= factor;
  device.store_write_rate /= factor;
  device.store_read_latency_seconds *= factor;
  device.store_write_latency_seconds *= factor;
  device.wake_joules *= factor;
  if (asked.options.runtime_budget_seconds) *asked.options.runtime_budget_seconds *= factor;
}

// 2^-20: a step of microseconds, without a rounding error.
TEST(Metamorphic, TheUnitOfSecondsChangesNothing) {
  for (const double factor : {0x1p-20, 1000.0}) {
    expectSameAfter(
        2000, [&](Question& asked, uint64_t) { scaleSeconds(asked, factor); },
        [&](const Question&) { return factor; },
        factor < 1 ? Objective::kTime : Objective::kEnergy);
  }
}

TEST(Metamorphic, TheUnitOfWattsChangesNothing) {
  constexpr double kFactor = 1024;
  expectSameAfter(
      3000,
      [&](Question& asked, uint64_t) {
        for (double* power :
             {&asked.device.compute_watts, &asked.device.idle_watts, &asked.device.memory_watts,
              &asked.device.store_watts, &asked.device.wake_joules})
          *power *= kFactor;
      },
      [](const Question&) { return kFactor; }, Objective::kEnergy);
}

// ---- names --------------------------------------------------------------------------------------

std::vector<ValueId> shuffledIds(int64_t count, Random& random) {
  std::vector<ValueId> ids;
  for (int64_t i = 0; i < count; ++i) ids.emplace_back(i);
  for (size_t i = ids.size(); i > 1; --i)
    std::swap(ids[i - 1], ids[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  return ids;
}

TEST(Metamorphic, TheNumbersOfValuesDoNotMatter) {
  const auto rename = [](Question& asked, uint64_t seed) {
    Random random(seed);
    const std::vector<ValueId> name = shuffledIds(asked.graph.numValues(), random);
    asked.graph = changed(asked.graph, [&](auto& ops, auto& values, int64_t&) {
      for (Op& op : ops) {
        for (auto* list : {&op.inputs, &op.outputs, &op.mutates, &op.statistics}) {
          for (ValueId& v : *list) v = name[static_cast<size_t>(v.index)];
        }
        std::sort(op.mutates.begin(), op.mutates.end());
        std::sort(op.statistics.begin(), op.statistics.end());
      }
      std::vector<Value> moved(values.size());
      for (size_t v = 0; v < values.size(); ++v)
        moved[static_cast<size_t>(name[v].index)] = values[v];
      values = std::move(moved);
    });
  };
  expectSameAfter(4000, rename, unchanged);
}

TEST(Metamorphic, TheOrderOfAnOpsInputsAndOutputsDoesNotMatter) {
  const auto reorder = [](Question& asked, uint64_t seed) {
    Random random(seed);
    asked.graph = changed(asked.graph, [&](auto& ops, auto&, int64_t&) {
      for (Op& op : ops) {
        for (auto* list : {&op.inputs, &op.outputs}) {
          const auto order = shuffledIds(static_cast<int64_t>(list->size()), random);
          std::vector<ValueId> moved;
          for (const ValueId from : order)
            moved.push_back((*list)[static_cast<size_t>(from.index)]);
          *list = std::move(moved);
        }
        if (random.chance(0.3) && !op.inputs.empty()) op.inputs.push_back(op.inputs.front());
      }
    });
  };
  expectSameAfter(5000, reorder, unchanged);
}

// ---- more of what is scarce
// -----------------------------------------------------------------------

TEST(Metamorphic, MoreMemoryNeverHurts) {
  Comparison comparison;
  for (int i = 0; i < numCases(); ++i) {
    SCOPED_TRACE(i);
    const Question tight = question(6000 + static_cast<uint64_t>(i));
    Question roomy = tight;
    roomy.options.ram_budget_bytes += 1 + i % 7;
    comparison.expectNoWorse(roomy.answer(), tight.answer(), 1);
  }
  comparison.expectDecided(numCases() / 10);
}

TEST(Metamorphic, ALaterDeadlineNeverHurts) {
  Comparison comparison;
  for (int i = 0; i < numCases(); ++i) {
    SCOPED_TRACE(i);
    Question hurried = question(7000 + static_cast<uint64_t>(i));
    const double plain = simulatePlain(hurried.graph, hurried.device).makespan_seconds;
    hurried.options.runtime_budget_seconds = plain * (1.0 + 0.1 * (i % 5));
    Question late = hurried;
    if (i % 2 == 0) {
      late.options.runtime_budget_seconds.reset();
    } else {
      *late.options.runtime_budget_seconds += 0.05 * plain * (i % 4);
    }
    comparison.expectNoWorse(late.answer(), hurried.answer(), 1);
  }
  comparison.expectDecided(numCases() / 10);
}

// Fewer ways to plan.
TEST(Metamorphic, ForbiddingRecomputeOrPagingNeverHelps) {
  Comparison comparison;
  for (int i = 0; i < numCases(); ++i) {
    SCOPED_TRACE(i);
    Question free = question(8000 + static_cast<uint64_t>(i));
    free.options.recompute = true;
    Question bound = free;
    (i % 2 == 0 ? bound.options.recompute : bound.options.paging) = false;
    comparison.expectNoWorse(free.answer(), bound.answer(), 1);
  }
  comparison.expectDecided(numCases() / 10);
}

// A plan for one channel is none the slower with one more: the simulator alone decides that. And no
// bound with more channels lies above a plan with fewer.
TEST(Metamorphic, OneTransferChannelLessNeverHelps) {
  int paged = 0;
  for (int i = 0; i < std::max(20, numCases() / 10); ++i) {
    SCOPED_TRACE(i);
    Question few = question(9000 + static_cast<uint64_t>(i));
    few.device.store_read_rate = few.device.store_write_rate = 4;
    few.device.wake_joules = 0;  // a transfer that starts elsewhere may wake the store once more
    few.device.dma_channels = i % 2;
    few.options.minimize = i % 4 < 2 ? Objective::kTime : Objective::kEnergy;
    few.options.runtime_budget_seconds.reset();
    few.options.ram_budget_bytes =
        std::max<int64_t>(1, simulatePlain(few.graph, few.device).peak_bytes * 85 / 100);
    few.options.recompute = i % 3 == 0;
    few.options.time_limit_seconds = 0.25;
    Question many = few;
    ++many.device.dma_channels;
    const Schedule plan = few.answer();
    if (!plan.hasPlan()) continue;
    const SimulationResult slow = simulate(few.graph, plan, few.device);
    const SimulationResult fast = simulate(many.graph, plan, many.device);
    EXPECT_LE(fast.makespan_seconds, slow.makespan_seconds * (1 + 1e-12));
    EXPECT_LE(fast.energy_joules, slow.energy_joules * (1 + 1e-12));
    Comparison().expectNoWorse(many.answer(), plan, 1);
    paged += plan.countActions(ActionKind::kPageIn) > 0;
  }
  EXPECT_GT(paged, 2);
}

}  // namespace
}  // namespace poet
