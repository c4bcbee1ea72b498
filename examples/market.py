"""A market: buyers pay sellers for their goods, many at the same time, and neither money nor goods are lost or created.

A purchase changes four keys together. The example compares three ways: a lock, one guarded transaction, and the loop of
WATCH, read and MULTI that needs no library. The table shows purchases per second and the number of retries.

    python examples/market.py
"""

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import valkey

from penstock import Penstock
from penstock.errors import TransactionRefused
from penstock.testing import TemporaryServer

SELLERS, BUYERS, GOODS, FUNDS = 4, 8, 200, 1_000

# One hash tag, so that all keys share a slot.
SALE = "{market}:sale"  # ZSET    "item/seller" -> price


def account(user: str) -> str:  # HASH    funds
    return f"{{market}}:account:{user}"


def goods(user: str) -> str:  # SET     items
    return f"{{market}}:goods:{user}"


BUYING = [f"buyer{n}" for n in range(BUYERS)]
SELLING = [f"seller{n}" for n in range(SELLERS)]


@dataclass
class Market:
    app: Penstock
    client: valkey.Valkey
    retries: int = 0
    bought: dict[str, list[str]] = field(default_factory=dict)

    def close(self) -> None:
        users = BUYING + SELLING
        self.client.delete(SALE, *map(account, users), *map(goods, users))

    def open(self) -> None:
        self.close()
        for buyer in BUYING:
            self.client.hset(account(buyer), "funds", FUNDS)
        self.client.zadd(SALE, {f"item{n}/{SELLING[n % SELLERS]}": 1 + n % 7 for n in range(GOODS)})
        self.retries, self.bought = 0, {buyer: [] for buyer in BUYING}

    # --- three ways to buy; each returns whether the purchase succeeded ---

    def with_lock(self, buyer: str, listing: str, price: int) -> bool:
        item, seller = listing.split("/")
        with self.app.lock("{market}", lease=10):
            if self.client.zscore(SALE, listing) != price or int(self.client.hget(account(buyer), "funds")) < price:
                return False
            self.client.zrem(SALE, listing)
            self.client.hincrby(account(buyer), "funds", -price)
            self.client.hincrby(account(seller), "funds", price)
            self.client.sadd(goods(buyer), item)
            return True

    def in_transaction(self, buyer: str, listing: str, price: int) -> bool:
        item, seller = listing.split("/")
        tx = self.app.transaction()
        tx.require_score(SALE, listing, price).require_field(account(buyer), "funds", at_least=price)
        tx.zrem(SALE, listing).sadd(goods(buyer), item)
        tx.hincrby(account(buyer), "funds", -price).hincrby(account(seller), "funds", price)
        try:
            tx.commit()
        except TransactionRefused:
            return False
        return True

    def with_watch(self, buyer: str, listing: str, price: int) -> bool:
        item, seller = listing.split("/")
        with self.client.pipeline() as pipe:
            while True:
                try:
                    pipe.watch(SALE, account(buyer))
                    if pipe.zscore(SALE, listing) != price or int(pipe.hget(account(buyer), "funds")) < price:
                        return False
                    pipe.multi()
                    pipe.zrem(SALE, listing)
                    pipe.hincrby(account(buyer), "funds", -price)
                    pipe.hincrby(account(seller), "funds", price)
                    pipe.sadd(goods(buyer), item)
                    pipe.execute()
                    return True
                except valkey.WatchError:
                    self.retries += 1

    # --- a day on the market ---

    def shop(self, buyer: str, buy: Callable[[str, str, int], bool]) -> None:
        """Buy until nothing affordable is left."""
        mine = self.bought[buyer]
        while found := self.client.zrange(SALE, 0, 9, withscores=True):
            name, price = random.choice(found)
            if buy(buyer, name.decode(), int(price)):
                mine.append(name.decode().split("/")[0])
            else:
                self.retries += 1

    def day(self, buy: Callable[[str, str, int], bool]) -> float:
        """Return purchases per second."""
        self.open()
        threads = [threading.Thread(target=self.shop, args=(buyer, buy)) for buyer in BUYING]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return GOODS / (time.perf_counter() - began)

    def check(self) -> None:
        """Sums of money and goods are unchanged, nothing was sold twice, and each buyer has what it paid for."""
        funds = [int(self.client.hget(account(user), "funds") or 0) for user in BUYING + SELLING]
        assert sum(funds) == BUYERS * FUNDS, f"money was created or lost: {sum(funds)}"
        sold = [item for mine in self.bought.values() for item in mine]
        assert sorted(sold) == sorted(f"item{n}" for n in range(GOODS)), "an item was sold twice, or not at all"
        for buyer, mine in self.bought.items():
            assert {item.decode() for item in self.client.smembers(goods(buyer))} == set(mine)


def main() -> None:
    with contextlib.ExitStack() as stack:
        address = os.environ.get("PENSTOCK_URL") or stack.enter_context(TemporaryServer()).address
        app = stack.enter_context(Penstock(address))
        client = stack.enter_context(contextlib.closing(valkey.from_url(address)))
        market = Market(app, client)
        print(f"{GOODS} goods, {BUYERS} buyers at once   purchases/s        retries")
        for name, buy in (
            ("under a lock", market.with_lock),
            ("WATCH, read, MULTI", market.with_watch),
            ("one transaction", market.in_transaction),
        ):
            rate = market.day(buy)
            market.check()
            print(f"{name:32}{rate:10,.0f}{market.retries:15,}")
        market.close()


if __name__ == "__main__":
    main()
