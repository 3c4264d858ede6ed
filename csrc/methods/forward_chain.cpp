#include "methods/forward_chain.h"

#include <algorithm>
#include <utility>

namespace poet::methods {
namespace {

using planner::Evictable;
using planner::Problem;

class ChainFinder {
 public:
  ChainFinder(const Problem& problem, const std::vector<char>& may_leave)
      : problem_(problem), may_leave_(may_leave) {}

  std::vector<Chain> run() {
    findForward();
    findCarried();
    findLastReads();
    std::vector<Chain> chains;
    for (size_t begin = 0; begin < forward_.size();) {
      size_t end = begin + 1;
      while (end < forward_.size() && !backwardBetween(forward_[end - 1], forward_[end])) ++end;
      chains.push_back(makeChain(begin, end));
      begin = end;
    }
    return chains;
  }

 private:
  const Graph& graph() const { return problem_.graph(); }
  const Evictable& value(int v) const { return problem_.values[static_cast<size_t>(v)]; }
  bool isForward(int t) const { return is_forward_[static_cast<size_t>(t)]; }

  void findForward() {
    is_forward_.assign(problem_.stages.size(), 0);
    for (int t = 0; t < problem_.endStage(); ++t) {
      if (graph().op(OpId(t)).phase != Phase::kForward) continue;
      forward_.push_back(t);
      is_forward_[static_cast<size_t>(t)] = 1;
    }
  }

  bool backwardBetween(int first, int last) const {
    for (int t = first + 1; t < last; ++t) {
      if (graph().op(OpId(t)).phase == Phase::kBackward) return true;
    }
    return false;
  }

  // See Note [Cut vertices]. A graph that does not say which values are parameters, or holds
  // nothing else from before the step, carries nothing along.
  void findCarried() {
    const auto n = static_cast<size_t>(graph().numValues());
    std::vector<char> of_parameter(n, 0), of_data(n, 0);
    bool any_parameter = false, any_data = false;
    for (size_t i = 0; i < n; ++i) {
      const Value& value = graph().value(ValueId(static_cast<int64_t>(i)));
      if (value.producer.valid()) continue;
      of_parameter[i] = value.kind == ValueKind::kParameter;
      of_data[i] = value.kind == ValueKind::kInput || value.kind == ValueKind::kBuffer;
      any_parameter = any_parameter || of_parameter[i];
      any_data = any_data || of_data[i];
    }
    for (int64_t k = 0; k < graph().numOps(); ++k) {
      const Op& op = graph().op(OpId(k));
      bool parameter = false, data = false;
      for (const ValueId v : op.inputs) {
        parameter = parameter || of_parameter[static_cast<size_t>(v.index)];
        data = data || of_data[static_cast<size_t>(v.index)];
      }
      for (const std::span<const ValueId> changed :
           {graph().madeBy(OpId(k)), std::span(op.mutates)}) {
        for (const ValueId v : changed) {
          auto& from_parameter = of_parameter[static_cast<size_t>(v.index)];
          auto& from_data = of_data[static_cast<size_t>(v.index)];
          from_parameter = from_parameter || parameter;
          from_data = from_data || data;
        }
      }
    }
    carried_.assign(problem_.values.size(), 0);
    if (!any_parameter || !any_data) return;
    for (size_t v = 0; v < carried_.size(); ++v) {
      const auto id = static_cast<size_t>(problem_.values[v].id.index);
      carried_[v] = !of_parameter[id] || !of_data[id];
    }
  }

  // The last forward op that reads or writes each value.
  void findLastReads() {
    last_read_.assign(problem_.values.size(), -1);
    for (size_t v = 0; v < last_read_.size(); ++v) {
      for (const int t : problem_.values[v].use_stages) {
        if (isForward(t)) last_read_[v] = t;
      }
    }
  }

