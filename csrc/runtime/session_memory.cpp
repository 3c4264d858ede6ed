// What lies in memory beside the plans, by how much a step went above its own, and hard budgets.
#include <limits>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "graph/error.h"
#include "runtime/budget.h"
#include "runtime/session.h"

namespace poet {
namespace {

constexpr int64_t kMuchMore = int64_t{64} * 1024;
constexpr int64_t kLeastShareTold = 1000;  // of a plan's peak, the part by which it is corrected

// Half of the room: what the arena and malloc add to a block differs from one to the next.
int64_t muchMore(const Variant& variant) {
  const Schedule& schedule = variant.plan->schedule();
  if (!schedule.ram_budget_bytes) return std::numeric_limits<int64_t>::max() / 2;
  const int64_t room = *schedule.ram_budget_bytes - schedule.peak_bytes - variant.more_bytes;
  return std::max(room / 2, std::min(kMuchMore, *schedule.ram_budget_bytes / 256));
}

}  // namespace

// ------------------------------------------------------------------------------------------------
// where nothing presses

// Note [Room to spare]
// The arena keeps no more pages than were in use at once, and a script has places for all blocks of
// a step (Note [Steps that ask for the same blocks]): under a plan that fills its budget that is
// what keeps it. It has a price. A block's place is a cold one, where malloc, and the arena without
// a script, hand out what was given back last and is in the cache; and whatever runs between the
// steps (an evaluation, a step that is not wrapped) has its blocks elsewhere, so that pages move to
// and fro: 1.8 and 2 to 4 us an operator of GPT-2. So where a plan moves nothing and its budget has
// the room, blocks go where they would, and some more pages stay: one in kSparePart of the plan's
// peak, which leaves the resident set within 5 % of it.
//
// Bytes that the arena may keep beyond what was in use at once; 0 where something presses.
int64_t Session::spareBytes(const Variant& variant) const {
  constexpr int64_t kSparePart = 32;
  const Schedule& schedule = variant.plan->schedule();
  if (is_hard_ || accelerator_ || !schedule.ram_budget_bytes || !variant.plan->movesNothing())
    return 0;
  const int64_t room = *schedule.ram_budget_bytes - schedule.peak_bytes - variant.more_bytes;
  const int64_t spare = schedule.peak_bytes / kSparePart;
  return room >= spare ? spare : 0;
}

// ------------------------------------------------------------------------------------------------
// beside the plans

// Note [Outgrown plans]
// What lies in memory beside a step counts in its plan's peak, and is known from the recording. It
// may grow afterwards: the optimizer makes its state in a variant of its own, after the variant of
// the micro-batches has its plan. So after a recorded step, and when a plan comes into force, what
// exists is counted once more at the next step of each plan: at its first op, for what is gone by
// then, as gradients that the step sets to None, is no part of the step (Recorder). Beside the
// steps memory may grow without any being recorded (a copy of the model for averages): where so
// much more is in use than at the last count, by PyTorch's allocator or in the C library's heap,
// that the plan may soon have no room for it, and after 1, 2, 4, 8, ... followed steps, it is
// counted as well; and where it grew before the last count and will not fit at that pace. A program
// that keeps something of every step grows for ever: after each plan that was made again for it,
// twice as many steps go by before the next one is asked for, and from the second on, or where two
// counts in a row have found more, each leaves room for as much more as these will keep
// (bytes_to_come). A plan that keeps the budget all the same stays; its predicted peak is what
// grows. Of one that does not the step that finds it so leaves it at its first op, where there is a
// policy. Those that come before there is another follow it, and go above by what is known: the
// policy might need more.
bool Session::wantsKnown() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Variant* variant = variants_.find(variants_.predict());
  if (record_next_ || variant == nullptr || variant->state != VariantState::kPlanned) return false;
  const auto budget = variant->plan->schedule().ram_budget_bytes;
  const int64_t in_use =
      accelerator_ ? accelerator_->memory().taken_bytes : StepArena::bytesInUse();
  if (budget) {
    const int64_t room = *budget - variant->plan->schedule().peak_bytes - variant->more_bytes;
    const int64_t much = muchMore(*variant);
    if (in_use > variant->arena_bytes_then + much ||
        (!accelerator_ && heap_watch_.hasGrownBy(much)) ||
        (room >= 0 && variant->growthSinceCheck() > room))
      variant->has_unchecked_base = true;
  }
  if (!outlived_.empty() && outlivedBytes() > outlived_bytes_) variant->has_unchecked_base = true;
  if (variant->has_unchecked_base) variant->arena_bytes_then = in_use;
  return variant->has_unchecked_base;
}

