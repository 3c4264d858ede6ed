#include "runtime/session.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "graph/error.h"
#include "trace/tensor_args.h"

namespace poet {
namespace {

// Fake tensors and shape inference run on meta tensors: nothing of it is part of a step.
bool isMetaRun(c10::DispatchKeySet keys) {
  return keys.has_backend(c10::BackendComponent::MetaBit) &&
         !keys.has_backend(c10::BackendComponent::CPUBit);
}

}  // namespace

std::shared_ptr<Session> Session::create(bool verify) {
  registerListener();
  return std::shared_ptr<Session>(new Session(verify));
}

Session::Session(bool verify) : verify_(verify) {
  executor_.setVerify(verify);
  between_.setVerify(verify);
  policy_.setVerify(verify);
}

// ------------------------------------------------------------------------------------------------
// a step's ends

void Session::setDevice(c10::Device device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  checkIdle();
  POET_CHECK_AS(Error, counters_.steps == 0,
                "the session has run steps already: set its device before the first");
  POET_CHECK(Accelerator::isKnown(device.type()) && (device.is_cpu() || device.has_index()),
             "device: expected the CPU or a CUDA device with its index; got ", device.str());
  device_ = device;
  accelerator_.reset();
  if (!device.is_cpu()) accelerator_.emplace(device);
  executor_.pager().setDevice(device);
}

void Session::expectBatch(const std::vector<at::Tensor>& batch) {
  uint64_t shapes = 0;
  for (const at::Tensor& t : batch)
    if (t.defined()) shapes = mixHash(shapes, geometryHash(t, t.storage_offset()));
  const std::lock_guard<std::mutex> lock(mutex_);
  variants_.expectBatch(shapes);
}

bool Session::nextStepIsTraced() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Variant* variant = variants_.find(variants_.predict());
  return record_next_ || variant == nullptr || variant->state != VariantState::kPlanned;
}

void Session::checkIdle() const {
  POET_CHECK_AS(Error, mode_ == Mode::kIdle,
                "this step is running already (on another thread, or inside itself): wrap the "
                "outermost call only");
}

// Note [Changing over]
// What is away must have somebody to bring it back at every moment: another thread's op looks for
// the listeners and watches that there are, and then for what it touches (Note [Storages in use]).
// So a step listens before it evicts and before its session's watch ends, and goes on listening
// until the watch has begun; while `has_away_` is set, such an op waits for the session's lock, and
// finds a state that is whole.
void Session::startListening() {
  optimizer_depth_ = 0;  // one that raised, or that outlived its step, was never left
  thread_ = std::this_thread::get_id();
  has_away_ = true;
  lent_.clear();
  listener_.emplace(shared_from_this());
  watch_.reset();
  listening_.emplace();
  claim_.emplace();
}

void Session::stopListening() {
  script_.reset();
  listening_.reset();
  listener_.reset();
  claim_.reset();
}

// Fake and functional tensors (torch.compile's caches hold some) have a size and no memory.
void Session::leaveOutWhatHasNoMemory(std::vector<KnownStorage>& known) const {
  std::erase_if(known, [this](const KnownStorage& one) {
    if (one.kind != ValueKind::kBuffer && one.kind != ValueKind::kParameter) return false;
    const StorageHold storage = one.storage.lock();
    return storage && storage->_mutable_data_ptr_no_checks().get() == nullptr &&
           !between_.has(storage.get());
  });
}

// It takes nothing of the budget.
void Session::leaveOutWhatLiesElsewhere(std::vector<KnownStorage>& known) const {
  for (KnownStorage& one : known) {
    const StorageHold storage = one.storage.lock();
    if (storage && !Accelerator::isSame(storage->device(), device_)) one.bytes = 0;
  }
}

