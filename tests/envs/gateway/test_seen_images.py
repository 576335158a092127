"""Programs show images in three dialects: one stored file, one expansion; what is no image is a clear refusal of the dialect."""

import asyncio
import base64
import json
from functools import partial

import numpy as np
import pytest
import tiny_vision
from gateway_world import END, SPECIAL, SYMBOLS, TEMPLATE, World, call, make_tokenizer, user
from tiny_models import symbol_tokenizer

from roll.chat.samples import Outcome, episode_samples
from roll.core.configs.arguments import ImageArguments
from roll.core.data.episode import EpisodeTask
from roll.envs.frames import png
from roll.prompts.image_folder import ImageFolder, images_in
from roll.prompts.image_marks import mark
from roll.prompts.shown_images import ShownImages
from roll.strategies.vision.named_images import NamedImages

SIGN = "<image>"
PARTS = (
    "{% macro shown(content) %}{% if content is string %}{{ content }}{% else %}{% for part in content %}"
    "{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}{% endif %}{% endmacro %}"
)
SEEING = PARTS + TEMPLATE.replace("{{ message.content }}", "{{ shown(message.content) }}")
RED, BLUE = (png(np.full((16, 16, 3), colour, np.uint8)) for colour in ([200, 0, 0], [0, 0, 200]))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """What is read of a model's folder to show images: its kind, the token of an image, the processor."""
    folder = tmp_path_factory.mktemp("seeing")
    config = tiny_vision.qwen2_5_vl().config.to_dict() | {"image_token_id": len(SYMBOLS)}
    (folder / "config.json").write_text(json.dumps(config))
    tiny_vision.save_processor(folder)
    return folder


@pytest.fixture
def world(model, tmp_path):
    pattern = "<(?:pad|eos|im_start|im_end|image)>|[\\s\\S]"
    tokenizer = symbol_tokenizer([*SYMBOLS, SIGN], pattern, chat_template=SEEING, model_max_length=100_000)
    tokenizer.eos_token = SPECIAL[END]

    def make(says=("a", "b", "c", "d"), **more):
        seeing = partial(NamedImages, model, tmp_path)
        show = ShownImages(ImageArguments(), ImageFolder(tmp_path))
        return World(says, tokenizer=tokenizer, seeing=seeing, show=show, **more)

    return make


