#include "runtime/training_step.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "graph/error.h"
#include "runtime/background_planner.h"
#include "runtime/session.h"
#include "runtime/step_planner.h"
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

void addWithGradient(const at::Tensor& t, std::vector<KnownStorage>& known,
                     ValueKind kind = ValueKind::kBuffer) {
  if (!t.defined()) return;
  if (t.is_leaf()) addKnown(t.grad(), ValueKind::kGradient, known);
  addKnown(t, kind, known);
}

}  // namespace

class TrainingStep::Impl {
 public:
  Impl(Body body, const TrainingStepOptions& options)
      : background_(options.background),
        verbose_(options.verbose),
        body_(std::move(body)),
        session_(Session::create(verifyWanted())),
        planner_(session_, options),
        queue_([this](int variant, const std::stop_token& stop) { planner_.plan(variant, stop); }) {
    StepArena::useForGood();
    POET_CHECK(body_ != nullptr,
               "step: expected a function (or another callable) that runs one training step; got "
               "an empty std::function. Put forward, backward and the optimizer's step in a "
               "function and pass that.");
    planner_.keepInside();
  }

  ~Impl() {
    try {
      close();
    } catch (const Error& error) {
      TORCH_WARN("poet: a value is still in the store: ", error.what());
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  at::Tensor call(const std::vector<at::Tensor>& inputs) {
    queue_.rethrow();
    if (closed_ || isListening()) return body_(inputs);  // inside another step the outer one rules
    auto [result, report] = run(inputs);
    if (report.num_ops == 0 && report.mode == StepReport::Mode::kTraced) throw noOps();
    if (report.over_bytes > 0 && !std::exchange(warned_of_excess_, true)) {
      TORCH_WARN("poet: a step went above its budget: ", report.over_text,
                 ". Training goes on with the same results.");
    }
    note(report);
    return result;
  }

  bool wait(std::optional<std::chrono::milliseconds> timeout) {
    const bool done = queue_.wait(timeout);
    queue_.rethrow();
    return done;
  }

  void close() {
    closed_ = true;
    queue_.close();
    session_->bringBack();
  }

  void bringBack() { session_->bringBack(); }

  int64_t pause() {
    std::vector<at::Tensor> leaves;
    for (const torch::nn::Module* model : models) {
      for (const at::Tensor& t : model->parameters()) leaves.push_back(t);
    }
    for (const torch::optim::Optimizer* optimizer : optimizers) {
      for (const auto& group : optimizer->param_groups())
        leaves.insert(leaves.end(), group.params().begin(), group.params().end());
    }
    for (const auto& weak : tensors) {
      if (auto strong = weak.lock()) leaves.emplace_back(std::move(strong));
    }
    return session_->pause(leaves);
  }

  std::shared_ptr<const Graph> graph() {
    return last_variant_ < 0 ? nullptr : session_->graphOf(last_variant_);
  }

  std::shared_ptr<const Schedule> schedule() { return planner_.scheduleOf(last_variant_); }

  StepStats stats();

  std::vector<torch::nn::Module*> models;
  std::vector<torch::optim::Optimizer*> optimizers;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> tensors;

 private:
  std::pair<at::Tensor, StepReport> run(const std::vector<at::Tensor>& inputs);
  std::vector<KnownStorage> knownStorages(const std::vector<at::Tensor>& inputs) const;
  void planAnew(const std::vector<GrownPlan>& plans);
  void note(const StepReport& report);
  void plan(int variant);
  static ArgumentError noOps() {
    return ArgumentError(
        "step: expected a training step that runs PyTorch operators on CPU tensors; this one ran "
        "none that poet could record on this thread. Check that the step trains a model, and that "
        "the model is on the CPU.");
  }

  bool background_;
  bool verbose_;
  Body body_;
  std::shared_ptr<Session> session_;
  int last_variant_ = -1;
  int64_t followed_ = 0;
  bool closed_ = false;
  bool warned_of_excess_ = false;
  StepPlanner planner_;
  BackgroundPlanner queue_;  // last: its thread uses all the others
};

// ------------------------------------------------------------------------------------------------
// one call

std::vector<KnownStorage> TrainingStep::Impl::knownStorages(
    const std::vector<at::Tensor>& inputs) const {
  std::vector<KnownStorage> known;  // the same storage may come again: the first counts
  for (const at::Tensor& t : inputs) addKnown(t, ValueKind::kInput, known);
  for (const torch::nn::Module* model : models) {
    for (const at::Tensor& t : model->parameters())
      addWithGradient(t, known, ValueKind::kParameter);
    for (const at::Tensor& t : model->buffers()) addKnown(t, ValueKind::kBuffer, known);
  }
  for (const torch::optim::Optimizer* optimizer : optimizers) {
    for (const auto& group : optimizer->param_groups()) {
      for (const at::Tensor& t : group.params()) addWithGradient(t, known, ValueKind::kParameter);
    }
  }
  for (const auto& weak : tensors) {
    if (auto strong = weak.lock()) addWithGradient(at::Tensor(std::move(strong)), known);
  }
  return known;
}

std::pair<at::Tensor, StepReport> TrainingStep::Impl::run(const std::vector<at::Tensor>& inputs) {
  planAnew(session_->takeGrown());  // by calls that failed
  session_->expectBatch(inputs);
  const bool counted = session_->nextStepIsTraced() || session_->wantsKnown();
  session_->beginStep(counted ? knownStorages(inputs) : std::vector<KnownStorage>());
  at::Tensor result;
  try {
    const CurrentSession here(*session_);
    result = body_(inputs);
  } catch (const std::exception& error) {
    session_->keepNamed(error.what());
    session_->endStep(/*failed=*/true, detail::message("error: ", error.what()));
    throw;
  } catch (...) {
    session_->endStep(/*failed=*/true, "no std::exception");
    throw;
  }
  StepReport report = session_->endStep(/*failed=*/false);
  if (!report.budget_error.empty()) throw BudgetError("ram_budget: " + report.budget_error);
  return {std::move(result), std::move(report)};
}

void TrainingStep::Impl::planAnew(const std::vector<GrownPlan>& plans) {
  for (const GrownPlan& one : plans) {
    if (one.keeps_budget) {
      planner_.grow(one.variant, one.bytes);
    } else {
      planner_.outgrow(one.variant, one.bytes_to_come);
      plan(one.variant);
    }
  }
}

void TrainingStep::Impl::note(const StepReport& report) {
  planAnew(report.grown);
  if (report.variant < 0) return;
  last_variant_ = report.variant;
  if (report.mode == StepReport::Mode::kFollowed && ++followed_ == VariantSet::kCallsThatShowAStep)
    session_->letGoOfSeenOnce({});
  if (report.mode == StepReport::Mode::kTraced)
    planner_.keepInside(*session_->graphOf(report.variant));
  if (!report.newly_stable) return;
  if (verbose_) {
    std::fprintf(stderr, "poet: step traced: %lld operators; planning\n",
                 static_cast<long long>(report.num_ops));
  }
  plan(report.variant);
}

void TrainingStep::Impl::plan(int variant) {
  if (background_) {
    queue_.add(variant);
  } else {
    planner_.plan(variant, std::stop_token());
  }
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
  result.planning = queue_.busy();
  result.planned_recomputes = ops.planned_recomputes;
  result.unplanned_recomputes = ops.unplanned_recomputes;
  result.first_unplanned = ops.first_unplanned;
  result.replayed_ops = ops.replayed_ops;
  result.replay_seconds = ops.replay_seconds;
  result.evictions = ops.evictions;
  result.skipped_frees = ops.skipped_frees;
  result.plan_switches = ops.switches;
  const OnlineCounters online = session_->onlineCounters();
  result.online_steps = online.steps;
  result.online_evictions = online.evictions;
  result.online_recomputes = online.recomputes;
  result.online_page_outs = online.page_outs;
  result.online_page_ins = online.page_ins;
  result.online_free_share = online.freeShare();
  result.steps_over_budget = online.steps_over_budget + steps.steps_over_budget;
  result.most_over_bytes = std::max(online.most_over_bytes, steps.most_over_bytes);
  const PagingCounters paging = session_->pagingCounters();
  result.page_outs = paging.planned_page_outs;
  result.page_ins = paging.planned_page_ins;
  result.unplanned_page_ins = paging.unplanned_page_ins;
  result.paged_out_bytes = paging.paged_out_bytes;
  result.paged_in_bytes = paging.paged_in_bytes;
  result.transfer_seconds = paging.read_seconds + paging.write_seconds;
  result.waited_seconds = paging.waited_seconds;
  result.repaired_chunks = paging.repaired_chunks;
  result.paging_trouble = paging.trouble;
  result.plans = planner_.numPlans();
  result.message = planner_.message();
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
int64_t TrainingStep::pause() { return impl_->pause(); }
void TrainingStep::bringBack() { impl_->bringBack(); }
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
