"""docs/paper.md, from data/paper.json, the device files and the methods that poet has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import poet
from paper import cells, chains, sizes
from paper.cells import OWN, PAGE, RECOMPUTE, TOGETHER, extra
from paper.published import PUBLISHED, SOURCES
from paper.store import Row, Store
from poet._budgets import format_bytes
from poet._devices import find_device

_DEVICES = ("m0", "m4", "a72", "a72nocache", "jetsontx2")
_FOOTNOTES = list(SOURCES)


@dataclass(frozen=True)
class Section:
    """A figure or table on the page.

    Attributes:
        name: a key of PUBLISHED.
        heading: "Table 1".
        ours: what was found, in one sentence.
        difference: why it is not what was published, in one line.
        body: picture or table, in Markdown.
    """

    name: str
    heading: str
    ours: str
    difference: str
    body: list[str]


def page(store: Store) -> str:
    """The whole page."""
    makers = (table1, table2, table3, figure1, figure2, figure3, figure4, figure5, growth)
    sections = [make(store) for make in makers]
    lines = [
        "# The paper's figures and tables, drawn again",
        "",
        "Written by `make paper` (`benchmarks/paper`) from `benchmarks/data/paper.json`, which has "
        "every figure behind it and the plans themselves.",
        "Everything is planned by this code, on the layer graphs and with the constants of POET's "
        'own (`graph="paper"`): activations alone',
        "count, an op costs flops over a rate; but page-ins take memory and transfers take time, "
        "which the original forgets. Figures 3 and 5 have a deadline of",
        f"{cells.RUNTIME:g} times the plain step. Budgets are shares of the plain step's peak. A "
        "search of poet has 3 s of work (BERT: 6), the same on every machine,",
        "and begins with plans of poet itself (tighter budgets, recomputing alone, paging alone), "
        "never with another method's. Plans without a proof are upper bounds.",
        "",
        "The text of the paper was not at hand: its claims are those of its abstract, of public "
        "accounts and of its authors' repository (1 to 4, at the end).",
        "Where these give no number, none stands here.",
        "",
        *_table(
            ("", "it shows", "published", "found here", "the difference"),
            (
                (
                    f"[{s.heading}](#{s.heading.lower().replace(' ', '-')})",
                    PUBLISHED[s.name].title,
                    f"{PUBLISHED[s.name].claim} [{_number(PUBLISHED[s.name].source)}]",
                    s.ours,
                    s.difference,
                )
                for s in sections
            ),
        ),
    ]
    for section in sections:
        published = PUBLISHED[section.name]
        lines += ["", f"## {section.heading}", "", f"{_capital(published.title)}.", ""]
        lines += section.body
        lines += [
            "",
            f"- Published [{_number(published.source)}]: {published.claim}.",
            f"- Here: {section.ours}.",
            f"- The difference: {section.difference}.",
        ]
    lines += ["", *plan_sizes(store), "", "## Where the claims were read", ""]
    lines += [f"{index}. {text}" for index, text in enumerate(SOURCES.values(), 1)]
    return "\n".join(lines) + "\n"


# ---- tables ------------------------------------------------------------------------------------


def table1(_: Store) -> Section:
    """What each method can do, as the code declares it."""
    columns: dict[str, Callable[[poet.Method], bool]] = {
        "general graphs": lambda m: m.general_graphs,
        "compute-aware": lambda m: m.compute_aware,
        "memory-aware": lambda m: m.memory_aware,
        "power-aware": lambda m: m.power_aware,
        "executes": lambda m: m.executes,
    }
    known = list(poet.methods().values())
    body = _table(
        ("method", "source", *columns),
        (
            (f"`{m.name}`", m.source, *("yes" if has(m) else "" for has in columns.values()))
            for m in known
        ),
    )
    power = [f"`{m.name}`" for m in known if m.power_aware]
    chain = [f"`{m.name}`" for m in known if not m.general_graphs]
    return Section(
        "table1",
        "Table 1",
        f"of {len(known)} methods {_and(chain)} take chains alone, and {_and(power)} make energy "
        "small",
        "every method here also trains (`poet.wrap(method=...)`); the original makes plans alone",
        body,
    )


def table2(_: Store) -> Section:
    """Constants of the authors' code, and what they imply."""
    rows, implied = [], {}
    for name in _DEVICES:
        device = find_device(name)
        number = {place: each.value for place, each in device.numbers.items()}
        rate, per_joule = number["paper.flop_rate"], number["paper.flops_per_joule"]
        implied[name] = rate / per_joule
        rows.append(
            (
                name,
                device.title,
                format_bytes(int(number["memory.ram_bytes"])),
                f"{rate:.4g}",
                f"{per_joule:.4g}",
                f"{implied[name]:.4g}",
                f"{number['power.compute_watts']:.4g}",
                f"{number['paper.read_latency_seconds']:.3g} s, "
                f"{number['paper.read_rate'] / 1e6:.4g} MB/s",
                f"{number['paper.write_latency_seconds']:.3g} s, "
                f"{number['paper.write_rate'] / 1e6:.4g} MB/s",
                f"{number['paper.memory_watts']:.3g}",
            )
        )
    head = ("device", "", "RAM", "flop/s", "flop/J", "implied W", "W of the device file")
    a72 = find_device("a72").numbers["power.compute_watts"].value
    return Section(
        "table2",
        "Table 2",
        f"the same boards; the a72's constants imply {implied['a72']:.1f} W of computation, and "
        f"the board has {a72:.1f} W",
        "RAM and watts are of data sheets (`profiles/`), for the original states no RAM; its "
        "Jetson has no flop rate, so a data sheet's stands here",
        _table((*head, "page-in", "page-out", "W of paging"), rows),
    )


