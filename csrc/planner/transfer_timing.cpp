#include "planner/transfer_timing.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace poet::planner {
namespace {

// Factors by which transfers are stretched when their latest starts are found.
constexpr double kStretches[] = {1, 2, 1e6};  // the last: as early as memory allows
constexpr size_t kLookAhead = 16;  // page_ins that wait for memory while later ones are tried
constexpr double kLeastGainOfTiming = 1e-12;  // relative

struct Walked {
  std::vector<std::vector<Action>> before, after;
  double makespan_seconds = 0;
  int64_t peak_bytes = 0;
};

// Where a page_in stands, and from when on it may begin.
struct Wanted {
  int event = 0;
  int64_t bytes = 0;
  double seconds = 0;
  double start_seconds = 0;  // of computation before its event
  int64_t not_before = 0;    // ops that must have run
  int blocked_until = 0;     // its bytes do not fit before this event
  bool begun = false;
};

class Walk {
 public:
  Walk(const Graph& graph, const DeviceProfile& profile, const Schedule& schedule,
       const EventList& list, int64_t budget_bytes)
      : graph_(graph),
        profile_(profile),
        schedule_(schedule),
        list_(list),
        budget_(budget_bytes),
        values_(static_cast<size_t>(graph_.numValues())),
        resident_(list.start_bytes) {}

  // No stretch: everything stays where it is.
  Walked run(std::optional<double> stretch) {
    const auto n = static_cast<size_t>(graph_.numOps());
    walked_.before.resize(n + 1);
    walked_.after.resize(n);
    channels_.assign(countChannels(), 0);
    moves_ = stretch.has_value();
    if (moves_) {
      findNeeds();
      findStarts(*stretch);
    }
    for (int x = 0; x < static_cast<int>(list_.events.size()); ++x) {
      const Event& event = list_.events[static_cast<size_t>(x)];
      if (moves_) prepare(event, x);
      happen(event, x);
      computed_ += event.seconds;
    }
    while (!pending_.empty()) release(pending_.begin(), static_cast<int64_t>(n));
    for (const double moment : channels_) waitFor(moment);
    walked_.makespan_seconds = now_;
    return std::move(walked_);
  }

 private:
  struct State {
    double in_at = 0, out_at = 0;  // when its last transfers are done
    bool pending = false;          // its free has been put off
    bool begun = false;            // its next page_in has begun early
  };
  struct Pending {
    ValueId v;
    int limit;
  };

  State& state(ValueId v) { return values_[static_cast<size_t>(v.index)]; }
  int64_t bytesOf(ValueId v) const { return graph_.value(v).bytes; }

  size_t countChannels() const {
    int64_t transfers = 0;
    for (const Event& event : list_.events)
      transfers += event.is(ActionKind::kPageIn) || event.is(ActionKind::kPageOut);
    return static_cast<size_t>(std::min<int64_t>(profile_.dma_channels, transfers));
  }

  // ---- before the walk ------------------------------------------------------------------------

  // Bytes at each event, and the page_ins in the order of their use.
  void findNeeds() {
    int64_t resident = list_.start_bytes;
    double computed = 0;
    needs_.reserve(list_.events.size());
    for (int x = 0; x < static_cast<int>(list_.events.size()); ++x) {
      const Event& event = list_.events[static_cast<size_t>(x)];
      needs_.push_back(resident + event.need_bytes);
      resident += event.grow_bytes;
      if (event.is(ActionKind::kPageIn)) {
        const ValueId v(event.arg);
        const int64_t shown = graph_.lastShown(v).index;
        wanted_.push_back({.event = x,
                           .bytes = bytesOf(v),
                           .seconds = profile_.pageInSeconds(bytesOf(v)),
                           .start_seconds = computed,
                           .not_before = event.opsRun() > shown ? shown + 1 : 0,
                           .blocked_until = event.limit + 1});
      }
      computed += event.seconds;
    }
  }

  void findStarts(double stretch) {
    double next = std::numeric_limits<double>::infinity();
    for (size_t j = wanted_.size(); j-- > 0;) {
      next = std::min(wanted_[j].start_seconds, next) -
             stretch * wanted_[j].seconds / static_cast<double>(channels_.size());
      wanted_[j].start_seconds = next;
    }
  }