void Session::beginStep(std::vector<KnownStorage> known, bool all_are_known) {
  const c10::impl::ExcludeDispatchKeyGuard own_ops_are_not_heard(kListeningKey);
  const std::lock_guard<std::mutex> lock(mutex_);
  checkIdle();
  leaveOutWhatLiesElsewhere(known);
  inputs_.clear();
  stream_.reset();
  for (const KnownStorage& one : known) {
    if (one.kind == ValueKind::kInput) inputs_.push_back(one.storage);
  }
  current_ = variants_.predict();
  grown_.clear();
  Variant* variant = variants_.find(current_);
  const bool follows = !record_next_ && variant != nullptr &&
                       variant->state == VariantState::kPlanned && (!is_hard_ || counting_);
  record_next_ = raised_ = switched_ = false;
  end_excess_ = late_bytes_ = bytes_at_begin_ = 0;
  if (follows) {
    if (!is_hard_) counting_.reset();
    const int64_t spare = spareBytes(*variant);
    StepArena::restart(most_in_step_ ? *most_in_step_ + spare : 0, /*trim_malloc=*/!most_in_step_);
    if (variant->has_unchecked_base) {
      leaveOutWhatHasNoMemory(known);
      bytes_at_begin_ = bytesThere(known);
      unchecked_ = std::move(known);
    }
    startListening();
    if (!accelerator_ && spare == 0) script_.emplace(variant->script);
    try {
      beginFollowing(*variant);
    } catch (...) {
      stopListening();
      throw;
    }
    claim(*variant);
    if (!accelerator_ && variant->timed_steps < kTimedSteps) {  // a launch tells nothing
      timed_ = variant;
      for (std::vector<float>* const least : {&variant->op_seconds, &variant->host_seconds})
        least->resize(variant->plan->numOps(), std::numeric_limits<float>::infinity());
      left_at_ = OpClock::now();
    }
    if (verify_) tap_.emplace();
    if (accelerator_) executor_.noteForeignOp();  // the tap counts the CPU's bytes
    mode_ = Mode::kFollow;
    has_away_ = false;  // the mode says it from here on
    limitHard();
    return;
  }
  leaveOutWhatHasNoMemory(known);
  between_.dropDead();
  startListening();
  tap_.emplace();
  recorder_ = std::make_unique<Recorder>(known, all_are_known, device_);
  if (policy_.isOn()) {
    beginPolicy(known);
  } else {
    for (const KnownStorage& one : known) enrollIfAlive(one.storage);
  }
  mode_ = Mode::kTrace;
  has_away_ = false;
  limitHard();
}

void Session::closeStep() {
  has_away_ = true;  // until that is known
  executor_.handOver(between_);
  policy_.handOver(between_);
  policy_.end();
  executor_.end();
  recorder_.reset();
  unrecorded_ = false;
  timed_ = nullptr;
  tap_.reset();
  inputs_.clear();
  running_.clear();
  touched_.clear();
  unchecked_.clear();
  known_bytes_.reset();
  counted_.clear();
  mode_ = Mode::kIdle;
  watchWhatIsAway();
}

StepReport Session::endStep(bool failed, const std::string& error) {
  listening_.reset();
  is_ending_ = true;
  const c10::impl::ExcludeDispatchKeyGuard own_ops_are_not_heard(kListeningKey);
  const std::lock_guard<std::mutex> lock(mutex_);
  StepReport report;
  counters_.steps += !unrecorded_;
  to_replan_.insert(to_replan_.end(), grown_.begin(), grown_.end());
  grown_.clear();
  if (!failed) report.grown = std::exchange(to_replan_, {});
  if (recorder_) noteOutlived(recorder_->madeAndAlive());
  try {
    if (failed) {
      counters_.failed_steps += !unrecorded_;
      report.mode = StepReport::Mode::kFailed;
      noteMiss(failed, error, report);
      if (mode_ == Mode::kFollow || mode_ == Mode::kLost) executor_.restoreAll();
      if (mode_ == Mode::kFollow) end_excess_ = executor_.restoredExcess(moreBeside());
      if (mode_ == Mode::kFollow || mode_ == Mode::kLost) noteOutlived(executor_.outlived(true));
      endPolicy(failed, error, report);
      tellOfEndExcess(report);
      if (!may_put_away_) between_.restoreAll();  // it would end the next call too
    } else {
      if (mode_ == Mode::kFollow) finishFollowed();
      if (mode_ == Mode::kFollow) noteOutlived(executor_.outlived(false));
      endPolicy(failed, error, report);
      settle(report);
      noteMiss(failed, error, report);
    }
  } catch (...) {
    limit_.reset();
    try {  // what is away when the step closes is lost
      if (mode_ == Mode::kFollow) executor_.restoreAll();
    } catch (...) {
      // That step's error says enough.
    }
    closeStep();
    stopListening();
    throw;
  }
  limit_.reset();
  closeStep();
  stopListening();
  return report;
}

