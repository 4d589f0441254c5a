-- discovery_get_instance: one instance of a service.
-- KEYS[1] namespace; ARGV service id, instance id. Replies a flat list of fields and values;
-- ttl_at, the second at which it expires, comes last unless it is fixed or about to expire.
-- The list is empty when the instance is not in the service or has expired; only in
-- the latter case the script writes: it removes and announces the instance.

local namespace, service, id = KEYS[1], ARGV[1], ARGV[2]
local index = namespace .. ':svc_itc_idx:' .. service
local instance = namespace .. ':svc_itc:' .. id

if redis.call('SISMEMBER', index, id) == 0 then
    return {}
end
local ttl = redis.call('TTL', instance)
if ttl == -2 then
    redis.call('SREM', index, id)
    redis.call('PUBLISH', instance, 'expired')
    return {}
end

local fields = redis.call('HGETALL', instance)
if ttl > 0 then
    fields[#fields + 1] = 'ttl_at'
    fields[#fields + 1] = string.format('%d', redis.call('TIME')[1] + ttl)
end
return fields
