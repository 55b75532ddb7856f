"""The dishes: one painter each, by the name that is also the photo's label."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from examples.foodlog.canvas import Canvas
from examples.foodlog.dishes.griddle import pancakes, pizza, roti_prata
from examples.foodlog.dishes.hawker import chicken_rice, curry, fried_rice, laksa
from examples.foodlog.dishes.shared import salad, satay, sushi

__all__ = ["DISHES", "Painter"]

Painter = Callable[[Canvas], None]

DISHES: Mapping[str, Painter] = MappingProxyType(
    {
        "chicken_rice": chicken_rice,
        "curry": curry,
        "fried_rice": fried_rice,
        "laksa": laksa,
        "pancakes": pancakes,
        "pizza": pizza,
        "roti_prata": roti_prata,
        "salad": salad,
        "satay": satay,
        "sushi": sushi,
    }
)