void Session::finishFollowed() {
  if (executor_.done() < executor_.plan().numOps()) {
    depart(detail::message("the step ended after ", executor_.done(), " of ",
                           executor_.plan().numOps(), " traced ops"));
    return;
  }
  try {
    executor_.finish();
  } catch (const c10::OutOfMemoryError&) {
    // What the plan brings back last comes with the rest.
  }
  executor_.restoreAll(/*keep_away_between_steps=*/true);
  end_excess_ = executor_.restoredExcess(moreBeside());
  noteStorages();
}

void Session::settle(StepReport& report) {
  if (mode_ == Mode::kFollow) {
    ++counters_.followed_steps;
    Variant& variant = *variants_.find(current_);
    ++variant.followed;
    if (timed_ != nullptr) ++timed_->timed_steps;
    const bool is_power_of_2 = (variant.followed & (variant.followed - 1)) == 0;
    if (is_power_of_2 && variant.followed >= variant.unchecked_until)
      variant.has_unchecked_base = true;
    const PageArena::Counters arena = StepArena::counters();
    // What it evicted first had its memory elsewhere.
    if (!most_in_step_) StepArena::restart(0, /*trim_malloc=*/true);
    most_in_step_ = std::max(most_in_step_.value_or(0), arena.peak_in_use);
    counters_.arena_peak_bytes = arena.peak_in_use;
    if (!switched_) variant.arena_peak_bytes = arena.peak_in_use;
    report.mode = StepReport::Mode::kFollowed;
    report.variant = current_;
    report.num_ops = static_cast<int64_t>(executor_.done());
    checkEnd(variant);
    tellOfSwitchExcess(report);
    tellOfGrowthExcess(report);
    tellOfStayExcess(report);
    tellOfEndExcess(report);
  } else if (mode_ == Mode::kLost) {
    report.mode = StepReport::Mode::kDeparted;
  } else if (unrecorded_) {
    return;
  } else {
    report.mode = mode_ == Mode::kTrace ? StepReport::Mode::kTraced : StepReport::Mode::kDeparted;
    if (mode_ == Mode::kTrace) ++counters_.traced_steps;
    report.num_ops = static_cast<int64_t>(recorder_->numOps());
    report.variant = variants_.add(recorder_->finish(), report.newly_stable);
    variants_.checkBases();
    if (mode_ == Mode::kDeparted) tellOfEndExcess(report);
  }
  variants_.noteStep(report.variant);
}

// ------------------------------------------------------------------------------------------------
// ops

void Session::onOp(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                   torch::jit::Stack* stack) {
  if (isMetaRun(below)) {
    op.redispatchBoxed(below, stack);
    return;
  }
  std::unique_lock<std::mutex> no_other_op;
  if (accelerator_) no_other_op = std::unique_lock<std::mutex>(one_op_);
  const AllocatorTap::RoomGuard while_the_lock_is_held(nullptr);
  std::unique_lock<std::mutex> lock(mutex_);
  if (accelerator_) noteStream();
  switch (mode_) {
    case Mode::kFollow:
      follow(op, below, stack, lock);
      return;
    case Mode::kTrace:
    case Mode::kDeparted:
      record(op, below, stack, lock);
      return;
    default:
      bringBackFor(op, *stack);
      lock.unlock();
      op.redispatchBoxed(below, stack);
  }
}

