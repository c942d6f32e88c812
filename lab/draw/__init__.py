"""Pictures: one chart from a table's rows, as PNG, SVG or a page that can be zoomed and pointed at.

    chart = draw(rows, "distance", "score", series="method", low="low", high="high", rules=[Rule("x", 2048, "window")])
    save(below(chart, draw(rows, "distance", "f", log_y=True)), Path("curve.png"))

Colours are safe for the colour-blind (Okabe, Ito 2008), and series also differ in dash or shape. A series of numbers,
such as layers, is drawn from light to dark instead.
"""

from lab.draw.chart import below, beside, draw, layer, save, themed
from lab.draw.parts import BLUE, GREY, NAMES, ORANGE, PALETTE, Rule, altair, words

__all__ = [
    "BLUE",
    "GREY",
    "NAMES",
    "ORANGE",
    "PALETTE",
    "Rule",
    "altair",
    "below",
    "beside",
    "draw",
    "layer",
    "save",
    "themed",
    "words",
]