  // ---- the walk -------------------------------------------------------------------------------

  void prepare(const Event& event, int x) {
    for (auto it = pending_.begin(); it != pending_.end();) {
      const bool due = it->limit <= x || (!event.after && state(it->v).out_at <= now_);
      it = due ? release(it, event.place, event.after) : std::next(it);
    }
    if (!event.after) beginEarly(event, x);
  }

  void beginEarly(const Event& event, int x) {
    while (first_wanted_ < wanted_.size() &&
           (wanted_[first_wanted_].begun || wanted_[first_wanted_].event <= x))
      ++first_wanted_;
    const size_t last = std::min(wanted_.size(), first_wanted_ + kLookAhead);
    for (size_t j = first_wanted_; j < last; ++j) {
      Wanted& in = wanted_[j];
      const double end = now_ + event.seconds;
      if (in.start_seconds > computed_ + event.seconds || channel() > end) return;
      const ValueId v(list_.events[static_cast<size_t>(in.event)].arg);
      if (in.begun || in.blocked_until > x || event.place < in.not_before) continue;
      if (in.event <= x || state(v).pending || state(v).out_at > now_) continue;
      if (fits(in, x)) begin(in, v, event.place, x);
    }
  }

  // At every event from x to its place; nobody else's free may have to be hurried for it.
  bool fits(Wanted& in, int x) {
    for (int y = in.event - 1; y >= x; --y) {
      const int64_t pending = y == x ? pending_bytes_ : 0;
      if (needs_[static_cast<size_t>(y)] + pending + in.bytes <= budget_) continue;
      in.blocked_until = y + 1;
      return false;
    }
    return true;
  }

  void begin(Wanted& in, ValueId v, int64_t place, int x) {
    for (int y = x; y < in.event; ++y) needs_[static_cast<size_t>(y)] += in.bytes;
    in.begun = true;
    state(v).begun = true;
    resident_ += in.bytes;
    count(0);
    state(v).in_at = transfer(in.seconds);
    emit({ActionKind::kPageIn, static_cast<int32_t>(v.index)}, place, false);
  }

  void happen(const Event& event, int x) {
    const ValueId v(event.arg);
    if (event.is(ActionKind::kPageIn) && state(v).begun) {
      state(v).begun = false;
      return;
    }
    if (event.is(ActionKind::kFree) && moves_ && state(v).out_at > now_ && event.limit > x + 1) {
      pending_.push_back({v, event.limit});
      pending_bytes_ += bytesOf(v);
      state(v).pending = true;
      return;
    }
    while (moves_ && event.need_bytes > 0 && !pending_.empty() &&
           resident_ + event.need_bytes > budget_)
      release(firstDone(), event.place, event.after);
    switch (event.kind) {
      case Event::kOp:
        return run(event);
      case Event::kDeaths:
        return die(event);
      default:
        act(event, v);
    }
  }

  void run(const Event& event) {
    const OpId op(event.arg);
    for (const ValueId v : graph_.dataInputs(op)) waitFor(state(v).in_at);
    count(event.need_bytes);
    resident_ += event.grow_bytes;
    for (const ValueId v : graph_.op(op).mutates) waitFor(state(v).out_at);
    now_ += event.seconds;
  }

  void die(const Event& event) {
    for (int i = event.first_dying; i < event.last_dying; ++i) {
      const ValueId v = list_.dying[static_cast<size_t>(i)];
      waitFor(std::max(state(v).in_at, state(v).out_at));
    }
    resident_ += event.grow_bytes;
  }

  void act(const Event& event, ValueId v) {
    if (event.is(ActionKind::kFree)) {
      waitFor(std::max(state(v).in_at, state(v).out_at));
    } else if (event.is(ActionKind::kPageOut)) {
      waitFor(state(v).in_at);
      count(0);
      state(v).out_at = transfer(profile_.pageOutSeconds(bytesOf(v)));
    } else if (event.is(ActionKind::kPageIn)) {
      waitFor(state(v).out_at);
      count(event.need_bytes);
      state(v).in_at = transfer(profile_.pageInSeconds(bytesOf(v)));
    } else if (event.is(ActionKind::kRecompute)) {
      count(event.need_bytes);
      recompute(schedule_.recipes[static_cast<size_t>(event.arg)]);
    }
    resident_ += event.grow_bytes;
    emit({static_cast<ActionKind>(event.kind), event.arg}, event.place, event.after);
  }