// What a plan does is in the order of one stream: see Note [Steps on an accelerator].
void Session::noteStream() {
  const c10::Stream now = accelerator_->currentStream();
  if (!stream_) stream_ = now;
  if (now == *stream_) return;
  if (mode_ == Mode::kFollow) {
    accelerator_->synchronize();  // what comes back now is computed on this stream
    depart("the step runs operators on several streams of the device");
  }
  if (recorder_) recorder_->noteSeveralStreams();
}

// ------------------------------------------------------------------------------------------------
// the rest

void Session::enrollIfAlive(const WeakStorage& one) {
  if (const StorageHold storage = one.lock()) AllocatorTap::enroll(*storage);
}

std::vector<GrownPlan> Session::takeGrown() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(to_replan_, {});
}

void Session::enterOptimizer() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++optimizer_depth_;
  if (recorder_) recorder_->setInOptimizer(true);
}

void Session::leaveOptimizer() {
  const std::lock_guard<std::mutex> lock(mutex_);
  --optimizer_depth_;
  if (recorder_) recorder_->setInOptimizer(optimizer_depth_ > 0);
}

std::shared_ptr<const Graph> Session::graphOf(int variant) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Variant* found = variants_.find(variant);
  return found == nullptr || !found->recording ? nullptr : found->recording->graph;
}

void Session::letGoOfSeenOnce(const std::vector<int>& except) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (mode_ == Mode::kIdle) variants_.letGoOfSeenOnce(except);
}

std::shared_ptr<CompiledPlan> Session::compile(int variant,
                                               std::shared_ptr<const Schedule> schedule,
                                               const DeviceProfile& profile) {
  std::shared_ptr<const Recording> recording;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Variant* found = variants_.find(variant);
    if (found == nullptr || !found->recording) return nullptr;
    recording = found->recording;
  }
  return std::make_shared<CompiledPlan>(std::move(recording), std::move(schedule), profile);
}

void Session::setPlan(int variant, std::shared_ptr<const Schedule> schedule,
                      const DeviceProfile& profile) {
  auto plan = compile(variant, std::move(schedule), profile);
  const std::lock_guard<std::mutex> lock(mutex_);
  const Variant* found = variants_.find(variant);
  if (!plan || found == nullptr || found->recording != plan->sharedRecording()) return;
  prepareStore(*plan);
  variants_.setPlan(variant, std::move(plan));
  most_in_step_.reset();
}

void Session::movePlan(int variant, std::shared_ptr<const Schedule> schedule,
                       const DeviceProfile& profile) {
  auto plan = compile(variant, std::move(schedule), profile);
  const std::lock_guard<std::mutex> lock(mutex_);
  const Variant* found = variants_.find(variant);
  if (!plan || found == nullptr || found->recording != plan->sharedRecording()) return;
  if (found->state != VariantState::kPlanned) return;
  prepareStore(*plan);
  variants_.movePlan(variant, std::move(plan));
}

void Session::setUnplannable(int variant) {
  const std::lock_guard<std::mutex> lock(mutex_);
  variants_.setUnplannable(variant);
}

Session::OpSeconds Session::opSeconds(int variant) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Variant* found = variants_.find(variant);
  if (found == nullptr || found->timed_steps < kTimedSteps) return {};
  return {found->op_seconds, found->host_seconds};
}

std::vector<AwaitedSwap> Session::awaitedSwaps() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return executor_.awaitedSwaps();
}

SessionCounters Session::counters() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

ExecutorCounters Session::executorCounters() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return executor_.counters();
}

OnlineCounters Session::onlineCounters() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return policy_.counters();
}

int64_t Session::ownBytes() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return variants_.ownBytes() + executor_.ownBytes() + policy_.ownBytes();
}

std::string Session::lastDeparture() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return last_departure_;
}

int64_t Session::numVariants() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(variants_.size());
}

std::vector<int> Session::variants() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return variants_.ids();
}

}  // namespace poet
