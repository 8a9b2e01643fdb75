"""Small class folders of images whose mark, a bright edge on the left or on top, stands in an attributes.csv."""

import numpy as np
from PIL import Image

MARKS = ("left", "top")


def marked_folder(root, number=60):
    """Two classes by colour; the mark goes with neither."""
    draw, lines = np.random.default_rng(3), ["file,mark,size"]
    for label, name in enumerate(("blue", "red")):
        (root / name).mkdir(parents=True)
        for i in range(number):
            pixels = draw.integers(0, 60, (12, 12, 3), dtype=np.uint8)
            pixels[..., 2 * label] += 80
            mark = int(draw.integers(2))
            pixels[(slice(None), slice(0, 3)) if mark == 0 else slice(0, 3)] = 255
            Image.fromarray(pixels).save(root / name / f"{i:02d}.png")
            lines.append(f"{name}/{i:02d}.png,{MARKS[mark]},{3 + i % 2}")
    (root / "attributes.csv").write_text("\n".join([*lines, "elsewhere.png,top,3"]) + "\n")
    return root
