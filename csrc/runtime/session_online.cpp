// Steps that follow no plan, kept inside the budget: see Note [The online policy].
#include <algorithm>

#include "graph/error.h"
#include "runtime/session.h"
#include "runtime/verify.h"
#include "trace/tensor_args.h"

namespace poet {
namespace {

constexpr int64_t kLeastShareUnseen = 1000;  // of the budget, the part that may come uncounted

}  // namespace

void Session::setBudget(OnlineOptions options, Strictness strictness) {
  const std::lock_guard<std::mutex> lock(mutex_);
  checkIdle();
  POET_CHECK_AS(Error, !accelerator_, "the online policy is for steps on the CPU");
  strictness_ = strictness;
  is_policed_ = options.budget_bytes > 0;
  is_hard_ = is_policed_ && strictness == Strictness::kHard;
  if (!is_policed_) counting_.reset();
  policy_.setOptions(std::move(options),
                     {[this] { return hasStoreOrOpens(); }, [this] { return fromBefore(); },
                      [this](const StorageHold& storage) { return putAway(storage); }});
}

void Session::setCollectives(bool on) {
  const std::lock_guard<std::mutex> lock(mutex_);
  policy_.setCollectives(on);
}

OverBudget Session::overBudget() const {
  if (strictness_ >= Strictness::kAlways) return OverBudget::kRaise;
  const bool first = counters_.steps == counters_.failed_steps;
  return strictness_ == Strictness::kFirstCall && first ? OverBudget::kRaiseImpossible
                                                        : OverBudget::kGoOn;
}

// `known` is all that is resident. What is away stays so until an op shows it.
void Session::beginPolicy(const std::vector<KnownStorage>& known) {
  std::vector<const c10::StorageImpl*> seen;
  int64_t bytes = 0;
  for (const KnownStorage& one : known) {
    const StorageHold storage = one.storage.lock();
    if (!storage || !storage->device().is_cpu() ||
        storage->_mutable_data_ptr_no_checks().get() == nullptr)
      continue;
    seen.push_back(storage.get());
  }
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (const WeakStorage& one : outlived_) {  // see Note [What steps leave behind]
    const StorageHold storage = one.lock();
    if (!storage || !storage->device().is_cpu() ||
        storage->_mutable_data_ptr_no_checks().get() == nullptr ||
        std::binary_search(seen.begin(), seen.end(), storage.get()))
      continue;
    AllocatorTap::enroll(*storage);
    bytes += static_cast<int64_t>(storage->nbytes());
  }
  std::vector<KnownStorage> fixed;  // each once: tensors that are views are known apart
  for (const KnownStorage& one : known) {
    const StorageHold storage = one.storage.lock();
    if (!storage) continue;
    const auto found = std::lower_bound(seen.begin(), seen.end(), storage.get());
    if (found == seen.end() || *found != storage.get()) continue;
    seen.erase(found);
    AllocatorTap::enroll(*storage);
    bytes += static_cast<int64_t>(storage->nbytes());
    fixed.push_back(one);
  }
  if (!counting_) counting_.emplace();
  made_elsewhere_then_ = StepArena::bytesMadeElsewhere();
  executor_.pager().end();
  policy_.begin(*recorder_, bytes, overBudget(), this);
  policy_.noteFixed(std::move(fixed));
  base_bytes_ = policy_.baseBytes();
  recorder_->accompany(&policy_);
}

bool Session::mayGoUnrecorded() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!policy_.isOn()) return true;
  // What was made by name since (copies of a `state_dict`) is in no count of the tap's.
  const int64_t unseen = StepArena::bytesMadeElsewhere() - made_elsewhere_then_;
  return counting_ && unseen <= policy_.options().budget_bytes / kLeastShareUnseen;
}

bool Session::beginUnrecorded(const std::vector<KnownStorage>& inputs) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!policy_.isOn() || !counting_) return false;
  checkIdle();
  startListening();
  tap_.emplace();
  recorder_ = std::make_unique<Recorder>(inputs);
  for (const KnownStorage& one : inputs) {
    if (const StorageHold storage = one.storage.lock()) AllocatorTap::enroll(*storage);
  }
  executor_.pager().end();
  policy_.begin(*recorder_, base_bytes_ + AllocatorTap::liveBytes(), overBudget(), this);
  recorder_->accompany(&policy_);
  unrecorded_ = true;
  mode_ = Mode::kTrace;
  has_away_ = false;
  limitHard();
  return true;
}

