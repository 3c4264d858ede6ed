// TrainingStep: poet.wrap for LibTorch programs without Python. An ordinary training step, made to
// train inside a memory budget, with the same bits as without.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/export.h"
#include "graph/graph.h"
#include "runtime/budget.h"
#include "schedule/schedule.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace poet {

class Session;

struct TrainingStepOptions {
  // Parameters, gradients, optimizer state and inputs count.
  RamBudget ram_budget;
  std::optional<RuntimeBudget> runtime_budget = std::nullopt;  // none: no limit
  Objective minimize = Objective::kEnergy;
  bool recompute = true;      // plans may recompute
  bool paging = true;         // plans may page to a file in page_dir, whose speed is measured first
  std::string page_dir = {};  // empty: the system's directory for temporary files
  // Optimizer state may stay in the store from one step to the next, or parameters, too. Operators
  // bring them back; before memory is read behind PyTorch's back (torch::save does so) call
  // TrainingStep::bringBack().
  bool away_between_steps = false;
  // An online policy keeps calls without a plan inside the budget, see docs/online.md.
  // POET_ONLINE=0 in the environment switches it off, too.
  bool online = true;
  Strictness strict = Strictness::kFirstCall;  // what it does where that cannot be
  std::string platform = "host";               // name of the device profile
  bool background = true;          // plan while training goes on; false: wait for the plan
  double time_limit_seconds = 60;  // that planning may take
  int solve_threads = 1;
  bool verbose = false;  // say on stderr what happens
  // The program poet-solver. Empty: $POET_SOLVER, or the one that is installed with poet.
  std::string solver_path = {};
};

// What has happened to a step so far.
struct StepStats {
  int64_t steps = 0;
  int64_t traced_steps = 0;    // recorded from beginning to end
  int64_t followed_steps = 0;  // followed a plan from beginning to end
  int64_t departures = 0;      // left their plan on the way and went on without one
  int64_t failed_steps = 0;    // ended in an exception
  std::string last_departure;  // why; empty when there was none
  int64_t variants = 0;        // different operator streams seen
  int64_t plans = 0;           // variants that have a plan in force
  bool planning = false;       // a plan is being solved for in the background
  int64_t planned_recomputes = 0;
  int64_t unplanned_recomputes = 0;
  std::string first_unplanned;  // what needed the first of them; empty when nothing did
  int64_t replayed_ops = 0;
  double replay_seconds = 0;
  int64_t evictions = 0;
  int64_t skipped_frees = 0;  // values that stayed although the plan releases them
  int64_t plan_switches = 0;
  int64_t online_steps = 0;  // in which the online policy had to make room
  int64_t online_evictions = 0;
  int64_t online_recomputes = 0;
  int64_t online_page_outs = 0;
  int64_t online_page_ins = 0;
  double online_free_share = 0;   // of the budget behind its evictions, in the mean
  int64_t steps_over_budget = 0;  // calls that had to go above it
  int64_t most_over_bytes = 0;    // by which the worst of them did
  int64_t page_outs = 0;
  int64_t page_ins = 0;
  int64_t unplanned_page_ins = 0;  // because something touched the value
  int64_t paged_out_bytes = 0;
  int64_t paged_in_bytes = 0;
  double transfer_seconds = 0;  // the store's; most of it beside the step
  double waited_seconds = 0;    // the step's, for transfers
  int64_t repaired_chunks = 0;  // damaged pieces of the store that were mended
  std::string paging_trouble;   // the store's last failure; empty when there was none
  std::string message;          // the planner's last word where there is no plan
};

// Note [Steps without Python]
// The first calls are recorded (two alike are needed). Then a plan is solved for, by the program
// poet-solver, and every later call follows it. A call that does something else than was recorded
// goes on without a plan where it departs, and is recorded as a variant. Without a plan the online
// policy keeps the step inside its budget (a share begins to hold with the second call).
// Where Python finds by itself what the process holds, a C++ program has to say so:
// - keepCounted(): memory that counts though no op of the step touches it, and old gradients.
// - OptimizerPhase: which ops are the optimizer's. Optional: it labels values and phases in
// graph().
// - bringBack(): before memory is read behind PyTorch's back (data_ptr). item() needs nothing.
//
// Not thread-safe, but may be used from different threads one after another. The object must
// outlive a call that is running. Whatever the step throws comes out unchanged, after everything
// that was away is back.
class POET_API TrainingStep {
 public:
  using Body = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

  // `body` runs one training step (forward, backward and the optimizer's step) and returns what
  // operator() is to return: the loss, or an undefined tensor.
  // Throws ArgumentError where an option makes no sense.
  TrainingStep(Body body, const TrainingStepOptions& options);
  TrainingStep(std::function<at::Tensor()> body, const TrainingStepOptions& options);
  ~TrainingStep();  // as close(); a value that cannot be read back is a warning
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  // Runs one step. Throws what the step throws; BudgetError as options.strict says; ArgumentError
  // where the step runs no operator that can be recorded; Error where planning failed (once, at the
  // call after).
  at::Tensor operator()(const std::vector<at::Tensor>& inputs = {});

  // Looked through at each call that is recorded. Module and optimizer must outlive the object.
  void keepCounted(torch::nn::Module& model);            // parameters, buffers, gradients
  void keepCounted(torch::optim::Optimizer& optimizer);  // parameters, gradients
  void keepCounted(std::vector<at::Tensor> tensors);     // weakly: a tensor may go away

  // Waits until no plan is being solved for; false if that took longer than `timeout`. Throws what
  // planning threw.
  bool waitForPlan(std::optional<std::chrono::milliseconds> timeout = std::nullopt);

  // Of the last step's variant; null before the first. A schedule has its status: there may be no
  // plan in it.
  std::shared_ptr<const Graph> graph() const;
  std::shared_ptr<const Schedule> schedule() const;
  StepStats stats() const;

  // Moves parameters, gradients and optimizer state to the store until something touches them or
  // the next call: what keepCounted() names. Returns the bytes that this released; 0 without
  // paging. Throws as bringBack(), and Error while a step runs.
  int64_t pause();
  // Brings back what is away between steps. Throws StoreError where a value cannot be read back; it
  // is still in the store.
  void bringBack();
  // Ends planning and brings back what is away; calls after this run the plain step. May be called
  // more than once. Throws as bringBack().
  void close();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Put one around the optimizer's step, inside the body:
//   { const poet::OptimizerPhase phase; optimizer.step(); }
// Does nothing outside a TrainingStep.
class POET_API OptimizerPhase {
 public:
  OptimizerPhase();
  ~OptimizerPhase();
  OptimizerPhase(const OptimizerPhase&) = delete;
  OptimizerPhase& operator=(const OptimizerPhase&) = delete;

 private:
  Session* session_;  // null outside a step
};

// Makes the tensor's memory resident for the rest of the running step. Needed before data_ptr()
// inside a step, and by code that is handed that pointer. Does nothing outside a TrainingStep.
POET_API void bringBack(const at::Tensor& tensor);

}  // namespace poet
