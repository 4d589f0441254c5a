-- registry_remove_service: removes a service that has no instances.
-- KEYS[1] namespace; ARGV service id. Replies 1, also when there was no such service, or 0
-- when it has instances; expired ones that nobody has noticed yet count.

local namespace, service = KEYS[1], ARGV[1]
local services = namespace .. ':svc_idx'

if redis.call('SCARD', namespace .. ':svc_itc_idx:' .. service) > 0 then
    return 0
end
if redis.call('SREM', services, service) == 1 then
    redis.call('PUBLISH', services, 'remove')
    redis.call('HDEL', namespace .. ':svc_stat', service)
end
return 1
