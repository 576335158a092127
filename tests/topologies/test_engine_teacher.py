"""A teacher that vLLM serves, one real engine for the whole module, against the same model on a training back end (`fsdp2`, the
model of transformers). Log-probs of both in float32 may differ by 1e-4: another order of additions."""

import asyncio
import sys
import threading

import pytest
import torch
from tiny_models import FOR_VLLM, numbered_tokenizer, tiny_qwen2
from train_specs import train_spec

from roll.core.data.token_batch import TokenBatch
from roll.core.workers.train_interface import RankContext
from roll.core.workers.workers import TrainWorker
from roll.platform.ports import free_port
from roll.topologies.teaching.engine_teacher import EngineTeacher

pytest.importorskip("vllm", reason="needs requirements/vllm.txt")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("vllm")]

VOCABULARY, TEMPERATURE, TOP, LONGEST = 70, 0.8, 75, 40
EXACT = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that takes no longer texts than the batch has."""
    path = tmp_path_factory.mktemp("teacher")
    tiny_qwen2(VOCABULARY, seed=3, **FOR_VLLM | {"max_position_embeddings": LONGEST}).save_pretrained(path)
    numbered_tokenizer(VOCABULARY).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def batch():
    """Twelve samples of 2 to 40 tokens; of one, tokens between others are not the policy's, and one has none."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([2, 40, 7, 19, 33, 5, 12, 40, 3, 28, 9, 16])
    masks = [torch.arange(length) >= max(1, length // 3) for length in lengths.tolist()]
    masks[3][9:12], masks[5][:] = False, False
    count = int(lengths.sum())
    return TokenBatch(
        lengths=lengths,
        scores=torch.zeros(len(lengths)),
        temperatures=torch.full((len(lengths),), TEMPERATURE),
        tokens=torch.randint(VOCABULARY, (count,), generator=generator),
        loss_mask=torch.cat(masks),
        behaviour_logprobs=torch.zeros(count),
        advantages=torch.zeros(count),
    )


@pytest.fixture(scope="module")
def scored(folder, batch):
    worker = TrainWorker(RankContext(master_port=free_port()), train_spec("fsdp2_infer", folder, dtype="fp32"))
    return worker.teach(batch, TOP)


@pytest.fixture(scope="module", params=["here", "elsewhere"])
def taught(folder, batch, request):
    """All samples at once, of an engine in this interpreter, and of one in another. A batch of the engine has fewer tokens."""
    options = {"model_path": str(folder), "max_running_requests": 4, "max_length": LONGEST, "max_tokens": 48, "top": TOP}
    options |= {"temperature": TEMPERATURE, "dtype": "float32", "threads": 1, "seed": 0, "devices": ["cpu"]}
    options["engine_args"] = {"python": sys.executable} if request.param == "elsewhere" else {}
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def ask():
        teacher = EngineTeacher("vllm", options)
        try:
            return await teacher.teach(batch, TOP)
        finally:
            await teacher.close()

    yield asyncio.run_coroutine_threadsafe(ask(), loop).result(300)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def test_log_probs_are_those_of_the_model_at_the_sampling_temperature(taught, scored):
    assert taught[0].dtype == scored[0].dtype
    assert len(taught[0]) == len(scored[0]) > 100
    torch.testing.assert_close(taught[0], scored[0], atol=EXACT, rtol=0)


def test_the_most_probable_tokens_are_the_models_and_what_is_asked_beyond_the_vocabulary_is_impossible(taught, scored):
    """Tokens of nearly the same probability may change places."""
    (_, ids, most), (_, wanted_ids, wanted) = taught, scored
    assert ids.shape == wanted_ids.shape == (len(wanted), TOP)
    assert bool((most[:, VOCABULARY:] == -torch.inf).all())
    torch.testing.assert_close(most, wanted, atol=EXACT, rtol=0)
    own = torch.full((len(ids), VOCABULARY), torch.nan).scatter(1, ids[:, :VOCABULARY].long(), most[:, :VOCABULARY])
    other = torch.full((len(ids), VOCABULARY), torch.nan).scatter(1, wanted_ids[:, :VOCABULARY].long(), wanted[:, :VOCABULARY])
    torch.testing.assert_close(own, other, atol=EXACT, rtol=0)
