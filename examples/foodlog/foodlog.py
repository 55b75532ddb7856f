"""A year of meals: who ate what, when and where, as rows of the table in Rafiki's Figure 17.

Owns the story that the queries find: older users keep to laksa, chicken rice and prata, younger ones to pizza
and sushi; salad spreads over the year; laksa is eaten in Katong. The rows name photos, never dishes.
"""

from __future__ import annotations

import csv
import math
import random
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime, timedelta
from itertools import accumulate
from pathlib import Path

from examples.foodlog.labels import Label

__all__ = ["Meal", "User", "keep_log", "write_log"]

ROWS_PER_USER = 50
YEAR = 2025


@dataclass(frozen=True, slots=True)
class User:
    """A row of `users`."""

    user_id: int
    name: str
    country: str


@dataclass(frozen=True, slots=True)
class Meal:
    """A row of `foodlog`; `time` is ISO text in minutes, unique for each user."""

    user_id: int
    age: int
    location: str
    time: str
    image_path: str


@dataclass(frozen=True, slots=True)
class _Habit:
    """How one dish is liked: `popular` by all, `per_20_years` more by the older, `over_year` from January to
    December (factors are exponents of e), and at which hour it is mostly eaten.
    """

    popular: float
    per_20_years: float
    over_year: float
    hour: float
    place: str = ""


_HABITS: Mapping[str, _Habit] = {
    "chicken_rice": _Habit(1.5, 0.30, 0.0, 12.5, "Maxwell"),
    "curry": _Habit(0.9, 0.10, 0.0, 19.0, "Little India"),
    "fried_rice": _Habit(1.1, 0.00, -0.3, 13.0),
    "laksa": _Habit(1.1, 0.40, 0.0, 12.0, "Katong"),
    "pancakes": _Habit(0.7, -0.20, 0.0, 9.0),
    "pizza": _Habit(1.0, -0.60, 0.0, 19.5),
    "roti_prata": _Habit(1.0, 0.30, 0.0, 8.5, "Little India"),
    "salad": _Habit(0.6, -0.10, 1.4, 13.0, "Raffles Place"),
    "satay": _Habit(0.8, 0.00, 0.0, 20.0, "Lau Pa Sat"),
    "sushi": _Habit(0.9, -0.45, 0.2, 18.5, "Orchard"),
}
_PLACES = (
    *("Bedok", "Bukit Timah", "Clementi", "Jurong East", "Katong", "Lau Pa Sat", "Little India", "Maxwell"),
    *("Orchard", "Punggol", "Raffles Place", "Tampines", "Tiong Bahru", "Toa Payoh", "Woodlands"),
)
_HOME_COOKING: Mapping[str, tuple[float, Mapping[str, float]]] = {
    "Singapore": (0.50, {}),
    "Malaysia": (0.16, {"laksa": 2.6, "roti_prata": 1.5}),
    "Indonesia": (0.09, {"satay": 4.0, "fried_rice": 2.5}),
    "India": (0.08, {"curry": 4.0, "roti_prata": 2.5}),
    "Japan": (0.06, {"sushi": 5.0}),
    "Italy": (0.05, {"pizza": 6.0}),
    "United States": (0.06, {"pancakes": 8.0, "salad": 2.0}),
}
_FIRST_NAMES = (
    *("Aisyah", "Arjun", "Ben", "Chloe", "Daniel", "Devi", "Elena", "Farid", "Grace", "Hana", "Hui Min"),
    *("Ismail", "Jia Wei", "Kenji", "Kumar", "Li Ting", "Marco", "Mei Ling", "Nurul", "Olivia", "Priya"),
    *("Rahman", "Ravi", "Sakura", "Siti", "Sofia", "Tomoko", "Wei Jie", "Xin Yi", "Yusof", "Zhi Hao"),
)
_LAST_NAMES = (
    *("Abdullah", "Bianchi", "Chan", "Cheng", "Goh", "Hassan", "Ibrahim", "Iyer", "Johnson", "Koh", "Lee"),
    *("Lim", "Menon", "Nair", "Ng", "Ong", "Osman", "Pereira", "Rossi", "Santoso", "Sato", "Singh", "Tan"),
    *("Tanaka", "Teo", "Wijaya", "Williams", "Wong", "Yamada", "Yeo"),
)


