-- The consequences for a job when the process that ran it dies.
--
--              loss, unseen, crash          loss, unseen, crash                 crash, the third, or
--   innocent ─────────────────────▶ lost once ─────────────────▶ suspect ──────────────────────────────────▶ dead
--      ▲       first in its lane        │                          │  ▲       the host died in too many trials
--      │                                │                          └──┘ crash, host death: tried again
--      └──────── a run that ends by itself, in whatever way ───────┘
--
-- A *loss* is the end of a process in which the job ran. It charges no job, and the job runs again at once, beside
-- others and before the other jobs of its tenant. A loss that no supervisor saw, because only the lease ran out, counts half:
-- machines may come and go. From its second loss on the job is a suspect, and runs only in a *trial*: a process that runs
-- nothing else. Suspects wait in a set of their own instead of a lane:
--
--   suspects     ZSET    entry -> ready since, server ms
--
-- A *crash* is charged to a job if no other job ran in the process, and a supervisor saw it die. The third makes the job a
-- dead letter. If the host dies with a trial and its supervisor, that is counted apart: it may be the job's fault or not.
--
-- The byte `recovery` of a record has the crashes in its upper two bits. Its lower six bits count halves of a loss for a
-- job that is no suspect, and trials that ended with their host for a suspect.

recovery = { CRASH = 64 }

_limit = { CRASHES = 3, HALVES = 4, COUNT = 63 }

-- Whether the verb (see job.settle) says that a process died.
--- (verb: str) -> bool
--- inline
function recovery.is_death(verb)
  return verb == "unseen" or verb == "loss" or verb == "crash" or verb == "contained" or verb == "host"
end

-- Counts a death. `host_deaths`: after how many trials that ended with their host a job is a dead letter; 0: never.
-- Returns the job's flags and its recovery byte, and whether it is a dead letter now.
--- (verb: str, flags: int, value: int, host_deaths: int) -> int, int, bool
function recovery.count(verb, flags, value, host_deaths)
  local crashes, count = math.floor(value / recovery.CRASH), value % recovery.CRASH
  if verb == "crash" or verb == "contained" then crashes = math.min(crashes + 1, _limit.CRASHES) end
  local dead = crashes == _limit.CRASHES
  if not record.has(flags, flag.SUSPECT) then
    count = count + (verb == "unseen" and 1 or (verb == "loss" or verb == "crash") and 2 or 0)
    if count >= _limit.HALVES then flags, count = bit.bor(flags, flag.SUSPECT), 0 end
  elseif verb == "host" then
    count = math.min(count + 1, _limit.COUNT)
    dead = dead or (host_deaths > 0 and count >= host_deaths)
  end
  return flags, crashes * recovery.CRASH + count, dead
end

-- The verb for a job that an incarnation held when its lease ran out, and the limit of host deaths. A trial without a
-- supervisor runs one suspect and nothing else, as does a program without a worker: its end is a crash.
--- (incarnation: str, flags: int) -> str, int
--- uses: base
function recovery.verb(incarnation, flags)
  if not record.has(flags, flag.SUSPECT) then return "unseen", 0 end
  local registration = redis.call("HGET", base .. "workers", incarnation)
  local limit = registration and string.match(registration, '"host_deaths":(%d+)')
  if limit then return "host", tonumber(limit) end
  return "crash", 0
end

-- For how many ms the first of the suspects has waited; -1: no suspect waits.
--- (now: int) -> int
--- uses: base
function recovery.waiting(now)
  local first = redis.call("ZRANGE", base .. "suspects", 0, 0, "WITHSCORES")
  return first[2] and math.max(0, now - tonumber(first[2])) or -1
end
