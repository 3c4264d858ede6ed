// poet-solver: plans one graph. See --help.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>

#include "graph/error.h"
#include "methods/method.h"
#include "methods/moccasin.h"
#include "planner/planner.h"
#include "planner/worker/worker.h"
#include "schedule/simulator.h"

namespace {

constexpr const char* kHelp =
    "poet-solver --graph FILE --ram-budget BYTES [options]\n"
    "Plans the graph in FILE and prints what was found.\n"
    "poet-solver --methods: the methods that can plan.\n"
    "poet-solver --solvers [FILE]: the solvers that can be used, HiGHS from the library FILE.\n"
    "  --ram-budget BYTES     bytes that may be resident at once\n"
    "  --runtime-budget SEC   deadline on the makespan, in seconds (none)\n"
    "  --minimize WHAT        energy, time or memory (energy)\n"
    "  --time-limit SEC       seconds for the search (60)\n"
    "  --deterministic yes|no whether the limit counts work instead of seconds (no)\n"
    "  --threads N            threads of the solver (1)\n"
    "  --profile FILE         the device, as JSON (the host, without a store)\n"
    "  --method NAME          poet, see --methods (poet)\n"
    "  --python PROGRAM       interpreter with ortools, for moccasin (python3)\n"
    "  --intervals C          retention intervals a value, for moccasin (2)\n"
    "  --paging yes|no        whether plans may page, where the device has a store (yes)\n"
    "  --solver NAME          auto, cbc, highs or gurobi (auto)\n"
    "  --highs-library FILE   HiGHS's shared library ($POET_HIGHS_LIBRARY, or the system's)\n"
    "  --gurobi-command WORD  starts Gurobi's child process; once for each word\n"
    "  --out FILE             saves the schedule\n";

struct Arguments {
  std::string graph, profile, out;
  poet::MoccasinOptions moccasin;
  poet::SolveOptions options;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--help" || i + 1 >= argc) {
      std::fputs(kHelp, name == "--help" ? stdout : stderr);
      std::exit(name == "--help" ? 0 : 2);
    }
    const char* value = argv[i + 1];
    if (name == "--graph")
      arguments.graph = value;
    else if (name == "--out")
      arguments.out = value;
    else if (name == "--ram-budget")
      arguments.options.ram_budget_bytes = std::atoll(value);
    else if (name == "--runtime-budget")
      arguments.options.runtime_budget_seconds = std::atof(value);
    else if (name == "--minimize")
      arguments.options.minimize = poet::objectiveFromString(value);
    else if (name == "--time-limit")
      arguments.options.time_limit_seconds = std::atof(value);
    else if (name == "--deterministic")
      arguments.options.deterministic = std::strcmp(value, "yes") == 0;
    else if (name == "--threads")
      arguments.options.threads = std::atoi(value);
    else if (name == "--method")
      arguments.options.method = value;
    else if (name == "--python")
      arguments.options.python = arguments.moccasin.python = value;
    else if (name == "--intervals")
      arguments.moccasin.retention_intervals = std::atoi(value);
    else if (name == "--profile")
      arguments.profile = value;
    else if (name == "--paging")
      arguments.options.paging = std::strcmp(value, "no") != 0;
    else if (name == "--solver")
      arguments.options.solver.kind = poet::solverKindFromString(value);
    else if (name == "--highs-library")
      arguments.options.solver.highs_library = value;
    else if (name == "--gurobi-command")
      arguments.options.solver.gurobi_command.emplace_back(value);
    else {
      std::fprintf(stderr, "poet-solver: unknown option %s\n%s", name.c_str(), kHelp);
      std::exit(2);
    }
  }
  return arguments;
}

// In a process of its own, whose time limit holds from outside. Prints every better plan and bound.
poet::Schedule solve(const poet::Graph& graph, const poet::DeviceProfile& profile,
                     const Arguments& arguments) {
  if (arguments.options.method == "moccasin")  // it has options of its own
    return poet::solveMoccasin(graph, profile, arguments.options, arguments.moccasin);
  const auto print = [](const poet::SearchPoint& found) {
    std::printf("  %.1f s", found.seconds);
    if (found.value) std::printf("  plan %.6g", *found.value);
    if (found.bound) std::printf("  bound %.6g", *found.bound);
    std::printf("\n");
    std::fflush(stdout);
  };
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  return poet::solveInWorker(graph, profile, arguments.options, self, {}, print);
}

// NAME, a tab, the version, a tab, why it cannot be used.
void listSolvers(const char* highs_library) {
  poet::SolverChoice choice;
  choice.highs_library = highs_library;
  for (const poet::SolverReport& report : poet::findSolvers(choice)) {
    std::printf("%s\t%s\t%s\n", std::string(toString(report.kind)).c_str(), report.version.c_str(),
                report.why_not.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) try {
  // poet-solver --worker SOCKET PARENT: how solveInWorker starts it.
  if (argc == 4 && std::strcmp(argv[1], "--worker") == 0) {
    return poet::planner::workerMain(std::atoi(argv[2]), static_cast<pid_t>(std::atol(argv[3])),
                                     &poet::planWith);
  }
  if (argc == 2 && std::strcmp(argv[1], "--methods") == 0) {
    for (const poet::Method& method : poet::allMethods()) {
      std::printf("%s\t%s\t%s\n", std::string(method.name).c_str(),
                  std::string(method.source).c_str(), std::string(method.summary).c_str());
    }
    return 0;
  }
  // poet-solver --solvers [LIBRARY]: a line for each back end.
  if (argc >= 2 && std::strcmp(argv[1], "--solvers") == 0) {
    listSolvers(argc > 2 ? argv[2] : "");
    return 0;
  }
  const Arguments arguments = parse(argc, argv);
  const poet::Graph graph = poet::Graph::load(arguments.graph);
  const poet::DeviceProfile profile = arguments.profile.empty()
                                          ? poet::hostProfile()
                                          : poet::DeviceProfile::load(arguments.profile);
  const double plain = graph.plainSeconds();
  const poet::Schedule s = solve(graph, profile, arguments);
  std::printf("%s  peak %lld B  +%.3f %%  gap %.3f %% (%s)  %.1f s  %s\n",
              std::string(toString(s.status)).c_str(), static_cast<long long>(s.peak_bytes),
              s.hasPlan() ? 100 * (s.makespan_seconds / plain - 1) : 0.0, 100 * s.gap.value_or(1),
              s.bound_scope.c_str(), s.solve_seconds, s.message.c_str());
  if (s.least_ram_budget)
    std::printf("least budget %lld B\n", static_cast<long long>(*s.least_ram_budget));
  for (const std::string& text : arguments.options.solver.trouble->texts())
    std::printf("%s\n", text.c_str());
  if (!arguments.out.empty()) s.save(arguments.out);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "poet-solver: %s\n", error.what());
  return 1;
}