int64_t Session::bytesThere(const std::vector<KnownStorage>& known) {
  std::unordered_set<const void*> found;
  int64_t bytes = 0;
  for (const KnownStorage& one : known) {
    const StorageHold storage = one.storage.lock();
    if (storage && storage->_mutable_data_ptr_no_checks().get() != nullptr &&
        found.insert(storage.get()).second)
      bytes += one.bytes;
  }
  return bytes;
}

// See Note [What steps leave behind].
void Session::noteOutlived(std::vector<WeakStorage> storages) {
  std::erase_if(outlived_, [](const WeakStorage& one) { return one.expired(); });
  std::unordered_set<const void*> there;
  for (const WeakStorage& one : outlived_) there.insert(one._unsafe_get_target());
  for (WeakStorage& one : storages) {
    if (there.insert(one._unsafe_get_target()).second) outlived_.push_back(std::move(one));
  }
}

int64_t Session::outlivedBytes() const {
  int64_t bytes = 0;
  for (const WeakStorage& one : outlived_) {
    const StorageHold storage = one.lock();
    if (storage && Accelerator::isSame(storage->device(), device_) && !between_.has(storage.get()))
      bytes += static_cast<int64_t>(storage->nbytes());
  }
  return bytes;
}

// Note [What steps leave behind]
// A graph that the program keeps, or that an error's traceback does, holds values where nobody can
// look. So what a step has made and did not let go of is remembered, for as long as it lives, and
// counts among what is there when another step begins. Of steps under a plan that is what lives on
// though it died when the step was recorded; all else that they leave Python holds, and that is
// looked through anyway.
void Session::countKnown() {
  std::unordered_set<const void*> found;
  int64_t resident = 0;
  known_bytes_ = 0;
  counted_.clear();
  const auto count = [&](c10::StorageImpl& storage, const WeakStorage& weak, int64_t bytes) {
    if (!found.insert(&storage).second) return;
    counted_.push_back({weak, bytes});
    *known_bytes_ += bytes;
    if (storage._mutable_data_ptr_no_checks().get() != nullptr) resident += bytes;
  };
  for (const KnownStorage& one : unchecked_) {
    const StorageHold storage = one.storage.lock();
    if (!storage || between_.has(storage.get())) continue;  // in the store, and not the plan's
    count(*storage, one.storage, one.bytes);
    if (is_hard_ && storage->device().is_cpu()) AllocatorTap::enroll(*storage);
  }
  unchecked_.clear();
  for (const WeakStorage& one : outlived_) {
    const StorageHold storage = one.lock();
    if (storage && Accelerator::isSame(storage->device(), device_) && !between_.has(storage.get()))
      count(*storage, one, static_cast<int64_t>(storage->nbytes()));
  }
  outlived_bytes_ = outlivedBytes();
  // On an accelerator what nobody knows of counts as well, as in a recording. It may have grown: a
  // library makes a workspace for each thread that calls it, for good, and an op of the forward
  // pass that is run again in the backward pass may be the first there.
  if (accelerator_)
    *known_bytes_ += std::max<int64_t>(0, accelerator_->memory().taken_bytes - resident);
}

// Note [What a recording found and lost]
// A recording may begin with what is not there again: of a backward pass that was interrupted,
// PyTorch's engine holds what it had not done yet until the next backward pass begins. No op shows
// such values, and nothing tells which of another step's storages stands for one; but where there
// are fewer of a size than the graph has values from before the step, they are missing, and as many
// bytes more lie beside the others.
int64_t Session::missingBytes(const Recording& recording) const {
  if (recording.untouched_bytes.empty()) return 0;
  std::unordered_map<int64_t, int64_t> missing;  // by size: how many
  for (const Value& value : recording.graph->values())
    missing[value.bytes] += !value.producer.valid();
  for (const Counted& one : counted_) --missing[one.bytes];
  int64_t sum = 0;
  for (const int64_t bytes : recording.untouched_bytes) {
    if (missing[bytes]-- > 0) sum += bytes;
  }
  return sum;
}

