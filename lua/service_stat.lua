-- service_stat: counts the instances of services and stores the numbers.
-- KEYS[1] namespace; ARGV service id, which need not be a registered one. Any other number
-- of arguments: all registered services. Replies nil. Expired instances it meets are
-- removed and announced.

local namespace = KEYS[1]
local stat = namespace .. ':svc_stat'

local services = ARGV
if #ARGV ~= 1 then
    services = redis.call('SMEMBERS', namespace .. ':svc_idx')
end

for _, service in ipairs(services) do
    local index = namespace .. ':svc_itc_idx:' .. service
    local count = 0
    for _, id in ipairs(redis.call('SMEMBERS', index)) do
        local instance = namespace .. ':svc_itc:' .. id
        if redis.call('TTL', instance) == -2 then
            redis.call('SREM', index, id)
            redis.call('PUBLISH', instance, 'expired')
        else
            count = count + 1
        end
    end
    redis.call('HSET', stat, service, count)
end
return nil
