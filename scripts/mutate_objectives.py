"""Break every objective on purpose, one token at a time, and see whether a test notices.

    python scripts/mutate_objectives.py [NAME ...]     # e.g. ggpo grpo interface; default: all

Each mutant changes one place of one file in a temporary copy of the package: a sign, a factor, a
detach, a mask, which log-probs are read, a bound, a sum for a mean, a constant, a declared
property. A forked process then runs that objective's tests. Prints a table and every survivor;
exit code 1 where one survives that is not known to be the same function (`EQUIVALENT`).
"""

import argparse
import ast
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
FOLDER = Path("offline_rlvr/objectives")
#: Not objectives, but what all of them share.
SHARED = ("interface",)

FIELD = {"policy": "policy", "behavior": "behavior", "reference": "ref", "old": "old"}
OTHER = {"policy": "behavior", "behavior": "policy", "reference": "policy", "old": "behavior"}
OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
COMPARISONS = {ast.Gt: "<=", ast.GtE: "<", ast.Lt: ">=", ast.LtE: ">"}
CALLS = {
    "sum": "mean",
    "mean": "sum",
    "maximum": "minimum",
    "centered": "group_mean",
    "standardized": "leave_one_out",
    "leave_one_out": "centered",
    "softmax_weights": "log_mean_exp_gap",
    "token_mean": "token_sum",
}
#: Calls whose result is close to their first argument (or to what they are called on).
UNWRAPPED = {"clamp", "detach", "without_padding", "abs", "ratio", "future_sum", "centered"}
DECLARED = {"True": "False", "False": "True", "'none'": "'gibbs'", "'gibbs'": "'none'"}

#: (file, mutant) -> why it is the same function.
EQUIVALENT: dict[tuple[str, str], str] = {}


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    module: str
    line: int
    before: str
    after: str
    text: str

    @property
    def name(self) -> str:
        """The same in every run of the same source, whatever lines move."""
        return f"{self.before} -> {self.after}"


class Places(ast.NodeVisitor):
    """Finds (node, replacement) in the executable part of a module."""

    def __init__(self, source: str):
        self.source = source
        self.found: list[tuple[ast.AST, str]] = []

    def code(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.source, node) or ""

    def add(self, node: ast.AST, text: str) -> None:
        self.found.append((node, text))

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Messages are not arithmetic."""

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)  # indices and axes are not mutated

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for statement in node.body:  # without annotations and decorators
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.declared(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.declared(node.value)

    def declared(self, value: ast.expr) -> None:
        if isinstance(value, ast.Constant) and repr(value.value) in DECLARED:
            self.add(value, DECLARED[repr(value.value)])
        elif isinstance(value, ast.Constant) and isinstance(value.value, float):
            self.add(value, repr(value.value * 2 + 1e-3))
        else:
            self.visit(value)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        number = isinstance(node.operand, ast.Constant)
        if isinstance(node.op, ast.USub | ast.Invert) and not number:
            self.add(node, self.code(node.operand))
        if not number:
            self.visit(node.operand)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        left, right = self.code(node.left), self.code(node.right)
        if type(node.op) in OPERATORS:
            self.add(node, f"({left} {OPERATORS[type(node.op)]} {right})")
            self.add(node, f"({left})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        left, op = self.code(node.left), type(node.ops[0])
        if op in COMPARISONS:
            self.add(node, f"({left} {COMPARISONS[op]} {self.code(node.comparators[0])})")
        self.visit(node.left)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.add(node, f"({self.code(node.body)})")
        self.add(node, f"({self.code(node.orelse)})")

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, int | float) and not isinstance(node.value, bool):
            self.add(node, repr(node.value + 1))

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else self.code(node.func)
        if name == "logprobs" and len(node.args) == 2:
            which = ast.literal_eval(node.args[1])
            batch = self.code(node.args[0])
            self.add(node, f"logprobs({batch}, {OTHER[which]!r})")
            self.add(node, f"{batch}.{FIELD[which]}_logprobs.double()")
            return
        method = isinstance(node.func, ast.Attribute) and not isinstance(node.func.value, ast.Name)
        if name in UNWRAPPED and isinstance(node.func, ast.Attribute):
            of_module = self.code(node.func.value) in ("masked", "groups", "ratios")
            self.add(node, self.code(node.args[0] if of_module else node.func.value))
        if name in CALLS:
            self.add(node.func, self.code(node.func).removesuffix(name) + CALLS[name])
        if isinstance(node.func, ast.Attribute):
            self.visit(node.func.value)
        if name == "check" or (method and name in ("sum", "mean", "softmax")):
            if name == "check":
                self.add(node, "None")
            return
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if not (isinstance(argument, ast.Constant) and name in ("number", "integer", "choice")):
                self.visit(argument)


def mutants(module: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a file that is still Python and not the same program."""
    places = Places(source)
    places.visit(ast.parse(source))
    lines = source.splitlines(keepends=True)
    starts = [sum(map(len, lines[:n])) for n in range(len(lines))]
    plain = ast.dump(ast.parse(source))
    for node, after in places.found:
        begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        text = source[:begin] + after + source[end:]
        with contextlib.suppress(SyntaxError):
            if ast.dump(ast.parse(text)) != plain:
                before = " ".join(source[begin:end].split())
                line = source.count("\n", 0, begin) + 1
                yield Mutant(module, line, before, " ".join(after.split()), text)


