"""Scales, ticks and elements, against numbers worked out by hand."""

import pytest

from server_app.report.svg import Plot, Scale, element, grouped, label, nice_ticks, percent, plain


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (0.071, 0.083, [0.072, 0.074, 0.076, 0.078, 0.08, 0.082]),
        (-3, 4, [-2, 0, 2, 4]),
        (0, 7, [0, 2, 4, 6]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high) == pytest.approx(ticks)


def test_numbers_in_words() -> None:
    assert [percent(0.96905), percent(0.5), percent(1)] == ["96.9\u202f%", "50\u202f%", "100\u202f%"]
    assert [plain(0.5), plain(20.0), plain(12345678)] == ["0.5", "20", "1.23e+07"]
    assert grouped(79510) == "79\u202f510"


def test_places_on_a_scale() -> None:
    assert Scale(10, 20).place(15) == 0.5
    assert Scale(1, 100, log=True).place(10) == pytest.approx(0.5)
    assert Scale(4, 0).place(1) == 0.75  # from top to bottom
    assert Scale(3, 3).place(3) == 0


def test_a_scale_around_values_has_air_but_keeps_its_bounds() -> None:
    scale = Scale.around([0.5, 1.0], at_most=1.0)
    assert (scale.low, scale.high) == pytest.approx((0.47, 1.0))
    one = Scale.around([2.0, float("nan")])
    assert one.low < 2.0 < one.high
    assert Scale.around([]).place(0.5) == 0.5


def test_a_plot_draws_where_its_scales_say() -> None:
    plot = Plot(Scale(0, 10), Scale(0, 1), height=120, left=40, right=10, top=10, bottom=10)
    assert (plot.px(0), plot.px(10), plot.py(0), plot.py(1)) == (40, 390, 110, 10)
    plot.line([(0, 0), (5, 0.5), (10, 1)], "pm")
    assert plot.body[-1] == '<path d="M40 110L215 60L390 10" class="line pm"/>'
    plot.line([(5, 0.5)], "pm")
    assert plot.body[-1] == '<circle cx="215" cy="60" r="3.5" class="dot pm"/>'
    before = len(plot.body)
    plot.line([], "pm")
    assert len(plot.body) == before
    plot.steps([0, 5, 10], [1, 0.5], "gm")
    assert plot.body[-1] == '<path d="M40 110L40 10L215 10L215 60L390 60L390 110" class="line thin gm"/>'


def test_foreign_words_are_escaped() -> None:
    assert label('<b>"&', 0, 1) == '<text x="0" y="1">&lt;b&gt;&#34;&amp;</text>'
    assert element("rect", data='"><script>') == '<rect data="&#34;&gt;&lt;script&gt;"/>'
    svg = Plot(Scale(0, 1), Scale(0, 1)).svg('<"', 'x" onload="')
    assert "<title>&lt;&#34;</title>" in svg and 'aria-label="x&#34; onload=&#34;"' in svg
