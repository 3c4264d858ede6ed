#include "planner/backends/isolated.h"

#include <cstdint>
#include <vector>

#include "planner/backends/child.h"
#include "planner/clock.h"

namespace poet::planner {
namespace {

struct MipHeader {
  int64_t status = 0;       // as wide as the rest: no byte of the message is left unwritten
  double work_seconds = 0;  // that the child was charged
  double objective = 0;
  double bound = 0;
  uint64_t columns = 0;
};

struct LpHeader {
  int64_t status = 0;
  double work_seconds = 0;  // likewise
  double objective = 0;
  uint64_t columns = 0;
  uint64_t rows = 0;  // multipliers
};

// What the parent of an LpSolver asks for: a solve, or rows that follow.
struct LpRequest {
  double time_limit_seconds = 0;
  uint64_t rows = 0;  // 0: solve
  uint64_t entries = 0;
};

double workSoFar() {
  const WorkMeter* meter = WorkMeter::current();
  return meter != nullptr ? meter->seconds() : 0;
}

template <class T>
size_t sizeOf(const std::vector<T>& values) {
  return values.size() * sizeof(T);
}

// ---- in the child ----

void sendResult(int socket, const LpResult& result, double work_seconds) {
  const LpHeader header{.status = static_cast<int64_t>(result.status),
                        .work_seconds = work_seconds,
                        .objective = result.objective,
                        .columns = result.x.size(),
                        .rows = result.duals.size()};
  writeAll(socket, &header, sizeof header);
  writeAll(socket, result.x.data(), sizeOf(result.x));
  writeAll(socket, result.reduced.data(), sizeOf(result.reduced));
  writeAll(socket, result.duals.data(), sizeOf(result.duals));
}

// The rows alone, as a model that has no columns: what LpSolver::addRows reads of one.
bool readRows(int socket, const LpRequest& request, SparseModel& model) {
  model.row_lower.resize(request.rows);
  model.row_upper.resize(request.rows);
  model.row_start.resize(request.rows + 1);
  model.index.resize(request.entries);
  model.value.resize(request.entries);
  return readAll(socket, model.row_lower.data(), sizeOf(model.row_lower)) &&
         readAll(socket, model.row_upper.data(), sizeOf(model.row_upper)) &&
         readAll(socket, model.row_start.data(), sizeOf(model.row_start)) &&
         readAll(socket, model.index.data(), sizeOf(model.index)) &&
         readAll(socket, model.value.data(), sizeOf(model.value));
}

void serve(int socket, LpSolver& lp) {
  LpRequest request;
  while (readAll(socket, &request, sizeof request)) {
    if (request.rows == 0) {
      const double before = workSoFar();
      const LpResult result = lp.solve(request.time_limit_seconds);
      sendResult(socket, result, workSoFar() - before);
      continue;
    }
    SparseModel rows;
    if (!readRows(socket, request, rows)) return;
    lp.addRows(rows, 0);
  }
}

// ---- in the parent ----

class ChildLp : public IsolatedLp {
 public:
  explicit ChildLp(const std::function<std::unique_ptr<LpSolver>()>& make)
      : child_([&](int socket) {
          if (const auto lp = make()) serve(socket, *lp);
        }) {}

  bool running() const override { return child_.running(); }

  LpResult solve(double time_limit_seconds) override {
    const WallDeadline deadline(overrunSeconds(time_limit_seconds));
    const LpRequest request{.time_limit_seconds = time_limit_seconds};
    LpHeader header;
    if (!child_.send(&request, sizeof request, deadline) ||
        !child_.receive(&header, sizeof header, deadline)) {
      return {};
    }
    LpResult result;
    result.x.resize(header.columns);
    result.reduced.resize(header.columns);
    result.duals.resize(header.rows);
    if (!child_.receive(result.x.data(), sizeOf(result.x), deadline) ||
        !child_.receive(result.reduced.data(), sizeOf(result.reduced), deadline) ||
        !child_.receive(result.duals.data(), sizeOf(result.duals), deadline)) {
      return {};
    }
    result.status = static_cast<SolverStatus>(header.status);
    result.objective = header.objective;
    chargeWork(header.work_seconds);
    return result;
  }

  void addRows(const SparseModel& model, int first_row) override {
    if (first_row >= model.numRows()) return;
    const auto first = static_cast<size_t>(first_row);
    const int begin = model.row_start[first];
    std::vector<int> start(model.row_start.begin() + first_row, model.row_start.end());
    for (int& s : start) s -= begin;
    const LpRequest request{.rows = model.row_lower.size() - first,
                            .entries = model.index.size() - static_cast<size_t>(begin)};
    const WallDeadline deadline(kSendSeconds);
    const auto send = [&](const void* data, size_t size) {
      return child_.send(data, size, deadline);
    };
    // Where one of them fails, so will the next solve.
    (void)(send(&request, sizeof request) &&
           send(model.row_lower.data() + first, request.rows * sizeof(double)) &&
           send(model.row_upper.data() + first, request.rows * sizeof(double)) &&
           send(start.data(), sizeOf(start)) &&
           send(model.index.data() + begin, request.entries * sizeof(int)) &&
           send(model.value.data() + begin, request.entries * sizeof(double)));
  }

 private:
  static constexpr double kSendSeconds = 10;  // a child that takes in no rows for so long hangs

  Child child_;
};

}  // namespace

double overrunSeconds(double time_limit_seconds) {
  return WorkMeter::current() != nullptr ? watchdogSeconds(time_limit_seconds)
                                         : time_limit_seconds + kOverrunSeconds;
}

std::optional<MipResult> solveInChild(double time_limit_seconds,
                                      const std::function<MipResult()>& solve) {
  const WallDeadline deadline(overrunSeconds(time_limit_seconds));
  Child child([&](int socket) {
    const double before = workSoFar();
    const MipResult result = solve();
    const MipHeader header{.status = static_cast<int64_t>(result.status),
                           .work_seconds = workSoFar() - before,
                           .objective = result.objective,
                           .bound = result.bound,
                           .columns = result.x.size()};
    writeAll(socket, &header, sizeof header);
    writeAll(socket, result.x.data(), sizeOf(result.x));
  });
  MipHeader header;
  if (!child.receive(&header, sizeof header, deadline)) return std::nullopt;
  MipResult result;
  result.status = static_cast<SolverStatus>(header.status);
  result.objective = header.objective;
  result.bound = header.bound;
  result.x.resize(header.columns);
  if (!child.receive(result.x.data(), sizeOf(result.x), deadline)) return std::nullopt;
  chargeWork(header.work_seconds);
  return result;
}

std::unique_ptr<IsolatedLp> lpInChild(const std::function<std::unique_ptr<LpSolver>()>& make) {
  return std::make_unique<ChildLp>(make);
}

}  // namespace poet::planner
