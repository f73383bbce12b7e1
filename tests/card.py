"""Every solver that has a name, here or in a paper."""

from surrogates import CG, SDD, Nystrom, SketchAndProject, Solver
from surrogates.solvers.registry import SOLVERS, make_solver

CARD: dict[str, Solver] = {name: make_solver(name) for name in SOLVERS} | {
    "sdd-paper": SDD.paper(),
    "cg-100": CG(Nystrom(100)),
    "cg-gaussian": CG(Nystrom(100, sketch="gaussian")),
    "cg-paper": CG.paper(),
    "cg-plain": CG(None),
    "sap-leverage": SketchAndProject.sap(blocks="leverage", block_size=50),
    "sap-dpp": SketchAndProject.sap(blocks="dpp", block_size=50),
}
