#include "runtime/step_planner.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "graph/error.h"
#include "runtime/solver_path.h"
#include "schedule/other_sizes.h"
#include "schedule/simulator.h"
#include "store/page_store.h"

namespace poet {
namespace {

// Measured once for each directory and process.
StoreSpeed speedOf(const std::string& directory) {
  static std::mutex mutex;
  static std::map<std::string, StoreSpeed> known;
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = known.find(directory);
  if (found == known.end()) found = known.emplace(directory, measureStore(directory)).first;
  return found->second;
}

bool onlineWanted() {
  const char* wish = std::getenv("POET_ONLINE");
  return wish == nullptr || std::string_view(wish) != "0";
}

void checkOptions(const TrainingStepOptions& options) {
  POET_CHECK(options.time_limit_seconds > 0 && std::isfinite(options.time_limit_seconds),
             "time_limit_s: expected seconds above 0; got ", options.time_limit_seconds,
             ". It must be above 0 and finite.");
  POET_CHECK(options.solve_threads >= 1 && options.solve_threads <= 1024,
             "solve_threads: expected a number of threads; got ", options.solve_threads,
             ". It must lie between 1 and 1024.");
  POET_CHECK(options.paging || options.page_dir.empty(),
             "page_dir: expected None beside paging=False; got '", options.page_dir,
             "'. Leave one of them out.");
  if (options.strict == Strictness::kHard) {
    POET_CHECK(!options.ram_budget.isShare(),
               "strict=kHard: expected a ram_budget in bytes, which holds from the first call on; "
               "got a share of the plain step's peak. Give it in bytes.");
    POET_CHECK(
        options.online && onlineWanted(),
        "strict=kHard: expected the online policy to be on; got online=false, or POET_ONLINE=0 "
        "in the environment. Leave one of the two out.");
  }
  POET_CHECK(options.recompute || options.paging,
             "recompute, paging: expected at least one of them to be on; with both off nothing "
             "could make room. Leave one of them out.");
}

// Whether values can be paged; opening the store is the test.
bool canPage(const TrainingStepOptions& options) {
  if (!options.paging) return false;
  try {
    PageStore::open(options.page_dir);
    return true;
  } catch (const Error& error) {
    if (!options.page_dir.empty()) throw;
    POET_CHECK(options.recompute, "recompute=False: expected a folder for paged values then. ",
               error.what());
    TORCH_WARN("poet pages nothing to secondary storage, it only recomputes: ", error.what(),
               " Pass page_dir= a folder on a disk, or paging=False to say that this is fine.");
    return false;
  }
}

}  // namespace

StepPlanner::StepPlanner(std::shared_ptr<Session> session, const TrainingStepOptions& options)
    : session_(std::move(session)),
      options_((checkOptions(options), options)),
      profile_(profileByName(options.platform)),
      paging_(canPage(options)) {
  if (paging_) session_->setStore(options.page_dir);
}

// ------------------------------------------------------------------------------------------------
// the store

void StepPlanner::measureStore() {
  if (!paging_ || std::exchange(store_is_measured_, true)) return;
  try {
    const StoreSpeed speed = speedOf(options_.page_dir);
    profile_.store_read_rate = speed.read_rate;
    profile_.store_write_rate = speed.write_rate;
    profile_.store_read_latency_seconds = speed.read_latency_seconds;
    profile_.store_write_latency_seconds = speed.write_latency_seconds;
    profile_.dma_channels = 1;  // the thread that transfers beside the step
    profile_.store_source = "measured";
  } catch (const Error& error) {
    stopPaging(error.what());
  }
}

void StepPlanner::stopPaging(const std::string& why) {
  paging_ = false;
  profile_ = profileByName(options_.platform);
  TORCH_WARN("poet pages nothing to secondary storage in this run: ", why);
}

// ------------------------------------------------------------------------------------------------
// without a plan

void StepPlanner::keepInside() {
  if (!options_.ram_budget.isShare()) setBudget(options_.ram_budget.bytes(0));
}

void StepPlanner::keepInside(const Graph& recorded) {
  if (!options_.ram_budget.isShare()) return;
  const int64_t peak = simulatePlain(recorded, profileByName(options_.platform)).peak_bytes;
  if (peak <= policed_peak_bytes_) return;
  policed_peak_bytes_ = peak;
  setBudget(options_.ram_budget.bytes(peak));
}

// The store is measured beside the steps, and so the policy does not know it: it recomputes.
void StepPlanner::setBudget(int64_t bytes) {
  if (!options_.online || !onlineWanted()) return;
  is_policed_ = true;
  session_->setBudget({bytes, options_.recompute, paging_, paging_ && options_.away_between_steps,
                       profileByName(options_.platform)},
                      options_.strict);
}

// ------------------------------------------------------------------------------------------------
// planning

SolveOptions StepPlanner::requestFor(const Graph& graph) {
  largest_peak_bytes_ = std::max(largest_peak_bytes_, simulatePlain(graph, profile_).peak_bytes);
  SolveOptions solve;
  solve.ram_budget_bytes = options_.ram_budget.bytes(largest_peak_bytes_);
  if (options_.runtime_budget)
    solve.runtime_budget_seconds = options_.runtime_budget->seconds(graph.plainSeconds());
  solve.minimize = options_.minimize;
  solve.time_limit_seconds = options_.time_limit_seconds;
  solve.threads = options_.solve_threads;
  solve.niceness = options_.background ? SolveOptions::kBackgroundNiceness : 0;
  solve.recompute = options_.recompute;
  solve.paging = paging_;
  solve.away_between_steps = paging_ && options_.away_between_steps;
  solve.parameters_away = solve.away_between_steps;
  return solve;
}

void StepPlanner::plan(int variant, const std::stop_token& stop) {
  const std::shared_ptr<const Graph> graph = session_->graphOf(variant);
  if (graph == nullptr) return;  // dropped meanwhile for newer variants
  measureStore();
  int64_t to_come = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = bytes_to_come_.extract(variant)) to_come = found.mapped();
  }
  for (;;) {
    const SolveOptions solve = requestFor(*graph);
    const int64_t room =
        std::min(to_come, solve.ram_budget_bytes / SolveOptions::kLeastShareOfRoom);
    const auto schedule = std::make_shared<const Schedule>(search(*graph, solve, room, stop));
    if (stop.stop_requested()) return;
    if (!schedule->hasPlan()) {
      giveUp(variant, schedule, solve.ram_budget_bytes);
      return;
    }
    if (putInForce(variant, *graph, schedule)) return;
    // Paging has just been given up: once more without.
  }
}

