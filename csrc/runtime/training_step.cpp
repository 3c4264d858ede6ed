#include "runtime/training_step.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "device/profile.h"
#include "graph/error.h"
#include "planner/planner.h"
#include "runtime/background_planner.h"
#include "runtime/session.h"
#include "runtime/solver_path.h"
#include "schedule/simulator.h"
#include "trace/tensor_args.h"

namespace poet {
namespace {

thread_local Session* current_session = nullptr;

class CurrentSession {
 public:
  explicit CurrentSession(Session& session) : before_(std::exchange(current_session, &session)) {}
  ~CurrentSession() { current_session = before_; }
  CurrentSession(const CurrentSession&) = delete;
  CurrentSession& operator=(const CurrentSession&) = delete;

 private:
  Session* before_;
};

bool verifyWanted() {
  const char* value = std::getenv("POET_VERIFY");
  if (value == nullptr || std::string_view(value).empty() || std::string_view(value) == "0")
    return false;
  static const AllocatorTap::Guard
      all;  // the debug mode counts every block, so it must see them all
  return true;
}

void addKnown(const at::Tensor& t, ValueKind kind, std::vector<KnownStorage>& known) {
  if (!t.defined() || !isManaged(t)) return;
  known.push_back(
      {t.storage().getWeakStorageImpl(), static_cast<int64_t>(t.storage().nbytes()), kind});
}

void addWithGradient(const at::Tensor& t, std::vector<KnownStorage>& known) {
  if (!t.defined()) return;
  if (t.is_leaf()) addKnown(t.grad(), ValueKind::kGradient, known);
  addKnown(t, ValueKind::kBuffer, known);
}

SolveOptions checkedSolveOptions(const TrainingStepOptions& options) {
  POET_CHECK(options.time_limit_seconds > 0 && std::isfinite(options.time_limit_seconds),
             "time_limit_s: expected seconds above 0; got ", options.time_limit_seconds,
             ". It must be above 0 and finite.");
  POET_CHECK(options.solve_threads >= 1 && options.solve_threads <= 1024,
             "solve_threads: expected a number of threads; got ", options.solve_threads,
             ". It must lie between 1 and 1024.");
  SolveOptions solve;
  solve.time_limit_seconds = options.time_limit_seconds;
  solve.threads = options.solve_threads;
  solve.paging = false;  // the step has no store
  return solve;
}

}  // namespace

class TrainingStep::Impl {
 public:
  Impl(Body body, const TrainingStepOptions& options)
      : options_(options),
        solve_options_(checkedSolveOptions(options)),
        profile_(profileByName(options.platform)),
        body_(std::move(body)),
        session_(Session::create(verifyWanted())),
        planner_([this](int variant, const std::stop_token& stop) { plan(variant, stop); }) {
    POET_CHECK(body_ != nullptr,
               "step: expected a function (or another callable) that runs one training step; got "
               "an empty std::function. Put forward, backward and the optimizer's step in a "
               "function and pass that.");
  }

  at::Tensor call(const std::vector<at::Tensor>& inputs) {
    planner_.rethrow();
    if (closed_ || isListening()) return body_(inputs);  // inside another step the outer one rules
    auto [result, report] = run(inputs);
    if (report.num_ops == 0 && report.mode == StepReport::Mode::kTraced) throw noOps();
    note(report);
    return result;
  }

  bool wait(std::optional<std::chrono::milliseconds> timeout) {
    const bool done = planner_.wait(timeout);
    planner_.rethrow();
    return done;
  }

  void close() {
    closed_ = true;
    planner_.close();
  }

  std::shared_ptr<const Graph> graph() {
    return last_variant_ < 0 ? nullptr : session_->graphOf(last_variant_);
  }

  std::shared_ptr<const Schedule> schedule() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = schedules_.find(last_variant_);
    return found == schedules_.end() ? nullptr : found->second;
  }

  StepStats stats();

  std::vector<torch::nn::Module*> models;
  std::vector<torch::optim::Optimizer*> optimizers;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> tensors;

