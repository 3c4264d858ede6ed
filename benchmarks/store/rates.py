"""What the store carries a second, beside fio on the same disk.

    python benchmarks/store/rates.py [--build build/dev] [--mib 1 4 16 64] [--save store_rates]

Builds store_rates (store_rates.cpp), and lets it and fio take turns: values of one length to the
page file and back, and fio's 1 MiB requests, four at once, on a file of its own in the same
directory, with O_DIRECT and without. The ratios are medians over the rounds, each of two rates
that were taken within seconds; sums, parity and copies count against the store, and fio writes one
buffer that stays in the processor's cache. Beside that, what the store does to the bytes on the way
(`pack`: copy, sums, parity; `unpack`: copy, sums), to plain copies in memory. Prints the ratios
and, as JSON in the last line, what bounds.toml limits. Needs fio.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from _data import context, save

MODES = ("direct", "buffered")
MOVES = ("write", "read")
COPIES = ("pack", "unpack")  # in memory
_FILE_MIB = 128
_FIO_SECONDS = 1
_STORE_ROUNDS = 3  # of a run; the median counts


def store_rates(
    program: Path, directory: Path, mode: str, path: str, value_bytes: int
) -> dict[str, float]:
    """Bytes a second of the store."""
    command = [str(program), str(directory), mode, path, str(value_bytes)]
    command += [str(_FILE_MIB << 20), str(_STORE_ROUNDS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rates: dict[str, float] = json.loads(done.stdout)
    return rates


def fio_rate(directory: Path, mode: str, kind: str) -> float:
    """Bytes a second of fio; a buffered file's bytes are forced to the disk, as the store does."""
    command = ["fio", "--name=raw", f"--filename={directory / 'fio'}", f"--size={_FILE_MIB}M"]
    command += [f"--rw={kind}", "--bs=1M", "--output-format=json", "--invalidate=1"]
    if mode == "direct":
        command += ["--direct=1", "--ioengine=io_uring", "--iodepth=4"]
        command += ["--time_based", f"--runtime={_FIO_SECONDS}"]
    elif kind == "write":
        command += ["--ioengine=psync", "--sync_file_range=wait_before,write,wait_after:1"]
    else:
        command += ["--ioengine=psync"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    report = json.loads(done.stdout[done.stdout.index("{") :])
    return float(report["jobs"][0][kind]["bw_bytes"])


def measure(
    program: Path, directory: Path, mode: str, path: str, *, mib: int, rounds: int
) -> dict[str, Any]:
    """Store and fio in turn."""
    ratios: dict[str, list[float]] = {"write": [], "read": []}
    rates: dict[str, list[float]] = {"write": [], "read": [], "fio_write": [], "fio_read": []}
    cores = []
    copies: dict[str, list[float]] = {f"{kind}{of}": [] for kind in COPIES for of in ("", "_ratio")}
    for _ in range(rounds):
        ours = store_rates(program, directory, mode, path, mib << 20)
        cores.append(ours["cores"])
        for key, each in copies.items():
            each.append(ours[key])
        for kind in MOVES:
            raw = fio_rate(directory, mode, kind)
            rates[kind].append(ours[kind])
            rates[f"fio_{kind}"].append(raw)
            ratios[kind].append(ours[kind] / raw)
    row: dict[str, Any] = {"mode": mode, "path": path, "mib": mib, "rounds": rounds}
    row["cores"] = statistics.median(cores)
    for kind in MOVES:
        row[f"{kind}_ratio"] = statistics.median(ratios[kind])
        row[f"{kind}_ratio_range"] = [min(ratios[kind]), max(ratios[kind])]
    for kind in COPIES:
        row[f"{kind}_rate"] = statistics.median(copies[kind])
        row[f"{kind}_ratio"] = statistics.median(copies[f"{kind}_ratio"])
    return row | {f"{key}_rate": statistics.median(each) for key, each in rates.items()}


def text(row: dict[str, Any]) -> str:
    """A line for people."""
    shares = [
        f"{kind} {row[f'{kind}_ratio']:5.2f} of {row[f'fio_{kind}_rate'] / 1e9:5.2f} GB/s"
        for kind in MOVES
    ]
    shares += [f"{kind} {row[f'{kind}_rate'] / 1e9:4.1f} GB/s" for kind in COPIES]
    name = f"{row['mode']:8} {row['path']:8} {row['mib']:3} MiB"
    return "  ".join([name, *shares, f"{row['cores']:.2f} cores"])


def values(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What bounds.toml limits: the worst length, with O_DIRECT."""
    found = [row for row in rows if row["mode"] == "direct" and row["path"] == "best"]
    if not found:
        return {}
    return {f"store_{kind}_to_fio": min(row[f"{kind}_ratio"] for row in found) for kind in MOVES}


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The options; `words` in place of the command line's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--build", type=Path, default=Path("build/dev"))
    parser.add_argument("--program", type=Path, help="store_rates, built already")
    parser.add_argument("--directory", default="/var/tmp", help="on the disk to measure")
    parser.add_argument("--mib", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument(
        "--paths", nargs="+", default=["best"], help="best, ring, threads, blocking"
    )
    parser.add_argument("--save", metavar="NAME", help="name under benchmarks/data")
    return parser.parse_args(words)


def main() -> None:
    """Measures and saves."""
    options = parse()
    if shutil.which("fio") is None:
        sys.exit("rates.py: fio is missing (apt-get install fio)")
    program = options.program or options.build / "tests" / "cpp" / "store_rates"
    if options.program is None:
        cmake = shutil.which("cmake") or str(Path(sys.executable).parent / "cmake")
        command = [cmake, "--build", str(options.build), "--target", "store_rates"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    rows = []
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        for mode in options.modes:
            for path in options.paths if mode == "direct" else ["best"]:
                for mib in options.mib:
                    row = measure(program, Path(name), mode, path, mib=mib, rounds=options.rounds)
                    rows.append(row)
                    print(text(row), flush=True)
    if options.save:
        save(options.save, context() | {"rows": rows})
    print(json.dumps({"values": values(rows)}))


if __name__ == "__main__":
    main()
