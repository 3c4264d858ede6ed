"""The hand-written types of the native module name what the module has, and nothing else."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import poet
from poet import _C

STUB = ast.parse((Path(poet.__file__).parent / "_C.pyi").read_text(encoding="utf-8"))
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
# What every class has without saying so, what a type checker takes for granted, and what Sequence
# gives in the stub but the native module has to write out.
IMPLIED = {"__doc__", "__module__", "__init__", "__eq__", "__repr__", "__str__", "__dict__"}
IMPLIED |= {"__getstate__", "__setstate__", "__new__", "_pybind11_conduit_v1_"}
SEQUENCE = {"count", "index"}


def stub_names(body: list[ast.stmt]) -> set[str]:
    names = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def test_the_module_has_what_the_stub_names() -> None:
    found = {name for name in vars(_C) if not name.startswith("_")}
    assert found == stub_names(STUB.body)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_the_classes_have_what_the_stub_names(name: str) -> None:
    declared = stub_names(CLASSES[name].body) - IMPLIED
    if any("Sequence" in ast.unparse(base) for base in CLASSES[name].bases):
        declared |= SEQUENCE
    assert set(vars(getattr(_C, name))) - IMPLIED == declared


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_properties_and_methods_are_what_the_stub_says(name: str) -> None:
    native = getattr(_C, name)
    for node in CLASSES[name].body:
        if not isinstance(node, ast.FunctionDef):
            continue
        decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
        member = inspect.getattr_static(native, node.name, None)
        if "property" in decorators:
            assert isinstance(member, property), node.name
            assert member.fset is None, node.name
        elif "staticmethod" in decorators:
            assert isinstance(member, staticmethod), node.name
        else:
            assert callable(member), node.name


def documented_signature(function: object) -> str:
    """The first line that pybind11 writes; of an overloaded function, all of them."""
    return (inspect.getdoc(function) or "").partition("\n\n")[0]


FUNCTIONS = [(_C, node) for node in STUB.body if isinstance(node, ast.FunctionDef)]
METHODS = [
    (getattr(_C, name), node)
    for name in sorted(CLASSES)
    for node in CLASSES[name].body
    if isinstance(node, ast.FunctionDef)
    and not (node.name.startswith("__") and node.name != "__init__")
    and not any(ast.unparse(decorator) == "property" for decorator in node.decorator_list)
]


@pytest.mark.parametrize(
    ("owner", "node"),
    FUNCTIONS + METHODS,
    ids=lambda item: getattr(item, "name", None) or item.__name__,
)
def test_arguments_are_named_as_in_the_stub(owner: object, node: ast.FunctionDef) -> None:
    signature = documented_signature(getattr(owner, node.name))
    for argument in (*node.args.args, *node.args.kwonlyargs):
        assert f"{argument.arg}:" in signature


def test_the_package_exports_what_it_says() -> None:
    assert sorted(poet.__all__) == sorted(set(poet.__all__))
    for name in poet.__all__:
        assert getattr(poet, name) is not None
    assert poet.__version__ == _C.version