 private:
  std::pair<at::Tensor, StepReport> run(const std::vector<at::Tensor>& inputs);
  std::vector<KnownStorage> knownStorages(const std::vector<at::Tensor>& inputs) const;
  void note(const StepReport& report);
  void plan(int variant, const std::stop_token& stop);
  void keep(int variant, std::shared_ptr<const Schedule> schedule, std::string message);
  void warnWithoutPlan(const Schedule& schedule, int64_t budget);
  void say(const std::string& text) const {
    if (options_.verbose) std::fprintf(stderr, "poet: %s\n", text.c_str());
  }
  static ArgumentError noOps() {
    return ArgumentError(
        "step: expected a training step that runs PyTorch operators on CPU tensors; this one ran "
        "none that poet could record on this thread. Check that the step trains a model, and that "
        "the model is on the CPU.");
  }

  TrainingStepOptions options_;
  SolveOptions solve_options_;
  DeviceProfile profile_;
  Body body_;
  std::shared_ptr<Session> session_;
  int last_variant_ = -1;
  bool closed_ = false;

  std::mutex mutex_;  // of what the planning thread shares
  std::map<int, std::shared_ptr<const Schedule>> schedules_;
  int64_t largest_peak_bytes_ = 0;
  std::string message_;
  bool warned_ = false;
  BackgroundPlanner planner_;  // last: its thread uses all the others
};

// ------------------------------------------------------------------------------------------------
// one call

std::vector<KnownStorage> TrainingStep::Impl::knownStorages(
    const std::vector<at::Tensor>& inputs) const {
  std::vector<KnownStorage> known;  // the same storage may come again: the first counts
  for (const at::Tensor& t : inputs) addKnown(t, ValueKind::kInput, known);
  for (const torch::nn::Module* model : models) {
    for (const at::Tensor& t : model->parameters()) addWithGradient(t, known);
    for (const at::Tensor& t : model->buffers()) addKnown(t, ValueKind::kBuffer, known);
  }
  for (const torch::optim::Optimizer* optimizer : optimizers) {
    for (const auto& group : optimizer->param_groups()) {
      for (const at::Tensor& t : group.params()) addWithGradient(t, known);
    }
  }
  for (const auto& weak : tensors) {
    if (auto strong = weak.lock()) addWithGradient(at::Tensor(std::move(strong)), known);
  }
  return known;
}

std::pair<at::Tensor, StepReport> TrainingStep::Impl::run(const std::vector<at::Tensor>& inputs) {
  session_->beginStep(session_->nextStepIsTraced() ? knownStorages(inputs)
                                                   : std::vector<KnownStorage>());
  at::Tensor result;
  try {
    const CurrentSession here(*session_);
    result = body_(inputs);
  } catch (...) {
    session_->endStep(/*failed=*/true);
    throw;
  }
  return {std::move(result), session_->endStep(/*failed=*/false)};
}

void TrainingStep::Impl::note(const StepReport& report) {
  if (report.variant < 0) return;
  last_variant_ = report.variant;
  if (!report.newly_stable) return;
  say(detail::message("step traced: ", report.num_ops, " operators; planning"));
  if (options_.background) {
    planner_.add(report.variant);
  } else {
    plan(report.variant, std::stop_token());
  }
}

// ------------------------------------------------------------------------------------------------
// planning, on the planner's thread or the caller's

void TrainingStep::Impl::plan(int variant, const std::stop_token& stop) {
  const std::shared_ptr<const Graph> graph = session_->graphOf(variant);
  if (graph == nullptr) return;  // dropped meanwhile for newer variants
  SolveOptions solve = solve_options_;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    largest_peak_bytes_ = std::max(largest_peak_bytes_, simulatePlain(*graph, profile_).peak_bytes);
    solve.ram_budget_bytes = options_.ram_budget.bytes(largest_peak_bytes_);
  }
  if (options_.runtime_budget) {
    solve.runtime_budget_seconds = options_.runtime_budget->seconds(graph->plainSeconds());
  }
  auto schedule = std::make_shared<const Schedule>(
      solveInWorker(*graph, profile_, solve, findSolver(options_.solver_path),
                    [&stop] { return stop.stop_requested(); }));
  if (stop.stop_requested()) return;
  if (schedule->hasPlan()) {
    session_->setPlan(variant, schedule, profile_);
    const double extra = 100 * (schedule->makespan_seconds / graph->plainSeconds() - 1);
    char percent[32];
    std::snprintf(percent, sizeof percent, "%+.1f", extra);
    say(detail::message("plan in force: peak ", formatBytes(schedule->peak_bytes), " of ",
                        formatBytes(solve.ram_budget_bytes), ", ", percent, " % time predicted"));
    keep(variant, std::move(schedule), "");
    return;
  }
  session_->setUnplannable(variant);
  keep(variant, schedule,
       !schedule->message.empty()
           ? schedule->message
           : detail::message("the planner ended with status ", toString(schedule->status)));
  warnWithoutPlan(*schedule, solve.ram_budget_bytes);
}

