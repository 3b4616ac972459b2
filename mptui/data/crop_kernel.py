"""The kernel that cuts views on a GPU: one launch for a batch, and no memory but that of the result.

Importing it imports Triton, which compiles it at the first call.

Shapes: B views, P pixels of all images, S of a side of a view, C bands.
"""

import torch
import triton
import triton.language as tl

_BLOCK = 256


@triton.jit  # type: ignore[untyped-decorator]
def _weight(number, centre, scale, length, CUBIC: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    """Return the weights of pixels of a side for Pillow's filter around `centre`; 0 beyond its ends."""
    distance = tl.abs(number + 0.5 - centre) / scale
    if CUBIC:  # the convolution kernel of Keys 1981, equation 15, with a = -0.5
        near = (1.5 * distance - 2.5) * distance * distance + 1.0
        far = ((-0.5 * distance + 2.5) * distance - 4.0) * distance + 2.0
        weight = tl.where(distance < 1.0, near, tl.where(distance < 2.0, far, 0.0))
    else:
        weight = tl.maximum(1.0 - distance, 0.0)
    return tl.where((number >= 0) & (number < length), weight, 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _cut(  # type: ignore[no-untyped-def]  # noqa: ANN202
    pixels,  # noqa: ANN001
    crops,  # noqa: ANN001
    views,  # noqa: ANN001
    highest,  # noqa: ANN001
    SIDE: tl.constexpr,
    BANDS: tl.constexpr,
    CUBIC: tl.constexpr,
    CLIPPED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute a block of the values of one view, each from the pixels that its filter covers."""
    values = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    view = tl.program_id(1)
    crop = crops + view * 7
    start, stride, width, height = tl.load(crop), tl.load(crop + 1), tl.load(crop + 2), tl.load(crop + 3)
    turn, mirror_x, mirror_y = tl.load(crop + 4) != 0, tl.load(crop + 5) != 0, tl.load(crop + 6) != 0
    inside = values < SIDE * SIDE * BANDS
    band, x, y = values % BANDS, values // BANDS % SIDE, values // (BANDS * SIDE)
    column, row = tl.where(turn, y, x), tl.where(turn, x, y)
    column = tl.where(mirror_x, SIDE - 1 - column, column)
    row = tl.where(mirror_y, SIDE - 1 - row, row)
    reach: tl.constexpr = 2.0 if CUBIC else 1.0
    ratio_y, ratio_x = height.to(tl.float32) / SIDE, width.to(tl.float32) / SIDE
    scale_y, scale_x = tl.maximum(ratio_y, 1.0), tl.maximum(ratio_x, 1.0)
    centre_y, centre_x = (row + 0.5) * ratio_y, (column + 0.5) * ratio_x
    first_y = tl.floor(centre_y - reach * scale_y + 0.5).to(tl.int32)
    first_x = tl.floor(centre_x - reach * scale_x + 0.5).to(tl.int32)
    many_y = tl.ceil(2 * reach * scale_y).to(tl.int32) + 1
    many_x = tl.ceil(2 * reach * scale_x).to(tl.int32) + 1
    found = tl.full((BLOCK,), 0.0, tl.float32)
    total_y = tl.full((BLOCK,), 0.0, tl.float32)
    for i in range(many_y):
        weight_y = _weight(first_y + i, centre_y, scale_y, height, CUBIC)
        line = start + (first_y + i) * stride
        in_row = tl.full((BLOCK,), 0.0, tl.float32)
        total_x = tl.full((BLOCK,), 0.0, tl.float32)
        for j in range(many_x):
            weight_x = _weight(first_x + j, centre_x, scale_x, width, CUBIC)
            used = inside & (weight_y != 0.0) & (weight_x != 0.0)
            value = tl.load(pixels + (line + first_x + j) * BANDS + band, mask=used, other=0)
            in_row += weight_x * value.to(tl.float32)
            total_x += weight_x
        in_row = in_row / total_x
        if CLIPPED:  # a cubic kernel overshoots; Pillow clips after each dimension
            in_row = tl.minimum(tl.maximum(in_row, 0.0), highest)
        found += weight_y * in_row
        total_y += weight_y
    found = found / total_y
    if CLIPPED:
        found = tl.minimum(tl.maximum(found, 0.0), highest)
    tl.store(views + view.to(tl.int64) * (SIDE * SIDE * BANDS) + values, found, mask=inside)


def cut_views(pixels_PC: torch.Tensor, crops_B7: torch.Tensor, side: int, *, cubic: bool) -> torch.Tensor:
    """Cut views from images that lie one after the other; returns float32 images_BSSC.

    Args:
        pixels_PC: The images, contiguous.
        crops_B7: The crops, from `Views.crops`, contiguous.
        side: S.
        cubic: Pillow's bicubic filter, else its bilinear one.
    """
    bands = pixels_PC.shape[1]
    views_BSSC = torch.empty((len(crops_B7), side, side, bands), device=pixels_PC.device)
    whole_numbers = not pixels_PC.dtype.is_floating_point
    _cut[(triton.cdiv(side * side * bands, _BLOCK), len(crops_B7))](
        pixels_PC,
        crops_B7,
        views_BSSC,
        float(torch.iinfo(pixels_PC.dtype).max) if whole_numbers else 0.0,
        SIDE=side,
        BANDS=bands,
        CUBIC=cubic,
        CLIPPED=cubic and whole_numbers,
        BLOCK=_BLOCK,
    )
    return views_BSSC
