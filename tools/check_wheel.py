"""Checks an installed wheel: that it carries its solver, and that README's Python code runs.

Run by `make test-wheel` with the interpreter of a fresh environment, outside the sources.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import poet

# Of Linux itself, or of torch: everything else has to lie inside the package.
_MACHINES_OWN = re.compile(
    r"linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|c10|torch\w*|gomp|python[\d.]*)[.-]"
)


def foreign_libraries(package: Path) -> list[str]:
    """Libraries that the package's binaries take from elsewhere, or do not find."""
    wrong = []
    binaries = [*package.glob("*.so"), *package.glob("lib/**/*.so*"), package / "bin/poet-solver"]
    for binary in binaries:
        said = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=True)
        for line in said.stdout.splitlines():
            name, _, place = line.strip().partition(" => ")
            if _MACHINES_OWN.match(name.rpartition("/")[2]):
                continue
            # What the package's own libraries need of each other is looked up from poet_core.
            beside = package / "lib" / "solver" / name.partition(" ")[0]
            if str(package) not in place and not beside.is_file():
                wrong.append(f"{binary.name} takes {line.strip()}")
    return wrong


def loaded_libraries() -> list[str]:
    """Paths of the shared libraries in this process."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    return sorted({line.split()[-1] for line in maps.splitlines() if ".so" in line})


def run_readme(readme: Path) -> int:
    """Runs README's Python code on a small model; returns the number of pieces."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(8))
    )
    optimizer = torch.optim.AdamW(net.parameters())

    def train_step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    batch = torch.randn(2048, 256)
    names = {
        "train_step": train_step,
        "batch": batch,
        "loader": [batch] * 6,
        "net": net,
        "x": batch,
        "y": torch.randint(0, 256, (2048,)),
        "F": torch.nn.functional,
    }
    pieces = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    for piece in pieces:
        piece = re.sub(r'page_dir="[^"]*"', f"page_dir={str(Path.cwd())!r}", piece)  # noqa: PLW2901
        exec(compile(piece, str(readme), "exec"), names)
    schedule = names["schedule"]
    if schedule.status not in ("optimal", "feasible"):
        raise SystemExit(f"README's plan ended with status {schedule.status}: {schedule.message}")
    return len(pieces)


def main() -> None:
    """Raises SystemExit with what is wrong."""
    package = Path(poet.__file__).resolve().parent
    if "site-packages" not in package.parts:
        raise SystemExit(f"poet was imported from {package}, not from an environment")
    wrong = foreign_libraries(package)
    if wrong:
        raise SystemExit("the wheel leans on the machine:\n  " + "\n  ".join(wrong))
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        os.chdir(folder)  # README saves a plan
        pieces = run_readme(Path(sys.argv[1]))
        os.chdir("/")
    solver = [path for path in loaded_libraries() if re.search(r"lib(Cbc|Clp|CoinUtils)", path)]
    outside = [path for path in solver if not path.startswith(str(package))]
    if not solver or outside:
        raise SystemExit(f"the solver was loaded from {outside or 'nowhere'}")
    print(
        f"wheel: {package.name} {poet.__version__} with torch {torch.__version__}: "
        f"{len(solver)} solver libraries of its own, {pieces} pieces of README run"
    )


if __name__ == "__main__":
    main()
