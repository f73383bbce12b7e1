"""Objectives on executors: what fails is a point, never the study."""

import math
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from decimal import Decimal
from fractions import Fraction
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch

from scalable_bo.evaluation import evaluator as evaluation
from scalable_bo.evaluation.evaluator import AnswerError, Evaluation, Evaluator, call
from scalable_bo.space.space import Categorical, Float, Space
from scalable_bo.storage.rounds import Round
from scalable_bo.study.study import Study
from tests.forked import CONTEXT, run_fresh
from tests.scalable_bo.objectives import (
    FAULTS,
    die_above_three_quarters,
    faulty,
    hang_above_half,
    lacking_above_half,
    misnamed_above_half,
    square,
    with_its_deviation,
    without_its_key,
)
from tests.waiting import eventually

SPACE = Space(x=Float(0.0, 1.0))
FAULTY_SPACE = Space(what=Categorical(["good", *FAULTS]), number=Categorical([0, 1, 2]))


def processes() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(2, mp_context=CONTEXT)


def threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(4)


def make(space: Any = SPACE, path: Path | None = None) -> Study:
    return Study(space, maximize=True, seed=0, num_initial=10_000, path=path)


@pytest.fixture
def study() -> Study:
    return make()


EXECUTORS: list[Callable[[], Executor] | None] = [None, threads, processes]
WAYS = [(None, False), (threads, 2), (processes, False)]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_whatever_an_objective_returns_or_raises_is_recorded(
    executor: Callable[[], Executor] | None, tmp_path: Path
) -> None:
    with make(FAULTY_SPACE, tmp_path) as study:
        result = study.optimize(faulty, rounds=1, batch=27, executor=executor, max_failures=24)
        assert sorted(result.values.tolist()) == [0.0, 1.0, 2.0]
        assert result.num_pending == 0
    with make(FAULTY_SPACE, tmp_path) as study:
        frame = study.to_dataframe()
    for what, reason in FAULTS.items():
        reasons = frame["reason"][frame["what"] == what]
        assert len(reasons) == 3
        assert all(
            text.startswith(reason) and len(text) <= evaluation.MAX_REASON for text in reasons
        )


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_hangs_fails_and_its_worker_goes_on(
    executor: Callable[[], Executor] | None, study: Study
) -> None:
    study.optimize(hang_above_half, rounds=1, batch=8, executor=executor, timeout=0.1)
    frame = study.to_dataframe()
    assert (frame["reason"][frame["x"] > 0.5] == "TimeoutError: no value within 0.1 s").all()
    assert (frame["status"][frame["x"] <= 0.5] == "observed").all()
    assert 0 < study.result.num_failed < 8


def multiply(params: Any) -> float:
    matrix = torch.full((600, 600), params["x"])
    return float((matrix @ matrix).isfinite().all() * torch.get_num_threads())


def test_an_objective_in_a_forked_process_does_not_wait_for_the_threads_of_its_parent() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert multiply({"x": 1.0}) == 2.0  # by threads, which a fork lacks
        pool = partial(ProcessPoolExecutor, 1, mp_context=get_context("fork"))
        result = make().optimize(multiply, 1, 3, executor=pool)
    finally:
        torch.set_num_threads(before)
    assert result.values.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("executor", [None, "ThreadPoolExecutor(2)"])
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_process_that_an_objective_forks_evaluates_no_point(
    executor: str | None, timeout: float | None, tmp_path: Path
) -> None:
    code = f"""
import os, sys
from concurrent.futures import ThreadPoolExecutor
import scalable_bo as sbo
def fail(): raise ValueError("of the child")
ENDS = [lambda: 0.5, fail, lambda: sys.exit(), lambda: sys.exit(7), lambda: sys.exit("a text")]
def objective(params):
    pid = os.fork()
    if pid == 0:
        return ENDS[params["k"]]()
    with open("calls", "a") as file:
        file.write(f"{{os.getpid()}}\\n")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
study = sbo.Study(sbo.Space(k=sbo.Int(0, 4)), maximize=True)
study.enqueue([{{"k": k}} for k in range(5)])
try:
    raise KeyError("being handled")  # which no child has raised
except KeyError:
    study.optimize(objective, 1, 5, executor={executor}, timeout={timeout}, progress=False)
found = study.to_dataframe().sort_values("k")
print(found["value"].tolist())
"""
    done = run_fresh(code, tmp_path)
    assert done.stdout.splitlines() == ["[0.0, 1.0, 0.0, 7.0, 1.0]"]
    assert "ValueError: of the child" in done.stderr and "a text" in done.stderr
    pids = (tmp_path / "calls").read_text().split()
    assert len(pids) == 5 and len(set(pids)) == 1


