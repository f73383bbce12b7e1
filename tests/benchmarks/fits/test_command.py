"""``python -m benchmarks.fits`` as a user meets it: options, records and a table."""

import re
from pathlib import Path

from benchmarks.fits import batch_sizes, grid, recovery, scores
from benchmarks.fits.__main__ import fits
from benchmarks.fits.presets import FIT_PRESETS
from benchmarks.fits.simulators import SIMULATORS
from tests.command_lines import CommandLine


def test_records_and_a_table_are_written_and_what_is_finished_is_kept(
    cli: CommandLine, tmp_path: Path
) -> None:
    options = "--preset simulated --data otl,levy --method nearest --seeds 2 --n 50 --epochs 1"
    arguments = [*options.split(), "--out", str(tmp_path)]
    output = cli(*arguments, of=fits)
    names = [f"fit_scores_{data}_nearest_seed=2_n=50_max_epochs=1.json" for data in ("levy", "otl")]
    assert sorted(file.name for file in tmp_path.iterdir()) == [*names, "hyperparameters.md"]
    line = r"^fit_scores_otl_nearest_seed=2\S*: noise 0\.\d{3}, RMSE \d\.\d{3}, NLL "
    assert re.search(line, output.err, re.MULTILINE)  # a slow fit has lines of its own
    assert "2 records in" in output.out
    assert cli(*arguments, of=fits).err.count("(kept)") == 2


def test_help_names_every_preset_method_and_simulator(cli: CommandLine) -> None:
    text = re.sub(r"[\s│]+", " ", cli("--help", of=fits).out)
    methods = {*recovery.RECOVERY_METHODS, *scores.SCORE_METHODS, *batch_sizes.BATCH_METHODS}
    names = (*methods, *grid.GRID_METHODS, *grid.KERNELS, *grid.FUNCTIONS)
    for name in (*FIT_PRESETS, *SIMULATORS, *names):
        assert re.sub(r"^minimax-\d+$", "minimax-MU", name) in text
