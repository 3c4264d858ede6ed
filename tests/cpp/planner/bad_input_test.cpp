// Questions that make no sense get an error that names what is wrong with them; questions that are
// merely enormous get an answer in time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "graph/error.h"
#include "planner/planner.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"
#include "support/temporary_folder.h"

namespace poet {
namespace {

using ::testing::AllOf;
using testing::GraphBuilder;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr const char* kNoSolver = "/no/solver/is/started/for/a/bad/question";

Graph smallGraph() {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId a = g.op("f").reads({x}).seconds(1).makes(10);
  g.outlives(g.op("g").reads({a}).seconds(1).makes(1));
  return g.build();
}

SolveOptions goodOptions() {
  SolveOptions options;
  options.ram_budget_bytes = 100;
  return options;
}

// Neither way to solve takes it, and the one in a process does not even start the process.
void expectRefused(const DeviceProfile& device, const SolveOptions& options,
                   const std::string& says) {
  const Graph graph = smallGraph();
  EXPECT_THAT([&] { solve(graph, device, options); },
              ThrowsMessage<ArgumentError>(HasSubstr(says)));
  EXPECT_THAT([&] { solveInWorker(graph, device, options, kNoSolver); },
              ThrowsMessage<ArgumentError>(HasSubstr(says)));
}

void expectRefused(const std::function<void(SolveOptions&)>& spoil, const std::string& says) {
  SolveOptions options = goodOptions();
  spoil(options);
  expectRefused(hostProfile(), options, says);
}

TEST(BadInput, BudgetsThatAreNoAmountOfMemoryAreRefused) {
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()})
    expectRefused([&](auto& options) { options.ram_budget_bytes = bad; }, "ram_budget: expected");
  SolveOptions most = goodOptions();
  most.ram_budget_bytes = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(solve(smallGraph(), hostProfile(), most).status, Status::kOptimal);
}

TEST(BadInput, DeadlinesAndTimeLimitsThatAreNoTimeAreRefused) {
  for (const double bad : {0.0, -0.0, -1.0, kNan, kInfinity, -kInfinity}) {
    expectRefused([&](auto& options) { options.runtime_budget_seconds = bad; },
                  "runtime_budget: expected");
    expectRefused([&](auto& options) { options.time_limit_seconds = bad; },
                  "time_limit_s: expected");
  }
}

TEST(BadInput, ALimitOfManyYearsIsOneAndTheSolverIsNotInAHurry) {
  SolveOptions options = goodOptions();
  options.ram_budget_bytes = 11;  // below the plain peak of 12: the solver is called
  for (const double years : {3e7, 1e300}) {
    options.time_limit_seconds = years;
    EXPECT_EQ(solve(smallGraph(), hostProfile(), options).status, Status::kInfeasible);
  }
}

TEST(BadInput, NumbersOfThreadsThatNoMachineHasAreRefused) {
  for (const int bad : {0, -1, SolveOptions::kMostThreads + 1, 1000000,
                        std::numeric_limits<int>::max(), std::numeric_limits<int>::min()})
    expectRefused([&](auto& options) { options.threads = bad; }, "solve_threads: expected");
}

TEST(BadInput, ANicenessThatIsNoneIsRefused) {
  for (const int bad : {-1, SolveOptions::kMostNiceness + 1})
    expectRefused([&](auto& options) { options.niceness = bad; }, "niceness: expected");
}

TEST(BadInput, AnObjectiveThatIsNoneIsRefused) {
  expectRefused([](auto& options) { options.minimize = static_cast<Objective>(7); },
                "minimize: expected");
}