def table3(store: Store) -> Section:
    """Poet and POFO, least time."""
    rows, ratios, same_ratios = [], [], []
    for cell in cells.pofo_cells():
        pofo = store.measured(cells.KIND, cell.key, dict)
        pair = cells.beside_pofo(pofo)
        if pair is None:
            rows.append((f"{cell.ram} %", pofo["status"], "", "", "", ""))
            continue
        less, same = (store.measured(cells.KIND, each.key, dict) for each in pair)
        ratios += _throughput(pofo, less)
        same_ratios += _throughput(pofo, same)
        rows.append(
            (
                f"{cell.ram} %",
                format_bytes(pofo["peak_bytes"]),
                f"{1000 * pofo['seconds']:.3f} ms",
                format_bytes(less["ram_bytes"]),
                _percents(_throughput(pofo, less)),
                _percents(_throughput(pofo, same)),
            )
        )
    head = ("budget of POFO", "its peak", "its time", "8.3 % less", "poet's throughput there")
    reached = sum(ratio >= 0.13 for ratio in ratios)
    return Section(
        "table3",
        "Table 3",
        f"at 8.3 % less memory poet has {_span(ratios)} throughput ({reached} of {len(rows)} "
        f"budgets reach 13 %); at POFO's own peak {_span(same_ratios)}",
        "POFO plans chains: here it runs on the chain of the same layer graph, and knows the same "
        "costs; the Jetson's flop rate is a data sheet's, beside which paging never pays",
        _table((*head, "at POFO's peak"), rows),
    )


def _throughput(slower: Row, faster: Row) -> list[float]:
    """By how much the second has more; empty without a plan."""
    return [slower["seconds"] / faster["seconds"] - 1] if "joules" in faster else []


# ---- figures -----------------------------------------------------------------------------------


def figure1(store: Store) -> Section:
    """How it goes."""
    row = store.measured(cells.KIND, cells.figure2().key, dict)
    return Section(
        "figure1",
        "Figure 1",
        f"the same four steps; one plan of {row['key']['model']} takes {row['plan_bytes']} bytes "
        "to the device",
        "ops are recorded from a real step, or are those of the original's graphs as here; a plan "
        "also trains, in PyTorch",
        [_picture("figure1", "from a training step to a plan for the device")],
    )


def figure2(store: Store) -> Section:
    """One plan."""
    row = store.measured(cells.KIND, cells.figure2().key, dict)
    return Section(
        "figure2",
        "Figure 2",
        f"{row['key']['model']} on the {row['key']['platform']} in {row['key']['ram']} % of the "
        f"memory: {row['recomputed_ops']} ops run again and {row['page_outs']} values are paged, "
        f"for {extra(row):+.2%} energy and {extra(row, 'seconds'):+.1%} time",
        "which network and budget the paper draws was not read; the lower half, memory, is ours",
        [_picture("figure2", "ops and memory of one plan against time")],
    )


