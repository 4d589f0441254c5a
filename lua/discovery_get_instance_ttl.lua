-- discovery_get_instance_ttl: when an instance of a service expires.
-- KEYS[1] namespace; ARGV service id, instance id. Replies the second at which it expires,
-- -1 when it is fixed, -2 when it is not in the service or has expired; only in the latter
-- case the script writes: it removes and announces the instance.

local namespace, service, id = KEYS[1], ARGV[1], ARGV[2]
local index = namespace .. ':svc_itc_idx:' .. service
local instance = namespace .. ':svc_itc:' .. id

if redis.call('SISMEMBER', index, id) == 0 then
    return -2
end
local ttl = redis.call('TTL', instance)
if ttl == -2 then
    redis.call('SREM', index, id)
    redis.call('PUBLISH', instance, 'expired')
end
if ttl < 0 then
    return ttl
end
return redis.call('TIME')[1] + ttl
