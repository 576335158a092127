"""Environments of gymnasium that are seen: frames of rgb_array, and observations that are pictures."""

import asyncio
import base64
import io
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from roll.core.configs.arguments import ImageArguments
from roll.core.errors import EnvFailure
from roll.envs.check import check_env
from roll.envs.environment import checked_reset, checked_step
from roll.envs.frames import png
from roll.envs.host import EnvHost
from roll.envs.registry import make_env
from roll.prompts.image_folder import ImageFolder
from roll.prompts.image_marks import image_part, mark
from roll.prompts.shown_images import ShownImages

sys.path.append(str(Path(__file__).parent))


class Camera(gymnasium.Env):
    """A pixel moves to the right; at the border the episode ends."""

    action_space = spaces.Discrete(2)

    def __init__(self, shape=(8, 10, 3), kind="uint8"):
        self.shape, self.kind = tuple(shape), kind
        self.observation_space = spaces.Box(0, 255, self.shape, np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.row, self.place = int(self.np_random.integers(8)), 0
        return self._seen(), {}

    def step(self, action):
        self.place += int(action)
        return self._seen(), float(action), self.place == 9, False, {}

    def _seen(self):
        picture = np.zeros(self.shape, self.kind)
        picture[self.row, self.place] = 255
        return picture


class Unsteady(Camera):
    """What it shows is no function of the seed."""

    def _seen(self):
        return np.frombuffer(np.random.default_rng().bytes(240), np.uint8).reshape(self.shape)


CAMERA = "test_pictures.Camera"


def pixels(observation):
    """The picture of an observation, as others decode it."""
    (part,) = observation
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(part["image_url"]["url"].partition(",")[2]))))


@pytest.mark.parametrize("shape", [(1, 1, 3), (7, 5, 3), (64, 33, 3), (20, 9), (20, 9, 1), (210, 160, 3)])
def test_a_frame_is_encoded_without_loss_and_as_equal_bytes(shape):
    frame = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    decoded = np.asarray(Image.open(io.BytesIO(png(frame))))
    assert (decoded == frame.reshape(decoded.shape)).all() and png(frame[:]) == png(frame.copy())


@pytest.mark.parametrize("bad", [np.zeros((4, 4, 3)), np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8), None])
def test_a_frame_that_is_no_picture_is_an_error(bad):
    with pytest.raises(ValueError, match="a picture is H x W x 3"):
        png(bad)


@pytest.mark.parametrize("shape", [(8, 10, 3), (8, 10), (8, 10, 1)])
def test_an_observation_that_is_a_picture_is_seen(shape):
    env = make_env(CAMERA, {"shape": shape})
    observation, info = env.reset(0)
    assert "You see: a picture." in env.instructions and pixels(observation).max() == 255
    again, _, _, _, told = env.step("nothing to read")
    assert again is observation and not told["action_is_effective"], "encoded once"
    moved, _, _, _, after = env.step("<answer>1</answer>")
    assert (pixels(moved) != pixels(observation)).any() and after["state_key"] != info["state_key"]


def test_drawn_games_show_the_state_and_keep_its_key():
    for env_type, config in (("frozen_lake", {"render_mode": "rgb_array"}), ("sokoban_drawn", {})):
        seen, read = make_env(env_type, config), make_env(env_type.removesuffix("_drawn"), {})
        pictures, keys = set(), set()
        for seed in range(20):
            (observation, info), (_, same) = seen.reset(seed), read.reset(seed)
            assert info["state_key"] == same["state_key"] and pixels(observation).shape[2] == 3
            pictures.add(pixels(observation).tobytes())
            keys.add(info["state_key"])
        assert len(pictures) == len(keys) > 10, "other states look otherwise"
        assert "from above" in seen.instructions and "Symbols" not in seen.instructions


@pytest.mark.parametrize(
    ("env_type", "config"), [("frozen_lake", {"render_mode": "rgb_array"}), ("sokoban_drawn", {}), (CAMERA, {})]
)
def test_env_check_knows_pictures(env_type, config):
    report = check_env(env_type, config, episodes=4)
    assert report.ok and "\u27e6image " in report.example, report.errors


def test_env_check_finds_pictures_that_no_seed_explains_and_frames_that_are_none():
    assert any("the same seed and actions gave other" in error for error in check_env("test_pictures.Unsteady", {}, 3).errors)
    assert any("a picture is H x W x 3" in error for error in check_env(CAMERA, {"kind": "float64"}, 3).errors)


