"""The Ray back-end on this machine: CPU workers, each with the built-in model in `hf`."""

import signal
import sys
import threading
import time

import psutil
import pytest

from offline_rlvr import generation
from offline_rlvr.errors import ConfigError, DataError, IncompatibleError, ResourceError
from offline_rlvr.generation import Sampling, seed_for
from offline_rlvr.generation.pretrained import BUILTIN_FOLDER, load_tokenizer
from offline_rlvr.generation.prompt import PromptFormat, stop_token_ids

ray = pytest.importorskip("ray")

#: Log-probs of one token in batches of other shapes, in nats.
KERNEL_NOISE = 1e-4


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One Ray for the whole file; the back-end finds it running and leaves it running."""
    found = signal.getsignal(signal.SIGTERM)
    ray.init(
        "local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    yield
    ray.shutdown()
    signal.signal(signal.SIGTERM, found)


@pytest.fixture(scope="module")
def sampling():
    return Sampling(24, stop_token_ids=stop_token_ids(BUILTIN_FOLDER, load_tokenizer("builtin")))


@pytest.fixture(scope="module")
def work():
    """40 prompts of additions, 4 seeds each."""
    tokenizer = load_tokenizer("builtin")
    prompts = [PromptFormat().render(tokenizer, f"{i} + {i % 7} = ?") for i in range(40)]
    return prompts, [[seed_for(0, i, k) for k in range(4)] for i in range(40)]


@pytest.fixture(scope="module")
def expected(sampling, work):
    return generation.load("hf", name_or_path="builtin", sampling=sampling).submit(*work)()


def load_ray(sampling, **settings):
    settings = {"workers": 2, "gpus_per_worker": 0, "backend": {"name": "hf"}, **settings}
    settings = {"name_or_path": "builtin", "device": "cpu", "sampling": sampling, **settings}
    return generation.load("ray", **settings)


@pytest.fixture(scope="module")
def generator(sampling):
    """Two workers, which hold both CPUs of the cluster."""
    made = load_ray(sampling, slices_per_worker=10)
    yield made
    made.close()


def actors():
    """Processes of the sampling workers, children of this process's Ray."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.name().startswith("ray::Sampler")]


def same(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert one.token_ids == other.token_ids
            assert (one.text, one.finish_reason, one.seed) == (
                other.text,
                other.finish_reason,
                other.seed,
            )
            assert one.behavior_logprobs == pytest.approx(other.behavior_logprobs, abs=KERNEL_NOISE)
    return True


def test_the_responses_are_those_of_one_process_in_input_order(generator, work, expected):
    used = {process.pid: sum(process.cpu_times()[:2]) for process in actors()}
    assert len(used) == 2
    prompts, seeds = work
    # Two submissions under way, the later one waited for first.
    first = generator.submit(prompts[:25], seeds[:25])
    second = generator.submit(prompts[25:], seeds[25:])
    assert same(second(), expected[25:])
    assert same(first(), expected[:25])
    assert generator.submit([], [])() == []
    assert all(sum(process.cpu_times()[:2]) > used[process.pid] for process in actors())


def test_an_error_of_ours_comes_back_as_itself_and_is_not_tried_again(generator, work, expected):
    before = {process.pid for process in actors()}
    with pytest.raises(DataError, match="prompt 0 is empty"):
        generator.submit([[]], [[1]])()
    prompts, seeds = work
    with pytest.raises(IncompatibleError, match="positions") as caught:
        generator.submit([prompts[0] * 1000], [seeds[0]])()
    assert "lower max_new_tokens" in caught.value.hint
    assert same(generator.submit(prompts[:3], seeds[:3])(), expected[:3])
    assert {process.pid for process in actors()} == before


def test_workers_that_find_no_place_in_time(generator, sampling):
    with pytest.raises(ResourceError, match="not ready within 1 s"):
        load_ray(sampling, start_timeout_s=1)


def test_a_killed_worker_is_replaced_and_changes_nothing(generator, work, expected, capfd):
    victim, other = actors()
    # Stopped, so that both certainly have slices that are not done.
    victim.suspend()
    other.suspend()
    pending = generator.submit(*work)
    time.sleep(0.3)
    victim.kill()
    other.resume()
    assert same(pending(), expected)
    assert same(generator.submit(*work)(), expected)
    assert victim.pid not in [process.pid for process in actors()]
    assert "was lost and is replaced" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"backend": None}, ConfigError, "backend.name is None; allowed: hf"),
        ({"backend": {"name": "ray"}}, ConfigError, "backend.name is 'ray'"),
        ({"workers": 0}, ConfigError, "workers is 0"),
        ({"gpus_per_worker": -1}, ConfigError, "gpus_per_worker is -1"),
        ({"workers": 3}, ResourceError, "places for 2"),
        ({"gpus_per_worker": 1}, ResourceError, "places for 0"),
    ],
)
def test_what_cannot_be_used_is_refused(sampling, settings, error, words):
    with pytest.raises(error, match=words):
        load_ray(sampling, **settings)
    assert ray.is_initialized()


def test_a_missing_package_says_what_to_type(monkeypatch, sampling):
    for module in ("ray", "ray_cluster"):
        monkeypatch.delitem(sys.modules, f"offline_rlvr.generation.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ResourceError, match="needs the package ray") as caught:
        load_ray(sampling)
    assert caught.value.hint == 'pip install "offline-rlvr[ray]"'


def test_close_ends_the_workers_and_not_a_ray_it_found_running(generator, work):
    generator.close()
    generator.close()
    deadline = time.monotonic() + 20
    while actors() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not actors()
    assert ray.is_initialized()
    with pytest.raises(ResourceError, match="were closed"):
        generator.submit(*work)


def test_what_loading_raises_comes_back_as_itself(sampling):
    with pytest.raises(ConfigError, match="'hf' has no setting 'batch'"):
        load_ray(sampling, workers=1, backend={"name": "hf", "batch": 3})


def test_workers_that_keep_dying_end_in_an_error(sampling, work):
    generator = load_ray(sampling, workers=1, slices_per_worker=1)
    stop = threading.Event()

    def hunt():
        while not stop.wait(0.05):
            for process in actors():
                process.kill()

    hunter = threading.Thread(target=hunt)
    pending = generator.submit(*work)
    hunter.start()
    try:
        with pytest.raises(ResourceError, match="lost") as caught:
            pending()
        assert "ray status" in str(caught.value.hint)
        with pytest.raises(ResourceError, match="lost"):
            generator.submit(*work)()
    finally:
        stop.set()
        hunter.join()
        generator.close()
