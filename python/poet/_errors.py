"""What poet raises. The outcome of a solve is a `poet.Status`, never one of these."""


class PoetError(Exception):
    """Base of everything that poet raises on purpose."""

    __module__ = "poet"


class ArgumentError(PoetError, ValueError):
    """An argument that makes no sense: says what was expected, what was got and what to do."""

    __module__ = "poet"


class FormatError(PoetError, ValueError):
    """A file or a structure that is damaged or contradicts itself."""

    __module__ = "poet"


class ScheduleError(PoetError, ValueError):
    """A schedule that was made for another graph or cannot be carried out on this one."""

    __module__ = "poet"


class PoetRuntimeError(PoetError, RuntimeError):
    """Something outside failed: a file, a process, the machine, or poet itself."""

    __module__ = "poet"


class StoreError(PoetRuntimeError):
    """Secondary storage could not take or give back a value: disk full, I/O error, damage."""

    __module__ = "poet"


class BudgetError(PoetError, RuntimeError):
    """A live step cannot be kept inside its budget."""

    __module__ = "poet"


class NotBuiltError(PoetError, NotImplementedError):
    """An option that does not exist yet was asked for."""

    __module__ = "poet"


class BudgetWarning(UserWarning):
    """Training goes on outside its budget: no plan within it, or trouble with the store."""

    __module__ = "poet"


class StoreWarning(UserWarning):
    """Nothing is paged, because the system's folder for temporary files takes no page file."""

    __module__ = "poet"


class SolverWarning(UserWarning):
    """A solve went on with another solver than the one it was to use; its plan is as good."""

    __module__ = "poet"


class CacheWarning(UserWarning):
    """The cache between runs lost an entry, or cannot be used; nothing else changes."""

    __module__ = "poet"
