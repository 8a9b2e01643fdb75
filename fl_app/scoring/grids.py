"""Pictures for people: the truth in one row, each attack's reconstruction of it below."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from fl_app.scoring.images import psnr, ssim

COLUMNS = 16
TILE = 96  # least pixels of a shown image's longer side
GAP, MARGIN, LINE = 10, 16, 15
LABEL = 190  # most pixels for the name of a row
INK, GREY, PAPER = (20, 20, 20), (110, 110, 110), (255, 255, 255)

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def _picture(x: Tensor) -> Image.Image:
    """(1 or 3, h, w) in [0, 1] -> an image, small ones scaled up by a whole number so that pixels stay square and sharp."""
    pixels = (x.detach().float().nan_to_num(0).clamp(0, 1) * 255).round().byte().expand(3, -1, -1)
    factor = max(1, -(-TILE // max(pixels.shape[1:])))
    pixels = pixels.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().cpu().numpy())


def wrapped(text: str, font: Font, width: int, lines: int) -> list[str]:
    """Break a text into lines that fit, after spaces and before brackets if it has any; the rest ends in '...'."""
    rows = [""]
    for word in re.split(r"(?<=\s)|(?=\()", text):
        if font.getlength((rows[-1] + word).rstrip()) <= width:
            rows[-1] += word
            continue
        rows += [""] if rows[-1] else []
        for letter in word:
            if font.getlength(rows[-1] + letter) > width:
                rows.append("")
            rows[-1] += letter
    if len(rows) > lines:
        rows = rows[:lines]
        while rows[-1] and font.getlength(f"{rows[-1]}...") > width:
            rows[-1] = rows[-1][:-1]
        rows[-1] += "..."
    return rows


def _numbers(rebuilt: Tensor, truth: Tensor) -> list[list[str]]:
    """Two lines under each reconstruction: PSNR and SSIM; one that is not finite says so."""
    lines = []
    for one, true in zip(rebuilt, truth, strict=True):
        if not torch.isfinite(one).all():
            lines.append(["not finite"])
            continue
        shown, real = one[None].clamp(0, 1), true[None]
        similarity = [f"SSIM {ssim(shown, real).item():.3f}"] if min(true.shape[1:]) >= 3 else []
        lines.append([f"{psnr(shown, real).item():.1f} dB", *similarity])
    return lines


def grid(true_x: Tensor, rebuilt: dict[str, Tensor], captions: Sequence[str] = ()) -> Image.Image:
    """The picture of one target: true_x (n, 1 or 3, h, w), rebuilt {attack: same shape, already matched to the truth}.

    A caption (the class, say) stands under each true image, PSNR and SSIM under each reconstruction. It has at most 16 columns.
    """
    if true_x.ndim != 4 or true_x.shape[1] not in (1, 3) or not len(true_x):
        raise ValueError(f"a grid shows grey or RGB images (n, 1 or 3, h, w), not {tuple(true_x.shape)}")
    for name, one in rebuilt.items():
        if one.shape != true_x.shape:
            raise ValueError(f"the reconstruction of '{name}' has the shape {tuple(one.shape)}, not {tuple(true_x.shape)}")
    if captions and len(captions) != len(true_x):
        raise ValueError(f"{len(captions)} captions for {len(true_x)} images")
    font, bold, shown = ImageFont.load_default(12), ImageFont.load_default(14), true_x[:COLUMNS].cpu()
    under = [[text] for text in captions[:COLUMNS]] or [[] for _ in shown]
    rows = [("truth", shown, under)]
    for name, one in rebuilt.items():
        rows.append((name, one[:COLUMNS].cpu(), _numbers(one[:COLUMNS].cpu(), shown)))

    tile = _picture(shown[0])
    cell = max(tile.width, 64)
    label = min(LABEL, max(int(bold.getlength(name)) + 1 for name, _, _ in rows))
    heights = [tile.height + LINE * max(map(len, texts)) + GAP for _, _, texts in rows]
    hidden = len(true_x) - len(shown)
    note = f"the first {len(shown)} of {len(true_x)} examples" if hidden else ""
    left = MARGIN + label + GAP
    width = max(left + len(shown) * (cell + GAP) - GAP, MARGIN + int(font.getlength(note))) + MARGIN
    height = MARGIN + sum(heights) + (LINE if note else 0) + MARGIN - GAP
    sheet = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    top = MARGIN
    for (name, images, texts), used in zip(rows, heights, strict=True):
        title = wrapped(name, bold, label, max(1, tile.height // 18))
        start = top + (tile.height - 18 * len(title)) // 2
        for i, line in enumerate(title):
            draw.text((MARGIN, start + 18 * i), line, INK, font=bold)
        for column, (image, lines) in enumerate(zip(images, texts, strict=True)):
            x = left + column * (cell + GAP)
            sheet.paste(_picture(image), (x + (cell - tile.width) // 2, top))
            for i, line in enumerate(lines):
                fitting = wrapped(line, font, cell, 1)[0]
                draw.text((x + cell // 2, top + tile.height + 3 + LINE * i), fitting, GREY, font=font, anchor="ma")
        top += used
    if note:
        draw.text((MARGIN, top - GAP + LINE // 2), note, GREY, font=font)
    return sheet


def save_grid(path: Path, true_x: Tensor, rebuilt: dict[str, Tensor], captions: Sequence[str] = ()) -> None:
    """Write `grid` as one PNG."""
    save_sheet(path, grid(true_x, rebuilt, captions))


def save_sheet(path: Path, sheet: Image.Image) -> None:
    """Write a PNG so that a reader sees the old or the new file and never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    sheet.save(temporary, format="PNG")
    temporary.replace(path)
