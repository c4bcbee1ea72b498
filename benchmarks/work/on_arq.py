"""arq: 100 jobs at once, results dropped."""

import asyncio

from arq import create_pool
from arq.connections import RedisSettings

from work import TEXT, URL, ran, use_the_fastest_loop

use_the_fastest_loop()


async def noop(ctx, a, b, text):
    ran(a)


class WorkerSettings:
    functions = (noop,)
    redis_settings = RedisSettings.from_dsn(URL)
    max_jobs = 100
    keep_result = 0
    log_results = False


def enqueue(values):
    async def all_of_them():
        pool = await create_pool(WorkerSettings.redis_settings)
        for value in values:
            await pool.enqueue_job("noop", value, 2, TEXT)
        await pool.aclose()

    asyncio.run(all_of_them())