def data_url(content, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def chat_part(url):
    return {"type": "image_url", "image_url": {"url": url}}


def source(content, kind="image/png"):
    return {"type": "base64", "media_type": kind, "data": base64.b64encode(content).decode()}


def stored(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


async def asked_by(world, dialect, content):
    """The status and body of one call with an image, and its text."""
    text = {"type": "text", "text": "see "}
    if dialect == "chat":
        return await world.chat([user([text, chat_part(data_url(content))])])
    if dialect == "responses":
        parts = [{"type": "input_text", "text": "see "}, {"type": "input_image", "image_url": data_url(content)}]
        return await world.post("v1/responses", {"model": "m", "input": [{"role": "user", "content": parts}]})
    body = {"model": "m", "max_tokens": 9, "messages": [user([text, {"type": "image", "source": source(content)}])]}
    return await world.post("v1/messages", body)


def test_three_dialects_show_one_image_as_the_same_tokens(world, tmp_path):
    async def run():
        async with world() as open_world:
            answers = [await asked_by(open_world, dialect, RED) for dialect in ("chat", "responses", "messages")]
            assert [answer.status_code for answer in answers] == [200] * 3, [answer.text for answer in answers]
            return [ids for ids, *_ in open_world.asked], open_world

    contexts, open_world = asyncio.run(run())
    (name,) = stored(tmp_path)
    number = ImageFolder(tmp_path).number_of(name)
    assert contexts[0] == contexts[1] == contexts[2] and images_in(contexts[0]) == [number]
    assert contexts[0].count(number) == 4, "16 x 16 pixels are four features"
    told = open_world.session.forest.answers[0]
    assert told.news == [{"role": "user", "content": f"see {mark(name)}"}]


def test_a_conversation_with_images_goes_on_from_its_own_tokens(world, tmp_path):
    """Images come back with each request; each context begins with the one before and its answer, to the token."""

    async def run():
        async with world([call(), "x", "y", "z"]) as open_world:
            messages = [user([chat_part(data_url(RED))])]
            first = await open_world.say(messages, [{"type": "function", "function": {"name": "price", "parameters": {}}}])
            tools = [{"type": "function", "function": {"name": "price", "parameters": {}}}]
            seen = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": [chat_part(data_url(BLUE))]}
            messages += [first, seen]
            messages += [await open_world.say(messages, tools), user([chat_part(data_url(RED))])]
            await open_world.say(messages, tools)
            outcome = Outcome(reward=1.0, success=True, end="terminated", generation_s=0.0, metrics={})
            task = EpisodeTask(uid="u", tag="t", index=0, env_seed=0)
            return open_world, episode_samples(open_world.session.forest, task, outcome)

    open_world, samples = asyncio.run(run())
    contexts = [ids for ids, *_ in open_world.asked]
    for before, answer, after in zip(contexts, open_world.answered, contexts[1:], strict=False):
        assert after[: len(before) + len(answer.token_ids)] == [*before, *answer.token_ids]
    (sample,) = samples
    numbers = [ImageFolder(tmp_path).number_of(name) for name in stored(tmp_path)]
    whole = [*sample.prompt.input_ids, *sample.response_ids]
    assert len(numbers) == 2 and sorted(images_in(whole)) == sorted(numbers) and sum(token < 0 for token in whole) == 12
    assert not any(kept for token, kept in zip(sample.response_ids, sample.loss_mask, strict=True) if token < 0)
    exchanged = [answer.exchange.text for answer in open_world.session.forest.answers]
    assert all("data:image/png;base64,(" in text and len(text) < 3000 for text in exchanged), "no pixels in records"
    assert base64.b64encode(RED).decode() not in "".join(exchanged)


BAD = {
    "fetched": ("https://example.org/a.png", "nothing is fetched"),
    "a path": ("/etc/passwd", "nothing is fetched"),
    "a kind": ("data:image/svg+xml;base64,PHN2Zy8+", "'image/svg+xml' is not read"),
    "a document": ("data:application/pdf;base64,JVBERi0=", "'application/pdf' is not read"),
    "broken": ("data:image/png;base64,aGVsbG8=", "no image of"),
    "cut": (data_url(RED[:40]), "image"),
    "no base64": ("data:image/png;base64,!", "is not base64"),
    "large": (data_url(b"\x89PNG" + b"\0" * (21 << 20)), "more than 20,971,520"),
    "long": (data_url(png(np.zeros((2, 900), np.uint8))), "absolute aspect ratio"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_image_is_one_refusal_of_each_dialect(name, world, tmp_path):
    url, told = BAD[name]
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    block = {
        "type": "image",
        "source": {"type": "base64", "media_type": kind, "data": data} if data else {"type": "url", "url": url},
    }

    async def run():
        async with world() as open_world:
            by_parts = [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]
            refusals = [
                await open_world.chat([user([chat_part(url)])]),
                await open_world.post("v1/responses", {"model": "m", "input": by_parts}),
                await open_world.post("v1/messages", {"model": "m", "max_tokens": 9, "messages": [user([block])]}),
            ]
            assert [refusal.status_code for refusal in refusals] == [400] * 3, [refusal.text[:200] for refusal in refusals]
            for refusal in refusals:
                assert told in refusal.json()["error"]["message"] and len(refusal.text) < 600
            assert not open_world.asked
            good = await asked_by(open_world, "chat", BLUE)
            assert good.status_code == 200, "the episode goes on"

    asyncio.run(run())


def test_who_may_not_show_images_and_what_hides_in_texts(world, tmp_path):
    async def run():
        async with world() as open_world:
            part = [chat_part(data_url(RED))]
            for role in ("system", "assistant"):
                refusal = await open_world.chat([{"role": role, "content": part}, user("x")])
                assert refusal.status_code == 400 and "cannot be shown" in refusal.text
            forged = await open_world.chat([user(f"{SIGN} is it")])
            assert forged.status_code == 400 and "0 images" in forged.text, "the model's own sign in a text"
            file = await open_world.post(
                "v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]}
            )
            assert file.status_code == 400 and "has no image" in file.text
            await open_world.say([user("see " + mark("0" * 64 + ".png").replace("\u27e6", "<").replace("\u27e7", ">"))])
            assert not images_in(open_world.asked[-1][0])

    asyncio.run(run())


def test_a_policy_that_reads_refuses_images_as_before(tmp_path):
    async def run():
        async with World(["a"], tokenizer=make_tokenizer()) as open_world:
            for dialect in ("chat", "responses", "messages"):
                refusal = await asked_by(open_world, dialect, RED)
                assert refusal.status_code == 400 and "this model reads text" in refusal.text

    asyncio.run(run())
