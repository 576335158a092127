"""Thumbnails of a report: small, few, and nothing else than pictures."""

import base64
import io
from pathlib import Path

import tiny_vision
from PIL import Image
from run_files import lines, make_run, sample

from roll.prompts.image_folder import ImageFolder
from roll.prompts.image_marks import mark, marked, names_in
from roll.view.page import report
from roll.view.runs import Runs
from roll.view.thumbnails import MOST, SIDE, SMALL, thumbnails


def stored(folder: Path, image: Image.Image, **more: object) -> str:
    out = io.BytesIO()
    image.save(out, "PNG", **more)
    return ImageFolder(folder / "images").put(out.getvalue(), "PNG")[1]


def opened(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url.partition(";base64,")[2])))


def test_images_are_drawn_anew_small_and_few(tmp_path: Path) -> None:
    """A photograph becomes a JPEG; what else a file said stays in it."""
    noise = Image.effect_noise((900, 300), 80).convert("RGB")
    texts = [mark(stored(tmp_path, noise)) + " <img src=x> " + mark(stored(tmp_path, Image.new("RGB", (20, 10), "red")))]
    texts += [mark(stored(tmp_path, Image.new("RGB", (1 + i, 1), "blue"))) for i in range(MOST + 5)]
    found = thumbnails(tmp_path, texts)
    assert list(found) == [name for text in texts for name in names_in(text)][:MOST]
    large, small, *_ = found.values()
    assert large.startswith("data:image/jpeg;base64,") and opened(large).size == (SIDE, 53)
    assert small.startswith("data:image/png;base64,") and opened(small).getpixel((0, 0)) == (255, 0, 0)
    assert all(len(url) < 4 * SMALL for url in found.values())


def test_a_report_shows_what_its_prompts_name(tmp_path: Path) -> None:
    """With a policy that lets data URLs be seen and nothing be fetched; the rest of the text stays text."""
    folder = make_run(tmp_path / "one", steps=1)
    name = stored(folder, Image.new("RGB", (4, 4), "green"))
    hostile = f"{mark(name)}</script><img src=http://x.invalid/y>"
    lines(folder / "samples.jsonl", [sample(1, 1, 0, prompt=hostile)])
    page = report(Runs([tmp_path]), 10).decode()
    assert page.count("data:image/png;base64,") == 1 and "img-src data:; base-uri" in page
    assert "<img" not in page and page.count("</script>") == 3


def test_what_is_no_image_of_the_folder_is_left_out(tmp_path: Path) -> None:
    """A name leads nowhere else, and a file that is no picture, or one that a link stands for, is not shown."""
    good = stored(tmp_path, Image.new("RGB", (4, 4)))
    bad, linked, gone = (f"{digit * 64}.png" for digit in "abc")
    (tmp_path / "images" / bad).write_bytes(b"<script>alert(1)</script>")
    (tmp_path / "outside.png").write_bytes(tiny_vision.drawn("circle"))
    (tmp_path / "images" / linked).symlink_to(tmp_path / "outside.png")
    text = "".join(map(mark, (bad, linked, gone, good))) + "\u27e6image ../outside.png\u27e7"
    assert list(thumbnails(tmp_path, [text])) == [good]


def test_signs_of_a_template_become_marks() -> None:
    names = [f"{digit * 64}.png" for digit in "ab"]
    assert names_in(marked("x<i>y<i>", "<i>", names)) == names
    assert marked("no sign", "<i>", []) == "no sign"
