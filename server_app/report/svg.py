"""Small SVG drawings without a library: scales, axes, lines, dots, cells.

Colours are CSS classes, so one drawing serves light, dark and paper. Lengths are those of a panel 400 wide,
which a page shows at 340 to 480 pixels: text stays readable on a phone.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

WIDTH = 400
Point = tuple[float, float]


def plain(value: float) -> str:
    """`0.5`, `20`, `1500`: as short as it can be."""
    return f"{value:.10g}" if abs(value) < 1e6 else f"{value:.3g}"


def percent(value: float) -> str:
    """`96.9 %`, without digits that say nothing; the two parts stay on one line."""
    return f"{plain(round(100 * value, 1))}\u202f%"


def grouped(count: float) -> str:
    """`79 510`."""
    return f"{count:,.0f}".replace(",", "\u202f")


NARROW, BROAD = set("fijlrtI1.,:;|!'()[]- "), set("mwMWGOQ@%_…")


def short(name: str, most: int) -> str:
    """At most so many characters of a name."""
    return name if len(name) <= most else name[: most - 1] + "…"


def room(names: Iterable[str], most: int, size: float = 12.5) -> float:
    """The width of the widest of these names as `short` shows them, in letters of this size (of a wide font)."""

    def wide(one: str) -> float:
        return sum(0.46 if sign in NARROW else 1.03 if sign in BROAD else 0.72 for sign in one)

    return size * max((wide(short(name, most)) for name in names), default=0.0)


def fitting(name: str, width: float, size: float = 12.5) -> str:
    """As much of a name as this width has room for; nothing where that is no letter."""
    most = next((most for most in range(len(name), 1, -1) if room([name], most, size) <= width), 0)
    return name if len(name) == 1 else short(name, most) if most else ""


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten) from `low` to `high`."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= 0.75 * rough)
    first, final = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, final + 1)]


@dataclass(frozen=True)
class Scale:
    """Values `low` … `high` along an axis; `log` places them by their logarithm."""

    low: float
    high: float
    title: str = ""
    form: Callable[[float], str] = plain
    log: bool = False
    ticks: Sequence[float] | None = None

    @classmethod
    def around(
        cls, values: Iterable[float], title: str = "", form: Callable[[float], str] = plain, **bounds: float
    ) -> "Scale":
        """A scale that holds all values with some air, within the bounds `at_least` and `at_most`."""
        given = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        low, high = min(given), max(given)
        air = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
        low, high = low - air, high + air
        low, high = max(low, bounds.get("at_least", low)), min(high, bounds.get("at_most", high))
        return cls(min(low, bounds.get("reach", low)), high, title, form)

    def place(self, value: float) -> float:
        """0 at `low`, 1 at `high`."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / ((self.high - self.low) or 1.0)

    def marks(self) -> Sequence[float]:
        return self.ticks if self.ticks is not None else nice_ticks(self.low, self.high)


def element(tag: str, content: str = "", **attributes: object) -> Markup:
    """One SVG element; `class_` and `text_anchor` become class and text-anchor. Content is text unless it is Markup."""
    words = Markup().join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _short(value))
        for name, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>" if content else "<{0}{1}/>").format(tag, words, content)


def label(text: str, x: float, y: float, **attributes: object) -> Markup:
    return element("text", text, x=x, y=y, **attributes)


def hint(text: str) -> Markup:
    """What a mouse sees when it rests on an element."""
    return element("title", text)


def drawing(height: float, body: Iterable[str], title: str, alt: str, width: float = WIDTH) -> Markup:
    """A whole picture; `alt` says in words what it shows."""
    box = f"0 0 {_short(width)} {_short(height)}"
    content = Markup().join((hint(title), *body))
    return Markup('<svg viewBox="{}" role="img" aria-label="{}">{}</svg>').format(box, alt, content)


def _short(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


@dataclass
class Plot:
    """A coordinate system of two scales, and what has been drawn in it."""

    x: Scale
    y: Scale
    height: float = 240
    width: float = WIDTH
    left: float = 0  # 0: as much as the labels of y need
    right: float = 22
    top: float = 24
    bottom: float = 38
    grid: bool = True
    body: list[Markup] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left = self.left or 8 + 8 * max((len(self.y.form(mark)) for mark in self.y.marks()), default=0)
        floor, wall = self.height - self.bottom, self.width - self.right
        for value in self.y.marks():
            y = self.py(value)
            if self.grid:
                self.add("line", x1=self.left, x2=wall, y1=y, y2=y, class_="grid")
            self.body.append(label(self.y.form(value), self.left - 6, y + 4, text_anchor="end"))
        for value in self._marks_across():
            x = self.px(value)
            self.add("line", x1=x, x2=x, y1=floor, y2=floor + 4, class_="axis")
            self.body.append(label(self.x.form(value), x, floor + 17, text_anchor="middle"))
        self.add("line", x1=self.left, x2=wall, y1=floor, y2=floor, class_="axis")
        if self.x.title:
            middle = (self.left + wall) / 2
            self.body.append(
                label(self.x.title, middle, self.height - 6, text_anchor="middle", class_="name")
            )
        if self.y.title:
            self.body.append(label(self.y.title, 0, 11, class_="name"))

    def _marks_across(self) -> Sequence[float]:
        """As many as have room beside each other."""
        marks = self.x.marks()
        wide = room(map(self.x.form, marks), 99)
        while len(marks) > 2 and self.px(marks[1]) - self.px(marks[0]) < wide:
            marks = marks[::2]
        return marks

    def px(self, value: float) -> float:
        return self.left + self.x.place(value) * (self.width - self.left - self.right)

    def py(self, value: float) -> float:
        floor = self.height - self.bottom
        return floor - self.y.place(value) * (floor - self.top)

    def add(self, tag: str, content: str = "", **attributes: object) -> None:
        self.body.append(element(tag, content, **attributes))

    def line(self, points: Sequence[Point], style: str) -> None:
        """A line through the points; a single one becomes a dot."""
        if len(points) == 1:
            self.dot(points[0], style)
        elif points:
            self.add("path", d=self._path(points), class_=f"line {style}")

    def dot(self, point: Point, style: str, radius: float = 3.5, tip: str = "") -> None:
        place = {"cx": self.px(point[0]), "cy": self.py(point[1])}
        self.add("circle", hint(tip) if tip else "", **place, r=radius, class_=f"dot {style}")

    def area(self, lower: Sequence[Point], upper: Sequence[Point], style: str) -> None:
        """The band between two lines."""
        if lower and upper:
            path = self._path(list(upper) + list(reversed(lower))) + "Z"
            self.add("path", d=path, class_=f"area {style}")

    def steps(self, edges: Sequence[float], heights: Sequence[float], style: str) -> None:
        """A histogram's outline over a light filling."""
        outline: list[Point] = [(edges[0], 0.0)]
        for left, right, height in zip(edges[:-1], edges[1:], heights, strict=True):
            outline += [(left, height), (right, height)]
        outline.append((edges[-1], 0.0))
        path = self._path(outline)
        self.add("path", d=path + "Z", class_=f"area {style}")
        self.add("path", d=path, class_=f"line thin {style}")

    def upright(self, x: float, style: str) -> None:
        """A vertical line over the whole height."""
        at = self.px(x)
        self.add("line", x1=at, x2=at, y1=self.top, y2=self.height - self.bottom, class_=style)

    def svg(self, title: str, alt: str) -> Markup:
        return drawing(self.height, self.body, title, alt, self.width)

    def _path(self, points: Sequence[Point]) -> str:
        return "M" + "L".join(f"{_short(self.px(x))} {_short(self.py(y))}" for x, y in points)
