#include "planner/event_list.h"

#include <algorithm>
#include <utility>

namespace poet::planner {
namespace {

class Builder {
 public:
  Builder(const GraphFacts& facts, const DeviceProfile& profile, const Schedule& schedule)
      : facts_(facts),
        graph_(facts.graph),
        profile_(profile),
        schedule_(schedule),
        values_(static_cast<size_t>(facts.graph.numValues())) {}

  EventList run() {
    listEvents();
    findLimits();
    countBytes();
    return std::move(list_);
  }

 private:
  struct State {
    bool resident = false;
    bool retained = false;
    int left_at = -1;  // event by which it last left
  };

  const std::vector<OpId>& chainOf(const Event& event) const {
    return schedule_.recipes[static_cast<size_t>(event.arg)];
  }
  State& state(ValueId v) { return values_[static_cast<size_t>(v.index)]; }

  void listEvents() {
    for (int64_t k = 0; k <= graph_.numOps(); ++k) {
      listActions(schedule_.before, k, false);
      if (k == graph_.numOps()) break;
      const auto arg = static_cast<int32_t>(k);
      list_.events.push_back(
          {.arg = arg, .place = k, .seconds = profile_.firstSeconds(graph_.op(OpId(k)))});
      listActions(schedule_.after, k, true);
      if (!facts_.dying_after[static_cast<size_t>(k)].empty())
        list_.events.push_back({.kind = Event::kDeaths, .arg = arg, .place = k, .after = true});
    }
  }

  void listActions(const std::vector<std::vector<Action>>& lists, int64_t k, bool after) {
    if (lists.empty()) return;
    for (const Action& action : lists[static_cast<size_t>(k)]) {
      Event event{
          .kind = static_cast<int>(action.kind), .arg = action.arg, .place = k, .after = after};
      if (action.kind == ActionKind::kRecompute) {
        for (const OpId op : chainOf(event)) event.seconds += profile_.replaySeconds(graph_.op(op));
      }
      list_.events.push_back(event);
    }
  }

  // A freed value must be gone when it dies, comes back or is written to.
  void findLimits() {
    const int none = static_cast<int>(list_.events.size());
    std::vector<int> next(values_.size(), none), freed(values_.size(), none);
    const auto in = [](std::vector<int>& places, ValueId v) -> int& {
      return places[static_cast<size_t>(v.index)];
    };
    for (int x = none - 1; x >= 0; --x) {
      Event& event = list_.events[static_cast<size_t>(x)];
      if (event.kind == Event::kOp || event.kind == Event::kDeaths) {
        for (const ValueId v : graph_.op(OpId(event.arg)).mutates) in(next, v) = x;
        for (const ValueId v : facts_.dying_after[static_cast<size_t>(event.arg)]) in(next, v) = x;
      } else if (event.is(ActionKind::kRecompute)) {
        for (const ValueId v : graph_.madeBy(chainOf(event).front())) in(next, v) = x;
      } else if (event.is(ActionKind::kPageIn)) {
        in(next, ValueId(event.arg)) = x;
      } else if (event.is(ActionKind::kFree)) {
        event.limit = in(next, ValueId(event.arg));
        in(freed, ValueId(event.arg)) = x;
      } else if (event.is(ActionKind::kPageOut)) {
        event.limit = in(freed, ValueId(event.arg));
      }
    }
  }

  void countBytes() {
    const std::vector<char> keeps_generator = findGenerators();
    list_.start_bytes = graph_.baseBytes();
    for (int64_t i = 0; i < graph_.numValues(); ++i) {
      const Value& value = graph_.value(ValueId(i));
      if (value.producer.valid() || !value.death.valid()) continue;
      state(ValueId(i)).resident = true;
      list_.start_bytes += value.bytes;
    }
    for (const ValueId v : schedule_.away_between_steps) {
      state(v).resident = false;
      list_.start_bytes -= graph_.value(v).bytes;
    }
    for (size_t x = 0; x < list_.events.size(); ++x) {
      Event& event = list_.events[x];
      if (event.kind == Event::kOp) {
        const bool keeps = keeps_generator[static_cast<size_t>(event.arg)] != 0;
        runFirst(event, keeps ? profile_.generator_state_bytes : 0);
      } else if (event.kind == Event::kDeaths) {
        letDie(event, static_cast<int>(x));
      } else {
        act(event, static_cast<int>(x));
      }
    }
  }