// Leaves that much of the budget free where there is a plan that does.
Schedule StepPlanner::search(const Graph& graph, SolveOptions solve, int64_t room,
                             const std::stop_token& stop) const {
  const auto run = [&] {
    return solveInWorker(graph, profile_, solve, findSolver(options_.solver_path),
                         [&stop] { return stop.stop_requested(); });
  };
  if (room <= 0) return run();
  const int64_t budget = solve.ram_budget_bytes;
  solve.ram_budget_bytes -= room;
  Schedule roomy = run();
  if (stop.stop_requested()) return roomy;
  if (roomy.hasPlan()) return leavingRoom(std::move(roomy), graph, profile_, budget);
  solve.ram_budget_bytes = budget;
  solve.time_limit_seconds =
      std::clamp(solve.time_limit_seconds - roomy.solve_seconds, 1e-3, solve.time_limit_seconds);
  return run();
}

// False where the store has no room for what the plan pages: nothing is paged then.
bool StepPlanner::putInForce(int variant, const Graph& graph,
                             const std::shared_ptr<const Schedule>& schedule) {
  try {
    session_->setPlan(variant, schedule, profile_);
  } catch (const Error& error) {
    if (!paging_) throw;
    stopPaging(error.what());
    return false;
  }
  const double extra = 100 * (schedule->makespan_seconds / graph.plainSeconds() - 1);
  std::array<char, 32> percent{};
  std::snprintf(percent.data(), percent.size(), "%+.1f", extra);
  say(detail::message("plan in force: peak ", formatBytes(schedule->peak_bytes), " of ",
                      formatBytes(*schedule->ram_budget_bytes), ", ", percent.data(),
                      " % time predicted"));
  keep(variant, schedule, "");
  return true;
}

void StepPlanner::giveUp(int variant, const std::shared_ptr<const Schedule>& schedule,
                         int64_t budget_bytes) {
  session_->setUnplannable(variant);
  keep(variant, schedule,
       !schedule->message.empty()
           ? schedule->message
           : detail::message("the planner ended with status ", toString(schedule->status)));
  if (std::exchange(warned_, true)) return;
  std::string advice;
  if (schedule->least_ram_budget) {
    advice = detail::message("The least budget that has a plan is ", *schedule->least_ram_budget,
                             " bytes (", formatBytes(*schedule->least_ram_budget), ").");
  }
  TORCH_WARN("poet found no plan within ", budget_bytes, " bytes (", formatBytes(budget_bytes),
             "), status ", toString(schedule->status), ": ", schedule->message, ". ", advice,
             " Training goes on without a plan: ",
             is_policed_ ? "the online policy keeps it inside the budget where it can."
                         : "its memory may exceed the budget.");
}

void StepPlanner::keep(int variant, const std::shared_ptr<const Schedule>& schedule,
                       std::string message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  schedules_[variant] = schedule;
  message_ = std::move(message);
}

void StepPlanner::outgrow(int variant, int64_t bytes_to_come) {
  const std::lock_guard<std::mutex> lock(mutex_);
  bytes_to_come_[variant] = bytes_to_come;
}

void StepPlanner::grow(int variant, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = schedules_.find(variant);
  if (found != schedules_.end())
    found->second = std::make_shared<const Schedule>(found->second->besideMore(bytes));
}

// ------------------------------------------------------------------------------------------------
// what became of it

std::shared_ptr<const Schedule> StepPlanner::scheduleOf(int variant) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = schedules_.find(variant);
  return found == schedules_.end() ? nullptr : found->second;
}

int64_t StepPlanner::numPlans() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::count_if(schedules_.begin(), schedules_.end(),
                       [](const auto& entry) { return entry.second->hasPlan(); });
}

std::string StepPlanner::message() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return message_;
}

void StepPlanner::say(const std::string& text) const {
  if (options_.verbose) std::fprintf(stderr, "poet: %s\n", text.c_str());
}

}  // namespace poet
