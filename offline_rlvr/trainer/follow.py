"""One of the further processes of a training; started by `trainer.launch`, never by hand.

It does everything the first process does but write, print, evaluate and log.
"""

import json
import signal
import sys
from pathlib import Path

from offline_rlvr.config import Config
from offline_rlvr.errors import IncompatibleError, OfflineRlvrError
from offline_rlvr.progress import Progress
from offline_rlvr.stream import Plan
from offline_rlvr.trainer.boundary import StopRequest, UpdateBoundary
from offline_rlvr.trainer.checkpoints import UpdateCheckpointIO
from offline_rlvr.trainer.fit import fit, make_module
from offline_rlvr.trainer.launch import end_with_the_command, meeting, store_of
from offline_rlvr.trainer.ranks import Ranks
from offline_rlvr.trainer.record import Recorder
from offline_rlvr.trainer.setup import set_up


def follow(
    ranks: Ranks, port: int, config: Config, run: Path, pool: Path, newest: Path | None
) -> None:
    """Take part in the training of a run.

    Args:
        ranks: Which process this is.
        port: Where the first one waits.
        config: The job, as the first one has it.
        run: The run's folder.
        pool: The pool's folder.
        newest: The checkpoint to start from.
    """
    setup = set_up(config, pool)
    if setup.plan.hash != Plan.load(run / "plan.parquet").hash:
        raise IncompatibleError(
            f"the pool {pool} has changed since the first process opened it",
            hint="let `pool build` end, then type the same command again",
        )
    device = ranks.device(config.model.device)
    with meeting(ranks, store_of(ranks, port), device), StopRequest().listening() as stop:
        module = make_module(config, setup, run, ranks, record=lambda result: None)
        recorder = Recorder(run, 0)  # is given nothing, and writes nothing
        boundary = UpdateBoundary(
            folder=run / "checkpoints",
            recorder=recorder,
            begun=lambda: None,
            last=setup.last,
            checkpoint_every=config.train.checkpoint_every,
            keep=config.train.keep_checkpoints,
            evaluate_every=config.evaluation.every,
            evaluate=lambda update: None,
            best=lambda: None,
            stop=stop,
            progress=Progress("updates", setup.last, "updates"),
        )
        io = UpdateCheckpointIO(lambda folder, weights: None, recorder.ledger)
        fit(config, setup, run, module, [boundary], io, [], newest)


def main() -> None:
    """Follow the job that the command line holds as JSON; exit as the command would."""
    for number in (signal.SIGINT, signal.SIGTERM):  # until an update can be finished first
        signal.signal(number, signal.SIG_IGN)
    end_with_the_command()
    job = json.loads(sys.argv[1])
    newest = job["newest"] and Path(job["newest"])
    ranks = Ranks(job["rank"], job["size"], job["sharded"])
    config = Config.model_validate(job["config"])
    run, pool = Path(job["run"]), Path(job["pool"])
    try:
        follow(ranks, job["port"], config, run, pool, newest)
    except OfflineRlvrError as error:
        print(f"error[{error.code}]: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