// Note [What stays]
// What a recording has die without an operator showing it (gradients that are set to None midway,
// an attribute that the step assigns anew) may be there to stay another time, or another storage of
// its size may be, or of less, so that no more is in use when the step begins. So at the end of a
// step in which what exists was counted, it is looked up whether as many storages of such sizes
// have gone as the graph has die; and where more is in use at the end than at the last such end, or
// at the first op than at the last such first op (what the program lets go of before that is no
// part of the step), the next step counts.
int64_t Session::stayedBytes(const Recording& recording) const {
  struct Size {
    int64_t before = 0, dying = 0;  // values of the graph
    int64_t known = 0, gone = 0;    // storages of this step
  };
  if (recording.untouched_bytes.empty()) return 0;
  std::unordered_map<int64_t, Size> sizes;
  const OpId end = recording.graph->endOfStep();
  for (const Value& value : recording.graph->values()) {
    if (value.producer.valid()) continue;
    Size& size = sizes[value.bytes];
    ++size.before;
    size.dying += value.death < end;
  }
  for (const Counted& one : counted_) {
    Size& size = sizes[one.bytes];
    ++size.known;
    size.gone += one.storage.expired();
  }
  int64_t sum = 0;
  for (const int64_t bytes : recording.untouched_bytes) {
    Size& size = sizes[bytes];
    // Those that are missing cannot go.
    if (size.dying-- - std::max<int64_t>(0, size.before - size.known) > size.gone) sum += bytes;
  }
  return sum;
}

// What lies beside the running step for as long as it runs, where `stayed` bytes of what the graph
// has die are there to stay.
int64_t Session::knownBase(const Recording& recording, int64_t stayed) const {
  const std::vector<int64_t>& untouched = recording.untouched_bytes;
  const int64_t most = std::accumulate(untouched.begin(), untouched.end(), int64_t{0});
  int64_t base = *known_bytes_ + std::min(missingBytes(recording) + stayed, most);
  // What no op shows is among the values, and not among the known.
  base += recording.unshown_bytes;
  for (const Value& value : recording.graph->values())
    base -= value.producer.valid() ? 0 : value.bytes;
  return base;
}

void Session::checkFirstOp() {
  if (accelerator_) return;
  Variant& variant = *variants_.find(current_);
  const int64_t in_use = StepArena::bytesInUse();
  if (known_bytes_) {
    // What is not there and has room in the plan may be there the next time.
    const int64_t base = knownBase(*variant.recording, 0);
    variant.in_use_first_op =
        in_use + std::max<int64_t>(0, variant.plan->graph().baseBytes() - base);
  } else if (variant.in_use_first_op > 0 && in_use > variant.in_use_first_op + muchMore(variant)) {
    late_bytes_ = in_use - variant.in_use_first_op;
    variant.has_unchecked_base = true;
  }
}

// Of a step that has followed its plan, before anything is told of it.
void Session::checkEnd(Variant& variant) {
  if (accelerator_ || switched_) return;
  const std::vector<int64_t>& untouched = variant.recording->untouched_bytes;
  const int64_t in_use = StepArena::bytesInUse();
  int64_t late = 0;
  if (known_bytes_) {
    const int64_t base = knownBase(*variant.recording, stayedBytes(*variant.recording));
    const int64_t more = base - variant.plan->graph().baseBytes();
    variant.in_use_end = in_use + std::max<int64_t>(0, -more);
    variant.late_bytes = std::max<int64_t>(0, more);
    late = more - variant.more_bytes;
  } else if (!untouched.empty() && variant.in_use_end > 0 &&
             in_use > variant.in_use_end + muchMore(variant)) {
    late = std::min(in_use - variant.in_use_end,
                    std::accumulate(untouched.begin(), untouched.end(), int64_t{0}));
  }
  if (late <= 0) return;
  variant.has_unchecked_base = true;
  late_bytes_ = std::max(late_bytes_, late);
}

