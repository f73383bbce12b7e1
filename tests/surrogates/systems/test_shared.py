"""Systems whose rows several real processes share, against the same system in one and against a
direct solve.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from surrogates import CG, DistributedKernelSystem, KernelSystem, shared_paths
from surrogates.solvers.accuracy import PosteriorError
from surrogates.systems.shared_rows import SharedRows
from tests import problems
from tests.contracts import true_residual
from tests.surrogates import shared_rows
from tests.surrogates.exact_posteriors import PROBLEMS
from tests.surrogates.shared_rows import ACCURATE, SOLVERS, B, D, N, Results, S, as_text

pytestmark = pytest.mark.distributed
NUMBER = 8  # bytes


def local_system() -> KernelSystem:
    X, noise, _ = shared_rows.data()
    return KernelSystem(problems.operator(problems.OPERATORS[0], shared_rows.KERNEL, X), noise)


def joined(parts: list[Results], name: str) -> Tensor:
    return torch.cat([part[name] for part in parts])


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    return shared_rows.results(
        shared_rows.solve_by_every_method, 3, tmp_path_factory.mktemp("solved")
    )


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    return shared_rows.results(shared_rows.use_the_system, 3, tmp_path_factory.mktemp("used"))


@pytest.mark.parametrize("name", SOLVERS)
def test_shared_rows_lead_to_the_solution_of_one_process(solved: list[Results], name: str) -> None:
    alone = (
        SOLVERS[name].solve(local_system(), shared_rows.data()[2])
        if not name.startswith("auto")
        else None
    )
    value = joined(solved, f"{name}.value")
    if alone is not None:
        # Rounding may cost a recursion a step, and with it what its last step still gains
        rounding = 1 if name.startswith("cg") else 0
        scale = alone.value.abs().max().item()
        close = SOLVERS[name].tolerance if rounding else 1e-10
        torch.testing.assert_close(value, alone.value, rtol=0, atol=scale * close)
        assert ((alone.steps - solved[0][f"{name}.steps"]).abs() <= rounding).all()
        assert alone.epochs == pytest.approx(
            solved[0][f"{name}.epochs"].item(), abs=rounding + 1e-5
        )
    if name in ACCURATE:
        exact = torch.linalg.solve(local_system().to_dense(), shared_rows.data()[2])
        allowed = (
            ACCURATE[name].tolerance
            * shared_rows.data()[2].norm(dim=0)
            / shared_rows.data()[1].min()
        )  # type: ignore[attr-defined]
        assert ((value - exact).norm(dim=0) <= allowed).all()


@pytest.mark.parametrize("name", SOLVERS)
def test_the_residual_that_all_processes_report_is_the_true_one(
    solved: list[Results], name: str
) -> None:
    residual = true_residual(local_system(), shared_rows.data()[2], joined(solved, f"{name}.value"))
    torch.testing.assert_close(solved[0][f"{name}.residual"], residual, rtol=1e-6, atol=1e-12)
    for field in ("residual", "steps", "epochs", "entries"):
        assert all(
            torch.equal(part[f"{name}.{field}"], solved[0][f"{name}.{field}"]) for part in solved
        )


def test_the_same_seed_gives_the_same_solution_bit_by_bit(solved: list[Results]) -> None:
    assert all(torch.equal(part["asap.value"], part["again.value"]) for part in solved)


def test_what_the_shared_system_gives_is_the_matrix(used: list[Results]) -> None:
    local = local_system()
    rhs = shared_rows.data()[2]
    H = local.to_dense()
    index = torch.tensor([70, 3, 21, 64, 0])
    W = problems.normal(N, S, seed=5)
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(joined(used, "product"), H @ W, **close)
    torch.testing.assert_close(joined(used, "single"), (H @ W).float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(joined(used, "columns"), local.kernel.to_dense()[:, index], **close)
    added = W.clone()
    added[index] += 2.0
    assert torch.equal(joined(used, "added"), added)
    for part in used:
        torch.testing.assert_close(part["rows"], (H @ W)[index], **close)
        torch.testing.assert_close(part["gap"], (H @ W - rhs)[index], **close)
        torch.testing.assert_close(part["block"], H[index][:, index], **close)
        pairs = index[:4].view(2, 2)
        small = torch.stack([H[pair][:, pair] for pair in pairs])
        torch.testing.assert_close(part["small"], small, **close)
        assert torch.equal(part["taken"], W[index])
        assert torch.equal(part["gathered"], W.unsqueeze(1))
        torch.testing.assert_close(part["norm"], W.norm(dim=0), **close)
        torch.testing.assert_close(part["dot"], (W * rhs).sum(0), **close)
        assert part["all"].tolist() == [False, False, True]
        noise = shared_rows.data()[1]
        torch.testing.assert_close(
            part["extremes"], torch.stack([local.largest_entry, noise.min(), noise.mean()]), **close
        )


def test_rows_of_all_processes_are_turned_into_columns_of_each(used: list[Results]) -> None:
    W = problems.normal(N, S, seed=5)[:, :2]
    assert [part["turned"].shape[1] for part in used] == [0, 1, 1]
    assert torch.equal(torch.cat([part["turned"] for part in used], 1), W)
    for rank, part in enumerate(used):
        num_held = shared_rows.SHARES[3][rank + 1] - shared_rows.SHARES[3][rank]
        sent = num_held * 2 * NUMBER * 2 / 3
        assert part["turned bytes"] == pytest.approx(sent, abs=num_held)


def test_random_rows_are_the_same_however_they_are_shared(used: list[Results]) -> None:
    alone = SharedRows(N, torch.device("cpu")).normal(
        2, problems.seeded(4), like=torch.ones(1).double()
    )
    assert torch.equal(joined(used, "normal"), alone)


def test_a_sum_over_processes_is_the_same_bit_by_bit_in_all(tmp_path: Path) -> None:
    parts = shared_rows.results(shared_rows.sum_up, 4, tmp_path)
    expected = torch.stack([part["own"] for part in parts]).sum(0)
    for part in parts:
        assert torch.equal(part["sum"], parts[0]["sum"])
        assert part["number"] == 4 and part["number"].dtype == torch.long
        torch.testing.assert_close(part["sum"], expected)
    # Each process sends 3/4 of 998 numbers on the way to all, twice
    assert parts[0]["bytes"] == pytest.approx(2 * 0.75 * 998 * 4, rel=0.01)


ALONE = {"cholesky", "cg-gaussian", "cg-paper", "sap-leverage", "sap-dpp"}


def test_every_solver_shares_rows_or_says_what_to_use(tmp_path: Path) -> None:
    for part in shared_rows.results(shared_rows.solve_by_the_card, 2, tmp_path):
        for name, found in part.items():
            if name in ALONE:
                assert " Use " in as_text(found), name
            else:
                assert (found <= 1.0).all(), name  # that of zero
                # The published steps of dual descent may be too long here
                assert name.startswith("sdd-") or (found < 1.0).any(), name


def test_random_rows_go_on_from_stream_to_stream() -> None:
    like = torch.ones(1, dtype=torch.float64)
    rows = SharedRows(15_000, torch.device("cpu"))  # of four streams
    whole = rows.normal(2, problems.seeded(4), like=like)
    assert len(whole.unique()) == 30_000
    rows.start = 2500
    rows.num_held = 8500
    assert torch.equal(rows.normal(2, problems.seeded(4), like=like), whole[2500:11_000])


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("asap", B * (D + S) + N),  # and of the scores that rows are arranged by
        # A gather moves half of a sum: the sketch, and ten products of power iterations
        ("adasap", B * (D + S) + 4 * S + B * (10 + 10) // 2),
        ("sdd", B * (D + S)),
        ("sgd", B * (D + 2 * S + 1) + 100 * S + S),
    ],
)
def test_a_step_moves_the_points_and_the_residual_of_its_block(
    used: list[Results], name: str, numbers: int
) -> None:
    sent = 2 * (1 - 1 / 3) * NUMBER  # of a number that three processes sum up and receive
    assert all(sent * B * (D + S) - 1 <= part[f"moved.{name}"] <= sent * numbers for part in used)


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    return shared_rows.results(shared_rows.make_mistakes, 2, tmp_path_factory.mktemp("mistakes"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "cholesky",
            (
                "TypeError: `system` whose rows are shared is never held whole. Use an iterative"
                " solver"
            ),
        ),
        (
            "pivoted",
            (
                "TypeError: PivotedCholesky() needs all rows of the system in one process, got one"
                " whose rows are shared. Use Nystrom"
            ),
        ),
        (
            "gaussian",
            "TypeError: Nystrom(sketch='gaussian') needs all rows of the system in one process",
        ),
        ("leverage", "TypeError: A sampler of blocks needs all rows of the system in one process"),
        ("seed", "ValueError: `generator` must be in the same state in all processes"),
        ("kinds", "ValueError: `X` must have the same columns and dtype in all processes"),
        (
            "targets",
            (
                "ValueError: `targets` must have shape (55,), as this process holds so many points,"
                " got (55, 3)"
            ),
        ),
        ("all rows", "ValueError: `rhs` must have shape (55, s), got (90, 3)"),
    ],
)
def test_what_shared_rows_cannot_do_is_said_with_the_remedy(
    mistakes: list[Results], name: str, message: str
) -> None:
    assert as_text(mistakes[0][name]).startswith(message)


def test_fewer_rows_than_processes_are_refused_in_all(mistakes: list[Results]) -> None:
    for part in mistakes:
        assert as_text(part["few"]) == (
            "ValueError: `X` must have a row or more in each process, got none in process 0 of 2,"
            " of n = 1 rows in all. Start at most n processes, and share the rows by `own_rows(n)`."
        )


def test_paths_of_shared_weights_are_those_of_one_process(tmp_path: Path) -> None:
    parts = shared_rows.results(shared_rows.draw_paths, 2, tmp_path)
    alone = shared_rows.draw_paths(slice(0, N))
    torch.testing.assert_close(joined(parts, "weights"), alone["weights"], rtol=1e-7, atol=1e-7)
    for name in ("each", "all", "mean", "each.gradient", "all.gradient", "maximisers", "maxima"):
        assert torch.equal(parts[0][name], parts[1][name])
        torch.testing.assert_close(parts[0][name], alone[name], rtol=1e-7, atol=1e-7)


def test_the_mean_of_shared_paths_is_the_posterior_mean() -> None:
    X, _, rhs = shared_rows.data()
    system = DistributedKernelSystem(shared_rows.KERNEL, X, 0.1)
    paths, _ = shared_paths(
        system,
        rhs[:, 0],
        1,
        mean=lambda X: X[..., 0],
        solver=CG(None, tolerance=1e-10),
        num_features=8,
    )
    x = problems.uniform(7, D, seed=3)
    y = rhs[:, 0] - X[:, 0]
    expected = x[:, 0] + problems.exact_posterior(shared_rows.KERNEL, X, y, 0.1, x)[0]
    torch.testing.assert_close(paths.mean(x), expected, rtol=1e-7, atol=1e-7)


def test_256_shared_paths_have_the_variance_of_a_posterior_of_few_directions() -> None:
    X = problems.uniform(200, 1)
    Z = problems.uniform(40, 1, seed=1)
    kernel = problems.rbf(5.0).double()
    exact = problems.exact_posterior(kernel, X, X[:, 0], 0.1, Z)[1].diagonal()
    system = DistributedKernelSystem(kernel, X, 0.1)
    errors = []
    for seed in range(4):  # without balance, 8 % off in the mean
        paths, _ = shared_paths(
            system, X[:, 0], 256, solver=CG(None, tolerance=1e-8), generator=problems.seeded(seed)
        )
        variance = (paths(Z) - paths.mean(Z)).square().mean(0)
        errors.append((variance.mean() / exact.mean()).item() - 1.0)
    assert torch.tensor(errors).square().mean().sqrt() < 0.025


def test_shared_rows_tell_the_errors_of_a_posterior_as_one_process_does(tmp_path: Path) -> None:
    parts = shared_rows.results(shared_rows.solve_for_a_posterior, 3, tmp_path)
    problem = PROBLEMS["smooth-clusters"]
    single = torch.float32
    alone = PosteriorError.for_targets(problem.system(single), problem.targets.to(single))
    for part in parts[1:]:
        assert torch.equal(part["cut.error"], parts[0]["cut.error"])
        assert torch.equal(part["whole.error"], parts[0]["whole.error"])
    cut = joined(parts, "cut.value")
    told, _ = alone.look(torch.arange(cut.shape[1]), cut)
    torch.testing.assert_close(parts[0]["cut.error"].double(), told, rtol=1e-2, atol=0)
    assert told[1:].mean() > 1.0
    assert parts[0]["whole.error"].max() <= 0.1
    true = torch.maximum(*problem.errors(joined(parts, "whole.value")))
    assert true.square().mean().sqrt() <= 0.2


def test_the_first_process_keeps_the_time_for_all(tmp_path: Path) -> None:
    first, second = shared_rows.results(shared_rows.solve_by_clocks_that_differ, 2, tmp_path)
    assert torch.equal(first["steps"], second["steps"])


@pytest.mark.parametrize(
    ("size", "hangs"),
    [
        (3, False),
        pytest.param(4, False, marks=pytest.mark.slow),
        pytest.param(3, True, marks=pytest.mark.slow),
    ],
    ids=["killed", "one of four", "hanging"],
)
def test_a_lost_process_ends_the_others_with_the_remedy(
    tmp_path: Path, size: int, hangs: bool
) -> None:
    processes = shared_rows.start(shared_rows.lose_a_process, size, tmp_path, hangs)
    for process in processes:
        process.join(60)
    if not hangs:
        assert processes[1].exitcode == -9
    for rank in {*range(size)} - {1}:
        found = shared_rows.load_file(tmp_path / f"{rank}.safetensors")
        assert "lost contact with another" in as_text(found["message"])
        assert "a solver with a `checkpoint` goes on from its last one" in as_text(found["message"])
        assert found["seconds"] < (6.0 if hangs else 30.0)


@pytest.mark.parametrize(
    ("size", "saved_by_all"),
    [
        pytest.param(2, True, marks=pytest.mark.slow),
        (2, False),
        pytest.param(3, True, marks=pytest.mark.slow),
        pytest.param(4, True, marks=pytest.mark.slow),
    ],
    ids=["saved by all", "saved by some", "by three", "by four"],
)
def test_a_solve_restarted_after_a_death_ends_where_it_would_have(
    tmp_path: Path, size: int, saved_by_all: bool
) -> None:
    folder = tmp_path / "saved"
    whole = shared_rows.results(
        shared_rows.solve_and_save, size, tmp_path / "whole", tmp_path / "other", "asap", None
    )
    for process in shared_rows.start(
        shared_rows.solve_and_save, size, tmp_path / "cut", folder, "asap", 7
    ):
        process.join(60)
    files = sorted(path.name.partition("-")[2].partition("-")[2] for path in folder.iterdir())
    assert files == [
        f"{step:010d}.{rank}-of-{size}.safetensors" for step in (4, 6) for rank in range(size)
    ]
    if not saved_by_all:
        next(folder.glob("*6.1-of-2.safetensors")).unlink()
    resumed = shared_rows.results(
        shared_rows.solve_and_save, size, tmp_path / "resumed", folder, "asap", None
    )
    for before, after in zip(whole, resumed, strict=True):
        assert after["taken"] == before["taken"] - (6 if saved_by_all else 4)
        for name in ("value", "steps", "epochs", "generator"):
            assert torch.equal(after[name], before[name])
    assert not list(folder.iterdir())


@pytest.mark.slow
def test_the_example_under_torchrun_gives_the_answer_of_one_process(tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / "examples" / "distributed_solve.py"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    answers = []
    for launcher in ([], torchrun):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(example.parents[1])}
        command = [sys.executable, *launcher, str(example)]
        run = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert run.returncode == 0, run.stderr
        answers.append(run.stdout.splitlines())
    assert answers[0][0].startswith("1 processes, 0.0 MB moved: 17/17 columns converged")
    assert answers[1][0].startswith("2 processes") and "17/17 columns converged" in answers[1][0]
    means = [float(answer[1].partition("is about ")[2].partition(" ")[0]) for answer in answers]
    assert abs(means[0] - means[1]) < 0.015  # of two decimals


def test_a_process_alone_needs_no_group() -> None:
    X, noise, rhs = shared_rows.data()
    alone = DistributedKernelSystem(shared_rows.KERNEL, X, noise)
    for name in ("cg", "asap", "sdd"):
        value = SOLVERS[name].solve(alone, rhs).value
        torch.testing.assert_close(
            value, SOLVERS[name].solve(local_system(), rhs).value, rtol=1e-6, atol=1e-6
        )
    assert alone.bytes_moved == 0