def test_pictures_are_stored_once_whatever_runs_the_environment(tmp_path):
    async def seen(execution):
        host = EnvHost(execution, 20, 20, show=ShownImages(ImageArguments(), ImageFolder(tmp_path)))
        try:
            handle = await host.open("tag", CAMERA, {})
            return [(await handle.reset(3))[0], (await handle.step("<answer>1</answer>"))[0], (await handle.reset(3))[0]]
        finally:
            await host.close()

    found = [asyncio.run(seen(execution)) for execution in ("inline", "thread", "process")]
    assert found[0] == found[1] == found[2] and found[0][0] == found[0][2] != found[0][1]
    names = [path.name for path in tmp_path.iterdir() if path.is_file()]
    assert sorted(map(mark, names)) == sorted(set(found[0]))


SQUARE = image_part(png(np.zeros((4, 4, 3), np.uint8)))


def test_parts_of_an_environment_of_ones_own(tmp_path):
    show = ShownImages(ImageArguments(), ImageFolder(tmp_path))
    text, _ = checked_reset(([{"type": "text", "text": "left "}, SQUARE, {"type": "text", "text": " right "}, SQUARE], {}), show)
    assert text.startswith("left \u27e6image ") and text.endswith("\u27e7") and text.count("\u27e6image ") == 2
    assert len([path for path in tmp_path.iterdir() if path.is_file()]) == 1, "equal images are one"
    messages = [{"role": "system", "content": "rules"}, {"role": "user", "content": [SQUARE]}]
    assert checked_step((messages, 1, False, False, {}), show)[0][1] == {"role": "user", "content": mark(*_names(tmp_path))}


def _names(folder):
    return [path.name for path in folder.iterdir() if path.is_file()]


def url(text):
    return [{"type": "image_url", "image_url": {"url": text}}]


BOMB = png(np.zeros((1, 1), np.uint8))[:16] + b"\0\1\0\0\0\1\0\0\x08\2\0\0\0" + b"\0" * 40
"""65,536 x 65,536 pixels, it says."""
HOSTILE = {
    "fetched": (url("https://example.org/a.png"), "nothing is fetched"),
    "a path": (url("/etc/passwd"), "nothing is fetched"),
    "a file URL": (url("file:///etc/passwd"), "nothing is fetched"),
    "a vector": (url("data:image/svg+xml;base64,PHN2Zy8+"), "of type 'image/svg\\+xml' is not read"),
    "a script": (url("data:text/html;base64,PHN2Zy8+"), "of type 'text/html' is not read"),
    "no base64": (url("data:image/png;base64,!!"), "is not base64"),
    "no image": (url("data:image/png;base64,aGVsbG8="), "no image of"),
    "not encoded": (url("data:image/png,abc"), "is no data URL of an image"),
    "nothing": ([{"type": "image_url"}], "has no image"),
    "a number": ([{"type": "image_url", "image_url": 3}], "has no image"),
    "cut": (url("data:image/png;base64," + base64.b64encode(png(np.ones((9, 9, 3), np.uint8))[:50]).decode()), "image"),
    "a bomb": (url("data:image/png;base64," + base64.b64encode(BOMB).decode()), "image"),
    "video": ([{"type": "video_url", "video_url": {"url": "x"}}], "cannot be shown"),
    "of the assistant": ([{"role": "assistant", "content": [SQUARE]}, {"role": "user", "content": "b"}], "cannot be shown"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_images_that_cannot_be_shown_are_failures_of_the_environment(name, tmp_path):
    observation, told = HOSTILE[name]
    with pytest.raises(EnvFailure, match=told):
        checked_reset((observation, {}), ShownImages(ImageArguments(), ImageFolder(tmp_path)))
    assert not list(tmp_path.iterdir())


def test_larger_frames_are_made_small_and_a_run_without_images_says_so(tmp_path):
    show = ShownImages(ImageArguments(max_pixels=100), ImageFolder(tmp_path))
    checked_reset(([image_part(png(np.zeros((40, 40, 3), np.uint8)))], {}), show)
    assert Image.open(tmp_path / _names(tmp_path)[0]).size == (10, 10)
    with pytest.raises(EnvFailure, match=r"actor_train\.data_args\.images"):
        checked_reset(([SQUARE], {}))
