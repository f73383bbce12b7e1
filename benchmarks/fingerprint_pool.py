"""Rate of a Thompson batch from a pool of fingerprints that is drawn part by part.

    python benchmarks/fingerprint_pool.py --rows 1000000 --out benchmarks/results/pool.json

A model of n fingerprints with a Tanimoto kernel draws q paths, whose solve is not timed; then each
takes its best candidate of the pool. Each fingerprint has bits set at random, rare ones less often,
packed eight to a byte and unpacked as those of a file are. Processor seconds stand beside seconds:
on a busy machine they tell what the pool takes.
"""

import time
from collections.abc import Iterator

import numpy as np
import torch
from gpytorch.kernels import ScaleKernel

from acquisition import AcquisitionProgress, ParallelThompsonSampling
from scalable_bo.evaluation.progress import peak_of_process, reset_peak_of_process
from scalable_bo.experiments.scripts import print_rows, script_parser, write_benchmark
from surrogates import CG, PathwiseGP, TanimotoKernel, gaussian_likelihood

PART = 2**14


class Fingerprints:
    """A pool of ``num_rows`` random fingerprints, the same whenever it is read."""

    def __init__(self, num_rows: int, num_bits: int, set_bits: int, seed: int) -> None:
        self.num_rows = num_rows
        self.num_bits = num_bits
        self.set_bits = set_bits
        self.seed = seed

    def __iter__(self) -> Iterator[np.ndarray]:
        rng = np.random.default_rng(self.seed)
        for start in range(0, self.num_rows, PART):
            size = min(PART, self.num_rows - start)
            places = (self.num_bits * rng.random((size, self.set_bits)) ** 1.5).astype(np.int64)
            bits = np.zeros((size, self.num_bits), dtype=np.uint8)
            np.put_along_axis(bits, places, 1, axis=1)
            packed = np.packbits(bits, axis=1)
            yield np.unpackbits(packed, axis=1)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--n", type=int, default=5000)
    parser.add_argument("--q", type=int, default=100)
    parser.add_argument("--bits", type=int, default=2048)
    parser.add_argument("--set-bits", type=int, default=60, help="draws of a bit, some of them one")
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()

    device = torch.device(arguments.device)
    data = next(iter(Fingerprints(arguments.n, arguments.bits, arguments.set_bits, 1)))
    X = torch.as_tensor(data).float().to(device)
    generator = torch.Generator().manual_seed(0)
    slopes = torch.randn(arguments.bits, 1, generator=generator).to(device)
    Y = torch.tanh(X @ slopes / 5.0)
    model = PathwiseGP(
        X,
        Y,
        covar_module=ScaleKernel(TanimotoKernel()).to(X),
        likelihood=gaussian_likelihood(1e-2).to(X),
        solver=CG(tolerance=1e-2),
        num_features=arguments.features,
    )
    paths = model.paths(arguments.q)
    seen: list[AcquisitionProgress] = []
    bounds = torch.tensor([[0.0], [1.0]], device=device).repeat(1, arguments.bits)
    sampler = ParallelThompsonSampling(model, bounds, callback=seen.append)
    pool = Fingerprints(arguments.rows, arguments.bits, arguments.set_bits, 2)
    reset_peak_of_process()
    start = time.perf_counter()
    processor = time.process_time()
    chosen = sampler.choose(arguments.q, pool, paths=paths)
    seconds = time.perf_counter() - start
    processor = time.process_time() - processor
    results = {
        "seconds": seconds,
        "processor_seconds": processor,
        "processor_microseconds_a_row": 1e6 * processor / arguments.rows,
        "peak_bytes": peak_of_process(),
        "bits_set": float(X.sum(1).mean()),
        "best_of_paths": float(paths(chosen.points).diagonal().mean()),
        "distinct": len(set(chosen.rows.tolist())),
    }
    print_rows(
        f"q = {arguments.q} from {arguments.rows} fingerprints, n = {arguments.n}",
        ("", "value"),
        [(name, f"{value:.4g}") for name, value in results.items()],
    )
    settings = {**vars(arguments), "out": None, "threads": torch.get_num_threads()}
    write_benchmark(
        arguments.out, "fingerprint_pool", device=device, settings=settings, results=results
    )


if __name__ == "__main__":
    main()