def test_the_point_that_ends_its_process_fails_and_all_others_are_evaluated(study: Study) -> None:
    study.optimize(die_above_three_quarters, rounds=1, batch=8, executor=processes)
    frame = study.to_dataframe()
    deadly = frame["x"] > 0.75
    assert deadly.sum() == 2
    assert (frame["reason"][deadly] == "its process ended: killed by SIGKILL").all()
    assert (frame["status"][~deadly] == "observed").all()


def test_without_a_way_to_make_a_new_pool_the_points_stay_pending(study: Study) -> None:
    message = (
        r"The executor is lost: its process ended.*[^.]\. Its points stay pending. Give `executor`"
    )
    with processes() as pool, pytest.raises(RuntimeError, match=message):
        study.optimize(die_above_three_quarters, rounds=1, batch=8, executor=pool)
    assert study.pending.ids
    assert not (study.to_dataframe()["status"] == "failed").any()
    study.optimize(square, rounds=1, batch=1)
    assert study.num_observations == 9


def test_an_executor_that_does_not_answer_is_replaced() -> None:
    made: list[Executor] = []

    class Deaf(Executor):
        def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            if args[0] == 0:
                future.set_running_or_notify_cancel()
            return future

        def shutdown(self, wait: bool = True) -> None:  # type: ignore[override]
            """Take what Dask's takes, no more."""

    def make_executor() -> Executor:
        made.append(ThreadPoolExecutor(1) if made else Deaf())
        return made[-1]

    evaluate = partial(call, square, 0.05)
    with Evaluator(evaluate, make_executor, 0.05, lambda: False, grace=0.1) as evaluator:
        found = [one for part in evaluator.run({0: {"x": 0.1}, 1: {"x": 0.3}}) for one in part]
    assert [one.id for one in found] == [0, 1]
    assert found[0].reason == "no answer within 0.2 s"
    assert found[1] == Evaluation(1, 0.0)
    assert len(made) == 2


def test_what_cannot_be_sent_to_a_process_stops_at_once_with_the_remedy(study: Study) -> None:
    with pytest.raises(
        TypeError,
        match=(
            "could not be sent between processes.*Define the objective at the top of a module, or"
            " use threads"
        ),
    ):
        study.optimize(lambda params: 1.0, rounds=1, batch=4, executor=processes)
    assert len(study.pending.ids) == 4


@pytest.mark.parametrize("end", [KeyboardInterrupt, TypeError])
def test_what_finished_is_told_where_another_at_the_same_moment_ends_the_run(
    end: type[BaseException], study: Study
) -> None:
    class Together(Executor):
        """All of its evaluations finish at once, the first of them with an error."""

        def __init__(self) -> None:
            self.out: list[tuple[Future[Evaluation], Evaluation]] = []

        def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            self.out.append((future, function(*args)))
            if len(self.out) == 4:
                for done, evaluation in self.out[1:]:
                    done.set_result(evaluation)
                self.out[0][0].set_exception(end())
            return future

    with pytest.raises(end):
        study.optimize(square, rounds=1, batch=4, executor=Together())
    assert study.num_observations == 3
    assert study.pending.ids == [0]


@pytest.mark.parametrize(
    ("max_failures", "message"),
    [
        (
            2,
            (
                "3 of 3 evaluations failed, more than `max_failures` = 2; the last reason:"
                r" ZeroDivisionError: division by zero \(in <lambda>, .*\). Mend"
            ),
        ),
        (
            None,
            (
                "The first 3 evaluations all raised the same; the last reason: ZeroDivisionError:"
                r" division by zero \(in <lambda>, .*\). Mend the objective, or set `max_failures`"
            ),
        ),
    ],
)
def test_too_many_failures_end_the_run(
    max_failures: int | None, message: str, study: Study
) -> None:
    with pytest.raises(RuntimeError, match=message) as error:
        study.optimize(lambda params: 1 / 0, rounds=9, batch=4, max_failures=max_failures)
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    assert "lambda" in str(error.value.__cause__.__traceback__.tb_next.tb_frame.f_code)  # type: ignore[union-attr]
    assert study.num_failed == 3


