// Gurobi (branch and cut) in a Python process that imports gurobipy and solves one program.
//
// Note [Gurobi in a Python process]
// pip's gurobipy is how most users have Gurobi, and it exports no C interface: libgurobi is linked
// into its extension modules. A process of its own also keeps a licence that is checked out, and
// what goes wrong with it, away from the rest. It costs the start of an interpreter, 0.3 s, for
// each program. Relaxations stay with Clp, which keeps warm between rounds.
//
// What goes over the socket, in the machine's byte order: Request, the model's arrays in the order
// of sendModel(); Reply, x, text. python/poet/_gurobi_child.py is the other side.
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "planner/backends/backend.h"
#include "planner/backends/child.h"
#include "planner/backends/isolated.h"

namespace poet::planner::gurobi {
namespace {

constexpr double kStartSeconds = 0.3;  // of the process

struct Request {
  uint64_t columns = 0;
  uint64_t rows = 0;
  uint64_t entries = 0;
  double time_limit_seconds = 0;  // counted from the process's start
  double relative_gap = 0;
  double absolute_gap = 0;
  int32_t threads = 1;
  int32_t has_start = 0;
  int32_t counts_work = 0;  // the limit is one of work (clock.h, Note [Work])
  int32_t padding = 0;
};
static_assert(sizeof(Request) == 64);

// The first three are SolverStatus.
enum class Answer : int32_t { kOptimal, kInfeasible, kStopped, kTooBig, kUnusable, kFailed };

struct Reply {
  int32_t answer = 0;
  uint32_t text_bytes = 0;
  double objective = 0;
  double bound = 0;
  uint64_t columns = 0;
  double work_seconds = 0;  // Gurobi counts its work itself, in about seconds
};
static_assert(sizeof(Reply) == 40);

class Conversation {
 public:
  Conversation(const MipOptions& options, std::vector<char*> words)
      : options_(options),
        deadline_(overrunSeconds(options.time_limit_seconds)),
        child_([&](int socket) {
          dup2(socket, STDIN_FILENO);
          execvp(words.front(), words.data());
        }) {}

  std::optional<MipResult> solve(const SparseModel& model) {
    Reply reply;
    if (!sendModel(model) || !child_.receive(&reply, sizeof reply, deadline_)) {
      options_.solver.trouble->add(
          "Gurobi's process ended without a result, or ran past its time; CBC goes on.");
      return std::nullopt;
    }
    chargeWork(kStartSeconds + reply.work_seconds);
    MipResult result;
    result.x.resize(reply.columns);
    std::string text(reply.text_bytes, ' ');
    if (!receive(result.x) || !child_.receive(text.data(), text.size(), deadline_))
      return std::nullopt;
    if (!solved(static_cast<Answer>(reply.answer), text)) return std::nullopt;
    result.status = static_cast<SolverStatus>(reply.answer);
    result.objective = reply.objective;
    result.bound = reply.bound;
    return result;
  }

 private:
  template <class T>
  bool send(const std::vector<T>& values) {
    return child_.send(values.data(), values.size() * sizeof(T), deadline_);
  }
  bool receive(std::vector<double>& values) {
    return child_.receive(values.data(), values.size() * sizeof(double), deadline_);
  }

  bool sendModel(const SparseModel& model) {
    const Request request{.columns = model.cost.size(),
                          .rows = model.row_lower.size(),
                          .entries = model.index.size(),
                          .time_limit_seconds = options_.time_limit_seconds,
                          .relative_gap = options_.relative_gap,
                          .absolute_gap = options_.absolute_gap,
                          .threads = options_.threads,
                          .has_start = options_.start.empty() ? 0 : 1,
                          .counts_work = WorkMeter::current() != nullptr ? 1 : 0};
    return child_.send(&request, sizeof request, deadline_) && send(model.cost) &&
           send(model.lower) && send(model.upper) && send(model.integer) && send(model.row_lower) &&
           send(model.row_upper) && send(model.row_start) && send(model.index) &&
           send(model.value) && send(options_.start);
  }

  bool solved(Answer answer, const std::string& text) const {
    switch (answer) {
      case Answer::kOptimal:
      case Answer::kInfeasible:
      case Answer::kStopped:
        return true;
      case Answer::kTooBig:
        options_.solver.trouble->add("A program is above the size limit of Gurobi's licence (" +
                                     text + "); CBC solves those.");
        return false;
      case Answer::kUnusable:
        options_.solver.trouble->giveUp(SolverKind::kGurobi,
                                        "Gurobi cannot be used (" + text + "); CBC goes on.");
        return false;
      case Answer::kFailed:
        options_.solver.trouble->add("Gurobi failed (" + text + "); CBC goes on.");
        return false;
    }
    return false;
  }

  const MipOptions& options_;
  const WallDeadline deadline_;
  Child child_;
};

}  // namespace

std::optional<MipResult> solveMip(const SparseModel& model, const MipOptions& options) {
  const SolverChoice& solver = options.solver;
  if (solver.gurobi_command.empty() || solver.trouble->gaveUp(SolverKind::kGurobi))
    return std::nullopt;
  std::vector<std::string> words = solver.gurobi_command;
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return Conversation(options, pointers).solve(model);
}

}  // namespace poet::planner::gurobi
