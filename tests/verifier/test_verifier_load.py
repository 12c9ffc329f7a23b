"""Names, parameters and identifiers; nothing starts a process here."""

import subprocess
import sys

import pytest

from offline_rlvr.errors import ConfigError
from offline_rlvr.verifier import load, names


def test_the_modules_are_the_names():
    assert names() == ["function", "math_verify"]


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("math-verify", {}, "did you mean verifier.name: math_verify?"),
        ("mathverify", {}, "did you mean verifier.name: math_verify?"),
        ("base", {}, "Unknown verifier"),
        ("zzz", {}, "there are: function, math_verify"),
        ("math_verify", {"timeout": 5}, "did you mean verifier.timeout_s?"),
        ("math_verify", {"timeout_s": 0}, "timeout_s is 0"),
        ("math_verify", {"timeout_s": "5"}, "timeout_s is '5'"),
        ("math_verify", {"timeout_s": float("nan")}, "timeout_s is nan"),
        ("math_verify", {"workers": 0}, "workers is 0"),
        ("math_verify", {"workers": True}, "workers is True"),
        ("math_verify", {"max_tasks": 1.5}, "max_tasks is 1.5"),
        ("math_verify", {"memory_gib": -1}, "memory_gib is -1"),
        ("math_verify", {"fallback": "last"}, "did you mean verifier.fallback: last_number?"),
        ("math_verify", {"max_answer_chars": 1}, "16 to 100000"),
        ("function", {}, "needs the setting 'path'"),
        ("function", {"path": "no_colon"}, "must be module:function"),
        ("function", {"path": "no_such_module_x:f"}, "no module 'no_such_module_x'"),
        ("function", {"path": "missing.py:f"}, "no file 'missing.py'"),
    ],
)
def test_bad_settings_say_what_to_type(name, params, said):
    with pytest.raises(ConfigError) as caught:
        load(name, **params)
    assert said in str(caught.value)


def test_identifier_depends_on_what_decides_a_verdict_only():
    base = load("math_verify")
    assert base.id == load("math_verify", workers=7, max_tasks=3).id
    assert base.id != load("math_verify", fallback="last_number").id
    assert base.id != load("math_verify", timeout_s=6).id
    assert base.id.startswith("math_verify-")
    assert len(base.id) == len("math_verify-") + 8
    assert base.settings["timeout_s"] == 5.0
    assert set(base.versions) == {
        "contract", "math-verify", "latex2sympy2_extended", "sympy", "mpmath",
    }  # fmt: skip


def test_importing_and_loading_needs_no_heavy_library():
    code = (
        "import sys; from offline_rlvr.verifier import load; v = load('math_verify'); v.id; "
        "print([m for m in ('torch', 'sympy', 'math_verify', 'latex2sympy2_extended') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