  // An op of the chain waits for what it reads, but for what the chain makes itself.
  void recompute(const std::vector<OpId>& chain) {
    for (const OpId op : chain) {
      const auto& statistics = graph_.op(op).statistics;
      for (const ValueId v : graph_.dataInputs(op)) {
        if (graph_.value(v).producer == chain.front()) continue;
        if (!std::binary_search(statistics.begin(), statistics.end(), v)) waitFor(state(v).in_at);
      }
      now_ += profile_.replaySeconds(graph_.op(op));
    }
  }

  // ---- frees that have been put off -----------------------------------------------------------

  std::vector<Pending>::iterator firstDone() {
    return std::min_element(
        pending_.begin(), pending_.end(),
        [&](const Pending& a, const Pending& b) { return state(a.v).out_at < state(b.v).out_at; });
  }

  std::vector<Pending>::iterator release(std::vector<Pending>::iterator it, int64_t place,
                                         bool after = false) {
    const ValueId v = it->v;
    waitFor(std::max(state(v).in_at, state(v).out_at));
    state(v).pending = false;
    pending_bytes_ -= bytesOf(v);
    resident_ -= bytesOf(v);
    emit({ActionKind::kFree, static_cast<int32_t>(v.index)}, place, after);
    return pending_.erase(it);
  }

  // ---- clock and memory -----------------------------------------------------------------------

  void waitFor(double moment) { now_ = std::max(now_, moment); }
  double channel() const { return *std::min_element(channels_.begin(), channels_.end()); }
  double transfer(double seconds) {
    double& channel = *std::min_element(channels_.begin(), channels_.end());
    channel = std::max(channel, now_) + seconds;
    return channel;
  }
  void count(int64_t bytes) {
    walked_.peak_bytes = std::max(walked_.peak_bytes, resident_ + bytes);
  }
  void emit(const Action& action, int64_t place, bool after) {
    auto& lists = after ? walked_.after : walked_.before;
    lists[static_cast<size_t>(place)].push_back(action);
  }

  const Graph& graph_;
  const DeviceProfile& profile_;
  const Schedule& schedule_;
  const EventList& list_;
  const int64_t budget_;
  bool moves_ = false;
  std::vector<State> values_;
  std::vector<double> channels_;
  std::vector<int64_t> needs_;  // by event, with the page_ins that have begun before it
  std::vector<Wanted> wanted_;
  size_t first_wanted_ = 0;
  std::vector<Pending> pending_;  // frees, in the order of their places
  int64_t pending_bytes_ = 0;
  int64_t resident_ = 0;
  double now_ = 0;
  double computed_ = 0;  // seconds of the events so far, without waiting
  Walked walked_;
};

}  // namespace

void TransferTiming::improve(int64_t budget_bytes, Schedule& schedule, bool moves) const {
  if (schedule.countActions(ActionKind::kPageIn) + schedule.countActions(ActionKind::kPageOut) == 0)
    return;
  EventList list = eventsOf(facts_, profile_, schedule);
  const auto walk = [&](std::optional<double> stretch) {
    return Walk(facts_.graph, profile_, schedule, list, budget_bytes).run(stretch);
  };
  Walked best = walk(std::nullopt);
  orderPageOuts(list);
  for (const double stretch : kStretches) {
    if (!moves) break;
    Walked next = walk(stretch);
    if (next.peak_bytes > budget_bytes ||
        next.makespan_seconds >= best.makespan_seconds * (1 - kLeastGainOfTiming))
      continue;
    best = std::move(next);
  }
  schedule.before = std::move(best.before);
  schedule.after = std::move(best.after);
  schedule.believed_seconds = best.makespan_seconds;
  schedule.believed_peak_bytes = best.peak_bytes;
}

}  // namespace poet::planner
