// The session's store, values that are away between steps, and accesses that no step hears.
#include <optional>
#include <thread>

#include "graph/error.h"
#include "runtime/session.h"
#include "trace/kept_storages.h"
#include "trace/op_traits.h"
#include "trace/tensor_args.h"

namespace poet {

// The last chance for what is away. A value that the store cannot give back keeps the message that
// says so to whoever reads it.
Session::~Session() {
  try {
    between_.restoreAll();
  } catch (const std::exception&) {
  }
}

// ------------------------------------------------------------------------------------------------
// the store

void Session::setStore(std::string directory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  POET_CHECK_AS(Error, !executor_.pager().hasStore(),
                "the store is in use already: set its directory before the first plan");
  store_directory_ = std::move(directory);
  pages_ = true;  // memory that is handed out from now on must be known when the first plan pages
}

void Session::setStore(std::shared_ptr<PageStore> store) {
  const std::lock_guard<std::mutex> lock(mutex_);
  POET_CHECK_AS(Error, !executor_.pager().hasStore(), "the session has a store already");
  executor_.pager().setStore(std::move(store));
  pages_ = true;
}

void Session::openStore() {
  Pager& pager = executor_.pager();
  if (pager.hasStore()) return;
  if (accelerator_) {
    pager.useHostMemory();
  } else {
    pager.setStore(std::shared_ptr<PageStore>(PageStore::open(store_directory_)));
  }
}

void Session::prepareStore(const CompiledPlan& plan) {
  if (!plan.pages()) return;
  openStore();
  executor_.pager().reserve(plan.storedBytes());
  pages_ = true;
}

// Whether the store can hold what the plan pages, in the middle of a step.
bool Session::hasRoomFor(const CompiledPlan& plan) {
  try {
    prepareStore(plan);
    return true;
  } catch (const Error& error) {
    executor_.pager().counters().trouble = error.what();
    return false;
  }
}

// For the online policy: whether there is a store now.
bool Session::hasStoreOrOpens() {
  Pager& pager = executor_.pager();
  if (pager.hasStore()) return true;
  if (store_directory_.empty() && !pages_) return false;
  try {
    openStore();
  } catch (const Error& error) {
    pager.counters().trouble = error.what();
    return false;
  }
  return true;
}

PagingCounters Session::pagingCounters() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return executor_.pager().snapshot();
}

std::string Session::newTrouble() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const PagingCounters& now = executor_.pager().counters();
  const int64_t failures =
      now.failed_page_outs + now.failed_page_ins + (now.shared_page_outs > 0 ? 1 : 0);
  if (failures == told_failures_) return "";
  told_failures_ = failures;
  return now.trouble;
}

// ------------------------------------------------------------------------------------------------
// values from before the step

// See Note [Values from before the step]; null: nowhere.
StorageHold Session::whereItWas(const OutsideValue& outside) const {
  if (outside.input_position >= 0) {
    const auto position = static_cast<size_t>(outside.input_position);
    return position < inputs_.size() ? inputs_[position].lock() : StorageHold();
  }
  if (!outside.is_gradient) return outside.storage.lock();
  const auto impl = outside.parameter.lock();
  const at::Tensor gradient = impl ? at::Tensor(impl).grad() : at::Tensor();
  if (!gradient.defined() || !isManaged(gradient)) return StorageHold();
  return StorageHold::reclaim_copy(gradient.storage().unsafeGetStorageImpl());
}

// What a step under the variant's plan needs in memory from its start on. Where there is a policy
// to make room the rest comes back when an operator shows it: a graph that the program has kept may
// take more than the budget leaves.
std::vector<StorageHold> Session::comesBackFor(const Variant& variant) const {
  if (!policy_.isOn()) return between_.alive();
  std::vector<StorageHold> back;
  for (const OutsideValue& outside : variant.outside) {
    StorageHold storage = whereItWas(outside);
    if (storage && between_.has(storage.get())) back.push_back(std::move(storage));
  }
  return back;
}

// Where the plan's early values are believed to be.
std::vector<Presumed> Session::locate(const Variant& variant, const CompiledPlan& plan) const {
  std::vector<Presumed> found;
  const auto& early = plan.movedEarly();
  for (const OutsideValue& outside : variant.outside) {
    if (!std::binary_search(early.begin(), early.end(), outside.value)) continue;
    StorageHold storage = whereItWas(outside);
    if (!storage ||
        static_cast<int64_t>(storage->nbytes()) != plan.graph().value(outside.value).bytes)
      continue;
    found.push_back({outside.value, std::move(storage)});
  }
  return found;
}

void Session::beginFollowing(const Variant& variant) {
  between_.dropDead();
  executor_.begin(variant.plan);
  try {
    executor_.presume(locate(variant, *variant.plan), comesBackFor(variant), between_);
  } catch (...) {
    closeStep();
    throw;
  }
}

// See Note [What another step counts on].
void Session::claim(const Variant& variant) {
  std::vector<const c10::StorageImpl*> all;
  for (const OutsideValue& outside : variant.outside) {
    if (const StorageHold storage = outside.storage.lock()) all.push_back(storage.get());
  }
  for (const WeakStorage& input : inputs_) {
    if (const StorageHold storage = input.lock()) all.push_back(storage.get());
  }
  claim_->add(all);
}

void Session::noteStorages() {
  if (Variant* variant = variants_.find(current_)) executor_.noteStorages(variant->outside);
}

// ------------------------------------------------------------------------------------------------
// between the steps

// Before something is put away while no step runs: see Note [Changing over].
void Session::watchFirst() {
  has_away_ = true;
  if (!watch_) watch_.emplace(weak_from_this());
  c10::impl::tls_set_dispatch_key_included(kListeningKey,
                                           true);  // the watch may be another thread's
}