def test_numbers_of_any_kind_are_values() -> None:
    for number in (
        2,
        2.0,
        True + True,
        np.float32(2),
        np.array(2),
        np.array([2.0]),
        torch.tensor(2),
        torch.tensor([[2.0]]),
        torch.tensor(2.0, dtype=torch.bfloat16, requires_grad=True),
        torch.tensor([2.0]).to_sparse(),
        Fraction(2),
        Decimal(2),
        np.array(Decimal(2)),
        np.ma.array([2]),
        [2.0],
        ([2.0],),
        pd.Series([2.0]),
        Weighed(),
    ):
        assert Evaluation.of(7, number) == Evaluation(7, 2.0)


class Weighed:
    __float__ = Mock(return_value=2.0)


class Measured:
    """A number with its deviation, as some packages have them."""

    __float__ = Mock(side_effect=TypeError("no number alone: use nominal_value"))


def test_a_value_of_several_numbers_is_refused_with_what_to_tell() -> None:
    for value in (
        (1.0, 0.1),
        [1.0, 0.1],
        ([1.0, 0.1],),
        {"value": 1.0},
        {1.0},
        np.array([1.0, 0.1]),
        torch.tensor([[1.0, 0.1]]),
        pd.Series([1.0, 0.1]),
        Measured(),
    ):
        with pytest.raises(AnswerError, match="(?s)value of point 7 must be one number, .* alone"):
            Evaluation.of(7, value)
        with pytest.raises(AnswerError, match="value of point 7 for 'b' must be one number, got"):
            Evaluation.of(7, {"a": 1.0, "b": value}, ("a", "b"))


def test_a_number_beyond_those_of_a_float_is_refused() -> None:
    for value in (10**400, -(10**400), Fraction(10**400), Decimal("1e400")):
        with pytest.raises(ValueError, match="must be at most 1.8e\\+308 in size, got a larger"):
            Evaluation.of(7, value)


def test_what_holds_no_number_is_a_failure() -> None:
    texts = (None, "1.5", b"1.5", np.array("1.5"))
    for value in (*texts, 1j, pd.NA, pd.NaT, np.ma.masked, [], {}, object()):
        assert Evaluation.of(7, value).failure
        assert Evaluation.of(7, (value, 1.0), ("a", "b")).further == (1.0,)
        assert Evaluation.of(7, (value, 1.0), ("a", "b")).failure is None
        assert Evaluation.of(7, (value, value), ("a", "b")).failure


@pytest.mark.parametrize(("executor", "asynchronous"), WAYS)
def test_an_objective_with_a_deviation_beside_its_value_ends_the_run_at_once(
    executor: Callable[[], Executor] | None, asynchronous: bool | int, study: Study
) -> None:
    with pytest.raises(ValueError, match="must be one number, got \\(-?0.*, 0.1\\)"):
        study.optimize(
            with_its_deviation, rounds=2, batch=4, executor=executor, asynchronous=asynchronous
        )
    assert study.num_failed == 0
    assert study.pending.ids


@pytest.mark.parametrize(("executor", "asynchronous"), WAYS)
def test_an_unknown_outcome_ends_the_run_and_what_was_told_is_kept(
    executor: Callable[[], Executor] | None, asynchronous: bool | int, tmp_path: Path
) -> None:
    options = {"objectives": {"cost": "minimize", "gain": "maximize"}, "num_initial": 10_000}
    with (
        Study(SPACE, path=tmp_path, **options) as study,
        pytest.raises(ValueError, match="outcomes cost, gain, got 'gian'; the nearest is 'gain'"),
    ):
        study.optimize(
            misnamed_above_half, rounds=1, batch=8, executor=executor, asynchronous=asynchronous
        )
    with Study(SPACE, path=tmp_path, **options) as study:
        frame = study.to_dataframe()
        assert not (frame["status"] == "failed").any()
        assert (frame["status"][frame["x"] > 0.5] == "pending").all()
        study.optimize(lambda params: (params["x"], 0.0), rounds=0, batch=1)
        assert study.num_observations == 8


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_objective_that_lacks_an_outcome_leaves_its_points_pending_with_the_others(
    executor: Callable[[], Executor] | None,
) -> None:
    study = Study(SPACE, objectives={"cost": "minimize", "gain": "maximize"}, num_initial=10_000)
    study.optimize(lacking_above_half, rounds=1, batch=8, executor=executor)
    frame = study.to_dataframe()
    assert (frame["cost"] == frame["x"]).all()
    assert ((frame["status"] == "pending") == (frame["x"] > 0.5)).all()
    assert 0 < len(study.pending.ids) < 8
    # They wait for `tell`, and are not evaluated again
    study.optimize(without_its_key, rounds=0, batch=1, executor=executor)
    assert study.num_failed == 0


