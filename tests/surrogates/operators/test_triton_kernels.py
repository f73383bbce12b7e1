"""The fused Triton kernels without a GPU: run by Triton's interpreter, against exact products,
and compiled.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from surrogates.operators.forms import PROFILES
from tests.interpreted_kernels import case_names

pytest.importorskip(
    "triton", minversion="3.7", reason="needs Triton 3.7, whose interpreter works with NumPy 2.4"
)


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    command = [sys.executable, "-m", "tests.interpreted_kernels"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    root = Path(__file__).parents[3]
    done = subprocess.run(
        command, env=environment, cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", case_names())
def test_a_fused_product_agrees_with_the_exact_one(errors: dict[str, float], case: str) -> None:
    assert errors[case] < 1.0  # NaN fails, too


@pytest.mark.slow
@pytest.mark.parametrize("element", ["fp32", "fp64"])
@pytest.mark.parametrize("profile", PROFILES)
def test_the_kernels_compile_for_a_cuda_device(
    profile: str, element: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from surrogates.operators import triton_kernels

    for kernel, widths in ((triton_kernels._matmul, (1, 16, 32)), (triton_kernels._rowwise, (16,))):
        for width in widths:
            constants = {"PROFILE": profile, "DIM": 8, "WIDTH": width, "ROWS": 32, "COLS": 32}
            integers = {"m", "n", "columns", "points", "blocks", "span"}
            others = {
                name: "i32" if name in integers else f"*{element}"
                for name in kernel.arg_names
                if name not in constants
            }
            source = ASTSource(kernel, others | dict.fromkeys(constants, "constexpr"), constants)
            compiled = compile(
                source, target=GPUTarget("cuda", 80, 32), options=triton_kernels.OPTIONS
            )
            assert "exp" in compiled.asm["ttir"] and compiled.asm["cubin"]
