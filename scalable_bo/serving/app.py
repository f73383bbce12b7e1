"""What a server answers: asks and tells of workers, and what there is to know of the study."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Annotated, Any

from scalable_bo._packages import require
from scalable_bo.evaluation.evaluator import MAX_REASON, LateError
from scalable_bo.serving.client import LONGEST_REASON
from scalable_bo.serving.leased_study import MOST_POINTS, LeasedStudy, UnavailableError
from scalable_bo.serving.live import LiveView, numbers_of
from scalable_bo.serving.middleware import TokenMiddleware
from scalable_bo.serving.tells import Told
from scalable_bo.space.plain_values import json_values
from scalable_bo.study.study import Study

require("fastapi", extra="serve", user="`scalable-bo serve`")

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

logger = logging.getLogger(__name__)

Id = Annotated[int, Field(ge=0, lt=2**53)]
Worker = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[\w.:@-]+$")]
Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Value = float | list[float | None] | dict[str, float | None]


class _Body(BaseModel):
    """The body of a request: kinds are not converted, and other keys are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Wanted(_Body):
    """Points for a worker."""

    worker: Worker
    q: int = Field(1, ge=1, le=MOST_POINTS)


class Found(_Body):
    """The value of a point, NaN if the evaluation failed, its variance where that is known, and the
    seconds that the evaluation took.
    """

    id: Id
    value: Value
    noise: float | None = None
    seconds: Seconds = math.nan


class Results(_Body):
    """Values of points, all of which are recorded, or none."""

    results: list[Found] = Field(max_length=MOST_POINTS)


class Failure(_Body):
    """Why the evaluation of a point failed."""

    id: Id
    reason: str = Field(max_length=LONGEST_REASON)
    seconds: Seconds = math.nan


class Failures(_Body):
    """Failures of points, all of which are recorded, or none."""

    failures: list[Failure] = Field(max_length=MOST_POINTS)


class Held(_Body):
    """Points that a worker has."""

    worker: Worker
    ids: list[Id] = Field(max_length=MOST_POINTS)


class Page(_Body):
    """A part of the rows, as ``LiveView.rows`` takes it."""

    search: str = Field("", max_length=MAX_REASON)
    sort: str = Field("", max_length=MAX_REASON)
    down: bool = False
    offset: int = Field(0, ge=0, lt=2**53)
    limit: int = Field(25, ge=1, le=MOST_POINTS)