def survives(copy: Path, name: str, *, quiet: bool = True) -> bool:
    """Whether the tests of an objective pass in the copy; runs them in a forked process."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = run_tests(copy, name, quiet)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return status == 0


def run_tests(copy: Path, name: str, quiet: bool) -> int:
    """0 where they pass."""
    if quiet:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
    import pytest

    tests = ["golden", name, "contracts", "reductions"]
    paths = [f"tests/objectives/test_{test}.py" for test in tests]
    paths = [path for path in paths if (copy / path).exists()] + ["tests/lab/test_optimum_lab.py"]
    select = [] if name in SHARED else ["-k", f"{name} or test_reductions"]
    imported = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *imported, *paths, *select]))


def main() -> None:
    """Mutate, test, report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true", help="print the mutants, test nothing")
    args = parser.parse_args()
    present = {path.stem for path in (REPOSITORY / FOLDER).glob("*.py")}
    names = args.names or sorted(present - {"__init__", "parameters"})
    os.environ["OMP_NUM_THREADS"] = "1"
    unexplained = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        skip = shutil.ignore_patterns("__pycache__")
        for part in ("offline_rlvr", "tests"):
            shutil.copytree(REPOSITORY / part, copy / part, ignore=skip)
        shutil.copy(REPOSITORY / "pyproject.toml", copy)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = folder
        sys.path.insert(0, folder)
        # Imported once, before the forks.
        import hypothesis.strategies  # noqa: F401
        import torch.distributed.tensor  # noqa: F401

        print("| file | mutants | killed | same function | survived | seconds |")
        print("|---|--:|--:|--:|--:|--:|")
        for name in names:
            unexplained += report(copy, name, only_list=args.list)
    for mutant in unexplained:
        print(f"survived: {mutant.module}.py:{mutant.line}: {mutant.name}")
    sys.exit(bool(unexplained))


def report(copy: Path, name: str, *, only_list: bool) -> list[Mutant]:
    """Test every mutant of one file; prints its row and returns who survived without a reason."""
    path = copy / FOLDER / f"{name}.py"
    source, started = path.read_text(), time.monotonic()
    found = list(mutants(name, source))
    if only_list:
        print("\n".join(f"{name}.py:{mutant.line}: {mutant.name}" for mutant in found))
        return []
    if not survives(copy, name):
        survives(copy, name, quiet=False)
        sys.exit(f"the tests of {name} fail without any mutation")
    alive = []
    for number, mutant in enumerate(found):
        path.write_text(mutant.text)
        # Python takes a cached bytecode file for this one's where second and size are the same.
        os.utime(path, (number, number))
        if survives(copy, name):
            alive.append(mutant)
    path.write_text(source)
    same = [mutant for mutant in alive if (name, mutant.name) in EQUIVALENT]
    left = [mutant for mutant in alive if mutant not in same]
    killed, seconds = len(found) - len(alive), time.monotonic() - started
    print(
        f"| {name} | {len(found)} | {killed} | {len(same)} | {len(left)} | {seconds:.0f} |",
        flush=True,
    )
    return left


if __name__ == "__main__":
    main()
