-- discovery_get_instances: the instances of a service.
-- KEYS[1] namespace; ARGV service id. Replies one flat list of fields and values per instance;
-- ttl_at, the second at which it expires, comes last unless it is fixed or about to expire.
-- Writes only when it meets an expired instance, which it removes and announces.

local namespace, service = KEYS[1], ARGV[1]
local index = namespace .. ':svc_itc_idx:' .. service
local now = redis.call('TIME')[1]

local instances = {}
for _, id in ipairs(redis.call('SMEMBERS', index)) do
    local instance = namespace .. ':svc_itc:' .. id
    local ttl = redis.call('TTL', instance)
    if ttl == -2 then
        redis.call('SREM', index, id)
        redis.call('PUBLISH', instance, 'expired')
    else
        local fields = redis.call('HGETALL', instance)
        if ttl > 0 then
            fields[#fields + 1] = 'ttl_at'
            fields[#fields + 1] = string.format('%d', now + ttl)
        end
        instances[#instances + 1] = fields
    end
end
return instances
