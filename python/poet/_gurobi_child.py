"""Solves one mixed-integer program with gurobipy; poet's solver process talks to it over stdin.

    python _gurobi_child.py              one program from the socket that stdin is
    python _gurobi_child.py --probe      what can be used, as JSON on stdout

Runs as a file, never as part of the package: importing poet would import torch. csrc/planner/
backends/gurobi.cpp is the other side and has the layout of what is sent.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from array import array
from typing import Any, BinaryIO

BEGIN = time.monotonic()
# The package's modules lie beside this file and are none of its business.
if sys.path and os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)):
    del sys.path[0]

OPTIMAL, INFEASIBLE, STOPPED, TOO_BIG, UNUSABLE, FAILED = range(6)
REQUEST = struct.Struct("=QQQdddiiii")
REPLY = struct.Struct("=iIddQd")
SIZE_LIMIT_EXCEEDED = 10010
LEAST_SECONDS = 0.01
_COLUMNS_ABOVE_THE_FREE_LICENCE = 2001


class RefusedError(Exception):
    """Why there is no result.

    Attributes:
        answer: TOO_BIG, UNUSABLE or FAILED.
    """

    def __init__(self, answer: int, text: str) -> None:
        super().__init__(text)
        self.answer = answer


def environment() -> Any:
    """A started Gurobi environment that prints nothing.

    Raises:
        RefusedError: the package or a licence is missing.
    """
    try:
        import gurobipy as gp  # noqa: PLC0415  may be missing
    except ImportError as error:
        raise RefusedError(UNUSABLE, f"the package gurobipy is missing: {error}") from error
    try:
        environment = gp.Env(empty=True)
        environment.setParam("OutputFlag", 0)
        environment.start()
    except gp.GurobiError as error:
        raise RefusedError(UNUSABLE, f"no licence: {error}") from error
    return environment


class Program:
    """A program as it arrives: the arrays of poet::planner::SparseModel, and MipOptions."""

    def __init__(self, stream: BinaryIO) -> None:
        fields = REQUEST.unpack(_read(stream, REQUEST.size))
        columns, rows, entries = fields[:3]
        self.seconds, self.relative_gap, self.absolute_gap = fields[3:6]
        self.threads = fields[6]
        self.counts_work = bool(fields[8])
        self.cost = _array(stream, "d", columns)
        self.lower = _array(stream, "d", columns)
        self.upper = _array(stream, "d", columns)
        self.integer = _array(stream, "b", columns)
        self.row_lower = _array(stream, "d", rows)
        self.row_upper = _array(stream, "d", rows)
        self.row_start = _array(stream, "i", rows + 1)
        self.index = _array(stream, "i", entries)
        self.value = _array(stream, "d", entries)
        self.start = _array(stream, "d", columns if fields[7] else 0)


Result = tuple[int, float, float, "array[float]", float]


def solve(program: Program, begin: float) -> Result:
    """Answer, objective, bound, point, and what Gurobi says that its work was.

    Seconds count from `begin`, of the monotonic clock, unless the limit is one of work.

    Raises:
        RefusedError: Gurobi would not, or failed.
    """
    env = environment()
    import gurobipy as gp  # noqa: PLC0415

    try:
        model = _model(gp, env, program)
        if program.counts_work:
            model.Params.WorkLimit = program.seconds
        else:
            spent = time.monotonic() - begin
            model.Params.TimeLimit = max(program.seconds - spent, LEAST_SECONDS)
        model.optimize()
        if model.Status == gp.GRB.INF_OR_UNBD:  # which of the two?
            model.Params.DualReductions = 0
            model.optimize()
        return (*_result(gp, model), model.Work)
    except gp.GurobiError as error:
        answer = TOO_BIG if error.errno == SIZE_LIMIT_EXCEEDED else FAILED
        raise RefusedError(answer, str(error)) from error


def _model(gp: Any, env: Any, program: Program) -> Any:
    model = gp.Model(env=env)
    model.Params.Threads = program.threads
    model.Params.MIPGap = program.relative_gap
    model.Params.MIPGapAbs = program.absolute_gap
    types = [gp.GRB.INTEGER if whole else gp.GRB.CONTINUOUS for whole in program.integer]
    columns = len(program.cost)
    added = model.addVars(
        columns,
        lb=program.lower.tolist(),
        ub=program.upper.tolist(),
        obj=program.cost.tolist(),
        vtype=types,
    )
    variables = list(added.values())
    begin = program.row_start[0]
    for row, end in enumerate(program.row_start[1:]):
        chosen = [variables[column] for column in program.index[begin:end]]
        terms = gp.LinExpr(program.value[begin:end].tolist(), chosen)
        lower, upper = program.row_lower[row], program.row_upper[row]
        if lower == upper:
            model.addLConstr(terms, "=", upper)
        else:  # addRange() would add a column, and the free licence counts them
            if upper < gp.GRB.INFINITY:
                model.addLConstr(terms, "<", upper)
            if lower > -gp.GRB.INFINITY:
                model.addLConstr(terms, ">", lower)
        begin = end
    for variable, value in zip(variables, program.start, strict=False):
        variable.Start = value
    return model


def _result(gp: Any, model: Any) -> tuple[int, float, float, array[float]]:
    if model.Status == gp.GRB.INFEASIBLE:
        return INFEASIBLE, 0.0, float("inf"), array("d")
    answer = OPTIMAL if model.Status == gp.GRB.OPTIMAL else STOPPED
    bound = model.ObjBound if model.IsMIP else model.ObjVal
    if model.SolCount == 0:
        return answer, 0.0, max(bound, -float("inf")), array("d")
    return answer, model.ObjVal, min(bound, model.ObjVal), array("d", model.getAttr("X"))


def probe() -> dict[str, Any]:
    """Whether Gurobi can be used: "version" and "limited", or "why_not"."""
    try:
        env = environment()
    except RefusedError as error:
        return {"why_not": str(error)}
    import gurobipy as gp  # noqa: PLC0415

    version = ".".join(str(number) for number in gp.gurobi.version())
    model = gp.Model(env=env)
    model.addVars(_COLUMNS_ABOVE_THE_FREE_LICENCE)
    try:
        model.optimize()
    except gp.GurobiError as error:
        return {"version": version, "limited": error.errno == SIZE_LIMIT_EXCEEDED}
    return {"version": version, "limited": False}


def serve(stream: int) -> None:
    """Answers one request on the socket `stream`."""
    with open(stream, "rb", closefd=False) as incoming:
        program = Program(incoming)
    text = b""
    try:
        answer, objective, bound, point, work = solve(program, BEGIN)
    except RefusedError as error:
        answer, objective, bound, point, work = error.answer, 0.0, 0.0, array("d"), 0.0
        text = str(error).encode()
    except Exception as error:  # whatever it is, the other side warns of it and goes on
        answer, objective, bound, point, work = FAILED, 0.0, 0.0, array("d"), 0.0
        text = f"{type(error).__name__}: {error}".encode()
    reply = REPLY.pack(answer, len(text), objective, bound, len(point), work)
    with open(stream, "wb", closefd=False) as outgoing:
        outgoing.write(reply + point.tobytes() + text)


def _read(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        sys.exit(1)  # nobody is there any more
    return data


def _array(stream: BinaryIO, code: str, count: int) -> array[Any]:
    values = array(code)
    values.frombytes(_read(stream, count * values.itemsize))
    return values


if __name__ == "__main__":
    if sys.argv[1:] == ["--probe"]:
        sys.stdout.write(json.dumps(probe()) + "\n")
    else:
        serve(0)
