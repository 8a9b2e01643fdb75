"""Colours and marks of the series: told apart by colour-blind readers, on paper by the mark."""

LIGHT = ("#3d4450", "#0072b2", "#c8501e", "#00845f", "#b0568f", "#8a6a00", "#3f8fc4", "#6b4fa3", "#8c3b3b")
DARK = ("#c9ced6", "#56b4e9", "#f2925c", "#35c79a", "#e2a0c8", "#e0bb4a", "#9bd0f2", "#b9a0ea", "#e59a9a")
"""Okabe and Ito's colours, darker for a light page and lighter for a dark one; the first is 'undefended'."""
MARKS = ("circle", "square", "triangle", "diamond", "down")
MATPLOTLIB_MARKS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "down": "v"}
DASHES = ("", "6 3", "2 2.5", "8 3 2 3", "1 4")


def color_at(place: int) -> int:
    """The colour of a series; colours repeat with another mark."""
    return 0 if place == 0 else (place - 1) % (len(LIGHT) - 1) + 1


def mark_at(place: int) -> str:
    """The mark of a series: similar colours have different ones."""
    cycle, within = divmod(place - 1, len(LIGHT) - 1)
    return MARKS[(within + 1 + (within > 4) + cycle) % len(MARKS)] if place else MARKS[0]