// Whether the plan still keeps the budget.
bool Session::checkBase() {
  Variant& variant = *variants_.find(current_);
  variant.has_unchecked_base = false;
  const Graph& graph = *variant.recording->graph;
  const Schedule& schedule = variant.plan->schedule();
  const int64_t planned = variant.plan->graph().baseBytes();
  int64_t base = knownBase(*variant.recording, 0);
  if (variant.late_bytes > 0) base = std::max(base, planned + variant.late_bytes);
  const int64_t more = base - planned;
  const bool grows = variant.noteMore(std::max<int64_t>(0, more));
  const int64_t since = base - graph.baseBytes();
  const bool holds =
      !schedule.ram_budget_bytes || schedule.peak_bytes + more <= *schedule.ram_budget_bytes;
  executor_.noteBeside(variant.more_bytes);
  heap_watch_.noteCount(since > 0);
  // Another plan is on its way, or there is none, or it is known. The policy may need more than the
  // plan goes above by.
  if (since <= 0) return holds || !is_hard_;
  if (holds && since <= schedule.peak_bytes / kLeastShareTold) return true;
  if (!holds && variant.followed < variant.unchecked_until) return false;
  grown_.push_back(growBase(current_, since, holds));
  if (!holds) {
    const bool goes_on = grows || variant.unchecked_until > 0;  // not the one copy of the model
    variant.unchecked_until = std::max<int64_t>(8, 2 * variant.unchecked_until);
    if (goes_on)
      grown_.back().bytes_to_come = more / (variant.followed + 1) * variant.unchecked_until;
  }
  return holds;
}

// That lie beside the step by the last check, and that the plan in force knows nothing of.
int64_t Session::moreBeside() {
  const Variant* variant = variants_.find(current_);
  if (variant == nullptr) return 0;
  if (&executor_.plan() == variant->plan.get()) return variant->more_bytes + late_bytes_;
  return late_bytes_ + std::max<int64_t>(0, variant->recording->graph->baseBytes() -
                                                executor_.plan().graph().baseBytes());
}

GrownPlan Session::growBase(int variant, int64_t bytes, bool keeps_budget) {
  std::shared_ptr<const Recording>& recording = variants_.find(variant)->recording;
  const Graph& graph = *recording->graph;
  auto grown = std::make_shared<Recording>(*recording);
  grown->grown_bytes += bytes;
  grown->graph = std::make_shared<const Graph>(graph.ops(), graph.values(),
                                               graph.baseBytes() + bytes, graph.signature());
  recording = std::move(grown);
  return {variant, bytes, keeps_budget};
}

// ------------------------------------------------------------------------------------------------
// hard budgets

// Note [Hard budgets]
// The online policy and the plans keep the budget by what they know beforehand. Where a budget is
// hard, no allocation of the step's thread exceeds it, whatever was known: the allocator's tap
// stays in from the first recorded step on, so what is resident is counted to the byte, and each
// allocation asks first. What would go above ends the step with a BudgetError, as memory that the
// system does not have would. When a step ends, by an error or not, what is away comes back, above
// the budget if it must: else it would be lost. A step that has run to its end throws then. Other
// threads' allocations are refused nothing, and do not count while the step runs.
//
// A plan that was missed in this way knew less than there is: it is followed no more, and the next
// one is made for as much less. A step beside which more lies than its plan has room for begins
// without it.
void Session::admit(int64_t bytes, int64_t live) {
  const int64_t budget = policy_.options().budget_bytes;
  const int64_t resident =
      base_bytes_ + live + (policy_.isActive() ? policy_.savedStateBytes() : 0);
  if (resident + bytes <= budget) return;
  const auto size = [](int64_t n) { return detail::message(n, " bytes (", formatBytes(n), ")"); };
  missed_bytes_ = std::max(missed_bytes_, resident + bytes - budget);
  if (is_ending_) {
    miss_at_end_ = detail::message(
        "expected the step to end within its hard budget of ", size(budget),
        "; what was away came back, so that nothing is lost, and took ",
        size(missed_bytes_ + budget),
        ". The step has run to its end. Give it that or more, or let it go above (hard=False).");
    return;
  }
  std::string where = "the step";
  if (mode_ == Mode::kFollow && executor_.done() < executor_.plan().numOps()) {
    const auto op = static_cast<int32_t>(executor_.done());
    where = detail::message("op ", op, " (", executor_.plan().graph().op(OpId(op)).name, ")");
  } else if (recorder_ != nullptr) {
    where = detail::message("op ", recorder_->numOps());
  }
  miss_ = detail::message(
      "expected the step to stay within its hard budget of ", size(budget), "; ", where, " needs ",
      size(bytes), " more, and ", size(resident),
      " are resident. The operator has not run; all tensors are as the ones before it left them"
      " (what an optimizer has updated by then stays updated). Give it ",
      size(resident + bytes), " or more, or let it go above (hard=False).");
  throw BudgetError("ram_budget: " + miss_);
}

void Session::limitHard() {
  miss_.clear();
  miss_at_end_.clear();
  missed_bytes_ = 0;
  is_ending_ = false;
  if (is_hard_ && counting_) limit_.emplace(*this);
}