@pytest.mark.parametrize("vectorized", [False, True])
def test_an_objective_that_always_lacks_an_outcome_ends_the_run(vectorized: bool) -> None:
    study = Study(SPACE, objectives={"cost": "minimize", "gain": "maximize"}, num_initial=10_000)

    def objective(given: Any) -> Any:
        return [(1.0, math.nan)] * len(given) if vectorized else {"cost": 1.0}

    with pytest.raises(RuntimeError, match="The last 1. evaluations failed.* last reason: .*val"):
        study.optimize(objective, 5, 6, vectorized=vectorized)
    pending = study.pending
    assert len(pending.ids) == 12
    assert pending.outcomes.count({"cost": 1.0}) + len(study.unfinished().ids) == 12
    assert pending.outcomes.count({"cost": 1.0}) >= 10


def test_an_objective_that_always_raises_in_processes_ends_the_run_with_its_trace(
    study: Study,
) -> None:
    with pytest.raises(RuntimeError, match="The first . evaluations all raised") as error:
        study.optimize(without_its_key, rounds=9, batch=20, executor=processes)
    assert "in without_its_key" in str(error.value.__cause__)
    assert "KeyError: 'missing'" in str(error.value.__cause__)
    assert 3 <= study.num_failed <= 20
    assert len(study.retry().ids) == 20
    study.optimize(square, rounds=0, batch=1)
    assert (study.num_failed, study.num_observations) == (0, 20)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_pool_killed_over_points_that_wait_ends_without_an_error_of_its_thread(
    is_stopped: bool,
) -> None:
    stop = threading.Event()
    points = {id: {"x": 0.0 if id == 0 else 1.0} for id in range(20)}
    with (
        pytest.raises(KeyboardInterrupt),
        Evaluator(partial(call, hang_above_half, None), processes, None, stop.is_set) as evaluator,
    ):
        for evaluations in evaluator.run(points):
            pool = evaluator.executor
            managers = [one.pool._executor_manager_thread for one in pool._all]  # type: ignore[union-attr]
            if not evaluations or not is_stopped:
                raise KeyboardInterrupt
            stop.set()
    for manager in managers:
        manager.join()  # pytest reports what ended it


def descend(depth: int) -> float:
    if depth:
        return descend(depth - 1)
    raise ValueError("at\nthe end")


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_the_reason_of_a_failure_leads_through_the_objective_to_where_it_raised(
    timeout: float | None,
) -> None:
    line = descend.__code__.co_firstlineno

    def objective(params: dict[str, Any]) -> float:
        return descend(params["depth"])

    def places(depth: int) -> str:
        reason = call(objective, timeout, 0, {"depth": depth}).reason
        message, _, rest = reason.partition(" (in objective, test_evaluator.py:")
        assert message == "ValueError: at the end"
        return rest.partition(" → ")[2]

    inner = f"descend, test_evaluator.py:{line + 2}"
    last = f"descend, test_evaluator.py:{line + 3}"
    assert places(0) == f"{last})"
    assert places(2) == f"{inner} → {inner} → {last})"
    assert places(9) == f"… → {inner} → {inner} → {last})"


def test_a_long_message_leaves_room_for_its_place() -> None:
    def objective(params: dict[str, Any]) -> float:
        raise ValueError("x" * 10_000)

    reason = call(objective, None, 0, {}).reason
    assert reason is not None and len(reason) == 500
    assert re.search(r"xxx… \(in objective, test_evaluator.py:\d+\)$", reason)


def test_an_error_whose_text_raises_is_a_failure_like_others() -> None:
    class Mute(Exception):
        __str__ = Mock(side_effect=ZeroDivisionError)

    assert Evaluation.raised(3, Mute()).reason == "Mute: its text cannot be read"


def test_a_lone_surrogate_in_a_failure_is_kept_as_an_escape(tmp_path: Path) -> None:
    line = sys._getframe().f_lineno + 3

    def objective(params: dict[str, Any]) -> float:
        raise ValueError("bad \udcff name")

    with make(path=tmp_path) as study:
        study.add_data([[0.5]], [1.0], name="\udcff.csv")
        study.optimize(objective, 1, 2, max_failures=9)
        study.tell(study.ask(1).ids, ["\udcff"])
        study.tell(study.ask(1).ids, [math.nan], reasons={4: "\udcff"})
    with make(path=tmp_path) as study:
        assert study.reasons([1, 3, 4]) == [
            f"ValueError: bad \\udcff name (in objective, test_evaluator.py:{line})",
            "not a number: str '\\udcff'",
            "\\udcff",
        ]