def figure3(store: Store) -> Section:
    """Energy against memory."""
    rows = [row for row in _energy_rows(store) if row["key"]["runtime"] == cells.RUNTIME]
    rows = [row for row in rows if row["key"]["model"] in cells.MODELS]
    rows = [row for row in rows if row["key"]["ram"] in cells.SHARES]
    rows = [row for row in rows if row["key"]["cost_model"] == "paper"]
    found: dict[tuple[str, str, int], dict[str, Row]] = {}
    for row in rows:
        key = row["key"]
        if "joules" in row:
            place = (key["model"], key["platform"], key["ram"])
            found.setdefault(place, {})[key["method"]] = row
    shares = sorted(cells.SHARES, reverse=True)
    lines = []
    for model in cells.MODELS:
        for platform in cells.PLATFORMS:
            texts = (_figure3_cell(found.get((model, platform, share), {})) for share in shares)
            lines.append((model, platform, *texts))
    body = [
        _picture("figure3", "energy against the memory budget, a row a network, a column a device"),
        "",
        "Energy above the plain step's: poet, then the best of the other methods "
        f"({_and([f'`{name}`' for name in cells.OTHERS])}).",
        "",
        *_table(("network", "device", *(f"{share} %" for share in shares)), lines),
        "",
        *_savings(found),
    ]
    others = [cell for cell in found.values() if set(cell) - set(OWN)]
    best = [cell for cell in others if TOGETHER in cell and _is_best(cell)]
    alone = sum(set(cell) <= set(OWN) for cell in found.values())
    dense = [
        f"`{method}` plans {sum('joules' in row for row in asked)} of {len(asked)} networks"
        for method in cells.DENSE
        if (asked := [row for row in rows if row["key"]["method"] == method])
    ]
    return Section(
        "figure3",
        "Figure 3",
        f"in {len(best)} of the {len(others)} cells in which another method has a plan, poet's "
        f"takes no more energy; in {alone} more poet alone has one",
        "energy is of one step, where the paper shows an epoch, and in percent of the plain step; "
        f"the dense programs are too slow to be drawn (at 50 % on the m4 {_and(dense)} in the time "
        "that poet has)",
        body,
    )


def _figure3_cell(found: dict[str, Row]) -> str:
    ours = found.get(TOGETHER)
    text = "no plan" if ours is None else f"{extra(ours):+.2%}"
    others = [row for method, row in found.items() if method not in OWN]
    if others:
        best = min(others, key=lambda row: row["joules"])
        text += f"; {best['key']['method']} {extra(best):+.2%}"
    return text


def _is_best(found: dict[str, Row]) -> bool:
    least = min(row["joules"] for row in found.values())
    return bool(found[TOGETHER]["joules"] <= least * (1 + 1e-8))


def _savings(found: dict[tuple[str, str, int], dict[str, Row]]) -> list[str]:
    """By how much less energy poet's plan takes than each other, at the same budget."""
    rows = []
    for method in (RECOMPUTE, PAGE, *cells.OTHERS):
        both = [cell for cell in found.values() if method in cell and TOGETHER in cell]
        if not both:
            continue
        less = {id(cell): 1 - cell[TOGETHER]["joules"] / cell[method]["joules"] for cell in both}
        most = max(both, key=lambda cell: less[id(cell)])
        key = most[TOGETHER]["key"]
        mean = sum(less.values()) / len(both)
        where = f"{key['model']} on {key['platform']} at {key['ram']} %"
        name = f"poet, {method}" if method in OWN else f"`{method}`"
        shares = (f"{mean:.2%}", f"{less[id(most)]:.2%}")
        rows.append((name, f"{len(both)} of {len(found)}", *shares, where))
    head = ("than", "cells in which both have a plan", "less energy on average", "at most", "where")
    return _table(head, rows)


