"""Whether the tests notice what they should: small faults put into the code one at a time.

    python -m tests.mutations [--only WORD] [--out mutations.json]

Each mutant replaces a few characters of one file in a copy of the tree, and runs the tests that sit
beside it until one fails: then it is killed. One that survives shows what no test claims.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PARTS = ("surrogates", "acquisition", "scalable_bo", "tests", "benchmarks", "examples", "docs")
FILES = ("pyproject.toml", "README.md", "CHANGELOG.md")
MOST_SECONDS = 900


class Mutant(NamedTuple):
    """A fault.

    Attributes:
        file: relative to the root.
        before, after: what is replaced, which stands there once, and by what.
        tests: that ought to notice.
    """

    file: str
    before: str
    after: str
    tests: str


SOLVERS = "tests/surrogates/solvers"
OPERATORS = "tests/surrogates/operators"
MODELS = "tests/surrogates/models tests/surrogates/rules tests/surrogates/functions"
SEARCH = "tests/acquisition"
STUDY = "tests/scalable_bo/study"
STORAGE = "tests/scalable_bo/storage"
RUN = "surrogates/solvers/run.py"
SOLVER = "surrogates/solvers/solver.py"
ACCOUNT = "surrogates/solvers/accuracy.py"
SOLVED = "surrogates/rules/solved.py"
PATHS = "surrogates/functions/paths.py"
TILES = "surrogates/operators/tiles.py"
SELECTION = "acquisition/selection.py"
BELIEF = "scalable_bo/modelling/belief.py"
GOALS = "scalable_bo/study/goals.py"
LEGACY = "scalable_bo/storage/legacy.py"
LOCK = "scalable_bo/storage/lock.py"
REPAIR = "scalable_bo/storage/restore.py"
SHARED = "scalable_bo/storage/shared.py"
SHEETS = "scalable_bo/storage/sheets.py"
SQLITE = "scalable_bo/storage/sqlite.py"
ROWS = "scalable_bo/storage/rows.py"
MUTANTS = (
    Mutant(RUN, "better = sweep.error < self.", "better = sweep.error < 1.5 * self.", SOLVERS),
    Mutant(RUN, "hidden = self.rounding(W) > DIGIT", "hidden = self.rounding(W) > 1e30", SOLVERS),
    Mutant(RUN, "sweep.error * lost > self", "1e-30 * lost > self", SOLVERS),
    Mutant(
        SOLVER,
        "return cls(system, index, system.rows",
        "return cls(system, index, 0.5 * system.rows",
        SOLVERS,
    ),
    Mutant(
        RUN, "going = ~(error <= run.allowed)", "going = ~(error <= 2.0 * run.allowed)", SOLVERS
    ),
    Mutant(RUN, "STALLS_ALLOWED = 2", "STALLS_ALLOWED = 10**9", SOLVERS),
    Mutant(RUN, "stalled | (sweep.num_lost > len(running))", "stalled", SOLVERS),
    Mutant(RUN, "lost |= drift > run", "lost &= drift > run", SOLVERS),
    Mutant(RUN, "going = residual > sweep.aim", "going = residual > 4.0 * sweep.aim", SOLVERS),
    Mutant(ACCOUNT, "found * uneven + unsolved", "found * uneven", SOLVERS),
    Mutant(
        ACCOUNT, "of_paths.max() / of_paths.mean()", "of_paths.mean() / of_paths.mean()", SOLVERS
    ),
    Mutant(ACCOUNT, "torch.minimum((deviation", "torch.maximum((deviation", SOLVERS),
    Mutant(
        "surrogates/solvers/inducing_error.py",
        "return left + (whitened *",
        "return 0.01 * (whitened *",
        SOLVERS,
    ),
    Mutant(TILES, "gradient += slope", "gradient = slope", OPERATORS),
    Mutant(TILES, "if number != k", "if number >= 0", OPERATORS),
    Mutant("surrogates/solvers/cg.py", "rho / state.rho", "rho / (2.0 * state.rho)", SOLVERS),
    Mutant(
        "surrogates/solvers/sdd.py",
        "A.add_(V, alpha=self.momentum)",
        "A.add_(V, alpha=0.0)",
        SOLVERS,
    ),
    Mutant("surrogates/solvers/sketch_and_project.py", "1.0 / (1.0 + gamma * nu)", "0.5", SOLVERS),
    Mutant(SOLVED, "solve(own_block, gap).value", "solve(own_block, 0.0 * gap).value", MODELS),
    Mutant(
        SOLVED,
        "weights=mean_weights - solution.value",
        "weights=mean_weights + solution.value",
        MODELS,
    ),
    Mutant(
        SOLVED, "noise = std * balanced_normal(", "noise = 0.7 * std * balanced_normal(", MODELS
    ),
    Mutant(
        SOLVED,
        "return bool((torch.maximum(lost[0]",
        "return False and bool((torch.maximum(lost[0]",
        MODELS,
    ),
    Mutant(SOLVED, "math.ceil(num_paths / paths_per_draw) if wanted.spanning else 1", "1", MODELS),
    Mutant(PATHS, "+ shares.to(deviations) * deviations", "+ deviations", MODELS),
    Mutant(PATHS, "self.prior.each(X) + update", "self.prior.each(X) - update", MODELS),
    Mutant(
        PATHS, "update = combine(self.data, X, ", "update = 0.9 * combine(self.data, X, ", MODELS
    ),
    Mutant(SELECTION, "if not is_known[i] and untaken", "if not is_known[i] or untaken", SEARCH),
    Mutant(
        SELECTION,
        "searchsorted(self.places, places - REACH)",
        "searchsorted(self.places, places)",
        SEARCH,
    ),
    Mutant(SELECTION, "values.argsort(dim=1, descending=True)", "values.argsort(dim=1)", SEARCH),
    Mutant(SELECTION, "@ self.slopes[i]).argmax()", "@ self.slopes[i]).argmin()", SEARCH),
    Mutant("acquisition/trust_region.py", "self.num_failures + 1", "self.num_failures", SEARCH),
    Mutant(
        "acquisition/constraints.py", "torch.where(self.scale > 0, box, self.bounds)", "box", SEARCH
    ),
    Mutant(
        "acquisition/multistart.py",
        "return points, sign * best_values",
        "return points, best_values",
        SEARCH,
    ),
    Mutant(BELIEF, "spread = 0.5 *", "spread =", STUDY),
    Mutant(BELIEF, "return mean - 2.0 * std", "return mean + 2.0 * std", STUDY),
    Mutant(BELIEF, "changed = first.clone()", "changed = second.clone()", STUDY),
    Mutant(
        "scalable_bo/modelling/fitting.py",
        "SeedSequence((seed, number))",
        "SeedSequence((seed, 1))",
        STUDY,
    ),
    Mutant(
        "scalable_bo/study/asking.py",
        "usable[row] &= key not in taken",
        "usable[row] &= True",
        STUDY,
    ),
    Mutant(
        "scalable_bo/study/ask_inputs.py",
        "~rows.told | rows.values.isnan()",
        "rows.values.isnan() & rows.told",
        STUDY,
    ),
    Mutant(
        "scalable_bo/study/pace.py",
        "return lambda U: data.values_of(paths.mean(U))",
        "return lambda U: 1.0 - data.values_of(paths.mean(U))",
        STUDY,
    ),
    Mutant(
        "scalable_bo/modelling/fitting.py",
        "return GAIN_ON_NOISE * number",
        "return -9.0 * number",
        "tests/scalable_bo/modelling",
    ),
    Mutant(GOALS, "return worst - nearest", "return worst + nearest", STUDY),
    Mutant(GOALS, "ratio ** steps.to(width)", "ratio ** steps[:1].to(width)", STUDY),
    Mutant(
        "acquisition/outcomes.py",
        "return torch.randint(len(self.reference)",
        "return 0 * torch.randint(len(self.reference)",
        SEARCH,
    ),
    Mutant(SHARED, "if row.until >= time.time()", "if True", STORAGE),
    Mutant(SHARED, " if digest == self._digest(number, content) else None", "", STORAGE),
    Mutant("scalable_bo/storage/record.py", "self._is_torn = True", "pass", STORAGE),
    Mutant(SHEETS, "or id in self._seen:", "or False:", STORAGE),
    Mutant(LEGACY, 'row.pop("seal") != seal_of(row.values())', 'row.pop("seal") is None', STORAGE),
    Mutant(
        LOCK,
        "os.kill(pid, 0)\n    except PermissionError",
        "pass\n    except PermissionError",
        STORAGE,
    ),
    Mutant(ROWS, "room[: len(column)] = column", "pass", STORAGE),
    Mutant(REPAIR, "if stored == digest_of(digest, content):", "if stored:", STORAGE),
    Mutant(ROWS, "whole[list(self.reasons)] = True", "pass", STORAGE),
    Mutant(SQLITE, " or digest != stored", "", STORAGE),
    Mutant(SQLITE, "if last != end:", "if False:", STORAGE),
    Mutant(SQLITE, '"PRAGMA journal_mode = DELETE"', '"PRAGMA journal_mode = WAL"', STORAGE),
)


def copied(folder: Path) -> Path:
    """Copy what the tests need to ``folder``."""
    for name in PARTS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    return folder


def is_killed(mutant: Mutant, tree: Path) -> bool:
    """Return whether a test fails in ``tree`` with the fault, which is taken out again."""
    file = tree / mutant.file
    text = file.read_text()
    if text.count(mutant.before) != 1:
        raise ValueError(f"{mutant.file} must have {mutant.before!r} once.")
    file.write_text(text.replace(mutant.before, mutant.after))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "2"]
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    try:
        run = subprocess.run(
            [*command, "--dist", "loadfile", *mutant.tests.split()],
            cwd=tree,
            env=environment,
            capture_output=True,
            timeout=MOST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return True  # it never ends
    finally:
        file.write_text(text)
    return run.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="mutants of files whose name holds this word")
    parser.add_argument("--out", type=Path, default=None, help="JSON to write")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if arguments.only in mutant.file]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(Path(folder))
        for mutant in chosen:
            killed = is_killed(mutant, tree)
            found.append({**mutant._asdict(), "killed": killed})
            state = "killed" if killed else "SURVIVED"
            sys.stdout.write(f"{state:8s} {mutant.file}: {mutant.after.strip()}\n")
            sys.stdout.flush()
            if arguments.out is not None:
                arguments.out.write_text(json.dumps(found, indent=1))
    sys.stdout.write(f"{sum(each['killed'] for each in found)} of {len(found)} killed\n")


if __name__ == "__main__":
    main()
