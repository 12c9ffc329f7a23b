"""The shape of the code: layers, who may import what, sizes of files and functions."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1] / "offline_rlvr"
FILES = sorted(ROOT.rglob("*.py"))
MAX_FILE_LINES, MAX_FUNCTION_LINES = 300, 60

#: A package imports only from lines above its own, or from its own line.
LAYERS = [
    {
        "amounts",
        "batch",
        "cache",
        "dotted",
        "durable",
        "errors",
        "hub",
        "lock",
        "progress",
        "records",
        "settings",
    },
    {"config"},
    {"numerics"},
    {"problems", "generation", "verifier", "pool", "stream"},
    {"policy"},
    {"objectives", "diagnostics"},
    {"lab"},
    {"evaluation"},
    {"trainer"},
    {"report"},
    {"publish"},
    {"study"},
    {"cli"},
]
#: Objectives see arithmetic only, the laboratory objectives only; the policy does not know where
#: minibatches come from.
NARROW = {
    "objectives": {"numerics", "batch", "errors", "objectives"},
    "lab": {"errors", "batch", "numerics", "objectives", "lab"},
    "policy": {"batch", "errors", "numerics", "generation", "policy"},
}
#: Only these packages may import these libraries.
LIBRARIES = {
    "vllm": {"generation"},
    "math_verify": {"verifier"},
    "latex2sympy2_extended": {"verifier"},
    "peft": {"policy", "generation"},
    "lightning": {"trainer", "stream"},
    "pyarrow": {"pool", "stream", "problems", "evaluation", "trainer"},
    "ray": {"generation"},
}
#: The places that turn a config into objects; everything else takes plain arguments.
CONFIG_READERS = ("pool/build/", "evaluation/", "trainer/", "study/", "cli/", "config/")


def name_of(path):
    return str(path.relative_to(ROOT))


def package_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(path):
    """(library, package of ours or None) of every import, in both spellings."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            head, _, tail = name.partition(".")
            ours = tail.partition(".")[0] if head == "offline_rlvr" else None
            yield head, ours


def layer_of(package):
    return next((i for i, line in enumerate(LAYERS) if package in line), None)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_layers(path):
    package = package_of(path)
    if package == "__init__":
        return
    allowed = {p for line in LAYERS[: layer_of(package) + 1] for p in line}
    allowed = NARROW.get(package, allowed) | {"__version__"}
    used = {ours for _, ours in imports_of(path) if ours}
    assert used <= allowed, f"{name_of(path)} may not import {sorted(used - allowed)}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_libraries_stay_where_they_belong(path):
    for library, _ in imports_of(path):
        assert package_of(path) in LIBRARIES.get(library, {package_of(path)}), library


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_named_places_read_a_config(path):
    reads = "config" in {ours for _, ours in imports_of(path)}
    assert not reads or name_of(path).startswith(CONFIG_READERS)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_and_functions_are_short(path):
    text = path.read_text()
    assert len(text.splitlines()) < MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = node.end_lineno - node.lineno + 1
            assert lines < MAX_FUNCTION_LINES, f"{node.name} has {lines} lines"


def test_every_package_has_a_layer():
    packages = {p.name for p in ROOT.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert packages == {p for line in LAYERS for p in line if (ROOT / p).is_dir()}


def test_no_rag_bags():
    assert not {"utils", "helpers", "common", "misc"} & {path.stem for path in FILES}
