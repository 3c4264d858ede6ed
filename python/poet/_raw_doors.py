"""The doors to a tensor's memory that lead past PyTorch's operators, and poet.keep."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.dlpack

from poet import _C
from poet._errors import ArgumentError
from poet._lending import lending

# Methods of torch.Tensor that hand out its memory, or read it, without going through an operator.
# torch.save, pickle, copy.deepcopy and numpy.asarray come through them.
_RAW_DOORS = (
    "numpy",
    "tolist",
    "data_ptr",
    "const_data_ptr",
    "mutable_data_ptr",
    "__dlpack__",
    "untyped_storage",
    "_typed_storage",
    "storage",
    "share_memory_",
    "apply_",
    "map_",
    "map2_",
)
# Those whose result goes on sharing the memory: it must stay where it is from then on.
# apply_, map_ and map2_ write it: whatever was computed from it before must not be computed again.
_KEEPS_MEMORY = ("numpy", "__dlpack__", "apply_", "map_", "map2_")
# Those that give a pointer to whoever may write there, for as long as the step runs.
# torch.save, pickle and copy.deepcopy go through _typed_storage, and only read.
_GIVES_POINTER = ("data_ptr", "mutable_data_ptr", "untyped_storage", "storage", "share_memory_")
# Those after which the memory stays for good: who has the pointer may keep it. A storage is asked
# for to tell tensors apart, mostly.
_POINTERS = ("data_ptr", "const_data_ptr", "mutable_data_ptr")


def _doors() -> list[tuple[object, str]]:
    """Every raw door that is a method: where it hangs, and its name."""
    return [(torch.Tensor, name) for name in _RAW_DOORS]


def _put_in_place_of(function: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Wherever a module has it by name."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        for name in [name for name, value in list(names.items()) if value is function]:
            setattr(module, name, other)


def _swapping(swap: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """`swap` refuses tensors that recordings know, unless these let go of them meanwhile."""

    @functools.wraps(swap)
    def swapping(a: torch.Tensor, b: torch.Tensor) -> None:
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            _C.while_swapped(a, b, swap)
        else:
            swap(a, b)

    return swapping


def _watch_new_storages() -> None:
    """Storages made by name (copy.deepcopy makes them so) come from an allocator of PyTorch's own.

    What is in memory beside a step is counted again where there are many more of them.
    """
    own = torch.UntypedStorage.__new__

    def counted(cls: type, *args: object, **kwargs: object) -> object:
        made: torch.UntypedStorage = own(cls, *args, **kwargs)
        if made.device.type == "cpu":
            _C.note_made_elsewhere(made.nbytes())
        return made

    torch.UntypedStorage.__new__ = counted  # type: ignore[method-assign,assignment]


class _Inside(threading.local):
    door = False  # this thread is inside one: what that goes through says no more


class _RawDoors:
    """Makes the raw doors bring a value back first, while any step may have values away.

    Thread-safe. At other times the methods of torch.Tensor are PyTorch's own; the functions
    to_dlpack and swap_tensors, and new storages, are watched from the first step on. Sessions are
    not kept alive: one that ends brings its values back itself. Ctrl-C may come in the middle of a
    change: what is put in place of what is known before it is, until all is as it was.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a session may end while the lock is held
        self._sessions: list[weakref.ref[_C.Session]] = []
        self._own: dict[tuple[object, str], object] = {}
        self._put: dict[tuple[object, str], object] = {}
        self._installed = False
        self._functions: dict[str, Callable[..., Any]] = {}  # PyTorch's own
        self._watches_functions = False
        self._inside = _Inside()

    def open(self, session: _C.Session) -> None:
        """Opens them for a session; nothing happens where they are open for it already."""
        with self._lock:
            alive = [known for known in self._sessions if known() is not None]
            if not any(known() is session for known in alive):
                alive.append(weakref.ref(session, lambda _: self._keep(None)))
            self._sessions = alive
            self._install()

    def close(self, session: _C.Session) -> None:
        self._keep(session)

    def _keep(self, but: _C.Session | None) -> None:
        with self._lock:
            self._sessions = [k for k in self._sessions if k() not in (None, but)]
            if not self._sessions:
                self._uninstall()

    def _install(self) -> None:
        lending.begin()
        if self._installed:
            return
        self._watch_functions()
        for owner, name in _doors():
            method = getattr(owner, name, None)
            if method is None:
                continue
            if (owner, name) not in self._put:
                if name in vars(owner):
                    self._own[owner, name] = vars(owner)[name]
                self._put[owner, name] = self._door(name, method)
            setattr(owner, name, self._put[owner, name])
        self._installed = True

    def _door(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        if name == "_typed_storage":
            return self._reading(method)
        return self._watched(
            method, name in _KEEPS_MEMORY, name in _GIVES_POINTER, name in _POINTERS
        )

    def _watch_functions(self) -> None:
        # For good: a name that a program has imported would lead past a door that comes and goes.
        if self._watches_functions:
            return
        for name, watching in (
            ("_to_dlpack", functools.partial(self._watched, for_good=True)),
            ("_swap_tensor_impl", _swapping),
        ):
            own = self._functions.setdefault(name, getattr(torch._C, name))
            _put_in_place_of(own, watching(own))
        _watch_new_storages()
        self._watches_functions = True

    def _uninstall(self) -> None:
        if not self._put:
            return
        self._installed = False
        lending.end()
        for owner, name in self._put:
            if (owner, name) in self._own:
                setattr(owner, name, self._own[owner, name])
            elif name in vars(owner):
                delattr(owner, name)
        self._put.clear()
        self._own.clear()

    def touch(
        self,
        tensor: torch.Tensor,
        for_good: bool,
        may_write: bool = False,
        may_keep: bool = False,
    ) -> None:
        """Brings the tensor's memory back, whichever session has it away.

        Args:
            tensor: whose memory is about to be handed out.
            for_good: it stays where it is from now on; it may be written too.
            may_write: whoever gets it may write it, while the step runs.
            may_keep: and may keep the pointer, for later.
        """
        if self._inside.door:
            return
        for known in self._sessions:
            session = known()
            if session is not None:
                session.touch(tensor, for_good, may_write, may_keep)

    def _watched(
        self,
        method: Callable[..., Any],
        for_good: bool,
        may_write: bool = False,
        may_keep: bool = False,
    ) -> Callable[..., Any]:
        @functools.wraps(method)
        def watched(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
            for one in (tensor, *args):
                if isinstance(one, torch.Tensor):
                    self.touch(one, for_good, may_write, may_keep)
            return method(tensor, *args, **kwargs)

        return watched

    def _reading(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def reading(tensor: torch.Tensor) -> object:
            self.touch(tensor, False)
            outer, self._inside.door = self._inside.door, True
            try:
                return method(tensor)
            finally:
                self._inside.door = outer

        return reading


raw_doors = _RawDoors()


def keep(tensor: torch.Tensor) -> torch.Tensor:
    """Keeps a tensor's memory where it is, for as long as its storage lives.

        lookup = poet.keep(torch.empty(n))
        my_library.register(lookup.data_ptr())  # reads it later, without telling PyTorch

    Operators and Python's ways to a tensor's memory (`numpy()`, `data_ptr()`, DLPack, `torch.save`,
    ...) need no such call: poet sees them. Native code that keeps a pointer and reads it later is
    what nobody can see. If the memory has been released for the moment, it comes back first.

    Args:
        tensor: of any shape and dtype; its whole storage is kept, so views of it are too.

    Returns:
        The tensor itself.

    Raises:
        ArgumentError: `tensor` is no tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"tensor: expected a torch.Tensor; got {type(tensor).__name__}.")
    raw_doors.touch(tensor, True)
    _C.keep_storage(tensor)
    return tensor


__all__ = ["keep", "raw_doors"]