  // Of forward_[begin, end).
  Chain makeChain(size_t begin, size_t end) {
    std::vector<int> crossing;  // values that ops behind the position read
    Chain chain;
    Link link{.first_stage = forward_[begin]};
    std::vector<int> made;
    const auto finish = [&](int last_stage, int boundary) {
      link.last_stage = last_stage;
      link.boundary = boundary;
      for (const int v : made) {
        if (v != boundary) link.inside.push_back(v);
      }
      std::sort(link.inside.begin(), link.inside.end());
      made.clear();
      chain.push_back(std::exchange(link, {}));
    };
    for (size_t i = begin; i < end; ++i) {
      const int t = forward_[i];
      for (const int v : problem_.stages[static_cast<size_t>(t)].born) {
        if (!may_leave_[static_cast<size_t>(v)]) continue;
        made.push_back(v);
        if (!carried_[static_cast<size_t>(v)]) crossing.push_back(v);
      }
      std::erase_if(crossing, [&](int v) { return last_read_[static_cast<size_t>(v)] <= t; });
      if (crossing.size() != 1 || i + 1 == end) continue;
      const int v = crossing.front();
      const bool is_new = std::find(made.begin(), made.end(), v) != made.end();
      if (!is_new || value(v).pin_stage > t) continue;
      finish(t, v);
      link.first_stage = forward_[i + 1];
    }
    finish(forward_[end - 1], -1);
    dropCarried(chain);
    findBackward(chain);
    return chain;
  }

  // What is carried beyond its own link stays.
  void dropCarried(Chain& chain) const {
    for (Link& link : chain) {
      std::erase_if(link.inside, [&](int v) {
        return carried_[static_cast<size_t>(v)] &&
               last_read_[static_cast<size_t>(v)] > link.last_stage;
      });
    }
  }

  void findBackward(Chain& chain) const {
    const auto firstTouch = [&](int v) {
      for (const int t : value(v).use_stages) {
        if (t > chain.back().last_stage && !isForward(t)) return t;
      }
      return problem_.numStages();
    };
    int before = chain.back().last_stage + 1;  // of the link behind
    for (size_t i = chain.size(); i-- > 0;) {
      int first = problem_.numStages();
      for (const int v : chain[i].inside) first = std::min(first, firstTouch(v));
      if (i > 0) first = std::min(first, firstTouch(chain[i - 1].boundary));
      if (first < problem_.numStages()) before = std::max(first, before);
      chain[i].backward_stage = before;
    }
  }

  const Problem& problem_;
  const std::vector<char>& may_leave_;
  std::vector<int> forward_;
  std::vector<char> is_forward_, carried_;
  std::vector<int> last_read_;
};

}  // namespace

std::vector<Chain> findChains(const Problem& problem, const std::vector<char>& may_leave) {
  return ChainFinder(problem, may_leave).run();
}

Chain joinLinks(const Problem& problem, Chain chain, size_t most) {
  const auto bytesOf = [&](const Link& link) {
    int64_t bytes = 0;
    for (const int v : link.inside) bytes += problem.values[static_cast<size_t>(v)].bytes;
    return bytes;
  };
  while (chain.size() > most) {
    size_t best = 0;
    int64_t least = -1;
    for (size_t i = 0; i + 1 < chain.size(); ++i) {
      const int64_t bytes = bytesOf(chain[i]) + bytesOf(chain[i + 1]);
      if (least >= 0 && bytes >= least) continue;
      least = bytes;
      best = i;
    }
    Link& link = chain[best];
    const Link& next = chain[best + 1];
    link.inside.push_back(link.boundary);
    link.inside.insert(link.inside.end(), next.inside.begin(), next.inside.end());
    std::sort(link.inside.begin(), link.inside.end());
    link.boundary = next.boundary;
    link.last_stage = next.last_stage;
    link.backward_stage = std::min(link.backward_stage, next.backward_stage);
    chain.erase(chain.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  return chain;
}

}  // namespace poet::methods
