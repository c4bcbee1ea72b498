-- Wake-ups: short messages to listeners, the parts of a process that wait for something.
--
--   inbox:<face>  LIST  "<number> <message>" for the listeners of one face, which blocks on it; PX
--
-- A face is the blocking side of a process, or one of its event loops. An address names the face and a listener of it:
-- `face/number` where the inbox belongs to the component of the script, or else `key of the inbox/number`. A message is
-- sent after the change that it reports. So a message that is lost costs time, but never the change.

-- Sends a message to an address of this component.
--- (address: str, message: str)
--- uses: base
function notify.send(address, message)
  local face, number = string.match(address, "^(.*)/(.-)$")
  local inbox = base .. "inbox:" .. face
  redis.call("RPUSH", inbox, number .. " " .. message)
  redis.call("PEXPIRE", inbox, 60000)
end

-- Asks a listener, whose address has the key of its inbox, to act in `ms` milliseconds.
--- (address: str, ms: int)
function notify.send_to_inbox(address, ms)
  local inbox, number = string.match(address, "^(.*)/(.-)$")
  redis.call("RPUSH", inbox, number .. " " .. string.format("%d", math.max(0, ms)))
  redis.call("PEXPIRE", inbox, 3600000)
end

-- The part of an address that all listeners of a face have in common.
--- (address: str) -> str
--- inline
function notify.face(address)
  return string.match(address, "^(.*)/")
end
