"""What an installed poet looks like, and what its build asks for and says."""

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import venv
from collections.abc import Callable, Iterator
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


@pytest.mark.parametrize("name", ["libpoet_core.so", "libpoet_torch.so"])
def test_libraries_export_poets_interface_alone(name: str) -> None:
    said = subprocess.run(
        ["nm", "-DC", "--defined-only", str(NATIVE / "lib" / name)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    exported = [line.split(maxsplit=2)[2] for line in said.splitlines()]
    own = re.compile(r"((typeinfo|typeinfo name|vtable|guard variable|VTT) for )?poet::")
    torchs = re.compile(r".*\b(c10|at|torch|caffe2)::")  # of its headers: must be one in a process
    strange = [e for e in exported if not own.match(e) and not torchs.match(e)]
    assert not strange
    assert any("poet::" in e for e in exported)
    assert not [e for e in exported if "poet::planner::Problem" in e]  # not marked with POET_API


def public_headers() -> list[str]:
    text = (REPOSITORY / "cmake" / "PoetInstall.cmake").read_text(encoding="utf-8")
    lists = re.findall(r"set\(poet_(?:core|torch)_headers\s+([^)]*)\)", text)
    return [name for names in lists for name in names.split()]


def test_public_headers_need_no_other_headers_of_poet() -> None:
    headers = public_headers()
    assert headers
    for header in headers:
        text = (REPOSITORY / "csrc" / header).read_text(encoding="utf-8")
        for included in re.findall(r'#include "([^"]+)"', text):
            assert included in headers, f"{header} includes {included}"


def test_installed_headers_name_each_other_below_poet() -> None:
    for header in public_headers():
        installed = (NATIVE / "include" / "poet" / header).read_text(encoding="utf-8")
        source = (REPOSITORY / "csrc" / header).read_text(encoding="utf-8")
        assert installed.replace('#include "poet/', '#include "') == source
        assert '#include "graph/' not in installed


@pytest.fixture
def stranger(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Configures a project of somebody else's that asks for poet; its status and what it says."""

    def configure(find: str, *words: str) -> tuple[int, str]:
        (tmp_path / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.24)\nproject(stranger LANGUAGES CXX)\n"
            f"find_package(poet {find})\n"
            'message(STATUS "found:${poet_FOUND} ${poet_VERSION}")\n'
            "foreach(t poet_core poet_torch)\n  if(TARGET poet::${t})\n"
            '    message(STATUS "has:${t}")\n  endif()\nendforeach()\n',
            encoding="utf-8",
        )
        command = ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "build"), *words]
        command.append(f"-DCMAKE_PREFIX_PATH={NATIVE}")
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    return configure


def test_a_stranger_finds_poet_and_its_torch(stranger: Callable[..., tuple[int, str]]) -> None:
    torch = Path(sys.modules["torch"].__file__ or "").parent
    status, said = stranger("0.1 CONFIG REQUIRED", f"-DTORCH_DIR={torch}")
    assert status == 0, said
    assert "has:poet_core" in said
    assert "has:poet_torch" in said
    assert f"found:1 {PROJECT['project']['version']}" in said or "found:TRUE" in said


def test_the_core_is_found_without_torch(stranger: Callable[..., tuple[int, str]]) -> None:
    status, said = stranger(
        "CONFIG REQUIRED COMPONENTS core", "-DTORCH_DIR=/nowhere", "-Dpoet_PYTHON=/nowhere"
    )
    assert status == 0, said
    assert "has:poet_core" in said
    assert "has:poet_torch" not in said


def test_another_torch_is_refused_by_name(
    tmp_path: Path, stranger: Callable[..., tuple[int, str]]
) -> None:
    torch = tmp_path / "libtorch"
    (torch / "include" / "ATen").mkdir(parents=True)
    (torch / "include" / "ATen" / "ATen.h").touch()
    (torch / "build-version").write_text("2.9.1+cpu\n")
    status, said = stranger("CONFIG REQUIRED", f"-DTORCH_DIR={torch}")
    assert status != 0
    assert f"poet was built for torch {_C.built_for_torch}" in said
    assert "is torch 2.9.1+cpu" in said
    assert "-DTORCH_DIR=" in said


def test_unknown_components_are_refused(stranger: Callable[..., tuple[int, str]]) -> None:
    status, said = stranger("CONFIG REQUIRED COMPONENTS core gpu")
    assert status != 0
    assert "poet has the components core and torch, not gpu" in said


def test_the_sdist_holds_what_a_build_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir"]
    subprocess.run([*command, str(tmp_path), str(REPOSITORY)], check=True, capture_output=True)
    (archive,) = tmp_path.glob("poet_torch-*.tar.gz")
    assert archive.stat().st_size < 8 << 20
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    needed = ["CMakeLists.txt", "LICENSE", "NOTICE", "README.md", "examples/cpp/train.cpp"]
    needed += ["_build_backend/poet_build_backend.py", "cmake/poetConfig.cmake.in"]
    needed += [f"csrc/{header}" for header in public_headers()]
    assert not [name for name in needed if name not in names]
    assert not [name for name in names if name.startswith((".git/", "build/", ".venv/", ".ci/"))]


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