  std::vector<char> findGenerators() const {
    std::vector<char> keeps(static_cast<size_t>(graph_.numOps()), 0);
    for (const Event& event : list_.events) {
      if (!event.is(ActionKind::kRecompute)) continue;
      for (const OpId op : chainOf(event)) {
        keeps[static_cast<size_t>(op.index)] = graph_.op(op).random ? 1 : 0;
      }
    }
    return keeps;
  }

  void runFirst(Event& event, int64_t generator_bytes) {
    const OpId op(event.arg);
    event.grow_bytes = facts_.made_bytes[static_cast<size_t>(op.index)] + generator_bytes;
    event.need_bytes = event.grow_bytes + graph_.op(op).workspace_bytes;
    for (const ValueId v : graph_.madeBy(op)) state(v).resident = true;
  }

  void letDie(Event& event, int x) {
    event.first_dying = static_cast<int>(list_.dying.size());
    for (const ValueId v : facts_.dying_after[static_cast<size_t>(event.arg)]) {
      if (!state(v).resident || state(v).retained) continue;
      list_.dying.push_back(v);
      leave(v, event, x);
    }
    event.last_dying = static_cast<int>(list_.dying.size());
  }

  void act(Event& event, int x) {
    const ValueId v(event.arg);
    if (event.is(ActionKind::kFree)) {
      leave(v, event, x);
    } else if (event.is(ActionKind::kRetain)) {
      state(v).retained = true;
    } else if (event.is(ActionKind::kPageIn)) {
      event.limit = state(v).left_at;
      comeBack(v, event);
      event.need_bytes = event.grow_bytes;
    } else if (event.is(ActionKind::kRecompute)) {
      const auto& chain = chainOf(event);
      for (const OpId op : chain)
        event.need_bytes = std::max(event.need_bytes, graph_.op(op).workspace_bytes);
      event.need_bytes += facts_.made_bytes[static_cast<size_t>(chain.front().index)];
      for (const ValueId made : graph_.madeBy(chain.front())) {
        if (!state(made).resident) comeBack(made, event);
      }
    }
  }

  void comeBack(ValueId v, Event& event) {
    state(v).resident = true;
    state(v).retained = event.opsRun() > graph_.lastShown(v).index;
    event.grow_bytes += graph_.value(v).bytes;
  }

  void leave(ValueId v, Event& event, int x) {
    state(v) = {.left_at = x};
    event.grow_bytes -= graph_.value(v).bytes;
  }

  const GraphFacts& facts_;
  const Graph& graph_;
  const DeviceProfile& profile_;
  const Schedule& schedule_;
  std::vector<State> values_;
  EventList list_;
};

}  // namespace

GraphFacts::GraphFacts(const Graph& of)
    : graph(of),
      dying_after(static_cast<size_t>(of.numOps())),
      made_bytes(static_cast<size_t>(of.numOps()), 0) {
  for (int64_t i = 0; i < of.numValues(); ++i) {
    const Value& value = of.value(ValueId(i));
    if (value.death.valid() && value.death < of.endOfStep())
      dying_after[static_cast<size_t>(value.death.index)].emplace_back(i);
    if (value.producer.valid())
      made_bytes[static_cast<size_t>(value.producer.index)] += value.bytes;
  }
}

EventList eventsOf(const GraphFacts& facts, const DeviceProfile& profile,
                   const Schedule& schedule) {
  return Builder(facts, profile, schedule).run();
}

void orderPageOuts(EventList& list) {
  auto& events = list.events;
  for (auto first = events.begin(); first != events.end(); ++first) {
    if (!first->is(ActionKind::kPageOut)) continue;
    const auto last = std::find_if(first, events.end(), [&](const Event& event) {
      return !event.is(ActionKind::kPageOut) || event.place != first->place ||
             event.after != first->after;
    });
    std::stable_sort(first, last, [](const Event& a, const Event& b) { return a.limit < b.limit; });
    first = std::prev(last);
  }
}

}  // namespace poet::planner
