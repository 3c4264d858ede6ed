"""The closed sets of names that poet takes and gives; every member is its own lower-case string."""

import sys

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:  # Python 3.10
    from enum import Enum

    class StrEnum(str, Enum):
        """What Python 3.11 calls `enum.StrEnum`: members print and format as their value."""

        __str__ = str.__str__
        __format__ = str.__format__


class Phase(StrEnum):
    """The part of a training step that an op belongs to."""

    __module__ = "poet"

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"


class ValueKind(StrEnum):
    """What a value (one storage) is to the training step."""

    __module__ = "poet"

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"


class Status(StrEnum):
    """How a solve ended."""

    __module__ = "poet"

    OPTIMAL = "optimal"
    """A plan, and a proof that none is better."""
    FEASIBLE = "feasible"
    """A plan within the budgets; `Schedule.gap` says how much better another one could be."""
    INFEASIBLE = "infeasible"
    """No plan exists within the budgets; `Schedule.least_ram_budget` says what would do."""
    TIME_LIMIT = "time_limit"
    """The time ran out before a plan was found."""


class Objective(StrEnum):
    """What a solve makes small."""

    __module__ = "poet"

    ENERGY = "energy"
    TIME = "time"
    MEMORY = "memory"


class Solver(StrEnum):
    """What solves the planner's programs."""

    __module__ = "poet"

    AUTO = "auto"
    CBC = "cbc"
    HIGHS = "highs"
    GUROBI = "gurobi"


class ActionKind(StrEnum):
    """What an action of a schedule does."""

    __module__ = "poet"

    FREE = "free"
    RECOMPUTE = "recompute"
    RETAIN = "retain"
    PAGE_OUT = "page_out"
    PAGE_IN = "page_in"


class NodeKind(StrEnum):
    """What a node of a rewritten step does."""

    __module__ = "poet"

    OP = "op"
    RECOMPUTE = "recompute"
    PAGE_OUT = "page_out"
    PAGE_IN = "page_in"
    FREE = "free"
