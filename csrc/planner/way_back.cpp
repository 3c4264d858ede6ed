#include "planner/way_back.h"

namespace poet::planner {

WayBack::WayBack(const Problem& problem, const std::vector<char>& in_memory, int longest)
    : problem_(problem),
      in_memory_(in_memory),
      longest_(longest),
      noted_(problem.replays.size(), 0),
      mark_(problem.replays.size(), 0) {}

int WayBack::replayFor(int v, int t) {
  const int page = problem_.values[at(v)].page, recipe = problem_.values[at(v)].recipe;
  const bool may_page = page >= 0 && problem_.runnable(page, t);
  if (recipe < 0 || !problem_.runnable(recipe, t)) return may_page ? page : -1;
  if (!may_page) return recipe;
  return pageCost(page) < cost(v, t, /*by_recipe=*/true) ? page : recipe;
}

int64_t WayBack::noteReplay(int r) {
  if (noted_[at(r)]) return 0;
  noted_[at(r)] = 1;
  return problem_.generator_bytes *
         static_cast<int64_t>(problem_.replays[at(r)].random_stages.size());
}

double WayBack::pageCost(int page) const {
  const Replay& in = problem_.replays[at(page)];
  return in.cost + (noted_[at(page)] ? 0 : in.once_cost);
}

double WayBack::cost(int v, int next, bool by_recipe) {
  double cost = 0;
  int length = 0;
  ++round_;
  todo_.assign(1, v);
  while (!todo_.empty()) {
    const int w = todo_.back();
    todo_.pop_back();
    const int page = problem_.values[at(w)].page, recipe = problem_.values[at(w)].recipe;
    const bool may_page = page >= 0 && problem_.runnable(page, next) && !(by_recipe && w == v);
    const bool may_recompute = recipe >= 0 && problem_.runnable(recipe, next);
    if (!may_page && !may_recompute) return kNever;
    // A single look ahead: the recipe alone, without what its inputs need.
    const bool pages =
        may_page && (!may_recompute || pageCost(page) < problem_.replays[at(recipe)].cost);
    const int r = pages ? page : recipe;
    if (mark_[at(r)] == round_) continue;
    mark_[at(r)] = round_;
    cost += pages ? pageCost(page) : problem_.replays[at(r)].cost;
    if (++length > longest_) return 2 * cost;
    for (const int u : problem_.replays[at(r)].inputs) {
      if (!in_memory_[at(u)]) todo_.push_back(u);
    }
  }
  return cost;
}

}  // namespace poet::planner
