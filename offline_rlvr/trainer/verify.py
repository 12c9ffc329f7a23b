"""The proof, from the run folder alone, that every group counted exactly once."""

from pathlib import Path

from offline_rlvr.errors import DataError
from offline_rlvr.stream import Plan, check_ledger, read_rows
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.folder import RunFolder


def verify_run(path: Path) -> str:
    """Check plan, ledger and the newest checkpoint against each other.

    Returns:
        One plain sentence.

    Raises:
        DataError: What does not fit.
    """
    run = RunFolder.open(path)
    plan = Plan.load(path / "plan.parquet")
    if plan.hash != run.facts["plan"]["hash"]:
        raise DataError(f"{path / 'plan.parquet'} is not the plan that run.json names")
    folders = sorted(run.checkpoints.glob("update-??????"))
    if not folders:
        raise DataError(
            f"{path} has no checkpoint yet", hint="train until the first one is written"
        )
    checkpoints.verify(folders[-1])
    applied = checkpoints.read_state(folders[-1])["applied"]
    rows = [row for row in read_rows(path / "ledger.jsonl") if row["update"] <= applied]
    check_ledger(plan, rows, applied)
    groups = sum(len(plan.groups(update)) for update in range(1, applied + 1))
    return (
        f"{path}: the weights of update {applied} of {plan.updates} hold {groups} of "
        f"{len(plan.group_ids)} groups, each exactly once, in plan order"
    )