def keep_log(labels: Sequence[Label], rows: int, seed: int) -> tuple[list[User], list[Meal]]:
    """Users and `rows` meals in order of time. Many meals share a photo where rows outnumber photos.

    The same arguments give the same rows. Raises ValueError where there is no photo to refer to.
    """
    if not labels:
        raise ValueError("a food log needs at least one photo")
    photos: dict[str, list[str]] = defaultdict(list)
    for label in labels:
        photos[label.food_name].append(label.image_path)
    rng = random.Random(f"foodlog/{seed}")
    users = [_user(user_id, rng) for user_id in range(1, max(2, rows // ROWS_PER_USER) + 1)]
    eaters = [_Eater(user, sorted(photos), rng) for user in users]
    eagerness = list(accumulate(rng.gammavariate(2.0, 1.0) for _ in users))
    meals = []
    for _ in range(rows):
        eater = eaters[bisect(eagerness, rng.random() * eagerness[-1])]
        meals.append(eater.eat(photos, rng))
    return users, sorted(meals, key=lambda meal: (meal.time, meal.user_id))


def write_log(folder: Path, users: Iterable[User], meals: Iterable[Meal]) -> None:
    """Write users.csv and foodlog.csv, with headers."""
    _write_csv(folder / "users.csv", [field.name for field in fields(User)], map(astuple, users))
    _write_csv(folder / "foodlog.csv", [field.name for field in fields(Meal)], map(astuple, meals))


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[tuple[object, ...]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def _user(user_id: int, rng: random.Random) -> User:
    countries = list(_HOME_COOKING)
    country = rng.choices(countries, [share for share, _ in _HOME_COOKING.values()])[0]
    return User(user_id, f"{rng.choice(_FIRST_NAMES)} {rng.choice(_LAST_NAMES)}", country)


class _Eater:
    """One user's age, tastes and haunts, and the minutes already taken."""

    def __init__(self, user: User, dishes: Sequence[str], rng: random.Random) -> None:
        self._user_id = user.user_id
        self._age = round(rng.triangular(16, 79, 28))
        self._haunts = rng.sample(_PLACES, 2)
        self._dishes = dishes
        at_home = _HOME_COOKING[user.country][1]
        self._taste = [
            _HABITS[dish].popular
            * math.exp(_HABITS[dish].per_20_years * (self._age - 40) / 20)
            * at_home.get(dish, 1.0)
            * rng.gammavariate(4.0, 0.25)
            for dish in dishes
        ]
        self._taken: set[str] = set()

    def eat(self, photos: Mapping[str, Sequence[str]], rng: random.Random) -> Meal:
        """One more meal, at a minute of the year when this user has not eaten yet."""
        while True:
            year_share = rng.random()
            now = [
                taste * math.exp(_HABITS[dish].over_year * (year_share - 0.5))
                for taste, dish in zip(self._taste, self._dishes, strict=True)
            ]
            dish = rng.choices(self._dishes, now)[0]
            time = _minute(year_share, _HABITS[dish].hour + rng.gauss(0.0, 1.2))
            if time not in self._taken:
                break
        self._taken.add(time)
        famous = _HABITS[dish].place
        location = (
            famous if famous and rng.random() < 0.3 else rng.choice((*self._haunts, rng.choice(_PLACES)))
        )
        return Meal(self._user_id, self._age, location, time, rng.choice(_of_month(photos[dish], time)))


def _of_month(photos: Sequence[str], time: str) -> Sequence[str]:
    """A month's photos of a dish: meals share them, but a photo is not eaten all year round."""
    return photos[int(time[5:7]) - 1 :: 12] or photos


def _minute(year_share: float, hour: float) -> str:
    day = datetime(YEAR, 1, 1) + timedelta(days=int(year_share * 365))
    return (day + timedelta(minutes=round(min(23.9, max(0.0, hour)) * 60))).isoformat(" ", "minutes")
