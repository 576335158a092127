"""A run's folder of images takes in another run's."""

from pathlib import Path

import pytest
import tiny_vision

from roll.prompts.image_folder import ImageFolder


def test_images_of_another_run_are_shown_by_the_numbers_that_they_had(tmp_path: Path) -> None:
    """As links: a file that both have lies on the disk once, and goes with the last of them."""
    old, new = ImageFolder(tmp_path / "old"), ImageFolder(tmp_path / "new")
    (circle, name), (star, _) = (old.put(tiny_vision.drawn(shape), "PNG") for shape in ("circle", "star"))
    assert new.put(tiny_vision.drawn("star"), "PNG")[0] == star
    new.take_in(old.path)
    new.take_in(tmp_path / "none")
    assert new.name_of(circle) == name and (new.path / name).stat().st_nlink == 2
    (old.path / name).unlink()
    assert new.open(circle).size == (16, 16)


def test_one_number_of_two_images_is_refused(tmp_path: Path) -> None:
    """Which of two images with one hash came first is each folder's own."""
    old, new = ImageFolder(tmp_path / "old"), ImageFolder(tmp_path / "new")
    number, _ = old.put(tiny_vision.drawn("circle"), "PNG")
    (new.path / "numbers").mkdir(parents=True)
    (new.path / "numbers" / f"{-1 - number:08x}").write_text(f"{'0' * 64}.png")
    with pytest.raises(ValueError, match="one number to two images"):
        new.take_in(old.path)
