"""The Hugging Face Hub's client, and every way in which the hub refuses, told apart."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from offline_rlvr.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    from huggingface_hub import HfApi


def hub_api(token: str | None = None) -> "HfApi":
    """The hub of `HF_ENDPOINT`, by default with `HF_TOKEN` or the stored login."""
    from huggingface_hub import HfApi

    return HfApi(library_name="offline-rlvr", token=token)


@contextmanager
def explained(repo_id: str, revision: str | None = None) -> Iterator[None]:
    """Turn the client's errors in the block into ours.

    Raises:
        ConfigError: No such repository or revision, not logged in, or no right to do this.
        ResourceError: The hub cannot be reached.
    """
    from huggingface_hub import errors as hub

    login = "hf auth login, with a token that may do this"
    try:
        yield
    except hub.HFValidationError as error:
        raise ConfigError(
            f"{repo_id!r} cannot name a repository: {error}", hint="it looks like OWNER/NAME"
        ) from error
    except hub.RevisionNotFoundError as error:
        raise ConfigError(f"{repo_id} has no revision {revision!r}") from error
    except hub.RepositoryNotFoundError as error:
        raise ConfigError(
            f"there is no repository {repo_id} that this login may see",
            hint=f"check the name; for a private one: {login}",
        ) from error
    except hub.LocalTokenNotFoundError as error:
        raise ConfigError("not logged in to the hub", hint=login) from error
    except hub.OfflineModeIsEnabled as error:
        raise ResourceError(
            "the hub is switched off by HF_HUB_OFFLINE", hint="unset HF_HUB_OFFLINE"
        ) from error
    except hub.HfHubHTTPError as error:
        if error.response.status_code in (401, 403):
            raise ConfigError(f"the hub refuses {repo_id}: {error}", hint=login) from error
        raise _unreachable(error) from error
    # Whatever goes wrong below HTTP: the name is of the HTTP library that the hub library uses.
    except (
        hub.HTTPError,  # pyright: ignore[reportPrivateImportUsage]
        hub.LocalEntryNotFoundError,
        ConnectionError,
    ) as error:
        raise _unreachable(error) from error


def _unreachable(error: Exception) -> ResourceError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return ResourceError(
        f"the hub cannot be used: {reason}",
        hint="check the network (and HF_ENDPOINT), then type the same command again",
    )
