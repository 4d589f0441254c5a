-- registry_set_service: adds a service without instances.
-- KEYS[1] namespace; ARGV service id. Replies 1, or 0 when it was there.

local namespace, service = KEYS[1], ARGV[1]
local services = namespace .. ':svc_idx'

if redis.call('SADD', services, service) == 0 then
    return 0
end
redis.call('PUBLISH', services, 'set')
redis.call('HSET', namespace .. ':svc_stat', service, 0)
return 1
