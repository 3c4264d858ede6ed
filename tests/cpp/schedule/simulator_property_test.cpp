// The simulator against a machine that computes: every value has contents, every op mixes what it
// reads into what it writes, and a recompute runs on whatever is there. What the simulator accepts
// must leave every op with the bits that it had in the plain step, and what it refuses for
// residency or versions must show in the contents as well.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>

#include "graph/error.h"
#include "graph/recipes.h"
#include "schedule/simulator.h"
#include "support/random_graph.h"
#include "support/random_plan.h"

namespace poet::testing {
namespace {

uint64_t mix(uint64_t a, uint64_t b) { return Random(a * 0x9e3779b97f4a7c15ULL + b).next(); }

struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Machine {
 public:
  Machine(const Graph& graph, const Schedule& schedule, int64_t generator_bytes)
      : graph_(graph), schedule_(schedule), generator_bytes_(generator_bytes) {}

  void run() {
    for (int v = 0; v < graph_.numValues(); ++v) {
      const Value& value = graph_.value(ValueId(v));
      if (value.producer == kNoOp && value.death.index >= 0)
        memory_[v] = truth_[v] = mix(1, static_cast<uint64_t>(v));
    }
    for (now_ = 0; now_ < graph_.numOps(); ++now_) {
      act(schedule_.before, false);
      firstRun(OpId(now_));
      act(schedule_.after, true);
      for (int v = 0; v < graph_.numValues(); ++v) {
        if (graph_.value(ValueId(v)).death.index == now_ && !retained_.contains(v))
          memory_.erase(v);
      }
    }
    act(schedule_.before, false);
    for (int v = 0; v < graph_.numValues(); ++v) {
      if (graph_.value(ValueId(v)).death != graph_.endOfStep()) continue;
      if (!memory_.contains(v)) throw Violation("missing at the end");
      if (memory_[v] != truth_[v]) throw Violation("wrong at the end");
    }
  }

  int64_t peak() const { return peak_; }

 private:
  using Contents = std::map<int, uint64_t>;

  // Contents of what `op` reads, as a replay sees them; nothing where something is away.
  std::optional<uint64_t> digest(OpId id, const Contents& own, bool replay) {
    uint64_t sum = mix(2, static_cast<uint64_t>(id.index));
    const std::set<ValueId> statistics(graph_.op(id).statistics.begin(),
                                       graph_.op(id).statistics.end());
    for (ValueId v : graph_.dataInputs(id)) {
      const bool at_home = own.contains(v.index);
      if (statistics.contains(v)) {
        if (!replay && !memory_.contains(v.index)) return std::nullopt;
        continue;  // the result does not depend on them
      }
      if (!at_home && !memory_.contains(v.index)) return std::nullopt;
      sum = mix(sum, at_home ? own.at(v.index) : memory_.at(v.index));
    }
    return sum;
  }

  void write(OpId id, uint64_t sum, Contents* into, bool replay) {
    const Op& op = graph_.op(id);
    const std::set<ValueId> statistics(op.statistics.begin(), op.statistics.end());
    for (ValueId v : op.mutates) {
      if (replay && statistics.contains(v)) continue;
      const uint64_t old = into->contains(v.index) ? into->at(v.index) : 0;
      (*into)[v.index] = mix(mix(old, sum), static_cast<uint64_t>(v.index));
    }
    for (ValueId v : graph_.madeBy(id)) (*into)[v.index] = mix(sum, static_cast<uint64_t>(v.index));
  }

  void firstRun(OpId id) {
    const auto sum = digest(id, {}, false);
    if (!sum) throw Violation("absent");
    read_[id.index] = *sum;
    int64_t made = 0;
    for (ValueId v : graph_.madeBy(id)) made += graph_.value(v).bytes;
    count(made + graph_.op(id).workspace_bytes, now_ + 1);
    write(id, *sum, &memory_, false);
    for (ValueId v : graph_.op(id).mutates) truth_[v.index] = memory_[v.index];
    for (ValueId v : graph_.madeBy(id)) truth_[v.index] = memory_[v.index];
  }

  void act(const std::vector<std::vector<Action>>& lists, bool after) {
    if (lists.empty()) return;
    for (const Action& action : lists[static_cast<size_t>(now_)]) {
      if (action.kind == ActionKind::kFree) {
        memory_.erase(action.arg);
        retained_.erase(action.arg);
      } else if (action.kind == ActionKind::kRetain) {
        retained_.insert(action.arg);
      } else {
        recompute(schedule_.recipes[static_cast<size_t>(action.arg)], now_ + (after ? 1 : 0));
      }
    }
  }

  void recompute(const std::vector<OpId>& chain, int64_t ops_run) {
    Contents own;
    int64_t workspace = 0;
    int64_t made = 0;
    for (OpId id : chain) {
      const auto sum = digest(id, own, true);
      if (!sum) throw Violation("absent in a recompute");
      if (*sum != read_[id.index]) throw Violation("stale in a recompute");
      write(id, *sum, &own, true);
      workspace = std::max(workspace, graph_.op(id).workspace_bytes);
    }
    for (ValueId v : graph_.madeBy(chain.front())) made += graph_.value(v).bytes;
    count(made + workspace, ops_run);
    for (const auto& [v, contents] : own) {
      if (contents != truth_[v]) throw Violation("a recompute yields old contents");
      if (memory_.contains(v)) continue;
      memory_[v] = contents;
      if (ops_run > graph_.lastShown(ValueId(v)).index) retained_.insert(v);
    }
  }

  // Adds everything up afresh.
  void count(int64_t extra, int64_t ops_begun) {
    int64_t bytes = graph_.baseBytes() + extra;
    for (const auto& [v, contents] : memory_) bytes += graph_.value(ValueId(v)).bytes;
    std::set<OpId> random_ops;
    for (const auto* lists : {&schedule_.before, &schedule_.after}) {
      for (const auto& actions : *lists) {
        for (const Action& action : actions) {
          if (action.kind != ActionKind::kRecompute) continue;
          for (OpId op : schedule_.recipes[static_cast<size_t>(action.arg)]) {
            if (graph_.op(op).random && op.index < ops_begun) random_ops.insert(op);
          }
        }
      }
    }
    peak_ = std::max(peak_, bytes + generator_bytes_ * static_cast<int64_t>(random_ops.size()));
  }

  const Graph& graph_;
  const Schedule& schedule_;
  int64_t generator_bytes_;
  int64_t now_ = 0;
  int64_t peak_ = 0;
  Contents memory_;
  Contents truth_;  // as in the plain step at this point
  Contents read_;   // what each op read first, by op
  std::set<int> retained_;
};

bool isAboutResidencyOrVersions(const std::string& message) {
  for (const char* part : {" needs value ", "is missing at its end", "leaves out a write"}) {
    if (message.find(part) != std::string::npos) return true;
  }
  return false;
}

TEST(SimulatorOnRandomPlans, AcceptsExactlyWhatComputesTheSameBits) {
  DeviceProfile device = hostProfile();
  device.generator_state_bytes = 40;
  int64_t accepted = 0;
  int64_t recomputed = 0;
  int64_t refused = 0;
  int64_t stale = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    RandomGraphOptions options;
    if (seed % 3 == 0) options.in_place = options.multi_output = 0.5;
    const Graph graph = randomGraph(seed, options);
    const RecipeTable table(graph);
    Random random(seed);
    for (int i = 0; i < 20; ++i) {
      const Schedule schedule = randomPlan(graph, table, random);
      Machine machine(graph, schedule, device.generator_state_bytes);
      std::optional<SimulationResult> result;
      std::string refusal;
      try {
        result = simulate(graph, schedule, device);
      } catch (const ScheduleError& error) {
        refusal = error.what();
      }
      if (result) {
        ASSERT_NO_THROW(machine.run()) << "seed " << seed << ", plan " << i << "\n"
                                       << schedule.toJson();
        ASSERT_EQ(result->peak_bytes, machine.peak()) << "seed " << seed << ", plan " << i;
        ++accepted;
        recomputed += result->recomputed_ops;
      } else if (isAboutResidencyOrVersions(refusal)) {
        ASSERT_THROW(machine.run(), Violation)
            << "seed " << seed << ", plan " << i << ": " << refusal;
        ++refused;
        stale += refusal.find("version") != std::string::npos &&
                 refusal.find("finds") != std::string::npos;
      }
    }
  }
  EXPECT_GT(accepted, 2000);
  EXPECT_GT(recomputed, 500);
  EXPECT_GT(refused, 1000);
  EXPECT_GT(stale, 30);
}

TEST(SimulatorOnRandomPlans, ThePlainStepOfAnyGraphCanBeCarriedOut) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const Graph graph = randomGraph(seed);
    const SimulationResult result = simulatePlain(graph, hostProfile());
    ASSERT_EQ(result.makespan_seconds, graph.plainSeconds());
    ASSERT_EQ(static_cast<int64_t>(result.resident_bytes.size()), graph.numOps());
    ASSERT_EQ(result.peak_bytes,
              *std::max_element(result.resident_bytes.begin(), result.resident_bytes.end()));
    ASSERT_EQ(result.resident_bytes[static_cast<size_t>(result.peak_op.index)], result.peak_bytes);
  }
}

}  // namespace
}  // namespace poet::testing
