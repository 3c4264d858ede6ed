"""What an installed poet looks like, and what its build asks for and says."""

import importlib.util
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import poet
from poet import _C

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomlkit as tomllib

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
NATIVE = Path(_C.__file__).parent
CORE_FOLDERS = ("graph", "device", "schedule", "planner", "methods")


@pytest.fixture(scope="module")
def backend() -> ModuleType:
    path = REPOSITORY / "_build_backend" / "poet_build_backend.py"
    spec = importlib.util.spec_from_file_location("poet_build_backend", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a virtual environment with nothing in it."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


def configure_error(tmp_path: Path, python: Path, *words: str) -> str:
    """What CMake, which must fail, says where pkg-config finds no library; line breaks undone."""
    environment = os.environ | {"PKG_CONFIG_LIBDIR": str(tmp_path), "PKG_CONFIG_PATH": ""}
    environment.pop("PYTHONPATH", None)
    command = ["cmake", "-S", str(REPOSITORY), "-B", str(tmp_path / "build")]
    command += [f"-DPython_EXECUTABLE={python}", *words]
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return " ".join(done.stderr.split())


def dynamic_section(file: Path) -> dict[str, list[str]]:
    """NEEDED and RUNPATH entries of a shared object."""
    text = subprocess.run(
        ["readelf", "-d", str(file)], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, list[str]] = {"NEEDED": [], "RUNPATH": []}
    for kind, value in re.findall(r"\((NEEDED|RUNPATH|RPATH)\)[^\[]*\[([^\]]*)\]", text):
        found["RUNPATH" if kind == "RPATH" else kind] += value.split(":")
    return found


def native_files() -> Iterator[Path]:
    yield Path(_C.__file__)
    yield NATIVE / "lib" / "libpoet_core.so"
    yield NATIVE / "lib" / "libpoet_torch.so"
    yield NATIVE / "bin" / "poet-solver"


def test_run_paths_are_relative_so_that_the_package_can_be_moved() -> None:
    for file in native_files():
        for path in dynamic_section(file)["RUNPATH"]:
            assert path.startswith("$ORIGIN"), f"{file.name}: {path}"


def test_poet_core_and_the_solver_link_neither_torch_nor_python() -> None:
    for name in ("lib/libpoet_core.so", "bin/poet-solver"):
        needed = dynamic_section(NATIVE / name)["NEEDED"]
        assert not [n for n in needed if re.match(r"libtorch|libc10|libpython", n)], name


def test_poet_torch_links_torch_and_no_python() -> None:
    needed = dynamic_section(NATIVE / "lib" / "libpoet_torch.so")["NEEDED"]
    assert "libtorch_cpu.so" in needed
    assert not [n for n in needed if re.match(r"libpython|libtorch_python", n)]


def test_poet_core_includes_neither_torch_nor_pybind11() -> None:
    foreign = re.compile(r'#\s*include\s*[<"](ATen|c10|torch|pybind11|Python\.h)')
    for folder in CORE_FOLDERS:
        for file in (REPOSITORY / "csrc" / folder).rglob("*"):
            if file.suffix in (".cpp", ".h"):
                assert not foreign.search(file.read_text(encoding="utf-8")), file


def test_the_solver_can_be_run() -> None:
    assert os.access(NATIVE / "bin" / "poet-solver", os.X_OK)


def test_the_package_is_marked_as_typed() -> None:
    assert poet.__file__ is not None
    assert (Path(poet.__file__).parent / "py.typed").is_file()


def test_every_source_file_is_built() -> None:
    for file in (REPOSITORY / "csrc").rglob("*.cpp"):
        if file.name == "solver_main.cpp":
            continue
        folder = REPOSITORY / "csrc" / file.relative_to(REPOSITORY / "csrc").parts[0]
        listed = (folder / "CMakeLists.txt").read_text(encoding="utf-8")
        assert str(file.relative_to(folder)) in listed, f"{file} is in no CMakeLists.txt"
        assert "GLOB" not in listed


def test_every_cpp_test_is_built() -> None:
    folder = REPOSITORY / "tests" / "cpp"
    listed = (folder / "CMakeLists.txt").read_text(encoding="utf-8").split()
    for file in folder.rglob("*_test.cpp"):
        assert str(file.relative_to(folder)) in listed, file


def test_the_torch_range_is_the_same_everywhere() -> None:
    (requirement,) = [d for d in PROJECT["project"]["dependencies"] if d.startswith("torch")]
    match = re.fullmatch(r"torch>=([\d.]+),<([\d.]+)", requirement)
    assert match is not None
    low, high = match.groups()
    cmake = (REPOSITORY / "cmake" / "FindTorchLibs.cmake").read_text(encoding="utf-8")
    assert f"VERSION_LESS {low} OR TorchLibs_VERSION VERSION_GREATER_EQUAL {high})" in cmake
    assert f"torch>={low},<{high}" in cmake
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^TORCH \?= torch=={re.escape(low)}\.", makefile, re.MULTILINE)
    assert _C.built_for_torch.startswith(f"{low}.")


def test_torch_is_no_build_requirement(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_system_cbc", lambda: True)
    wanted = [*PROJECT["build-system"]["requires"], *backend.get_requires_for_build_editable()]
    assert not [name for name in wanted if name.startswith(("torch", "cbcbox"))]


@pytest.mark.parametrize(
    ("system_cbc", "cbcbox", "asks"),
    [(True, False, False), (False, True, False), (False, False, True)],
)
def test_cbcbox_is_required_only_where_no_cbc_is_installed(
    backend: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    system_cbc: bool,
    cbcbox: bool,
    asks: bool,
) -> None:
    monkeypatch.setattr(backend, "_system_cbc", lambda: system_cbc)
    monkeypatch.setattr(backend, "_installed", lambda file: "torch" in file or cbcbox)
    for hook in (backend.get_requires_for_build_editable, backend.get_requires_for_build_wheel):
        assert any(name.startswith("cbcbox") for name in hook()) is asks


def test_the_build_without_torch_stops_early_and_names_the_commands(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_installed", lambda file: False)
    with pytest.raises(SystemExit) as caught:
        backend.get_requires_for_build_editable()
    assert f"{sys.executable} -m pip install torch==2.13.0" in str(caught.value)
    assert "pip install -e ." in str(caught.value)


def test_cmake_without_torch_names_the_commands(tmp_path: Path, bare_python: Path) -> None:
    said = configure_error(tmp_path, bare_python)
    assert f"torch is not installed for {bare_python}" in said
    assert f"{bare_python} -m pip install torch==2.13.0" in said
    assert f"{bare_python} -m pip install -e ." in said


def test_cmake_with_a_torch_out_of_range_names_it_and_the_range(
    tmp_path: Path, bare_python: Path
) -> None:
    torch = tmp_path / "torch"
    (torch / "include" / "ATen").mkdir(parents=True)
    (torch / "include" / "ATen" / "ATen.h").touch()
    (torch / "version.py").write_text("__version__ = '2.9.1+cpu'\n")
    said = configure_error(tmp_path, bare_python, f"-DTorchLibs_DIR={torch}")
    assert "torch 2.9.1+cpu" in said
    assert "torch>=2.13,<2.14" in said


def test_cmake_without_a_solver_names_both_ways_to_get_one(
    tmp_path: Path, bare_python: Path
) -> None:
    said = configure_error(tmp_path, bare_python, "-DPOET_BUILD_TORCH=OFF")
    assert "apt-get install coinor-libcbc-dev" in said
    assert "pip install cbcbox" in said
