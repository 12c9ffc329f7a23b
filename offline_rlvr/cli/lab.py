"""The verb `lab`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from offline_rlvr.errors import ConfigError, QualityGateError


def lab(
    *,
    output: Annotated[Path, Parameter(alias="-o")] = Path("runs/lab"),
    beta: float = 0.5,
    steps: int = 1000,
    seed: int = 0,
    quick: bool = False,
) -> None:
    """Measure both papers' theory: who finds the Gibbs policy from whose data.

    On a tree of 15 responses (3 tokens, 3 steps) every expectation is exact. Each objective starts
    at the reference and follows its expected update, with responses drawn by the learner itself
    (on policy), by a fixed older policy (stale), or by two of them (mixed). What you see:

    1. a table and a figure of the total variation between learner and Gibbs policy
       `pi_ref exp(r / beta)` over flow time. GGPO, AGRO and Proximal KL with the full tail go to 0
       under every behavior; PPO clipping, PG and CISPO come to rest elsewhere, or nowhere;
    2. the papers' statements, each as a prediction beside its measurement;
    3. what a short horizon or a cost bound of Proximal KL costs in bias and saves in variance.

    The objectives are those that train. About a minute on one CPU core. Exit code 6 where a
    measurement contradicts its prediction.

    Parameters
    ----------
    output
        Folder for lab.md (the tables), lab.png, lab.svg (the figure), lab.json (every number).
    beta
        Temperature of the Gibbs policy, in units of reward.
    steps
        Length of the flows.
    seed
        Of the random policies.
    quick
        Flows of 30 steps, for a first look.
    """
    if not beta > 0 or steps < 1:
        raise ConfigError(f"beta {beta:g}, steps {steps}", hint="both must be positive")
    from offline_rlvr.lab import Bench, Curve, Tree, cases, compare, statements, tradeoffs
    from offline_rlvr.progress import Progress
    from offline_rlvr.report.laboratory import Results, write_laboratory

    bench, steps = Bench(Tree(), beta=beta, seed=seed), 30 if quick else steps
    curves: list[Curve] = []
    total = sum(1 for _ in cases(beta)) * len(bench.behaviors)
    with Progress("flows", total, "curves") as progress:
        for curve in compare(bench, steps):
            curves.append(curve)
            progress.update(len(curves))
    found = Results(bench, steps, curves, statements(bench), tradeoffs(bench, steps))
    print(write_laboratory(found, output))
    print(f"figure: {output / 'lab.png'}  (also lab.svg, lab.md, lab.json)")
    wrong = [statement for statement in found.statements if not statement.holds]
    if wrong:
        raise QualityGateError(
            f"{len(wrong)} of {len(found.statements)} statements do not hold: "
            + "; ".join(f"{s.about}: {s.text}" for s in wrong),
            hint="the flows may need more time at this beta and seed: see `measured` above",
        )
