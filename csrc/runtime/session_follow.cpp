// Ops of a step that follows a plan, and how the step leaves it.
#include <algorithm>
#include <chrono>
#include <utility>

#include "graph/error.h"
#include "runtime/op_trial.h"
#include "runtime/session.h"
#include "trace/op_clock.h"
#include "trace/tensor_args.h"

namespace poet {
namespace {

using Clock = OpClock;

void keepLeast(float& seconds, Clock::time_point since) {
  seconds = std::min(seconds, std::chrono::duration<float>(Clock::now() - since).count());
}

const c10::IValue* argumentsOf(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  return stack.data() + (stack.size() - op.schema().arguments().size());
}

const c10::IValue* resultsOf(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  return stack.data() + (stack.size() - op.schema().returns().size());
}

}  // namespace

void Session::follow(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                     torch::jit::Stack* stack, std::unique_lock<std::mutex>& lock) {
  std::string why;
  const c10::IValue* args = argumentsOf(op, *stack);
  if (executor_.matches(op, args, why)) {
    runPlanned(op, below, stack, lock);
  } else if (traitsOf(op).without_tensors) {
    lock.unlock();
    op.redispatchBoxed(below, stack);
  } else if (switchVariant(op, args)) {
    runPlanned(op, below, stack, lock);
  } else {
    departBefore(op, below, stack, lock, std::move(why));
  }
}

void Session::runPlanned(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                         torch::jit::Stack* stack, std::unique_lock<std::mutex>& lock) {
  if (timed_ != nullptr) keepLeast(timed_->host_seconds[executor_.done()], left_at_);
  if (!unchecked_.empty()) {
    countKnown();
    if (!checkBase() && (is_hard_ || policy_.isOn())) {
      Variant& variant = *variants_.find(current_);
      variant.has_unchecked_base = is_hard_;  // the next one that begins with it counts, too
      ++variant.followed;
      depart(detail::message(variant.more_bytes,
                             " bytes more lie beside the step than when its plan was made, and it "
                             "has no room for them"));
      record(op, below, stack, lock);
      return;
    }
  }
  if (executor_.done() == 0) checkFirstOp();
  bringBackFor(op, *stack);
  executor_.before(argumentsOf(op, *stack), below);
  float* const least = timed_ == nullptr ? nullptr : &timed_->op_seconds[executor_.done()];
  const Clock::time_point start = least == nullptr ? Clock::time_point() : Clock::now();
  const auto note_time = [&] {
    if (least != nullptr) keepLeast(*least, start);
  };
  std::optional<OpTrial> trial;
  if (mayDiffer(op, *stack)) {
    const bool random = executor_.plan().graph().ops()[executor_.done()].random;
    trial.emplace(op, random, *stack, std::max<int64_t>(0, executor_.roomForOp() - moreBeside()));
  }
  executor_.prefetch();
  lock.unlock();
  bool takes_more = false;
  try {
    std::optional<AllocatorTap::RoomGuard> room;
    if (trial) room.emplace(&*trial);
    op.redispatchBoxed(below, stack);
  } catch (const OpTrial::TakesMore&) {
    takes_more = true;
  } catch (...) {
    lock.lock();
    note_time();
    raised_ = !executor_.afterRaise();
    throw;
  }
  lock.lock();
  note_time();
  std::string why;
  if (takes_more) {
    why = executor_.describe(executor_.done()) + " makes more than was traced";
  } else if (executor_.bindResults(resultsOf(op, *stack), why)) {
    if (trial) trial->keep();
    executor_.advance();
    if (least != nullptr) left_at_ = Clock::now();
    return;
  }
  if (!trial) {
    loseTrack(std::move(why));
    return;
  }
  executor_.unbindResults();
  trial->undo(*stack);
  departBefore(op, below, stack, lock, std::move(why));
}

// See Note [Results shaped by data].
bool Session::mayDiffer(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const {
  const CompiledPlan::HotOp& hot = executor_.plan().hot(executor_.done());
  const bool differs =
      hot.shaped_by_data ||
      (hot.numbers != 0 && numbersHash(argumentsOf(op, stack), hot.n_args) != hot.numbers);
  // What a device's generator has drawn is not put back.
  return differs && !(accelerator_ && executor_.plan().graph().ops()[executor_.done()].random);
}

void Session::departBefore(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                           torch::jit::Stack* stack, std::unique_lock<std::mutex>& lock,
                           std::string why) {
  depart(std::move(why));
  if (mode_ == Mode::kDeparted) {
    record(op, below, stack, lock);
  } else {
    lock.unlock();
    op.redispatchBoxed(below, stack);
  }
}

bool Session::switchVariant(const c10::OperatorHandle& op, const c10::IValue* args) {
  const auto fits = [&](const CompiledPlan& plan) { return executor_.wouldMatch(plan, op, args); };
  const int other =
      variants_.findContinuation(executor_.plan().recording(), executor_.done(), current_, fits);
  if (other < 0) return false;
  std::shared_ptr<CompiledPlan> plan =
      variants_.joinedPlan(other, executor_.sharedPlan(), executor_.done());
  Variant& variant = *variants_.find(other);
  if (!plan || !executor_.canSwitchTo(*plan) || !hasRoomFor(*plan)) plan = variant.plan;
  if (!executor_.canSwitchTo(*plan)) return false;
  // What comes back for the other plan may need more than the budget; the policy does not.
  if (policy_.isOn() && (plan->excessBytes() > 0 || !executor_.isReadyFor(*plan))) return false;
  const std::vector<Presumed> unshown = locate(variant, *plan);
  claim(variant);
  executor_.switchTo(std::move(plan), unshown);
  current_ = other;
  switched_ = true;
  timed_ = nullptr;
  if (variant.has_unchecked_base && known_bytes_) checkBase();
  std::string why;
  return executor_.matches(op, args, why);
}

// The step left its plan: what it has shown so far comes back, and the rest of it is traced.
void Session::depart(std::string why) {
  if (raised_) {  // a recording would lack that op, and be no step that ever comes
    loseTrack(detail::message("an operator raised an error that the step caught; then ", why));
    return;
  }
  last_departure_ = std::move(why);
  ++counters_.departures;
  if (!unchecked_.empty()) {  // at its first operator: the policy is to know what has come
    countKnown();
    checkBase();
  }
  noteExcessSoFar();
  if (!tap_) tap_.emplace();
  if (policy_.isOn()) {
    departOnline();
  } else {
    const std::vector<WeakStorage> bound = executor_.boundStorages();
    executor_.handOverUnshown();
    executor_.restoreAll();
    for (const WeakStorage& one : bound) enrollIfAlive(one);
    recordFromHere(bound);
    executor_.end();
  }
  recorder_->setInOptimizer(optimizer_depth_ > 0);
  mode_ = Mode::kDeparted;
}

// The ops so far are those of the plan. `bound`: by value, what they have shown and is alive.
void Session::recordFromHere(const std::vector<WeakStorage>& bound) {
  const Recording& recording = executor_.plan().recording();
  const size_t done = executor_.done();
  recorder_ =
      std::make_unique<Recorder>(recording, done, bound, executor_.shifts(), inputs_, device_);
  recorder_->noteMayBeWritten(executor_.writtenElsewhere());
  std::vector<KnownStorage> to_come;
  const Variant* variant = variants_.find(current_);
  for (const OutsideValue& outside : variant != nullptr ? variant->outside : recording.outside) {
    const auto v = static_cast<size_t>(outside.value.index);
    if (v >= recording.first_shown.size() ||
        recording.first_shown[v] < OpId(static_cast<int64_t>(done)) ||
        outside.input_position >= 0 || outside.is_gradient)
      continue;
    const Value& value = recording.graph->value(outside.value);
    to_come.push_back(
        {.storage = outside.storage,
         .bytes = value.bytes,
         .kind = value.kind == ValueKind::kParameter ? ValueKind::kParameter : ValueKind::kBuffer});
  }
  recorder_->expectFromBefore(to_come);
}

// An op made something else than was traced: it has run, so the rest of the step cannot be traced
// either. The next step is, from its first op on.
void Session::loseTrack(std::string why) {
  record_next_ = true;
  last_departure_ = std::move(why);
  ++counters_.departures;
  executor_.restoreAll();
  mode_ = Mode::kLost;
}

}  // namespace poet
