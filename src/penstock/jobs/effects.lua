-- Staged effects: the writes and calls that a running job collects. The script that completes the job applies all of
-- them or none. They arrive with the completion, in MessagePack: { keys, writes (core/writes.lua), calls of this queue
-- as id, draft, …, calls of other queues as queue, id, draft, … }.
--
-- The script has checked the claim before, so a worker that lost its lease applies nothing, and a repeated turn applies
-- nothing twice. If one write is impossible, the script executes none and enqueues no call, and the job becomes a dead
-- letter.

-- Applies the effects of one job. If a write is impossible, it writes nothing and returns the reason.
--- (s: table, packed: str) -> str | nil
--- uses: base
--- seldom
function effects.apply(s, packed)
  local keys, order, calls, sent = unpack(cmsgpack.unpack(packed))
  if #order == 1 then
    -- A single write needs no check: the server refuses it whole.
    local write = order[1]
    local reply = redis.pcall(write[_write.COMMAND], keys[write[_write.KEY]], unpack(write, _write.FIRST))
    if type(reply) == "table" and reply.err then return effects.reason(keys, write, reply.err) end
  elseif #order > 1 then
    local refused, found = writes.check({}, keys, order)
    if refused then
      return effects.reason(keys, order[refused], type(found) == "table" and found.err or "there is " .. found)
    end
    for i = 1, #order do writes.execute(keys, order[i]) end
  end
  for i = 1, #calls, 2 do job.enqueue_now(s, calls[i], calls[i + 1]) end
  for i = 1, #sent, 3 do outbox.put(s, sent[i], "enqueue", sent[i + 1], sent[i + 2]) end
end

--- (keys: table, write: table, why: str) -> str
function effects.reason(keys, write, why)
  return "a staged write is impossible, and nothing was written: " .. write[_write.COMMAND] .. " "
    .. keys[write[_write.KEY]] .. ": " .. why
end
