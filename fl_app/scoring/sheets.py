"""Rows for people: the true cells, each attack's below them, and those that are right marked."""

from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from fl_app.core.table import Rows
from fl_app.scoring.grids import GREY, INK, LABEL, LINE, MARGIN, PAPER, wrapped

COLUMNS = 16
"""Of a wider table the first columns are shown."""
WIDEST = 120
HEIGHT = LINE + 5
RIGHT = (198, 232, 205)


def sheet(rows: Rows, true_x: Tensor, rebuilt: Mapping[str, Tensor], captions: Sequence[str] = ()) -> Image.Image:
    """The table of some examples: true_x (n, floats), rebuilt {attack: the same, matched}; right cells are on green."""
    if true_x.shape[1:] != rows.shape or any(one.shape != true_x.shape for one in rebuilt.values()):
        raise ValueError(f"a sheet shows rows (n, {rows.shape[0]}), and the same of each attack, not {tuple(true_x.shape)}")
    names, font, bold = (
        [column.name for column in rows.columns][:COLUMNS],
        ImageFont.load_default(12),
        ImageFont.load_default(12),
    )
    lines: list[tuple[str, list[str], list[bool]]] = [("", names, [False] * len(names))]
    for i, truth in enumerate(true_x):
        lines.append((captions[i] if captions else "truth", rows.text(truth)[:COLUMNS], [False] * len(names)))
        for name, one in rebuilt.items():
            lines.append((f"  {name}", rows.text(one[i])[:COLUMNS], rows.right(one[i], truth).tolist()[:COLUMNS]))
    label = min(LABEL, max(int(bold.getlength(name)) for name, _, _ in lines)) + MARGIN
    widths = [min(WIDEST, max(int(font.getlength(texts[i])) for _, texts, _ in lines)) + 12 for i in range(len(names))]
    hidden = len(rows.columns) - len(names)
    image = Image.new("RGB", (label + sum(widths) + 2 * MARGIN, HEIGHT * (len(lines) + bool(hidden)) + 2 * MARGIN), PAPER)
    draw, top = ImageDraw.Draw(image), MARGIN
    for name, texts, right in lines:
        draw.text((MARGIN, top + 2), wrapped(name, bold, label - MARGIN, 1)[0], INK, font=bold)
        left = MARGIN + label
        for text, width, marked in zip(texts, widths, right, strict=True):
            if marked:
                draw.rectangle((left, top, left + width - 4, top + HEIGHT - 3), fill=RIGHT)
            draw.text((left + 4, top + 2), wrapped(text, font, width - 10, 1)[0], INK if name else GREY, font=font)
            left += width
        top += HEIGHT
    if hidden:
        draw.text((MARGIN, top + 2), f"the first {len(names)} of {len(rows.columns)} columns", GREY, font=font)
    return image