def figure4(store: Store) -> Section:
    """Both together, and each alone."""
    rows: dict[tuple[str, str, float], dict[str, Row]] = {}
    for cell in cells.figure4():
        place = (cell.model, cell.platform, cell.runtime or 0.0)
        rows.setdefault(place, {})[cell.method] = store.measured(cells.KIND, cell.key, dict)
    planned = {
        place: {m: r for m, r in row.items() if "joules" in r} for place, row in rows.items()
    }
    lines = [
        (*place[:2], f"{place[2]:g}", *(_energy(row[method]) for method in OWN))
        for place, row in rows.items()
    ]
    never = sum(TOGETHER in row and _is_best(row) for row in planned.values())
    lower = {
        method: max(
            1 - row[TOGETHER]["joules"] / row[method]["joules"]
            for row in planned.values()
            if method in row and TOGETHER in row
        )
        for method in (RECOMPUTE, PAGE)
    }
    return Section(
        "figure4",
        "Figure 4",
        f"at {never} of the {sum(bool(row) for row in planned.values())} deadlines that can be "
        f"kept both together take no more than either alone: up to {lower[RECOMPUTE]:.1%} less "
        f"energy than recomputing alone and {lower[PAGE]:.1%} less than paging alone",
        "together cannot lose here, for it begins with the plans of each alone; budgets are ours: "
        f"{cells.TIGHT} % of the plain step's peak; on the m4 computation is "
        "cheap beside the card, so there recomputing does most, and on the a72 with the authors' "
        "constants paging",
        [
            _picture("figure4", "energy at six deadlines: both together, and each alone"),
            "",
            *_table(("network", "device", "deadline", "together", RECOMPUTE, PAGE), lines),
        ],
    )


def figure5(store: Store) -> Section:
    """Poet and Capuchin."""
    lines = []
    spans: dict[str, list[float]] = {TOGETHER: [], "capuchin": []}
    for model in dict.fromkeys(cell.model for cell in cells.figure5()):
        for cost_model in ("paper", "device"):
            for method, span in spans.items():
                rows = [
                    store.measured(cells.KIND, cell.key, dict)
                    for cell in cells.figure5()
                    if (cell.model, cell.cost_model, cell.method) == (model, cost_model, method)
                ]
                rows.sort(key=lambda row: -row["key"]["ram"])
                if cost_model == "paper":
                    span += [extra(row) for row in rows if "joules" in row]
                costs = "the authors' constants" if cost_model == "paper" else "the board's"
                lines.append((model, costs, method, *(_energy(row) for row in rows)))
    shares = [f"{share} %" for share in sorted(cells.SWEEP, reverse=True)]
    return Section(
        "figure5",
        "Figure 5",
        f"with the authors' constants poet takes {_span(spans[TOGETHER])}, Capuchin "
        f"{_span(spans['capuchin'])}",
        "our Capuchin follows its own paper (swap in free time, else the cheaper of the two), has "
        "the same store, and recomputes where that is cheap, so it pays far less than published; "
        "which budgets and which of its settings the paper took was not read",
        [
            _picture("figure5", "energy of poet and Capuchin as memory shrinks"),
            "",
            *_table(("network", "costs", "method", *shares), lines),
        ],
    )


