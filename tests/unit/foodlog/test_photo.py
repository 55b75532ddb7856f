import io

import numpy as np
import pytest
from PIL import Image

from examples.foodlog.dishes import DISHES
from examples.foodlog.photo import take_photo


def pixels(jpeg: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB")).astype(float)


@pytest.mark.parametrize("dish", sorted(DISHES))
def test_every_dish_is_a_decodable_jpeg_of_the_size_asked_for(dish: str) -> None:
    image = Image.open(io.BytesIO(take_photo(dish, 48, seed=1, number=0)))
    image.load()
    assert (image.format, image.size, image.mode) == ("JPEG", (48, 48), "RGB")


@pytest.mark.parametrize("dish", sorted(DISHES))
def test_every_photo_shows_something(dish: str) -> None:
    for number in range(4):
        assert pixels(take_photo(dish, 48, seed=5, number=number)).std() > 8


def test_the_same_arguments_give_the_same_bytes() -> None:
    assert take_photo("laksa", 64, 7, 3) == take_photo("laksa", 64, 7, 3)


def test_seed_number_and_dish_each_change_the_photo() -> None:
    photos = {take_photo(*which) for which in (("laksa", 64, 7, 3), ("laksa", 64, 8, 3), ("laksa", 64, 7, 4))}
    assert len({*photos, take_photo("curry", 64, 7, 3)}) == 4


def test_light_and_quality_vary_between_photos_of_one_dish() -> None:
    photos = [take_photo("satay", 64, 7, number) for number in range(16)]
    brightness = [pixels(photo).mean() for photo in photos]
    assert max(brightness) - min(brightness) > 30
    assert max(map(len, photos)) > 1.3 * min(map(len, photos))


def test_a_dish_that_nobody_paints_is_refused() -> None:
    with pytest.raises(KeyError):
        take_photo("gruel", 32, 1, 1)
