-- How the run of a job ends: the transitions of running jobs, beside those of job.lua.
--
-- recovery.lua says what follows for a job whose process died. A release keeps what is counted there; a run that ends
-- in any other way clears it.

-- Completes jobs: four commands for all of them, and one or two for their results. `held`: their claims, as read from
-- the incarnation; `numbers`: the claim numbers, 6 bytes each; `staged`: the effects of those that have some. Appends
-- to `stale` the positions of jobs that the incarnation does not hold under their number.
--- (s: table, incarnation: str, ids: table, numbers: str, texts: table, held: table, stale: table, staged: table)
--- uses: base
function job.complete(s, incarnation, ids, numbers, texts, held, stale, staged)
  -- One call for all numbers, because each call reads its format anew.
  local sent = #ids > 0 and { struct.unpack(">" .. string.rep("I6", #ids), numbers) }
  local done, seen, n, of_tenant, before = {}, {}, 0, 0, nil
  if s.row[_row.LIMITED] then limited_runs.read(s, ids, held) end
  for i = 1, #ids do
    local id, was = ids[i], held[i]
    local number, flags, ttl, tenant, rest
    if was then number, flags, ttl, tenant, rest = lease.parse(was) end
    local refused
    if was and not seen[id] and number == sent[i] then
      seen[id] = true
      refused = staged[i] and effects.apply(s, staged[i])
    else
      stale[#stale + 1] = i - 1
      was = nil
    end
    if refused then
      local token = struct.pack(">I6", number) .. id
      job.settle(s, incarnation, "bury", token, 0, cjson.encode({ reason = refused }))
    elseif was then
      n = n + 1
      done[n] = id
      if tenant ~= before then
        if before then counters.move(s, before, _count.RUNNING, _count.NONE, of_tenant) end
        before, of_tenant = tenant, 0
      end
      of_tenant = of_tenant + 1
      local letter = ending.COMPLETED
      if flags > flag.CALL then letter = job.clear(id, flags, letter) end
      if flags >= flag.UNIQUE then unique.finish(s, id, was, rest) end
      if record.has(flags, flag.LIMITED) then limited_runs.finish(s, was, rest) end
      job.finish(s, id, letter, texts[i] or "null", ttl)
    end
  end
  if n == 0 then return end
  counters.move(s, before, _count.RUNNING, _count.NONE, of_tenant)
  if s.row[_row.WEIGHTED] >= _charge.BY_TIME then charging.charge(s, done, ids, held) end
  batch.write("HDEL", base .. "held:" .. incarnation, done)
  batch.write("HDEL", base .. "owners", done)
  batch.write("HDEL", base .. "jobs", done)
  s.row[_row.COMPLETED] = s.row[_row.COMPLETED] + n
end

-- Decides what follows if a worker does not know the task of a job. Returns the verb to settle with, the delay in ms,
-- and the reason. The verb is `bury` once the task has been unknown for `unknown_limit` (ms, in the JSON of `text`),
-- else `later`. The reason records since when the task has been unknown. The delay is the time since then plus `ms`, at
-- most twelve times `ms`, so it about doubles each time.
--- (s: table, id: str, ms: int, text: str) -> str, int, str
--- uses: base
function job.unknown_task(s, id, ms, text)
  local old = redis.call("HGET", base .. "reasons", id)
  local since = tonumber(old and string.match(old, '"unknown_since":(%d+)')) or s.now
  local limit = tonumber(string.match(text, '"unknown_limit":(%d+)')) or 0
  local waited = s.now - since
  text = string.sub(text, 1, -2) .. string.format(',"unknown_since":%d}', since)
  return waited >= limit and "bury" or "later", math.min(12 * ms, waited + ms), text
end

-- Ends a run that does not complete its job. Returns false if the incarnation no longer holds the job. `verb`:
--
--   retry    runs again after `ms`; the attempt is counted      release  goes to the front of its lane, uncounted
--   later    runs again after `ms`; not counted as an attempt    bury     becomes a dead letter
--   until    like later, but `ms` is a date in server ms         drop     leaves the queue
--   unknown  like later; after its limit, like bury              cancel   was cancelled while it ran
--   suspend  sleeps or waits for a signal (durable.lua): like later, without its places and not counted as a retry
--
-- and, when a process died (see recovery.lua):
--
--   crash      it ran alone in a supervised process             unseen     its worker's supervisor died as well
--   loss       others ran in the process as well                host       it was tried, and the whole host died
--   contained  it had a process of its own (isolate=True)
--- (s: table, incarnation: str, verb: str, token: str, ms: int, text: str) -> bool
--- uses: base
--- seldom
function job.settle(s, incarnation, verb, token, ms, text)
  local held = lease.held(incarnation, token)
  if not held then return false end
  local r, id = s.row, lease.job_id(token)
  local body = record.get(id)
  if not body then verb, text = "drop", "its record was damaged" end
  if verb == "unknown" then verb, ms, text = job.unknown_task(s, id, ms, text) end
  if verb == "until" then verb, ms = "later", math.max(0, ms - s.now) end
  local suspends = verb == "suspend" and body
  if suspends then ms, text = steps.suspend(s, id, ms, text), "" end
  lease.end_claim(s, incarnation, id, held)
  if verb == "drop" or verb == "cancel" then
    local _, flags, ttl, tenant, rest = lease.parse(held)
    if flags >= flag.UNIQUE then unique.finish(s, id, held, rest) end
    if record.has(flags, flag.LIMITED) then limited_runs.finish(s, held, rest) end
    local total = verb == "drop" and _row.DROPPED or _row.CANCELLED
    redis.call("HDEL", base .. "jobs", id)
    r[total] = r[total] + 1
    counters.move(s, tenant, _count.RUNNING, _count.NONE, 1)
    local letter = job.clear(id, flags, verb == "drop" and ending.DROPPED or ending.CANCELLED)
    job.finish(s, id, letter, text, ttl)
    return true
  end
  local _, _, _, _, _, flags, priority, attempts, deliveries, losses, crashes, hosts, _, tenant = record.parse(body)
  flags = bit.bor(flags, suspends and flag.NOTES or bit.band(string.byte(held, 7), flag.NOTES))
  if text ~= "" then
    redis.call("HSET", base .. "reasons", id, text)
    flags = bit.bor(flags, flag.REASON)
  end
  if verb ~= "release" then deliveries = deliveries + 1 end
  local dead, died = verb == "bury", recovery.is_death(verb)
  if died then
    r[_row.LOST] = r[_row.LOST] + 1
    flags, losses, crashes, hosts, dead = recovery.count(verb, flags, losses, crashes, hosts, ms)
    ms = 0
  elseif verb ~= "release" then
    flags, losses, crashes, hosts = bit.band(flags, _mask.NO_SUSPECT), 0, 0, 0
  end
  if verb == "retry" or verb == "bury" then attempts = attempts + 1 end
  if record.has(flags, flag.LIMITED) then
    local list, keep = record.limits(body), 0
    if not dead and not suspends then keep = limits.kept(s, list, died or verb == "release") end
    limits.give_up(s, list, keep, limits.passed(flags), true)
    flags = limits.with_passed(flags, keep)
  end
  local generation, since = row.mint(r, 1) + 1, s.now
  local new_state
  local entry = record.entry(generation, #body, id)
  if dead then
    if flags >= flag.UNIQUE then
      local _, _, _, _, rest = lease.parse(held)
      unique.finish(s, id, held, rest)
    end
    redis.call("ZADD", base .. "dead", s.now, id)
    r[_row.FAILED] = r[_row.FAILED] + 1
    counters.move(s, tenant, _count.RUNNING, _count.DEAD, 1)
    s.finished[#s.finished + 1] = id
    flow.report(s, _event.DEAD, id, "")
    new_state = state.DEAD
  elseif ms > 0 then
    if not suspends then r[_row.RETRIED] = r[_row.RETRIED] + 1 end
    counters.move(s, tenant, _count.RUNNING, _count.DELAYED, 1)
    job.delay(s, s.now + ms, entry)
    new_state, since = state.DELAYED, s.now + ms
  else
    if verb == "retry" or verb == "later" then r[_row.RETRIED] = r[_row.RETRIED] + 1 end
    new_state, flags =
      job.make_ready(s, verb == "release" or died, entry, flags, priority, tenant, s.now, _count.RUNNING, body)
  end
  redis.call("HSET", base .. "jobs", id, record.with(body, new_state, generation, since, flags, attempts, deliveries,
    losses, crashes, hosts))
  return true
end