void TrainingStep::Impl::keep(int variant, std::shared_ptr<const Schedule> schedule,
                              std::string message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  schedules_[variant] = std::move(schedule);
  message_ = std::move(message);
}

void TrainingStep::Impl::warnWithoutPlan(const Schedule& schedule, int64_t budget) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(warned_, true)) return;
  }
  std::string advice;
  if (schedule.least_ram_budget) {
    advice = detail::message("The least budget that has a plan is ", *schedule.least_ram_budget,
                             " bytes (", formatBytes(*schedule.least_ram_budget), ").");
  }
  TORCH_WARN("poet found no plan within ", budget, " bytes (", formatBytes(budget), "), status ",
             toString(schedule.status), ": ", schedule.message, " ", advice,
             " Training goes on without a plan, outside the budget.");
}

StepStats TrainingStep::Impl::stats() {
  const SessionCounters steps = session_->counters();
  const ExecutorCounters ops = session_->executorCounters();
  StepStats result;
  result.steps = steps.steps;
  result.traced_steps = steps.traced_steps;
  result.followed_steps = steps.followed_steps;
  result.departures = steps.departures;
  result.failed_steps = steps.failed_steps;
  result.last_departure = session_->lastDeparture();
  result.variants = session_->numVariants();
  result.planning = planner_.busy();
  result.planned_recomputes = ops.planned_recomputes;
  result.unplanned_recomputes = ops.unplanned_recomputes;
  result.first_unplanned = ops.first_unplanned;
  result.replayed_ops = ops.replayed_ops;
  result.replay_seconds = ops.replay_seconds;
  result.evictions = ops.evictions;
  result.plan_switches = ops.switches;
  const std::lock_guard<std::mutex> lock(mutex_);
  result.plans = std::count_if(schedules_.begin(), schedules_.end(),
                               [](const auto& entry) { return entry.second->hasPlan(); });
  result.message = message_;
  return result;
}

// ------------------------------------------------------------------------------------------------
// the face

TrainingStep::TrainingStep(Body body, const TrainingStepOptions& options)
    : impl_(std::make_unique<Impl>(std::move(body), options)) {}

TrainingStep::TrainingStep(std::function<at::Tensor()> body, const TrainingStepOptions& options)
    : TrainingStep(
          body == nullptr ? Body() : Body([run = std::move(body)](const std::vector<at::Tensor>&) {
            return run();
          }),
          options) {}

TrainingStep::~TrainingStep() = default;

at::Tensor TrainingStep::operator()(const std::vector<at::Tensor>& inputs) {
  return impl_->call(inputs);
}

void TrainingStep::keepCounted(torch::nn::Module& model) { impl_->models.push_back(&model); }

void TrainingStep::keepCounted(torch::optim::Optimizer& optimizer) {
  impl_->optimizers.push_back(&optimizer);
}

void TrainingStep::keepCounted(std::vector<at::Tensor> tensors) {
  for (const at::Tensor& t : tensors) {
    if (t.defined()) impl_->tensors.emplace_back(t.getIntrusivePtr());
  }
}

bool TrainingStep::waitForPlan(std::optional<std::chrono::milliseconds> timeout) {
  return impl_->wait(timeout);
}

std::shared_ptr<const Graph> TrainingStep::graph() const { return impl_->graph(); }
std::shared_ptr<const Schedule> TrainingStep::schedule() const { return impl_->schedule(); }
StepStats TrainingStep::stats() const { return impl_->stats(); }
void TrainingStep::close() { impl_->close(); }

OptimizerPhase::OptimizerPhase() : session_(current_session) {
  if (session_ != nullptr) session_->enterOptimizer();
}

OptimizerPhase::~OptimizerPhase() {
  if (session_ != nullptr) session_->leaveOptimizer();
}

void bringBack(const at::Tensor& tensor) {
  if (current_session != nullptr && tensor.defined()) current_session->touch(tensor);
}

}  // namespace poet