void Session::noteMiss(bool failed, const std::string& error, StepReport& report) {
  const bool by_miss = error.empty() || error.find(miss_) != std::string::npos;
  report.budget_error = !failed ? miss_at_end_ : by_miss ? miss_ : std::string();
  if (report.budget_error.empty()) return;
  if (mode_ != Mode::kFollow) return;
  to_replan_.push_back(growBase(current_, missed_bytes_, false));
  variants_.setUnplannable(current_);
}

// ------------------------------------------------------------------------------------------------
// above them

// A joined plan's peak is known. Where there is none (see Note [Joined plans]) the arena tells how
// much more was in use than where the step has this plan from its first op on.
void Session::tellOfSwitchExcess(StepReport& report) {
  const Variant& variant = *variants_.find(current_);
  const CompiledPlan& plan = executor_.plan();
  if (!switched_ || report.over_bytes > 0) return;
  // That what lay beside its last step is known does not mean that a plan was made for it.
  const int64_t beside = std::max(variant.recording->graph->baseBytes(),
                                  variant.plan->graph().baseBytes() + variant.more_bytes);
  int64_t more = beside - plan.graph().baseBytes();
  if (&plan == variant.plan.get()) {
    const int64_t usual = variant.arena_peak_bytes;
    if (usual == 0) return;
    more += counters_.arena_peak_bytes - usual;
  }
  const OpId peak = plan.schedule().peak_op;
  const bool is_known =
      &plan != variant.plan.get() && peak.valid() && peak < plan.graph().endOfStep();
  const std::string where =
      is_known ? detail::message(", at op ", peak.index, " (", plan.graph().op(peak).name, ")")
               : std::string();
  noteExcess(report, plan.excessBytes() + more,
             "having begun under the plan of another stream of operators" + where);
}

// What lies beside the step since its plan was made, until another plan is there. At the step's
// peak, if it is still there then.
void Session::tellOfGrowthExcess(StepReport& report) {
  const int64_t more = variants_.find(current_)->more_bytes + late_bytes_;
  const Schedule& schedule = executor_.plan().schedule();
  if (switched_ || more == 0 || !schedule.ram_budget_bytes) return;
  noteExcess(report, schedule.peak_bytes + more - *schedule.ram_budget_bytes,
             detail::message("for ", more, " bytes (", formatBytes(more),
                             ") more lie beside the step than when its plan was made"));
}

// Of a step that leaves its plan now: under it, as those that follow it to the end.
void Session::noteExcessSoFar() {
  const Schedule& schedule = executor_.plan().schedule();
  if (!schedule.ram_budget_bytes) return;
  const bool is_past_peak =
      schedule.peak_op.valid() && static_cast<size_t>(schedule.peak_op.index) < executor_.done();
  const int64_t more = is_past_peak ? moreBeside() : 0;
  if (more > 0) end_excess_ = schedule.peak_bytes + more - *schedule.ram_budget_bytes;
  end_excess_ = std::max(end_excess_, executor_.stayExcess().bytes);
  // Old gradients were there, too, if the program has let go of them since.
  if (executor_.done() == 0)
    end_excess_ = std::max(end_excess_, bytes_at_begin_ - *schedule.ram_budget_bytes);
}

// Memory that stayed although the plan releases it.
void Session::tellOfStayExcess(StepReport& report) {
  const StayExcess& excess = executor_.stayExcess();
  if (excess.bytes == 0) return;
  const char* const why = excess.unlocated
                              ? "they are not where the last step had them"
                              : "a NumPy array, another thread or the program itself holds them";
  noteExcess(report, excess.bytes,
             detail::message("at ", excess.where, ": ", excess.stayed_bytes,
                             " bytes that the plan releases stayed, because ", why, " (",
                             excess.first, " is the first)"));
}

// What was away and had to come back for the program, which goes on to hold it.
void Session::tellOfEndExcess(StepReport& report) {
  noteExcess(report, end_excess_,
             mode_ == Mode::kDeparted ? "before it left its plan, which knew of less beside it"
                                      : "when what was away came back at its end");
}

void Session::noteExcess(StepReport& report, int64_t bytes, std::string text) {
  if (bytes <= std::max<int64_t>(0, report.over_bytes)) return;
  counters_.steps_over_budget += report.over_bytes == 0;
  report.over_bytes = bytes;
  report.over_text = detail::message("by ", bytes, " bytes, ", text);
  counters_.most_over_bytes = std::max(counters_.most_over_bytes, bytes);
}

}  // namespace poet
