# mypy: allow-untyped-defs
"""Fused products with a stationary kernel in Triton: distances, kernel values and sums in
registers, no tile ever written to memory.

For few columns a tiled product spends its time writing the tile and reading it back. Here a program
owns some rows and walks over a share of the columns; the shares are added up afterwards, in a fixed
order, so that the result is the same in every run. Distances are sums of squared differences,
without the cancellation of ``‖x‖² − 2xᵀz + ‖z‖²``.

Notation: X (m, d) and Z (n, d) in units of the lengthscale, W (n, s), κ and its slope κ' in d² as
in ``forms.py``, outputscale 1.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST_WIDTH = 32  # columns of X, and of W in one pass
# 32-bit integers, a tile beyond the last row included
LARGEST_OFFSET = torch.iinfo(torch.int32).max // 2
# That few rows are spread over, some for every multiprocessor: the same on every device, as the
# order of the sums is
PROGRAMS = 1024

OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}


def product(profile: str, X: Tensor, Z: Tensor, W: Tensor) -> Tensor:
    """Return κ(X, Z) @ W, (m, s).

    Args:
        profile: key of ``PROFILES``.
        X: (m, d), d at most ``LARGEST_WIDTH``, float32 or float64.
        Z: (n, d).
        W: (n, s), s from 1 to ``LARGEST_WIDTH``.
    """
    m, dim = X.shape
    n = len(Z)
    columns = W.shape[1]
    rows, cols = _tile(X)
    blocks = triton.cdiv(m, rows)
    span, parts = _share(n, cols, blocks)
    out = X.new_empty(parts, m, columns)
    _matmul[(blocks, parts)](
        *(X.T.contiguous(), Z.T.contiguous(), W.contiguous(), out),
        *(m, n, columns, span),
        **{"PROFILE": profile, "DIM": dim, "WIDTH": _width(columns), "ROWS": rows, "COLS": cols},
        **OPTIONS,
    )
    return out.sum(0)


def rowwise(profile: str, X: Tensor, Z: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    """Return values (m,) and gradients in X (m, d) of ``f_i(x) = Σ_j κ(x, z_j) W_ji``, each
    function at q = m / s points of its own.

    Where a point coincides with one of Z, a Matérn-1/2 has no slope there and counts as flat.

    Args:
        profile: key of ``PROFILES``.
        X: (s · q, d), points of function 0 first; d at most ``LARGEST_WIDTH``, float32 or float64.
        Z: (n, d).
        W: (n, s).
    """
    m, dim = X.shape
    n = len(Z)
    functions = W.shape[1]
    points = m // functions
    rows, cols = _tile(X)
    rows = min(rows, max(16, triton.next_power_of_2(points)))
    blocks = triton.cdiv(points, rows)
    span, parts = _share(n, cols, functions * blocks)
    values = X.new_empty(parts, m)
    sums = X.new_empty(parts, m, dim + 1)
    _rowwise[(functions * blocks, parts)](
        *(
            X.T.contiguous(),
            Z.T.contiguous(),
            torch.cat([Z, Z.new_ones(n, 1)], 1),
            W.T.contiguous(),
            values,
            sums,
        ),
        *(m, n, points, blocks, span),
        **{"PROFILE": profile, "DIM": dim, "WIDTH": _width(dim + 1), "ROWS": rows, "COLS": cols},
        **OPTIONS,
    )
    sums = sums.sum(0)  # Σ_j κ' w z and Σ_j κ' w, of which ∂f/∂x = 2 Σ_j κ' w (x − z)
    return values.sum(0), 2.0 * (X * sums[:, dim:] - sums[:, :dim])


def _tile(X: Tensor) -> tuple[int, int]:
    # The largest that stay in registers on compute capability 8.0 and 9.0
    return (64, 32) if X.dtype == torch.float32 else (32, 32)


def _width(columns: int) -> int:
    # A matrix product has at least 16 columns
    return 1 if columns == 1 else max(16, triton.next_power_of_2(columns))


def _share(n: int, cols: int, blocks: int) -> tuple[int, int]:
    """Return the columns that a program walks, and how many programs share all n of them."""
    tiles = triton.cdiv(n, cols)
    span = cols * triton.cdiv(tiles, min(tiles, triton.cdiv(PROGRAMS, blocks)))
    return span, triton.cdiv(n, span)


@triton.jit(do_not_specialize=["m", "n", "columns", "span"])  # one compilation for all sizes
def _matmul(
    X, Z, W, out, m, n, columns, span,
    PROFILE: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    c = tl.arange(0, WIDTH)
    total = tl.zeros((ROWS, COLS if WIDTH == 1 else WIDTH), X.dtype.element_ty)
    for start in range(part * span, min(part * span + span, n), COLS):
        j = start + tl.arange(0, COLS)
        kernel, _ = _profile(_squared_distances(X, Z, i, j, m, n, DIM, ROWS, COLS), PROFILE)
        if WIDTH == 1:  # no weight beyond n
            total += kernel * tl.load(W + j, mask=j < n, other=0.0)[None, :]
        else:
            w = tl.load(
                W + j[:, None] * columns + c[None, :],
                mask=(j[:, None] < n) & (c[None, :] < columns),
                other=0.0,
            )
            total = tl.dot(kernel, w, total, input_precision="ieee", out_dtype=X.dtype.element_ty)
    if WIDTH == 1:
        tl.store(out + part * m + i, tl.sum(total, 1), mask=i < m)
    else:
        where = (part * m + i[:, None]) * columns + c[None, :]
        tl.store(out + where, total, mask=(i[:, None] < m) & (c[None, :] < columns))


@triton.jit(do_not_specialize=["m", "n", "points", "blocks", "span"])
def _rowwise(
    X, Z, Z1, W, values, sums, m, n, points, blocks, span,
    PROFILE: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    function = tl.program_id(0) // blocks
    point = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    i = function * points + point
    a = tl.arange(0, WIDTH)
    value = tl.zeros((ROWS, COLS), X.dtype.element_ty)
    total = tl.zeros((ROWS, WIDTH), X.dtype.element_ty)
    for start in range(part * span, min(part * span + span, n), COLS):
        j = start + tl.arange(0, COLS)
        kernel, slope = _profile(_squared_distances(X, Z, i, j, m, n, DIM, ROWS, COLS), PROFILE)
        w = tl.load(W + function * n + j, mask=j < n, other=0.0)[None, :]
        value += kernel * w
        z = tl.load(
            Z1 + j[:, None] * (DIM + 1) + a[None, :],
            mask=(j[:, None] < n) & (a[None, :] <= DIM),
            other=0.0,
        )
        total = tl.dot(slope * w, z, total, input_precision="ieee", out_dtype=X.dtype.element_ty)
    own = point < points
    tl.store(values + part * m + i, tl.sum(value, 1), mask=own)
    where = (part * m + i[:, None]) * (DIM + 1) + a[None, :]
    tl.store(sums + where, total, mask=own[:, None] & (a[None, :] <= DIM))


@triton.jit
def _squared_distances(X, Z, i, j, m, n, DIM: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    d2 = tl.zeros((ROWS, COLS), X.dtype.element_ty)
    if DIM <= 10:  # unrolled: half of the instructions, and no spills
        for a in tl.static_range(DIM):
            difference = _differences(X, Z, i, j, m, n, a)
            d2 += difference * difference
    else:
        for a in range(DIM):
            difference = _differences(X, Z, i, j, m, n, a)
            d2 += difference * difference
    return d2


@triton.jit
def _differences(X, Z, i, j, m, n, a):
    x = tl.load(X + a * m + i, mask=i < m, other=0.0)
    z = tl.load(Z + a * n + j, mask=j < n, other=0.0)
    return x[:, None] - z[None, :]


@triton.jit
def _profile(d2, PROFILE: tl.constexpr):
    if PROFILE == "rbf":
        value = tl.exp(-0.5 * d2)
        slope = -0.5 * value
    elif PROFILE == "matern12":
        r = tl.sqrt(d2)
        value = tl.exp(-r)
        slope = tl.where(d2 > 0.0, -0.5 * value / tl.where(d2 > 0.0, r, 1.0), 0.0)
    elif PROFILE == "matern32":
        r = tl.sqrt(3.0 * d2)
        decay = tl.exp(-r)
        value = (1.0 + r) * decay
        slope = -1.5 * decay
    else:
        tl.static_assert(PROFILE == "matern52")
        r = tl.sqrt(5.0 * d2)
        decay = tl.exp(-r)
        value = (1.0 + r + r * r / 3.0) * decay
        slope = -(1.0 + r) * decay * 5.0 / 6.0
    return value, slope
