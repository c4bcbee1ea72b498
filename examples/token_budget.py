"""A pipeline of calls to a language model whose provider counts tokens, and sometimes answers 429.

Run it with `python examples/token_budget.py`. The model is a sleep, and the provider counts in this process.
"""

import asyncio
import time
from collections import defaultdict

from penstock import Penstock, Rate, RetryLater, Worker, WorkerSettings, current

app = Penstock(prefix="example-tokens")

PER_SECOND, BURST = 1000, 400
"""The token budget of each account."""


class TooManyRequests(Exception):
    retry_after = 0.3


class Provider:
    """Counts the tokens of each account. It is overloaded once, and wants an account to be left alone then."""

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self.refusals: list[tuple[str, float]] = []

    async def complete(self, account: str, prompt: str) -> tuple[str, int]:
        """The answer, and how many tokens it took."""
        now = time.monotonic()
        if account == "acme" and len(self.calls[account]) == 5 and not self.refusals:
            self.refusals.append((account, now))
            raise TooManyRequests
        tokens = 20 + 4 * len(prompt.split())
        self.calls[account].append((now, tokens))
        await asyncio.sleep(0.01)
        return prompt.upper(), tokens


provider = Provider()


def estimate(prompt: str) -> float:
    """Tokens, too many rather than too few: `used` gives the rest back."""
    return 100 + len(prompt) / 2


@app.task(
    queue="ask",
    limit=Rate(PER_SECOND, per=1, key="{account}", name="tokens", burst=BURST, cost=estimate),
)
async def ask(account: str, prompt: str) -> str:
    try:
        answer, tokens = await provider.complete(account, prompt)
    except TooManyRequests as refused:
        await current().hold.aio("tokens", seconds=refused.retry_after)
        raise RetryLater(0, "the provider wants to be left alone") from refused
    await current().used.aio("tokens", tokens)
    return answer


@app.task(queue="ask")
async def summarize(answers: list[str]) -> str:
    return f"{len(answers)} answers, {sum(map(len, answers))} characters"


async def main() -> None:
    async with app:
        prompts = ["why is the sky blue " * n for n in range(1, 9)]
        jobs = [await ask.enqueue.aio(account, prompt) for prompt in prompts for account in ("acme", "bolt")]
        worker = asyncio.create_task(Worker(app, WorkerSettings(concurrency=20)).run())
        answers = [await job.result.aio(timeout=30) for job in jobs]
        total = await summarize.enqueue.aio(answers)
        print(await total.result.aio(timeout=30))
        attempts = [(await job.info.aio()).attempts for job in jobs]
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    assert attempts == [0] * len(jobs), "a 429 is no failure of the job"
    for account, calls in provider.calls.items():
        began = calls[0][0]
        for now, _ in calls:
            tokens = sum(one for at, one in calls if at <= now)
            assert tokens <= BURST + PER_SECOND * (now - began + 0.1), f"{account} has passed its budget"
        print(f"{account}: {sum(tokens for _, tokens in calls):,} tokens in {len(calls)} calls")
    ((account, refused),) = provider.refusals
    after = [at for at, _ in provider.calls[account] if at > refused + 0.05]
    assert all(at >= refused + TooManyRequests.retry_after - 0.05 for at in after), "the account was not left alone"


asyncio.run(main())