// The policy goes on where the plan was left, with what is away as it is.
void Session::departOnline() {
  executor_.settleTransfers();
  std::vector<WeakStorage> bound = executor_.boundStorages();
  const std::vector<bool> dead = executor_.heldOnly();
  for (size_t v = 0; v < bound.size(); ++v) {
    if (dead[v]) bound[v] = noStorage();
  }
  const size_t done = executor_.done();
  recordFromHere(bound);
  const int64_t unshown = executor_.unshownBytes();
  executor_.handOverUnshown();
  policy_.begin(*recorder_, unshown + moreBeside(), OverBudget::kGoOn, this);
  try {
    policy_.takeOver(executor_, done);
    if (is_hard_) policy_.correctBase(base_bytes_);
  } catch (...) {  // the executor still has everything
    policy_.end();
    recorder_.reset();
    throw;
  }
  executor_.leave();
  recorder_->accompany(&policy_);
}

// What the step may move out before it shows it: what its variants know from before a step, in the
// order in which they show it, and what the last step that was recorded has made and left, which is
// shown at the end if it is an optimizer's state.
std::vector<WeakStorage> Session::fromBefore() const {
  std::vector<std::pair<OpId, WeakStorage>> known;
  for (const auto& [id, variant] : variants_.all()) {
    for (const OutsideValue& outside : variant.outside) {
      const Recording& recording = *variant.recording;
      if (outside.input_position >= 0 || outside.is_gradient ||
          !recording.graph->value(outside.value).evictable)
        continue;
      known.emplace_back(recording.first_shown[static_cast<size_t>(outside.value.index)],
                         outside.storage);
    }
  }
  std::stable_sort(known.begin(), known.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<WeakStorage> all;
  for (auto& [shown, storage] : known) all.push_back(std::move(storage));
  all.insert(all.end(), left_behind_.begin(), left_behind_.end());
  return all;
}

// What is used right now stays: by the op, by native code that was given it or a pointer,
// elsewhere.
bool Session::putAway(const StorageHold& storage) {
  c10::StorageImpl* const it = storage.get();
  const auto is_it = [it](const WeakStorage& one) { return one._unsafe_get_target() == it; };
  const bool stays = std::any_of(lent_.begin(), lent_.end(), is_it) ||
                     std::any_of(inputs_.begin(), inputs_.end(), is_it) ||
                     std::find(running_.begin(), running_.end(), it) != running_.end() ||
                     touched_.count(it) > 0 || executor_.isHandedOut(it);
  if (stays || !may_put_away_ || it->_mutable_data_ptr_no_checks().get() == nullptr ||
      !AllocatorTap::mayReleaseNow(*it))
    return false;
  const PageCopy copy =
      executor_.pager().store(*storage, verify_ ? Verifier::contentHash(*storage) : 0);
  if (!copy.valid()) return false;
  releaseData(*storage);
  between_.add(storage, copy);
  return true;
}

// Until they are values of the step: what comes back for one must not move out another.
void Session::noteRunning(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  running_.clear();
  const size_t count = op.schema().arguments().size();
  forEachTensor(stack.data() + (stack.size() - count), count, [&](const at::Tensor& t, int, int) {
    if (isManaged(t)) running_.push_back(t.storage().unsafeGetStorageImpl());
    return true;
  });
}

void Session::record(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                     torch::jit::Stack* stack, std::unique_lock<std::mutex>& lock) {
  recorder_->noteArrival();
  if (policy_.isActive()) {
    noteRunning(op, *stack);
    if (Listener::areSeveral()) claim_->add(running_);
  }
  bringBackFor(op, *stack);
  recorder_->setLent(lent_);
  recorder_->setKept(&kept_);
  recorder_->run(op, below, stack, &lock);
}

void Session::makeRoom(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  policy_.makeRoom(bytes);
}

// What a plan had put away and the step, having left it, never showed. A later plan whose step does
// not show it either counts it all the same, for whoever reads it.
void Session::bringBackToBudget() {
  const AllocatorTap::HiddenGuard hidden;
  for (const StorageHold& storage : between_.alive()) {
    if (!policy_.hasRoomFor(static_cast<int64_t>(storage->nbytes()))) continue;
    try {
      if (between_.restore(storage.get())) policy_.notePageIn();
    } catch (const StoreError&) {
      // Whoever reads it tries again, and is told.
    }
  }
}

void Session::endPolicy(bool failed, const std::string& error, StepReport& report) {
  if (!policy_.isActive()) return;
  policy_.restoreAll(/*to_budget=*/!failed && may_put_away_);
  if (!failed) bringBackToBudget();
  left_behind_ = policy_.leftBehind();
  std::erase_if(left_behind_, [this](const WeakStorage& left) {  // the next call has others
    return std::any_of(inputs_.begin(), inputs_.end(), [&left](const WeakStorage& input) {
      return input._unsafe_get_target() == left._unsafe_get_target();
    });
  });
  const std::string& refusal = policy_.budgetError();
  if (failed && !refusal.empty() && (error.empty() || error.find(refusal) != std::string::npos)) {
    report.budget_error = refusal;
    policy_.undo();
  }
  policy_.noteMost();
  report.over_bytes = policy_.overBytes();
  if (report.over_bytes > 0)
    report.over_text = policy_.overText() + ", and nothing else could leave memory";
}

}  // namespace poet
