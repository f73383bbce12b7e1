"""The processes that tests start: forked from one server, which has imported what they need."""

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
# There is one server in a process: the last list would be that of all tests
CONTEXT.set_forkserver_preload(
    [
        "torch.fx.experimental.symbolic_shapes",  # imports SymPy, where the first kernel is made
        "scalable_bo.storage.shared",
        "tests.acquisition.shared_batches",
        "tests.scalable_bo.experiments.shared_rounds",
        "tests.scalable_bo.peaks",
        "tests.scalable_bo.serving.campaigns",
        "tests.scalable_bo.study.shared_study",
    ]
)
