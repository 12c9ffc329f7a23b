"""`offline-rlvr run ...`: show a run to others: card, hub, cost, other tools' result files."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def card(run: Path, *, pool_repo: str | None = None) -> None:
    """Print the model card that `run push` uploads.

    Parameters
    ----------
    run
        The run's folder.
    pool_repo
        OWNER/NAME of the pool, when it was pushed.
    """
    from offline_rlvr.publish.card import render

    print(render(run, pool_repo))


def push(
    run: Path,
    repo_id: str,
    *,
    private: Annotated[bool, Parameter(negative="--public")] = True,
    revision: str | None = None,
    pool_repo: str | None = None,
    best: bool = False,
    token: str | None = None,
) -> None:
    """Upload a run's newest or best model or adapter to the Hugging Face Hub, with card and record.

    transformers and PEFT load the repository as it is; config, plan, metrics, ledger and
    evaluations lie under run/. The optimizer is not sent.

    Parameters
    ----------
    run
        The run's folder.
    repo_id
        OWNER/NAME; made when missing.
    private
        Whether a new repository is private.
    revision
        Branch to upload to; by default main.
    pool_repo
        OWNER/NAME of the pool, when it was pushed; the card links it.
    best
        Send the checkpoint with the best held-out accuracy; train.keep_best keeps it.
    token
        By default HF_TOKEN or the login of `hf auth login`, which no process list shows.
    """
    from offline_rlvr.hub import hub_api
    from offline_rlvr.publish.hub import push as upload

    commit = upload(
        run,
        repo_id,
        private=private,
        revision=revision,
        pool_repo=pool_repo,
        best=best,
        api=hub_api(token),
    )
    print(f"{repo_id} at {commit}")


def cost(*runs: Path) -> None:
    """Tokens and hours: sampling a pool once against training each run, and a run's fair share.

    Parameters
    ----------
    runs
        Runs' folders; runs on one pool share its cost equally.
    """
    from offline_rlvr.errors import ConfigError
    from offline_rlvr.publish.cost import RunCost, format_costs

    if not runs:
        raise ConfigError("no run is named", hint="offline-rlvr run cost runs/*")
    print("\n".join(format_costs([RunCost.of(run) for run in runs])))


def export(
    run: Path,
    output: Path,
    *,
    layout: Annotated[str, Parameter(name="--format")],
) -> None:
    """Write a run's evaluations as inspect's logs or lighteval's results and details.

    Parameters
    ----------
    run
        The run's folder.
    output
        The folder to write into, e.g. for `inspect view --log-dir`.
    layout
        inspect or lighteval.
    """
    from offline_rlvr.publish.export import export as write

    for file in write(run, output, layout):
        print(file)