TEST(BadInput, ProfilesThatNoDeviceHasAreRefusedByName) {
  const std::vector<std::pair<const char*, double DeviceProfile::*>> fields = {
      {"compute_watts", &DeviceProfile::compute_watts},
      {"idle_watts", &DeviceProfile::idle_watts},
      {"memory_watts", &DeviceProfile::memory_watts},
      {"store_watts", &DeviceProfile::store_watts},
      {"replay_factor", &DeviceProfile::replay_factor},
      {"replay_fixed_seconds", &DeviceProfile::replay_fixed_seconds},
      {"store_read_rate", &DeviceProfile::store_read_rate},
      {"store_write_rate", &DeviceProfile::store_write_rate},
      {"store_read_latency_seconds", &DeviceProfile::store_read_latency_seconds},
      {"store_write_latency_seconds", &DeviceProfile::store_write_latency_seconds},
      {"wake_joules", &DeviceProfile::wake_joules}};
  for (const auto& [name, field] : fields) {
    for (const double bad : {-1.0, kNan, kInfinity, -kInfinity}) {
      DeviceProfile device = hostProfile();
      device.*field = bad;
      const std::string says = std::string("profile \"host\": ") + name + ": expected";
      expectRefused(device, goodOptions(), says);
      EXPECT_THAT([&] { simulatePlain(smallGraph(), device); },
                  ThrowsMessage<ArgumentError>(HasSubstr(says)));
      EXPECT_THAT([&] { simulate(smallGraph(), Schedule{}, device); },
                  ThrowsMessage<ArgumentError>(HasSubstr(says)));
    }
  }
}

// A channel is a number in memory: a billion of them would be gigabytes.
TEST(BadInput, WholeNumbersOfAProfileAreBounded) {
  for (const int bad : {-1, DeviceProfile::kMaxDmaChannels + 1, std::numeric_limits<int>::max()}) {
    DeviceProfile device = hostProfile();
    device.dma_channels = bad;
    expectRefused(device, goodOptions(), "dma_channels: expected");
  }
  for (const int64_t bad : {int64_t{-1}, DeviceProfile::kMaxGeneratorStateBytes + 1,
                            std::numeric_limits<int64_t>::max()}) {
    DeviceProfile device = hostProfile();
    device.generator_state_bytes = bad;
    expectRefused(device, goodOptions(), "generator_state_bytes: expected");
  }
}

// ---- documents ----------------------------------------------------------------------------------

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void expectRefusedDocument(const std::string& from, const std::string& to,
                           const std::vector<std::string>& says) {
  const std::string text = replaced(smallGraph().toJson(), from, to);
  for (const std::string& part : says) {
    EXPECT_THAT([&] { Graph::fromJson(text); }, ThrowsMessage<FormatError>(HasSubstr(part)));
  }
}

TEST(BadInput, AGraphFileNamesTheOpOrTheValueThatMakesNoSense) {
  // A cycle: f reads what g makes, g reads what f makes.
  expectRefusedDocument("\"inputs\":[0]", "\"inputs\":[2]",
                        {"op 0 (f): inputs", "value 2 does not exist yet", "op 1 (g)"});
  // An op that reads what it makes.
  expectRefusedDocument("\"inputs\":[0]", "\"inputs\":[1]", {"op 0 (f): inputs"});
  // Values that are said to be made by an op that does not make them, or that does not exist.
  expectRefusedDocument("\"producer\":0", "\"producer\":1",
                        {"value 1: producer: op 1 (g) does not list it in its outputs"});
  expectRefusedDocument("\"producer\":0", "\"producer\":7", {"producer"});
  expectRefusedDocument("\"outputs\":[1]", "\"outputs\":[0]", {"value 1"});
  // Two ops that make the same value: the second one's id is taken.
  expectRefusedDocument("\"outputs\":[2]", "\"outputs\":[1]", {"value 2: producer"});
  // A death before the last use.
  expectRefusedDocument("\"death\":1", "\"death\":0",
                        {"value 1: death", "no earlier than op 1 (g)", "got 0"});
  // Costs and sizes that are none.
  expectRefusedDocument("\"seconds\":1.0", "\"seconds\":-1.0", {"op 0 (f): seconds"});
  expectRefusedDocument("\"seconds\":1.0", "\"seconds\":NaN",
                        {"not valid JSON", "at ops[0].seconds"});
  expectRefusedDocument("\"seconds\":1.0", "\"seconds\":1e999", {"at ops[0].seconds"});
  expectRefusedDocument("\"bytes\":10", "\"bytes\":9223372036854775808",
                        {"values[1].bytes", "9223372036854775808"});
  expectRefusedDocument("\"bytes\":10", "\"bytes\":9223372036854775807", {"2^63"});
  expectRefusedDocument("\"bytes\":10", "\"bytes\":-10", {"values[1].bytes", "-10"});
}