def test_values_are_told_while_others_are_out(study: Study) -> None:
    told = threading.Event()

    def objective(params: dict[str, Any]) -> float:
        if params["x"] == last:
            assert told.wait(30)
        return params["x"]

    last = study.ask(4).params[-1]["x"]
    threading.Thread(
        target=lambda: (eventually(lambda: study.num_observations == 3), told.set()), daemon=True
    ).start()
    study.optimize(objective, rounds=1, batch=1, executor=threads)
    assert study.num_observations == 5


def test_values_of_a_round_that_arrive_together_are_stored_in_few_transactions(
    tmp_path: Path, spy: Any
) -> None:
    with make(path=tmp_path) as study:
        tell = spy(study, "tell")
        with ThreadPoolExecutor(4) as pool:
            study.optimize(square, rounds=1, batch=300, executor=pool)
        assert sum(len(call.args[0]) for call in tell.call_args_list) == 300
        assert tell.call_count < 150


def test_rounds_go_on_counting_and_report_failures_and_memory(
    capsys: pytest.CaptureFixture[str], study: Study
) -> None:
    rounds = list[Round]()
    study.ask(2)
    study.optimize(
        hang_above_half, 2, 4, timeout=0.05, callbacks=[lambda study, report: rounds.append(report)]
    )
    assert [report.number for report in rounds] == [2, 3]
    assert sum(report.num_failed for report in rounds) == sum(
        study.to_dataframe()["status"][2:] == "failed"
    )
    assert rounds[0].peak_bytes > 2**20
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("round 2/3: n ")
    assert " failed, initial design, objective " in lines[0]
    assert lines[0].endswith(" GiB")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"executor": 4},
            TypeError,
            (
                "`executor` must be a concurrent.futures.Executor, a function that makes one, or"
                " None, got 4. Give one, such as `lambda: ThreadPoolExecutor"
            ),
        ),
        ({"timeout": 0.0}, ValueError, "`timeout` must be finite and above 0, got 0.0"),
        ({"max_failures": -1}, ValueError, "`max_failures` must be at least 0, got -1"),
        (
            {"vectorized": True, "timeout": 1.0},
            ValueError,
            "`vectorized` must be False with an `executor`, a `timeout` or a `Command`",
        ),
    ],
)
def test_impossible_settings_are_refused_before_points_are_asked(
    options: dict[str, Any], error: type[Exception], message: str, study: Study
) -> None:
    with pytest.raises(error, match=message):
        study.optimize(square, 1, 1, **options)
    assert study.num_asks == 0


def test_reasons_are_of_failures_alone(study: Study) -> None:
    study.ask(2)
    for reasons, message in (
        ({0: "bad"}, "`reasons` must be of failures, got 'bad' beside the value 1"),
        ({1: "bad"}, "of `ids`, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            study.tell([0], [1.0], reasons=reasons)
    study.tell([0, 1], [1.0, float("nan")], reasons={1: "it rained"})
    study.tell([1], [float("nan")], reasons={1: "it rained"})
    assert study.reasons([0, 1]) == [None, "it rained"]


@pytest.mark.slow
@pytest.mark.distributed
def test_dask_evaluates_and_a_worker_that_dies_fails_its_points_alone() -> None:
    import dask
    from distributed import Client, LocalCluster

    study = make()
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True
        ) as cluster,
        Client(cluster) as client,
    ):
        study.optimize(
            die_above_three_quarters, rounds=1, batch=8, executor=client.get_executor(pure=False)
        )
        study.optimize(
            hang_above_half,
            rounds=1,
            batch=8,
            executor=client.get_executor(pure=False),
            timeout=0.2,
        )
    frame = study.to_dataframe()
    dead = frame["reason"].str.startswith("KilledWorker")
    assert dead[:8].sum() >= (frame["x"][:8] > 0.75).sum() > 0
    assert (frame["status"][:8][~dead[:8] & (frame["x"][:8] <= 0.75)] == "observed").all()
    assert (
        frame["reason"][8:][frame["x"][8:] > 0.5] == "TimeoutError: no value within 0.2 s"
    ).all()
    assert (frame["status"] != "pending").all()


def test_a_pool_that_breaks_at_once_is_reported() -> None:
    class Broken(Executor):
        submit = Mock(side_effect=BrokenExecutor("no workers"))

    with pytest.raises(
        RuntimeError,
        match="The executor is lost: BrokenExecutor: no workers. Its points stay pending",
    ):
        make().optimize(square, 1, 2, executor=Broken())


def test_a_timeout_of_any_size_is_waited_for() -> None:
    for timeout in (3e6, 1e10, 1e300):
        assert call(square, timeout, 0, {"x": 0.3}) == Evaluation(0, 0.0)