def growth(store: Store) -> Section:
    """Recomputing on chains."""
    rows = store.of_kind(chains.KIND)
    best = chains.least_found(rows)
    powers: dict[str, float] = {}
    lines = []
    for name, units_of in chains.SERIES.items():
        found = chains.series(best, units_of)
        powers[name] = chains.exponent(found)
        counts = (f"{row['recomputed_ops']} ({row['extra']:+.0%})" for row in found)
        last = f"{chains.last_exponent(found):.2f}"
        lines.append((name, *counts, f"{powers[name]:.2f}", last))
    live = [
        (
            format_bytes(row["ram_bytes"]),
            f"{row['replayed_ops']:.0f}",
            f"{row['planned_ops']}",
            f"{1000 * row['replay_seconds']:.0f} ms",
            f"{row['replay_seconds'] / row['plain_seconds']:.0%}",
        )
        for row in store.of_kind(chains.LIVE)
    ]
    lost = chains.beaten(rows)
    least, half = "3 units, the least possible", "half of the layers"
    lengths = [f"n = {layers}" for layers in chains.LENGTHS]
    return Section(
        "growth",
        "Growth",
        f"on chains of {chains.LENGTHS[0]} to {chains.LENGTHS[-1]} equal layers recomputed energy "
        f"grows as n to the power of {powers[least]:.2f} in the least possible memory, "
        f"{powers['4 units']:.2f} with one unit more, {powers['6 units']:.2f} with three, and "
        f"{powers[half]:.2f} in half of what keeping everything takes",
        "O(n²) is the corner in which nothing but the input is kept; with c values kept, the input "
        "among them, the power falls towards 1 + 1/c (binomial checkpointing), and in a fixed "
        "share of the memory the growth is linear",
        [
            _picture("growth", "energy of recomputing against memory, and against length"),
            "",
            "Forward ops that run again, and the energy that they take above the plain step's; a "
            "unit is a layer's output. Each is the better of poet's plan and revolve's, which is "
            f"poet's, or as good, in {len(best) - len(lost)} of {len(best)} cases.",
            "",
            *_revolve_wins(lost),
            *_table(("memory", *lengths, "power of n", "of the last two"), lines),
            "",
            f"A chain of {chains.LIVE_LAYERS} layers that trains under `poet.wrap` (matrix product "
            "and tanh, weights frozen, 1 MiB a value), measured. Its least budget is higher: "
            "the weights count, and two ops make a layer.",
            "",
            *_table(
                (
                    "budget",
                    "ops replayed a step",
                    "planned",
                    "time of replays",
                    "of the plain step",
                ),
                live,
            ),
        ],
    )


# ---- what goes to a device ---------------------------------------------------------------------


def _revolve_wins(lost: list[tuple[Row, Row]]) -> list[str]:
    """The cases in which a plan of poet's costs more than revolve's, or is missing."""
    if not lost:
        return []
    lines = (
        (
            f"{other['key']['layers']}",
            f"{other['key']['units']}",
            f"{ours['extra']:+.1%}" if "extra" in ours else "no plan",
            f"{other['extra']:+.1%}",
        )
        for ours, other in lost
    )
    return [
        "Where poet's search, of 3 s, ends above revolve:",
        "",
        *_table(("layers", "units", "poet", "revolve"), lines),
        "",
    ]


def plan_sizes(store: Store) -> list[str]:
    """The section on the bytes of plans."""
    lines = []
    for row in store.of_kind(sizes.KIND):
        model = row["key"]["model"]
        if "plan_bytes" not in row:
            lines.append((model, row["title"], row["status"], *[""] * 6))
            continue
        lines.append(
            (
                model,
                row["title"],
                f"{row['share']} %",
                f"{row['ops']:,}",
                f"{row['recomputed_ops']:,}",
                f"{row['page_outs']:,}",
                f"{row['plan_bytes']:,}",
                f"{row['plan_bytes'] / row['ops']:.2f}",
                f"{row['json_bytes']:,}",
            )
        )
    head = ("preset", "", "memory", "ops", "ops run again", "page-outs", "bytes", "bytes an op")
    return [
        "## What goes to the device",
        "",
        f"The plan of every preset on the {sizes.PLATFORM}, one input and SGD, everything counted, "
        "in the least of "
        f"{_and([f'{share} %' for share in sizes.SHARES], 'and')} of the plain peak that had a "
        "plan within 6 s:",
        "`Schedule.to_bytes()`, which is read beside the graph, and the same as JSON.",
        "",
        *_table((*head, "bytes as JSON"), lines),
    ]


# ---- words -------------------------------------------------------------------------------------


def _energy_rows(store: Store) -> list[Row]:
    return [row for row in store.of_kind(cells.KIND) if row["key"]["minimize"] == "energy"]


def _energy(row: Row) -> str:
    return f"{extra(row):+.2%}" if "joules" in row else row["status"].replace("_", " ")


def _percents(values: list[float]) -> str:
    return f"{values[0]:+.2%}" if values else "no plan"


def _span(values: list[float]) -> str:
    if not values:
        return "no plan"
    return f"{min(values):+.2%} to {max(values):+.2%}"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def _picture(name: str, words: str) -> str:
    return f"![{words}](../benchmarks/figures/paper_{name}.png)"


def _number(source: str) -> int:
    return _FOOTNOTES.index(source) + 1


def _and(words: list[str], last: str = "and") -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
