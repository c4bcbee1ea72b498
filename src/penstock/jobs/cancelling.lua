-- Cancelling a running job: the server asks its worker, which ends the job and settles it with the verb `cancel`.
--
--   cancels:<inc>  SET  tokens of running jobs that the incarnation is to cancel; deleted with the incarnation
--
-- The worker's listener gets the message "cancel". The worker then sends a heartbeat, whose reply has the tokens, as
-- the reply to each later heartbeat does until the jobs have ended. So a lost message delays a cancel by one heartbeat.

_cancels = { TTL = 86400000, PAGE = 100 }

-- Asks the worker of a running job to end it. Returns whether the job runs.
--- (id: str) -> bool
--- uses: base
function cancelling.ask(id)
  local owner = redis.call("HGET", base .. "owners", id)
  if not owner then return false end
  local incarnation = lease.incarnation(owner)
  local held = redis.call("HGET", base .. "held:" .. incarnation, id)
  if held then
    redis.call("SADD", base .. "cancels:" .. incarnation, claim.number_bytes(held) .. id)
    redis.call("PEXPIRE", base .. "cancels:" .. incarnation, _cancels.TTL)
    local registered = releases.of(incarnation)
    if registered and registered.address ~= "" then notify.send(registered.address, "cancel") end
  end
  return true
end

-- The tokens that an incarnation is to cancel and still holds, at most a hundred.
--- (incarnation: str) -> table
--- uses: base
function cancelling.tokens(incarnation)
  local key = base .. "cancels:" .. incarnation
  if redis.call("EXISTS", key) == 0 then return {} end
  local tokens, asked = {}, redis.call("SRANDMEMBER", key, _cancels.PAGE)
  for i = 1, #asked do
    if lease.held(incarnation, asked[i]) then
      tokens[#tokens + 1] = asked[i]
    else
      redis.call("SREM", key, asked[i])
    end
  end
  return tokens
end
