// BullMQ: 100 jobs at once, results dropped. `node on_bullmq.mjs enqueue|bulk|paced` produces, `work` is the worker.
// It does in JavaScript what `work/__init__.py` and `produce` of `peers.py` do in Python.

import { createRequire } from "node:module";
import { renameSync, writeFileSync } from "node:fs";

const require = createRequire(process.env.PEERS_NODE + "/");
const { Queue, Worker } = require("bullmq");
const Redis = require("ioredis");

const text = "x".repeat(32);
const jobs = Number(process.env.PEERS_JOBS);
const seconds = () => Number(process.hrtime.bigint()) / 1e9;  // CLOCK_MONOTONIC, as Python's time.monotonic()
const cpu = () => { const { user, system } = process.cpuUsage(); return (user + system) / 1e6; };
const options = { removeOnComplete: true, removeOnFail: true };
const connection = new (Redis.default ?? Redis)(process.env.PEERS_URL, { maxRetriesPerRequest: null });

async function produce(how) {
  const queue = new Queue("peers", { connection });
  await queue.waitUntilReady();
  const began = [seconds(), cpu()];
  if (how === "bulk") {
    for (let at = 0; at < jobs; at += 500) {
      const some = Array.from({ length: Math.min(500, jobs - at) }, (_, n) => at + n);
      await queue.addBulk(some.map((a) => ({ name: "noop", data: { a, b: 2, text }, opts: options })));
    }
  } else {
    for (let n = 0; n < jobs; n++) {
      if (how === "paced") await new Promise((resolve) => setTimeout(resolve, 10 + 10 * Math.random()));
      const a = how === "paced" ? seconds() : n;
      await queue.add("noop", { a, b: 2, text }, options);
    }
  }
  console.log(JSON.stringify({ seconds: seconds() - began[0], cpu: cpu() - began[1] }));
  process.exit(0);
}

function work() {
  let number = 0, began = null;
  const delays = [];
  new Worker("peers", async (job) => {
    number += 1;
    if (number === 1) began = [seconds(), cpu()];
    if (job.data.a % 1) delays.push(seconds() - job.data.a);
    if (number === jobs) {
      const figures = { seconds: seconds() - began[0], cpu: cpu() - began[1], delays };
      writeFileSync(process.env.PEERS_DONE + ".part", JSON.stringify(figures));
      renameSync(process.env.PEERS_DONE + ".part", process.env.PEERS_DONE);
    }
  }, { connection, concurrency: 100 });
  process.on("SIGTERM", () => process.exit(0));
}

if (process.argv[2] === "work") work(); else await produce(process.argv[2]);