// ---- size
// -----------------------------------------------------------------------------------------

// A chain whose values are read again on the way back. Every large_every-th is a large one.
Graph longStep(int64_t num_ops, int64_t large_every) {
  GraphBuilder g;
  std::vector<ValueId> saved = {g.input(4096)};
  for (int64_t k = 0; k < num_ops / 2; ++k) {
    const int64_t bytes = k % large_every == large_every - 1 ? int64_t{64} << 20 : 4096;
    saved.push_back(g.op("aten::relu").reads({saved.back()}).seconds(1e-5).makes(bytes));
  }
  ValueId gradient = saved.back();
  for (int64_t k = num_ops / 2; k < num_ops; ++k) {
    const auto from = static_cast<size_t>(num_ops - k);
    gradient =
        g.op("aten::mul").reads({gradient, saved[from]}).seconds(1e-5).makes(saved.size() % 7 + 64);
  }
  g.outlives(gradient);
  return g.build();
}

// A million takes half a minute, most of it to write and read the file: that is for `make nightly`.
int64_t manyOps() { return std::getenv("POET_PROPERTY_FACTOR") != nullptr ? 1000000 : 100000; }

TEST(BadInput, EnormousStepsAreLoadedAndAnsweredInTime) {
  const testing::TemporaryFolder folder;
  longStep(manyOps(), 2000).save(folder / "graph.json");
  const Graph graph = Graph::load(folder / "graph.json");
  ASSERT_EQ(graph.numOps(), manyOps());
  SolveOptions options = goodOptions();
  options.ram_budget_bytes = simulatePlain(graph, hostProfile()).peak_bytes * 3 / 4;
  options.time_limit_seconds = 4;
  const Schedule schedule = solveInWorker(graph, hostProfile(), options, POET_SOLVER_PATH);
  std::printf("%s after %.1f s: %s\n", std::string(toString(schedule.status)).c_str(),
              schedule.solve_seconds, schedule.message.c_str());
  EXPECT_LT(schedule.solve_seconds, 10 * options.time_limit_seconds);  // a watchdog
  EXPECT_NE(schedule.status, Status::kInfeasible);
  EXPECT_EQ(schedule.message.find("signal"), std::string::npos) << schedule.message;
  if (schedule.hasPlan()) {
    EXPECT_LE(simulate(graph, schedule, hostProfile()).peak_bytes, options.ram_budget_bytes);
  }
}

// None of 12,000 values is above a ten-thousandth of the peak, so the planner has nothing to
// choose.
TEST(BadInput, AStepOfNothingButTinyValuesIsAnswered) {
  const Graph graph = longStep(24000, int64_t{1} << 40);
  SolveOptions options = goodOptions();
  options.ram_budget_bytes = simulatePlain(graph, hostProfile()).peak_bytes * 3 / 4;
  options.time_limit_seconds = 2;
  const Schedule schedule = solveInWorker(graph, hostProfile(), options, POET_SOLVER_PATH);
  EXPECT_EQ(schedule.message.find("signal"), std::string::npos) << schedule.message;
}

// A step of more ops than any file may have is refused before anything is built of it.
TEST(BadInput, MoreOpsThanAFileMayHaveAreRefused) {
  std::string ops = "{\"name\":\"f\"}";
  ops.reserve(30 << 20);
  for (int64_t k = 0; k < (int64_t{1} << 20); ++k) ops += ",{\"name\":\"f\"}";
  const std::string text =
      "{\"format\":\"poet-graph\",\"version\":1,\"signature\":\"0000000000000001\","
      "\"base_bytes\":0,\"ops\":[" +
      ops + "],\"values\":[]}";
  EXPECT_THAT([&] { Graph::fromJson(text); }, ThrowsMessage<FormatError>(HasSubstr("1048576")));
}

}  // namespace
}  // namespace poet
