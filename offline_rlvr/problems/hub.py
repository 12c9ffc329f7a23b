"""Problems from the Hugging Face hub or a local copy of a data set, through `datasets`."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_rlvr.errors import ConfigError, DataError, ResourceError
from offline_rlvr.problems.rows import Columns, Row, problems_of
from offline_rlvr.records import Problem

if TYPE_CHECKING:
    from datasets import Dataset


def load(
    path: str,
    split: str = "train",
    revision: str | None = None,
    subset: str | None = None,
    data_files: str | list[str] | None = None,
    question: str = "question",
    answer: str = "answer",
    id: str = "id",
    where: dict[str, dict[str, Any]] | None = None,
    limit: int | None = None,
) -> list[Problem]:
    """Read one split of a data set.

    Columns may be paths into nested values: `prompt.0.content`, `reward_model.ground_truth`, and
    `scores.mean` for the mean of a list of numbers.

    Args:
        path: A hub id (`owner/name`), a local folder, or a format (`parquet`, `json`, `csv`) whose
            files `data_files` names.
        split: The split; slices such as `train[:1000]` too.
        revision: The commit of a hub data set. May be left out, but pin it: without it the newest
            commit is read, and the same config may give other problems tomorrow.
        subset: The configuration of a data set that has several.
        data_files: Only these files of the data set.
        question: Column of the question.
        answer: Column of the gold answer; numbers become their exact text.
        id: Column of the id. Where there is none, ids are the last part of `path` and the number of
            the row in the split, from 0.
        where: Keep rows that meet every condition: column -> `{above: x, below: y}` (strict, one
            may be left out) or `{equals: v}`.
        limit: Read at most so many problems.

    Raises:
        ConfigError: No such data set, subset, split, file or column, or a wrong condition.
        DataError: A damaged row, or an empty or missing value; with data set and row.
        ResourceError: The hub cannot be reached.
    """
    columns = Columns(question, answer, id, where)
    if not isinstance(split, str) or not split:
        raise ConfigError(f"hub: split is {split!r}; expected the name of one split, e.g. 'train'")
    path = os.path.expanduser(path)
    # What cannot be a hub id must exist: found out before the network is asked.
    local = path.startswith((".", os.sep)) or path.count("/") > 1
    if local and not os.path.exists(path):
        raise ConfigError(f"there is no data set {path!r}", hint="give a folder or a hub id")
    source = f"data set {path!r}, split {split!r}"
    dataset = _load_dataset(
        source, path=path, name=subset, revision=revision, data_files=data_files, split=split
    )
    return problems_of(source, Path(path).absolute().name, _rows(dataset, columns), columns, limit)


def _load_dataset(source: str, **arguments: Any) -> "Dataset":
    """The split as a table, every way in which that fails told apart."""
    import datasets
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return datasets.load_dataset(**arguments)
    except DatasetGenerationError as error:
        reason = error.__cause__ or error
        raise DataError(f"{source}: damaged: {reason}") from error
    except (ConnectionError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise ResourceError(
            f"{source} cannot be fetched from the Hugging Face hub: {error}",
            hint="without a network, set HF_HUB_OFFLINE=1 to read an earlier download, or copy the "
            "data set here and give its folder as `path`",
        ) from error
    except DatasetNotFoundError as error:
        raise ConfigError(
            f"{source}: {error}", hint="check path and revision; for a gated one: `hf auth login`"
        ) from error
    except (FileNotFoundError, ValueError) as error:
        # An unknown split, subset or file: `datasets` lists what there is.
        raise ConfigError(f"{source}: {error}") from error
    except OSError as error:
        raise ResourceError(
            f"{source} cannot be read: {error}", hint="check the disk; HF_HOME moves the cache"
        ) from error


def _rows(dataset: "Dataset", columns: Columns) -> Iterator[Row]:
    there = set(dataset.column_names)
    used = {path if path in there else path.split(".")[0] for path in columns.required}
    if used <= there:
        # Stored responses or images beside the question would be decoded for nothing.
        dataset = dataset.select_columns(sorted(used | ({"id"} & there)))
    for number, row in enumerate(dataset):
        yield f"row {number}", dict(row)