def make_app(leased: LeasedStudy, token: str) -> TokenMiddleware:
    """Return the application of a server, behind the check of its token."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.add_exception_handler(ValidationError, _say_what_is_wrong)
    for kind in (OSError, RuntimeError):
        app.add_exception_handler(kind, _say_failure)
    _add_work(app, leased)
    _add_answers(app, leased)
    _add_page(app)
    return TokenMiddleware(app, token)


def _add_work(app: FastAPI, leased: LeasedStudy) -> None:

    @app.post("/ask")
    async def ask(request: Request) -> Response:
        wanted = Wanted.model_validate_json(await request.body())
        found = leased.ask(wanted.q, wanted.worker)
        return reply(
            {
                "points": [{"id": id, "params": params} for id, params in found.points],
                "lease": leased.lease,
                "retry_after": found.retry_after,
                "finished": found.finished,
            }
        )

    @app.post("/tell")
    async def tell(request: Request) -> Response:
        body = Results.model_validate_json(await request.body())
        names = leased.study.outcomes
        wanted = f"values of {', '.join(names)}" if names else "one number for its value"
        for one in body.results:
            if isinstance(one.value, float) == bool(names):
                return reply({"detail": f"point {one.id} must have {wanted}"}, 422)
        return await told(
            [Told(one.id, one.value, one.noise, seconds=one.seconds) for one in body.results]
        )

    @app.post("/fail")
    async def fail(request: Request) -> Response:
        body = Failures.model_validate_json(await request.body())
        return await told(
            [Told(one.id, math.nan, None, one.reason, one.seconds) for one in body.failures]
        )

    @app.post("/renew")
    async def renew(request: Request) -> Response:
        held = Held.model_validate_json(await request.body())
        return reply({"lost": leased.renew(held.ids, held.worker)})

    @app.post("/release")
    async def release(request: Request) -> Response:
        held = Held.model_validate_json(await request.body())
        leased.release(held.ids, held.worker)
        return reply({})

    async def told(found: list[Told]) -> Response:
        try:
            await asyncio.wrap_future(leased.tell(found))
        except (TypeError, ValueError) as error:
            return reply({"detail": str(error)}, 409 if isinstance(error, LateError) else 422)
        return reply({"told": len(found)})


def _add_answers(app: FastAPI, leased: LeasedStudy) -> None:
    study, view = leased.study, LiveView(leased)
    answers: dict[str, Callable[[], Any]] = {
        "/status": lambda: _status(leased),
        "/points": lambda: [point.to_dict() for point in study.points()],
        "/best_params": lambda: study.best_params,
        "/best": lambda: _best(study),
        "/live": view.live,
        "/model": view.model,
    }
    for path, compute in answers.items():
        app.add_api_route(path, _computing(compute))

    @app.get("/rows")
    async def rows(request: Request) -> Response:
        page = Page.model_validate_strings(dict(request.query_params))
        return await _computing(lambda: view.rows(**dict(page)))()


def _add_page(app: FastAPI) -> None:
    contents = {
        "/": ("text/html", "serving/page.html"),
        "/page.js": ("text/javascript", "serving/page.js"),
        "/page.css": ("text/css", "serving/page.css"),
        "/style.css": ("text/css", "report/style.css"),
    }
    for path, (kind, file) in contents.items():
        content = files("scalable_bo").joinpath(file).read_bytes()
        answer: Any = Response(content, media_type=f"{kind}; charset=utf-8")
        app.add_route(path, answer, methods=["GET"])  # an answer is an application of its own


def _computing(compute: Callable[[], Any]) -> Callable[[], Awaitable[Response]]:
    async def answer() -> Response:
        try:
            return reply(await asyncio.to_thread(compute))  # which takes a while
        except ValueError as error:
            return reply({"detail": str(error)}, 409)

    return answer


def reply(content: Any, status: int = 200) -> Response:
    """Return an answer in JSON, NaN and infinities as null."""
    text = json.dumps(json_values(content), allow_nan=False)
    return Response(text, status, media_type="application/json")


def _status(leased: LeasedStudy) -> dict[str, Any]:
    snapshot = leased.study.snapshot(wait=False)
    best = snapshot.best_row
    return {
        "parameters": list(snapshot.space.names),
        "outcomes": list(leased.study.outcomes),
        **numbers_of(snapshot),
        "num_leased": len(leased.held()),
        "num_waiting": leased.num_waiting,
        "best_value": None if best is None else snapshot.rows.values[best].item(),
        "trouble": leased.trouble,
    }


def _best(study: Study) -> dict[str, Any]:
    result = study.result
    return {
        "params": result.best_params,
        "value": result.best_value,
        "predicted_value": result.predicted_value,
        "predicted_std": result.predicted_std,
        "observed_params": result.best_observed_params,
        "observed_value": result.best_observed_value,
        "front": [vars(point) for point in result.front],
        "hypervolume": result.hypervolume,
        "reference_point": result.reference_point,
        "least_violating": result.least_violating and vars(result.least_violating),
    }


async def _say_what_is_wrong(request: Request, error: Exception) -> Response:
    assert isinstance(error, ValidationError)
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in problem["loc"]) or "body"
    return reply({"detail": f"`{place[:200]}`: {problem['msg'][:300]}"}, 422)


async def _say_failure(request: Request, error: Exception) -> Response:
    if not isinstance(error, OSError | UnavailableError):  # it may be one of a program
        logger.error("%s could not be answered.", request.url.path, exc_info=error)
    return reply({"detail": str(error)}, 503)
