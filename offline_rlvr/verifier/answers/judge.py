"""Worker side of the mathematical verifier: one gold, one answer, one status."""

from functools import lru_cache

from offline_rlvr.verifier.answers import scalars
from offline_rlvr.verifier.answers.compare import same
from offline_rlvr.verifier.answers.latex import clean
from offline_rlvr.verifier.answers.literals import literal
from offline_rlvr.verifier.answers.nodes import (
    BaseNumber,
    Malformed,
    MatrixNode,
    Node,
    Scalar,
    Seq,
    Words,
)
from offline_rlvr.verifier.answers.structure import parse


class Judge:
    """Compares answers with golds; pure, so every worker says the same.

    Args:
        max_answer_chars: A longer answer is incorrect without being read.
    """

    def __init__(self, max_answer_chars: int):
        self.max_answer_chars = max_answer_chars
        for warm in (r"\frac{\sqrt{2}+x}{3}", "(1,2)"):  # the grammar learns while it parses
            self("x", warm)

    def __call__(self, gold: str, answer: str | None) -> list[str]:
        """`[status, note]`; a status of the verdict, never a failure of the verifier."""
        try:
            gold_node = readable(gold)
        except Malformed as reason:
            return ["gold_unparseable", f"the gold answer {gold[:200]!r} {reason}"]
        if answer is None:
            return ["no_answer", ""]
        if len(answer) > max(self.max_answer_chars, 2 * len(gold)) and literal(answer) is None:
            return ["incorrect", "too long"]
        try:
            text = clean(answer)
            node = parse(text)
            if same(gold_node, node) or same_ungrouped(gold, gold_node, text, node):
                return ["correct", ""]
        except Malformed as reason:
            return ["incorrect", str(reason)]
        return ["incorrect", ""]


def same_ungrouped(gold: str, gold_node: Node, answer: str, node: Node) -> bool:
    """`1,234` is a number, but beside a list it is a list."""
    if isinstance(gold_node, Seq) and isinstance(node, Scalar):
        other = parse(answer, as_list=True)
        return isinstance(other, Seq) and same(gold_node, other)
    if isinstance(node, Seq) and isinstance(gold_node, Scalar):
        other = parse(clean(gold), as_list=True)
        return isinstance(other, Seq) and same(other, node)
    return False


@lru_cache(maxsize=1024)
def readable(gold: str) -> Node:
    """The parsed gold, every scalar in it read whole.

    Raises:
        Malformed: It cannot be used.
    """
    node = parse(clean(gold))
    check(node)
    return node


def check(node: Node) -> None:
    """Read every scalar of a tree. Raises: Malformed."""
    if isinstance(node, Scalar):
        if node.text not in (r"\mathbb{R}", r"\R"):
            scalars.expression(node.text)
    elif isinstance(node, MatrixNode):
        for row in node.rows:
            for cell in row:
                check(cell)
    elif not isinstance(node, Words | BaseNumber):
        children = getattr(node, "items", None)
        for child in node.parts if children is None else children:  # pyright: ignore
            check(child)
