"""Break every objective on purpose, one token at a time, and see whether a test notices.

    python scripts/mutate_objectives.py [NAME ...]     # e.g. ggpo grpo interface; default: all

Each mutant changes one place of one file in a temporary copy of the package: a sign, a factor, a
detach, a mask, which log-probs are read, a bound, a sum for a mean, a constant, a declared
property. Then that objective's tests run until the first failure. Prints a table and every
survivor; exit code 1 where one survives that is not known to be the same function (`EQUIVALENT`).
"""

import argparse
import ast
import contextlib
import importlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

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

DETACHED = "output() and score_output() detach the coefficients once more"
STRIPPED = "the loss is stripped of padding later, and no gradient passes a clamp at junk"
_POLICY, _DETACHED_POLICY = 'logprobs(batch, "policy")', 'logprobs(batch, "policy").detach()'
#: (file, mutant) -> why it is the same function.
EQUIVALENT: dict[tuple[str, str], str] = {
    ("ggpo", "adjusted.detach() -> (adjusted)"): DETACHED,
    ("grpo", "log_ratio.detach() -> (log_ratio)"): DETACHED,
    ("grpo", "to_reference.detach() -> (to_reference)"): DETACHED,
    ("grpo", f"{_POLICY} -> batch.policy_logprobs.double()"): STRIPPED,
    ("grpo_tis", f"{_POLICY} -> batch.policy_logprobs.double()"): STRIPPED,
    ("maxrl", "1.0 -> 2.0"): "divides the zeros of a group whose mean is 0",
}
for _name in ("agro", "cispo", "ggpo_clipped", "pg", "proximal_kl", "topr"):
    EQUIVALENT[_name, f"{_DETACHED_POLICY} -> ({_POLICY})"] = DETACHED


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
            self.add(node, f"({self.code(node.args[0] if of_module else node.func.value)})")
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


class MutationLoop:
    """A pytest plugin that runs the collected tests once per mutant, each time in a fork.

    Imports and collection are paid for once; a fork loads the objectives anew.
    """

    def __init__(self, names: list[str]):
        self.names = names
        self.unexplained = 0

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of pytest's own loop."""
        print("| file | mutants | killed | same function | survived | seconds |")
        print("|---|--:|--:|--:|--:|--:|", flush=True)
        for name in self.names:
            self.unexplained += self.test_file(session.items, name)
        return True

    def test_file(self, items: list[pytest.Item], name: str) -> int:
        """Test every mutant of one file; prints its row and who survives without a reason."""
        if name not in SHARED:
            items = [i for i in items if name in i.nodeid or "test_reductions" in i.nodeid]
        path = FOLDER / f"{name}.py"
        source, started = path.read_text(), time.monotonic()
        if not survives(items):
            sys.exit(f"the tests of {name} fail without any mutation")
        found, alive = list(mutants(name, source)), []
        for number, mutant in enumerate(found):
            path.write_text(mutant.text)
            # Python takes a cached bytecode file for this one's where second and size are equal.
            os.utime(path, (number, number))
            if survives(items):
                alive.append(mutant)
        path.write_text(source)
        left = [mutant for mutant in alive if (name, mutant.name) not in EQUIVALENT]
        row = (len(found), len(found) - len(alive), len(alive) - len(left), len(left))
        seconds = f"{time.monotonic() - started:.0f}"
        print(f"| {name} | {' | '.join(map(str, row))} | {seconds} |", flush=True)
        for mutant in left:
            print(f"survived: {name}.py:{mutant.line}: {mutant.name}", file=sys.stderr, flush=True)
        return len(left)


def survives(items: list[pytest.Item]) -> bool:
    """Whether all tests pass on what the objectives' files say now."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            code = run(items)
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def run(items: list[pytest.Item]) -> int:
    """0 where all tests pass; stops at the first that fails."""
    from offline_rlvr.objectives import interface

    for module in [name for name in sys.modules if name.startswith("offline_rlvr.objectives.")]:
        del sys.modules[module]
    # Tests hold this module itself, so it is filled anew instead.
    sys.modules[interface.__name__] = interface
    importlib.reload(interface)
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if item.session.testsfailed:
            return 1
    return 0


def main() -> None:
    """Mutate, test, report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true", help="print the mutants, test nothing")
    args = parser.parse_args()
    present = {path.stem for path in (REPOSITORY / FOLDER).glob("*.py")}
    names = args.names or sorted(present - {"__init__", "parameters"})
    if args.list:
        for name in names:
            for mutant in mutants(name, (REPOSITORY / FOLDER / f"{name}.py").read_text()):
                print(f"{name}.py:{mutant.line}: {mutant.name}")
        return
    loop = MutationLoop(names)
    with tempfile.TemporaryDirectory() as folder:
        for part in ("offline_rlvr", "tests"):
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / part, Path(folder) / part, ignore=skip)
        shutil.copy(REPOSITORY / "pyproject.toml", folder)
        os.chdir(folder)
        sys.path.insert(0, folder)
        tests = ["tests/objectives", "tests/lab/test_optimum_lab.py"]
        quiet = ["-s", "-qqq", "--no-summary", "-p", "no:cacheprovider"]
        code = pytest.main([*quiet, *tests], plugins=[loop])
    sys.exit(code or bool(loop.unexplained))


if __name__ == "__main__":
    main()
