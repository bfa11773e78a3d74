"""The scheduled jobs: their list, and one with its schedule, its last runs and what they did; its run by hand, pause and resumption."""

from __future__ import annotations

from urllib.parse import quote

from basalt.access.needs import PUBLIC
from basalt.access.resources import CLUSTER
from basalt.api.bodies.operations import JobAct, JobInfo, JobRun
from basalt.console import acts
from basalt.console.acts import ACT_BODY, STEP, Act
from basalt.console.call import Call
from basalt.console.page import CONSOLE_PATH, PAGE_QUERY, Panel, Visit
from basalt.http.asgi.responses import Response
from basalt.http.routes.route_table import Request, RouteTable

RUNS_SHOWN = 50  # as many as are kept
LIST_PATH = f"{CONSOLE_PATH}/jobs"
ONE_PATH = LIST_PATH + "/{job}"
JOB = "/v1/admin/jobs/{job}"

# By the act's name: its title, and what it does.
ACTS = {
    "run": ("Run now", "Runs it once, paused or not, whatever its window says. A run that is under way is joined. It is bounded, and may be repeated."),
    "pause": ("Pause", "Lets it run no more by itself, also after a restart, until it is resumed."),
    "resume": ("Resume", "Lets it run at its times again."),
}  # fmt: skip

route = RouteTable("console")


@route("GET", LIST_PATH, PUBLIC, query=PAGE_QUERY)
async def jobs(request: Request) -> Response:
    """List the jobs."""
    panel = Panel("jobs", "Jobs", Call("GET", "/v1/admin/jobs", list[JobInfo]), "job_list")
    return await Visit(request).page("Jobs", (panel,))


@route("GET", ONE_PATH, PUBLIC, query=PAGE_QUERY)
async def job(request: Request) -> Response:
    """Show a job with its last runs."""
    visit, names = Visit(request), {"job": request.path["job"]}
    offered = acts.offers(visit, (act_of(names["job"], act) for act in ACTS))
    runs = Call("GET", JOB + "/history", list[JobRun], names, {"limit": str(RUNS_SHOWN)})
    panels = (
        Panel("job", "What it is", Call("GET", JOB, JobInfo, names), subject=True, extra={"offers": offered}),
        Panel("runs", "Its last runs", runs),
    )
    return await visit.page(f"Job {names['job']}", panels)


@route("POST", ONE_PATH + "/run", PUBLIC, query=(STEP,), body=ACT_BODY)
async def run(request: Request) -> Response:
    """Run a job by hand."""
    return await acts.respond(Visit(request), act_of(request.path["job"], "run"))


@route("POST", ONE_PATH + "/pause", PUBLIC, query=(STEP,), body=ACT_BODY)
async def pause(request: Request) -> Response:
    """Pause a job."""
    return await acts.respond(Visit(request), act_of(request.path["job"], "pause"))


@route("POST", ONE_PATH + "/resume", PUBLIC, query=(STEP,), body=ACT_BODY)
async def resume(request: Request) -> Response:
    """Resume a job."""
    return await acts.respond(Visit(request), act_of(request.path["job"], "resume"))


def act_of(name: str, act: str) -> Act:
    """An act on the job of this name."""
    title, effect = ACTS[act]
    call = Call("POST", f"{JOB}/{act}", JobAct, {"job": name})
    return Act(act, title, f"{LIST_PATH}/{quote(name, safe='')}", call, "operate", CLUSTER, effect, "job_act")
