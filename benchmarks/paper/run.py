"""What `make paper` does: everything that is missing is measured, then all of it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from _data import FIGURES, build
from paper import cells, chains, sizes
from paper.cells import Cell
from paper.store import Key, Progress, Row, Store

BOUND, CHAINS = "paper_cells_beaten", "paper_chains_beaten"  # of bounds.toml
PAGE = Path(__file__).resolve().parents[2] / "docs" / "paper.md"
# A plan that costs less by no more than this is as good: digits of the file.
_TIE = 1e-8


def measure_all(path: Path, seconds: float, *, quick: bool = False) -> None:
    """Measures what the file does not hold yet, and drops what is asked for no more."""
    store = Store(path, build())
    asked: list[tuple[str, Key]] = []
    wanted = plan_cells(quick)
    pofo = cells.pofo_cells(quick)
    one_chain = [{"layers": 8, "units": units, "method": "poet"} for units in (3, 4)]
    chain_keys = one_chain if quick else chains.keys()
    live_keys = [] if quick else chains.live_keys()
    preset_keys = sizes.keys(quick)
    progress = Progress(
        len(wanted) + 3 * len(pofo) + len(chain_keys) + len(live_keys) + len(preset_keys)
    )

    def row_of(kind: str, key: Key, work: Callable[[], Row], line: Callable[[Row], str]) -> Row:
        asked.append((kind, key))
        row = store.measured(kind, key, work)
        progress.tell(line(row))
        return row

    def plan_of(cell: Cell) -> Row:
        return row_of(cells.KIND, cell.key, lambda: cells.measure(cell, seconds, store), cells.line)

    for cell in wanted:
        plan_of(cell)
    for cell in pofo:
        for other in cells.beside_pofo(plan_of(cell)) or ():
            plan_of(other)
    for key in chain_keys:
        row_of(chains.KIND, key, lambda key=key: chains.measure(**key, seconds=seconds), _line)  # type: ignore[misc]
    for key in live_keys:
        row_of(chains.LIVE, key, lambda key=key: chains.measure_live(**key, seconds=seconds), _line)  # type: ignore[misc]
    for key in preset_keys:
        row_of(sizes.KIND, key, lambda key=key: sizes.measure(**key, seconds=2 * seconds), _line)  # type: ignore[misc]
    if not quick:
        store.keep_only(asked)


def plan_cells(quick: bool = False) -> list[Cell]:
    """All plans but those of Table 3, each once; poet's tight ones first, as starts of others."""
    found = [cells.figure2(), *cells.figure3(quick), *cells.figure4(quick), *cells.figure5(quick)]
    order = [*list(cells.OWN)[1:], cells.TOGETHER]

    def tightness(cell: Cell) -> tuple[int, float, int]:
        own = order.index(cell.method) if cell.method in order else len(order)
        return cell.ram, cell.runtime or float("inf"), own

    return sorted(dict.fromkeys(found), key=tightness)


def values(path: Path) -> dict[str, int]:
    """The bounds' values: in how many cells another method has a better plan than poet."""
    store = Store(path, None)
    return {BOUND: len(beaten(store)), CHAINS: len(chains.beaten(store.of_kind(chains.KIND)))}


def beaten(store: Store) -> list[tuple[Row, Row]]:
    """Poet's row and the better one, of those budgets for which another method has one."""
    rows = [row for row in store.of_kind(cells.KIND) if row["key"]["minimize"] == "energy"]
    ours = {_problem(row): row for row in rows if row["key"]["method"] == cells.TOGETHER}
    found = []
    for row in rows:
        other = ours.get(_problem(row))
        if row["key"]["method"] in cells.OWN or "joules" not in row or other is None:
            continue
        if "joules" not in other or row["joules"] < other["joules"] * (1 - _TIE):
            found.append((other, row))
    return found


def _problem(row: Row) -> tuple[tuple[str, object], ...]:
    return tuple((name, value) for name, value in row["key"].items() if name != "method")


def _line(row: Row) -> str:
    known = {k: v for k, v in row.items() if k not in ("kind", "key", "build", "title")}
    found = ", ".join(
        f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in known.items()
    )
    return f"{row['kind']} {' '.join(map(str, row['key'].values()))}: {found}"


def draw(path: Path) -> None:
    """Writes the pictures and the page."""
    from paper import figures, page  # noqa: PLC0415  matplotlib

    store = Store(path, None)
    figures.write(store, FIGURES)
    PAGE.write_text(page.page(store), encoding="utf-8")
