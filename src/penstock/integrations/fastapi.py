"""FastAPI: the lifespan of the app, and the app as a dependency of a path operation.

jobs = Penstock()
web = FastAPI(lifespan=lifespan(jobs))

@web.get("/jobs/{job_id}")
async def status(job_id: str, app: PenstockDep) -> str:
    return await app.job(job_id).status.aio()
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from penstock.app import Penstock
from penstock.integrations.requirements import needs

with needs("fastapi", "fastapi"):
    from fastapi import Depends

    from penstock.integrations.starlette import app_of, lifespan

__all__ = ["PenstockDep", "app_of", "lifespan"]

PenstockDep: TypeAlias = Annotated[Penstock, Depends(app_of)]
"""The annotation of a parameter that FastAPI fills with the app of `lifespan`."""
