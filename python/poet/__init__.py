"""poet: trains a PyTorch model inside a memory budget, at the least energy, with the same bits."""

from poet import _native  # first: says clearly why poet cannot be loaded where it cannot
from poet._C import DeviceProfile, Graph, Op, RewrittenGraph, Schedule, Value
from poet._compare import Comparison, ComparisonRow, compare
from poet._compare_live import Measurement
from poet._devices import device_names
from poet._enums import ActionKind, NodeKind, Objective, Phase, Solver, Status, ValueKind
from poet._errors import (
    ArgumentError,
    BudgetError,
    BudgetWarning,
    CacheWarning,
    FormatError,
    NotBuiltError,
    PoetError,
    PoetRuntimeError,
    ScheduleError,
    SolverWarning,
    StoreError,
    StoreWarning,
)
from poet._live import StepTypeError
from poet._loading import know_what_is_loaded as _know_what_is_loaded
from poet._methods import Method, MethodTable, methods
from poet._original import OriginalSolution
from poet._pareto import pareto
from poet._plot import plot_pareto
from poet._presets import preset_names
from poet._profile import HostProfile, profile
from poet._raw_doors import keep
from poet._results import Action, Node, SearchPoint, Simulation
from poet._shared_budget import Budget
from poet._simulate import simulate
from poet._solve import solve
from poet._stats import StepStats
from poet._threads import hear_new_threads as _hear_new_threads
from poet._trace import trace
from poet._wrap import wrap
from poet._wrapped_step import WrappedStep

__version__ = _native.version

_hear_new_threads()
_know_what_is_loaded()

__all__ = [
    "Action",
    "ActionKind",
    "ArgumentError",
    "Budget",
    "BudgetError",
    "BudgetWarning",
    "CacheWarning",
    "Comparison",
    "ComparisonRow",
    "DeviceProfile",
    "FormatError",
    "Graph",
    "HostProfile",
    "Measurement",
    "Method",
    "MethodTable",
    "Node",
    "NodeKind",
    "NotBuiltError",
    "Objective",
    "Op",
    "OriginalSolution",
    "Phase",
    "PoetError",
    "PoetRuntimeError",
    "RewrittenGraph",
    "Schedule",
    "ScheduleError",
    "SearchPoint",
    "Simulation",
    "Solver",
    "SolverWarning",
    "Status",
    "StepStats",
    "StepTypeError",
    "StoreError",
    "StoreWarning",
    "Value",
    "ValueKind",
    "WrappedStep",
    "__version__",
    "compare",
    "device_names",
    "keep",
    "methods",
    "pareto",
    "plot_pareto",
    "preset_names",
    "profile",
    "simulate",
    "solve",
    "trace",
    "wrap",
]
