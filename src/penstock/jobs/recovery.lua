-- The consequences for a job when the process that ran it dies.
--
--              loss, unseen, crash          loss, unseen, crash                 crash, the third, or
--   innocent ─────────────────────▶ lost once ─────────────────▶ suspect ──────────────────────────────────▶ dead
--      ▲       first in its lane        │                          │  ▲       the host died in too many trials
--      │                                │                          └──┘ crash, host death: tried again
--      └──────── a run that ends by itself, in whatever way ───────┘
--
-- A *loss* is the end of a process in which the job ran; it is charged to no job. The job runs again at once, in a
-- process with others, and before the other jobs of its tenant. If the lease of a supervised worker runs out, its
-- supervisor has died with it, so probably the whole machine has died. Machines come and go, so such a loss counts
-- half. So does the loss of a program without a worker. From its second loss on the job is a suspect, and runs only in
-- a *trial*: a process that runs nothing else. Suspects wait in a set of their own instead of a lane:
--
--   suspects     ZSET    entry -> ready since, server ms
--
-- A *crash* is charged to the job, because no other job ran in the process and a supervisor saw it die. The third crash
-- makes the job a dead letter. If the host dies during a trial, and the supervisor with it, the record counts that
-- separately, because the job may or may not have caused it.
--
-- The record counts the losses of a job that is not a suspect, in halves, its crashes, and the trials that ended with
-- their host.

_limit = { CRASHES = 3, HALVES = 4 }

-- Whether the verb (see job.settle) says that a process died.
--- (verb: str) -> bool
--- inline
function recovery.is_death(verb)
  return verb == "unseen" or verb == "loss" or verb == "crash" or verb == "contained" or verb == "host"
end

-- Counts a death. `host_deaths`: after how many trials that ended with their host a job is a dead letter; 0: never.
-- Returns the job's flags and its counts, and whether it is a dead letter now.
--- (verb: str, flags: int, losses: int, crashes: int, hosts: int, host_deaths: int) -> int, int, int, int, bool
function recovery.count(verb, flags, losses, crashes, hosts, host_deaths)
  if verb == "crash" or verb == "contained" then crashes = crashes + 1 end
  local dead = crashes >= _limit.CRASHES
  if not record.has(flags, flag.SUSPECT) then
    losses = losses + (verb == "unseen" and 1 or (verb == "loss" or verb == "crash") and 2 or 0)
    if losses >= _limit.HALVES then flags = bit.bor(flags, flag.SUSPECT) end
  elseif verb == "host" then
    hosts = hosts + 1
    dead = dead or (host_deaths > 0 and hosts >= host_deaths)
  end
  return flags, losses, crashes, hosts, dead
end

-- The verbs for the jobs that an incarnation held when its lease ran out: the verb for a suspect, the verb for any
-- other job, and the limit of host deaths. A trial without a supervisor runs one suspect and nothing else, as does a
-- program without a worker, which has no registration: its end is a crash. If any other worker has no supervisor, no
-- process could observe its end, so each of its jobs counts a whole loss.
--- (its: table | nil) -> str, str, int
--- seldom
function recovery.verbs(its)
  if not its then return "crash", "unseen", 0 end
  return its.host_deaths and "host" or "crash", its.supervised and "unseen" or "loss", its.host_deaths or 0
end

-- The loss of a job as its worker would report it if it were alive. `its`: the registration of the worker.
--- (why: str, its: table | nil) -> str
--- seldom
function recovery.failure(why, its)
  if not its or its.name == "" then return string.format('{"reason":"%s"}', why) end
  return string.format('{"worker":%s,"reason":"%s","release":%s}', cjson.encode(its.name), why,
    cjson.encode(its.release))
end

-- For how many ms the first of the suspects has waited; -1: no suspect waits.
--- (r: table, now: int) -> int
--- uses: base
function recovery.waiting(r, now)
  if r[_row.SUSPECTS] == 0 then return -1 end
  local first = redis.call("ZRANGE", base .. "suspects", 0, 0, "WITHSCORES")
  return first[2] and math.max(0, now - tonumber(first[2])) or -1
end

-- Takes jobs back from incarnations whose lease ran out. Returns whether there may be more jobs to take back.
--- (s: table, limit: int) -> bool
--- uses: base
function recovery.take_back(s, limit)
  local r = s.row
  if r[_row.NEXT_LEASE] == 0 or r[_row.NEXT_LEASE] > s.now then return false end
  local budget, claims, n = slice.within(s, limit), {}, 0
  local ended = redis.call("ZRANGE", base .. "leases", "-inf", s.now, "BYSCORE", "LIMIT", 0, 8)
  for i = 1, #ended do
    local tokens = lease.some_tokens(ended[i], budget)
    if #tokens > 0 then
      local its = releases.of(ended[i])
      local if_suspect, if_not, host_deaths = recovery.verbs(its)
      for j = 1, #tokens do claims[#claims + 1] = { tokens[j], ended[i], if_suspect, if_not, host_deaths, its } end
    end
  end
  table.sort(claims, function(a, b) return a[1] < b[1] end)
  while n < #claims and (n == 0 or not slice.is_spent(budget)) do
    n = n + 1
    local token, incarnation, if_suspect, if_not, host_deaths, its = unpack(claims[n], 1, 6)
    local flags = claim.flags(lease.held(incarnation, token))
    local verb = record.has(flags, flag.SUSPECT) and if_suspect or if_not
    local why = "its worker was gone when the lease ran out"
    if verb == "host" then why = string.format(
      "its host died while the job ran alone in a trial; the limit is %d such trials", host_deaths) end
    job.settle(s, incarnation, verb, token, host_deaths, recovery.failure(why, its))
  end
  for i = 1, #ended do
    if lease.count(ended[i]) == 0 then lease.remove(ended[i]) end
  end
  local next_ = redis.call("ZRANGE", base .. "leases", 0, 0, "WITHSCORES")
  r[_row.NEXT_LEASE] = next_[2] and tonumber(next_[2]) or 0
  return next_[2] ~= nil and tonumber(next_[2]) <= s.now
end

-- Picks one suspect, the one that has waited longest. Returns whether there was one.
--- (r: table, room: table) -> bool
--- uses: base
--- seldom
function recovery.pick_suspect(r, room)
  local entries = redis.call("ZRANGE", base .. "suspects", 0, 7)
  for i = 1, #entries do
    redis.call("ZREM", base .. "suspects", entries[i])
    r[_row.SUSPECTS] = r[_row.SUSPECTS] - 1
    local id = entry.id(entries[i])
    local body = record.get(id)
    local is_ready, expires, since, flags, ttl = record.is_ready(body, entry.generation(entries[i]))
    if is_ready and not (room.pausing and lane.met_paused(room, record.tenant(body), id, body)) then
      lease.collect(room, id, body, record.tenant(body), expires, since, flags, ttl)
      room.bytes = room.bytes - #body
      return true
    end
  end
  return false
end
