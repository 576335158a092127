"""Images of rows: what cannot be shown is refused in one line that names file and row; its honest neighbour passes."""

from __future__ import annotations

import base64
import io
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, PngImagePlugin

from roll.core.configs.arguments import DataArguments, ImageArguments
from roll.core.errors import PromptFileError
from roll.prompts import image_reader
from roll.prompts.image_folder import ImageFolder
from roll.prompts.prompt_file import PromptRow, read_rows


def read(path: Path, folder: Path | None = None, **images: Any) -> list[PromptRow]:
    return list(read_rows(DataArguments(file_name=str(path), images=ImageArguments(**images)), images=folder))


def drawn(size: tuple[int, int] = (6, 4), mode: str = "RGB", kind: str = "PNG", **options: Any) -> bytes:
    """An image whose left half is darker than its right one."""
    values = np.full((size[1], size[0], 3), 51, dtype=np.uint8)
    values[:, size[0] // 2 :] = 204
    out = io.BytesIO()
    Image.fromarray(values).convert(mode).save(out, kind, **options)
    return out.getvalue()


def url(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def part(given: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": given}}


def asked(*parts: Any, **columns: Any) -> dict[str, Any]:
    return {"id": "a", "tag": "t", "ground_truth": "", "messages": [{"role": "user", "content": [*parts, "what?"]}], **columns}


def marked(text: str, *images: Any, **columns: Any) -> dict[str, Any]:
    return {"id": "a", "tag": "t", "ground_truth": "", "prompt": text, "images": list(images), **columns}


def header(width: int, height: int) -> bytes:
    """A PNG that says it is so large, with a few bytes behind."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    says = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + says + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


def animated(kind: str) -> bytes:
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    out = io.BytesIO()
    frames[0].save(out, kind, save_all=True, append_images=frames[1:])
    return out.getvalue()


def commented(size: int) -> bytes:
    """With a comment that is small when it is compressed."""
    info = PngImagePlugin.PngInfo()
    info.add_text("comment", "x" * size, zip=True)
    return drawn(pnginfo=info)


GOOD, PHOTO = drawn(), drawn((90, 90), kind="JPEG")
TALK = [{"role": "user", "content": [part("a.png"), {"type": "text", "text": "what?"}]}]
PAIRS: dict[str, tuple[Any, str, Any]] = {
    "bomb": (asked(part(url(header(50_000, 50_000)))), "pixels", asked(part(url(drawn((500, 500)))))),
    "just above the limit": (asked(part(url(header(10_000, 5_001)))), "pixels", asked(part(url(GOOD)))),
    "truncated": (asked(part(url(PHOTO[:-500]))), "cannot be read", asked(part(url(PHOTO)))),
    "fewer rows than said": (asked(part(url(header(64, 64)))), "cannot be read", asked(part(url(GOOD)))),
    "wrong magic": (asked(part(url(b"GIF" + GOOD[3:]))), "no image of", asked(part(url(GOOD)))),
    "a text for an image": (asked(part(url(b"<svg onload='x()'/>", "image/svg+xml"))), "no image of", asked(part(url(GOOD)))),
    "an unread format": (asked(part(url(drawn(kind="PPM")))), "no image of", asked(part(url(drawn(kind="BMP"))))),
    "nothing": (asked(part("data:image/png;base64,")), "no bytes", asked(part(url(GOOD)))),
    "no width": (asked(part(url(header(0, 4)))), "image", asked(part(url(drawn((1, 1)))))),
    "animated GIF": (asked(part(url(animated("GIF")))), "2 images", asked(part(url(drawn(kind="GIF"))))),
    "animated PNG": (asked(part(url(animated("PNG")))), "2 images", asked(part(url(GOOD)))),
    "animated WebP": (asked(part(url(animated("WEBP")))), "2 images", asked(part(url(drawn(kind="WEBP"))))),
    "a comment without end": (asked(part(url(commented(80 << 20)))), "cannot be read", asked(part(url(commented(1000))))),
    "not base64": (asked(part("data:image/png;base64,%%%%")), "not base64", asked(part(url(GOOD)))),
    "a data URL of text": (asked(part("data:text/plain,hello")), "no data URL of an image", asked(part(url(GOOD)))),
    "on a network": (asked(part("https://example.org/a.png")), "nothing is fetched", asked(part("a.png"))),
    "on another host": (asked(part("file://server/a.png")), "nothing is fetched", asked(part("a.png"))),
    "missing": (asked(part("b.png")), "no file", asked(part("a.png"))),
    "outside": (asked(part("../outside.png")), "link, or lies elsewhere", asked(part("inner/../a.png"))),
    "by a link": (asked(part("link.png")), "link, or lies elsewhere", asked(part("inner/b.png"))),
    "a folder": (asked(part("inner")), "not a regular file", asked(part("inner/b.png"))),
    "a pipe": (asked(part("pipe")), "FIFO", asked(part("a.png"))),
    "a null in a path": (asked(part("a\0.png")), "no path", asked(part("a.png"))),
    "more images than marks": (marked("<image>?", "a.png", "a.png"), "2 images in 'images', and 1", marked("<image>", "a.png")),
    "marks without images": (marked("<image> and <image>"), "0 images in 'images', and 2 marks", marked("what?")),
    "images without marks": (marked("what?", "a.png"), "1 image in 'images', and 0 marks", marked("what? <image>", "a.png")),
    "a number": (marked("<image>", 5), "names no image", marked("<image>", {"bytes": None, "path": "a.png"})),
    "an empty mapping": (marked("<image>", {"bytes": None}), "none of bytes, url and path", marked("<image>", {"url": "a.png"})),
    "the assistant's": (
        asked(messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": [part("a.png")]}]),
        "the assistant's, and has an image",
        asked(messages=[{"role": "user", "content": [part("a.png")]}]),
    ),
    "too many": (marked("<image>" * 65, *["a.png"] * 65), "65 images, more than 64", marked("<image>" * 3, *["a.png"] * 3)),
    "a video": (asked({"type": "video", "video": "a.mp4"}), "a part of type 'video'", asked(part("a.png"))),
}  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    (tmp_path / "outside.png").write_bytes(GOOD)
    (folder / "a.png").write_bytes(GOOD)
    (folder / "inner" / "b.png").write_bytes(GOOD)
    (folder / "link.png").symlink_to(tmp_path / "outside.png")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.mark.parametrize("name", PAIRS)
def test_a_bad_image_is_told_with_its_row_and_the_honest_one_beside_it_passes(world: Path, name: str) -> None:
    bad, what, honest = PAIRS[name]
    path = world / "rows.jsonl"
    path.write_text(json.dumps({**honest, "id": "first"}) + "\n" + json.dumps(bad) + "\n")
    with pytest.raises(PromptFileError, match=r"rows\.jsonl:2: ") as told:
        read(path)
    assert what in str(told.value) and len(str(told.value)) < 600 and "\n" not in str(told.value)
    path.write_text(json.dumps(honest) + "\n")
    (row,) = read(path)
    assert len(row.images) == (name != "marks without images") * (3 if name == "too many" else 1)


def test_an_image_without_end_is_refused_before_it_is_decoded(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_reader, "MOST_BYTES", 1000)
    for given in (url(b"x" * 1001), {"bytes": None, "path": "large.png"}):
        (world / "large.png").write_bytes(b"x" * 1001)
        (world / "rows.jsonl").write_text(json.dumps(marked("<image>", given)))
        with pytest.raises(PromptFileError, match="more than 1,000"):
            read(world / "rows.jsonl")


def test_the_file_of_another_user_is_refused(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (world / "rows.jsonl").write_text(json.dumps(marked("<image>", str(world / "a.png"))))
    assert read(world / "rows.jsonl")[0].images[0][2:] == (6, 4)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(PromptFileError, match="another user's"):
        read(world / "rows.jsonl")


def test_rows_with_images_are_refused_where_none_are_expected(world: Path) -> None:
    (world / "rows.jsonl").write_text(json.dumps(asked(part("a.png"))))
    with pytest.raises(PromptFileError, match="an image, a part of type") as told:
        list(read_rows(DataArguments(file_name=str(world / "rows.jsonl"))))
    assert "data_args.images" in told.value.fix


def seen(world: Path, content: bytes, **images: Any) -> np.ndarray:
    """The pixels that are stored for these bytes."""
    (world / "rows.jsonl").write_text(json.dumps(marked("<image>", {"bytes": None, "path": "x"})))
    (world / "x").write_bytes(content)
    (row,) = read(world / "rows.jsonl", world / "kept", **images)
    return np.asarray(ImageFolder(world / "kept").open(row.images[0].number))


def test_palettes_alpha_gray_sixteen_bits_and_four_colours_become_rgb(world: Path) -> None:
    plain = seen(world, GOOD)
    assert plain.shape == (4, 6, 3) and plain[0, 0].tolist() == [51] * 3 and plain[0, 5].tolist() == [204] * 3
    for mode in ("P", "L", "LA", "RGBA"):
        assert np.abs(seen(world, drawn(mode=mode)).astype(int) - plain).max() == 0, mode
    assert np.abs(seen(world, drawn(mode="CMYK", kind="TIFF")).astype(int) - plain).max() <= 2
    out = io.BytesIO()
    Image.fromarray(np.full((4, 6), 40 * 256, dtype=np.uint16)).save(out, "PNG")
    assert (seen(world, out.getvalue()) == 40).all()
    out = io.BytesIO()
    Image.new("RGBA", (4, 4), (9, 9, 9, 0)).save(out, "PNG")
    assert (seen(world, out.getvalue()) == 255).all(), "what is transparent shows white"
    assert (seen(world, drawn(transparency=(51, 51, 51)))[:, :3] == 255).all(), "one colour is transparent"


def test_a_camera_that_was_turned_shows_upright(world: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = seen(world, drawn((60, 40), kind="JPEG", exif=exif))
    assert turned.shape == (60, 40, 3) and turned[5].mean() < 60 < 180 < turned[-5].mean()
    assert seen(world, drawn((60, 40), kind="JPEG")).shape == (40, 60, 3)


def test_larger_images_are_made_as_small_as_the_configuration_says(world: Path) -> None:
    assert seen(world, drawn((100, 50)), max_pixels=1250).shape == (25, 50, 3)
    assert seen(world, drawn((10, 5)), max_pixels=1250).shape == (5, 10, 3)


FORMS: dict[str, Callable[[Path], Any]] = {
    "data URL": lambda world: asked(part(url(GOOD))),
    "a URL alone": lambda world: asked({"type": "image_url", "image_url": url(GOOD)}),
    "file URL": lambda world: asked(part((world / "a.png").as_uri())),
    "relative path": lambda world: asked({"type": "image", "image": "a.png"}),
    "absolute path": lambda world: asked({"type": "image", "image": str(world / "a.png")}),
    "base64": lambda world: asked({"type": "image", "image": base64.b64encode(GOOD).decode()}),
    "of datasets": lambda world: asked({"type": "image", "image": {"bytes": None, "path": "a.png"}}),
    "messages as text": lambda world: asked(messages=json.dumps(TALK)),
    "a column beside a prompt": lambda world: marked("<image>what?", "a.png"),
    "a column beside messages": lambda world: asked(messages=[{"role": "user", "content": "<image>what?"}], images=["a.png"]),
    "a column beside bare parts": lambda world: asked({"type": "image"}, images=[{"bytes": None, "path": "a.png"}]),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_an_image_is_the_same_image(world: Path, name: str) -> None:
    (world / "rows.jsonl").write_text(json.dumps(FORMS[name](world)))
    (row,) = read(world / "rows.jsonl", world / "kept")
    assert row.messages is not None and row.messages[-1]["content"] == [{"type": "image"}, {"type": "text", "text": "what?"}]
    assert row.extra["images"] == [row.images[0].name]
    assert np.asarray(ImageFolder(world / "kept").open(row.images[0].number))[0, 0].tolist() == [51] * 3
    assert len([path for path in (world / "kept").iterdir() if path.is_file()]) == 1


TABLES: list[dict[str, Any]] = [
    {"messages": [[{"role": "user", "content": [{"type": "image", "image": GOOD, "text": None}]}]]},
    {"prompt": ["<image>"], "images": [[{"bytes": GOOD, "path": "of another machine.png"}]]},
]


@pytest.mark.parametrize("columns", TABLES)
def test_tables_bring_bytes(world: Path, columns: dict[str, Any]) -> None:
    table = {"id": ["a"], "tag": ["t"], "ground_truth": [""], "sound": [b"left out"], **columns}
    pq.write_table(pa.table(table), world / "rows.parquet")
    (row,) = read(world / "rows.parquet", world / "kept")
    assert row.images[0][2:] == (6, 4) and "sound" not in row.extra
    json.dumps(row.extra)


def test_two_images_never_share_a_number(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from roll.prompts import image_folder

    monkeypatch.setattr(image_folder, "NUMBERS", 3)
    folder = ImageFolder(world / "kept")
    contents = [drawn((size, 4)) for size in (2, 4, 6)]
    found = [folder.put(content, "PNG") for content in contents]
    assert {number for number, _ in found} == {-1, -2, -3}
    assert [folder.put(content, "PNG") for content in contents] == found
    assert [folder.open(number).size[0] for number, _ in found] == [2, 4, 6]
    (folder.path / found[0][1]).write_bytes(contents[1])
    with pytest.raises(LookupError, match="damaged"):
        folder.open(found[0][0])
    with pytest.raises(LookupError, match="no image number -9"):
        folder.open(-9)