void Session::watchWhatIsAway() {
  has_away_ = !between_.empty();
  if (has_away_ && !watch_) watch_.emplace(weak_from_this());
  if (!has_away_) watch_.reset();
}

void Session::moveOut() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (mode_ != Mode::kIdle) return;
  const Variant* variant = variants_.find(variants_.predict());
  if (variant == nullptr || variant->state != VariantState::kPlanned ||
      variant->plan->schedule().away_between_steps.empty())
    return;
  watchFirst();
  beginFollowing(*variant);
  closeStep();
}

// Of what is away between the steps. A step that is recorded shows nothing of it, and its policy
// makes room.
void Session::bringBackFor(const at::Tensor& t, bool is_overwritten) {
  if (between_.empty() || !isManaged(t)) return;
  const bool is_recorded = recorder_ != nullptr;
  const bool is_policed = is_recorded && policy_.isActive();
  std::optional<AllocatorTap::HiddenGuard> hidden;
  std::optional<AllocatorTap::RoomGuard> room;
  if (is_recorded) hidden.emplace();
  if (is_policed) room.emplace(&policy_);
  if (!between_.restore(t.storage().unsafeGetStorageImpl(), is_overwritten)) return;
  if (is_policed) {
    policy_.notePageIn();
  } else {
    ++executor_.pager().counters().unplanned_page_ins;
  }
}

// What the op reads first: where that is lost, what it would have overwritten stays as it is.
void Session::bringBackFor(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (between_.empty()) return;
  const size_t count = op.schema().arguments().size();
  const c10::IValue* args = stack.data() + (stack.size() - count);
  for (const bool written : {false, true}) {
    forEachTensor(args, count, [&](const at::Tensor& t, int arg, int) {
      if (written == (arg == 0 && overwrites(op, args, t))) bringBackFor(t, written);
      return true;
    });
  }
}

void Session::bringBack() {
  const std::lock_guard<std::mutex> lock(mutex_);
  between_.restoreAll();
  watchWhatIsAway();
}

void Session::onForeignOp(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (mode_ != Mode::kFollow && !recorder_ && !has_away_ && !is_policed_) return;
  const size_t count = op.schema().arguments().size();
  const c10::IValue* args = stack->data() + (stack->size() - count);
  // Factories do not wait for the step: Python may call them with its own lock held.
  if (forEachTensor(args, count, [](const at::Tensor& t, int, int) { return !isManaged(t); }))
    return;
  const AllocatorTap::RoomGuard while_the_lock_is_held(nullptr);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (mode_ == Mode::kFollow) {
    executor_.noteForeignOp();
    executor_.touch(args, count);
  }
  if (mode_ == Mode::kFollow || recorder_) {
    const OpTraits& traits = traitsOf(op);
    const bool updates_statistics = traits.updatesStatistics(args);
    forEachTensor(args, count, [&](const at::Tensor& t, int arg, int) {
      if (!isManaged(t)) return true;
      const auto a = static_cast<size_t>(arg);
      const bool writes = traits.writes_arg[a] || (updates_statistics && traits.isStatistic(arg));
      if (recorder_ && recorder_->knows(t)) recorder_->noteRead(t, writes);
      if (writes && mode_ == Mode::kFollow)
        executor_.expectWrite(t.storage().unsafeGetStorageImpl());
      return true;
    });
  }
  if (policy_.isActive()) {
    noteRunning(op, *stack);
    policy_.touch(args, count);
  }
  bringBackFor(op, *stack);
  if (mode_ == Mode::kIdle) watchWhatIsAway();
}

int64_t Session::bytesToBringBack(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!has_away_) return 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t count = op.schema().arguments().size();
  int64_t bytes = 0;
  forEachTensor(stack.data() + (stack.size() - count), count, [&](const at::Tensor& t, int, int) {
    if (isManaged(t) && between_.has(t.storage().unsafeGetStorageImpl()))
      bytes += static_cast<int64_t>(t.storage().nbytes());
    return true;
  });
  return bytes;
}

void Session::touch(const at::Tensor& t, bool for_good, bool may_write, bool may_keep) {
  if (!isManaged(t)) return;
  if (for_good)
    KeptStorages::addShared(StorageHold::reclaim_copy(t.storage().unsafeGetStorageImpl()));
  if (mode_ == Mode::kIdle && !wantsTouches() && !is_policed_) return;
  if (t.requires_grad() && t.is_leaf()) may_write = may_keep = false;  // parameters are trusted
  const AllocatorTap::RoomGuard while_the_lock_is_held(nullptr);
  const std::lock_guard<std::mutex> lock(mutex_);
  c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  if (mode_ != Mode::kIdle) touched_.insert(storage);
  // What was made from it cannot be made again: the policy makes room for what comes back.
  if (mode_ == Mode::kFollow && for_good && policy_.isOn() && executor_.countsOn(storage) &&
      std::this_thread::get_id() == thread_)
    depart("a raw reader was given memory that the plan counts on");
  if (mode_ == Mode::kFollow) {
    bringBackFor(t);  // what the store has lost
    executor_.touchStorage(storage);
    if (for_good || may_write) executor_.expectWrite(storage);
  } else {
    if (recorder_) recorder_->noteRead(t, for_good || may_write);
    if (policy_.isActive()) policy_.touchStorage(storage);
    bringBackFor(t);
    if (mode_ == Mode::kIdle) watchWhatIsAway();
  }
  // Whoever writes through the pointer later must not find other memory there.
  if (for_good || may_keep) executor_.noteHandedOut(StorageHold::reclaim_copy(storage));
}

}  // namespace poet
