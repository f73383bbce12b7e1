"""The command that mends a damaged study. Quick to import."""

from __future__ import annotations

import typer

from scalable_bo.cli.study_commands import StudyName, StudyPlace, folder_of, locate, refusals


def repair(place: StudyPlace, name: StudyName = None) -> None:
    """Restore a damaged study from its database and backup, and say what is lost.

    The damaged files are kept beside the restored ones. A study without damage is left as it is.
    """
    with refusals():
        from scalable_bo.storage.repair import restore

        remedy = "Restore the database from its backup, by its own means."
        folder = folder_of(locate(place, name), remedy)
        lost = restore(folder)
    if lost is None:
        typer.echo(f"The study in {folder} is whole.")
        return
    for line in lost or ["nothing"]:
        typer.echo(f"Restored the study in {folder}; lost: {line}.")
