"""Worker side of the function verifier: imports the user's module and calls the function."""

import importlib
import importlib.util
import inspect
from typing import Any

from offline_rlvr.verifier.sandbox.worker import TargetError


class UserFunction:
    """Calls `module:function` with one response at a time.

    Args:
        module: Importable name, or the path of a `.py` file.
        function: Name in that module.
        kwargs: Passed on with every call.
    """

    def __init__(self, module: str, function: str, kwargs: dict[str, Any]):
        loaded = load_file(module) if module.endswith(".py") else importlib.import_module(module)
        self.function = getattr(loaded, function, None)
        self.kwargs = kwargs
        if not callable(self.function):
            raise TargetError(f"verifier.path: {module} has no function {function!r}.")
        if inspect.iscoroutinefunction(self.function):
            raise TargetError(f"verifier.path: {function} is async; a plain function is needed.")
        try:
            inspect.signature(self.function).bind(completions=[""], answer=[""], **kwargs)
        except TypeError as error:
            raise TargetError(
                f"verifier.path: {function} cannot be called as "
                f"{function}(completions=[...], answer=[...]): {error}."
            ) from error

    def __call__(self, text: str, gold: str) -> float | None:
        """The score, or None when the function does not score this response."""
        assert self.function is not None
        result = self.function(completions=[text], answer=[gold], **self.kwargs)
        if len(result) != 1:
            raise ValueError(f"the function returned {len(result)} scores for 1 completion")
        return None if result[0] is None else float(result[0])


def load_file(path: str) -> Any:
    """Import one file under its own name."""
    spec = importlib.util.spec_from_file_location("user_reward", path)
    if spec is None or spec.loader is None:
        raise TargetError(f"verifier.path: {path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
