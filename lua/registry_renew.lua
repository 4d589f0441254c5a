-- registry_renew: extends the life of an ephemeral instance.
-- KEYS[1] namespace; ARGV instance id, ttl in seconds. Replies 1, or the remaining TTL when
-- that is not positive: -2 no such instance, -1 fixed, 0 too late.

local instance = KEYS[1] .. ':svc_itc:' .. ARGV[1]
local ttl = ARGV[2]
-- The expiry that readers were last told of. It is told again only when less than
-- margin seconds are left, which spares most renewals a message.
local announced = '__last_renew_pub_ttl_at'
local margin = 5

local remaining = redis.call('TTL', instance)
if remaining <= 0 then
    return remaining
end
redis.call('EXPIRE', instance, ttl)

local now = redis.call('TIME')[1]
local at = redis.call('HGET', instance, announced)
if not at then
    at = now + remaining
    redis.call('HSET', instance, announced, at)
end
if at - now < margin then
    redis.call('HSET', instance, announced, now + ttl)
    redis.call('PUBLISH', instance, 'renew')
end
return 1
