-- Cancels jobs: waiting ones here, and running ones by asking their worker, which ends them and settles them with the
-- verb `cancel`. Asks workers to claim no more jobs, or to stop.
--
--   cancels:<inc>  SET  tokens of running jobs that the incarnation is to cancel, and the words `quiet` and `stop`,
--                       which are shorter than a token; deleted with the incarnation
--
-- The worker's listener gets the message "cancel". The worker then sends a heartbeat, whose reply has the tokens and
-- words, as the reply to each later heartbeat does: tokens until their jobs have ended, words for good. So a lost
-- message delays a request to a worker that runs jobs by one heartbeat. An idle worker sends one when it listens again
-- after the loss of its connection; the reply of `ask_workers` says whether the message has reached it.

_cancels = { TTL = 86400000, PAGE = 100, SHORTEST = 7 }

request = { GONE = 0, STORED = 1, NOTIFIED = 2 }

-- Adds a request, and notifies the worker. Returns whether the message has reached it.
--- (incarnation: str, what: str) -> bool
--- uses: base
function cancelling.add(incarnation, what)
  redis.call("SADD", base .. "cancels:" .. incarnation, what)
  redis.call("PEXPIRE", base .. "cancels:" .. incarnation, _cancels.TTL)
  local registered = releases.of(incarnation)
  if not registered or registered.address == "" then return false end
  return notify.send(registered.address, "cancel")
end

-- Asks the worker of a running job to end it. Returns whether the job runs.
--- (id: str) -> bool
--- uses: base
function cancelling.ask(id)
  local owner = redis.call("HGET", base .. "owners", id)
  if not owner then return false end
  local incarnation = lease.incarnation(owner)
  local held = lease.claim(incarnation, id)
  if held then cancelling.add(incarnation, claim.number_bytes(held) .. id) end
  return true
end

-- The tokens that an incarnation is to cancel and still holds, at most a hundred, and the words that it was sent.
--- (incarnation: str) -> table
--- uses: base
function cancelling.tokens(incarnation)
  local key = base .. "cancels:" .. incarnation
  if redis.call("EXISTS", key) == 0 then return {} end
  local found, asked = cancelling.words(incarnation), redis.call("SRANDMEMBER", key, _cancels.PAGE)
  for i = 1, #asked do
    if #asked[i] >= _cancels.SHORTEST then
      if lease.held(incarnation, asked[i]) then
        found[#found + 1] = asked[i]
      else
        redis.call("SREM", key, asked[i])
      end
    end
  end
  return found
end

-- The words that an incarnation was sent.
--- (incarnation: str) -> table
--- uses: base
--- seldom
function cancelling.words(incarnation)
  local key, words = base .. "cancels:" .. incarnation, {}
  if redis.call("SISMEMBER", key, "quiet") == 1 then words[1] = "quiet" end
  if redis.call("SISMEMBER", key, "stop") == 1 then words[#words + 1] = "stop" end
  return words
end

-- Asks workers to claim no more jobs (`quiet`), or to stop. Returns for each incarnation: GONE, STORED, or NOTIFIED.
--- keys: base meta
--- args: given: int, word: str, incarnations: *
--- flags: allow-oom
--- frame: format
function script.ask_workers(base, meta, given, word, incarnations, ...)
  local found, now = {}, clock.now(given)
  for i = incarnations, #ARGV do
    local status = request.GONE
    if lease.alive(ARGV[i], now) then
      status = cancelling.add(ARGV[i], word) and request.NOTIFIED or request.STORED
    end
    found[#found + 1] = status
  end
  return found
end

-- Cancels waiting jobs, and asks the workers of running ones to end them. Returns for each of the first ids, as many as
-- fit into a slice: cancelled, running, dead, done or none.
--- keys: base meta
--- args: given: int, ids: *
--- flags: allow-oom
--- frame: change
function script.cancel(base, meta, given, ids, ...)
  local words, most = {}, slice.until_(s)
  for i = ids, #ARGV do
    if i > ids and s.effort >= most then break end
    slice.spend(s, 2)
    local id = ARGV[i]
    job.expire(s, id)
    local body = record.get(id)
    if not body then
      results.write(s) -- an id may be given twice
      local done = results.get(id, s.now)
      words[#words + 1] = done and (results.letter(done) == ending.CANCELLED and "cancelled" or "done") or "none"
    elseif record.state(body) == state.DEAD then
      words[#words + 1] = "dead"
    elseif cancelling.ask(id) then
      words[#words + 1] = "running"
    else
      job.remove(s, id, body, ending.CANCELLED, "")
      s.row[_row.CANCELLED] = s.row[_row.CANCELLED] + 1
      words[#words + 1] = "cancelled"
    end
  end
  return words
end
