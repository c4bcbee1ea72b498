-- The last failed attempts of a job, until it leaves the queue.
--
--   failures   HASH   id -> since when no worker can read it, a release that may, and attempts, the latest first
--
-- An attempt is what the worker has reported (JSON), behind a few numbers that scripts know better. A dead letter keeps
-- them when it is requeued, so the next one shows what happened before.

_failures = layout {
  since = "I6", -- server ms since which workers hand the job back because they cannot read it; 0: they do not
  other = "Bc0", -- a release that had a live worker then and may read it
  attempts = "*", -- each behind its length in 2 bytes
}

_attempt = layout {
  kind = "c1", -- see `outcome`
  number = "H", -- of the attempt, from 1
  began = "I6", -- server ms of the claim; 0: unknown
  ended = "I6", -- server ms
  text = "*", -- JSON; of an edit, the arguments until then
}

failure = { LONGEST = 12288, ARGUMENTS = 4096 } -- bytes of the text of an attempt, and of old arguments

outcome = { FAILED = "f", POSTPONED = "p", UNREAD = "u", LOST = "l", EDITED = "e" }

_failures = { MOST = 5, BYTES = 16384, LENGTH = 2 } -- of all attempts; LENGTH: bytes of the length before each

-- Since when the job cannot be read, the release that may, and the attempts.
--- (id: str) -> int, str, str
--- uses: base
--- seldom
function failures.get(id)
  local packed = redis.call("HGET", base .. "failures", id)
  local at = _failures.AT_OTHER
  if not packed or #packed < at or #packed < at + string.byte(packed, at) then return 0, "", "" end
  local its = _failures.fields(packed)
  return its.since, its.other, _failures.attempts(packed)
end

-- The first of these attempts, and the others; nil without any.
--- (attempts: str) -> str | nil, str
--- seldom
function failures.first(attempts)
  if #attempts < _failures.LENGTH then return nil, "" end
  local ends = _failures.LENGTH + struct.unpack(">H", attempts)
  return string.sub(attempts, _failures.LENGTH + 1, ends), string.sub(attempts, ends + 1)
end

-- Puts an attempt before the others. A run that is not counted as an attempt replaces the one before it of its kind, so
-- that a job that is handed back for an hour still shows why it failed before.
--- (id: str, since: int, other: str, kind: str, number: int, began: int, ended: int, text: str)
--- uses: base
--- seldom
function failures.add(id, since, other, kind, number, began, ended, text)
  local _, _, old = failures.get(id)
  local new = _attempt.pack({
    kind = kind, number = number, began = began, ended = ended, text = string.sub(text, 1, failure.LONGEST),
  })
  local kept, bytes = { struct.pack(">H", #new) .. new }, #new + _failures.LENGTH
  local one, rest = failures.first(old)
  if one and (kind == outcome.POSTPONED or kind == outcome.UNREAD) and _attempt.kind(one) == kind then
    one, rest = failures.first(rest)
  end
  while one and #kept < _failures.MOST do
    bytes = bytes + #one + _failures.LENGTH
    if bytes > _failures.BYTES then break end
    kept[#kept + 1] = struct.pack(">H", #one) .. one
    one, rest = failures.first(rest)
  end
  redis.call("HSET", base .. "failures", id,
    _failures.pack({ since = since, other = other, attempts = table.concat(kept) }))
end

-- A dead letter runs again: its attempts stay, and it counts as readable.
--- (id: str)
--- uses: base
--- seldom
function failures.reset(id)
  local since, _, attempts = failures.get(id)
  if since > 0 then
    redis.call("HSET", base .. "failures", id, _failures.pack({ since = 0, other = "", attempts = attempts }))
  end
end

-- Decides what follows if a worker cannot read a job. `unknown`: it does not know the task. `unread`: the arguments do
-- not fit its task. `changed`: its task cannot continue it. After `unread` the job is handed back only while a worker
-- of another release is alive; after `changed`, only while one of the release that has begun the job is, and then
-- without a limit. Returns the verb to settle with, the delay in ms, since when the job cannot be read, and a release
-- that may read it. The verb is `bury` once that has lasted for `limit` ms, else `later`. The delay is the time since
-- then plus `ms`, at most twelve times `ms`, so it about doubles each time.
--- (id: str, verb: str, ms: int, limit: int, incarnation: str, now: int) -> str, int, int, str
--- uses: base
--- seldom
function failures.hand_back(id, verb, ms, limit, incarnation, now)
  local since, other = failures.get(id)
  if since == 0 then since = now end
  local own = releases.of(incarnation)
  local alive = own and releases.other_than(own.code)
  local waited = now - since
  local ends = waited >= limit or verb == "unread" and not alive
  if verb == "changed" then
    alive = own and steps.first_release(id, own.code)
    ends = not alive
  end
  return ends and "bury" or "later", math.min(12 * ms, waited + ms), since, alive or other
end
