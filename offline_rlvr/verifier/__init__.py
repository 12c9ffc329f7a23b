"""Response text -> `Verdict`, in worker processes that can be killed.

A verifier is a module of this folder; its name is the config name:

- `math_verify`: mathematical equality of the last `\\boxed{}` with the gold answer;
- `function`: a user's own reward function, `path: "module:function"`.

```python
with load("math_verify", workers=2, timeout_s=5) as verifier:
    verdicts = verifier.score([("57", "so the answer is \\\\boxed{57}")])
```

Importing this package imports neither torch nor sympy nor math-verify.
"""

from offline_rlvr.verifier.base import Verifier, load, names

__all__ = ["Verifier", "load", "names"]
